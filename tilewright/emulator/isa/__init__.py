"""The instruction set: one module per family, all entered into one table."""

from tilewright.emulator.isa import (
    approximations,
    atomics,
    compare,
    control,
    convert,
    floating,
    integer,
    load_store,
    logic,
    synchronise,
    warp,
)
from tilewright.emulator.isa.table import INSTRUCTIONS

__all__ = [
    "INSTRUCTIONS", "approximations", "atomics", "compare", "control", "convert", "floating", "integer", "load_store",
    "logic", "synchronise", "warp",
]  # fmt: skip
