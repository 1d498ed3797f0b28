"""Tilewright: a tensor compiler from models and tile kernels to machine code."""
