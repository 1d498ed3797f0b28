"""The tile tree of a scheduled kernel: the loops that `lower` generates for it, as a value that `tiles` can analyse.

Blocks of the grid are `par` loops over data in DRAM, the tiles that one program walks are loops at L2 (at DRAM where
one program does all), reduction loops are at L1, and REG holds one vector or register tile. Levels say for which memory
the schedule's rules choose the sizes; they do not prove that it fits. A product's register tile is an opaque
micro-kernel; an epilogue, and each pass of a nest, is a sibling. Ragged tiles make factors imperfect: their product may
exceed an extent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.expr.core import COSTLY, Apply, Axis, Compute, Expr, Read, Tensor, walk
from tilewright.expr.rewrite import transform
from tilewright.expr.text import print_statement
from tilewright.operator.blocks import BlockSchedule
from tilewright.operator.contraction import Contraction, ContractionSchedule
from tilewright.operator.nest import Nest, NestNode, NestSchedule
from tilewright.operator.nest_blocks import NestBlocks
from tilewright.operator.tiling import SpatialLoop
from tilewright.tiles.tree import Binding, Kind, Leaf, Loop, MicroKernelRef, Operand, Scope, Tile, TileTree


def tree_of(
    work: Contraction | Nest, schedule: ContractionSchedule | BlockSchedule | NestSchedule | NestBlocks
) -> TileTree:
    """The tile tree that a kernel executes; its leaves are the kernel's `expressions`, its loops have their names."""
    if isinstance(work, Contraction):
        if isinstance(schedule, BlockSchedule):
            return _block_tree(work, schedule)
        assert isinstance(schedule, ContractionSchedule)
        return _contraction_tree(work, schedule)
    if isinstance(schedule, NestBlocks):
        return _block_nest_tree(work, schedule)
    assert isinstance(schedule, NestSchedule)
    return _nest_tree(work, schedule)


def expressions(work: Contraction | Nest) -> tuple[Compute, ...]:
    """What a kernel computes, over its own loops and flat tensors, in order: what the leaves of its tree name."""
    if isinstance(work, Contraction):
        return _contraction_expressions(work)
    return _nest_expressions(work)


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


def _tile(
    level: str, factors: Sequence[tuple[str, int]], child: TileTree | Leaf, binding: Binding = Binding.TP
) -> TileTree | Leaf:
    """A tile with the loops that run more than once; the child alone where none does."""
    loops = tuple(Loop(name, factor) for name, factor in factors if factor > 1)
    return Tile(level, loops, child, binding) if loops else child


def _leaf_tile(level: str, factors: Sequence[tuple[str, int]], leaf: Leaf) -> Tile:
    """A tile around a leaf: it needs one even where no loop runs more than once."""
    tree = _tile(level, factors, leaf)
    return tree if isinstance(tree, Tile) else Tile(level, (Loop(factors[-1][0] if factors else "once", 1),), leaf)


def _in_program(loops: Sequence[SpatialLoop], grid: Sequence[SpatialLoop], child: TileTree) -> TileTree:
    """The tiles of one program around `child`, and the grid around them; the outermost tile is at DRAM."""
    dealt = [(loop.axis.name, loop.programs) for loop in grid]
    one = not any(programs > 1 for _, programs in dealt)
    tree = _tile("DRAM" if one else "L2", [(loop.axis.name, loop.tiles_per_block) for loop in loops], child)
    tree = _tile("DRAM", dealt, tree, Binding.SP)
    assert not isinstance(tree, Leaf), "the innermost tiles are there before"
    if tree is child:
        return Tile("DRAM", (Loop(loops[0].axis.name if loops else "once", 1),), child)
    return tree


