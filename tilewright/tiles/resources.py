"""What a machine has, and what a tile tree occupies of it: processing units and memory instances (spec 1, section 5.7).

`footprints` has what it keeps in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, reduce
from itertools import product
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr.core import Compute
from tilewright.expr.intensity import is_matrix_operator
from tilewright.intrinsics.registry import Registry
from tilewright.tiles.tree import SIMULTANEOUS, Binding, Leaf, Loop, Node, Path, Stage, Tile, leaves, walk

Number = Any  #: an int, or an integer array with one entry per tree of a batch
Range = tuple[Number, Number]  #: from the first value to one after the last
Factors = Mapping[tuple[Path, int], Number]  #: of loops, by the path of the tile and the place in it
Ops = Collection[str] | None  #: names of expressions, None for all


@dataclass(frozen=True)
class Level:
    """One memory level: bytes of an instance and how many there are (None: enough), and what the analysis needs.

    With `by_placement` only what a tree places there counts (`placement`): what else is there the hardware decides.
    With `reduce` it adds up what several units computed; with `multicast` one read serves several instances further in.
    One instance of the level outside feeds an `array` of instances, so many along X and along Y (None: any). Rates are
    per instance (None: unlimited), energies per word in 16-bit multiply-adds (None: by `technology`). The meaning of
    the rest is that of `machine.description.Level`.
    """

    name: str
    capacity_bytes: int | None = None
    reduce: bool = False
    multicast: bool = True
    instances: int | None = None
    array: tuple[int, int] | None = None
    word_bits: int = 16
    technology: str = "sram"
    read_words_per_cycle: float | None = None
    write_words_per_cycle: float | None = None
    shares_port: bool = False
    accumulate: bool = False
    read_energy_macs: float | None = None
    write_energy_macs: float | None = None
    retain: bool = True
    read_latency_cycles: float = 0.0
    write_latency_cycles: float = 0.0
    load_slots: int = 2
    store_slots: int = 2
    by_placement: bool = False


@dataclass(frozen=True)
class Threads:
    """The threads of a block: how many a warp has and a block may have, and their registers of 32 bits."""

    of_warp: int
    of_block: int
    registers: int
    registers_of_all: int


@dataclass(frozen=True)
class Units:
    """Processing units of one kind: how many the machine has (None: enough), each with an innermost level of its own.

    A unit evaluates `operations_per_cycle` points of an expression; `operation_energy_macs` is the energy of one in
    16-bit multiply-adds (None: by the width of the operands). One instance of the level outside the innermost one feeds
    an `array` of them, so many along X and along Y (None: any). `name` is how messages call them.
    """

    name: str
    count: int | None
    array: tuple[int, int] | None = None
    operations_per_cycle: float = 1.0
    operation_energy_macs: float | None = None


@dataclass(frozen=True)
class Resources:
    """The memory levels of a machine, outermost first, and how many processing units it has (None: enough).

    `units`, `operations_per_cycle` and `operation_energy_macs` are those of `Units`. A machine with `vector` units runs
    matrix operators (`expr.intensity`) on the former and all others on the latter; it has the registers of both. A step
    of all units takes `compute_latency_cycles` more.
    Where programs of the grid are blocks, they have `threads`; `intrinsics` has the records of their products.
    `direct_paths` are pairs of levels that exchange words without passing those between (None: all of them do).
    With `double_buffer` memories outside of the innermost one hold two slices of what a tree streams (`tiles.buffers`).
    """

    levels: tuple[Level, ...]
    units: int | None = None
    operations_per_cycle: float = 1.0
    operation_energy_macs: float | None = None
    compute_latency_cycles: float = 0.0
    threads: Threads | None = None
    intrinsics: Registry | None = None
    vector: Units | None = None
    direct_paths: tuple[tuple[str, str], ...] | None = None
    double_buffer: bool = False

    @cached_property
    def classes(self) -> tuple[Units, ...]:
        """All units, by the class of operators that they run."""
        name = "units" if self.vector is None else "matrix units"
        array, rate, energy = self.levels[-1].array, self.operations_per_cycle, self.operation_energy_macs
        first = Units(name, self.units, array, rate, energy)
        return (first,) if self.vector is None else (first, self.vector)

    @property
    def has_latencies(self) -> bool:
        """Whether the machine states latencies, of transfers or of a step, which only a latency step by step uses."""
        stated = [level.read_latency_cycles + level.write_latency_cycles for level in self.levels]
        return sum(stated) + self.compute_latency_cycles > 0

    def units_of(self, compute: Compute) -> Units:
        """The units that run an expression."""
        return self.classes[0 if self.vector is None or is_matrix_operator(compute) else 1]

    def by_class(self, computes: Iterable[Compute]) -> list[tuple[Units, frozenset[str]]]:
        """The units of every class with the names of the expressions that run on them."""
        running = [(compute.name, self.units_of(compute)) for compute in computes]
        return [(units, frozenset(name for name, own in running if own == units)) for units in self.classes]

    def path_numbers(self) -> list[set[int | None]] | None:
        """The direct paths by the numbers of their levels."""
        if self.direct_paths is None:
            return None
        return [{self.level(name) for name in path} for path in self.direct_paths]

    def counts(self) -> dict[str, int | None]:
        """How many units there are, by class: JSON that differs where legality may."""
        return {"units": self.units, **({} if self.vector is None else {"vector": self.vector.count})}

    def fanout(self, number: int) -> int | None:
        """How many instances of a memory level one of the level outside it feeds; of the innermost one, units."""
        last = number == len(self.levels) - 1
        return self.fanout_of(self.classes[0]) if last else self._fanout(number, self.levels[number].instances)

    def fanout_of(self, units: Units) -> int | None:
        """How many units of a class one instance of the level outside the innermost one feeds."""
        return self._fanout(len(self.levels) - 1, units.count)

    def _fanout(self, number: int, count: int | None) -> int | None:
        outside = self.levels[number - 1].instances
        return None if count is None or outside is None else max(1, count // outside)

    def unlimited(self) -> Resources:
        """The same levels with any number of instances, bytes and units."""
        levels = tuple(replace(level, capacity_bytes=None, instances=None, array=None) for level in self.levels)
        vector = None if self.vector is None else replace(self.vector, count=None, array=None)
        return replace(self, levels=levels, units=None, vector=vector)

    def level(self, name: str) -> int | None:
        """The position of a level, 0 for the outermost."""
        return self._numbers.get(name)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {level.name: number for number, level in reversed(list(enumerate(self.levels)))}


def least(a: Number, b: Number) -> Number:
    """The smaller one, element by element for arrays."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else (a if a < b else b)


