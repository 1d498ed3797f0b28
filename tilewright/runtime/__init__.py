"""Run compiled modules: object code, memory, threads, the compile cache and the `.twm` file.

`module.Module` is what users call; `container.load` reads one from a file; `pool` runs the programs of a kernel
on threads; `cache` keeps compiled artifacts on disk; `memory` plans the arena and allocates it.
"""
