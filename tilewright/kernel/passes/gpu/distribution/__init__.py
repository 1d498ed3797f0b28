"""Tiles of a block on its threads: layouts of tile types, accesses, fragments, memory in between. Passes use it."""
