"""What a tile tree costs on a machine: cycles, energy, traffic and footprint of every level (spec 1, section 5).

One evaluation serves one tree, or all trees of one topology with different factors: then every number of the result is
an array with one entry per tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tilewright.collection import paused_collection
from tilewright.dataclass import dataclass
from tilewright.expr.core import Compute
from tilewright.tiles.energy import access_energies, energy_of_multiplication, energy_of_operation
from tilewright.tiles.footprints import Accesses, Footprints, footprint_bytes
from tilewright.tiles.latency import Phases, phases, stepwise, words
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.movement import Boundaries
from tilewright.tiles.problem import Problem
from tilewright.tiles.rescaling import Rescaled
from tilewright.tiles.resources import (
    Factors,
    Level,
    Number,
    Resources,
    Units,
    filling,
    greatest,
    instances,
    processing_elements,
)
from tilewright.tiles.topology import Topology
from tilewright.tiles.traffic import Moved, Traffic
from tilewright.tiles.tree import Path, TileTree

Mode = Literal["phases", "stepwise"]


@dataclass(frozen=True)
class LevelUse:
    """What a tree does with one memory level; counts are elements in the whole run, of all instances together.

    `read` are reads by children, `update` write-backs from children, `fill` what comes from the level outside, each by
    tensor. `accesses` are their words, `energy` is in 16-bit multiply-adds, `energy_source` says by which table.
    `footprint_bytes` is what one instance holds at most, `instances` how many are used. `slowdown` is the time of the
    tiles at this level over that of their children, 1 or more; `demand_words_per_cycle` is what the level gives and
    takes in the mean, over all of its instances.
    """

    level: Level
    read: Mapping[str, Number]
    update: Mapping[str, Number]
    fill: Mapping[str, Number]
    accesses: Number
    energy: Number
    energy_source: str
    footprint_bytes: Number
    instances: Number
    slowdown: Number
    demand_words_per_cycle: Number

    @property
    def capacity_use(self) -> Number:
        """The part of an instance that is used; 0 where its size is unlimited."""
        capacity = self.level.capacity_bytes
        return 0 * self.footprint_bytes if capacity is None else self.footprint_bytes / capacity

    @property
    def spatial_use(self) -> Number:
        """The part of the level's instances that is used; 0 where their number is unlimited."""
        return 0 * self.instances if self.level.instances is None else self.instances / self.level.instances


@dataclass(frozen=True)
class UnitsUse:
    """What a tree does with the units of one class: how many it uses, and how many of the `possible` operations."""

    units: Units
    used: Number
    operations: Number
    possible: Number

    @property
    def utilisation(self) -> Number:
        """The part of the peak of all units of the class."""
        return self.operations / greatest(self.possible, 1e-9)


@dataclass(frozen=True)
class Analysis:
    """Cycles and energy of a tree, and what each level contributes. Energy is in 16-bit multiply-adds.

    `operations` counts evaluations of expressions and multiplications of sums that are rescaled, `busiest` those of the
    unit that does most of each expression, `units` the units in use; `classes` has these by class of units.
    `bottleneck` is "compute", or a level with "read" or "write".
    """

    cycles: Number
    energy: Number
    operations: Number
    operation_energy: Number
    busiest: Number
    units: Number
    utilisation: Number
    bottleneck: Any
    levels: tuple[LevelUse, ...]
    classes: tuple[UnitsUse, ...]
    resources: Resources
    traffic: Traffic

    def metrics(self) -> dict[str, Number]:
        """Every number by the name that reports use (spec 1, section 5.10)."""
        found: dict[str, Number] = {"Cycle": self.cycles, "Energy": self.energy, "Flops": self.operations}
        found["Compute::Energy"] = self.operation_energy
        for use in self.levels:
            name = use.level.name
            for kind, counts in (("Read", use.read), ("Update", use.update), ("Fill", use.fill)):
                found[f"{name}::{kind}"] = sum(counts.values())
                found.update({f"{name}::{kind}::{tensor}": count for tensor, count in counts.items()})
            found[f"{name}::Accesses"], found[f"{name}::Energy"] = use.accesses, use.energy
            found[f"{name}::SlowDown"], found[f"{name}::CapUtil"] = use.slowdown, use.capacity_use
            found[f"{name}::SpatialUtil"] = use.spatial_use
            found[f"MEM::{name}"], found[f"SPATIAL::{name}"] = use.capacity_use, use.spatial_use
        return found


