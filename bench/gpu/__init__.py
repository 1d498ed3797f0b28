"""Kernels on a GPU: right first, then timed beside torch, torch.compile and Triton, within a time that is set."""
