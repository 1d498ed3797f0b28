"""Cycles of scans, sorts and scatters on a CPU when all data are near, as `cycles` has them of products and nests.

Of a scatter, what its updates read and write beyond L2 is counted: lines come again, in any order.
"""

from __future__ import annotations

from math import log2, prod

from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Tensor, walk
from tilewright.expr.dtypes import size_bytes
from tilewright.expr.ordered import PrefixScan, Scatter, Sort
from tilewright.machine.description import SCATTERED, Cpu
from tilewright.operator.cycles import FMA_LATENCY_CYCLES, ISSUE_WIDTH, body_counts, slowest_port
from tilewright.operator.ordered import trailing, value_and_places
from tilewright.operator.ordered_tree import OrderedTree, ordered_tree
from tilewright.operator.sorting import method_of, sort_methods
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.tree import InvalidTree

RENAMED = 6  # instructions per cycle, scalar ones included: Golden Cove renames six, Zen 5 eight
PLACE_INSTRUCTIONS = 6  # of one place of an update: multiply, add, compare, and; branch and loop


def ordered_cycles(kernel: Kernel, machine: Cpu) -> float:
    """Cycles of an ordered accumulation, of all threads together."""
    tree = ordered_tree(kernel)
    statement, vector = tree.statement, None if tree.vector is None else tree.vector.axis
    if isinstance(statement.accum, Sort):
        return _sort_cycles(statement, tree, machine)
    lanes = 1 if vector is None else tree.lanes
    outer = prod(-(-axis.size // lanes) if axis == vector else axis.size for axis in statement.axes)
    updates = prod(axis.size for axis in statement.reduce)
    if isinstance(statement.accum, PrefixScan):
        return outer * _scan_cycles(statement, statement.accum, tree, machine)
    assert isinstance(statement.accum, Scatter)
    return outer * updates * _update_cycles(statement, statement.accum, vector, lanes, machine)


def _sort_cycles(statement: Statement, tree: OrderedTree, machine: Cpu) -> float:
    """Raises InvalidTree for a method that does not sort such rows."""
    wanted, methods = method_of(tree), sort_methods(statement, tree.lanes, machine)
    found = next((cycles for cycles, method in methods if method == wanted), None)
    if found is None:
        usable = ", ".join(dict.fromkeys(method.word for _, method in methods))
        raise InvalidTree(f"{statement.name} is not sorted by {wanted.word}", help=f"hint sort: {usable}")
    return found


def _scan_cycles(statement: Statement, accum: PrefixScan, tree: OrderedTree, machine: Cpu) -> float:
    """Cycles of one row, or of one vector of rows: each sum waits for the one before.

    Several vectors of rows wait at the same time. Neighbours of a row are combined at distances 1, 2, 4, …, with a
    shuffle each; then the last sum is copied to all lanes and added to the next ones.
    """
    (inner,), vector, lanes = statement.reduce, tree.vector, tree.lanes
    arithmetic, loads = body_counts(statement.body, machine, inner if vector is None else vector.axis, lanes)
    registers = 2 if statement.tensor.dtype == "f32" and accum.combine in ("sum", "prod") else 1  # carried in f64
    neighbours = tree.neighbours
    if neighbours > 1:
        within = registers * (2 * log2(neighbours) + 2)
        ports = slowest_port(arithmetic + within, loads, 1.0, machine)
        return -(-inner.size // neighbours) * max(ports, 2 * FMA_LATENCY_CYCLES)
    side_by_side = 1 if vector is None else max(1, vector.quantum // lanes)
    ports = slowest_port(arithmetic + registers, loads, 1.0, machine)
    return inner.size * max(side_by_side * ports, FMA_LATENCY_CYCLES) / side_by_side


def _update_cycles(statement: Statement, accum: Scatter, vector: Axis | None, lanes: int, machine: Cpu) -> float:
    """Cycles of one update of one element, or of a vector of them: read, combined and written."""
    value, places = value_and_places(statement)
    arithmetic, loads = body_counts(value, machine, vector, lanes)
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
        loads += body_counts(place, machine, None, 1)[1] / along
    ports = slowest_port(arithmetic, loads, 1.0, machine)
    own = arithmetic + loads + 1
    arriving = _arriving_cycles(statement.tensor, lanes if hoisted else 0, machine)
    return max(ports, own / ISSUE_WIDTH, (own + scalars) / RENAMED, arriving)


def _arriving_cycles(result: Tensor, neighbours: int, machine: Cpu) -> float:
    """Cycles in which elements beside each other arrive from beyond L2, and leave; none where L2 holds the result.

    Elements without neighbours lie in a line each, to which no stream leads.
    """
    near = machine.caches[:2][-1]
    if result.size_bytes <= near.bytes:
        return 0.0
    alone = near.line_bytes * (machine.scattered_factor or SCATTERED)
    moved = neighbours * size_bytes(result.dtype) if neighbours else alone
    return 2 * moved / machine.rate_beyond_l2(result.size_bytes)
