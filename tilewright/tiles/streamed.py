"""What expressions cost at least on a machine where no tree says how they run: by their movement alone.

Every tensor that comes from outside is read once and every result that leaves is written once, through all memory
levels, by all of their instances and units at the same time; values in between stay with the units. This is what maps
and rows of a softmax or a norm reach that are spread evenly. Of a dimension no more is read than its index has values,
so that a step over elements leaves them out, and a table that is indexed by data is not read whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Compute, Read, Tensor, walk
from tilewright.tiles.analysis import Analysis, LevelUse, UnitsUse, operands_of
from tilewright.tiles.energy import access_energies, energy_of_operation
from tilewright.tiles.latency import COMPUTE, port_cycles
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.traffic import Traffic

BYTE_BITS = 8
_LEAST_CYCLES = 1e-9  # of expressions without points


def streamed(computes: Sequence[Compute], results: Collection[str], resources: Resources) -> Analysis:
    """The cost of expressions, of which `results` leave them; extents are known.

    Levels hold nothing in this model: their footprint is 0. The bottleneck is "compute", or a level with "read" or
    "write", as in an analysis of a tree.
    """
    points = {compute.name: prod(axis.size for axis in compute.body_loops) for compute in computes}
    inside = {compute.name for compute in computes}
    incoming: dict[str, int] = {}
    tensors: dict[str, Tensor] = {compute.name: compute.output for compute in computes}
    for compute in computes:
        for tensor in compute.inputs():
            tensors[tensor.name] = tensor
        for read in compute.reads():
            name = read.tensor.name
            if name not in inside:
                incoming[name] = min(read.tensor.size, max(incoming.get(name, 0), _reached(read)))
    operands = {
        name: moved.loads for name, moved in operands_of({each.name: each for each in computes}, points).items()
    }
    outgoing = {compute.name: compute.output.size for compute in computes if compute.name in results}

    operations = sum(points.values())
    classes = []
    for units, ops in resources.by_class(computes):
        made = sum(points[op] for op in ops)
        count = units.count if units.count is not None else max(1, made)
        classes.append((units, count, made, count * units.operations_per_cycle))
    computation = max(made / rate for _, _, made, rate in classes)
    cycles, bottleneck = computation, COMPUTE
    last = len(resources.levels) - 1
    moved = []
    for number, level in enumerate(resources.levels):
        fill = {} if number == 0 else incoming
        taken, given = (operands, points) if number == last else (incoming, outgoing)
        ports = port_cycles(level, _words(taken, tensors, level), _words(given, tensors, level), level.instances or 1)
        moved.append((level, fill, taken, given, max(ports)))
        for own, kind in zip(ports, ("read", "write"), strict=True):
            if own > cycles:
                cycles, bottleneck = own, f"{level.name} {kind}"
    cycles = max(cycles, _LEAST_CYCLES)
    uses = tuple(_use(*each, tensors, cycles, max(computation, _LEAST_CYCLES)) for each in moved)
    units_uses = tuple(UnitsUse(units, count, made, cycles * rate) for units, count, made, rate in classes)
    operation_energy = sum(points[each.name] * energy_of_operation(each, resources) for each in computes)
    energy = operation_energy + sum(use.energy for use in uses)
    return Analysis(
        cycles, energy, operations, operation_energy, operations, sum(each.used for each in units_uses),
        operations / sum(each.possible for each in units_uses), bottleneck, uses, units_uses, resources,
        Traffic({}, {}, {}, {}),
    )  # fmt: skip


def _reached(read: Read) -> int:
    """At most so many elements a read reaches: per dimension as many as its index has values."""
    counts = []
    for index, extent in zip(read.indices, read.tensor.shape, strict=True):
        axes = {each for each in walk(index) if isinstance(each, Axis)}
        counts.append(min(int(extent), prod(axis.size for axis in axes)))  # type: ignore[arg-type]
    return prod(counts)


def _use(
    level: Level, fill: Mapping[str, int], read: Mapping[str, int], update: Mapping[str, int],
    ports: float, tensors: Mapping[str, Tensor], cycles: float, computation: float,
) -> LevelUse:  # fmt: skip
    taken, given, filled = (_words(each, tensors, level) for each in (read, update, fill))
    read_energy, write_energy, source = access_energies(level)
    return LevelUse(
        level, read, update, fill, taken + given + filled, taken * read_energy + (given + filled) * write_energy,
        source, 0, level.instances or 1, max(1.0, ports / computation), (taken + given) / cycles,
    )  # fmt: skip


def _words(counts: Mapping[str, int], tensors: Mapping[str, Tensor], level: Level) -> float:
    """Words of a level that elements of tensors take."""
    return sum(
        count * dtypes.size_bytes(tensors[name].dtype) * BYTE_BITS / level.word_bits for name, count in counts.items()
    )
