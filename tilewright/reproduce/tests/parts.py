"""Parts of a program that tests of golden counts look at."""

from __future__ import annotations

from typing import Any

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

from tilewright.kernel.dialect import FuncOp


def kernel_of(module: ModuleOp) -> FuncOp:
    return next(op for op in module.body.ops if isinstance(op, FuncOp))


def every(root: FuncOp | scf.ForOp, kind: Any) -> list[Any]:
    """Operations of a kind, those in loops and branches included."""
    return [op for op in root.walk() if isinstance(op, kind)]


def loop_of(kernel: FuncOp) -> scf.ForOp:
    (loop,) = every(kernel, scf.ForOp)
    assert isinstance(loop, scf.ForOp)
    return loop