@paused_collection()
def analyse(
    tree: TileTree,
    problem: Problem,
    resources: Resources,
    *,
    factors: Any = None,
    mode: Mode = "phases",
    compat_evict: bool = False,
    exact_pipe: bool = False,
) -> Analysis:
    """Analyse a tree, or with `factors` of shape (trees, open loops) all trees of its topology.

    `mode` "phases" is Eq. 3.22; "stepwise" runs the outermost nest step by step, and is for one tree at a time.
    The other options are those of `movement` and `latency.phases`. Raises Unanalysable for a tree whose movement is not
    defined on the levels of the machine; a tree that is too large for it is analysed all the same.
    """
    return Analyser(tree, problem, resources, compat_evict=compat_evict).analysis(
        factors, mode=mode, exact_pipe=exact_pipe
    )


class Analyser:
    """A topology on a machine: what does not depend on factors is found once."""

    def __init__(self, tree: TileTree, problem: Problem, resources: Resources, *, compat_evict: bool = False) -> None:
        self.resources = resources
        self.topology = Topology(tree, problem, resources)
        self.boundaries = Boundaries(self.topology, compat_evict=compat_evict)
        tree, problem = self.topology.tree, self.topology.problem
        self._filled = filling(tree, resources)
        outer = [path for path, filled in self._filled.items() if filled < len(resources.levels) - 1]
        doubled = outer if resources.double_buffer else ()
        again = [one for every in self.topology.rescaled.values() for one in every]
        self._held = Footprints(
            Accesses(tree, problem, again), dedupe=True, doubled=doubled, weight=footprint_bytes, tiles=self._filled
        )
        self._classes = resources.by_class(self.topology.computes.values())
        self._access_energies = [access_energies(level) for level in resources.levels]
        computes = self.topology.computes
        self._operations = {op: energy_of_operation(compute, resources) for op, compute in computes.items()}
        self._multiplications = {
            one: energy_of_multiplication(one, resources, computes[one.rescaling.total]) for one in again
        }

    def analysis(self, factors: Any = None, *, mode: Mode = "phases", exact_pipe: bool = False) -> Analysis:
        """As `analyse`, with these factors."""
        topology, resources = self.topology, self.resources
        point = self.boundaries.point(factors)
        # The units' own registers are not moved between: what they read is the operands of every operation.
        traffic = self.boundaries.traffic_at(point, outermost=len(topology.levels) - 1)
        times = phases(self.boundaries, point, traffic, resources, exact_pipe=exact_pipe)
        cycles = times[()].cycles
        if mode == "stepwise":
            if point.in_batch:
                raise Unanalysable(
                    "step-wise latency of a batch of trees", where="tile tree", help="one tree at a time, or phases"
                )
            cycles = stepwise(self.boundaries, point, traffic, resources, times)
        points = {op: self.boundaries.points(point, op) for op in topology.places}
        again = {one: self.boundaries.multiplied(point, one) for one in self._multiplications}
        counts = (*points.values(), *again.values())
        operations = sum(every for every, _ in counts)
        placed = {(loop.tile, loop.index): factor for loop, factor in point.factors.items()}
        made = {op: every for op, (every, _) in points.items()}
        for one, (every, _) in again.items():
            made[one.rescaling.total] = made[one.rescaling.total] + every
        classes = tuple(self._units_use(units, ops, placed, made, cycles) for units, ops in self._classes)
        energy = sum(every * self._operations[op] for op, (every, _) in points.items())
        energy += sum(every * self._multiplications[one] for one, (every, _) in again.items())
        operands = operands_of(
            topology.computes,
            {op: every for op, (every, _) in points.items()},
            {one: every for one, (every, _) in again.items()},
        )
        held = self._held.at(placed)
        largest: dict[int, Number] = {}
        for path, filled in self._filled.items():
            largest[filled] = greatest(largest.get(filled, 0), held[path])
        uses = tuple(
            self._use(number, placed, traffic, times, largest.get(number, 0), operands, cycles)
            for number in range(len(topology.levels))
        )
        return Analysis(
            cycles,
            energy + sum(use.energy for use in uses),
            operations,
            energy,
            sum(most for _, most in counts),
            sum(each.used for each in classes),
            operations / sum(each.possible for each in classes),
            times[()].bottleneck,
            uses,
            classes,
            resources,
            traffic,
        )

    def _units_use(
        self, units: Units, ops: frozenset[str], placed: Factors, made: Mapping[str, Number], cycles: Number
    ) -> UnitsUse:
        used = processing_elements(self.topology.tree, placed, ops=ops)
        available = used if units.count is None else units.count
        possible = greatest(cycles, 1e-9) * available * units.operations_per_cycle
        return UnitsUse(units, used, sum(made[op] for op in made if op in ops), possible)

    def _use(
        self,
        number: int,
        placed: Factors,
        traffic: Traffic,
        times: Mapping[Path, Phases],
        footprint: Number,
        operands: Mapping[str, Moved],
        cycles: Number,
    ) -> LevelUse:
        topology, level = self.topology, self.topology.levels[number]
        inner = traffic.at(level.name) if number < len(topology.levels) - 1 else operands
        outer = traffic.into(level.name)
        read, update = words(topology, level, inner, "loads"), words(topology, level, inner, "stores")
        fill = words(topology, level, outer, "fills")
        read_energy, write_energy, source = self._access_energies[number]
        slowdown: Number = 1.0
        for top in topology.tops:
            if topology.level(top) == number and number < len(topology.levels) - 1:
                slowdown = greatest(slowdown, times[top].cycles / greatest(times[top].inner, 1e-9))
        if number == len(topology.levels) - 1:
            slowdown = self._operand_slowdown(level, times)
        return LevelUse(
            level,
            {name: moved.loads for name, moved in inner.items()},
            {name: moved.stores for name, moved in inner.items()},
            {name: moved.fills for name, moved in outer.items()},
            read + update + fill,
            read * read_energy + (update + fill) * write_energy,
            source,
            footprint,
            self._instances(number, placed),
            slowdown,
            (read + update) / greatest(cycles, 1e-9),
        )

    def _instances(self, number: int, placed: Factors) -> Number:
        """Instances of a level in use; every unit has one of the innermost level."""
        tree, resources = self.topology.tree, self.resources
        if number < len(resources.levels) - 1:
            return instances(tree, resources, number, placed)
        return sum(instances(tree, resources, number, placed, ops) for _, ops in self._classes)

    def _operand_slowdown(self, level: Level, times: Mapping[Path, Phases]) -> Number:
        slowdown: Number = 1.0
        for place in self.topology.places.values():
            slowdown = greatest(slowdown, times[place].cycles / greatest(times[place].inner, 1e-9))
        return slowdown


def operands_of(
    computes: Mapping[str, Compute], points: Mapping[str, Number], again: Mapping[Rescaled, Number] | None = None
) -> dict[str, Moved]:
    """What the units read from the innermost level and write to it: every operand of every operation.

    `points` are evaluations by the name of the expression; a reduction reads what it adds to as well. `again` counts
    multiplications of rescaled sums, which read the sum, and the running value where the factor does.
    """
    reads: dict[str, Number] = {}
    writes: dict[str, Number] = {}
    for op, count in points.items():
        compute = computes[op]
        for read in compute.reads():
            reads[read.tensor.name] = reads.get(read.tensor.name, 0) + count
        if compute.reduce:
            reads[op] = reads.get(op, 0) + count
        writes[op] = count
    for one, count in (again or {}).items():
        total, value = one.rescaling.total, one.value.name
        reads[total] = reads.get(total, 0) + count
        reads[value] = reads.get(value, 0) + one.reads * count
        writes[total] = writes.get(total, 0) + count
    names = dict.fromkeys((*reads, *writes))
    return {name: Moved(reads.get(name, 0), reads.get(name, 0), writes.get(name, 0)) for name in names}
