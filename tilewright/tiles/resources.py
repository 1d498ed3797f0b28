"""What a tile tree occupies: processing units, and elements in each memory level (spec 1, section 5.7).

A tile's *working set* is what one execution of it touches of tensors that live outside it: slices are bounding boxes
around the elements that its loops reach. An intermediate that is written and read inside the tile lives a level further
in and is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Compute, Read, Tensor
from tilewright.expr.core import walk as walk_expr
from tilewright.intrinsics.registry import Registry
from tilewright.tiles.problem import Problem
from tilewright.tiles.rescaling import rescaled
from tilewright.tiles.tree import (
    SIMULTANEOUS,
    Binding,
    Kind,
    Leaf,
    Loop,
    Node,
    Path,
    Scope,
    Stage,
    Tile,
    leaves,
    same_path,
    walk,
)

Number = Any  #: an int, or an integer array with one entry per tree of a batch
Range = tuple[Number, Number]  #: from the first value to one after the last
Factors = Mapping[tuple[Path, int], Number]  #: of loops, by the path of the tile and the place in it


@dataclass(frozen=True)
class Level:
    """One memory level: bytes of an instance and how many there are (None: enough), and what the analysis needs.

    With `by_placement` only what a tree places there counts (`placement`): what else is there the hardware decides.
    With `reduce` it adds up what several units computed; with `multicast` one read serves several instances further in.
    Rates are per instance (None: unlimited), energies per word in 16-bit multiply-adds (None: by `technology`). The
    meaning of the rest is that of `machine.description.Level`.
    """

    name: str
    capacity_bytes: int | None = None
    reduce: bool = False
    multicast: bool = True
    instances: int | None = None
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
class Resources:
    """The memory levels of a machine, outermost first, and how many processing units it has (None: enough).

    Each unit evaluates `operations_per_cycle` points of an expression; `operation_energy_macs` is the energy of one in
    16-bit multiply-adds (None: by the width of the operands). A step of all units takes `compute_latency_cycles` more.
    Where programs of the grid are blocks, they have `threads`; `intrinsics` has the records of their products.
    """

    levels: tuple[Level, ...]
    units: int | None = None
    operations_per_cycle: float = 1.0
    operation_energy_macs: float | None = None
    compute_latency_cycles: float = 0.0
    threads: Threads | None = None
    intrinsics: Registry | None = None

    def fanout(self, number: int) -> int | None:
        """How many instances of a memory level one of the level outside it feeds; of the innermost one, units."""
        outside = self.levels[number - 1].instances
        count = self.units if number == len(self.levels) - 1 else self.levels[number].instances
        return None if count is None or outside is None else max(1, count // outside)

    def unlimited(self) -> Resources:
        """The same levels with any number of instances, bytes and units."""
        levels = tuple(replace(level, capacity_bytes=None, instances=None) for level in self.levels)
        return replace(self, levels=levels, units=None)

    def level(self, name: str) -> int | None:
        """The position of a level, 0 for the outermost."""
        return next((number for number, level in enumerate(self.levels) if level.name == name), None)


def least(a: Number, b: Number) -> Number:
    """The smaller one, element by element for arrays."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else (a if a < b else b)


