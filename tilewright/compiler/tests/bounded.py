"""Reference values with error bounds: every expression in float64, and how far a compiled module may be from that.

The bound is a running error analysis (Higham 2002, section 3.3): each operation adds the half ulp of its dtype to what
its operands bring. f16 and bf16 may be rounded after every operation or computed in f32 throughout: the bound allows
both. Integers and bools are exact. Where a comparison of floats could go either way, the bound covers both branches of
a select.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewright.expr import dtypes
from tilewright.expr.core import (
    ACCUMULATIONS,
    FUNCTIONS,
    Apply,
    Axis,
    Cast,
    Compute,
    Const,
    Expr,
    Read,
    Tensor,
    identity,
    walk,
)
from tilewright.expr.evaluate_ordered import evaluate_ordered
from tilewright.expr.graph import Graph, Loop
from tilewright.expr.ordered import PrefixScan, Scatter, Sort

Array = np.ndarray[Any, Any]
Bounded = tuple[Array, Array]  # the value, and the bound of a float or whether an integer or bool is unknown

HALF_ULP = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53}
TINY = {"bf16": 2.0**-126, "f16": 2.0**-24, "f32": 2.0**-126, "f64": 2.0**-1022}  # denormals may be 0; f16 has them
LARGEST = {"bf16": 3.38e38, "f16": 65504.0, "f32": 3.4e38, "f64": 1.79e308}
FUNCTION_ULPS = 4.0  # more than any elementary function of code generation states
LIPSCHITZ = {"tanh": 1.0, "erf": 1.1284, "sigmoid": 0.25, "sin": 1.0, "cos": 1.0, "atan": 1.0, "abs": 1.0, "neg": 1.0,
             "asinh": 1.0}  # fmt: skip
MONOTONE = ("exp", "exp2", "expm1", "log", "log1p", "sqrt", "floor", "ceil", "round", "trunc", "sinh", "asin", "acos",
            "acosh", "atanh")  # fmt: skip


def evaluate_bounded(graph: Graph, inputs: Mapping[str, Array]) -> list[Bounded]:
    """Every output in float64 (integers in their dtype) with its bound."""
    with np.errstate(all="ignore"):
        return _run_graph(graph, {name: _exact(array) for name, array in inputs.items()})


def _run_graph(graph: Graph, known: dict[str, Bounded]) -> list[Bounded]:
    known.update({name: _exact(array) for name, array in graph.constants.items()})
    for step in graph.steps():
        if isinstance(step, Compute):
            known[step.name] = _ordered(step, known) if step.ordered else _Point(step, known).run()
        else:
            known.update(_run_loop(step, known))
    return [known[tensor.name] for tensor in graph.outputs]


def _run_loop(loop: Loop, known: Mapping[str, Bounded]) -> dict[str, Bounded]:
    """The results of a loop, trip by trip, as the evaluator has them."""
    states = [known[each.initial.name] for each in loop.carried]
    rows: dict[Tensor, dict[int, Bounded]] = {each.whole: {} for each in loop.stacked}
    for trip in range(loop.trips):
        back = loop.trips - 1 - trip
        inside = {tensor.name: known[tensor.name] for tensor in loop.captured()}
        for each in loop.sliced:
            value, bound = known[each.whole.name]
            inside[each.part.name] = value[at := back if each.backwards else trip], bound[at]
        inside |= {each.state.name: state for each, state in zip(loop.carried, states, strict=True)}
        found = dict(zip(loop.body.outputs, _run_graph(loop.body, inside), strict=True))
        states = [found[each.following] for each in loop.carried]
        for each in loop.stacked:
            rows[each.whole][back if each.backwards else trip] = found[each.part]
    results = {each.final.name: state for each, state in zip(loop.carried, states, strict=True)}
    for whole, parts in rows.items():
        ordered = [parts[place] for place in sorted(parts)]
        results[whole.name] = (np.stack([v for v, _ in ordered]), np.stack([b for _, b in ordered]))
    return results


def violations(result: Array, expected: Bounded) -> Array:
    """Where a result is farther from the reference than its bound."""
    value, bound = expected
    if value.dtype.kind != "f":
        return (result != value) & ~bound
    with np.errstate(all="ignore"):
        wide = result.astype(np.float64)
        near = (abs(wide - value) <= bound) | (wide == value) | (np.isnan(wide) & np.isnan(value))
    return ~(near | np.isnan(bound) | np.isinf(bound))


def _exact(array: Array) -> Bounded:
    if array.dtype.kind in "iub":
        return array, np.zeros(array.shape, bool)
    return array.astype(np.float64), np.zeros(array.shape)


def _ordered(node: Compute, known: Mapping[str, Bounded]) -> Bounded:
    """A scan, sort or scatter: the evaluator's, of values, of their bounds, and of their sizes."""
    accum, dtype = node.ordered, node.output.dtype

    def of(function: Callable[[Array, Array], Array], accum: Any = accum) -> Array:
        def values(part: Compute) -> Array:
            value, bound = _Point(part, known).run()
            return function(value, bound) if value.dtype.kind == "f" else value

        return evaluate_ordered(replace(node, accum=accum), values)

    value = of(lambda v, e: v)
    if isinstance(accum, Sort):
        exact = not any(bound.any() for tensor in node.inputs() for bound in [known[tensor.name][1]])
        return value, np.full(value.shape, not exact)
    assert isinstance(accum, PrefixScan | Scatter)
    if not dtypes.is_float(dtype):
        return value, np.zeros(value.shape, bool)
    steps = (prod(int(axis.extent) for axis in node.reduce) + 1) * HALF_ULP[
        "f32" if dtype in ("f16", "bf16") else dtype
    ]  # type: ignore[arg-type]
    if accum.combine == "sum":
        error = of(lambda v, e: e) + steps * of(lambda v, e: abs(v) + e)
    elif accum.combine == "prod":
        relative = of(lambda v, e: np.log1p(np.where(v == 0, np.inf, e / abs(v))), replace(accum, combine="sum"))
        error = abs(value) * np.expm1(relative + steps)
    else:
        error = of(lambda v, e: e, replace(accum, combine=accum.combine and "max"))
        error = np.where(np.isinf(error) & (error < 0), 0.0, error)  # nothing before the first element
    return value, error + HALF_ULP[dtype] * (abs(value) + error) + TINY[dtype]


