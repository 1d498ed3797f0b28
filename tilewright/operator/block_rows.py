"""The tree of a kernel of rows on blocks of a GPU: its decisions as a value, written as a tree and read from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Axis
from tilewright.layouts.bits import is_power_of_two
from tilewright.layouts.blocked import Blocked
from tilewright.operator.passes import follows, values_read, walks_inner
from tilewright.operator.statements import covering, inner_loops
from tilewright.tiles.build import in_blocks, rooted, tile
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.parts import factors, hints_of, numbers_of, program_of, require_form, tiles_at
from tilewright.tiles.tree import Binding, Hint, InvalidTree, Kind, Leaf, Scope, Tile, TileTree, leaves

MOST_ELEMENTS = 256  # of a thread: its registers
MOST_UNROLLED = 64  # trips that are written out


@dataclass(frozen=True)
class BlockRows:
    """Statements with the tile of a block: `points` of the loops that are its dimensions, outer loops first.

    `order` has the loops of the grid, the slowest first, and `passes` the values of each pass. Inner loops that do not
    lie in the tile whole are walked in chunks, those of `looped` around those of `unrolled`, which are written out.
    `threads` says which thread holds which element, None for a tile of one.
    """

    statements: tuple[Statement, ...]
    order: tuple[str, ...]
    points: Mapping[str, int]
    passes: tuple[tuple[str, ...], ...]
    warps: int
    threads: Blocked | None = None
    looped: tuple[str, ...] = ()
    unrolled: tuple[str, ...] = ()

    @property
    def axes(self) -> dict[str, Axis]:
        """All loops by their names."""
        return {axis.name: axis for each in self.statements for axis in (*each.axes, *each.reduce)}

    @property
    def grid(self) -> list[SpatialLoop]:
        """The outer loops, the slowest first; each tile is a block of its own."""
        return [self._tiled(name) for name in self.order]

    @property
    def chunks(self) -> dict[str, int]:
        """How many chunks there are of the inner loops that do not lie in the tile whole, outermost first."""
        return {name: self._tiled(name).tiles for name in (*self.looped, *self.unrolled)}

    def _tiled(self, name: str) -> SpatialLoop:
        axis, points = self.axes[name], self.points.get(name, 1)
        return SpatialLoop(axis, points, -(-axis.size // points), points)

    def tree(self) -> TileTree:
        """Blocks of the grid around passes; each walks the chunks of the inner loops."""
        passes = [self._pass(names) for names in self.passes]
        one = len(passes) == 1 and not isinstance(passes[0], Scope)
        hints = [Hint("warps", (self.warps, 1))]
        hints += [Hint("blocked", (str(self.threads),))] if self.threads is not None else []
        return in_blocks(self.grid, passes[0] if one else Scope(Kind.SEQ, tuple(passes)), hints)

    def _pass(self, names: Sequence[str]) -> TileTree:
        """One pass: its values, an element of the tile per thread in turn, in the loops over chunks of inner loops."""
        inner = {axis.name for axis in inner_loops(self.statements)}
        walks = any(walks_inner(each, self.statements) for each in self.statements if each.name in names)
        dims = [(name, size) for name, size in self.points.items() if walks or name not in inner]
        bodies: list[TileTree] = []
        for name in names:
            bodies.append(rooted(tile("REG", dims, Leaf(name), Binding.SP)))
        body = Scope(Kind.SEQ, tuple(bodies)) if len(bodies) > 1 else bodies[0]
        if not walks:
            return body
        chunks = self.chunks
        written = tile("L1", [(name, chunks[name]) for name in self.unrolled], body, Binding.UNROLL)
        return rooted(tile("L1", [(name, chunks[name]) for name in self.looped], rooted(written)))


def block_rows(kernel: Kernel) -> BlockRows:
    """The decisions of the tree of a kernel of rows. Raises InvalidTree for one that is not lowered."""
    tree, statements = kernel.tree, kernel.statements
    inside = tree.child if isinstance(tree, Tile) else tree
    passes = inside.children if isinstance(inside, Scope) and inside.kind is Kind.SEQ else (inside,)
    points: dict[str, int] = {}
    for each in tiles_at(tree, "REG"):
        if each.binding is Binding.SP:
            points = {**factors(each), **points}
    points = _outer_first(points, statements)
    chunks = {name: each.binding for each in tiles_at(tree, "L1") for name in factors(each)}
    inner = {axis.name: axis for axis in inner_loops(statements)}
    cut = [
        name for name in dict.fromkeys((*chunks, *inner)) if name in inner and points.get(name, 1) < inner[name].size
    ]
    unrolled = tuple(name for name in cut if chunks.get(name) is Binding.UNROLL)
    warps = numbers_of(tree, "warps")
    found = BlockRows(
        statements=statements,
        order=tuple(program_of(tree).grid),
        points=points,
        passes=tuple(tuple(leaf.op for _, leaf in leaves(each)) for each in passes),
        warps=warps[0] if warps else 1,
        threads=_threads(tree),
        looped=tuple(name for name in cut if name not in unrolled),
        unrolled=unrolled,
    )
    _require_loops(found, inner)
    require_form(tree, found.tree())
    _require_tile(found)
    _require_passes(found)
    return found


def _outer_first(points: Mapping[str, int], statements: Sequence[Statement]) -> dict[str, int]:
    """Dimensions of a tile in their order, those of outer loops before others."""
    inner = {axis.name for axis in inner_loops(statements)}
    return {name: points[name] for name in sorted(points, key=inner.__contains__)}


def _threads(tree: TileTree) -> Blocked | None:
    """Which thread holds which element of the tile; None where the tile is one element."""
    from tilewright.layouts.text import parse  # what CPUs do without

    hints = hints_of(tree, "blocked")
    if not hints:
        return None
    try:
        layout = parse(str(hints[0][1].arguments[0]))
    except InvalidArgument as error:
        raise InvalidTree(f"{error.where}: {error.message}", where="tile tree", help="a #blocked layout") from None
    if not isinstance(layout, Blocked):
        raise InvalidTree(f"the threads of a block have the layout {layout}", help="a #blocked layout")
    return layout


def _require_loops(rows: BlockRows, inner: Mapping[str, Axis]) -> None:
    """Raises InvalidTree where the grid does not have the outer loops, or a tile has a loop of no statement."""
    outer = [name for name in rows.axes if name not in inner]
    if sorted(rows.order) != sorted(outer):
        found = ", ".join(rows.order) or "none"
        raise InvalidTree(f"loops of the grid are {found}", help=f"{', '.join(outer) or 'once'}, each once")
    for name in rows.points:
        if name not in rows.axes:
            raise InvalidTree(f"{name} at REG is no loop of this kernel", help=f"one of {', '.join(rows.axes)}")


def _require_tile(rows: BlockRows) -> None:
    """Raises InvalidTree for a tile that the threads of a block do not hold."""
    where, elements, threads = "tile tree, tile of a block", prod(rows.points.values()), rows.threads
    shown = " x ".join(f"{points} of {name}" for name, points in rows.points.items()) or "1 point"
    if threads is None:
        if elements > 1:
            help = "a #blocked layout, which says who holds what"
            raise InvalidTree(f"a tile of {shown} has no hint blocked", where=where, help=help)
        return
    if threads.rank != len(rows.points) or prod(threads.warps) != rows.warps:
        fact = f"{threads} is a layout of {threads.rank} dimensions and {prod(threads.warps)} warps"
        raise InvalidTree(fact, where=where, help=f"{len(rows.points)} dimensions, {rows.warps} warps")
    odd = [name for name, points in rows.points.items() if not is_power_of_two(points)]
    if odd:
        raise InvalidTree(f"a tile of {shown}", where=where, help=f"powers of two of {', '.join(odd)}")
    most = MOST_ELEMENTS * prod(threads.threads_per_warp) * rows.warps
    if elements > most:
        fact = f"a tile of {shown} on {rows.warps} warps"
        raise InvalidTree(fact, where=where, help=f"at most {most} points, {MOST_ELEMENTS} of a thread")
    trips = prod(rows.chunks[name] for name in rows.unrolled)
    thick = [name for name in rows.unrolled if rows.points.get(name, 1) > 1]
    if thick or trips > MOST_UNROLLED:
        fact = f"{', '.join(rows.unrolled)} unrolled at L1, {trips} trips"
        raise InvalidTree(
            fact, where=where, help=f"at most {MOST_UNROLLED} trips, of loops outside the tile; others for"
        )


def _require_passes(rows: BlockRows) -> None:
    """Raises InvalidTree where values share a pass that are not sums, or need each other without following."""
    where, statements = "tile tree, passes", {each.name: each for each in rows.statements}
    covers = covering(rows.statements)
    inlined = {name: each for name, each in covers.items() if not any(name in names for names in rows.passes)}
    for name, each in statements.items():
        if not any(name in names for names in rows.passes) and (name not in covers or each.address is not None):
            raise InvalidTree(f"no pass computes {name}", where=where, help=f"a leaf with op {name}")
    for names in rows.passes:
        following = _following([statements[name] for name in names]) if rows.chunks else set()
        for name in names:
            needed = set() if name in following else _needed(statements[name], inlined) & set(names)
            if len(names) > 1 and (statements[name].accum is None or needed):
                fact = f"{', '.join(names)} share a pass"
                raise InvalidTree(fact, where=where, help=f"a pass of its own for {name}")
            if name in covers and statements[name].address is None and statements[name].accum is None:
                raise InvalidTree(f"{name} is not stored and has a leaf", where=where, help="no leaf: it is inlined")


def _following(nodes: Sequence[Statement]) -> set[str]:
    """The sums of a pass that follow its first reduction; none where others share the pass."""
    first, *others = nodes
    return {each.name for each in others} if all(follows(each, first) for each in others) else set()


def _needed(statement: Statement, inlined: Mapping[str, Statement]) -> set[str]:
    """What a value is computed from behind the pass of that."""
    behind = {statement.follows.reduction} if statement.follows is not None else set()
    return values_read(statement.body, inlined) | behind
