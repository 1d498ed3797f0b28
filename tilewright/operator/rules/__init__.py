"""Rules that propose the tile trees of kernels: one file per kind of machine and of work."""
