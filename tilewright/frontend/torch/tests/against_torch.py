"""Functions of torch against their imported graphs: captured as one module with many results, and evaluated."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.expr import dtypes
from tilewright.expr.evaluate import evaluate
from tilewright.frontend.torch import import_module
from tilewright.frontend.torch.element_types import array_of

torch = pytest.importorskip("torch")
logging.getLogger("torch.__trace").setLevel(logging.WARNING)

EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


class Many(torch.nn.Module):
    """Results of named functions; `weights` are parameters that they may use."""

    def __init__(self, cases: dict[str, Callable[..., Any]], **weights: Any) -> None:
        super().__init__()
        self.cases = cases
        for name, value in weights.items():
            setattr(self, name, torch.nn.Parameter(value, requires_grad=False))

    def forward(self, *inputs: Any) -> list[Any]:
        return [case(*inputs) for case in self.cases.values()]


def check(cases: dict[str, Callable[..., Any]], *inputs: Any, ulps: float = 64) -> None:
    """All results agree with torch within `ulps` units of the largest element."""
    module = Many(cases)
    with torch.no_grad():
        expected = [part for case in module.cases.values() for part in flat(case(*inputs))]
    labels = [name for name, case in cases.items() for _ in flat(case(*inputs))]
    graph = import_module(module, inputs)
    found = evaluate(graph, [array_of(x) for x in inputs])
    wrong = [
        line
        for label, want, got in zip(labels, expected, found, strict=True)
        if (line := _difference(label, array_of(want), got, ulps))
    ]
    assert not wrong, "\n".join(wrong)


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _difference(label: str, want: np.ndarray, got: np.ndarray, ulps: float) -> str:
    if want.shape != got.shape or want.dtype != got.dtype:
        return f"{label}: {got.dtype}{got.shape}, torch has {want.dtype}{want.shape}"
    kind = dtypes.from_numpy(want.dtype)
    if kind not in EPSILON:
        return "" if np.array_equal(want, got) else f"{label}: {got} instead of {want}"
    wide, mine = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.array_equal(wide[~finite], mine[~finite], equal_nan=True):
        return f"{label}: {mine[~finite]} instead of {wide[~finite]}"
    scale = max(1.0, float(abs(wide[finite]).max(initial=0)))
    error = float(abs(wide[finite] - mine[finite]).max(initial=0)) / scale
    return f"{label}: off by {error:.1e}" if error > ulps * EPSILON[kind] else ""


def rand(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(*shape: int, low: int = -9, high: int = 9, seed: int = 0, dtype: Any = torch.int64) -> Any:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
