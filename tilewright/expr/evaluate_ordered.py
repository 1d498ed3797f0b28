"""The NumPy evaluation of ordered accumulations: prefix scans, sorts, scatters.

Their bodies are maps over the spatial loops that they depend on and the reduction loops; NumPy does the rest. As in
other accumulations, sums and products of floats are formed in float64 and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.expr.core import ACCUMULATIONS, FUNCTIONS, Apply, Axis, Compute, Expr, Tensor, identity
from tilewright.expr.ordered import PrefixScan, Scatter, Sort

Array = np.ndarray[Any, Any]
Values = Callable[[Compute], Array]


def evaluate_ordered(compute: Compute, values: Values) -> Array:
    """The output of an ordered accumulation; `values` evaluates a map."""
    accum = compute.accum
    if isinstance(accum, PrefixScan):
        return _scan(compute, accum, values)
    if isinstance(accum, Sort):
        return _sort(compute, accum, values)
    assert isinstance(accum, Scatter), f"unknown accumulation {accum!r}"
    return _scatter(compute, accum, values)


def _map(compute: Compute, axes: tuple[Axis, ...], body: Expr) -> Compute:
    return Compute(Tensor(compute.name, tuple(axis.extent for axis in axes), body.dtype), axes, body)


def _row(compute: Compute, dim: int) -> tuple[Axis, ...]:
    """The spatial loops with the reduction loop in the place of dimension `dim`."""
    return (*compute.axes[:dim], *compute.reduce, *compute.axes[dim + 1 :])


def _scan(compute: Compute, accum: PrefixScan, values: Values) -> Array:
    elements = values(_map(compute, _row(compute, accum.dim), compute.body))
    kind: Any = np.float64 if accum.combine in ("sum", "prod") and elements.dtype.kind not in "iub" else elements.dtype
    line = np.moveaxis(elements, accum.dim, -1).astype(kind)
    line = line[..., ::-1] if accum.reverse else line
    if accum.exclusive and line.shape[-1]:
        start = np.full((*line.shape[:-1], 1), identity(accum.combine, compute.output.dtype).value, kind)
        line = np.concatenate([start, line[..., :-1]], axis=-1)
    combine: Any = FUNCTIONS[ACCUMULATIONS[accum.combine]].numpy
    found = combine.accumulate(line, axis=-1, dtype=kind) if line.size else line
    found = found[..., ::-1] if accum.reverse else found
    return np.ascontiguousarray(np.moveaxis(found, -1, accum.dim)).astype(elements.dtype, copy=False)


def _sort(compute: Compute, accum: Sort, values: Values) -> Array:
    elements = np.moveaxis(values(_map(compute, _row(compute, accum.dim), compute.body)), accum.dim, -1)
    if elements.dtype.kind not in "iubf":
        elements = elements.astype(np.float32)  # bfloat16, exactly
    if accum.descending:  # from the end backwards, so that equal elements keep their order
        order = elements.shape[-1] - 1 - np.argsort(elements[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(elements, axis=-1, kind="stable")
    taken = order[..., : compute.axes[accum.dim].size]
    return np.ascontiguousarray(np.moveaxis(taken, -1, accum.dim)).astype(np.int64, copy=False)


def _scatter(compute: Compute, accum: Scatter, values: Values) -> Array:
    assert isinstance(compute.body, Apply)
    initial, value, *places = compute.body.args
    result = np.array(values(_map(compute, compute.axes, initial)))
    dtype = result.dtype
    kept = tuple(axis for dim, axis in enumerate(compute.axes) if dim not in accum.dims)
    loops = (*kept, *compute.reduce)
    updates = values(_map(compute, loops, value))
    index: list[Array] = list(np.indices(updates.shape, sparse=True)[: len(kept)])
    inside = np.ones(updates.shape, np.bool_)
    for dim, place in zip(accum.dims, places, strict=True):
        found = values(_map(compute, loops, place))
        inside &= (found >= 0) & (found < result.shape[dim])
        index.append(found)
    by_dim = dict(zip([d for d in range(result.ndim) if d not in accum.dims] + list(accum.dims), index, strict=True))
    where: tuple[Array, ...] = tuple(np.broadcast_to(by_dim[dim], updates.shape)[inside] for dim in range(result.ndim))
    if not accum.combine:
        flat = np.ravel_multi_index(where, result.shape) if where[0].size else np.zeros(0, np.int64)
        line = result.reshape(-1)
        line[flat] = updates[inside]  # in order: NumPy lets the last one stay
        return line.reshape(result.shape)
    if accum.combine in ("sum", "prod") and dtype.kind not in "iub":
        result = result.astype(np.float64)
    combine: Any = FUNCTIONS[ACCUMULATIONS[accum.combine]].numpy
    combine.at(result, where, updates[inside].astype(result.dtype, copy=False))
    return result.astype(dtype, copy=False)
