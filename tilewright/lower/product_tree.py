"""What the tree of a product on register tiles says, node by node."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.dataclass import dataclass
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.parts import Program, factors, program_of, spatial_loop
from tilewright.tiles.product import Product, product_of
from tilewright.tiles.tree import Binding, InvalidTree, Leaf, Node, Scope, Stage, Tile, kernels


@dataclass(frozen=True)
class ProductTree:
    """A product with its loops.

    `outside` are the loops of tiles that a program walks, outermost first; with blocks of the depth, those of `inside`
    run in each block. `tile` has the points of a register tile, and how many of the last depth loop one product takes.
    `k_block` is the points of the first depth loop in a block, 0 for none; a block asks for the operands of the next
    one by lines of `line_bytes`, if that is not 0. With `epilogue_loop` the epilogue reads the sums of a tile from
    scratch memory, one vector after the other.
    """

    work: Product
    tile: Mapping[str, int]
    grid: tuple[SpatialLoop, ...]
    outside: tuple[SpatialLoop, ...]
    inside: tuple[SpatialLoop, ...] = ()
    k_block: int = 0
    line_bytes: int = 0
    epilogue_loop: bool = False

    @property
    def step(self) -> int:
        """Points of the last depth loop in one product."""
        return self.tile[self.work.depth[-1].name]


def product_tree(kernel: Kernel) -> ProductTree:
    """The parts of the tree of a kernel with a product. Raises InvalidTree for one that is not lowered."""
    work = product_of(kernel)
    assert work is not None, "a kernel with a product"
    (micro_kernel,) = kernels(kernel.tree).values()
    tile = {loop.name: loop.trips for loop in micro_kernel.quantum}
    program = program_of(kernel.tree)
    blocked = isinstance(program.body, Stage)
    body = program.body.child if isinstance(program.body, Stage) else program.body
    children: tuple[Node, ...] = body.children if isinstance(body, Scope) else (body,)
    sums, *after = children
    inside: dict[str, int] = {}
    blocks, line_bytes = 1, 0
    if blocked:
        sums, inside, blocks, line_bytes = _blocks_of_depth(work, sums)
        after = [_inside(each, inside) for each in after]
    k_block = _depth(work, tile, sums, blocks)
    _require_all(work, program, inside)
    return ProductTree(
        work=work,
        tile=tile,
        grid=_loops(work, tile, program.grid, program, inside),
        outside=_loops(work, tile, program.tiles, program, inside),
        inside=_loops(work, tile, inside, program, inside),
        k_block=k_block if blocked else 0,
        line_bytes=line_bytes,
        epilogue_loop=any(_is_loop(work, tile, each) for each in after),
    )


def _loops(
    work: Product, tile: Mapping[str, int], wanted: Mapping[str, int], program: Program, inside: Mapping[str, int]
) -> tuple[SpatialLoop, ...]:
    """The loops of these names, in their order."""
    axes, walked = {axis.name: axis for axis in work.spatial}, {**program.tiles, **inside}
    found = []
    for name in wanted:
        lanes = work.lanes if name == work.columns.name else 0
        found.append(spatial_loop(axes[name], tile.get(name, 1), program.grid.get(name, 1), walked[name], lanes))
    return tuple(found)


def _require_all(work: Product, program: Program, inside: Mapping[str, int]) -> None:
    """Raises InvalidTree where tiles are walked along other loops than those of the result."""
    walked, known = {*program.tiles, *inside}, {axis.name for axis in work.spatial}
    for name in sorted(walked ^ known | program.grid.keys() - known):
        fact = "is no loop of the result" if name not in known else "has no tiles"
        raise InvalidTree(f"{name} {fact} of {work.output.name}", help=f"tiles at L2 of {', '.join(sorted(known))}")


def _blocks_of_depth(work: Product, sums: Node) -> tuple[Node, dict[str, int], int, int]:
    """What stands in a block of the depth, its tiles of rows, how many blocks there are, and the lines they ask for."""
    first = work.depth[0].name
    if not isinstance(sums, Tile) or sums.level != "L2" or next(iter(factors(sums)), "") != first:
        raise InvalidTree(
            f"the sums of {work.output.name} are staged, and no loop over blocks of {first} is inside",
            help=f"a tile at L2 whose outermost loop is {first}, around the tiles of rows",
        )
    inside = factors(sums)
    blocks = inside.pop(first)
    hints = [hint for hint in sums.hints if hint.name == "prefetch_lines"]
    return sums.child, inside, blocks, int(hints[0].arguments[0]) if hints else 0


def _inside(epilogue: Node, inside: Mapping[str, int]) -> Node:
    """What the epilogue of a staged sum does at one tile."""
    if not inside:
        return epilogue
    if not isinstance(epilogue, Tile) or epilogue.level != "L2" or factors(epilogue) != inside:
        raise InvalidTree(
            "the epilogue walks other tiles than the sums", help="the same loops at L2, in the same order"
        )
    return epilogue.child


def _depth(work: Product, tile: Mapping[str, int], sums: Node, blocks: int) -> int:
    """Points of the first depth loop in one of so many blocks."""
    steps = factors(sums) if isinstance(sums, Tile) and sums.level == "L1" else {}
    size = {axis.name: axis.size for axis in work.depth}
    first, last = work.depth[0].name, work.depth[-1].name
    k_block = steps.get(first, 1) * (tile[last] if first == last else 1)
    if blocks > 1:
        size[first] = k_block
    wanted = {**size, last: -(-size[last] // tile[last])}
    right = blocks == -(-work.depth[0].size // max(1, k_block)) if blocks > 1 else True
    if not right or {**dict.fromkeys(size, 1), **steps} != {name: max(1, count) for name, count in wanted.items()}:
        shown = ", ".join(f"{name}:{count}" for name, count in steps.items()) or "none"
        raise InvalidTree(
            f"{blocks} blocks of the steps {shown} do not walk the sums of {work.output.name}",
            help="steps at L1: " + ", ".join(f"{name}:{count}" for name, count in wanted.items()),
        )
    return k_block


def _is_loop(work: Product, tile: Mapping[str, int], epilogue: Node) -> bool:
    """Whether the vectors of an epilogue are a loop over data in L1, and not written out."""
    points: dict[str, int] = {}
    node = epilogue
    loop = isinstance(epilogue, Tile) and epilogue.level == "L1" and epilogue.binding is Binding.TP
    while isinstance(node, Tile):
        for name, factor in factors(node).items():
            points[name] = points.get(name, 1) * factor
        node = node.child
    wanted = {axis.name: tile.get(axis.name, 1) for axis in (*work.rows, work.columns)}
    if not isinstance(node, Leaf) or {**dict.fromkeys(wanted, 1), **points} != wanted:
        raise InvalidTree(
            f"the epilogue of {work.output.name} runs on other tiles than its sums",
            help="tiles of " + ", ".join(f"{name}:{count}" for name, count in wanted.items()),
        )
    return loop
