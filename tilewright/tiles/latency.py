"""Cycles of a tile tree, from what moves and what is computed.

`phases` is Eq. 3.22 of the thesis (spec 1, section 5.8): the loads, the computation and the stores of a nest of tiles
overlap fully. `stepwise` runs the steps of the outermost nest one after the other through the ports of the machine:
loads run ahead by as many steps as the memory has slots, and stores behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.tiles.movement import Boundaries
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import Level, Number, Resources, greatest
from tilewright.tiles.timeline import steps
from tilewright.tiles.topology import Topology
from tilewright.tiles.traffic import Moved, Traffic
from tilewright.tiles.tree import SIMULTANEOUS, Kind, Leaf, Path, Scope
from tilewright.tiles.turns import Point

COMPUTE = "compute"  #: the bottleneck of a tree whose units are always busy


@dataclass(frozen=True)
class Phases:
    """Cycles of one node in the whole run, those of its children alone, and what decides about them."""

    cycles: Number
    inner: Number
    bottleneck: Any


def words(topology: Topology, level: Level, tensors: Mapping[str, Moved], which: str) -> Number:
    """Words of a level that move: "loads", "fills" or "stores" of elements of every tensor."""
    widths = topology.widths(level)
    total: Number = 0
    for name, moved in tensors.items():
        total = total + getattr(moved, which) * widths[name]
    return total


def port_cycles(level: Level, reads: Number, writes: Number, instances: Number = 1) -> tuple[Number, Number]:
    """Cycles that the ports of a level need for words that are read and written, over so many of its instances."""

    def cycles(amount: Number, rate: float | None) -> Number:
        return 0.0 * amount if rate is None else amount / (rate * instances)

    if level.shares_port:
        both = cycles(reads + writes, level.read_words_per_cycle)
        return both, both
    return cycles(reads, level.read_words_per_cycle), cycles(writes, level.write_words_per_cycle)


def operand_words(topology: Topology, op: str, level: Level) -> float:
    """Words that one evaluation of an expression reads from the innermost level: its operands, and what it adds to."""
    compute, widths = topology.computes[op], topology.widths(level)
    operands = sum(widths[read.tensor.name] for read in compute.reads())
    return operands + (widths[op] if compute.reduce else 0)


def factor_words(topology: Topology, one: Rescaled, level: Level) -> float:
    """Words that one multiplication of a rescaled sum reads from the innermost level: its factor's and the sum's."""
    widths = topology.widths(level)
    return one.reads * widths[one.value.name] + widths[one.rescaling.total]


def phases(
    boundaries: Boundaries, point: Point, traffic: Traffic, resources: Resources, *, exact_pipe: bool = False
) -> dict[Path, Phases]:
    """Cycles of every nest and leaf, by path; the root's, by the empty path, are those of the tree.

    With `exact_pipe`, a pipe also takes the time until its last child has its first step.
    """
    return _Phases(boundaries, point, traffic, resources, exact_pipe).run()


class _Phases:
    def __init__(
        self, boundaries: Boundaries, point: Point, traffic: Traffic, resources: Resources, exact_pipe: bool
    ) -> None:
        self.boundaries, self.point, self.traffic = boundaries, point, traffic
        self.resources, self.exact_pipe, self.topology = resources, exact_pipe, boundaries.topology
        self.found: dict[Path, Phases] = {}

    def run(self) -> dict[Path, Phases]:
        self.found[()] = self.node(())
        return self.found

    def node(self, path: Path) -> Phases:
        node = self.topology.nodes[path]
        if isinstance(node, Leaf):
            self.found[path] = self.leaf(path, node.op)
            return self.found[path]
        if isinstance(node, Scope):
            return self.scope(path, node)
        inner = self.node((*path, 0))
        if path != self.topology.top(path):
            return inner
        self.found[path] = self.overlapped(path, inner)
        return self.found[path]

    def overlapped(self, top: Path, inner: Phases) -> Phases:
        """Loads, children and stores of a nest at the same time."""
        cycles, bottleneck = inner.cycles, inner.bottleneck
        if self.topology.level(top) == len(self.topology.levels) - 1:
            return inner  # operands of the units: the leaves have them
        moved = self.traffic.moved[top]
        ways = {name: {self.topology.source(top, name), *self.topology.through(top, name)} for name in moved}
        for number in sorted({self.topology.level(top)}.union(*ways.values())):
            level = self.topology.levels[number]
            here = {name: one for name, one in moved.items() if number in ways[name]}
            loads, stores = words(self.topology, level, here, "loads"), words(self.topology, level, here, "stores")
            read, write = port_cycles(level, loads, stores, self.instances(top, number))
            for own, name in ((read, f"{level.name} read"), (write, f"{level.name} write")):
                bottleneck = _chosen(own > cycles, name, bottleneck)
                cycles = greatest(cycles, own)
        return Phases(cycles, inner.cycles, bottleneck)

    def instances(self, top: Path, level: int) -> Number:
        """Instances of a level that a nest runs in."""
        total: Number = 1
        for loop in self.topology.above(top):
            total = total * (self.point.factors[loop] if loop.spatial and loop.level < level else 1)
        return total

    def scope(self, path: Path, scope: Scope) -> Phases:
        children = [self.node((*path, number)) for number in range(len(scope.children))]
        longest = children[0]
        for child in children[1:]:
            more = child.cycles > longest.cycles
            bottleneck = _chosen(more, child.bottleneck, longest.bottleneck)
            longest = Phases(greatest(child.cycles, longest.cycles), 0, bottleneck)
        total = sum(child.cycles for child in children)
        if scope.kind not in SIMULTANEOUS:
            return Phases(total, total, longest.bottleneck)
        cycles = longest.cycles
        if self.exact_pipe and scope.kind is Kind.PIPE:
            steps: Number = 1
            for loop in self.topology.above(path):
                steps = steps * (1 if loop.spatial else self.point.factors[loop])
            cycles = cycles + (total - cycles) / steps
        return Phases(cycles, cycles, longest.bottleneck)

    def leaf(self, path: Path, op: str) -> Phases:
        """Evaluations and multiplications of the busiest unit, or the words that they take from its registers."""
        _, busiest = self.boundaries.points(self.point, op)
        level = self.topology.levels[-1]
        taken = busiest * operand_words(self.topology, op, level)
        for one in self.topology.rescaled.get(op, ()):
            _, most = self.boundaries.multiplied(self.point, one)
            busiest, taken = busiest + most, taken + most * factor_words(self.topology, one, level)
        computed = busiest / self.resources.units_of(self.topology.computes[op]).operations_per_cycle
        read, _ = port_cycles(level, taken, 0 * busiest)
        return Phases(greatest(computed, read), computed, _chosen(read > computed, f"{level.name} read", COMPUTE))


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition, a, b) if isinstance(condition, np.ndarray) else (a if condition else b)


# Step by step ---------------------------------------------------------------------------------------------------------


def stepwise(
    boundaries: Boundaries, point: Point, traffic: Traffic, resources: Resources, inner: Mapping[Path, Phases]
) -> float:
    """Cycles of one tree whose outermost nests run step by step; `inner` are the phases of the tree.

    A load waits for its port and for a slot of the memory that it fills, a computation for its operands and the store
    that is `store_slots` steps before, a store for its value. Each has the latency of its part of the machine. A step
    computes for its share of the cycles that its visit takes in `inner`, and moves its share of what inner nests
    exchange with the outermost level past the others.
    """
    topology, outer = boundaries.topology, resources.levels[0]
    buffer = resources.levels[min(1, len(resources.levels) - 1)]
    found = steps(boundaries, point)
    cycles = np.array([inner[path].cycles for path in found.visits], float)
    loads, stores = (
        _words(topology, outer, moved) + found.share * _passing(topology, traffic, found.visits, which)[found.visit]
        for moved, which in ((found.loads, "loads"), (found.stores, "stores"))
    )
    reading = loads / (outer.read_words_per_cycle or np.inf) + np.where(loads > 0, outer.read_latency_cycles, 0)
    rate = outer.read_words_per_cycle if outer.shares_port else outer.write_words_per_cycle
    writing = stores / (rate or np.inf) + np.where(stores > 0, outer.write_latency_cycles, 0)
    working = found.share * cycles[found.visit] + resources.compute_latency_cycles
    ready = computed = stored = 0.0  # when the last step has its operands, its results, and has stored them
    computations: list[float] = []
    storages: list[float] = []
    for step, (read, work, write) in enumerate(zip(reading.tolist(), working.tolist(), writing.tolist(), strict=True)):
        slot = computations[step - buffer.load_slots] if step >= buffer.load_slots else 0.0
        ready = max(ready, slot) + read
        slot = storages[step - buffer.store_slots] if step >= buffer.store_slots else 0.0
        computed = max(ready, computed, slot) + work
        if write:
            stored = max(computed, stored, ready if outer.shares_port else 0.0) + write
            ready = max(ready, stored) if outer.shares_port else ready
        stored = max(stored, computed)
        computations.append(computed)
        storages.append(stored)
    return stored


def _passing(topology: Topology, traffic: Traffic, visits: Sequence[Path], which: str) -> np.ndarray[Any, Any]:
    """Words of the outermost level that nests inside each visit load or store, past the levels between."""
    total = np.zeros(len(visits))
    for top, tensors in traffic.moved.items():
        inside = topology.level(top) > 0
        past = {name: moved for name, moved in tensors.items() if inside and topology.source(top, name) == 0}
        for number, visit in enumerate(visits):
            if top[: len(visit)] == visit:
                total[number] += words(topology, topology.levels[0], past, which)
    return total


def _words(topology: Topology, level: Level, elements: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    widths = topology.widths(level)
    return np.asarray(sum(moved * widths[name] for name, moved in elements.items()), float)