def _registers(dims: Sequence[tuple[str, int]], lanes: int, op: str, fallback: str) -> Tile:
    """One vector tile of an expression without reduction: vectors in turn, the lanes of the last dimension at once."""
    leaf = Leaf(op)
    if not dims:
        return Tile("REG", (Loop(fallback, 1),), leaf)
    *rows, (name, extent) = dims
    vectors = -(-extent // lanes)
    inner = _tile("REG", [(name, extent if vectors == 1 else lanes)], leaf, Binding.SP)
    tree = _tile("REG", [*rows, (name, vectors)], inner)
    return tree if isinstance(tree, Tile) else Tile("REG", (Loop(name, 1),), leaf)


# Products -------------------------------------------------------------------------------------------------------------


def _contraction_tree(work: Contraction, schedule: ContractionSchedule) -> TileTree:
    spatial = {
        axis.name: SpatialLoop(axis, schedule.tile.get(axis.name, 1), schedule.blocks.get(axis.name, 1))
        for axis in (*work.outer, *work.m_loops, work.n_loop)
    }
    loops, grid = ([spatial[name] for name in order] for order in (schedule.order, schedule.grid_order))
    product, *epilogue = _contraction_expressions(work)
    kernel = _micro_kernel(work, schedule.tile, {work.k_loops[-1].name: schedule.k_unroll})
    blocks, k_factors = _k_factors(work, schedule)
    tree: TileTree = _leaf_tile("L1", k_factors, Leaf(product.name, kernel))
    after: TileTree | None = None
    if epilogue:
        dims = [(axis.name, schedule.tile.get(axis.name, 1)) for axis in (*work.m_loops, work.n_loop)]
        after = _registers(dims, schedule.lanes, epilogue[0].name, work.n_loop.name)
    if blocks > 1:  # blocks of k around the rows: what stands inside the columns runs twice, for sums and epilogue
        cut = [loop.axis for loop in loops].index(work.n_loop) + 1
        rows = [(loop.axis.name, loop.tiles_per_block) for loop in loops[cut:]]
        loops = loops[:cut]
        tree = _tree(_tile("L2", [(work.k_loops[0].name, blocks), *rows], tree))
        after = _tree(_tile("L2", rows, after)) if after is not None else None
    return _in_program(loops, grid, Scope(Kind.SEQ, (tree, after)) if after is not None else tree)


def _tree(node: TileTree | Leaf) -> TileTree:
    assert not isinstance(node, Leaf), "a tile holds every leaf"
    return node


def _k_factors(work: Contraction, schedule: ContractionSchedule) -> tuple[int, list[tuple[str, int]]]:
    """Blocks of the first k loop, and the steps of all k loops inside a block."""
    steps = {axis.name: axis.size for axis in work.k_loops}
    first, last = work.k_loops[0], work.k_loops[-1]
    blocks = 1
    if schedule.k_block:
        blocks = -(-first.size // schedule.k_block)
        steps[first.name] = schedule.k_block
    steps[last.name] = -(-steps[last.name] // schedule.k_unroll)
    return blocks, list(steps.items())


def _block_tree(work: Contraction, schedule: BlockSchedule) -> TileTree:
    """Blocks of the grid around slices of k around the product of a tile, which is a micro-kernel of the block."""
    product, *epilogue = _contraction_expressions(work)
    slices = schedule.slices(work)
    kernel = _micro_kernel(work, schedule.tile, {axis.name: size for axis, size, _ in slices})
    tree: TileTree = _leaf_tile("L1", [(axis.name, count) for axis, _, count in slices], Leaf(product.name, kernel))
    if epilogue:
        dims = [(axis.name, schedule.tile.get(axis.name, 1)) for axis in (*work.m_loops, work.n_loop)]
        after = _registers(dims, schedule.tile[work.n_loop.name], epilogue[0].name, work.n_loop.name)
        tree = Scope(Kind.SEQ, (tree, after))
    grid = schedule.grid(work)
    return _in_program(grid, grid, tree)


def _micro_kernel(work: Contraction, tile: Mapping[str, int], steps: Mapping[str, int]) -> MicroKernelRef:
    """One product of a tile: ``rows x columns x depth``, over so many steps of the k loops."""
    quantum = [(axis.name, tile.get(axis.name, 1)) for axis in (*work.m_loops, work.n_loop)]
    rows = 1
    for _, extent in quantum[:-1]:
        rows *= extent
    columns, depth = quantum[-1][1], prod(steps.values())
    dtype = "f32" if work.accumulator.dtype in ("f16", "bf16") else work.accumulator.dtype  # narrow sums are kept wide
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", depth)
    a, b = Tensor("A", (rows, depth), work.a.tensor.dtype), Tensor("B", (depth, columns), work.b.tensor.dtype)
    c = Tensor("C", (rows, columns), dtype)
    semantics = Compute(c, (m, n), a[m, k].cast(dtype) * b[k, n].cast(dtype), (k,), "sum")
    return MicroKernelRef(
        f"{work.intrinsic}_{rows}x{columns}x{depth}",
        print_statement(semantics),
        (
            Operand("A", (rows, depth), a.dtype, "read"),
            Operand("B", (depth, columns), b.dtype, "read"),
            Operand("C", (rows, columns), dtype, "accumulate"),
        ),
        tuple(Loop(name, extent) for name, extent in (*quantum, *steps.items()) if extent > 1),
    )


def _contraction_expressions(work: Contraction) -> tuple[Compute, ...]:
    """The product, and the epilogue where it does more than pass the sum on."""
    axes = (*work.outer, *work.m_loops, work.n_loop)
    shape = tuple(axis.extent for axis in axes)
    alone = isinstance(work.epilogue, Read) and work.epilogue.tensor.name == work.accumulator.name
    name = work.output.name if alone else work.accumulator.name
    if not alone and name == work.output.name:
        name = f"{name}.sum"
    dtype = work.accumulator.dtype
    total = Tensor(name, shape, dtype)
    body = work.a.tensor[work.a.index].cast(dtype) * work.b.tensor[work.b.index].cast(dtype)
    product = Compute(total, axes, body, work.k_loops, "sum")
    if alone:
        return (product,)
    epilogue = _with_own_values(work.epilogue, {work.accumulator.name: total[axes]})
    return product, Compute(Tensor(work.output.name, shape, epilogue.dtype), axes, epilogue)


def _with_own_values(body: Expr, values: Mapping[str, Expr]) -> Expr:
    """A body whose reads of rank 0 are replaced by the values they stand for."""

    def rule(node: Expr) -> Expr | None:
        return values.get(node.tensor.name) if isinstance(node, Read) and not node.indices else None

    return transform(body, rule)


# Nests ----------------------------------------------------------------------------------------------------------------


def _nest_tree(nest: Nest, schedule: NestSchedule) -> TileTree:
    quanta = {schedule.unroll: schedule.unroll_extent, schedule.vector: schedule.vector_extent}
    beside = [axis for axis in nest.outer if axis.name == schedule.unroll]
    vector = [axis for axis in nest.outer if axis.name == schedule.vector]
    plain = [axis for axis in nest.outer if axis not in beside and axis not in vector]
    loops = [
        SpatialLoop(axis, quanta.get(axis.name, 1), schedule.blocks.get(axis.name, 1))
        for axis in (*plain, *beside, *vector)
    ]
    dims = [(axis.name, quanta[axis.name]) for axis in (*beside, *vector)]
    steps = [_pass_tree(step, nest, schedule, dims) for step in _passes(nest)]
    return _in_program(loops, loops, Scope(Kind.SEQ, tuple(steps)) if len(steps) > 1 else steps[0])


def _pass_tree(step: Sequence[NestNode], nest: Nest, schedule: NestSchedule, dims: list[tuple[str, int]]) -> TileTree:
    """One pass: its last node, and before it the row buffers that it fills."""
    sweeps = step[-1].accum is not None or nest.covers_inner(step[-1])
    loops = {axis.name: axis.size for axis in nest.inner if sweeps}
    fallback = nest.outer[-1].name if nest.outer else "once"
    if schedule.vector in loops:
        size = schedule.vector_extent
        loops[schedule.vector] = -(-loops.pop(schedule.vector) // size)  # the vector loop runs innermost
        dims, fallback = [(schedule.vector, size)], schedule.vector
    elif any(axis.name == schedule.vector for axis in nest.inner):
        dims = []  # one value per row
    bodies = [_registers(dims, schedule.lanes, node.tensor.name, fallback) for node in step]
    body: TileTree = Scope(Kind.SEQ, tuple(bodies)) if len(bodies) > 1 else bodies[0]
    return _tree(_tile("L1", list(loops.items()), body))


def _block_nest_tree(nest: Nest, schedule: NestBlocks) -> TileTree:
    """Blocks of the grid around the passes; each walks the chunks of the inner loops."""
    grid = schedule.grid(nest)
    outer = [(axis.name, schedule.tile[axis.name]) for axis in nest.outer if axis.name in schedule.tile]
    fallback = nest.outer[-1].name if nest.outer else nest.inner[-1].name if nest.inner else "once"
    steps = []
    for step in _passes(nest):
        sweeps = step[-1].accum is not None or nest.covers_inner(step[-1])
        chunks = [(axis.name, size, count) for axis, size, count in schedule.chunks(nest) if sweeps]
        dims = [*outer, *((name, size) for name, size, _ in chunks if size > 1)]
        points = prod(size for _, size in dims)
        bodies = [_registers(dims, points, node.tensor.name, fallback) for node in step]
        body: TileTree = Scope(Kind.SEQ, tuple(bodies)) if len(bodies) > 1 else bodies[0]
        steps.append(_tree(_tile("L1", [(name, count) for name, _, count in chunks], body)))
    return _in_program(grid, grid, Scope(Kind.SEQ, tuple(steps)) if len(steps) > 1 else steps[0])


def _passes(nest: Nest) -> list[list[NestNode]]:
    """The passes of a nest: in each, the row buffers that it is the first to read, in order, and the node it is for."""
    inlined, buffers = _inlined(nest), row_buffers(nest)
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


def _inlined(nest: Nest) -> set[str]:
    """Values per inner point without a row buffer: every pass that reads them computes them again."""
    return {node.tensor.name for node in nest.nodes if nest.covers_inner(node)} - set(row_buffers(nest))


def _nest_expressions(nest: Nest) -> tuple[Compute, ...]:
    """The nodes of all passes in order, over all loops that they cover."""
    inlined = _inlined(nest)
    values: dict[str, Expr] = {}
    found: dict[str, Compute] = {}
    for node in nest.nodes:
        name = node.tensor.name
        body = _with_own_values(node.body, values)
        axes = (*nest.outer, *(nest.inner if nest.covers_inner(node) else ()))
        output = Tensor(name, tuple(axis.extent for axis in axes), body.dtype)
        reduced = nest.inner if node.accum is not None else ()
        found[name] = Compute(output, axes, body, reduced, node.accum if reduced else None)
        values[name] = body if name in inlined else output[axes]
    return tuple(found[node.tensor.name] for step in _passes(nest) for node in step)
