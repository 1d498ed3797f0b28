"""Tilewright: a tensor compiler from models and tile kernels to machine code.

>>> import tilewright
>>> module = tilewright.compile("model.onnx")  # doctest: +SKIP
>>> result = module(image)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import CompileError
from tilewright.lazy import on_demand
from tilewright.options import Options

if TYPE_CHECKING:
    from tilewright.compiler.compile import compile, load
    from tilewright.runtime.module import Module

__all__ = ["CompileError", "Module", "Options", "compile", "load"]
__version__ = "0.1.0"

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "Module": "tilewright.runtime.module",
        "compile": "tilewright.compiler.compile",
        "load": "tilewright.compiler.compile",
    },
)
