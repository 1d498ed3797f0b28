"""Tile programs in distributed form to LLVM IR: what code generation for every GPU shares."""
