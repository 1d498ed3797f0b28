"""Spatial loops of a kernel: split into tiles, tiles distributed to the programs of a grid, ragged ends as a separate
last tile.

Every loop ``x`` becomes ``x = quantum * x.t + x.i``: `x.t` counts tiles and is a loop, `x.i` is a dimension of the tile
(absent for quantum 1). A program runs a consecutive block of tiles; the last block also runs the ragged tile, if
there is one. Blocks may be loops of a program too, around several nests that share them: then ``x.b`` counts blocks,
and `x.t` counts tiles within one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis, Expr
from tilewright.kernel import dialect as tile
from tilewright.lower.builder import KernelBuilder
from tilewright.tiles.loops import SpatialLoop, within


@dataclass(frozen=True, slots=True, repr=False)
class TileAxis(Axis):
    """A loop or a dimension of a tile that lowering makes: no loop of the graph is equal to it, whatever its name."""


@dataclass(frozen=True)
class Block:
    """One block of a loop: `loop` has its points as the quantum, `counter` stands for `number` in expressions.

    With `end`, only the points of the loop below it are walked: whole steps of every nest in the block, or all points.
    """

    loop: SpatialLoop
    counter: TileAxis
    number: SSAValue
    end: SSAValue | None = None

    @property
    def begin(self) -> Expr:
        """The first point of the loop in this block."""
        return self.counter * self.loop.quantum

    def places(self, inside: Expr) -> dict[Axis, Expr]:
        """The loop, and its place within the block, which is `inside`."""
        return {self.loop.axis: self.begin + inside, within(self.loop.axis, self.loop.quantum): inside}

    def steps(self, builder: KernelBuilder, quantum: int) -> SSAValue:
        """How many whole steps of so many points there are in this block."""
        most = builder.index(self.loop.quantum // quantum)
        if self.end is not None:
            whole = builder.insert(arith.DivUIOp(self.end, builder.index(quantum)))
        elif self.loop.rest:
            whole = builder.index(self.loop.extent // quantum)
        else:
            return most
        passed = builder.mul(self.number, most)
        return builder.insert(arith.MinSIOp(builder.insert(arith.SubiOp(whole, passed)), most))

    def has_rest(self, builder: KernelBuilder) -> SSAValue:
        """Whether this is the last block of its loop, walked to the end: the points that fill no step are in it."""
        last = builder.insert(tile.CompareOp("eq", self.number, builder.index(self.loop.tiles - 1)))
        if self.end is None:
            return last
        whole = builder.insert(tile.CompareOp("eq", self.end, builder.index(self.loop.extent)))
        return builder.insert(arith.AndIOp(last, whole))

    def rest(self, quantum: int) -> int:
        """Where the points that fill no step begin, within the last block."""
        return self.loop.extent // quantum * quantum - (self.loop.tiles - 1) * self.loop.quantum


@dataclass(frozen=True)
class Span:
    """Points `low` to `high` of a loop, which are walked one by one.

    They are in a buffer of so many `points` along the loop, the first of which stands for the point `begin`.
    """

    low: SSAValue
    high: SSAValue
    begin: Expr
    points: int


@dataclass(frozen=True)
class Walk:
    """One step of the blocks of a loop that a program walks: the number of the block, and that of its first one."""

    number: SSAValue
    first: SSAValue


@dataclass(frozen=True)
class Point:
    """Where a tile stands: each loop in terms of tile counters and tile dimensions, and the values of the counters.

    `blocks` are those of loops that are cut into blocks around the tile, `walks` the steps of those that are loops. Of
    the loops in `ends` only points below a number are walked (`Block.end`), of those in `spans` the points of these.
    `begins` has the points that the first elements of buffers stand for, of loops that blocks or windows of them cut.
    """

    replaced: dict[Axis, Expr] = field(default_factory=dict)
    counters: dict[Axis, SSAValue] = field(default_factory=dict)
    dims: tuple[Axis, ...] = ()
    bounds: dict[int, SSAValue] = field(default_factory=dict)
    blocks: dict[Axis, Block] = field(default_factory=dict)
    ends: dict[Axis, SSAValue] = field(default_factory=dict)
    walks: dict[Axis, Walk] = field(default_factory=dict)
    spans: dict[Axis, Span] = field(default_factory=dict)
    begins: dict[Axis, Expr] = field(default_factory=dict)

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(int(axis.extent) for axis in self.dims)  # type: ignore[arg-type]

    def swapped(self) -> Point:
        """The same place with the two dimensions of its tile in the other order."""
        first, second = self.dims
        return replace(self, dims=(second, first), bounds={1 - place: bound for place, bound in self.bounds.items()})


def grid_of(loops: Sequence[SpatialLoop]) -> list[int]:
    """The grid: an axis per loop that is distributed in several blocks, at least one axis; the last varies fastest."""
    return [loop.programs for loop in loops if loop.programs > 1] or [1]


def rows_of_program(builder: KernelBuilder, loop: SpatialLoop) -> tuple[SSAValue, SSAValue]:
    """The range of the points of a loop of quantum 1 that this program runs, when no other loop is distributed."""
    assert loop.quantum == 1
    if loop.programs == 1:
        return builder.index(0), builder.index(loop.extent)
    low = builder.mul(builder.insert(tile.ProgramIdOp(0)), builder.index(loop.tiles_per_block))
    end = builder.add(low, builder.index(loop.tiles_per_block))
    return low, builder.insert(arith.MinSIOp(end, builder.index(loop.extent)))


class Tiler:
    """Emits tiled loops for the programs of one grid; nests of loops can be emitted inside each other's bodies."""

    def __init__(self, builder: KernelBuilder, grid: Sequence[SpatialLoop]) -> None:
        """`grid` lists the loops in the order that `grid_of` was given."""
        self.builder = builder
        distributed = [loop for loop in grid if loop.programs > 1]
        self.programs = {loop.axis: builder.insert(tile.ProgramIdOp(n)) for n, loop in enumerate(distributed)}

    def visit_blocks(
        self, loops: Sequence[SpatialLoop], body: Callable[[Point], None], point: Point | None = None
    ) -> None:
        """Emit loops over blocks of `quantum` points, outermost first, with `body` in the innermost one.

        Unlike tiles, the last block of a loop has the code of the others, so that its extents are known at run time.
        Blocks behind the end of a loop do not run.
        """
        point = Point() if point is None else point
        if not loops:
            body(point)
            return
        builder = self.builder
        loop, *inner = loops
        counter = TileAxis(f"{loop.axis.name}.b", loop.tiles)
        walked = point.ends.get(loop.axis)

        def reached(number: SSAValue, first: SSAValue | None = None) -> Sequence[SSAValue]:
            counters = {**point.counters, counter: number}
            walks = point.walks if first is None else {**point.walks, loop.axis: Walk(number, first)}
            if loop.quantum == 1:
                at = replace(point, replaced={**point.replaced, loop.axis: counter}, counters=counters, walks=walks)
            else:
                blocks = {**point.blocks, loop.axis: Block(loop, counter, number, walked)}
                at = replace(point, counters=counters, blocks=blocks, walks=walks)
            self.visit_blocks(inner, body, at)
            return ()

        def walk(low: SSAValue, high: SSAValue) -> None:
            builder.loop(low, high, lambda number, _: reached(number, low))

        program = self.programs.get(loop.axis)
        if loop.tiles == 1 and walked is None:
            self.visit_blocks(inner, body, point)
        elif loop.tiles == 1:
            reached(builder.index(0))
        elif program is None:
            tiles = builder.index(loop.tiles)
            if walked is not None:
                up = builder.add(walked, builder.index(loop.quantum - 1))
                tiles = builder.insert(arith.DivUIOp(up, builder.index(loop.quantum)))
            walk(builder.index(0), tiles)
        elif loop.tiles_per_block == 1:
            reached(program)
        else:
            low = builder.mul(program, builder.index(loop.tiles_per_block))
            end = builder.add(low, builder.index(loop.tiles_per_block))
            walk(low, builder.insert(arith.MinSIOp(end, builder.index(loop.tiles))))

    def visit(self, loops: Sequence[SpatialLoop], body: Callable[[Point], None], point: Point | None = None) -> None:
        """Emit the loops, outermost first, with `body` at every tile, from a point that outer loops have reached."""
        point = Point() if point is None else point
        if not loops:
            body(point)
            return
        builder = self.builder
        loop, *inner = loops
        if loop.axis in point.blocks:
            self._visit_within(loop, inner, body, point)
            return
        if loop.axis in point.spans:
            self._visit_span(loop, inner, body, point)
            return
        program = self.programs.get(loop.axis)
        counter = TileAxis(f"{loop.axis.name}.t", max(loop.full_tiles, 1))

        def full(index: SSAValue, _: Sequence[SSAValue] = ()) -> Sequence[SSAValue]:
            self.visit(inner, body, _placed(point, loop, counter, loop.quantum, index))
            return ()

        def ragged() -> None:
            self.visit(inner, body, _ragged(builder, point, loop))

        if program is None:
            if loop.full_tiles == 1:
                full(builder.index(0))
            elif loop.full_tiles:
                builder.loop(builder.index(0), builder.index(loop.full_tiles), full)
            if loop.rest:
                ragged()
            return
        low = builder.mul(program, builder.index(loop.tiles_per_block))
        if loop.tiles_per_block == 1 and not loop.rest:
            full(low)
            return
        end = builder.add(low, builder.index(loop.tiles_per_block))
        high = builder.insert(arith.MinSIOp(end, builder.index(loop.full_tiles)))
        builder.loop(low, high, full)
        if loop.rest:
            last = builder.insert(tile.CompareOp("eq", program, builder.index(loop.programs - 1)))
            builder.branch(last, ragged)

    def _visit_within(
        self, loop: SpatialLoop, inner: Sequence[SpatialLoop], body: Callable[[Point], None], point: Point
    ) -> None:
        """Emit the tiles of a loop that are in the block around them."""
        builder, block = self.builder, point.blocks[loop.axis]
        counter = TileAxis(f"{loop.axis.name}.t", loop.tiles_per_block)

        def full(index: SSAValue, _: Sequence[SSAValue] = ()) -> Sequence[SSAValue]:
            self.visit(inner, body, _placed(point, loop, counter, loop.quantum, index))
            return ()

        if loop.tiles_per_block == 1 and not block.loop.rest:
            full(builder.index(0))
        else:
            builder.loop(builder.index(0), block.steps(builder, loop.quantum), full)
        if loop.rest:
            builder.branch(block.has_rest(builder), lambda: self.visit(inner, body, _ragged(builder, point, loop)))

    def _visit_span(
        self, loop: SpatialLoop, inner: Sequence[SpatialLoop], body: Callable[[Point], None], point: Point
    ) -> None:
        """Emit the points of a loop that the block around them computes."""
        axis, span = loop.axis, point.spans[loop.axis]
        counter = TileAxis(f"{axis.name}.t", loop.extent)

        def at(index: SSAValue, _: Sequence[SSAValue]) -> Sequence[SSAValue]:
            places = {**point.replaced, axis: counter, within(axis, span.points): counter - span.begin}
            reached = replace(point, replaced=places, counters={**point.counters, counter: index})
            self.visit(inner, body, reached)
            return ()

        self.builder.loop(span.low, span.high, at)


