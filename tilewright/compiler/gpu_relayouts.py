"""Factors of products on a GPU that are laid out anew, because copies of their tiles would bring single elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product as combinations
from math import inf

from tilewright.compiler.packed import place_relayout
from tilewright.compiler.planning import Planning
from tilewright.compiler.products import operand_of
from tilewright.compiler.rows import schedule_statements, statements_of
from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.rewrite import substitute
from tilewright.instruction.order import Index, Order, undivided
from tilewright.instruction.panels import with_last
from tilewright.instruction.products import MappedProduct, contiguous_dimension
from tilewright.instruction.relayout import packed
from tilewright.layouts import row_major
from tilewright.machine.description import Gpu
from tilewright.operator.flatten import address
from tilewright.tiles.product import Operand

COPY_BYTES = 16  # that a thread copies at once, at most


@dataclass(frozen=True)
class Relayout:
    """A factor as a copy in another order: the compute that makes it, and what the product reads instead."""

    compute: Compute
    order: Order
    source: Read
    moved: Read
    reason: str
    cycles: float  # of the copy

    @property
    def operand(self) -> Operand:
        """The factor, where the copy will be."""
        layout = row_major(self.order.shape)
        return Operand(replace(self.compute.output, shape=(layout.size,)), address(layout, self.moved.indices))


@dataclass(frozen=True)
class Factor:
    """A factor of a product: where it is, or as a copy."""

    read: Read
    operand: Operand
    relayout: Relayout | None = None

    @property
    def cycles(self) -> float:
        return self.relayout.cycles if self.relayout else 0.0

    def placed(self, planning: Planning) -> Operand:
        """The factor where it is stored, the copy with its kernel."""
        made = self.relayout
        if made is None:
            return self.operand
        stored = place_relayout(planning, made.compute, made.order, made.source, made.reason)
        return Operand(stored.flat, address(stored.layout, made.moved.indices))


def choose_factors(
    planning: Planning,
    machine: Gpu,
    product: MappedProduct,
    a: Operand,
    b: Operand,
    cycles: Callable[[Operand, Operand], float],
) -> tuple[Factor, Factor, Decision | None]:
    """Each factor where it is or as a copy, whatever takes the fewest predicted cycles with the copies; says why.

    `cycles` are those of the product with operands. Only a factor that no loop walks in neighbours, other than those
    that the copy would put there, is worth looking at.
    """
    reads = (product.a, a), (product.b, b)
    options = [[Factor(read, operand), *_copies(planning, machine, product, read, operand)] for read, operand in reads]
    pairs = [(one, other) for one, other in combinations(*options)]
    if len(pairs) == 1:
        return (*pairs[0], None)
    prices = [cycles(one.operand, other.operand) + one.cycles + other.cycles for one, other in pairs]
    ranked = sorted(range(len(pairs)), key=lambda number: prices[number])
    best, second = ranked[:2]
    if prices[second] == inf:  # multiply-adds have no price
        return (*pairs[0 if prices[best] == inf else best], None)
    decision = Decision(
        f"factors of {product.compute.name}", _text(pairs[best]), f"{prices[best]:.0f} predicted cycles with copies",
        _text(pairs[second]), f"{prices[second]:.0f} cycles", (), Cost(cycles=prices[best]),
        Cost(cycles=prices[second]),
    )  # fmt: skip
    return (*pairs[best], decision)


def _text(factors: Sequence[Factor]) -> str:
    return ", ".join(
        f"{each.read.tensor.name} " + (f"copied in {each.cycles:.0f} cycles" if each.relayout else "in place")
        for each in factors
    )


def _copies(planning: Planning, machine: Gpu, product: MappedProduct, read: Read, operand: Operand) -> Iterator[Factor]:
    """The factor as a copy with neighbours along a sum.

    Nothing for a constant, for a factor that is read outside of its shape, and where threads copy vectors.
    """
    tiled, size = (*(product.rows if read == product.a else (product.columns,)), *product.depth), dtypes.size_bytes
    stays = read.tensor.name in planning.constants or operand.guard is not None
    if stays or not is_scattered(operand, tiled, size(read.dtype)):
        return
    near = _neighbours(product)
    if near is None:
        return
    source, order, places = _ordered(_without_unit_loops(product, read), near)
    relayout = packed(source, order)
    reason = f"no loop walks neighbours of {read.tensor.name}"
    made = Relayout(relayout, order, source, relayout.output[places], reason, _copy_cycles(planning, machine, relayout))
    yield Factor(read, made.operand, made)


def second_factors(planning: Planning, product: MappedProduct, machine: Gpu) -> list[Factor]:
    """The second factor where it is stored and as a copy; what is not stored yet as it will be laid out at no cost."""
    read = _without_unit_loops(product, product.b)
    if read.tensor.name in planning.plan.stored and read.tensor.name not in planning.constants:
        operand = operand_of(planning, read)
        return [Factor(product.b, operand), *_copies(planning, machine, product, product.b, operand)]
    near = _neighbours(product)
    if near is None:
        return []
    source, order, places = _ordered(read, near)
    layout = row_major(order.shape)
    tensor = Tensor(source.tensor.name, (layout.size,), source.dtype)
    return [Factor(product.b, Operand(tensor, address(layout, places)))]


def _without_unit_loops(product: MappedProduct, read: Read) -> Read:
    unit: dict[Axis, Expr] = {axis: Const(0, INDEX) for axis in product.compute.loops if axis.extent == 1}
    plain = substitute(read, unit)
    assert isinstance(plain, Read), "a read with other indices"
    return plain


def is_scattered(operand: Operand, tiled: Sequence[Axis], element_bytes: int) -> bool:
    """Whether no loop of a tile walks neighbours for as long as a copy of a thread is."""
    form = affine(operand.index)
    near = [axis.size * element_bytes for axis in tiled if form is not None and form.coefficient(axis) == 1]
    return max(near, default=0) < COPY_BYTES


def _neighbours(product: MappedProduct) -> Axis | None:
    """The longest reduction loop that takes neighbours along a dimension of both factors."""
    sums = [
        axis
        for axis in product.depth
        if all(contiguous_dimension(read, axis) is not None for read in (product.a, product.b))
    ]
    return max(sums, key=lambda axis: axis.size, default=None)


def _ordered(read: Read, near: Axis) -> tuple[Read, Order, tuple[Expr, ...]]:
    """What a copy reads, its order with neighbours along a loop, and the places where the product reads it.

    Without windows what the product takes, element by element; else the whole tensor.
    """
    forms = [affine(index) for index in read.indices]
    if all(form is not None and len(form.terms) <= 1 for form in forms):
        loops = [axis for form in forms if form for axis in form.terms if axis != near] + [near]
        order = undivided([Index.of(axis) for axis in loops])
        return read, order, order.places()
    dim = contiguous_dimension(read, near)
    assert dim is not None, "it takes neighbours of both factors"
    whole, order = with_last(read.tensor, dim)
    names = (index.name for index in order.indices)
    return whole, order, order.places(dict(zip(names, read.indices, strict=True)))


def _copy_cycles(planning: Planning, machine: Gpu, relayout: Compute) -> float:
    """Predicted cycles of the kernel of a copy, with its launch."""
    statements = statements_of(planning, relayout, row_major(static_shape(relayout.output.shape)))
    _, decision = schedule_statements(statements, planning, relayout.name)
    assert decision.cost is not None, "kernels of blocks have a model"
    return (decision.cost.cycles or 0.0) + machine.launch_seconds * machine.clock_hz
