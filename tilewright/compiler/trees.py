"""Tile trees that the user gives for kernels, as a saved plan has them: they take the place of what the rules make."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from tilewright.errors import InvalidArgument, nearest
from tilewright.expr.names import claim
from tilewright.expr.ordered import Ordered, Sort
from tilewright.lower.row_tree import RowTree
from tilewright.operator.block_rows import block_rows
from tilewright.operator.block_tree import block_tree
from tilewright.operator.fused_blocks import fused_blocks
from tilewright.operator.ordered_tree import ordered_tree
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.products_tree import products_tree
from tilewright.operator.sorting import method_of
from tilewright.options import Options
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.legality import TooLarge, check
from tilewright.tiles.parts import factors, on_blocks, program_of, tiles_at
from tilewright.tiles.problem import problem_of
from tilewright.tiles.product import Product, micro_kernel, products_of
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import (
    InvalidTree,
    Leaf,
    MicroKernelRef,
    Stage,
    Tile,
    TileTree,
    about,
    from_json,
    kernels,
    leaves,
    walk,
    with_kernels,
)

_NAME = re.compile(r"(?P<record>\w+)_(?P<rows>\d{1,4})x(?P<columns>\d{1,4})x(?P<depth>\d{1,4})(\.\d+)?")


class GivenTrees:
    """The trees of `Options.trees`, and of the file that `Options.fuse` names, read once.

    `resources` say what one program of a kernel may place at each level.
    Raises InvalidFile or InvalidTree where they are none, InvalidArgument where both have a tree of one kernel.
    """

    def __init__(self, options: Options, resources: Resources) -> None:
        self.resources = resources
        self.given = {name: from_json(value, where=f"trees: {name}") for name, value in options.trees.items()}
        self.places = dict.fromkeys(self.given, "trees")
        if isinstance(options.fuse, Path):
            from tilewright.compiler.tree_files import fused_trees

            fused = fused_trees(options.fuse)
            if twice := [name for name in fused if name in self.given]:
                fact = f"{options.fuse} has a tree of {twice[0]} too"
                raise InvalidArgument(fact, where="trees", help="one tree for each kernel")
            self.given |= fused
            self.places |= dict.fromkeys(fused, str(options.fuse))

    def tree(self, kernel: str) -> TileTree | None:
        """The tree that was given for a kernel."""
        return self.given.get(kernel)

    def of_products(self, kernel: str, works: Sequence[Product]) -> TileTree | None:
        """The tree that was given for products in one kernel; leaves that have only names get their mappings.

        Raises InvalidTree for a leaf that no intrinsic executes, TooLarge for a register tile that registers do not
        hold.
        """
        tree = self.given.get(kernel)
        if tree is None:
            return None
        found, taken = {leaf.op: leaf for _, leaf in leaves(tree)}, set[str]()
        for work in works:
            op = work.statements[0].name
            executed = _executed(found.get(op, Leaf(op)), work)
            tree = with_kernels(tree, {op: replace(executed, name=claim(executed.name, taken))})
        self.given[kernel] = tree
        return tree

    def instead(self, kernel: str, scheduled: Kernel) -> Kernel:
        """The kernel with the tree that was given for it, if there is one and it is lowered.

        Raises InvalidTree for one of other loops, another mapping, or another form than `lower` reads, IllegalTree for
        one that a rule forbids.
        """
        tree = self.given.get(kernel)
        if tree is None:
            return scheduled
        with about(kernel):
            _require_same_loops(scheduled, tree)
            _require_same_kind(scheduled, tree)
            found = replace(scheduled, tree=tree)
            check(tree, problem_of(found), imperfect=True, resources=self.resources)
            return replace(found, tree=_form(found))

    def require_used(self, kernels: Collection[str]) -> None:
        """Raises InvalidArgument for a tree of a kernel that the plan does not have."""
        for name in self.given:
            if name not in kernels:
                near = nearest(name, kernels)
                help = near[0] if near else f"one of {', '.join(list(kernels)[:5])}"
                raise InvalidArgument(f"the plan has no kernel {name!r}", where=self.places[name], help=help)


def _form(kernel: Kernel) -> TileTree:
    """The tree as `lower` reads it: descriptions of micro-kernels are those of their tiles."""
    if isinstance(kernel.statements[-1].accum, Ordered):
        ordered = ordered_tree(kernel)
        if isinstance(kernel.statements[-1].accum, Sort):
            method_of(ordered)
        return ordered.tree()
    if on_blocks(kernel.tree):
        return (block_rows, block_tree, fused_blocks)[min(len(products_of(kernel)), 2)](kernel).tree()
    if products_of(kernel):
        products = products_tree(kernel)
        for number in products.rows:
            RowTree(products.stored_rows(number))
        return products.tree()
    RowTree(kernel)
    return kernel.tree


def _require_same_loops(scheduled: Kernel, tree: TileTree) -> None:
    known = {axis.name for each in scheduled.statements for axis in (*each.axes, *each.reduce)}
    values = [each.name for each in scheduled.statements]
    for _, node in walk(tree):
        names = factors(node).keys() if isinstance(node, Tile) else ()
        for name in names:
            if name not in known:
                raise InvalidTree(f"{name} is no loop of this kernel", help=f"one of {', '.join(sorted(known))}")
        if isinstance(node, Tile) and any(loop.factor is None for loop in node.loops):
            raise InvalidTree("a factor is open", help="a number for every loop")
    computed = [leaf.op for _, leaf in leaves(tree)]
    for name in computed:
        if name not in values or computed.count(name) > 1:
            raise InvalidTree(
                f"op {name} is no value of this kernel, or twice", help=f"each of {', '.join(values)} once"
            )
    needed = {each.name for each in scheduled.statements if each.accum is not None or each.address is not None}
    missing = needed - set(computed)
    if missing:
        raise InvalidTree(f"{', '.join(sorted(missing))} is not computed", help="a leaf for each")


def _require_same_kind(scheduled: Kernel, tree: TileTree) -> None:
    """A tree may have other tiles; what runs it, and which instruction multiplies which loops, is decided before."""
    if on_blocks(scheduled.tree) != on_blocks(tree):
        legal = "one at the grid, with the warps of a thread block" if on_blocks(scheduled.tree) else "none on a CPU"
        raise InvalidTree(f"the grid has {'a' if on_blocks(tree) else 'no'} hint warps", help=legal)
    wanted, found = ({each.mapping for each in kernels(each).values()} for each in (scheduled.tree, tree))
    if wanted != found:
        raise InvalidTree(f"its product has the mapping {_shown(found)}", help=f"{_shown(wanted)}, with any tile")


def _shown(mappings: Collection[object]) -> str:
    return " and ".join(map(str, mappings)) or "none"


# Products, before operands are packed for their tile ------------------------------------------------------------------


def _executed(leaf: Leaf, work: Product) -> MicroKernelRef:
    """The micro-kernel of a leaf that computes a product, with its mapping: by its name, if it has none yet."""
    mapping, found = work.mapping, leaf.kernel
    help = f"op {leaf.op} as {mapping.intrinsic}_ROWSxCOLUMNSxDEPTH"
    if found is None:
        raise InvalidTree(f"no intrinsic executes op {leaf.op}", help=help)
    if found.mapping is None:
        parts = _NAME.fullmatch(found.name)
        if parts is None or parts["record"] != mapping.intrinsic:
            raise InvalidTree(f"no intrinsic executes op {leaf.op} as {found.name}", help=help)
        rows, columns, depth = (int(parts[part]) for part in ("rows", "columns", "depth"))
        tile = {axis.name: rows for axis in work.rows[-1:]} | {work.columns.name: columns}
        found = micro_kernel(work, tile, {work.depth[-1].name: depth})
    if found.mapping != mapping:
        raise InvalidTree(f"op {leaf.op} has the mapping {found.mapping}", help=f"{mapping}, with any tile")
    _register_tile(work, {loop.name: loop.trips for loop in found.quantum}, ())
    return found


def _register_tile(work: Product, tile: Mapping[str, int], order: Sequence[str], k_blocks: int = 1) -> ProductPoint:
    """The point of a product with this register tile.

    Raises TooLarge for one that registers do not hold, InvalidTree for one that ends within a vector.
    """
    rows = tuple(tile.get(axis.name, 1) for axis in work.rows)
    columns = tile.get(work.columns.name, 1)
    vectors = -(-columns // work.lanes)
    if not any(prod(rows) <= height and vectors <= width for height, width in work.shapes):
        shapes = ", ".join(f"{height} rows by {width} vectors" for height, width in work.shapes)
        raise TooLarge(f"a register tile has {prod(rows)} rows by {vectors} vectors", help=f"at most {shapes}")
    point = ProductPoint(rows, vectors, tuple(order), k_blocks)
    whole = point.tile(work)[work.columns.name]
    if columns != whole:
        fact = f"a register tile has {columns} columns of {work.columns.name}, which has {work.columns.size}"
        raise InvalidTree(fact, help=f"{whole}, whole vectors of {work.lanes}")
    return point


def _micro_kernel(tree: TileTree) -> MicroKernelRef:
    found = list(kernels(tree).values())
    if len(found) != 1:
        fact = f"{len(found)} micro-kernels compute the product"
        raise InvalidTree(fact, help="one, at the leaf where the tree that the rules make has it")
    return found[0]


def point_of_tree(tree: TileTree, work: Product) -> tuple[ProductPoint, dict[str, int]]:
    """The point of a product that a tree of register tiles says, and its blocks, before operands are packed for it."""
    tile = {loop.name: loop.trips for loop in _micro_kernel(tree).quantum}
    program = program_of(tree)
    order = list(program.tiles)
    k_blocks = 1
    if isinstance(program.body, Stage):
        blocks = next((list(factors(each).items()) for each in tiles_at(program.body, "L2")), [])
        if blocks:
            (_, k_blocks), *inside = blocks
            order += [name for name, _ in inside]
    tiled = [axis.name for axis in (work.columns, *work.rows)]
    order = [name for name in order if name in tiled]
    if sorted(order) != sorted(tiled):
        along = ", ".join(order) or "no loop"
        raise InvalidTree(f"tiles have loops over {along}", help=f"{', '.join(tiled)} at L2, each once")
    return _register_tile(work, tile, order, k_blocks), program.grid


def depth_of_tree(tree: TileTree) -> tuple[str, ...]:
    """The depth loops of the product that a tree of register tiles runs."""
    mapping = _micro_kernel(tree).mapping
    return () if mapping is None else mapping.depth


def cut_of_tree(tree: TileTree, last: str, extent: int, group: int) -> int:
    """Points of the innermost depth loop in one of the blocks that it is cut in; 0 where it is whole."""
    product = _micro_kernel(tree)
    inside = f"{last}.1"
    if product.mapping is None or inside not in product.mapping.depth:
        return 0
    points = next((loop.trips for loop in product.quantum if loop.name == inside), 1)
    steps = [factors(node).get(inside, 1) for node in tiles_at(tree, "L1")]
    found = points * max(steps, default=1)
    if found >= extent or extent % found or found % group:
        raise InvalidTree(
            f"blocks of {found} points of {last}, which has {extent}",
            help=f"a divisor of {extent}" + (f" in groups of {group}" if group > 1 else ""),
        )
    return found
