"""Split reductions: programs share a reduction, each with a part of an inner loop; a second kernel combines the parts.

    Before:  y = sum over i of x[i]
    After:   p[part] = sum over i of x[part * share + i]    and then    y = sum over part of p[part]

The second kernel also computes what the first one made of its sums. Legal where nothing but reductions walks the inner
loops, and no reduction reads the value of another one. The order of additions changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Const, Expr, Read, Tensor, identity, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.expr.rewrite import substitute
from tilewright.operator.statements import (
    Statements,
    covering,
    fuse_loops,
    inner_loops,
    outer_loops,
    over,
    values_in,
)

MOST_PARTS = 4096  # tried: several for each multiprocessor of any machine


@dataclass(frozen=True)
class SplitReduction:
    """The statements of two kernels: `first` writes `parts`, one tensor per reduction, and `second` reads them."""

    first: Statements
    second: Statements
    parts: tuple[Tensor, ...]


def split_reduction(statements: Statements, axis: Axis, count: int, taken: Collection[str] = ()) -> SplitReduction:
    """Both kernels, with an inner loop in `count` parts; the last one may have fewer points.

    Parts have other names than those `taken`.
    """
    outer, inner = outer_loops(statements), inner_loops(statements)
    part, share = (
        Axis(unique(f"{axis.name}.part", {loop.name for loop in (*outer, *inner)}), count),
        -(-axis.size // count),
    )
    inside = Axis(axis.name, share)
    place: Expr = part * share + inside
    loops = (part, *outer)
    index = _row_major(loops)
    firsts, seconds, parts = [], [], []
    for each in statements:
        if each.accum is None:
            seconds.append(each)
            continue
        assert isinstance(each.accum, str), "ordered accumulations are kernels of their own"
        dtype = "f32" if each.tensor.dtype in ("f16", "bf16") else each.tensor.dtype
        size = count * prod(loop.size for loop in outer)
        tensor = Tensor(unique(f"{each.name}.parts", taken), (size,), dtype)
        body = substitute(each.body, {axis: place})
        if share * count != axis.size:
            neutral = identity(each.accum, body.dtype)
            body = Apply("select", (Apply("lt", (place, Const(axis.size, INDEX)), "bool"), body, neutral), body.dtype)
        firsts.append(replace(each, tensor=tensor, body=body, address=index))
        seconds.append(replace(each, body=Read(tensor, (index,))))
        parts.append(tensor)
    first = fuse_loops(over(loops, [inside if loop == axis else loop for loop in inner], firsts))
    return SplitReduction(first, over(outer, (part,), seconds), tuple(parts))


def split_loop(statements: Statements) -> Axis | None:
    """The inner loop to split, the one with the longest steps; None where the rewrite is not legal."""
    inner = inner_loops(statements)
    if not inner or covering(statements):
        return None
    for each in statements:
        if each.accum is not None and (
            values_in(each.body) or dtypes.is_float(each.tensor.dtype) != dtypes.is_float(each.body.dtype)
        ):
            return None
    steps = dict.fromkeys(inner, 0)
    for each in statements:
        for read in walk(each.body):
            form = affine(read.indices[0]) if isinstance(read, Read) and read.indices else None
            for axis in inner if form is not None else ():
                assert form is not None
                steps[axis] = max(steps[axis], abs(form.coefficient(axis)) * axis.size)
    return max(inner, key=lambda axis: steps[axis])


def part_counts(extent: int) -> list[int]:
    """Numbers of parts to try: near every power of two one that divides the loop, if there is one."""
    found: list[int] = []
    power = 2
    while power <= min(extent // 2, MOST_PARTS):
        near = [count for count in range(power, min(2 * power, extent + 1)) if extent % count == 0]
        found.append(near[0] if near else power)
        power *= 2
    return found


def _row_major(axes: Sequence[Axis]) -> Expr:
    total: Expr = axes[0]
    for axis in axes[1:]:
        total = total * axis.size + axis
    return total
