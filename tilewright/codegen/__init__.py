"""Code generation: tile programs to machine code, one folder per target."""