def greatest(a: Number, b: Number) -> Number:
    """The larger one, element by element for arrays."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else (a if a > b else b)


def processing_elements(tree: Node, factors: Factors | None = None, path: Path = (), ops: Ops = None) -> Number:
    """Units that a tree keeps busy: spatial factors times what the children need, together or one after the other.

    `factors` replaces the factors of loops, by the path of the tile and the place in it; they may be arrays with one
    entry per tree of a batch. Only units that run `ops` count.
    """
    if isinstance(tree, Leaf):
        return int(ops is None or tree.op in ops)
    if isinstance(tree, Tile):
        busy = processing_elements(tree.child, factors, (*path, 0), ops)
        for number, loop in enumerate(tree.loops):
            busy = busy * (factor_of(loop, factors, path, number) if tree.binding is Binding.SP else 1)
        return busy
    if isinstance(tree, Stage):
        return processing_elements(tree.child, factors, (*path, 0), ops)
    needed = [processing_elements(child, factors, (*path, number), ops) for number, child in enumerate(tree.children)]
    return sum(needed) if tree.kind in SIMULTANEOUS else reduce(greatest, needed)


def instances(tree: Node, resources: Resources, number: int, factors: Factors | None = None, ops: Ops = None) -> Number:
    """Instances of memory level `number` that a tree uses; `factors` and `ops` are those of `processing_elements`.

    Children of `Pipe` and `Para` exchange data in the level right inside the tile around them, whose instances they
    share; further in each has its own.
    """
    return _spread(tree, resources, number, range(number), factors, ops)


def fed(tree: Node, resources: Resources, number: int, factors: Factors | None = None, ops: Ops = None) -> Number:
    """As `instances`, those that one instance of the level outside it feeds; units in place of the innermost level."""
    return _spread(tree, resources, number, range(number - 1, number), factors, ops)


def _spread(
    node: Node, resources: Resources, number: int, levels: range, factors: Factors | None, ops: Ops, around: int = 0,
    path: Path = (),
) -> Number:  # fmt: skip
    """The product of spatial factors of tiles at these levels, outside level `number`; `around` is that of the node."""
    if isinstance(node, Leaf):
        return int(_runs(node, ops))
    if isinstance(node, Tile):
        around = resources.level(node.level) or 0
        if around >= number:
            return int(_runs(node, ops))
        used = _spread(node.child, resources, number, levels, factors, ops, around, (*path, 0))
        for place, loop in enumerate(node.loops):
            if node.binding is Binding.SP and around in levels:
                used = used * factor_of(loop, factors, path, place)
        return used
    if isinstance(node, Stage):
        return _spread(node.child, resources, number, levels, factors, ops, around, (*path, 0))
    parts = [
        _spread(child, resources, number, levels, factors, ops, around, (*path, place))
        for place, child in enumerate(node.children)
    ]
    last = number == len(resources.levels) - 1
    return sum(parts) if node.kind in SIMULTANEOUS and (last or number > around + 1) else reduce(greatest, parts)


def _runs(node: Node, ops: Ops) -> bool:
    """Whether one of these expressions stands below a node."""
    return ops is None or any(leaf.op in ops for _, leaf in leaves(node))


def sides(
    tree: Node, resources: Resources, number: int, factors: Factors | None = None, ops: Ops = None
) -> list[tuple[Number, Number]]:
    """What a tree takes of the array that one instance of the level outside level `number` feeds, along X and along Y.

    These are loops of tiles that say how many of them are along X; loops of others may lie anywhere and do not count.
    Children that run at the same time lie beside each other, along X or along Y: there is a pair for each way.
    `ops` are those of `processing_elements`.
    """
    return _sides(tree, resources, number, factors, ops, 0, ())


def _sides(
    node: Node, resources: Resources, number: int, factors: Factors | None, ops: Ops, around: int, path: Path
) -> list[tuple[Number, Number]]:
    if not _runs(node, ops):
        return [(0, 0)]
    if isinstance(node, Leaf):
        return [(1, 1)]
    if isinstance(node, Stage):
        return _sides(node.child, resources, number, factors, ops, around, (*path, 0))
    if isinstance(node, Tile):
        around = resources.level(node.level) or 0
        if around >= number:
            return [(1, 1)]
        below = _sides(node.child, resources, number, factors, ops, around, (*path, 0))
        along = next((int(hint.arguments[0]) for hint in node.hints if hint.name == "along_x"), None)
        if node.binding is not Binding.SP or around != number - 1 or along is None:
            return below
        x: Number = 1
        y: Number = 1
        for place, loop in enumerate(node.loops):
            factor = factor_of(loop, factors, path, place)
            x, y = (x * factor, y) if place >= len(node.loops) - along else (x, y * factor)
        return [(x * width, y * height) for width, height in below]
    parts = [
        _sides(child, resources, number, factors, ops, around, (*path, place))
        for place, child in enumerate(node.children)
    ]
    last = number == len(resources.levels) - 1
    beside = node.kind in SIMULTANEOUS and (last or number > around + 1)
    found = []
    for chosen in product(*parts):
        widths, heights = zip(*chosen, strict=True)
        if beside:
            found += [(sum(widths), reduce(greatest, heights)), (reduce(greatest, widths), sum(heights))]
        else:
            found.append((reduce(greatest, widths), reduce(greatest, heights)))
    return found


def factor_of(loop: Loop, factors: Factors | None, path: Path, number: int) -> Number:
    """The factor of a loop, by its tile and its place there: that of `factors`, or of the tree; 1 while it is open."""
    return loop.trips if factors is None else factors.get((path, number), loop.trips)


def filling(tree: Node, resources: Resources) -> dict[Path, int]:
    """The tiles whose steps bring data further in, by path, and the number of the level that they fill.

    A tile with another one of its level directly inside only splits the nest.
    """
    found: dict[Path, int] = {}
    for path, node in walk(tree):
        if isinstance(node, Tile) and not (isinstance(node.child, Tile) and node.child.level == node.level):
            inside = (resources.level(node.level) or 0) + 1
            if inside < len(resources.levels):
                found[path] = inside
    return found
