"""A product of the graph as one over storage: its operands where they lie, its epilogue, its result."""

from __future__ import annotations

from tilewright.compiler.planning import Planning
from tilewright.expr.affine import affine, bounds
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.rewrite import substitute
from tilewright.graph.groups import Group
from tilewright.instruction.products import MappedProduct
from tilewright.operator.flatten import address
from tilewright.tiles.product import Operand, Product, flat_product
from tilewright.tiles.windows import inside


def work_of(
    planning: Planning, group: Group, target: Tensor, product: MappedProduct, depth: tuple[Axis, ...], a: Operand,
    b: Operand,
) -> Product:  # fmt: skip
    """A product with its epilogue, over storage: `target` is written, `a` and `b` are read, `depth` is summed."""
    node, result = group.main, group.nodes[-1]
    total = Tensor(node.name, (), node.output.dtype)
    epilogue: Expr = Read(total, ())
    if result is not node:
        renamed: dict[Axis, Expr] = dict(zip(result.axes, node.axes, strict=True))
        epilogue = planning.flat(substitute(result.body, renamed), {node.name})
    unit = unit_loops(node)
    index = substitute(address(planning.layout(target), node.axes), unit)
    form = affine(index)
    assert form is not None
    rows = tuple(sorted(product.rows, key=lambda axis: -(form.coefficient(axis) or 1 << 62)))
    guards = [None if each.guard is None else substitute(each.guard, unit) for each in (a, b)]
    factor, other = (
        Operand(each.tensor, substitute(each.index, unit), guard) for each, guard in zip((a, b), guards, strict=True)
    )
    loops = product.outer, rows, product.columns, depth
    support = tuple((substitute(place, unit), extent) for place, extent in support_of(planning, product))
    return flat_product(*loops, factor, other, total, substitute(epilogue, unit), target, index, support=support)


def support_of(planning: Planning, product: MappedProduct) -> list[tuple[Expr, int]]:
    """The indices at which factors read beyond a tensor, where it has a border of zeros, with the tensor's extents."""
    found = []
    for read in (product.a, product.b):
        border = planning.borders.get(read.tensor.name)
        if border is None or not border.of_zeros:
            continue
        for index, extent in zip(read.indices, static_shape(read.tensor.shape), strict=True):
            low, high = bounds(index)
            if low < 0 or high >= extent:
                found.append((index, extent))
    return found


def operand_of(planning: Planning, read: Read) -> Operand:
    """A factor where it is stored."""
    stored = planning.stored(read.tensor)
    return Operand(stored.flat, address(stored.layout, read.indices), guard_of(planning, read))


def guard_of(planning: Planning, read: Read) -> Expr | None:
    """Where a read is inside of a tensor whose border is not in memory; None for one that is nowhere outside."""
    if read.tensor.name not in planning.borders_left_out:
        return None
    return inside(read)


def unit_loops(node: Compute) -> dict[Axis, Expr]:
    """Loops of extent 1 are index 0."""
    return {axis: Const(0, INDEX) for axis in node.loops if axis.extent == 1}
