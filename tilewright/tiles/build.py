"""Tile trees from loops and factors: the shapes of tree that the rules of all machines make.

Blocks of the grid are `par` loops over data in DRAM, the tiles that one program walks are loops at L2, reduction loops
are at L1, and REG holds one vector or register tile. Levels say for which memory a rule chooses the sizes: of caches,
only what stages and scopes place there has to fit (`capacity`). Ragged tiles make factors imperfect: their product may
exceed an extent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.expr.names import claim
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.tree import (
    ONCE,
    Binding,
    Hint,
    Leaf,
    Loop,
    Stage,
    Tile,
    TileTree,
    leaves,
    with_kernels,
)


def tile(
    level: str, loops: Sequence[tuple[str, int]], child: TileTree | Leaf, binding: Binding = Binding.TP,
    hints: Sequence[Hint] = (), keep: Sequence[str] = (), bypass: Sequence[str] = (),
) -> TileTree | Leaf:  # fmt: skip
    """A tile with these loops; the child alone where there are none. A loop without points has one step."""
    if not loops:
        return child
    steps = tuple(Loop(name, max(1, factor)) for name, factor in loops)
    return Tile(level, steps, child, binding, tuple(hints), tuple(keep), tuple(bypass))


def rooted(node: TileTree | Leaf) -> TileTree:
    """A tile around a leaf: it needs one even where no loop runs."""
    return Tile("REG", (Loop(ONCE, 1),), node) if isinstance(node, Leaf) else node


def staged(names: Sequence[str], level: str, child: TileTree, slots: int = 1) -> TileTree:
    for name in reversed(names):
        child = Stage(name, level, child, slots)
    return child


def in_program(loops: Sequence[SpatialLoop], grid: Sequence[SpatialLoop], child: TileTree) -> TileTree:
    """The tiles of one program around `child`, and the grid around them."""
    tree = tile("L2", [(loop.axis.name, loop.tiles_per_block) for loop in loops], child)
    distributed = [(loop.axis.name, loop.programs) for loop in grid if loop.programs > 1]
    return rooted(tile("DRAM", distributed, tree, Binding.SP))


def register_tile(
    rows: Sequence[tuple[str, int]], vector: tuple[str, int] | None, lanes: int, leaf: Leaf, at_a_time: int = 0
) -> TileTree:
    """One register tile of an expression: rows and vectors written out, the lanes of a vector at once.

    With `at_a_time`, rows and vectors are a loop over data in L1, a step of which has so many vectors of a row.
    """
    level, binding = ("L1", Binding.TP) if at_a_time else ("REG", Binding.UNROLL)
    if vector is None:
        return rooted(tile(level, rows, leaf, binding))
    name, extent = vector
    if extent % lanes == 0 and extent >= lanes:
        step, vectors = tile("REG", [(name, lanes)], leaf, Binding.SP), extent // lanes
        if at_a_time > 1:
            step, vectors = tile("REG", [(name, at_a_time)], step, Binding.UNROLL), vectors // at_a_time
        return rooted(tile(level, [*rows, (name, vectors)], step, binding))
    hint = Hint("lanes", (lanes,))
    return rooted(tile(level, rows, tile("REG", [vector], leaf, Binding.SP, [hint]), binding))


def in_blocks(loops: Sequence[SpatialLoop], tree: TileTree, hints: Sequence[Hint]) -> TileTree:
    """Blocks of a GPU, one per tile."""
    distributed = [(loop.axis.name, loop.programs) for loop in loops] or [(ONCE, 1)]
    return rooted(tile("DRAM", distributed, tree, Binding.SP, hints))


def distinct_kernels(trees: Sequence[TileTree]) -> Iterator[TileTree]:
    """The trees, each of one micro-kernel, with other names for those of one shape that run along other loops."""
    taken: set[str] = set()
    for tree in trees:
        ((op, micro_kernel),) = ((leaf.op, leaf.kernel) for _, leaf in leaves(tree) if leaf.kernel is not None)
        yield with_kernels(tree, {op: replace(micro_kernel, name=claim(micro_kernel.name, taken))})
