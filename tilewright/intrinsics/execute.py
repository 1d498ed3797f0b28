"""The reference behaviour of a record: tiles in, tile out, bit for bit, for many calls at once."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from tilewright.errors import InvalidArgument
from tilewright.expr.core import Apply, Const, Expr, Read
from tilewright.intrinsics.elements import Array, is_float, storage, widen
from tilewright.intrinsics.intrinsic import Intrinsic, Operand
from tilewright.intrinsics.numerics import RULES, Factors, Points, Setting

#: Functions that bodies may use, on values widened to i64 or f64.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "mul": np.multiply, "add": np.add, "sub": np.subtract, "neg": np.negative, "abs": np.absolute,
    "min": np.minimum, "max": np.maximum, "xor": np.bitwise_xor, "and": np.bitwise_and, "or": np.bitwise_or,
}  # fmt: skip
COMBINES: dict[str, Callable[[Array, Array], Array]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def execute(record: Intrinsic, dst: Array, *sources: Array) -> Array:
    """The new destination of one call, or of many: ``combine(dst, body(sources))`` over all loops of the record.

    Every array is a tile: its last axes are the extents of the operand's loops, in order, its first axes any batch,
    which broadcasts. Element types are those of the record (`elements.storage`). `dst` is not changed.
    Raises InvalidArgument for a tile of another shape or type.
    """
    if len(sources) != len(record.sources):
        raise InvalidArgument(f"{len(sources)} sources, the record has {len(record.sources)}", where=record.name)
    for operand, tile in zip(record.operands, (*sources, dst), strict=True):
        _check_tile(record, operand, tile)
    integer = not is_float(record.destination.dtype)
    factors = [
        _aligned(record, operand, widen(tile, operand.dtype, integer=integer))
        for operand, tile in zip(record.sources, sources, strict=True)
    ]
    rank = len(record.destination.loops)
    batch = np.broadcast_shapes(*(tile.shape[: tile.ndim - len(o.loops)] for o, tile in zip(
        record.operands, (*sources, dst), strict=True)))  # fmt: skip
    start = np.broadcast_to(dst, (*batch, *dst.shape[dst.ndim - rank :]))
    places = {operand.role: place for place, operand in enumerate(record.sources)}
    value = record.body.value

    def body(at: Factors) -> Array:
        return _evaluate(value, at, places)

    setting = Setting(record.destination.dtype, body, COMBINES[record.combine], record.numerics)
    with np.errstate(over="ignore", invalid="ignore"):
        result = RULES[record.numerics.rule].run(start, _points(record, factors), setting)
    return np.array(result)


def _check_tile(record: Intrinsic, operand: Operand, tile: Array) -> None:
    shape, dtype = record.shape(operand), storage(operand.dtype)
    if not isinstance(tile, np.ndarray) or tile.dtype != dtype or tile.shape[max(0, tile.ndim - len(shape)) :] != shape:
        found = f"{tile.dtype}{list(tile.shape)}" if isinstance(tile, np.ndarray) else type(tile).__name__
        raise InvalidArgument(
            f"{operand.role} is {found}, not {dtype}{['...', *shape]}".replace("'", ""), where=record.name
        )


def _aligned(record: Intrinsic, operand: Operand, tile: Array) -> Array:
    """Axes: batch, every loop of the destination (extent 1 where the operand lacks it), then its reduction loops."""
    spatial = record.destination.loops
    rank = tile.ndim - len(operand.loops)
    order = [loop for loop in spatial if loop in operand.loops]
    order += [loop for loop in operand.loops if loop not in spatial]
    tile = tile.transpose(*range(rank), *(rank + operand.loops.index(loop) for loop in order))
    shape = [record.extents[loop] if loop in operand.loops else 1 for loop in spatial]
    return tile.reshape(*tile.shape[:rank], *shape, *tile.shape[rank + len(set(spatial) & set(operand.loops)) :])


def _points(record: Intrinsic, factors: list[Array]) -> Points:
    """The factors at every point of the reduction loops, the last loop fastest."""
    reduction = [loop.name for loop in record.loops if loop.kind == "R"]
    count = prod(record.extents[loop] for loop in reduction)
    own = [[loop for loop in operand.loops if loop in reduction] for operand in record.sources]
    rank = max(factor.ndim - len(mine) for factor, mine in zip(factors, own, strict=True))
    found = []
    for factor, mine in zip(factors, own, strict=True):
        factor = factor.reshape(*[1] * (rank + len(mine) - factor.ndim), *factor.shape)  # batches of one rank
        rest = factor.shape[:rank]
        order = [rank + mine.index(loop) for loop in reduction if loop in mine]
        spread = factor.transpose(*order, *range(rank))
        extents = [record.extents[loop] if loop in mine else 1 for loop in reduction]
        whole = np.broadcast_to(spread.reshape(*extents, *rest), (*(record.extents[loop] for loop in reduction), *rest))
        found.append(np.ascontiguousarray(whole.reshape(count, *rest)))
    return Points(tuple(found), count)


def _evaluate(expr: Expr, at: Factors, places: dict[str, int]) -> Array:
    if isinstance(expr, Read):
        return at[places[expr.tensor.name]]
    if isinstance(expr, Const):
        return np.asarray(expr.value)
    assert isinstance(expr, Apply), "bodies are checked when a record is registered"
    return FUNCTIONS[expr.function](*(_evaluate(arg, at, places) for arg in expr.args))
