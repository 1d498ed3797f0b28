"""A GPU that runs on the CPU: PTX text in, results and diagnostics out.

`parse` reads a module, `run` executes one of its entries on NumPy arrays. What the kernel does wrong (races, accesses
out of bounds, missing barriers, reads before the wait) is in `Result.diagnostics`, what it does is in `Result.counts`.
`run` takes kernels as Triton compiles them, too; `pytest_plugin` has a fixture that tests them.
"""

from __future__ import annotations

from tilewright.emulator.arguments import Uninitialised
from tilewright.emulator.compiled import load_compiled
from tilewright.emulator.diagnostics import Diagnostic
from tilewright.emulator.errors import InvalidPtx
from tilewright.emulator.parser import parse
from tilewright.emulator.run import Result, run
from tilewright.emulator.syntax import Module
from tilewright.emulator.tensor_maps import TensorMap

__all__ = [
    "Diagnostic",
    "InvalidPtx",
    "Module",
    "Result",
    "TensorMap",
    "Uninitialised",
    "load_compiled",
    "parse",
    "run",
]
