"""Level 3: which loops of an expression an intrinsic executes, and schedules for matrix units.

Each name below is imported when it is first asked for:

>>> from tilewright import instruction
>>> problem = instruction.MmaProblem(m=(1024,), n=(1024,), k=(1024,))
>>> print(instruction.deduce_mma(problem, "gfx1201").schedule)
WMMAR4_F32_16x16x16_F16 2,2;2,4,4
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.instruction.mapping import Mapping, mappings
    from tilewright.instruction.mma import (
        MmaProblem,
        MmaSchedule,
        check,
        deduce_mma,
        eligible,
        fit,
        initial_schedule,
        kernel_config,
        mma_target,
    )
    from tilewright.instruction.validation import validate

__all__ = [
    "Mapping", "MmaProblem", "MmaSchedule", "check", "deduce_mma", "eligible", "fit", "initial_schedule",
    "kernel_config", "mappings", "mma_target", "validate",
]  # fmt: skip

_HOMES = {
    "mapping": ("Mapping", "mappings"),
    "mma": ("MmaProblem", "MmaSchedule", "check", "deduce_mma", "eligible", "fit", "initial_schedule", "kernel_config",
            "mma_target"),
    "validation": ("validate",),
}  # fmt: skip
_LAZY = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    """Import what a name stands for when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
