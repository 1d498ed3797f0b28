"""The NumPy evaluator: what tensor expressions mean. It is the truth for every test.

Arithmetic follows NumPy: each operation rounds to its dtype (f16 and bf16 too), integers wrap, division by zero is
silent. `sum` and `prod` of floats accumulate in float64 and round once at the end; under a `sum`, the multiplications
at the top of the body are float64 too. `max` and `min` return NaN if any element is NaN.

A read happens only where every enclosing `select` takes its branch. There its indices must be in range, or
InvalidExpression names tensor, index and value; elsewhere any index will do.

Loops are walked in blocks so that temporaries stay below about 256 MB whatever the extents are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.errors import InvalidArgument, InvalidExpression
from tilewright.expr import dtypes, linear
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import (
    ACCUMULATIONS,
    FUNCTIONS,
    Apply,
    Axis,
    Cast,
    Compute,
    Const,
    Dim,
    Expr,
    Extent,
    Read,
    Tensor,
    identity,
)
from tilewright.expr.evaluate_ordered import evaluate_ordered
from tilewright.expr.graph import Graph, Loop

Array = np.ndarray[Any, Any]

_BLOCK_ELEMENTS = 1 << 18  # of a general body: some dozens of temporaries of 2 MB
_FACTOR_ELEMENTS = 1 << 22  # of one factor of a sum of products: about six arrays of 32 MB


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Array] | Sequence[Array],
    *,
    precise: bool = False,
    wide: bool = False,
) -> list[Array]:
    """The outputs of a graph for given inputs (by name, or in order).

    With `precise`, floating work is done in float64 from inputs to outputs, so that the result can serve as reference
    for an error bound; `wide` then leaves floating outputs in float64 instead of rounding them to their dtype.
    Raises InvalidArgument where inputs do not fit, InvalidExpression for a read out of range.
    """
    values = _check_inputs(graph, inputs)
    sizes = _dim_sizes(graph.inputs, values)
    found = _run_graph(graph, values, sizes, precise)
    return [_finish(value, tensor, wide and precise) for value, tensor in zip(found, graph.outputs, strict=True)]


def _run_graph(graph: Graph, values: dict[str, Array], sizes: Mapping[Dim, int], precise: bool) -> list[Array]:
    """The outputs of a graph whose inputs are in `values`; other values go there while they are needed."""
    values.update(graph.constants)
    steps = graph.steps()
    last_use = {tensor.name: number for number, step in enumerate(steps) for tensor in step.inputs()}
    kept = {tensor.name for tensor in graph.outputs}
    for number, step in enumerate(steps):
        if isinstance(step, Compute):
            values[step.name] = _run(step, values, sizes, precise)
            written: tuple[Tensor, ...] = (step.output,)
        else:
            values.update(_run_loop(step, values, sizes, precise))
            written = step.outputs()
        for tensor in (*step.inputs(), *written):
            if tensor.name not in kept and last_use.get(tensor.name, number) <= number:
                values.pop(tensor.name, None)
    return [values[tensor.name] for tensor in graph.outputs]


def _run_loop(loop: Loop, values: Mapping[str, Array], sizes: Mapping[Dim, int], precise: bool) -> dict[str, Array]:
    """The results of a loop by name."""
    states = [values[each.initial.name] for each in loop.carried]
    rows: dict[Tensor, dict[int, Array]] = {each.whole: {} for each in loop.stacked}
    for trip in range(loop.trips):
        back = loop.trips - 1 - trip
        inside = {each.part.name: values[each.whole.name][back if each.backwards else trip] for each in loop.sliced}
        inside |= {each.state.name: state for each, state in zip(loop.carried, states, strict=True)}
        inside |= {tensor.name: values[tensor.name] for tensor in loop.captured()}
        found = dict(zip(loop.body.outputs, _run_graph(loop.body, inside, sizes, precise), strict=True))
        states = [found[each.following] for each in loop.carried]
        for each in loop.stacked:
            rows[each.whole][back if each.backwards else trip] = found[each.part]
    results = {each.final.name: state for each, state in zip(loop.carried, states, strict=True)}
    for whole, parts in rows.items():
        dtype = dtypes.numpy_dtype("f64" if precise and dtypes.is_float(whole.dtype) else whole.dtype)
        stacked = np.empty(tuple(sizes[e] if isinstance(e, Dim) else e for e in whole.shape), dtype)
        for place, part in parts.items():
            stacked[place] = part
        results[whole.name] = stacked
    return results


def evaluate_compute(
    compute: Compute, tensors: Mapping[str, Array], *, precise: bool = False, wide: bool = False
) -> Array:
    """The output of one compute, given the tensors it reads by name; options as in `evaluate`."""
    values: dict[str, Array] = {}
    for tensor in compute.inputs():
        if tensor.name not in tensors:
            raise InvalidArgument(f"{compute.name} reads {tensor}, which is not given")
        values[tensor.name] = _check_array(tensors[tensor.name], tensor, precise)
    sizes = _dim_sizes(compute.inputs(), values)
    return _finish(_run(compute, values, sizes, precise), compute.output, wide and precise)


def _check_inputs(graph: Graph, inputs: Mapping[str, Array] | Sequence[Array]) -> dict[str, Array]:
    names = [tensor.name for tensor in graph.inputs]
    if isinstance(inputs, Mapping):
        unknown = sorted(set(inputs) - set(names))
        missing = [name for name in names if name not in inputs]
        if unknown or missing:
            raise InvalidArgument(
                f"inputs missing: {missing}, unknown: {unknown}", help=f"give exactly {', '.join(names) or 'none'}"
            )
        by_name = dict(inputs)
    else:
        if len(inputs) != len(names):
            raise InvalidArgument(f"{len(inputs)} inputs given", help=f"give {len(names)}: {', '.join(names)}")
        by_name = dict(zip(names, inputs, strict=True))
    return {tensor.name: _check_array(by_name[tensor.name], tensor, False) for tensor in graph.inputs}


def _check_array(array: Any, tensor: Tensor, precise: bool) -> Array:
    found = np.asarray(array)
    expected = dtypes.numpy_dtype(tensor.dtype)
    widened = precise and dtypes.is_float(tensor.dtype) and found.dtype == np.float64
    if found.dtype != expected and not widened:
        raise InvalidArgument(f"{tensor} is given as {found.dtype}", help=f"give an array of {expected}")
    fits = found.ndim == tensor.rank and all(
        (
            extent.low <= size <= extent.high and size % extent.divisor == 0
            if isinstance(extent, Dim)
            else extent == size
        )
        for extent, size in zip(tensor.shape, found.shape, strict=True)
    )
    if not fits:
        raise InvalidArgument(f"{tensor} is given with shape {list(found.shape)}", help="give an array of its shape")
    return found


def _dim_sizes(tensors: Sequence[Tensor], values: Mapping[str, Array]) -> dict[Dim, int]:
    """The size of every named dimension, from the arrays."""
    sizes: dict[Dim, int] = {}
    for tensor in tensors:
        for extent, size in zip(tensor.shape, values[tensor.name].shape, strict=True):
            if isinstance(extent, Dim) and sizes.setdefault(extent, size) != size:
                raise InvalidArgument(f"{tensor}: {extent.name} is {size} here and {sizes[extent]} before")
    return sizes


def _finish(value: Array, tensor: Tensor, wide: bool) -> Array:
    if wide:
        return value.astype(np.float64, copy=False) if dtypes.is_float(tensor.dtype) else value
    with np.errstate(all="ignore"):
        return value.astype(dtypes.numpy_dtype(tensor.dtype), copy=False)


def _run(compute: Compute, tensors: Mapping[str, Array], sizes: Mapping[Dim, int], precise: bool) -> Array:
    def values(part: Compute) -> Array:
        return _Evaluation(part, tensors, sizes, precise).run()

    with np.errstate(all="ignore"):
        return evaluate_ordered(compute, values) if compute.ordered else values(compute)


Block = tuple[tuple[int, int], ...]  # (first, count) per loop


class _Evaluation:
    """One compute on given arrays. Values of expressions have one dimension per loop, 1 where they do not vary."""

    def __init__(self, compute: Compute, tensors: Mapping[str, Array], sizes: Mapping[Dim, int], precise: bool) -> None:
        self.compute = compute
        self.tensors = tensors
        self.precise = precise
        self.loops = compute.loops
        self.position = {axis: number for number, axis in enumerate(self.loops)}
        self.extents = tuple(self._size(axis.extent, sizes) for axis in self.loops)
        self.spatial = len(compute.axes)
        self.block: Block = ()
        self.forms: dict[int, tuple[Affine, ...] | None] = {}
        self.shared = _shared_nodes(compute.body)
        self.memo: dict[tuple[int, int], tuple[Array, Array | None]] = {}

    def _size(self, extent: Extent, sizes: Mapping[Dim, int]) -> int:
        if not isinstance(extent, Dim):
            return extent
        if extent not in sizes:
            raise InvalidArgument(f"{self.compute.name}: no input determines the extent {extent.name}")
        return sizes[extent]

    def _numpy_dtype(self, dtype: dtypes.DType) -> np.dtype[Any]:
        return dtypes.numpy_dtype("f64" if self.precise and dtypes.is_float(dtype) else dtype)

    def run(self) -> Array:
        compute, shape = self.compute, self.extents[: self.spatial]
        result_dtype = self._numpy_dtype(compute.output.dtype)
        accum = compute.accum
        if accum is None:
            result = np.empty(shape, result_dtype)
            if result.size:
                for block in self._blocks(_outer_split(self.extents, _BLOCK_ELEMENTS)):
                    result[_slices(block)] = self._value(compute.body, None)
            return result
        assert isinstance(accum, str), "ordered accumulations have their own evaluation"
        wide = accum in ("sum", "prod") and dtypes.is_float(compute.output.dtype)
        start = identity(accum, compute.output.dtype).value
        total = np.full(shape, start, np.float64 if wide else result_dtype)
        if prod(self.extents):
            self._accumulate(total, accum, wide)
        return total.astype(result_dtype, copy=False)

    def _accumulate(self, total: Array, accum: str, wide: bool) -> None:
        combine: Any = FUNCTIONS[ACCUMULATIONS[accum]].numpy
        parts = linear.factors(self.compute.body) if accum == "sum" else (self.compute.body,)
        sets = linear.loop_sets(parts, self.loops)
        if total.dtype != np.bool_ and linear.is_contraction(parts, sets, self.loops):
            steps = linear.order(sets, self.extents, self.spatial)
            for block in self._blocks(linear.block_extents(sets, self.extents, self.spatial, _FACTOR_ELEMENTS)):
                values = [self._value(part, None) for part in parts]
                counts = tuple(count for _, count in block)
                found = linear.contract_all(values, steps, counts, self.spatial)
                total[_slices(block[: self.spatial])] += found.astype(total.dtype, copy=False)
            return
        reduced = tuple(range(self.spatial, len(self.loops)))
        for block in self._blocks(_outer_split(self.extents, _BLOCK_ELEMENTS)):
            value = self._value(parts[0], None)
            for part in parts[1:]:
                value = value.astype(total.dtype, copy=False) * self._value(part, None)
            filled = np.broadcast_to(value.astype(total.dtype, copy=False), tuple(count for _, count in block))
            found = combine.reduce(filled, axis=reduced, dtype=total.dtype)
            where = _slices(block[: self.spatial])
            total[where] = combine(total[where], found)

    def _blocks(self, counts: Sequence[int]) -> Iterator[Block]:
        """Walk the loops in blocks; `self.block` is the current one."""
        starts = [range(0, extent, count) for extent, count in zip(self.extents, counts, strict=True)]
        for first in product(*starts):
            self.block = tuple(
                (begin, min(count, extent - begin))
                for begin, count, extent in zip(first, counts, self.extents, strict=True)
            )
            self.memo.clear()
            yield self.block

    def _value(self, expr: Expr, mask: Array | None) -> Array:
        """The value on the current block; only elements where `mask` holds count (None: all)."""
        if id(expr) not in self.shared:
            return self._compute(expr, mask)
        key = (id(expr), id(mask))
        if key not in self.memo:
            self.memo[key] = (self._compute(expr, mask), mask)  # the mask is kept so that its id stays taken
        return self.memo[key][0]

    def _compute(self, expr: Expr, mask: Array | None) -> Array:
        if isinstance(expr, Const):
            rounded = np.asarray(expr.value, dtypes.numpy_dtype(expr.dtype))
            return rounded.astype(self._numpy_dtype(expr.dtype), copy=False).reshape((1,) * len(self.loops))
        if isinstance(expr, Axis):
            loop = self.position[expr]
            first, count = self.block[loop]
            shape = [1] * len(self.loops)
            shape[loop] = count
            return np.arange(first, first + count, dtype=np.int64).reshape(shape)
        if isinstance(expr, Read):
            return self._read(expr, mask)
        if isinstance(expr, Cast):
            return self._value(expr.arg, mask).astype(self._numpy_dtype(expr.dtype), copy=False)
        assert isinstance(expr, Apply), f"unknown expression {expr!r}"
        if expr.function == "select":
            return self._select(expr, mask)
        args = [self._value(arg, mask) for arg in expr.args]
        found = np.asarray(FUNCTIONS[expr.function].numpy(*args))
        return found.astype(self._numpy_dtype(expr.dtype), copy=False)

    def _select(self, expr: Apply, mask: Array | None) -> Array:
        condition = self._value(expr.args[0], mask)
        if condition.all():
            return self._value(expr.args[1], mask)
        if not condition.any():
            return self._value(expr.args[2], mask)
        yes = self._value(expr.args[1], condition if mask is None else mask & condition)
        no = self._value(expr.args[2], ~condition if mask is None else mask & ~condition)
        return np.where(condition, yes, no)

    def _read(self, read: Read, mask: Array | None) -> Array:
        array = self.tensors[read.tensor.name]
        found = self._view(read, array)
        if found is None:
            found = self._gather(read, array, mask)
        return np.asarray(found).astype(self._numpy_dtype(read.tensor.dtype), copy=False)

    def _view(self, read: Read, array: Array) -> Array | None:
        """A strided view of what an affine read touches on this block; None if it is not affine or leaves the array."""
        if id(read) not in self.forms:
            found = [affine(index) for index in read.indices]
            self.forms[id(read)] = None if None in found else tuple(form for form in found if form is not None)
        forms = self.forms[id(read)]
        if forms is None:
            return None
        strides = [0] * len(self.loops)
        shape = [1] * len(self.loops)
        corner: list[int] = []
        for form, extent, stride in zip(forms, array.shape, array.strides, strict=True):
            first = low = high = form.constant
            for axis, coefficient in form.terms.items():
                loop = self.position[axis]
                begin, count = self.block[loop]
                first += coefficient * begin
                low += coefficient * begin + min(0, coefficient * (count - 1))
                high += coefficient * begin + max(0, coefficient * (count - 1))
                strides[loop] += coefficient * stride
                shape[loop] = count
            if low < 0 or high >= extent:
                return None
            corner.append(first)
        return np.lib.stride_tricks.as_strided(_corner(array, corner), shape, strides, writeable=False)

    def _gather(self, read: Read, array: Array, mask: Array | None) -> Array:
        """Read through index arrays, checking each index where `mask` holds."""
        flat: Array = np.zeros((1,) * len(self.loops), np.int64)
        outside = False
        for dimension, (index, extent) in enumerate(zip(read.indices, array.shape, strict=True)):
            value = self._value(index, mask)
            bad = (value < 0) | (value >= extent)
            if bad.any():
                reached = bad if mask is None else bad & mask
                if reached.any():
                    raise self._out_of_range(read, dimension, value, reached, extent)
                outside = True
                value = np.where(bad, 0, value)
            flat = flat * extent + value
        if outside and array.size == 0:
            return np.zeros(flat.shape, array.dtype)
        return np.ascontiguousarray(array).reshape(-1)[flat]

    def _out_of_range(self, read: Read, dimension: int, value: Array, bad: Array, extent: int) -> InvalidExpression:
        point = np.unravel_index(int(np.argmax(bad)), bad.shape)
        loops = [
            f"{axis.name} = {begin + int(offset)}"
            for axis, (begin, _), offset in zip(self.loops, self.block, point, strict=True)
        ]
        index = int(np.broadcast_to(value, bad.shape)[point])
        return InvalidExpression(
            f"{self.compute.name} reads {read.tensor} with index {index} in dimension {dimension}"
            + (f" at {', '.join(loops)}" if loops else ""),
            help=f"an index in [0, {extent}), or a select that guards the read",
        )


def _shared_nodes(body: Expr) -> frozenset[int]:
    """The ids of the compound nodes that occur more than once as one object."""
    seen: set[int] = set()
    shared: set[int] = set()
    stack = [body]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            if node.children():
                shared.add(id(node))
            continue
        seen.add(id(node))
        stack.extend(node.children())
    return frozenset(shared)


def _corner(array: Array, first: Sequence[int]) -> Array:
    """The part of `array` from index `first` on."""
    cut: Any = (*(slice(begin, None) for begin in first), ...)
    part: Array = array[cut]
    return part


def _outer_split(extents: Sequence[int], limit: int) -> tuple[int, ...]:
    """Block extents of at most `limit` points: inner loops whole, outer loops cut."""
    counts = list(extents)
    for loop in range(len(counts)):
        rest = prod(counts[loop + 1 :])
        counts[loop] = min(counts[loop], max(1, limit // max(1, rest)))
    return tuple(counts)


def _slices(block: Block) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + count) for begin, count in block)
