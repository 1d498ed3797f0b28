"""Scheduled kernels from works and schedules: their statements, and the tile tree that has every decision.

Blocks of the grid are `par` loops over data in DRAM, the tiles that one program walks are loops at L2, reduction loops
are at L1, and REG holds one vector or register tile. Levels say for which memory the schedule's rules choose the sizes;
they do not prove that it fits. A product's register tile is an opaque micro-kernel; an epilogue, and each pass of a
nest, is a sibling. Ragged tiles make factors imperfect: their product may exceed an extent. `lower.schedules` reads
works and schedules from kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.expr.core import COSTLY, Apply, Axis, Compute, Read, Tensor, walk
from tilewright.expr.text import print_statement
from tilewright.operator.blocks import BlockSchedule, BlockShape
from tilewright.operator.contraction import ContractionSchedule
from tilewright.operator.nest import Nest, NestNode, NestSchedule, nest_loops, statements_of
from tilewright.tiles.build import in_blocks, in_program, register_tile, rooted, staged, tile
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Product
from tilewright.tiles.tree import (
    Binding,
    Hint,
    Kind,
    Leaf,
    Loop,
    MicroKernelRef,
    Operand,
    Scope,
    Stage,
    TileTree,
)

Work = Product | Nest
Schedule = ContractionSchedule | BlockSchedule | NestSchedule


def kernel_of(work: Work, schedule: Schedule) -> Kernel:
    """The scheduled kernel: loops and tensors have the names that they have in the work."""
    if isinstance(work, Product):
        if isinstance(schedule, BlockSchedule):
            return Kernel(work.statements, _block_tree(work, schedule))
        assert isinstance(schedule, ContractionSchedule)
        return Kernel(work.statements, _contraction_tree(work, schedule))
    assert isinstance(schedule, NestSchedule)
    return Kernel(statements_of(work), _nest_tree(work, schedule))


def row_buffers(nest: Nest) -> tuple[str, ...]:
    """Costly values per inner point that several passes read: the first one writes them to scratch for the others."""
    readers: dict[str, int] = {}
    for node in nest.nodes:
        for name in {read.tensor.name for read in walk(node.body) if isinstance(read, Read) and not read.indices}:
            readers[name] = readers.get(name, 0) + 1
    return tuple(
        node.tensor.name
        for node in nest.nodes
        if nest.inner and nest.covers_inner(node) and node.index is None and readers.get(node.tensor.name, 0) > 1
        and any(isinstance(e, Apply) and e.function in COSTLY for e in walk(node.body))
    )  # fmt: skip


# Products -------------------------------------------------------------------------------------------------------------


def _contraction_tree(work: Product, schedule: ContractionSchedule) -> TileTree:
    spatial = {
        axis.name: SpatialLoop(axis, schedule.tile.get(axis.name, 1), schedule.blocks.get(axis.name, 1))
        for axis in (*work.outer, *work.rows, work.columns)
    }
    loops, grid = ([spatial[name] for name in order] for order in (schedule.order, schedule.grid_order))
    product, *epilogue = work.statements
    kernel = _micro_kernel(work, schedule.tile, {work.depth[-1].name: schedule.k_unroll})
    blocks, k_factors = _k_factors(work, schedule)
    tree = rooted(tile("L1", k_factors, Leaf(product.name, kernel)))
    after: TileTree | None = None
    if epilogue:
        rows = [(axis.name, schedule.tile.get(axis.name, 1)) for axis in work.rows]
        columns = (work.columns.name, schedule.tile.get(work.columns.name, 1))
        after = register_tile(rows, columns, work.lanes, Leaf(epilogue[0].name), schedule.epilogue_loop)
    if not schedule.k_block:
        return in_program(loops, grid, Scope(Kind.SEQ, (tree, after)) if after is not None else tree)
    # Blocks of k around the rows: what stands inside the columns runs twice, for sums and epilogue.
    cut = [loop.axis for loop in loops].index(work.columns) + 1
    inside = [(loop.axis.name, loop.tiles_per_block) for loop in loops[cut:]]
    hints = [Hint("prefetch_lines", (schedule.prefetch_line_bytes,))] if schedule.prefetch_line_bytes else []
    tree = rooted(tile("L2", [(work.depth[0].name, blocks), *inside], tree, hints=hints))
    if after is not None:
        tree = Scope(Kind.SEQ, (tree, rooted(tile("L2", inside, after))))
    return in_program(loops[:cut], grid, Stage(product.name, "L2", tree))


def _k_factors(work: Product, schedule: ContractionSchedule) -> tuple[int, list[tuple[str, int]]]:
    """Blocks of the first k loop, and the steps of all k loops inside a block."""
    steps = {axis.name: axis.size for axis in work.depth}
    first, last = work.depth[0], work.depth[-1]
    blocks = 1
    if schedule.k_block:
        blocks = -(-first.size // schedule.k_block)
        steps[first.name] = schedule.k_block
    steps[last.name] = -(-steps[last.name] // schedule.k_unroll)
    return blocks, list(steps.items())


def _block_tree(work: Product, schedule: BlockSchedule) -> TileTree:
    """Blocks of the grid around slices of k around the product of a tile, which is a micro-kernel of the block."""
    product, *epilogue = work.statements
    shape, slices = schedule.shape, schedule.slices(work)
    kernel = _micro_kernel(work, schedule.tile, {axis.name: size for axis, size, _ in slices}, shape)
    tree = rooted(tile("L1", [(axis.name, count) for axis, _, count in slices], Leaf(product.name, kernel)))
    tree = staged([work.a.tensor.name, work.b.tensor.name], "SHARED", tree, shape.stages)
    if epilogue:
        dims = [(axis.name, schedule.tile.get(axis.name, 1)) for axis in (*work.rows, work.columns)]
        tree = Scope(Kind.SEQ, (tree, rooted(tile("REG", dims, Leaf(epilogue[0].name), Binding.SP))))
    hints = [Hint("warps", shape.warps)]
    hints += [Hint("splits", (shape.splits,))] if shape.splits > 1 else []
    hints += [Hint("cluster", (shape.cluster,))] if shape.cluster > 1 else []
    return in_blocks(schedule.grid(work), tree, hints)


def _micro_kernel(
    work: Product, tile: Mapping[str, int], steps: Mapping[str, int], shape: BlockShape | None = None
) -> MicroKernelRef:
    """One product of a tile: ``rows x columns x depth``, over so many steps of the k loops."""
    quantum = [(axis.name, tile.get(axis.name, 1)) for axis in (*work.rows, work.columns)]
    rows, columns, depth = prod(extent for _, extent in quantum[:-1]), quantum[-1][1], prod(steps.values())
    dtype = "f32" if work.total.dtype in ("f16", "bf16") else work.total.dtype  # narrow sums are kept wide
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", depth)
    a, b = Tensor("A", (rows, depth), work.a.tensor.dtype), Tensor("B", (depth, columns), work.b.tensor.dtype)
    c = Tensor("C", (rows, columns), dtype)
    semantics = Compute(c, (m, n), a[m, k].cast(dtype) * b[k, n].cast(dtype), (k,), "sum")
    mapping = work.mapping
    if shape is not None:
        mapping = replace(mapping, intrinsic=shape.intrinsic, precision=shape.precision)
    return MicroKernelRef(
        f"{mapping.intrinsic}_{rows}x{columns}x{depth}",
        print_statement(semantics),
        (
            Operand("A", (rows, depth), a.dtype, "read"),
            Operand("B", (depth, columns), b.dtype, "read"),
            Operand("C", (rows, columns), dtype, "accumulate"),
        ),
        tuple(Loop(name, extent) for name, extent in (*quantum, *steps.items())),
        mapping,
    )


# Nests ----------------------------------------------------------------------------------------------------------------


def _nest_tree(nest: Nest, schedule: NestSchedule) -> TileTree:
    loops = nest_loops(nest, schedule)
    stages: list[list[TileTree]] = [[]]
    numbers = PassNumbers(nest, schedule.moments)
    for step in _passes(nest):
        if numbers.swept and walks_inner(step[-1], nest) and numbers.swept in schedule.stages:
            stages.append([])
        hints = _hints(step[-1], numbers.next(step[-1]), schedule)
        stages[-1].append(_pass_tree(step, nest, schedule, hints))
    groups = [group[0] if len(group) == 1 else Scope(Kind.SEQ, tuple(group)) for group in stages]
    tree = Scope(Kind.PIPE, tuple(groups)) if schedule.stages else groups[0]
    return in_program(loops, loops, staged(row_buffers(nest), "L1", tree))


def walks_inner(node: NestNode, nest: Nest) -> bool:
    """Whether a node has a pass over the inner loops; a row buffer is filled in the pass of another node."""
    return node.accum is not None or (nest.covers_inner(node) and node.index is not None)


class PassNumbers:
    """The numbers of passes that walk the inner loops, from 0; without inner loops, of the only pass."""

    def __init__(self, nest: Nest, moments: tuple[str, str] | None) -> None:
        self.nest, self.moments = nest, moments
        self.swept = 0  # passes so far

    def next(self, node: NestNode) -> int | None:
        """The number of the pass of a node, None where it has none: a value per row, the second of two moments."""
        if not self.nest.inner:
            self.swept += 1
            return 0 if self.swept == 1 else None
        if not walks_inner(node, self.nest) or (self.moments is not None and node.tensor.name == self.moments[1]):
            return None
        self.swept += 1
        return self.swept - 1


def _hints(node: NestNode, number: int | None, schedule: NestSchedule) -> tuple[Hint, ...]:
    """The hints of the leaf of a node, whose pass has this number."""
    name = node.tensor.name
    found = [Hint("stream")] if name in schedule.nontemporal else []
    found += [Hint("one_pass")] if name in (schedule.moments or ()) else []
    asked = [ahead for ahead in schedule.prefetch if ahead.pass_number == number]
    found += [Hint("prefetch", (ahead.tensor, ahead.distance, ahead.elements)) for ahead in asked]
    return tuple(found)


def _pass_tree(step: Sequence[NestNode], nest: Nest, schedule: NestSchedule, hints: tuple[Hint, ...]) -> TileTree:
    """One pass: its last node, and before it the row buffers that it fills."""
    sweeps = walks_inner(step[-1], nest)
    loops = {axis.name: axis.size for axis in nest.inner if sweeps}
    rows = [(axis.name, schedule.unroll_extent) for axis in nest.outer if axis.name == schedule.unroll]
    inside = any(axis.name == schedule.vector for axis in nest.inner)
    vector = (schedule.vector, schedule.vector_extent) if schedule.vector and inside <= sweeps else None
    if vector is not None and inside:
        loops[schedule.vector] = -(-loops.pop(schedule.vector) // schedule.vector_extent)  # runs innermost
    bodies = [
        register_tile(rows, vector, schedule.lanes, Leaf(node.tensor.name, None, hints if node is step[-1] else ()))
        for node in step
    ]
    body = Scope(Kind.SEQ, tuple(bodies)) if len(bodies) > 1 else bodies[0]
    return rooted(tile("L1", list(loops.items()), body))


def _passes(nest: Nest) -> list[list[NestNode]]:
    """The passes of a nest: in each, the row buffers that it is the first to read, in order, and the node it is for."""
    buffers = row_buffers(nest)
    inlined = {node.tensor.name for node in nest.nodes if nest.covers_inner(node)} - set(buffers)
    waiting = {node.tensor.name: node for node in nest.nodes if node.tensor.name in buffers}
    needed: dict[str, dict[str, None]] = {}  # row buffers that a node reads, those behind other buffers first
    for node in nest.nodes:
        own: dict[str, None] = {}
        for read in walk(node.body):
            if isinstance(read, Read) and not read.indices:
                name = read.tensor.name
                own.update(needed.get(name, {}) if name in inlined or name in buffers else {})
                own.update({name: None} if name in buffers else {})
        needed[node.tensor.name] = own
    steps = []
    for node in nest.nodes:
        if node.tensor.name not in buffers and (node.tensor.name not in inlined or node.index is not None):
            fills = [waiting.pop(name) for name in needed[node.tensor.name] if name in waiting]
            steps.append([*fills, node])
    return steps