def _placed(point: Point, loop: SpatialLoop, counter: Axis, quantum: int, index: SSAValue) -> Point:
    counters = {**point.counters, counter: index}
    if quantum == 1:
        return replace(point, replaced=_places(point, loop, counter), counters=counters)
    inside = TileAxis(f"{loop.axis.name}.i", quantum)
    replaced = _places(point, loop, counter * quantum + inside)
    return replace(point, replaced=replaced, counters=counters, dims=(*point.dims, inside))


def _places(point: Point, loop: SpatialLoop, place: Expr) -> dict[Axis, Expr]:
    """What loops stand for with one more, whose place is within a block where there is one."""
    block = point.blocks.get(loop.axis)
    return {**point.replaced, **(block.places(place) if block is not None else {loop.axis: place})}


def _ragged(builder: KernelBuilder, point: Point, loop: SpatialLoop) -> Point:
    """The last, smaller tile: exactly as large as what is left, or rounded up to whole vectors and bounded."""
    size = loop.rest
    bounds = dict(point.bounds)
    if loop.vector_lanes and size % loop.vector_lanes:
        size += loop.vector_lanes - size % loop.vector_lanes
        bounds[len(point.dims)] = builder.index(loop.rest)
    inside = TileAxis(f"{loop.axis.name}.i", size)
    block = point.blocks.get(loop.axis)
    start = loop.full_tiles * loop.quantum if block is None else block.rest(loop.quantum)
    replaced = _places(point, loop, inside + start if start else inside)
    return replace(point, replaced=replaced, dims=(*point.dims, inside), bounds=bounds)
