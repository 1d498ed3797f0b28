"""Cycles of scans, sorts and scatters on a CPU when all data are near, as `cycles` has them of products and nests."""

from __future__ import annotations

from math import log2, prod

from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, walk
from tilewright.expr.ordered import PrefixScan, Scatter, Sort
from tilewright.machine.description import Cpu
from tilewright.operator.cycles import FMA_LATENCY_CYCLES, ISSUE_WIDTH, body_counts, slowest_port
from tilewright.operator.ordered import trailing, value_and_places
from tilewright.operator.sorting import method_of, sort_methods
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.parts import Parts

RENAMED = 6  # instructions per cycle, scalar ones included: Golden Cove renames six, Zen 5 eight
PLACE_INSTRUCTIONS = 6  # of one place of an update: multiply, add, compare, and; branch and loop


def ordered_cycles(kernel: Kernel, machine: Cpu) -> float:
    """Cycles of an ordered accumulation, of all threads together."""
    (statement,), tree = kernel.statements, Parts(kernel)
    if isinstance(statement.accum, Sort):
        return _sort_cycles(statement, tree, machine)
    name, _, lanes = tree.vector()
    vector = next((axis for axis in statement.axes if axis.name == name), None)
    lanes = 1 if vector is None else lanes
    outer = prod(-(-axis.size // lanes) if axis == vector else axis.size for axis in statement.axes)
    updates = prod(axis.size for axis in statement.reduce)
    if isinstance(statement.accum, PrefixScan):
        return outer * _scan_cycles(statement, statement.accum, tree, vector, machine)
    assert isinstance(statement.accum, Scatter)
    return outer * updates * _update_cycles(statement, statement.accum, vector, lanes, machine)


def _sort_cycles(statement: Statement, tree: Parts, machine: Cpu) -> float:
    _, _, lanes = tree.vector()
    methods = sort_methods(statement, lanes, machine.vector_registers)
    return next(cycles for cycles, method in methods if method == method_of(tree))


def _scan_cycles(statement: Statement, accum: PrefixScan, tree: Parts, vector: Axis | None, machine: Cpu) -> float:
    """Cycles of one row, or of one vector of rows: each sum waits for the one before.

    Several vectors of rows wait at the same time. Neighbours of a row are combined at distances 1, 2, 4, …, with a
    shuffle each; then the last sum is copied to all lanes and added to the next ones.
    """
    (inner,), (_, extent, lanes) = statement.reduce, tree.vector()
    arithmetic, loads = body_counts(statement.body, vector or inner, lanes)
    registers = 2 if statement.tensor.dtype == "f32" and accum.combine in ("sum", "prod") else 1  # carried in f64
    neighbours = tree.number("neighbours", 1)
    if neighbours > 1:
        within = registers * (2 * log2(neighbours) + 2)
        ports = slowest_port(arithmetic + within, loads, 1.0, machine)
        return -(-inner.size // neighbours) * max(ports, 2 * FMA_LATENCY_CYCLES)
    side_by_side = max(1, extent // lanes)
    ports = slowest_port(arithmetic + registers, loads, 1.0, machine)
    return inner.size * max(side_by_side * ports, FMA_LATENCY_CYCLES) / side_by_side


def _update_cycles(statement: Statement, accum: Scatter, vector: Axis | None, lanes: int, machine: Cpu) -> float:
    """Cycles of one update of one element, or of a vector of them: read, combined and written."""
    value, places = value_and_places(statement)
    arithmetic, loads = body_counts(value, vector, lanes)
    if accum.combine:
        arithmetic, loads = arithmetic + 1, loads + 1
    inside = trailing(statement)
    moved = {axis for place in places for axis in walk(place)}
    hoisted = moved.isdisjoint(inside)  # places are computed once for all trailing points
    along = prod(-(-axis.size // lanes) if axis == vector else axis.size for axis in inside) if hoisted else 1
    scalars = 0.0
    for place in places:
        if affine(place) is not None:
            scalars += 1 / along  # a sum of loops is known to be inside the dimension: it is only added
            continue
        computed = sum(1 for each in walk(place) if isinstance(each, Apply))
        scalars += (computed + PLACE_INSTRUCTIONS) / along
        loads += body_counts(place, None, 1)[1] / along
    ports = slowest_port(arithmetic, loads, 1.0, machine)
    own = arithmetic + loads + 1
    return max(ports, own / ISSUE_WIDTH, (own + scalars) / RENAMED)