class _Point:
    """One compute, all its loop points at once."""

    def __init__(self, node: Compute, known: Mapping[str, Bounded]) -> None:
        self.node = node
        self.known = known
        self.loops = list(node.loops)
        self.shape = tuple(int(axis.extent) for axis in self.loops)  # type: ignore[arg-type]
        self.memo: dict[tuple[Expr, int], Bounded] = {}

    def run(self) -> Bounded:
        value, bound = (np.broadcast_to(part, self.shape) for part in self.emit(self.node.body))
        dtype, accum = self.node.output.dtype, self.node.accum
        if accum is None:
            return self._rounded(value, bound, dtype, 1.0) if dtypes.is_float(dtype) else (value, bound)
        axes = tuple(range(len(self.node.axes), len(self.loops)))
        assert isinstance(accum, str)
        start = identity(accum, dtype).value
        combine: Any = FUNCTIONS[ACCUMULATIONS[accum]].numpy
        if not dtypes.is_float(dtype):
            total = np.asarray(combine.reduce(value, axis=axes, dtype=value.dtype, initial=value.dtype.type(start)))
            return total, bound.any(axis=axes)
        total = np.asarray(combine.reduce(value, axis=axes, initial=float(start)))
        count = prod(self.shape[len(self.node.axes) :])
        step = HALF_ULP["f32" if dtype in ("f16", "bf16") else dtype]
        if accum == "sum":
            error = bound.sum(axis=axes) + (count + 1) * step * (abs(value) + bound).sum(axis=axes)
        elif accum == "prod":
            relative = np.log1p(np.where(value == 0, np.inf, bound / abs(value))).sum(axis=axes)
            error = abs(total) * np.expm1(relative + (count + 1) * step)
        else:
            error = bound.max(axis=axes, initial=0.0)
        return self._rounded(total, error, dtype, 1.0)

    def _rounded(self, value: Array, bound: Array, dtype: str, ulps: float) -> Bounded:
        error = bound + ulps * HALF_ULP[dtype] * (abs(value) + bound) + ulps * TINY[dtype]
        known = abs(value) + error <= LARGEST[dtype]  # not of infinities and NaN
        return value, np.where(known, error, np.inf)

    def emit(self, expr: Expr, mask: Array | None = None) -> Bounded:
        key = (expr, id(mask))
        if key not in self.memo:
            self.memo[key] = self._emit(expr, mask)
        return self.memo[key]

    def _emit(self, expr: Expr, mask: Array | None) -> Bounded:
        if isinstance(expr, Const):
            return _exact(np.full((1,) * len(self.loops), expr.value, dtypes.numpy_dtype(expr.dtype)))
        if isinstance(expr, Axis):
            position = self.loops.index(expr)
            shape = [1] * len(self.loops)
            shape[position] = self.shape[position]
            return _exact(np.arange(self.shape[position]).reshape(shape))
        if isinstance(expr, Read):
            return self._read(expr, mask)
        if isinstance(expr, Cast):
            return self._cast(expr, mask)
        assert isinstance(expr, Apply)
        if expr.function == "select":
            return self._select(expr, mask)
        args = [self.emit(arg, mask) for arg in expr.args]
        if dtypes.is_float(expr.args[0].dtype):
            return self._function(expr, args)
        found = np.asarray(FUNCTIONS[expr.function].numpy(*(value for value, _ in args)))
        unknown: Array = args[0][1]
        for _, other in args[1:]:
            unknown = unknown | other
        return found.astype(dtypes.numpy_dtype(expr.dtype)), np.broadcast_to(unknown, found.shape)

    def _read(self, read: Read, mask: Array | None) -> Bounded:
        value, bound = self.known[read.tensor.name]
        places: list[Array] = []
        unknown: Array = np.zeros((1,) * len(self.loops), bool)
        for index, extent in zip(read.indices, value.shape, strict=True):
            place, open_ = self.emit(index, mask)
            outside = (place < 0) | (place >= extent)
            reached = outside if mask is None else outside & mask
            assert not (reached.any() and all(self.shape)), f"{read} leaves its tensor"
            places.append(np.where(outside, 0, place))
            unknown = unknown | open_
        if not places:
            shape = (1,) * len(self.loops)
            return value.reshape(shape), bound.reshape(shape)
        if value.size == 0:
            places = [place * 0 for place in places]
            value, bound = np.zeros((1,) * value.ndim, value.dtype), np.zeros((1,) * value.ndim, bound.dtype)
        found, error = value[tuple(places)], bound[tuple(places)]
        return found, np.where(unknown, True if error.dtype == bool else np.inf, error)

    def _cast(self, expr: Cast, mask: Array | None) -> Bounded:
        value, bound = self.emit(expr.arg, mask)
        source, to = expr.arg.dtype, expr.dtype
        if dtypes.is_float(to):
            if dtypes.is_float(source):
                return self._rounded(value, bound, to, 1.0 if HALF_ULP[to] > HALF_ULP[source] else 0.0)
            number = value.astype(np.float64)
            return self._rounded(number, np.where(bound, np.inf, 0.0), to, 2.0)  # i64 to f64, and through f32 to f16
        made = value.astype(dtypes.numpy_dtype(to))
        if not dtypes.is_float(source):
            return made, bound
        low, high = (np.trunc(value + sign * bound) for sign in (-1, 1))
        return made, (low != high) if to != "bool" else (abs(value) <= bound) & (bound > 0)

    def _select(self, expr: Apply, mask: Array | None) -> Bounded:
        condition, open_ = self.emit(expr.args[0], mask)
        reads = any(isinstance(node, Read) for arm in expr.args[1:] for node in walk(arm))
        chosen = (condition | open_) if reads else None
        refused = (~condition | open_) if reads else None
        if mask is not None and chosen is not None and refused is not None:
            chosen, refused = chosen & mask, refused & mask
        (yes, yes_bound), (no, no_bound) = self.emit(expr.args[1], chosen), self.emit(expr.args[2], refused)
        value, bound = np.where(condition, yes, no), np.where(condition, yes_bound, no_bound)
        if bound.dtype == bool:
            return value, bound | (open_ & (yes != no))
        return value, np.where(open_, abs(yes - no) + np.maximum(yes_bound, no_bound), bound)

    def _function(self, expr: Apply, args: list[Bounded]) -> Bounded:
        name, dtype = expr.function, expr.args[0].dtype
        numpy = FUNCTIONS[name].numpy
        (a, ea), (b, eb) = args[0], args[-1]
        value = np.asarray(numpy(*(operand for operand, _ in args)))
        if FUNCTIONS[name].result == "bool":
            if name in ("isnan", "isinf"):
                return value, np.isinf(ea) | np.isnan(ea)
            return value, (abs(a - b) <= ea + eb) & (ea + eb > 0)
        if name in ("add", "sub"):
            return self._rounded(value, ea + eb, dtype, 1.0)
        if name == "mul":
            return self._rounded(value, abs(a) * eb + abs(b) * ea + ea * eb, dtype, 1.0)
        if name == "div":
            room = abs(b) - eb
            return self._rounded(value, np.where(room > 0, (ea + abs(value) * eb) / room, np.inf), dtype, 1.0)
        if name in ("min", "max"):
            return value, np.maximum(ea, eb)
        if name in LIPSCHITZ:
            ulps = 0.0 if name in ("abs", "neg") else FUNCTION_ULPS
            return self._rounded(value, LIPSCHITZ[name] * ea, dtype, ulps)
        if name in MONOTONE:
            edges = np.maximum(abs(numpy(a + ea) - value), abs(numpy(a - ea) - value))
            return self._rounded(value, np.where(np.isnan(edges), np.inf, edges), dtype, FUNCTION_ULPS)
        return self._rounded(value, np.where((ea + eb) > 0, np.inf, 0.0), dtype, FUNCTION_ULPS)
