"""Tile programs in distributed form to PTX for NVIDIA GPUs, through LLVM."""
