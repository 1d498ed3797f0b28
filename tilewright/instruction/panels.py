"""Orders in which kernels read the operands of a product: panels of b, neighbours of a group of a."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.expr.core import Axis, Read, Tensor
from tilewright.instruction.order import Digit, Index, Order, undivided
from tilewright.instruction.products import MappedProduct, loops_of


def with_last(tensor: Tensor, dim: int) -> tuple[Read, Order]:
    """A whole tensor with one dimension innermost: its read over loops of its own, and the order."""
    axes = tuple(Axis(f"i{number}", extent) for number, extent in enumerate(tensor.shape))
    moved = [axis for number, axis in enumerate(axes) if number != dim] + [axes[dim]]
    return tensor[axes], replace(undivided(list(map(Index.of, moved))), indices=tuple(map(Index.of, axes)))


def vector_rows(product: MappedProduct, sums: Sequence[Index]) -> Order:
    """The vector operand row by row: the loops outside, the sums, the vector."""
    used = loops_of(product.b)
    outside = [Index.of(axis) for axis in product.outer if axis in used]
    summed = [each for each in sums if used.issuperset(each.form.terms)]
    return undivided([*outside, *summed, Index.of(product.columns)])


def panels(product: MappedProduct, sums: Sequence[Index], width: int, depth: int = 0) -> Order:
    """The vector operand as register tiles of `width` columns walk it: ``[outside…][n / width][sums…][n % width]``.

    An instruction on groups of g neighbours has the last sum in two dimensions, ``[k / g]`` and ``[k % g]``, which is
    the innermost. With `depth` the last sum is in blocks of so many points, and the blocks come before the other sums.
    """
    rows = vector_rows(product, sums)
    *before, columns = rows.indices
    outside = [each for each in before if each not in sums]
    summed = [each for each in before if each in sums]
    last = sums[-1] if sums[-1] in summed else None
    group = product.group
    digits = [Digit(each.name, 1, each.extent) for each in outside]
    digits.append(Digit(columns.name, width, -(-columns.extent // width)))
    if depth and last:
        digits.append(Digit(last.name, depth, last.extent // depth))
    digits += [Digit(each.name, 1, each.extent) for each in summed if each != last]
    if last:
        digits.append(Digit(last.name, group, -(-(depth or last.extent) // group)))
    digits.append(Digit(columns.name, 1, width))
    if last and group > 1:
        digits.append(Digit(last.name, 1, group))
    return replace(rows, digits=tuple(digits))
