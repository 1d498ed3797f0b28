"""The walk of a tile tree with sets of elements for slices: what it moves where steps leave elements out.

`tiles.brute` has intervals, so that a step of windows with steps of 2 also has the elements between those that it
reads. Here a step has what its expressions read and write, at the points of their loops that run in it. A selection
reads only where its condition holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from tilewright.compiler.counting import by_levels, resources_of
from tilewright.expr.core import Apply, Axis, Cast, Const, Expr, Read, walk
from tilewright.machine.description import Cpu
from tilewright.tiles.brute import Digits, Walk
from tilewright.tiles.dimensions import with_dimensions
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.memories import Memories
from tilewright.tiles.problem import problem_of
from tilewright.tiles.resources import Number
from tilewright.tiles.topology import Topology, bound
from tilewright.tiles.traffic import Moved
from tilewright.tiles.tree import Path, Scope

Array = np.ndarray[Any, Any]
Elements = frozenset[int]
Levels = Mapping[str, Mapping[str, Moved]]
FUNCTIONS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.mod,
    "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal, "lt": np.less, "and": np.logical_and,
}  # fmt: skip


def exact_levels(kernel: Kernel, machine: Cpu) -> Levels:
    """What the tree of a kernel moves at each level, by tensor, as `compiler.counting` takes it from the model."""
    topology = Topology(kernel.tree, with_dimensions(problem_of(kernel)), resources_of(machine))
    return by_levels(_ExactWalk(topology, bound(topology)).traffic, topology.levels)


class _ExactWalk(Walk):
    """A walk whose slices are the numbers of elements."""

    def __init__(self, topology: Topology, factors: Mapping[Any, int]) -> None:
        self.reads = {op: list(_reads(topology.computes[op].body)) for op in topology.places}
        super().__init__(topology, factors)

    def empty_memories(self) -> Memories[Any]:
        return Memories(self.topology, lambda a, b: len(a) if b is None else len(a - b))

    def evaluate(self, path: Path, op: str, digits: Digits) -> None:
        """Nothing: what moves is of interest."""

    def slice(self, path: Path, tensor: str, digits: Digits, idle: Collection[str] = ()) -> Any:
        topology = self.topology
        meetings = [topology.meeting(op, axis) for op in topology.ops(path) for axis in topology.derived_axes(op)]
        if all(len(meeting) <= len(path) for meeting in meetings):
            return self._at_once(path, tensor, digits, idle)
        found: Elements = frozenset()  # steps inside have windows of their own
        for child, now in self._inside(path, digits):
            if self.live(child, now):
                found |= self.slice(child, tensor, now, self.idle(child, now))
        return found

    def _inside(self, path: Path, digits: Digits) -> Iterator[tuple[Path, Digits]]:
        """Every child of a node, in every step of its loops."""
        node, loops = self.topology.nodes[path], self.topology.loops.get(path, ())
        children = range(len(node.children) if isinstance(node, Scope) else 1)
        for step in product(*(range(self.factors[loop]) for loop in loops)):
            for number in children:
                yield (*path, number), {**digits, **dict(zip(loops, step, strict=True))}

    def _at_once(self, path: Path, tensor: str, digits: Digits, idle: Collection[str]) -> Elements:
        """The elements of a tensor that expressions below a node touch, all of whose points have one range."""

        def at(axis: str, _: Number) -> int:
            return self.at(digits, path, axis)

        found: set[int] = set()
        for op in self.topology.ops(path):
            if op in idle:
                continue
            compute = self.topology.computes[op]
            grid = _grid({a: self.topology.range(op, a.name, path, at, self.inside) for a in compute.loops})
            reads = [*self.reads[op], *([(Read(compute.output, compute.axes), None)] if op == tensor else [])]
            for read, condition in reads:
                if read.tensor.name == tensor:
                    found.update(_numbers(read, condition, grid).tolist())
        return frozenset(found)


def _reads(node: Expr, condition: Expr | None = None) -> Iterator[tuple[Read, Expr | None]]:
    """The reads of an expression, each with the condition under which it takes place."""
    if isinstance(node, Apply) and node.function == "select" and isinstance(node.args[2], Const):
        chosen, value, _ = node.args
        yield from _reads(chosen, condition)
        yield from _reads(value, chosen if condition is None else condition & chosen)
        return
    if isinstance(node, Read):
        yield node, condition
    children = node.args if isinstance(node, Apply) else (node.arg,) if isinstance(node, Cast) else ()
    for child in children:
        yield from _reads(child, condition)


def _grid(ranges: Mapping[Axis, tuple[int, int]]) -> dict[Axis, Array]:
    """The values of each axis along a dimension of its own."""
    count = len(ranges)
    return {
        axis: np.arange(*span).reshape([-1 if n == number else 1 for n in range(count)])
        for number, (axis, span) in enumerate(ranges.items())
    }


def _numbers(read: Read, condition: Expr | None, grid: Mapping[Axis, Array]) -> Array:
    """The elements of a tensor that a read touches where a condition holds."""
    if any(not values.size for values in grid.values()):
        return np.zeros(0, np.int64)
    axes = {node for part in (*read.indices, condition) if part is not None for node in walk(part)}
    moving = {axis: values if axis in axes else values.min() for axis, values in grid.items()}
    number: Any = np.int64(0)
    holds: Any = True if condition is None else _value(condition, moving)
    for index, extent in zip(read.indices, read.tensor.shape, strict=True):
        place = _value(index, moving)
        holds = np.logical_and(holds, (place >= 0) & (place < extent))
        number = number * extent + place
    number, holds = np.broadcast_arrays(number, holds)
    return np.unique(number[holds])


def _value(expr: Expr, grid: Mapping[Axis, Array]) -> Any:
    """An index or a condition at all points of a grid."""
    if isinstance(expr, Axis):
        return grid[expr]
    if isinstance(expr, Const):
        return expr.value
    assert isinstance(expr, Apply), f"{expr} is no index"
    return FUNCTIONS[expr.function](*(_value(each, grid) for each in expr.args))
