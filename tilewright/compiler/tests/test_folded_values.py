"""What an operator gives when it is folded ahead of time, and when its code runs: the same, in every element type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.covering import some
from tilewright.compiler.compile import compile_graph
from tilewright.expr import dtypes
from tilewright.expr.core import FUNCTIONS, Tensor, apply
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import elementwise as ops
from tilewright.expr.tests.units import units_between
from tilewright.options import Options

Array = np.ndarray[Any, Any]
Build = Callable[[Tensor, Tensor], Tensor]

#: Two results of one operator may lie on both sides of a number: half a unit each where f32 is rounded once, and the
#: units of the elementary functions of NumPy and of ours where the type is computed in itself.
UNITS = {"f16": 1, "bf16": 1, "f32": 5, "f64": 8}

_FUNCTIONS: dict[str, Build] = {
    name: (lambda x, y, name=name: ops.map_elements([x, y][: FUNCTIONS[name].arity], lambda *v: apply(name, *v)))
    for name, function in FUNCTIONS.items()
    if "f" in function.kinds and name not in ("select", "exp_nonpositive")  # which no operator of a model is
}
_OPERATORS: dict[str, Build] = {
    "leaky_relu": lambda x, y: ops.leaky_relu(x),
    "prelu": ops.prelu,
    "elu": lambda x, y: ops.elu(x, alpha=0.7),
    "selu": lambda x, y: ops.selu(x),
    "celu": lambda x, y: ops.celu(x, alpha=0.7),
    "gelu": lambda x, y: ops.gelu(x),
    "gelu by tanh": lambda x, y: ops.gelu(x, approximate="tanh"),
    "softplus": lambda x, y: ops.softplus(x),
    "softsign": lambda x, y: ops.softsign(x),
    "mish": lambda x, y: ops.mish(x),
    "swish": lambda x, y: ops.swish(x, alpha=0.7),
    "silu": lambda x, y: ops.swish(x),
    "hard_sigmoid": lambda x, y: ops.hard_sigmoid(x),
    "hard_swish": lambda x, y: ops.hard_swish(x),
    "thresholded_relu": lambda x, y: ops.thresholded_relu(x),
    "shrink": lambda x, y: ops.shrink(x, bias=0.3),
    "mean": lambda x, y: ops.mean([x, y, x]),
    "sum": lambda x, y: ops.variadic([x, y, x], "add"),
    "square root of a square": lambda x, y: ops.power_constant(x, 0.5),
    "cube": lambda x, y: ops.power_constant(x, 3.0),
    "power": lambda x, y: ops.power_constant(x, 1.7),
    "reciprocal": lambda x, y: ops.power_constant(x, -1.0),
}
BUILDERS = {**_FUNCTIONS, **_OPERATORS}
#: Several operators in one kernel; their roundings to f16 and bf16 hide what the first ones differ in.
CHAINS: dict[str, Build] = {
    "two operators": lambda x, y: ops.mish(ops.binary(x, y, "mul")),
    "three operators": lambda x, y: ops.swish(ops.binary(ops.softplus(x), y, "add")),
}


def samples(dtype: str, count: int) -> tuple[Array, Array]:
    """Numbers of all sizes at which activations bend, and in the second array none that is near 0."""
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.normal(0, scale, count) for scale in (1e-3, 1, 4, 12)])
    y = np.concatenate([rng.choice((-1, 1), 3 * count) * rng.uniform(0.25, 4, 3 * count), np.full(count, 2.0)])
    return x.astype(dtypes.numpy_dtype(dtype)), y.astype(dtypes.numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", some(["f32", "f64", "bf16", "f16"], 2))
def test_folded_operators_are_what_runs(dtype: str) -> None:
    arrays = samples(dtype, 67)  # 4 * 67 is not a multiple of any vector
    builders = {**BUILDERS, **CHAINS} if dtypes.wide(dtype) != dtype else BUILDERS
    found, folded = (_results(dtype, builders, arrays, constant) for constant in (False, True))
    apart = {}
    for name, one, other in zip(builders, found, folded, strict=True):
        units = units_between(one, other)
        if units.max() > UNITS[dtype]:
            worst = int(units.argmax())
            at = ", ".join(str(array[worst]) for array in (*arrays, one, other))
            apart[name] = f"{units[worst]:.3g} units at x, y, compiled, folded = {at}"
    assert not apart


def _results(dtype: str, builders: Mapping[str, Build], arrays: Sequence[Array], constant: bool) -> list[Array]:
    """Every operator of `arrays`, compiled in one graph that reads them, or that folds to constants."""
    b = GraphBuilder()
    shape = arrays[0].shape
    given = [
        b.constant(array, name) if constant else b.input(name, shape, dtype)
        for array, name in zip(arrays, "xy", strict=True)
    ]
    graph = b.finish([build(*given) for build in builders.values()])
    module = compile_graph(graph, "host", 1, replace(Options(), cache=False))
    return list(module(*([] if constant else arrays)))
