"""The distributed form of Hopper: barriers that count arrivals, tensor copies, products of four warps."""
