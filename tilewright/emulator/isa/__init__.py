"""The instruction set: one module per family, all entered into one table."""

from tilewright.emulator.isa import (
    approximations,
    async_copy,
    atomics,
    compare,
    control,
    convert,
    floating,
    integer,
    load_store,
    logic,
    matrices,
    mbarrier,
    synchronise,
    video,
    warp,
    warpgroup,
)
from tilewright.emulator.isa.table import INSTRUCTIONS

__all__ = [
    "INSTRUCTIONS", "approximations", "async_copy", "atomics", "compare", "control", "convert", "floating", "integer",
    "load_store", "logic", "matrices", "mbarrier", "synchronise", "video", "warp", "warpgroup",
]  # fmt: skip
