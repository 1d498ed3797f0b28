"""Tile trees that the user gives for kernels, as a saved plan has them: they take the place of what the rules make."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import prod
from typing import Any

from tilewright.errors import InvalidArgument
from tilewright.operator.product_point import ProductPoint
from tilewright.tiles.kernel import Kernel, expressions
from tilewright.tiles.legality import check
from tilewright.tiles.parts import factors, program_of
from tilewright.tiles.problem import Problem
from tilewright.tiles.product import Product
from tilewright.tiles.tree import InvalidTree, MicroKernelRef, Stage, Tile, TileTree, from_json, kernels, leaves, walk


class GivenTrees:
    """The trees of `Options.trees`, read once."""

    def __init__(self, trees: Mapping[str, Any]) -> None:
        self.given = {name: from_json(value, where=f"trees: {name}") for name, value in trees.items()}

    def tree(self, kernel: str) -> TileTree | None:
        """The tree that was given for a kernel."""
        return self.given.get(kernel)

    def instead(self, kernel: str, scheduled: Kernel) -> Kernel:
        """The kernel with the tree that was given for it, if there is one and it is legal.

        Raises InvalidTree for one of other loops or another mapping, IllegalTree for one that a rule forbids.
        """
        tree = self.given.get(kernel)
        if tree is None:
            return scheduled
        where = f"tile tree of {kernel}"
        _require_same_loops(scheduled, tree, where)
        _require_same_mapping(scheduled, tree, where)
        found = replace(scheduled, tree=tree)
        check(tree, Problem.of(expressions(found)), imperfect=True)
        return found

    def require_used(self, kernels: Collection[str]) -> None:
        """Raises InvalidArgument for a tree of a kernel that the plan does not have."""
        for name in self.given:
            if name not in kernels:
                near = get_close_matches(name, kernels, 1)
                help = near[0] if near else f"one of {', '.join(list(kernels)[:5])}"
                raise InvalidArgument(f"the plan has no kernel {name!r}", where="trees", help=help)


def _require_same_loops(scheduled: Kernel, tree: TileTree, where: str) -> None:
    known = {axis.name for each in scheduled.statements for axis in (*each.axes, *each.reduce)}
    needed = {each.name for each in scheduled.statements if each.accum is not None or each.address is not None}
    for _, node in walk(tree):
        names = factors(node).keys() if isinstance(node, Tile) else ()
        for name in names:
            if name not in known:
                raise InvalidTree(
                    f"{name} is no loop of this kernel", where=where, help=f"one of {', '.join(sorted(known))}"
                )
        if isinstance(node, Tile) and any(loop.factor is None for loop in node.loops):
            raise InvalidTree("a factor is open", where=where, help="a number for every loop")
    missing = needed - {leaf.op for _, leaf in leaves(tree)}
    if missing:
        raise InvalidTree(f"{', '.join(sorted(missing))} is not computed", where=where, help="a leaf for each")


def _require_same_mapping(scheduled: Kernel, tree: TileTree, where: str) -> None:
    """A tree may have other tiles; which instruction multiplies and which loops it takes is decided before."""
    wanted, found = ({each.mapping for each in kernels(each).values()} for each in (scheduled.tree, tree))
    if wanted != found:
        raise InvalidTree(
            f"its product has the mapping {_shown(found)}", where=where, help=f"{_shown(wanted)}, with any tile"
        )


def _shown(mappings: Collection[object]) -> str:
    return " and ".join(map(str, mappings)) or "none"


def product_of_tree(tree: TileTree) -> MicroKernelRef | None:
    """The micro-kernel of the product of a tree."""
    return next(iter(kernels(tree).values()), None)


def point_of_tree(tree: TileTree, work: Product) -> tuple[ProductPoint, dict[str, int]]:
    """The point of a product that a tree of register tiles says, and its blocks, before operands are packed for it."""
    product = product_of_tree(tree)
    if product is None:
        raise InvalidTree("no micro-kernel computes the product", help="the leaf of the tree that the rules make")
    tile = {loop.name: loop.trips for loop in product.quantum}
    program = program_of(tree)
    order = list(program.tiles)
    k_blocks = 1
    for _, node in walk(program.body):
        if isinstance(program.body, Stage) and isinstance(node, Tile) and node.level == "L2":
            (_, k_blocks), *inside = factors(node).items()
            order += [name for name, _ in inside]
            break
    outer, tiled = [axis.name for axis in work.outer], [axis.name for axis in (work.columns, *work.rows)]
    for name in order:
        if name not in outer and name not in tiled:
            raise InvalidTree(f"{name} is no loop of the result", help=f"tiles at L2 of {', '.join((*outer, *tiled))}")
    order = [name for name in order if name in tiled]
    if sorted(order) != sorted(tiled):
        raise InvalidTree(f"tiles are walked along {', '.join(order)}", help=f"{', '.join(tiled)} at L2, each once")
    rows = tuple(tile.get(axis.name, 1) for axis in work.rows)
    vectors = -(-tile.get(work.columns.name, 1) // work.lanes)
    if not any(prod(rows) <= height and vectors <= width for height, width in work.shapes):
        shapes = ", ".join(f"{height} rows by {width} vectors" for height, width in work.shapes)
        raise InvalidTree(f"a register tile has {prod(rows)} rows by {vectors} vectors", help=f"at most {shapes}")
    return ProductPoint(rows, vectors, tuple(order), k_blocks), program.grid


def cut_of_tree(tree: TileTree, last: str) -> int:
    """Points of the innermost depth loop in one of the blocks that it is cut in; 0 where it is whole."""
    product = product_of_tree(tree)
    inside = f"{last}.1"
    if product is None or product.mapping is None or inside not in product.mapping.depth:
        return 0
    points = next((loop.trips for loop in product.quantum if loop.name == inside), 1)
    steps = [factors(node).get(inside, 1) for _, node in walk(tree) if isinstance(node, Tile) and node.level == "L1"]
    return points * max(steps, default=1)
