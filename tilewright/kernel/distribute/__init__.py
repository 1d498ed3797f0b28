"""From tiles of a block to registers of its threads: layouts for all tiles, then every operation by those layouts."""
