"""Every function on every dtype and casts between all pairs, on the numbers where they are special."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.covering import FULL
from tilewright.compiler.compile import compile_graph
from tilewright.expr import dtypes
from tilewright.expr.core import FUNCTIONS, Axis, Compute, Tensor, apply, select
from tilewright.expr.graph import Graph
from tilewright.options import Options

Array = np.ndarray[Any, Any]
MACHINES = os.environ.get("TILEWRIGHT_TEST_MACHINES", "host").split(",")
ULPS = 4.0  # more than what any function of code generation states in its dtype
TINY = {"bf16": 2.0**-126, "f16": 2.0**-24, "f32": 2.0**-126, "f64": 2.0**-1022}  # denormal results may differ
HALF_ULP = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53}
SHIFTS = ("shl", "shr")


def some_types() -> list[str]:
    """Of integers each width, and both kinds of bytes; all with `--full`."""
    return [dtype for dtype in dtypes.DTYPES if FULL or dtype not in ("i16", "u32", "i64")]


def numbers(dtype: str) -> Array:
    """Edges of a dtype and what lies between them."""
    numpy = dtypes.numpy_dtype(dtype)
    generator = np.random.default_rng(7)
    if dtype == "bool":
        return np.asarray([False, True])
    if dtypes.is_integer(dtype):
        limits = np.iinfo(numpy)
        edges = [limits.min, limits.min + 1, 0, 1, 2, 3, 7, limits.max // 2, limits.max - 1, limits.max]
        edges += [] if dtypes.is_unsigned(dtype) else [-1, -2, -7]
        return np.concatenate([np.asarray(edges, numpy), generator.integers(limits.min, limits.max, 4, numpy)])
    limits = _float_limits(dtype)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 2.0, 3.0, limits[0], limits[1]]
    edges += [-limits[1], 100.0, -100.0, 1e-3, 0.999, -0.999, 10.5, 3.25, -7.75]
    with np.errstate(over="ignore"):
        return np.asarray([*edges, *generator.standard_normal(8)]).astype(numpy)


def _float_limits(dtype: str) -> tuple[float, float]:
    """The smallest normal and the largest number."""
    return {"bf16": (2.0**-126, 3.3895e38), "f16": (2.0**-14, 65504.0), "f32": (2.0**-126, 3.4028e38)}.get(
        dtype, (2.0**-1022, 1.7976e308)
    )


def run(graph: Graph, arrays: list[Array], machine: str) -> list[Array]:
    found = compile_graph(graph, machine, 1, replace(Options(), cache=False))(*arrays)
    return list(found) if isinstance(found, tuple) else [found]


def functions_of(dtype: str) -> list[str]:
    kind = "b" if dtype == "bool" else "f" if dtypes.is_float(dtype) else "i"
    return [name for name, rule in FUNCTIONS.items() if kind in rule.kinds]


def function_graph(dtype: str) -> tuple[Graph, list[str], list[Array]]:
    """All functions of a dtype in one graph, their names, and all pairs of the special numbers."""
    values = numbers(dtype)
    a, b = (np.ascontiguousarray(array).reshape(-1) for array in np.meshgrid(values, values, indexing="ij"))
    size = a.size
    x, y, i = Tensor("x", (size,), dtype), Tensor("y", (size,), dtype), Axis("i", size)
    nodes, names = [], functions_of(dtype)
    for name in names:
        rule = FUNCTIONS[name]
        if rule.result == "select":
            body = select(x[i].ne(y[i]), x[i], y[i])
        else:
            second = apply("and", y[i], 7) if name in SHIFTS else y[i]
            body = apply(name, *[x[i], second][: rule.arity])
        nodes.append(Compute(Tensor(name, (size,), body.dtype), (i,), body))
    return Graph((x, y), tuple(node.output for node in nodes), tuple(nodes), {}, "functions"), names, [a, b]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", some_types())
def test_functions(dtype: str, machine: str) -> None:
    graph, names, arrays = function_graph(dtype)
    for name, result in zip(names, run(graph, arrays, machine), strict=True):
        check_function(name, dtype, *arrays, result)


def check_function(name: str, dtype: str, a: Array, b: Array, result: Array) -> None:
    rule = FUNCTIONS[name]
    second = b & b.dtype.type(7) if name in SHIFTS else b
    arguments = [a != b, a, b] if rule.result == "select" else [a, second][: rule.arity]
    legal = np.ones(a.shape, bool)
    if dtypes.is_float(dtype) and rule.result == "same":
        arguments = [argument.astype(np.float64) for argument in arguments]
        if name in ("sin", "cos", "tan"):
            legal = abs(arguments[0]) < 1e5  # beyond, the argument itself has no angle worth the name
        if name == "exp_nonpositive":
            legal = ~(arguments[0] > 0)
    if name == "pow" and dtypes.is_integer(dtype):
        legal = abs(b.astype(np.float64)) < 64
    with np.errstate(all="ignore"):
        wanted = np.asarray(rule.numpy(*arguments))
    if result.dtype.kind in "biu":
        wrong = legal & (result != wanted.astype(result.dtype))
    else:
        with np.errstate(all="ignore"):
            rounded, wide = wanted.astype(result.dtype).astype(np.float64), result.astype(np.float64)
            error = ULPS * 2 * HALF_ULP[dtype] * abs(wanted) + ULPS * TINY[dtype]
            near = (abs(wide - wanted) <= error) | (wide == rounded) | (np.isnan(wide) & np.isnan(rounded))
            large = _float_limits(dtype)[1]  # a result next to the largest number may overflow
            near |= (abs(wanted) > large * (1 - ULPS * HALF_ULP[dtype])) & (abs(wide) >= large * 0.99)
        wrong = legal & ~near
    places = np.flatnonzero(wrong)[:5]
    cases = [f"{name}({a[p]}, {b[p]}) = {result[p]}, not {wanted[p]}" for p in places]
    assert not cases, f"{int(wrong.sum())} wrong: {cases}"


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("source", some_types())
def test_casts(source: str, machine: str) -> None:
    """From one dtype to all: integers wrap, floats in the range of an integer are cut, -0.0 is False and NaN True."""
    values = numbers(source)
    x, i = Tensor("x", values.shape, source), Axis("i", values.size)
    nodes = [Compute(Tensor(f"to.{to}", values.shape, to), (i,), x[i].cast(to)) for to in dtypes.DTYPES]
    found = run(Graph((x,), tuple(node.output for node in nodes), tuple(nodes), {}, "casts"), [values], machine)
    for to, result in zip(dtypes.DTYPES, found, strict=True):
        legal = np.ones(values.shape, bool)
        if dtypes.is_float(source) and dtypes.is_integer(to):
            limits, wide = np.iinfo(dtypes.numpy_dtype(to)), values.astype(np.float64)
            with np.errstate(invalid="ignore"):
                legal = (np.trunc(wide) >= float(limits.min)) & (np.trunc(wide) < float(limits.max))
        with np.errstate(all="ignore"):
            wanted = values.astype(dtypes.numpy_dtype(to))
            if dtypes.is_float(source) and to in ("bf16", "f16") and source == "f64":
                wanted = values.astype(np.float32).astype(wanted.dtype)  # ml_dtypes goes through f32, too
            equal = (result == wanted) | ((result != result) & (wanted != wanted))
            if to in ("f16", "bf16") and source in ("i64", "u64", "i32", "u32", "f64"):  # rounded twice, through f32
                near = abs(result.astype(np.float64) - wanted.astype(np.float64)) <= 2 * HALF_ULP[to] * abs(
                    values.astype(np.float64)
                )
                equal |= near
        places = np.flatnonzero(legal & ~equal)
        assert not places.size, [f"{to}({values[p]}) = {result[p]}, not {wanted[p]}" for p in places[:5]]


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_extremes_with_a_constant(dtype: str) -> None:
    """The constant may be NaN, which wins, and may stand on either side."""
    values = numbers(dtype)
    x, i = Tensor("x", values.shape, dtype), Axis("i", values.size)
    bodies = [
        apply(name, *pair)
        for name in ("min", "max")
        for constant in (float("nan"), 1.0, float("-inf"))
        for pair in ((x[i], constant), (constant, x[i]))
    ]
    nodes = [Compute(Tensor(f"n{n}", values.shape, dtype), (i,), body) for n, body in enumerate(bodies)]
    found = run(Graph((x,), tuple(node.output for node in nodes), tuple(nodes), {}, "extremes"), [values], "host")
    position = iter(found)
    for name in ("minimum", "maximum"):
        for constant in (np.nan, 1.0, -np.inf):
            for _ in range(2):
                wanted = getattr(np, name)(values.astype(np.float64), constant).astype(values.dtype)
                np.testing.assert_array_equal(next(position).astype(np.float64), wanted.astype(np.float64))
