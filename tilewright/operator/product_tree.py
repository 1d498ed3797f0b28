"""The tree of a product on register tiles of a CPU: its decisions as a value, written as a tree and read from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis
from tilewright.operator.depth_bounds import bounded_loops
from tilewright.tiles import build
from tilewright.tiles.build import in_program, register_tile, rooted
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.parts import (
    factors,
    hints_of,
    loops_named,
    number_of,
    program_of,
    register_tiles,
    require_form,
    tiles_at,
)
from tilewright.tiles.product import Product, micro_kernel, product_of
from tilewright.tiles.tree import (
    Hint,
    InvalidTree,
    Kind,
    Leaf,
    Scope,
    Stage,
    Tile,
    TileTree,
    ancestors,
    kernels,
    leaves,
)

LINES_OF_TILE = 8  # of the next rows that one tile asks for at most
LINES = (16, 32, 64, 128, 256)  # bytes of a line of some cache
MOST_GROUPS = 16  # of an instruction in one product, which is written out: the rules take 4 to 6


@dataclass(frozen=True)
class NextRows:
    """Rows of a for the next program where a sum walks across lines: for every point of it a run of the `row` loop.

    Runs are `step` elements apart, the first one from element `start` on. A program has `points` rows. A run lies in
    `lines` lines of `line` elements, and each tile asks for `share` lines.
    """

    row: Axis
    start: int
    step: int
    points: int
    lines: int
    line: int
    share: int


@dataclass(frozen=True)
class ProductTree:
    """A product with its loops.

    `outside` are the loops of tiles that a program walks, outermost first; with blocks of the depth, those of `inside`
    run in each block. `tile` has the points of a register tile, and how many of the last depth loop one product takes.
    `k_block` is the points of the first depth loop in a block, 0 for none; sums wait for the next block at
    `sums_level`. If `line_bytes` is not 0, a block asks for b of the next one by lines of so many bytes; without blocks
    the tiles of a panel ask for the next panel. If `row_line_bytes` is not 0, a tile of a block asks for the rows of a
    that the next tile reads (`next_tile`); without blocks the tiles of a program ask for those of the next program
    (`NextRows`). With `epilogue_vectors` the epilogue is a loop that reads the sums of a tile from scratch memory, so
    many vectors at a time; with 0 it is written out. With `skips_zeros` a tile runs only the steps of depth loops that
    `bounds_of_tiles` leaves it. A depth loop that is cut in blocks outside has so many points here as `within` says.
    """

    work: Product
    tile: Mapping[str, int]
    grid: tuple[SpatialLoop, ...]
    outside: tuple[SpatialLoop, ...]
    inside: tuple[SpatialLoop, ...] = ()
    k_block: int = 0
    line_bytes: int = 0
    row_line_bytes: int = 0
    sums_level: str = "L2"
    epilogue_vectors: int = 0
    skips_zeros: bool = False
    within: Mapping[str, int] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """Points of the last depth loop in one product."""
        return self.tile.get(self.work.depth[-1].name, 1)

    @property
    def whole_steps(self) -> int:
        """Whole steps of the last depth loop; points that are left over are a step of their own."""
        last, group = self.work.depth[-1].size, self.work.group
        return (-(-last // group) * group if self.work.whole_groups else last) // self.step

    @property
    def next_tile(self) -> SpatialLoop | None:
        """The loop along which tiles of a block ask for the next rows of a; None where there are none."""
        loop = next((each for each in reversed(self.inside) if each.quantum > 1), None)
        form = affine(self.work.a.index)
        if loop is None or form is None or not form.coefficient(loop.axis) or loop.tiles == 1:
            return None
        return loop

    def next_rows(self, line_bytes: int) -> NextRows | None:
        """What tiles ask for of the rows of the next program; None where rows are not runs, or tiles have few steps."""
        work, form = self.work, affine(self.work.a.index)
        if form is None or self.k_block or len(work.rows) != 1 or len(work.depth) != 1:
            return None
        (row,), (depth,), line = work.rows, work.depth, line_bytes // dtypes.size_bytes(work.a.tensor.dtype)
        loop = next(each for each in self.outside if each.axis == row)
        in_runs = form.terms == {row: 1, depth: form.coefficient(depth)} and form.coefficient(depth) >= line
        if not in_runs or loop.programs == 1:
            return None
        points, tiles = loop.tiles_per_block * loop.quantum, prod(each.tiles_per_block for each in self.outside)
        lines = -(-points // line) + 1  # a run begins anywhere in a line
        share = -(-lines * depth.size // tiles)
        found = NextRows(row, form.constant, form.coefficient(depth), points, lines, line, share)
        return found if share <= LINES_OF_TILE else None

    def tree(self) -> TileTree:
        """The grid around the tiles of a program around steps of the depth and the epilogue.

        With blocks of the depth what stands inside the columns runs twice, for sums and epilogue.
        """
        hints = [Hint("prefetch_lines", (self.line_bytes,))] if self.line_bytes else []
        hints += [Hint("prefetch_rows", (self.row_line_bytes,))] if self.row_line_bytes else []
        tree, after = self.sums(() if self.k_block else hints), self.epilogue()
        if not self.k_block:
            tree = Scope(Kind.SEQ, (tree, after)) if after is not None else tree
            return in_program(self.outside, self.grid, tree)
        inside = [(loop.axis.name, loop.tiles_per_block) for loop in self.inside]
        first = self.work.depth[0]
        blocks = first.name, -(-first.size // self.k_block)
        tree = rooted(build.tile("L2", [blocks, *inside], tree, hints=hints))
        if after is not None:
            tree = Scope(Kind.SEQ, (tree, rooted(build.tile("L2", inside, after))))
        return in_program(self.outside, self.grid, Stage(self.work.statements[0].name, self.sums_level, tree))

    def sums(self, hints: Sequence[Hint] = ()) -> TileTree:
        """The sums of one register tile: steps of the depth, of one block of it if there are blocks."""
        work = self.work
        first, last = work.depth[0].name, work.depth[-1].name
        steps = {axis.name: self.within.get(axis.name, axis.size) for axis in work.depth}
        steps[first] = self.k_block or steps[first]
        steps[last] = -(-steps[last] // self.step)
        leaf = Leaf(work.statements[0].name, micro_kernel(work, self.tile, {last: self.step}))
        hints = [*hints, Hint("skip_zeros")] if self.skips_zeros else hints
        return rooted(build.tile("L1", list(steps.items()), leaf, hints=hints))

    def epilogue(self, hints: tuple[Hint, ...] = ()) -> TileTree | None:
        """The epilogue of one register tile, if there is one."""
        work = self.work
        if not work.has_epilogue:
            return None
        rows = [(axis.name, self.tile.get(axis.name, 1)) for axis in work.rows]
        columns = work.columns.name, self.tile.get(work.columns.name, 1)
        leaf = Leaf(work.statements[1].name, hints=hints)
        return register_tile(rows, columns, work.lanes, leaf, self.epilogue_vectors)


def product_tree(kernel: Kernel) -> ProductTree:
    """The decisions of the tree of a kernel with a product. Raises InvalidTree for one that is not lowered."""
    work = product_of(kernel)
    assert work is not None, "a kernel with a product"
    (micro_kernel,) = kernels(kernel.tree).values()
    tile = {loop.name: loop.trips for loop in micro_kernel.quantum}
    program = program_of(kernel.tree)
    first, last = work.depth[0], work.depth[-1]
    inside: dict[str, int] = {}
    if isinstance(program.body, Stage):
        inside = next((factors(each) for each in tiles_at(program.body, "L2")), {})
        if next(iter(inside), "") != first.name:
            raise InvalidTree(
                f"the sums of {work.output.name} are staged, and no loop over blocks of {first.name} is inside",
                help=f"a tile at L2 whose outermost loop is {first.name}, around the tiles of rows",
            )
        del inside[first.name]
    steps = next((factors(each) for each in tiles_at(program.body, "L1")), {})
    k_block = steps.get(first.name, 1) * (tile.get(last.name, 1) if first == last else 1)
    lanes = {work.columns.name: work.lanes}
    found = ProductTree(
        work=work,
        tile=tile,
        grid=loops_named(program.grid, work.spatial, tile, program.grid, lanes),
        outside=loops_named(program.tiles, work.spatial, tile, program.grid, lanes),
        inside=loops_named(inside, work.spatial, tile, program.grid, lanes),
        k_block=k_block if isinstance(program.body, Stage) else 0,
        line_bytes=number_of(kernel.tree, "prefetch_lines", 0),
        row_line_bytes=number_of(kernel.tree, "prefetch_rows", 0),
        sums_level=program.body.level if isinstance(program.body, Stage) else "L2",
        epilogue_vectors=vectors_at_a_time(kernel.tree, work),
        skips_zeros=bool(hints_of(kernel.tree, "skip_zeros")),
    )
    _require_all(found)
    require_form(kernel.tree, found.tree())
    return found


def vectors_at_a_time(tree: TileTree, work: Product) -> int:
    """Vectors in one step of an epilogue that is a loop over data in L1; 0 where it is written out."""
    last = work.statements[-1].name
    places = (path for path, leaf in leaves(tree) if leaf.op == last)
    around = [node for path in places for _, node in ancestors(tree, path)]
    if not work.has_epilogue or not any(isinstance(node, Tile) and node.level == "L1" for node in around):
        return 0
    step = next(tile for leaf, tile in register_tiles(tree) if leaf.op == last)
    return max(1, step.along(work.columns.name) // work.lanes)


def _require_all(tree: ProductTree) -> None:
    """Raises InvalidTree where a loop of the result is missing or twice, or a product takes a part of a group."""
    work = tree.work
    tiled = [loop.axis for loop in (*tree.outside, *tree.inside)]
    if sorted(axis.name for axis in tiled) != sorted(axis.name for axis in work.spatial):
        names = ", ".join(axis.name for axis in tiled) or "no loop"
        wanted = ", ".join(axis.name for axis in work.spatial)
        raise InvalidTree(f"tiles of {work.output.name} have loops over {names}", help=f"{wanted} at L2, each once")
    if tree.k_block and {loop.axis for loop in tree.inside} != set(work.rows):
        names = ", ".join(loop.axis.name for loop in tree.inside) or "no loop"
        rows = ", ".join(axis.name for axis in work.rows)
        raise InvalidTree(f"a block of {work.depth[0].name} walks {names}", help=f"tiles of {rows} inside it")
    require_steps(tree)
    _require_lines(tree)
    if tree.skips_zeros and not bounded_loops(work, tree.tile):
        fact = f"skip_zeros: no step of the sums of {work.output.name} adds zeros to a whole tile"
        raise InvalidTree(fact, help="leave the hint out")


def _require_lines(tree: ProductTree) -> None:
    """Raises InvalidTree for hints with lines that no cache has, and for rows that nothing asks for."""
    for hint, line_bytes in (("prefetch_lines", tree.line_bytes), ("prefetch_rows", tree.row_line_bytes)):
        if line_bytes and line_bytes not in LINES:
            raise InvalidTree(f"{hint} has lines of {line_bytes} bytes", help=", ".join(map(str, LINES)))
    if tree.row_line_bytes and tree.next_tile is None and tree.next_rows(tree.row_line_bytes) is None:
        of = "tiles" if tree.k_block else "programs"
        fact = f"prefetch_rows: {of} of {tree.work.output.name} have no next rows that tiles could ask for"
        raise InvalidTree(fact, help="leave the hint out")


def require_steps(tree: ProductTree) -> None:
    """Raises InvalidTree where one product takes a part of a group, or more than is written out.

    So it does where a step of the epilogue has vectors that are no part of a row of the register tile.
    """
    work = tree.work
    vectors, at_a_time = max(1, tree.tile.get(work.columns.name, 1) // work.lanes), tree.epilogue_vectors
    if at_a_time and vectors % at_a_time:
        raise InvalidTree(
            f"a step of the epilogue has {at_a_time} of {vectors} vectors of a row",
            help="a number of vectors that divides those of a row",
        )
    last, most = work.depth[-1], MOST_GROUPS * work.group
    if tree.step % work.group or tree.step > min(most, -(-last.size // work.group) * work.group):
        groups = f", in groups of {work.group}" if work.group > 1 else ""
        raise InvalidTree(
            f"one product takes {tree.step} points of {last.name}, which has {last.size}{groups}",
            help=f"at most {most}, whole groups, in the quantum of the micro-kernel",
        )
