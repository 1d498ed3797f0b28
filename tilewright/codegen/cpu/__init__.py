"""Tile programs to x86-64 and AArch64 object code through LLVM."""
