"""Rule L8: whether a machine has the levels, units and bytes that a tile tree asks for (spec 1, sections 2.6 and 5.7).

A level that software fills holds one step of the tiles outside it. Caches are filled by the hardware: what goes beyond
a cache is slow and no error, unless the tree places it there (`placement`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

from tilewright.tiles.footprints import Accesses, Footprints, footprint_bytes
from tilewright.tiles.placement import REGISTERS, WORD_BYTES, Placed, registers, stages, threads_of, values
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Factors, Level, Number, Ops, Resources, fed, filling, processing_elements, sides
from tilewright.tiles.shared_memory import block_bytes
from tilewright.tiles.tree import (
    Kind,
    Leaf,
    Loop,
    Node,
    Path,
    Scope,
    Stage,
    Tile,
    TileTree,
    ancestors,
    children,
    leaves,
    node_at,
    walk,
)

SHARED = "SHARED"

Excess = tuple[str, str]  #: what is too large, and the nearest legal change


def excesses(tree: TileTree, problem: Problem, resources: Resources) -> Iterator[Excess]:
    """Everything of which a tree asks for more than the machine has."""
    unknown = list(_levels(tree, resources))
    yield from unknown
    for units, own in resources.by_class(problem.computes):
        needed = processing_elements(tree, ops=own)
        if units.count is not None and needed > units.count:
            yield (
                f"the tree keeps {needed} {units.name} busy, the machine has {units.count}",
                f"bind loops as for until their factors are {-(-needed // units.count)} times smaller",
            )
    if unknown:
        return
    yield from _apart(tree, problem, resources)
    for number, fanout, inner, ops in _fanouts(resources, problem):
        needed = fed(tree, resources, number, ops=ops)
        if needed > fanout:
            feeder = resources.levels[number - 1].name
            yield (
                f"one instance of {feeder} feeds {needed} {inner}, the machine has {fanout} there",
                f"bind loops at {feeder} as for until their factors are {-(-needed // fanout)} times smaller",
            )
    for number, (width, height), ops in _arrays(resources, tree, problem):
        ways = sides(tree, resources, number, ops=ops)
        if not any(x <= width and y <= height for x, y in ways):
            x, y = min(ways, key=lambda way: max(way[0] / width, way[1] / height))
            feeder = resources.levels[number - 1].name
            axis, needed, there = ("X", x, width) if x > width else ("Y", y, height)
            yield (
                f"one instance of {feeder} feeds {needed} along {axis}, the machine has {there} there",
                f"bind loops along {axis} at {feeder} as for until their factors are {-(-needed // there)} times "
                f"smaller, or as par along {'Y' if axis == 'X' else 'X'} by along_x",
            )
    for tile, level, held in _Held(tree, problem, resources).at():
        if held > level.capacity_bytes:
            yield (
                f"one step of {', '.join(map(str, tile.loops))} at {tile.level} keeps {held} bytes in "
                f"{level.name}, which holds {level.capacity_bytes}",
                f"tiles {-(-held // level.capacity_bytes)} times smaller inside it"
                + (", or seq" if isinstance(tile.child, Scope) and tile.child.kind is not Kind.SEQ else ""),
            )
    if any(level.by_placement for level in resources.levels):
        yield from _misplaced(tree, problem, resources)


class Capacities:
    """Rule L8 for the trees of one topology, whose levels are those of the machine: an array of bool for a batch."""

    def __init__(self, tree: TileTree, problem: Problem, resources: Resources) -> None:
        self.tree, self.resources = tree, resources
        self._held = _Held(tree, problem, resources)
        self._classes = resources.by_class(problem.computes)
        self._fanouts = _fanouts(resources, problem)
        self._arrays = _arrays(resources, tree, problem)

    def fit(self, factors: Factors) -> Any:
        """Whether the machine has room for each tree.

        `factors` are those of loops, by the path of the tile and the place in it, with an entry per tree.
        """
        tree, resources = self.tree, self.resources
        fits: Any = True
        for units, own in self._classes:
            if units.count is not None:
                fits = fits & (processing_elements(tree, factors, ops=own) <= units.count)
        for number, fanout, _, ops in self._fanouts:
            fits = fits & (fed(tree, resources, number, factors, ops) <= fanout)
        for number, (width, height), ops in self._arrays:
            ways = [(x <= width) & (y <= height) for x, y in sides(tree, resources, number, factors, ops)]
            fits = fits & reduce(or_, ways)
        for _, level, held in self._held.at(factors):
            fits = fits & (held <= level.capacity_bytes)
        return fits


def _levels(tree: TileTree, resources: Resources) -> Iterator[Excess]:
    """Tiles and stages at levels that the machine has not, or not in this order."""
    names = ", ".join(level.name for level in resources.levels)
    for path, node in walk(tree):
        if not isinstance(node, Tile | Stage):
            continue
        position = resources.level(node.level)
        if position is None:
            yield f"level {node.level} does not exist", f"levels from the outside in: {names}"
        elif isinstance(node, Tile):
            around = [above.level for _, above in ancestors(tree, path) if isinstance(above, Tile)]
            if around and position < (resources.level(around[-1]) or 0):
                yield f"level {node.level} lies outside {around[-1]}", f"levels from the outside in: {names}"


def _apart(tree: TileTree, problem: Problem, resources: Resources) -> Iterator[Excess]:
    """Scopes whose children exchange data in registers, on units of several classes, which share no registers."""
    if resources.vector is None:
        return
    outside = resources.levels[-2 if len(resources.levels) > 1 else -1].name
    for path, node in walk(tree):
        if not isinstance(node, Scope):
            continue
        around = _owner(tree, path)
        tile = None if around is None else node_at(tree, around)
        if isinstance(tile, Tile) and (resources.level(tile.level) or 0) >= len(resources.levels) - 2:
            ops = [leaf.op for _, leaf in leaves(node)]
            first, *others = [each for _, each in resources.by_class(map(problem.compute, ops)) if each]
            if others:
                matrix, vector = (", ".join(op for op in ops if op in each) for each in (first, *others))
                yield (
                    f"{matrix} and {vector} exchange data in {resources.levels[-1].name}, but matrix and vector units "
                    f"have registers of their own",
                    f"put the {node.kind.value} into a tile outside {outside}, so that they exchange it in {outside}",
                )


def _fanouts(resources: Resources, problem: Problem) -> list[tuple[int, int, str, Ops]]:
    """The memory levels on the chip, and every class of units as the innermost one, by number.

    With what one instance of the level outside feeds, how messages call that, and which expressions run there.
    """
    last = len(resources.levels) - 1
    found: list[tuple[int, int | None, str, Ops]] = [
        (number, resources.fanout(number), f"instances of {resources.levels[number].name}", None)
        for number in range(1, last)
    ]
    if last:
        classes = resources.by_class(problem.computes)
        found += [(last, resources.fanout_of(units), units.name, ops) for units, ops in classes]
    return [(number, fanout, name, ops) for number, fanout, name, ops in found if fanout is not None]


def _arrays(resources: Resources, tree: Node, problem: Problem) -> list[tuple[int, tuple[int, int], Ops]]:
    """The arrays that tiles of a tree bind loops to: the number of the level in them, and which expressions it runs."""
    bound = {
        resources.level(node.level)
        for _, node in walk(tree)
        if isinstance(node, Tile) and any(hint.name == "along_x" for hint in node.hints)
    }
    last = len(resources.levels) - 1
    found: list[tuple[int, tuple[int, int] | None, Ops]] = [
        (number, level.array, None) for number, level in enumerate(resources.levels[:-1])
    ]
    found += [(last, units.array, ops) for units, ops in resources.by_class(problem.computes)]
    return [(number, array, ops) for number, array, ops in found if array is not None and number - 1 in bound]


class _Held:
    """What the steps of the tiles of a tree keep in levels of limited size.

    Tiles fill the level right inside them, and those that the next tiles inside skip. What a stage has in more slots
    than one, and values that it keeps, come in addition.
    """

    def __init__(self, tree: TileTree, problem: Problem, resources: Resources) -> None:
        self.tree, self.problem, self.resources = tree, problem, resources
        self.filled: dict[Path, list[Level]] = {}
        if any(level.capacity_bytes is not None and not level.by_placement for level in resources.levels[1:]):
            filled = {path: _filled(tree, path, first, resources) for path, first in filling(tree, resources).items()}
            self.filled = {path: levels for path, levels in filled.items() if levels}
        self.staged = bool(self.filled) and any(isinstance(node, Stage) for _, node in walk(tree))
        if self.filled:
            innermost = resources.levels[-1]
            outer = [path for path, levels in self.filled.items() if innermost not in levels]
            doubled = outer if resources.double_buffer else ()
            self.held = Footprints(
                Accesses(tree, problem), dedupe=True, doubled=doubled, weight=footprint_bytes, tiles=self.filled
            )

    def at(self, factors: Factors | None = None) -> Iterator[tuple[Tile, Level, Number]]:
        """The tiles that fill a level of limited size, with it and the bytes that one step keeps there."""
        if not self.filled:
            return
        held = self.held.at(factors)
        staged = stages(self.tree, self.problem, self.resources, factors) if self.staged else []
        for path, levels in self.filled.items():
            tile = self.held.tiles[path]
            for level in levels:
                more = [each for each in staged if each.level == level.name and _owner(self.tree, each.path) == path]
                yield tile, level, held[path] + sum(_in_addition(each, self.problem) for each in more)


def _filled(tree: TileTree, path: Path, first: int, resources: Resources) -> list[Level]:
    """The levels of limited size that the steps of a tile fill, the one with the number `first` and those skipped."""
    tile = node_at(tree, path)
    assert isinstance(tile, Tile)
    last = max(first, _next_level(tile.child, resources))
    levels = resources.levels[first : last + 1]
    return [level for level in levels if level.capacity_bytes is not None and not level.by_placement]


def _next_level(node: Node, resources: Resources) -> int:
    """The outermost level of the tiles right inside a tile; 0 where there are none."""
    while isinstance(node, Stage):
        node = node.child
    if isinstance(node, Tile):
        return resources.level(node.level) or 0
    return min((_next_level(child, resources) for child in children(node)), default=0)


def _owner(tree: TileTree, path: Path) -> Path | None:
    """The tile around a node."""
    return next((above for above, node in reversed(ancestors(tree, path)) if isinstance(node, Tile)), None)


def _in_addition(placed: Placed, problem: Problem) -> Number:
    """Bytes of a stage beyond the tile that a step keeps of its tensor anyway: all, where the tree computes it."""
    computed = any(compute.name == placed.tensor for compute in problem.computes)
    return placed.bytes if computed else placed.bytes - placed.bytes // placed.slots


# What a program places ------------------------------------------------------------------------------------------------


def _misplaced(tree: TileTree, problem: Problem, resources: Resources) -> Iterator[Excess]:
    """Levels in which a program of the tree places more than they hold, and blocks of too many threads."""
    threads = resources.threads
    if threads is not None and threads_of(tree, threads) > threads.of_block:
        count = threads_of(tree, threads)
        yield (
            f"a block has {count} threads, the machine has {threads.of_block} at most",
            f"{threads.of_block // threads.of_warp} warps of {threads.of_warp} threads",
        )
        return
    placed = [*stages(tree, problem, resources), *values(tree, problem, resources)]
    for level in resources.levels:
        here = [each for each in placed if each.level == level.name]
        held = sum(each.bytes for each in here)
        if level.name == SHARED and threads is not None:
            held = block_bytes(tree, problem, resources, here)
        if level.capacity_bytes is not None and held > level.capacity_bytes:
            yield _too_much(tree, here, held, level.name, level.capacity_bytes)
    capacity = _register_bytes(tree, resources)
    for each in registers(tree, problem, resources):
        if capacity is not None and each.bytes > capacity:
            yield _too_much(tree, [each], each.bytes, REGISTERS, capacity)


def _register_bytes(tree: TileTree, resources: Resources) -> int | None:
    """The registers of a program: of a block those of its threads."""
    threads = resources.threads
    if threads is None:
        return resources.levels[-1].capacity_bytes
    count = threads_of(tree, threads)
    return min(threads.registers, threads.registers_of_all // count) * count * WORD_BYTES


def _too_much(tree: TileTree, placed: Sequence[Placed], held: int, level: str, capacity: int) -> Excess:
    """A level in which a program holds more than fits: what is placed there, and what passes add to it."""
    names = ", ".join(
        f"{each.tensor} ({each.slots} slots of {each.bytes // each.slots})" if each.slots > 1 else each.tensor
        for each in placed
    )
    own = sum(each.bytes for each in placed)
    added = f"; {held - own} of them for results and for what passes align" if held > own else ""
    message = f"a program keeps {held} bytes of {names} in {level}, which holds {capacity}{added}"
    most = max((each.slots for each in placed), default=1)
    slot = sum(each.bytes // each.slots for each in placed if each.slots == most)
    fewer = most - -(-(held - capacity) // slot) if most > 1 else 0
    if fewer > 0:
        return message, f"slots {fewer} instead of {most}"
    return message, _smaller(tree, max(placed, key=lambda each: each.bytes), -(-held // capacity))


def _smaller(tree: TileTree, placed: Placed, times: int) -> str:
    """The loop with the largest factor inside a node, with the factor that makes its tiles so many times smaller."""
    loops: list[Loop] = []
    for _, node in walk(node_at(tree, placed.path)):
        if isinstance(node, Tile) and node.level != "DRAM":
            loops += node.loops
        if isinstance(node, Leaf) and node.kernel is not None:
            loops += node.kernel.quantum
    largest = max(loops, key=lambda loop: loop.trips, default=None)
    if largest is None or largest.trips == 1:
        return f"tiles of {placed.tensor} that are {times} times smaller"
    halves = 1 << (times - 1).bit_length()
    return f"{largest.name}:{max(1, largest.trips // halves)} instead of {largest}, tiles {times} times smaller"
