"""A mapping run: operands packed by the generated relayouts, every call made by `execute`, the result unpacked.

Calls that differ in spatial loops only are made together, as one batch of tiles; reductions around the intrinsic run
one after another, in loop order, as generated code would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import isqrt, prod
from random import Random  # NumPy's takes 9 ms to import
from typing import Any

import numpy as np

from tilewright.errors import InvalidArgument
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Compute, identity
from tilewright.expr.evaluate import evaluate_compute
from tilewright.instruction.physical import PhysicalMapping, Placement
from tilewright.instruction.relayout import unnamed_relayouts, unpacked
from tilewright.intrinsics.elements import storage

Array = np.ndarray[Any, Any]
#: ``execute(record, dst, *srcs)``: tiles with the operands' loops as last axes, any batch axes before them.
Execute = Callable[..., Array]

_BATCH_ELEMENTS = 1 << 22  # of the tiles of one batch of calls


def emulate(physical: PhysicalMapping, tensors: Mapping[str, Array], *, execute: Execute | None = None) -> Array:
    """The result of the original node, computed by calls of the intrinsic; `tensors` are the node's inputs by name."""
    values = dict(tensors)
    canonical = physical.match.canonical
    for node in canonical.before:
        values[node.name] = evaluate_compute(node, values)
    packed = [evaluate_compute(node, values) for node in unnamed_relayouts(physical)]
    result = emulate_packed(physical, packed, execute=execute)
    back = unpacked(physical)
    values[back.inputs()[0].name] = result
    for node in (back, *canonical.after):
        values[node.name] = evaluate_compute(node, values)
    found: Array = values[canonical.nodes[-1].name]
    return found


