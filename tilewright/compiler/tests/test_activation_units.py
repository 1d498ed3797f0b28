"""Activations in f32 over the whole range: at most four units in the last place, evaluated and compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.compile import compile_graph
from tilewright.expr.core import Tensor
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise as ops
from tilewright.expr.tests.units import units_between
from tilewright.options import Options

Array = np.ndarray[Any, Any]
Build = Callable[[Tensor], Tensor]
Truth = Callable[[Array], Array]

ALPHA, GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def _mish(x: Array) -> Array:
    n = np.exp(np.minimum(x, 50)) * (np.exp(np.minimum(x, 50)) + 2)
    return x * (n / (n + 2))


def _elu(x: Array, alpha: float, gamma: float = 1.0) -> Array:
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _gelu(x: Array) -> Array:
    return x * np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])


def _gelu_tanh(x: Array) -> Array:
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _call(function: str) -> Build:
    return lambda x: ops.unary(x, function)


_erf = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS: dict[str, tuple[Build, Truth]] = {
    "relu": (lambda x: ops.relu(x), lambda x: np.maximum(x, 0)),
    "leaky_relu": (lambda x: ops.leaky_relu(x), lambda x: np.where(x < 0, np.float64(0.01) * x, x)),
    "elu": (lambda x: ops.elu(x, alpha=0.75), lambda x: _elu(x, 0.75)),
    "selu": (lambda x: ops.selu(x), lambda x: _elu(x, ALPHA, GAMMA)),
    "celu": (
        lambda x: ops.celu(x, alpha=0.5),
        lambda x: np.where(x > 0, x, 0.5 * np.expm1(2 * np.minimum(x, 0))),
    ),
    "gelu": (lambda x: ops.gelu(x), _gelu),
    "gelu by tanh": (lambda x: ops.gelu(x, approximate="tanh"), _gelu_tanh),
    "silu": (lambda x: ops.swish(x), lambda x: x * _sigmoid(x)),
    "swish": (lambda x: ops.swish(x, alpha=0.5), lambda x: x * _sigmoid(0.5 * x)),
    "softplus": (lambda x: ops.softplus(x), lambda x: np.logaddexp(x, 0)),
    "log_sigmoid": (
        lambda x: ops.map_elements([x], lambda v: -ops.softplus_of(-v)),
        lambda x: -np.logaddexp(-x, 0),
    ),
    "mish": (lambda x: ops.mish(x), _mish),
    "softsign": (lambda x: ops.softsign(x), lambda x: x / (1 + np.abs(x))),
    "hard_swish": (lambda x: ops.hard_swish(x), lambda x: x * (np.clip(x + 3, 0, 6) / 6)),
    "sigmoid": (_call("sigmoid"), _sigmoid),
    "tanh": (_call("tanh"), np.tanh),
    "erf": (_call("erf"), _erf),
    "normal_cdf": (_call("normal_cdf"), lambda x: np.array([math.erfc(-v / math.sqrt(2)) / 2 for v in x])),
    "expm1": (_call("expm1"), np.expm1),
    "log1p": (_call("log1p"), np.log1p),
    "thresholded_relu": (lambda x: ops.thresholded_relu(x, alpha=0.5), lambda x: np.where(x > 0.5, x, 0)),
}  # fmt: skip


#: A number times another that is denormal below some place, from -87.3 on.
PRODUCTS = ("gelu", "gelu by tanh", "silu", "swish", "mish")


def samples() -> Array:
    """Every exponent and both signs, the places where activations bend, denormals, infinities and NaN."""
    rng = np.random.default_rng(11)
    spread = rng.integers(0, 1 << 32, 20_000, np.uint64).astype(np.uint32).view(np.float32)
    near = [rng.uniform(-at, at, 8000) for at in (0.1, 1, 4, 20, 120)]
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.2e-38, -3.0, 3.0, 3.4e38, -3.4e38]
    return np.concatenate([*near, spread, special]).astype(np.float32)


def graph_of(count: int) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (count,), "f32")
    return b.finish([build(x) for build, _ in ACTIVATIONS.values()])


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    x = samples()
    graph = graph_of(len(x))
    module = compile_graph(graph, "host", 1, replace(Options(), cache=False))
    return {"evaluated": evaluate(graph, [x]), "compiled": list(module(x))}


@pytest.mark.parametrize("how", ["evaluated", "compiled"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_four_units(name: str, how: str, results: dict[str, list[Array]]) -> None:
    x = samples()
    found = results[how][list(ACTIVATIONS).index(name)]
    with np.errstate(all="ignore"):
        expected = np.asarray(ACTIVATIONS[name][1](x.astype(np.float64)))
        units = units_between(found, expected)
    if name in PRODUCTS:  # the last place of a denormal factor counts as often as the other factor is large
        smallest = np.spacing(np.float32(0)) * np.maximum(1, np.abs(x.astype(np.float64)))
        units = np.where(units < np.inf, np.fmin(units, np.abs(found - expected) / smallest), units)
    worst = int(units.argmax())
    assert units[worst] <= 4, f"{units[worst]:.3g} at {x[worst]}: {found[worst]}, not {expected[worst]}"
