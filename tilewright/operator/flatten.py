"""Logical indices to storage addresses: every read becomes a read of a flat tensor at one linear index.

After this step a body knows nothing of shapes and layouts, so loops can be merged and split by looking at linear
indices only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tilewright.expr.affine import rejoined, simplify
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, select
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import claim
from tilewright.expr.rewrite import substitute, transform
from tilewright.layouts import Packed


def address(layout: Packed, indices: tuple[Expr, ...]) -> Expr:
    """The linear element index in storage of a logical index."""
    total: Expr = Const(0, INDEX)
    for dim, index in enumerate(indices):
        shifted = index + layout.halo[dim][0] if layout.halo[dim][0] else index
        digits = layout.digits_of(dim)
        for position, (radix, extent, stride) in enumerate(digits):
            digit = simplify(shifted // radix) if radix > 1 else shifted
            if position > 0:
                digit = simplify(digit % extent)
            total = total + digit * stride
    return rejoined(simplify(total))


def flat_tensor(tensor: Tensor, layout: Packed) -> Tensor:
    return Tensor(tensor.name, (layout.size,), tensor.dtype)


def flatten(expr: Expr, layout_of: Callable[[Tensor], Packed], own: Collection[str] = ()) -> Expr:
    """Replace every read by a read of the storage of its tensor.

    Values in `own` have no memory and lose their indices.
    """

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Read):
            return None
        if node.tensor.name in own:
            return Read(Tensor(node.tensor.name, (), node.dtype), ())
        layout = layout_of(node.tensor)
        return Read(flat_tensor(node.tensor, layout), (address(layout, node.indices),))

    return simplify(transform(expr, rule))


def storage_loops(compute: Compute, layout: Packed) -> tuple[dict[Axis, Expr], tuple[Axis, ...], Expr | None]:
    """Loops over the storage digits of the output instead of over its dimensions, where digits are split.

    Returns what each axis becomes, the new loops in storage order, and the condition under which a point is an element
    (None: always). Dimensions with one digit keep their axis, so that a halo is not written.
    """
    replaced: dict[Axis, Expr] = {}
    new_axes: dict[tuple[int, int], Axis] = {}
    condition: Expr | None = None
    taken = {axis.name for axis in compute.loops}
    for dim, axis in enumerate(compute.axes):
        digits = layout.digits_of(dim)
        if len(digits) <= 1:
            continue
        total: Expr = Const(0, INDEX)
        for position, (radix, extent, _) in enumerate(digits):
            part = Axis(claim(f"{axis.name}.{position}", taken), extent)
            new_axes[dim, position] = part
            total = total + part * radix
        assert layout.halo[dim] == (0, 0), "a split dimension has no halo"
        replaced[axis] = simplify(total)
        if layout.shape[dim] != digits[0][0] * digits[0][1]:
            inside = replaced[axis] < layout.shape[dim]
            condition = inside if condition is None else condition & inside
    order: list[Axis] = []
    seen: dict[int, int] = {}
    for dim, _ in layout.digits:
        position = seen.get(dim, 0)
        seen[dim] = position + 1
        order.append(new_axes.get((dim, position), compute.axes[dim]))
    return replaced, tuple(order), condition


def guarded(body: Expr, condition: Expr | None, replaced: Mapping[Axis, Expr]) -> Expr:
    """The body over the new loops, 0 where the point is padding."""
    rewritten = substitute(body, replaced) if replaced else body
    if condition is None:
        return rewritten
    return select(condition, rewritten, Const(0, rewritten.dtype))