def greatest(a: Number, b: Number) -> Number:
    """The larger one, element by element for arrays."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else (a if a > b else b)


def processing_elements(tree: Node, factors: Factors | None = None, path: Path = ()) -> Number:
    """Units that a tree keeps busy: spatial factors times what the children need, together or one after the other.

    `factors` replaces the factors of loops, by the path of the tile and the place in it; they may be arrays with one
    entry per tree of a batch.
    """
    if isinstance(tree, Leaf):
        return 1
    if isinstance(tree, Tile):
        busy = processing_elements(tree.child, factors, (*path, 0))
        for number, loop in enumerate(tree.loops):
            busy = busy * (_factor(loop, factors, path, number) if tree.binding is Binding.SP else 1)
        return busy
    if isinstance(tree, Stage):
        return processing_elements(tree.child, factors, (*path, 0))
    needed = [processing_elements(child, factors, (*path, number)) for number, child in enumerate(tree.children)]
    return sum(needed) if tree.kind in SIMULTANEOUS else reduce(greatest, needed)


def instances(tree: Node, resources: Resources, number: int, factors: Factors | None = None) -> Number:
    """Instances of memory level `number` that a tree uses; `factors` is that of `processing_elements`.

    Children of `Pipe` and `Para` exchange data in the level right inside the tile around them, whose instances they
    share; further in each has its own.
    """
    return _spread(tree, resources, number, range(number), factors)


def fed(tree: Node, resources: Resources, number: int, factors: Factors | None = None) -> Number:
    """As `instances`, those that one instance of the level outside it feeds; units in place of the innermost level."""
    return _spread(tree, resources, number, range(number - 1, number), factors)


def _spread(
    node: Node, resources: Resources, number: int, levels: range, factors: Factors | None, around: int = 0,
    path: Path = (),
) -> Number:  # fmt: skip
    """The product of spatial factors of tiles at these levels, outside level `number`; `around` is that of the node."""
    if isinstance(node, Leaf):
        return 1
    if isinstance(node, Tile):
        around = resources.level(node.level) or 0
        if around >= number:
            return 1
        used = _spread(node.child, resources, number, levels, factors, around, (*path, 0))
        for place, loop in enumerate(node.loops):
            if node.binding is Binding.SP and around in levels:
                used = used * _factor(loop, factors, path, place)
        return used
    if isinstance(node, Stage):
        return _spread(node.child, resources, number, levels, factors, around, (*path, 0))
    parts = [
        _spread(child, resources, number, levels, factors, around, (*path, place))
        for place, child in enumerate(node.children)
    ]
    last = number == len(resources.levels) - 1
    return sum(parts) if node.kind in SIMULTANEOUS and (last or number > around + 1) else reduce(greatest, parts)


def _factor(loop: Loop, factors: Factors | None, path: Path, number: int) -> Number:
    return loop.trips if factors is None else factors.get((path, number), loop.trips)


def elements(_: Tensor) -> int:
    """The weight that counts elements."""
    return 1


def working_set(tree: Node, problem: Problem, path: Path = ()) -> dict[str, Number]:
    """Elements of each outside tensor that one execution of the node at `path` touches."""
    return Slices(tree, problem).outside(path)


def footprints(
    tree: Node,
    problem: Problem,
    *,
    dedupe: bool = False,
    weight: Callable[[Tensor], int] = elements,
    factors: Factors | None = None,
    tiles: Collection[Path] | None = None,
) -> dict[Path, Number]:
    """For every tile, or these, by path, what its children keep in the next memory level during one of its steps.

    `Seq` needs the largest of its children's working sets, other scopes their sum. With `dedupe`, a tensor that two
    children of `Shar` or `Para` touch counts once; under `Pipe` it is double buffered and counts twice. What a tile
    keeps stays beside each child of `Seq`; what a child's tiles bypass is not there. A running value by which a sum
    elsewhere is rescaled is a result of its tiles; the sum's own tiles multiply before they have their operands, and
    so hold nothing more for it. `factors` is that of `processing_elements`.
    """
    slices = Slices(tree, problem, factors)
    tensors = problem.tensors()
    weights = {name: weight(tensor) for name, tensor in tensors.items()}

    def resident(node: Node, path: Path, keep: Sequence[str]) -> Mapping[str, Number]:
        if isinstance(node, Stage):
            return resident(node.child, (*path, 0), keep)
        if not isinstance(node, Scope):
            passing = _bypassed(node)
            return {name: size for name, size in slices.outside(path).items() if name not in passing}
        kept = [resident(child, (*path, number), keep) for number, child in enumerate(node.children)]
        if node.kind is Kind.SEQ:
            stays = {name: reduce(greatest, (held.get(name, 0) for held in kept)) for name in keep}
            stays = {name: size for name, size in stays.items() if any(name in held for held in kept)}
            return reduce(larger, [{**held, **stays} for held in kept])
        once = dedupe and node.kind is not Kind.PIPE
        total: dict[str, Number] = {}
        for held in kept:
            for name, size in held.items():
                total[name] = greatest(total.get(name, 0), size) if once else total.get(name, 0) + size
        return total

    def larger(a: Mapping[str, Number], b: Mapping[str, Number]) -> Mapping[str, Number]:
        """The working set with more bytes; the first of equals."""
        more = sum(size * weights[name] for name, size in b.items()) > sum(
            size * weights[name] for name, size in a.items()
        )
        if not isinstance(more, np.ndarray):
            return b if more else a
        return {name: np.where(more, b.get(name, 0), a.get(name, 0)) for name in dict.fromkeys((*a, *b))}

    return {
        path: sum(size * weights[name] for name, size in resident(node.child, (*path, 0), node.keep).items())
        for path, node in slices.tiles.items()
        if tiles is None or path in tiles
    }


def _bypassed(node: Node) -> set[str]:
    """The tensors that a tile, and the tiles of its level directly inside it, bypass."""
    found: set[str] = set()
    level = node.level if isinstance(node, Tile) else ""
    while isinstance(node, Tile) and node.level == level:
        found.update(node.bypass)
        node = node.child
    return found


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


def footprint_bytes(tensor: Tensor) -> int:
    """The weight that counts bytes."""
    return dtypes.size_bytes(tensor.dtype)


class Slices:
    """Extents of loops and tensors inside any node of one tree; loops of tiles at the `levels` given have one step."""

    def __init__(
        self, tree: Node, problem: Problem, factors: Factors | None = None, levels: Collection[str] = ()
    ) -> None:
        self.tree, self.problem, self.factors, self.levels = tree, problem, factors, levels
        self.known: dict[tuple[str, str, Path], Number] = {}
        self.touched: dict[Path, dict[str, Number]] = {}
        self.computed: dict[Path, dict[str, Number]] = {}
        self.places = {leaf.op: (path, leaf) for path, leaf in leaves(tree)}
        self.tiles = {path: node for path, node in walk(tree) if isinstance(node, Tile)}
        self.shapes = problem.tensors()
        self.computes = {compute.name: compute for compute in problem.computes}
        self.users: dict[str, list[str]] = {name: [] for name in self.shapes}
        for compute in problem.computes:
            for name in {tensor.name for tensor in compute.inputs()}:
                self.users[name].append(compute.name)
        self.accesses = {op: self._accesses(self.computes[op]) for op in self.places}
        for one in rescaled(tree, problem):
            users = self.users[one.value.name]
            if one.rescaling.total not in users:
                users.append(one.rescaling.total)
        self.loops = {op: self._around(place, leaf) for op, (place, leaf) in self.places.items()}

    def outside(self, path: Path) -> dict[str, Number]:
        """Elements of each tensor from outside the node at `path` that one execution of it touches."""
        if path not in self.touched:
            self.touched[path] = self._outside(path)
        return self.touched[path]

    def _outside(self, path: Path) -> dict[str, Number]:
        inside = self._ops(path)
        return self._sizes(path, inside, lambda name: not self._lives_inside(name, inside))

    def touched_of(self, tensor: str, path: Path) -> Number:
        """Elements of one tensor, from outside or from inside, that one execution of the node at `path` touches."""
        if tensor not in self.places:
            return self._sizes(path, self._ops(path), lambda name: name == tensor).get(tensor, 0)
        if path not in self.computed:
            self.computed[path] = self._sizes(path, self._ops(path), lambda name: name in self.places)
        return self.computed[path].get(tensor, 0)

    def takes(self, op: str, tensor: str) -> bool:
        """Whether an expression reads a tensor."""
        return any(read.tensor.name == tensor for read in self.problem.compute(op).reads())

    def matrix(self, op: str, tensor: str, path: Path) -> Number:
        """Elements of a tensor as an expression takes them in one execution: one for each point of the loops that its
        indices have, of whole tiles. The elements of a window are there as often as they are taken.
        """
        compute = self.computes[op]
        names = {
            self.problem.names[op, axis.name]
            for read in (*compute.reads(), Read(compute.output, compute.axes))
            if read.tensor.name == tensor
            for index in read.indices
            for axis in walk_expr(index)
            if isinstance(axis, Axis)
        }
        around = (self.loops[op].get(name, ()) for name in names)
        return prod(factor for loops in around for depth, factor in loops if depth >= len(path))

    def _ops(self, path: Path) -> list[str]:
        return [op for op, (place, _) in self.places.items() if place[: len(path)] == path]

    def _sizes(self, path: Path, inside: list[str], wanted: Callable[[str], bool]) -> dict[str, Number]:
        """Elements of the tensors that are wanted in the bounding boxes of what expressions inside reach."""
        boxes: dict[str, list[Range]] = {}
        for op in inside:
            for name, forms in self.accesses[op]:
                if wanted(name):
                    box = self._box(op, name, forms, path)
                    old = boxes.get(name)
                    if old is not None:
                        box = [(least(a, c), greatest(b, d)) for (a, b), (c, d) in zip(box, old, strict=True)]
                    boxes[name] = box
        sizes: dict[str, Number] = {}
        for name, box in boxes.items():
            size: Number = 1
            for (a, b), extent in zip(box, self.shapes[name].shape, strict=True):
                size = size * least(b - a, extent)
            sizes[name] = size
        return sizes

    def _lives_inside(self, tensor: str, inside: list[str]) -> bool:
        users = self.users[tensor]
        return tensor in inside and bool(users) and all(user in inside for user in users)

    def _accesses(self, compute: Compute) -> list[tuple[str, tuple[Affine | None, ...]]]:
        """The tensors that an expression reads and writes, with an affine form per dimension where there is one."""
        reads = (*compute.reads(), Read(compute.output, compute.axes))
        return [(read.tensor.name, tuple(map(affine, read.indices))) for read in reads]

    def _box(self, op: str, tensor: str, forms: Sequence[Affine | None], path: Path) -> list[Range]:
        """Where an access reaches, relative to the tile's origin; everywhere along a dimension with no affine index."""
        return [
            (0, int(extent)) if form is None else self._range(op, form, path)  # type: ignore[arg-type]
            for form, extent in zip(forms, self.shapes[tensor].shape, strict=True)
        ]

    def _range(self, op: str, form: Affine, path: Path) -> Range:
        low: Number = form.constant
        high: Number = form.constant + 1
        for axis, coefficient in form.terms.items():
            last = coefficient * (self.extent(op, axis.name, path) - 1)
            low, high = (low, high + last) if coefficient > 0 else (low + last, high)
        return low, high

    def extent(self, op: str, axis: str, path: Path) -> Number:
        """How many values of a loop one execution of the node at `path` covers."""
        key = (op, axis, path)
        if key not in self.known:
            self.known[key] = self._extent(op, axis, path)
        return self.known[key]

    def _extent(self, op: str, axis: str, path: Path) -> Number:
        compute = self.computes[op]
        whole = next(int(a.extent) for a in compute.loops if a.name == axis)  # type: ignore[arg-type]
        if all(axis != a.name for a in compute.body_loops):
            return whole  # an ordered accumulation gives all of it
        name = self.problem.names[op, axis]
        covered: Number = 1
        for depth, factor in self.loops[op].get(name, ()):
            covered = covered * (factor if depth >= len(path) else 1)
        ranges = []
        place, _ = self.places[op]
        for consumer, form in self.problem.derived.get((op, axis), ()):
            if consumer in self.places:
                shared = same_path(place, self.places[consumer][0])
                ranges.append(self._range(consumer, form, path if shared[: len(path)] == path else shared))
        if not ranges:
            return least(covered, whole)
        hull = reduce(greatest, (b for _, b in ranges)) - reduce(least, (a for a, _ in ranges))
        return least(least(hull, whole), covered) if name in self.loops[op] else least(hull, whole)

    def _around(self, place: Path, leaf: Leaf) -> dict[str, list[tuple[int, Number]]]:
        """The loops around a leaf by name, the micro-kernel's included: the depth of their node, and their factor."""
        found: dict[str, list[tuple[int, Number]]] = {}
        for depth in range(len(place)):
            tile = self.tiles.get(place[:depth])
            once = tile is not None and tile.level in self.levels
            for number, loop in enumerate(tile.loops if tile is not None else ()):
                factor = 1 if once else _factor(loop, self.factors, place[:depth], number)
                found.setdefault(loop.name, []).append((depth, factor))
        for loop in leaf.kernel.quantum if leaf.kernel is not None else ():
            found.setdefault(loop.name, []).append((len(place), loop.trips))
        return found