def emulate_packed(physical: PhysicalMapping, packed: list[Array], *, execute: Execute | None = None) -> Array:
    """The stored result from stored operands, both as `Placement.shape` says."""
    run = execute or default_execute()
    *sources, destination = physical.placements
    for place, array in zip(sources, packed, strict=True):
        if array.shape != place.shape:
            raise InvalidArgument(f"{place.operand.role} is stored as {list(place.shape)}, given {list(array.shape)}")
    tiles = [
        _tiles(place, array).astype(storage(place.dtype), copy=False)
        for place, array in zip(sources, packed, strict=True)
    ]
    compute, record = physical.match.compute, physical.record
    assert isinstance(compute.accum, str), "a match accumulates"
    start = identity(compute.accum, record.destination.dtype).value
    shape = record.shape(record.destination)
    spatial = [axis for axis in physical.outer if axis in compute.axes]
    batch = [axis.size for axis in spatial] + list(destination.tiles)
    result = np.full((*batch, *shape), start, dtypes.numpy_dtype(record.destination.dtype))
    flat = result.reshape((prod(batch), *shape))
    largest = max(place.tile_elements for place in physical.placements)
    for begin in range(0, len(flat), max(1, _BATCH_ELEMENTS // largest)):
        chunk = np.arange(begin, min(len(flat), begin + max(1, _BATCH_ELEMENTS // largest)))
        places = np.unravel_index(chunk, batch) if batch else ()
        at: dict[Axis | str, Any] = dict(zip(spatial, places, strict=False))
        at.update(zip((loop.name for loop in destination.loops), places[len(spatial) :], strict=True))
        total = flat[chunk]
        for step in _reductions(physical):
            at.update(step)
            called = [_take(tile, place, at, len(chunk)) for tile, place in zip(tiles, sources, strict=True)]
            total = run(record, total, *called)
        flat[chunk] = total
    return _stored(destination, result)


def reference(compute: Compute, tensors: Mapping[str, Array]) -> Array:
    """What the node means: the evaluator's result."""
    return evaluate_compute(compute, tensors)


def small_values(dtype: dtypes.DType, shape: tuple[int, ...], generator: Random, bound: int = 4) -> Array:
    """Random integers of at most `bound` in size: sums of few products of them are exact in any type."""
    low, high = (0, bound) if dtypes.is_unsigned(dtype) else (-bound, bound)
    if dtype == "bool":
        high = 1
    drawn = generator.choices(range(low, high + 1), k=prod(shape))
    return np.array(drawn, dtypes.numpy_dtype(dtype)).reshape(shape)


def exact_bound(accumulator: dtypes.DType, terms: int) -> int:
    """The largest size (at most 4) of integers for which `terms` products of two add up exactly in `accumulator`.

    0 if even sums of ones are rounded.
    """
    digits = {"bf16": 8, "f16": 11, "f32": 24, "i32": 31, "f64": 53}.get(accumulator, 7)
    return min(4, isqrt((1 << digits) // max(1, terms)))


def default_execute() -> Execute:
    """The reference behaviour of all records."""
    from tilewright.intrinsics.execute import execute

    return execute


def _reductions(physical: PhysicalMapping) -> Iterator[dict[Axis | str, Any]]:
    """Every step of the reductions around the intrinsic."""
    outer = [axis for axis in physical.outer if axis in physical.match.compute.reduce]
    counts = zip(physical.record.loops, physical.tiles, strict=True)
    inner = [(loop.name, count) for loop, count in counts if loop.kind == "R"]
    keys: list[Axis | str] = [*outer, *(name for name, _ in inner)]
    for point in product(*(range(axis.size) for axis in outer), *(range(count) for _, count in inner)):
        yield dict(zip(keys, point, strict=True))


def _take(tiles: Array, place: Placement, at: Mapping[Axis | str, Any], count: int) -> Array:
    """The tile of an operand for every call of a batch."""
    index = []
    for outer in place.outer:
        terms = [at[axis] * coefficient for axis, coefficient in outer.form.terms.items()]
        index.append(np.broadcast_to(sum(terms, start=outer.form.constant), (count,)))
    index += [np.broadcast_to(at[loop.name], (count,)) for loop in place.loops]
    return tiles[tuple(index)] if index else np.broadcast_to(tiles, (count, *tiles.shape))


def _tiles(place: Placement, array: Array) -> Array:
    """A stored operand as [outer, tile numbers, tile]: the tile in the order of the operand's loops."""
    front = len(place.outer)
    extents = [loop.extent for loop in place.loops]
    own = [place.operand.loops.index(loop.name) for loop in place.loops]
    if place.storage == "strided":
        if extents:
            array = array[..., : place.tiles[-1] * extents[-1]]
        split = array.reshape(
            *array.shape[:front], *(n for pair in zip(place.tiles, extents, strict=True) for n in pair)
        )
        tiles = [front + 2 * number for number in range(len(extents))]
        return split.transpose(*range(front), *tiles, *(tiles[own.index(number)] + 1 for number in range(len(own))))
    order = _digit_order(place)
    head = front + len(place.tiles)
    moved = array.transpose(*range(head), *(head + number for number in order))
    return moved.reshape(*array.shape[:head], *(extents[own.index(number)] for number in range(len(own))))


def _stored(place: Placement, tiles: Array) -> Array:
    """The inverse of `_tiles`."""
    front = len(place.outer)
    count = len(place.loops)
    extents = [loop.extent for loop in place.loops]
    if place.storage == "strided":
        own = [place.operand.loops.index(loop.name) for loop in place.loops]
        pairs = [axis for number in range(count) for axis in (front + number, front + count + own[number])]
        whole = [tiles * have for tiles, have in zip(place.tiles, extents, strict=True)]
        found = tiles.transpose(*range(front), *pairs).reshape(*tiles.shape[:front], *whole)
        room = place.leading - whole[-1] if whole else 0
        return np.pad(found, [(0, 0)] * (found.ndim - 1) + [(0, room)]) if room else found
    order = _digit_order(place)
    head = front + count
    split = tiles.reshape(*tiles.shape[:head], *(place.digits[number].extent for number in order))
    return split.transpose(*range(head), *(head + order.index(number) for number in range(len(order))))


def _digit_order(place: Placement) -> list[int]:
    """The digits by loop of the operand, highest first: the order in which they make up the tile's index."""
    positions = {name: number for number, name in enumerate(place.operand.loops)}
    digits = place.digits
    return sorted(range(len(digits)), key=lambda number: (positions[digits[number].index], -digits[number].divisor))
