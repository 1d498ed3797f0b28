"""Tilewright: a tensor compiler from models and tile kernels to machine code.

>>> import tilewright
>>> module = tilewright.compile("model.onnx")  # doctest: +SKIP
>>> result = module(image)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import CompileError
from tilewright.options import Options

if TYPE_CHECKING:
    from tilewright.compiler.compile import compile, load
    from tilewright.runtime.module import Module

__all__ = ["CompileError", "Module", "Options", "compile", "load"]
__version__ = "0.1.0"

_LAZY = {
    "compile": "tilewright.compiler.compile",
    "load": "tilewright.compiler.compile",
    "Module": "tilewright.runtime.module",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def __getattr__(name: str) -> Any:
    """Import the compiler and the runtime when they are first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
