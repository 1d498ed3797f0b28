"""Cycles of scans, sorts and scatters on a CPU when all data are near, as `cycles` has them of products and nests."""

from __future__ import annotations

from math import log2, prod

from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, walk
from tilewright.expr.ordered import PrefixScan, Scatter, Sort
from tilewright.machine.description import Cpu
from tilewright.operator.cycles import FMA_LATENCY_CYCLES, ISSUE_WIDTH, body_counts, slowest_port
from tilewright.operator.ordered import OrderedSchedule, OrderedWork, trailing
from tilewright.operator.sorting import Rows, sort_methods

RENAMED = 6  # instructions per cycle, scalar ones included: Golden Cove renames six, Zen 5 eight
PLACE_INSTRUCTIONS = 6  # of one place of an update: multiply, add, compare, and; branch and loop


def ordered_cycles(work: OrderedWork, schedule: OrderedSchedule, machine: Cpu) -> float:
    """Cycles of an ordered accumulation, of all threads together."""
    if isinstance(work.accum, Sort):
        return _sort_cycles(work, schedule, machine)
    vector = next((axis for axis in work.outer if axis.name == schedule.vector), None)
    lanes = 1 if vector is None else schedule.lanes
    outer = prod(-(-axis.size // lanes) if axis == vector else axis.size for axis in work.outer)
    updates = prod(axis.size for axis in work.inner)
    if isinstance(work.accum, PrefixScan):
        return outer * _scan_cycles(work, work.accum, schedule, vector, updates, machine)
    return outer * updates * _update_cycles(work, work.accum, vector, lanes, machine)


def _sort_cycles(work: OrderedWork, schedule: OrderedSchedule, machine: Cpu) -> float:
    (inner,), (wanted,) = work.inner, work.extents
    methods = sort_methods(Rows(work.parts[0], work.outer, inner, wanted), schedule.lanes, machine.vector_registers)
    return next(cycles for cycles, method in methods if method == schedule.sort)


def _scan_cycles(
    work: OrderedWork, accum: PrefixScan, schedule: OrderedSchedule, vector: Axis | None, steps: int, machine: Cpu
) -> float:
    """Cycles of one row, or of one vector of rows: each sum waits for the one before.

    Several vectors of rows wait at the same time. Neighbours of a row are combined at distances 1, 2, 4, …, with a
    shuffle each; then the last sum is copied to all lanes and added to the next ones.
    """
    arithmetic, loads = body_counts(work.parts[0], vector or work.inner[-1], schedule.lanes)
    registers = 2 if work.tensor.dtype == "f32" and accum.combine in ("sum", "prod") else 1  # carried in f64
    if schedule.neighbours > 1:
        within = registers * (2 * log2(schedule.neighbours) + 2)
        ports = slowest_port(arithmetic + within, loads, 1.0, machine)
        return -(-steps // schedule.neighbours) * max(ports, 2 * FMA_LATENCY_CYCLES)
    side_by_side = max(1, schedule.extent // schedule.lanes)
    ports = slowest_port(arithmetic + registers, loads, 1.0, machine)
    return steps * max(side_by_side * ports, FMA_LATENCY_CYCLES) / side_by_side


def _update_cycles(work: OrderedWork, accum: Scatter, vector: Axis | None, lanes: int, machine: Cpu) -> float:
    """Cycles of one update of one element, or of a vector of them: read, combined and written."""
    arithmetic, loads = body_counts(work.parts[0], vector, lanes)
    if accum.combine:
        arithmetic, loads = arithmetic + 1, loads + 1
    moved = {axis for place in work.parts[1:] for axis in walk(place)}
    hoisted = moved.isdisjoint(trailing(work))  # places are computed once for all trailing points
    along = prod(-(-axis.size // lanes) if axis == vector else axis.size for axis in trailing(work)) if hoisted else 1
    scalars = 0.0
    for place in work.parts[1:]:
        if affine(place) is not None:
            scalars += 1 / along  # a sum of loops is known to be inside the dimension: it is only added
            continue
        computed = sum(1 for each in walk(place) if isinstance(each, Apply))
        scalars += (computed + PLACE_INSTRUCTIONS) / along
        loads += body_counts(place, None, 1)[1] / along
    ports = slowest_port(arithmetic, loads, 1.0, machine)
    own = arithmetic + loads + 1
    return max(ports, own / ISSUE_WIDTH, (own + scalars) / RENAMED)
