"""Level 1: what is computed together, how tensors are stored, in which block order."""
