"""What the tree of a kernel of rows says, node by node: loops of the grid and of a program, row buffers, passes.

    @DRAM par LOOP:PROGRAMS { @L2 for LOOP:TILES { stage BUFFER in L1 { passes } } }

The passes are one, or several that run in turn in a `seq` scope, or the stages of a `pipe` scope. Each walks inner
loops at L1 around a register tile. Passes may differ in the vector along an inner loop. What has no code is refused
here, so that the rest of the lowering may rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis
from tilewright.operator.passes import follows, passes_of, rows_in_use
from tilewright.operator.statements import covering, inner_loops
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.parts import RegisterTile, factors, program_of, register_tiles, spatial_loop
from tilewright.tiles.tree import Binding, Hint, InvalidTree, Kind, Leaf, Node, Scope, Stage, Tile, walk

MOST_POINTS = 64  # of inner loops in one step, whose code is written out; the rules take 8


@dataclass(frozen=True)
class Pass:
    """One pass: inner loops, outermost first, and what one step computes of the statement, of the row buffers and
    stored values that the pass fills, and of the sums that follow the statement.

    `unrolled` are inner loops of which a step has all points. `asked` are its hints about what to prefetch.
    """

    statement: Statement
    followers: tuple[Statement, ...]
    fills: tuple[str, ...]
    loops: tuple[Axis, ...]
    unrolled: tuple[Axis, ...]
    tile: RegisterTile
    streams: bool
    asked: tuple[Hint, ...]

    @property
    def names(self) -> list[str]:
        """All that a step computes, in order."""
        return [*self.fills, self.statement.name, *(each.name for each in self.followers)]

    @property
    def vector(self) -> Axis | None:
        """The inner loop that vectors run along; None where they run along an outer loop, or nothing is a vector."""
        return next((axis for axis in self.loops if axis.name == self.tile.vector), None)

    @property
    def step_points(self) -> int:
        """Points of `vector` in one step, 1 where there is none."""
        return 1 if self.vector is None else self.tile.along(self.tile.vector)


class RowTree:
    """The nodes of the tree of a kernel by what is made of them. Raises InvalidTree for a tree without code."""

    def __init__(self, kernel: Kernel) -> None:
        self.statements = {each.name: each for each in kernel.statements}
        self.inner = inner_loops(kernel.statements)
        self.covering = covering(kernel.statements)
        program = program_of(kernel.tree)
        programs, tiles, node = program.grid, program.tiles, program.body
        self.buffers: dict[str, int] = {}  # with the rows that have a buffer of their own at once
        while isinstance(node, Stage):
            self.buffers[node.tensor] = node.slots
            node = node.child
        self._check_buffers()
        self.pipelined = isinstance(node, Scope) and node.kind is Kind.PIPE
        children = node.children if self.pipelined and isinstance(node, Scope) else (node,)
        self.stages = [[self._pass(each) for each in _in_turn(child)] for child in children]
        self.passes = [each for stage in self.stages for each in stage]
        self._check_passes()
        self.tile = self._outer_tile()
        spatial = self._spatial(programs, tiles)
        self.loops = [spatial[name] for name in tiles]
        self.grid = [spatial[name] for name in programs]
        if self.pipelined:
            self._check_pipeline()

    @property
    def slots(self) -> int:
        """Rows that have row buffers of their own at once."""
        return max(self.buffers.values(), default=1)

    @property
    def filled(self) -> tuple[str, ...]:
        """Stored values that the pass of another statement, which reads them, computes."""
        fills = [name for each in self.passes for name in each.fills]
        return tuple(name for name in fills if self.statements[name].address is not None)

    @property
    def vector_last(self) -> bool:
        """Whether the loop of the vectors is the last of the outer loops that have points in a register tile."""
        names = [loop.axis.name for loop in self.loops if loop.quantum > 1]
        return self.tile.vector not in names[:-1]

    # Passes ---------------------------------------------------------------------------------------------------------

    def _pass(self, node: Node) -> Pass:
        walks = isinstance(node, Tile) and (node.level, node.binding) == ("L1", Binding.TP)
        steps, below = (factors(node), node.child) if isinstance(node, Tile) and walks else ({}, node)
        bodies = list(register_tiles(below))
        leaf, tile = bodies[-1]
        where = f"tile tree, pass of {leaf.op}"
        if not all(map(_in_step, (inside for _, inside in walk(below)))):
            raise InvalidTree("a step has other nodes", where=where, help="unroll and par at REG, seq, op")
        for each, other in bodies:
            if each.op not in self.statements:
                raise InvalidTree(f"there is no statement {each.op}", where=where, help=", ".join(self.statements))
            if other != tile:
                fact = f"{each.op} has the register tile {_text(other)}, {leaf.op} has {_text(tile)}"
                raise InvalidTree(fact, where=where, help="one register tile for all leaves of a pass")
        values = [self.statements[each.op] for each, _ in bodies]
        main = len(values) - 1
        while main and any(follows(values[main], each) for each in values[:main]):
            main -= 1
        axes = {axis.name: axis for axis in self.inner}
        hints = [hint for each, _ in bodies[main:] for hint in each.hints]
        found = Pass(
            values[main],
            tuple(values[main + 1 :]),
            tuple(each.name for each in values[:main]),
            tuple(axes[name] for name in steps if name in axes),
            tuple(axes[name] for name, _ in tile.points if name in axes and name != tile.vector),
            tile,
            any(hint.name == "stream" for hint in hints),
            tuple(hint for hint in hints if hint.name == "prefetch"),
        )
        self._check_loops(found, steps, where)
        return found

    def _check_loops(self, each: Pass, steps: Mapping[str, int], where: str) -> None:
        sweeps = each.statement.accum is not None or each.statement.name in self.covering
        wanted = {axis.name: axis.size for axis in self.inner if sweeps}
        if each.vector is not None and sweeps:
            wanted[each.vector.name] = -(-wanted.pop(each.vector.name) // each.step_points)
        for axis in each.unrolled:
            wanted.pop(axis.name, None)
        expected = {name: max(1, trips) for name, trips in wanted.items()}
        last = "" if each.vector is None else each.vector.name
        if dict(steps) != expected or (last and list(steps)[-1] != last):
            fact = f"loops at L1 are {_loops_text(steps) or 'none'} around {_text(each.tile)}"
            help = _loops_text(expected) or "no loop at L1"
            raise InvalidTree(fact, where=where, help=f"{help}, the vector's loop {last} innermost" if last else help)
        self._check_unrolled(each, sweeps, where)

    def _check_unrolled(self, each: Pass, sweeps: bool, where: str) -> None:
        """Raises InvalidTree where a step has a part of an inner loop, or more points than are written out."""
        points = {axis.name: each.tile.along(axis.name) for axis in each.unrolled}
        parts = [axis for axis in each.unrolled if points[axis.name] != axis.size]
        fact = f"a step has {_loops_text(points)}"
        if each.unrolled and (parts or each.vector is not None or not sweeps):
            help = "all points of an inner loop in a step, or one, or a vector along the only inner loop"
            raise InvalidTree(fact, where=where, help=help)
        if prod(points.values()) > MOST_POINTS:
            help = f"at most {MOST_POINTS} points of inner loops in a step, others at L1"
            raise InvalidTree(fact, where=where, help=help)

    def _check_buffers(self) -> None:
        for name in self.buffers:
            if name not in self.covering or self.statements[name].address is not None:
                fact = f"{name} has no value for every inner point, or is stored"
                raise InvalidTree(fact, where=f"tile tree, stage of {name}", help=_listed(self.covering))
        if len(set(self.buffers.values())) > 1:
            fact = f"stages have {', '.join(map(str, self.buffers.values()))} slots"
            raise InvalidTree(fact, where="tile tree", help="one number of slots for all")

    def _check_passes(self) -> None:
        steps, joined = [each.names for each in self.passes], [n.name for each in self.passes for n in each.followers]
        expected = passes_of([*self.statements.values()], (*self.buffers, *self.filled), joined)
        if steps != [[each.name for each in step] for step in expected]:
            fact = f"the passes are {_passes_text(steps)}"
            legal = passes_of([*self.statements.values()], self.buffers)
            raise InvalidTree(fact, where="tile tree", help=_passes_text([[each.name for each in p] for p in legal]))
        for each in self.passes:
            if each.followers and (len(self.inner) > 1 or each.vector is None):
                fact = f"{', '.join(each.names)} have {_text(each.tile)}"
                raise InvalidTree(fact, where="tile tree", help="one vector along the only inner loop")

    # Outer loops ----------------------------------------------------------------------------------------------------

    def _outer_tile(self) -> RegisterTile:
        """The points of outer loops in a register tile, which all passes share."""
        inner = {axis.name for axis in self.inner}
        found: dict[RegisterTile, Pass] = {}
        for each in self.passes:
            points = tuple((name, count) for name, count in each.tile.points if name not in inner)
            outside = each.vector is None
            here = RegisterTile(points, each.tile.vector, each.tile.lanes) if outside else RegisterTile(points)
            found.setdefault(here, each)
            if points and not outside:
                fact = f"a vector along {each.tile.vector} beside {_loops_text(dict(points))}"
                raise InvalidTree(fact, where=f"tile tree, pass of {each.statement.name}", help="one of them")
        if len(found) > 1:
            tiles = ", ".join(f"{_text(here)} in the pass of {each.statement.name}" for here, each in found.items())
            raise InvalidTree(f"outer loops have {tiles}", where="tile tree", help="one tile for all passes")
        return next(iter(found))

    def _spatial(self, programs: Mapping[str, int], tiles: Mapping[str, int]) -> dict[str, SpatialLoop]:
        """The outer loops by name; programs and tiles must agree with the points of a tile."""
        axes = {axis.name: axis for each in self.statements.values() for axis in each.axes if axis not in self.inner}
        if set(axes) != set(tiles) or not set(programs) <= set(tiles):
            fact = f"loops outside the passes are {_listed(tiles)}, of the grid {_listed(programs)}"
            raise InvalidTree(fact, where="tile tree", help=f"{_listed(axes)} at L2")
        found = {}
        for name, count in tiles.items():
            lanes = self.tile.lanes if name == self.tile.vector else 0
            found[name] = spatial_loop(axes[name], self.tile.along(name), programs.get(name, 1), count, lanes)
        tiled = [name for name, loop in found.items() if loop.quantum > 1]
        if len(tiled) > 2 and self.tile.vector in tiled[:-1]:
            fact = f"a register tile has points of {', '.join(tiled)}"
            raise InvalidTree(fact, where="tile tree", help=f"{self.tile.vector} as the last of them at L2")
        return found

    def _check_pipeline(self) -> None:
        """A pipeline has one outer and one inner loop; its stages share a sweep and follow from one another."""
        firsts = [stage[0] for stage in self.stages]
        *sums, last = (each.statement for each in firsts)
        wrong = ""
        if len(self.loops) != 1 or len(self.inner) != 1 or len(self.stages) < 2:
            wrong = f"{len(self.loops)} outer loops, {len(self.inner)} inner loops, {len(self.stages)} stages"
        elif len({(each.tile, each.loops) for each in firsts}) > 1 or firsts[0].vector is None:
            wrong = f"stages begin with {', '.join(_text(each.tile) for each in firsts)}"
        elif any(each.accum is None for each in sums) or last.accum is not None or last.name not in self.covering:
            wrong = f"stages begin with {', '.join(each.statement.name for each in firsts)}"
        elif any(each.address is not None for each in self.statements.values() if each is not last):
            wrong = "another statement than the last one is stored"
        elif self.passes[-1] is not firsts[-1] or any(each.followers for each in self.passes):
            wrong = f"the last stage has {len(self.stages[-1])} passes, or two passes are one"
        if wrong:
            help = "sums and then the only result, over one inner loop with one vector"
            raise InvalidTree(wrong, where="tile tree, pipe", help=help)
        groups = [[[self.statements[name] for name in each.names] for each in stage] for stage in self.stages]
        rows = rows_in_use(groups, [*self.statements.values()])
        if self.buffers and self.slots < rows:
            raise InvalidTree(f"{rows} rows share {self.slots} slots", where="tile tree, pipe", help=f"slots {rows}")


def _in_step(node: Node) -> bool:
    """Whether a node may stand in one step of a pass."""
    if isinstance(node, Tile):
        once = all(loop.trips == 1 for loop in node.loops)
        return node.level == "REG" and (once or node.binding is not Binding.TP)
    return isinstance(node, Leaf) or (isinstance(node, Scope) and node.kind is Kind.SEQ)


def _in_turn(node: Node) -> Sequence[Node]:
    """The passes of a stage."""
    return node.children if isinstance(node, Scope) and node.kind is Kind.SEQ else (node,)


def _text(tile: RegisterTile) -> str:
    points = _loops_text(dict(tile.points)) or "one point"
    return f"{points}, lanes of {tile.vector} {tile.lanes}" if tile.vector else points


def _loops_text(loops: Mapping[str, int]) -> str:
    return ", ".join(f"{name}:{count}" for name, count in loops.items())


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "none"


def _passes_text(passes: Sequence[Sequence[str]]) -> str:
    return "; ".join(" then ".join(names) for names in passes)
