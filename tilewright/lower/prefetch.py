"""Hints about what a contraction reads next, spread over the tiles at hand.

While a tile of a block of k is computed, a share of the next block of b is asked for, and the same columns of the next
rows of a where the tree says so: every tile of a block asks for its own share, so that the next block is near when its
first tile starts. Without blocks, tiles of a panel ask for the next panel, and tiles of a program for the rows of the
next program. Nothing is asked for behind the end of an operand: where no memory is, processors take long to find that
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine
from tilewright.expr.core import Axis
from tilewright.kernel import dialect as tile
from tilewright.lower.builder import KernelBuilder
from tilewright.lower.loops import Point
from tilewright.operator.product_tree import NextRows
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import Operand

LINES_OF_STEP = 5  # of b that one step asks for; more would hold up the products (2 x 5 sums ask for 5: Zen 3)


@dataclass(frozen=True)
class StepsOfBlock:
    """One block of the first k loop: its first step, and how many steps a tile takes through it."""

    low: SSAValue
    counts: tuple[int, ...]  # per k loop, outermost first

    def number(self, builder: KernelBuilder, counters: Sequence[SSAValue], last: int) -> SSAValue:
        """How many steps of the block came before this one, from the counters of the k loops, outermost first.

        Some number up to `last` where it would be more; every number up to `last` occurs. The innermost loop only adds
        its counter where it can: what it does beside its products delays them.
        """
        (first, *others), inner = counters, self.counts[-1]
        total = builder.insert(arith.SubiOp(first, self.low))
        for counter, count in zip(others, self.counts[1:], strict=True):
            total = builder.mul(total, builder.index(count))
            if counter is others[-1] and last >= inner - 1:
                total = builder.insert(arith.MinSIOp(total, builder.index(last - (inner - 1))))
            total = builder.add(total, counter)
        if others and last >= inner - 1:
            return total
        return builder.insert(arith.MinSIOp(total, builder.index(last)))


def prefetch_next_tile(
    builder: KernelBuilder,
    view: SSAValue,
    operand: Operand,
    form: Affine,
    dims: Sequence[Axis],
    loop: SpatialLoop,
    point: Point,
) -> None:
    """Ask for what the tile after this one along a loop, the last of `dims`, reads of a in the same step of k.

    Where fewer rows are left than a tile has, the last of its own rows are asked for with them. A ragged tile is the
    last one and asks for nothing.
    """
    number = _counter(loop, point)
    if number is None:
        return
    begin = builder.mul(builder.add(number, builder.index(1)), builder.index(loop.quantum))
    left = builder.insert(arith.SubiOp(builder.index(loop.extent), begin))
    rows = builder.insert(arith.MinSIOp(left, builder.index(loop.quantum)))
    beyond = builder.mul(rows, builder.index(form.coefficient(dims[-1])))
    outside = {axis: c for axis, c in form.terms.items() if axis not in dims}
    size = dtypes.size_bytes(operand.tensor.dtype)
    for place in product(*(range(int(axis.extent)) for axis in dims)):  # type: ignore[arg-type]
        offset = sum(form.coefficient(axis) * index for axis, index in zip(dims, place, strict=True))
        at = builder.affine(Affine(form.constant + offset, outside), point.counters)
        builder.insert(tile.PrefetchOp(view, builder.add(at, beyond), size))


def _counter(loop: SpatialLoop, point: Point) -> SSAValue | None:
    """The number of the tile at a point along a loop; None for a ragged tile."""
    name = f"{loop.axis.name}.t"
    return next((number for axis, number in point.counters.items() if axis.name == name), None)


def prefetch_next_program(
    builder: KernelBuilder, view: SSAValue, rows: NextRows, program: SSAValue, number: SSAValue, line_bytes: int
) -> None:
    """Ask for the share of the tile with this number of the runs that the program after this one reads."""
    count, first = builder.index(rows.lines), builder.mul(number, builder.index(rows.share))
    begin = builder.mul(builder.add(program, builder.index(1)), builder.index(rows.points))
    begin = builder.add(begin, builder.index(rows.start))
    last = builder.index(_last_begin(view, rows.line))
    for turn in range(rows.share):
        line = builder.add(first, builder.index(turn))
        run = builder.mul(builder.insert(arith.DivUIOp(line, count)), builder.index(rows.step))
        within = builder.mul(builder.insert(arith.RemUIOp(line, count)), builder.index(rows.line))
        at = builder.insert(arith.MinSIOp(builder.add(begin, builder.add(run, within)), last))
        builder.insert(tile.PrefetchOp(view, at, line_bytes))


def _last_begin(view: SSAValue, elements: int) -> int:
    """The last place from which on a view has so many elements; negative if it has fewer."""
    assert isinstance(view.type, MemRefType)
    return view.type.element_count() - elements


def prefetch_block(
    builder: KernelBuilder,
    view: SSAValue,
    operand: Operand,
    block: tuple[SSAValue, int],
    steps: StepsOfBlock,
    counters: Sequence[SSAValue],
    tile_of_block: tuple[SSAValue, int],
    line_bytes: int,
) -> None:
    """Ask for this step's share of the block of b that follows the one at hand in memory.

    `block` is where this one starts and how many elements it has; `tile_of_block` which tile this is, of how many.
    Where less than a block follows, the end of this one is asked for with it.
    """
    start, elements = block
    number, tiles = tile_of_block
    size = dtypes.size_bytes(operand.tensor.dtype)
    lines = -(-elements * size // line_bytes)
    share = -(-lines // tiles)
    at_once = -(-share // prod(steps.counts))
    if at_once > LINES_OF_STEP:
        return
    turns = -(-share // at_once)
    turn = steps.number(builder, counters, turns - 1)
    line = line_bytes // size  # in elements
    last = _last_begin(view, ((tiles - 1) * share + turns * at_once) * line)
    if last <= 0:
        return
    ahead = builder.insert(arith.MinSIOp(builder.add(start, builder.index(elements)), builder.index(last)))
    ahead = builder.add(ahead, builder.mul(number, builder.index(share * line)))
    ahead = builder.add(ahead, builder.mul(turn, builder.index(at_once * line)))
    builder.insert(tile.PrefetchOp(view, ahead, at_once * line_bytes))


def tile_number(
    builder: KernelBuilder, loops: Sequence[SpatialLoop], counters: Mapping[Axis, SSAValue]
) -> tuple[SSAValue, int] | None:
    """Which of a program's tiles over `loops` this is, and how many ask for something; None for a ragged one.

    Ragged ones ask for nothing. Where there are several programs, the last one's is counted in all of them.
    """
    by_name = {axis.name: value for axis, value in counters.items()}
    number, tiles = builder.index(0), 1
    for loop in loops:
        counter = by_name.get(f"{loop.axis.name}.t")
        count = loop.full_tiles if loop.programs == 1 else loop.tiles_per_block
        if counter is None:
            if loop.full_tiles:
                return None
            continue
        if loop.programs > 1:
            counter = builder.insert(arith.RemUIOp(counter, builder.index(count)))
        number = counter if tiles == 1 else builder.add(builder.mul(number, builder.index(count)), counter)
        tiles *= count
    return number, tiles
