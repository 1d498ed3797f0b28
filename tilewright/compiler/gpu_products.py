"""Products of a graph on the blocks of a GPU: where results and constant factors are stored, and the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from tilewright.compiler.gpu_relayouts import Factor, choose_factors, is_scattered
from tilewright.compiler.packed import place_relayout
from tilewright.compiler.plan import Stored
from tilewright.compiler.planning import Planning, cycles_of_rule, points
from tilewright.compiler.products import operand_of, work_of
from tilewright.compiler.rows import fill_borders
from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Read
from tilewright.expr.rewrite import replaced, transform
from tilewright.graph.groups import Group
from tilewright.instruction.block_tiles import Candidate, Ranking, Reading
from tilewright.instruction.gpu_products import block_shape
from tilewright.instruction.panels import with_last
from tilewright.instruction.products import MappedProduct, contiguous_dimension
from tilewright.instruction.relayout import packed
from tilewright.layouts.access import SECTOR_BYTES
from tilewright.machine.description import Gpu
from tilewright.operator.block_tree import block_tree
from tilewright.operator.flatten import address
from tilewright.operator.product_loops import merge_product_loops
from tilewright.operator.rules.gpu_product import (
    BlockShape,
    TileLoops,
    loaded,
    loops_of_bulk_copies,
    loops_of_threads,
    schedule_blocks,
)
from tilewright.tiles.product import Operand, Product
from tilewright.tiles.shared_memory import is_warpgroup


def plan_product(planning: Planning, group: Group, machine: Gpu) -> None:
    """Place the result of a product with its epilogue, and add its kernel."""
    plan = planning.plan
    node, result = group.main, group.nodes[-1]
    product, decision = planning.find_product(node)
    assert product is not None
    assert decision is not None
    position = len(plan.decisions)
    n_dim = node.axes.index(product.columns)
    planning.place_result(result.output, [d for d in range(len(node.axes)) if d != n_dim] + [n_dim])
    fill_borders(planning, group.stored)
    b = _factor(planning, product)
    where = operand_of(planning, product.a), Operand(b.flat, address(b.layout, product.b.indices))
    tiles: dict[tuple[Operand, ...], BlockTile] = {}

    def tile_of(*factors: Operand) -> BlockTile:
        if factors not in tiles:
            work = work_of(planning, group, result.output, product, product.depth, *factors)
            choose = planning.choose.tile
            tiles[factors] = tile_of_product(
                planning, machine, product, merge_product_loops(work), result.output.dtype,
                lambda ranking: choose(ranking, node.name),
            )  # fmt: skip
        return tiles[factors]

    *factors, moved = choose_factors(planning, machine, product, *where, lambda *each: tile_of(*each).cycles)
    if moved is not None:
        plan.decisions.append(moved)
    _place(planning, product, factors)
    chosen = tile_of(*(each.operand for each in factors))
    work, shape = chosen.work, chosen.shape
    records = planning.intrinsics
    instruction = shape.intrinsic if shape.intrinsic in records else ""  # without one: multiply-adds
    running = product.on(records.find(instruction)) if instruction else product
    plan.decisions[position:position] = [replace(decision, chosen=str(running))]
    plan.decisions.append(chosen.decision)
    kernel, divided = schedule_blocks(work, shape, group.kernel, chosen.loops)
    plan.decisions.append(divided)
    name = planning.name_kernel(group.kernel)
    cycles = cycles_of_rule(kernel, chosen.decision)
    flops = 2 * points(node)
    planning.add_scheduled(name, kernel, divided, (result.output.name,), flops, cycles=cycles, instruction=instruction)
    plan.products[node.name] = {
        "kernel": name, **running.to_json(), "instruction": shape.intrinsic, "precision": shape.precision,
        "block": [shape.m, shape.n, shape.k], "warps": list(shape.warps), "stages": shape.stages,
        "splits": shape.splits, "cluster": shape.cluster, "schedule": {"tile": block_tree(kernel).points},
    }  # fmt: skip


@dataclass(frozen=True)
class BlockTile:
    """The tile of a block for a product of operands, the loops that it has points of, and whether boxes bring it."""

    work: Product
    shape: BlockShape
    decision: Decision
    loops: TileLoops
    bulk: bool

    @property
    def cycles(self) -> float:
        """Predicted; infinite for multiply-adds, which have no price."""
        cost = self.decision.cost
        return inf if cost is None or cost.cycles is None else cost.cycles


def tile_of_product(
    planning: Planning, machine: Gpu, product: MappedProduct, work: Product, result: str,
    choose: Callable[[Ranking], Candidate | None],
) -> BlockTile:  # fmt: skip
    """The tile of a block for a product of these operands; `choose` is asked first."""
    options, records = planning.options, planning.intrinsics
    threads = loops_of_threads(work)
    size = dtypes.size_bytes(product.a.dtype)
    boxes, no_boxes = loops_of_bulk_copies(work, size)
    distinct = work.a.tensor.size + work.b.tensor.size
    reading = Reading(
        (threads, boxes), _scattered(work, size), work.a.guard is not None, distinct, loaded(work, size),
        (_off_sectors(work.a, work, size), _off_sectors(work.b, work, size)),
    )  # fmt: skip
    shape, decision = block_shape(
        product, machine, input_precision=options.input_precision, intrinsics=records, off=options.disable,
        no_bulk_copies=no_boxes, result=result, choose=choose, route=options.mma, cluster=options.cluster,
        reading=reading, known=planning.rankings,
    )  # fmt: skip
    bulk = shape.intrinsic in records and is_warpgroup(records.find(shape.intrinsic))
    return BlockTile(work, shape, decision, boxes if bulk and boxes is not None else threads, bulk)


def _scattered(work: Product, element_bytes: int) -> tuple[bool, bool]:
    """Of both operands, whether copies of their tiles by threads bring single elements, under masks of their own."""
    first, second = (
        each.guard is not None or is_scattered(each, (*outside, *work.depth), element_bytes)
        for each, outside in ((work.a, work.rows), (work.b, (work.columns,)))
    )
    return first, second


def _off_sectors(operand: Operand, work: Product, element_bytes: int) -> bool:
    """Whether rows of an operand begin at other places than multiples of a sector of L2."""
    form = affine(operand.index)
    steps = [form.coefficient(axis) for axis in (*work.spatial, *work.depth)] if form is not None else [0]
    return any(step != 1 and step * element_bytes % SECTOR_BYTES for step in steps)


def _place(planning: Planning, product: MappedProduct, factors: Sequence[Factor]) -> None:
    """Store what is copied, before the kernel of the product; the mapped graph has the copies as nodes."""
    made = [(each.relayout, each.read) for each in factors if each.relayout is not None]
    if not made:
        return
    *before, node = planning.plan.mapped.get(product.compute.name, (product.compute,))
    for factor in factors:
        factor.placed(planning)
    instead = {read: relayout.moved for relayout, read in made}
    body = transform(node.body, lambda each: instead.get(each) if isinstance(each, Read) else None)
    copies = [relayout.compute for relayout, _ in made]
    planning.plan.mapped[product.compute.name] = (*before, *copies, replace(node, body=body))


def _factor(planning: Planning, product: MappedProduct) -> Stored:
    """How b is read: in place; a constant along neither n nor the sum that walks neighbours of a is stored along that.

    Such a constant is laid out anew when it is packed, at no cost.
    """
    node, tensor = product.compute, product.b.tensor
    stored = planning.stored(tensor)
    if tensor.name not in planning.constants:
        return stored
    in_a, in_b = (affine(address(planning.layout(read.tensor), read.indices)) for read in (product.a, product.b))
    assert in_a is not None
    assert in_b is not None
    sums = [axis for axis in product.depth if contiguous_dimension(product.b, axis) is not None]
    near = max(sums, key=lambda axis: (in_a.coefficient(axis) == 1, axis.extent), default=None)
    if near is None or in_b.coefficient(product.columns) == 1 or in_b.coefficient(near) == 1:
        return stored
    dim = contiguous_dimension(product.b, near)
    assert dim is not None
    read, order = with_last(tensor, dim)
    reason = f"{near.name} takes neighbours of {product.a.tensor.name}"
    relayout, names = packed(read, order), (index.name for index in order.indices)
    moved = relayout.output[order.places(dict(zip(names, product.b.indices, strict=True)))]
    body = replaced(node.body, product.b, moved)
    planning.plan.mapped[node.name] = (relayout, replace(node, body=body))
    return place_relayout(planning, relayout, order, read, reason)
