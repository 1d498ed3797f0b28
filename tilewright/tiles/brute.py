"""The data movement of a tile tree by walking every step of it: the definition that the fast method must agree with.

Each memory instance holds at most one slice of a tensor. A visit to a child asks for the child's slice: what the
instance lacks is loaded, and what the child wrote earlier and does not need any more is stored. The state stays until
the next visit, so that data which consecutive steps share moves once. Spec 1, section 5.4, is the source; where it is
silent, this file decides:

* A child that writes a tensor loads of it only what it goes on summing up: nothing at the first step of its temporal
  reduction loops, also when a loop runs the child again.
* What a child wrote is stored whole before another child of the same memory reads it.
* After a child of `Seq`, its tensors are dropped that the next child does not need. After the last child, the next one
  is the first again where the scope fills a tile, and nobody where it stands in another scope. Tensors that a tile of
  the nest around keeps are not dropped, nor are those that a stage around the scope has in the memory that the nest
  fills, or further in.
* Of a value that a tile keeps, a step computes what the step before it along the innermost loop that moves it did not.
* Loops that follow from those of consumers cut what one step there needs. Seen from further out, a value has all that
  any step needs, from the first to the last element.
* An expression of which no point runs in a step needs nothing there: its windows lie outside of what there is, or the
  step before has computed all of it. A child without any other expression is not visited.
* Children share the slices of a memory instance when they stand inside the same spatial tiles of the nest.
* With `multicast`, instances that differ in spatial loops which do not move the slice read it together, those of them
  that run the step. Without it each one reads. Stores of such instances are one store: the level adds up what they
  computed.
* Nothing stays in the inner levels between the children of a scope that no tile surrounds.
* A level that accumulates needs no loads of partial sums.
* A memory that does not retain loads what a child reads at each visit. What the child writes stays.
* A slice is clipped to its tensor along each dimension, a step to the extents of its loops. A loop that a mask ends
  early (hint `seen`) has that end for an extent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from tilewright.tiles.memories import Key, Memories, Place
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Number, Resources
from tilewright.tiles.topology import LoopAt, Topology, bound
from tilewright.tiles.traffic import Traffic
from tilewright.tiles.tree import Leaf, Path, Scope, Tile, TileTree

Box = tuple[tuple[int, int], ...]
Digits = dict[LoopAt, int]


def walk(
    tree: TileTree, problem: Problem, *, resources: Resources | None = None, compat_evict: bool = False
) -> Traffic:
    """Loads, fills and stores of every tensor at every level of a tree, by execution of all of its steps.

    Without `resources`, the levels are those that the tree names, and each can multicast. `compat_evict` counts as the
    public artifact of TileFlow does: `Pipe` drops slices as `Seq` does, and a first partial sum is loaded as well.
    Raises Unanalysable for a tree without a defined movement. The time is proportional to the steps of the tree.
    """
    topology = Topology(tree, problem, resources)
    return Walk(topology, bound(topology), compat_evict=compat_evict).traffic


class Walk:
    """The execution of a prepared tree with these factors: what moves, and how often expressions are evaluated.

    `evaluations` has the points of each expression by the iterations of spatial loops around it.
    """

    def __init__(
        self, topology: Topology, factors: Mapping[LoopAt, int], *, compat_evict: bool = False
    ) -> None:  # fmt: skip
        self.topology, self.factors, self.compat_evict = topology, factors, compat_evict
        self.strides = topology.strides(self.factors)
        self.iterations = {loop: self.spread(loop) for loop in factors if loop.spatial}
        self.memories = self.empty_memories()
        self.evaluations: dict[str, Counter[Place]] = {op: Counter() for op in topology.places}
        self.node((), {})
        self.traffic: Traffic = self.memories.traffic()

    def empty_memories(self) -> Memories[Any]:
        """Memories that hold nothing, for slices as `slice` gives them."""
        return Memories(self.topology, lacking, compat_evict=self.compat_evict, iterations=self.iterations)

    def spread(self, loop: LoopAt) -> Mapping[int, int]:
        """The iterations of a spatial loop to be run, and how many each of them stands for."""
        return dict.fromkeys(range(self.factors[loop]), 1)

    # The program

    def node(self, path: Path, digits: Digits) -> None:
        """Run a node once, after the nest around it has made its slices resident."""
        node = self.topology.nodes[path]
        if isinstance(node, Leaf):
            self.evaluate(path, node.op, digits)
            return
        if isinstance(node, Scope):
            for number in range(len(node.children)):
                self.child((*path, number), digits)
                self.memories.evict(path, node, number)
            return
        child = (*path, 0)
        for now in self.steps(self.topology.loops[path], digits):
            if any(self.live(child, instance) for instance in self.instances(child, now)):
                self.child(child, now)

    def steps(self, loops: Sequence[LoopAt], digits: Digits) -> Iterator[Digits]:
        """The steps of the loops of a tile in turn: all iterations of spatial ones are one step."""
        for step in product(*([0] if loop.spatial else range(self.factors[loop]) for loop in loops)):
            yield {**digits, **dict(zip(loops, step, strict=True))}

    def child(self, path: Path, digits: Digits) -> None:
        """Run a child: it is visited where the level changes."""
        around = self.topology.around(path)
        node = self.topology.nodes[path]
        leaves_nest = isinstance(node, Leaf) or (
            isinstance(node, Tile) and bool(around) and self.topology.level(path) != self.topology.level(around[-1])
        )
        if leaves_nest:
            self.visit(path, self.topology.top(around[-1]), digits)
        self.node(path, digits)

    def evaluate(self, path: Path, op: str, digits: Digits) -> None:
        """Count the points of an expression at one step of all units."""
        points = self.topology.points_of(op)
        for instance in self.instances(path, digits):
            if self.live(path, instance):
                place = tuple(instance[loop] for loop in self.topology.above(path) if loop.spatial)
                self.evaluations[op][place] += self.memories.times * size(self.slice(path, points, instance))

    def evaluated(self, op: str) -> tuple[int, int]:
        """How often an expression was evaluated: on all units together, and on the one that does most."""
        counts = self.evaluations[op]
        loops = [loop for loop in self.topology.above(self.topology.places[op]) if loop.spatial]
        every = 0
        for place, count in counts.items():
            every += count * prod(self.iterations[loop][at] for loop, at in zip(loops, place, strict=True))
        return every, max(counts.values(), default=0)

    # One visit

    def visit(self, path: Path, top: Path, digits: Digits) -> None:
        """Bring the slices of a child into every memory instance that runs it."""
        level = self.topology.level(top)
        tiles = self.topology.par_tiles(path)
        read: set[Key] = set()
        for instance in self.instances(path, digits):
            if not self.live(path, instance):
                continue
            place = tuple(instance[loop] for loop in self.topology.above(path) if loop.spatial)
            idle = self.idle(path, instance)
            for tensor in self.topology.crossing(path, level):
                if idle and all(access.op in idle for access in self.topology.accesses(path, tensor)):
                    continue
                need = self.slice(path, tensor, instance, idle)
                writes = tensor in self.topology.ops(path) and tensor not in idle
                adds = writes and not self.topology.levels[level].accumulate and self.continues(path, tensor, instance)
                reads = need if not writes or adds else None
                key = (top, tensor, tiles, place)
                holder = self.memories.instance(key).holder
                self.memories.visit(key, need, reads, writes=writes, first=holder not in read)
                read.add(holder)

    def instances(self, path: Path, digits: Digits) -> Iterator[Digits]:
        """Every value of the spatial loops around a node."""
        loops = [loop for loop in self.topology.above(path) if loop.spatial]
        for values in product(*(self.iterations[loop] for loop in loops)):
            yield {**digits, **dict(zip(loops, values, strict=True))}

    # Geometry

    def at(self, digits: Digits, path: Path, axis: str) -> int:
        return sum(digits[loop] * self.strides[loop] for loop in self.topology.above(path) if loop.axis == axis)

    def inside(self, op: str, axis: str, path: Path) -> int:
        loops, size = self.topology.inside(op, axis, path)
        for loop in loops:
            size *= self.factors[loop]
        return size

    def slice(self, path: Path, tensor: str, digits: Digits, idle: Collection[str] = ()) -> Box:
        ends = self.ends(path, digits)

        def at(axis: str, _: Number) -> int:
            return self.at(digits, path, axis)

        def inside(op: str, axis: str, node: Path) -> int:
            size = self.inside(op, axis, node)
            return min(size, max(0, ends[axis] - self.at(digits, path, axis))) if axis in ends else size

        rank = len(self.topology.accesses(path, tensor)[0].shape)
        return tuple(self.topology.side(path, tensor, dim, at, inside, idle) for dim in range(rank))

    def idle(self, path: Path, digits: Digits) -> frozenset[str]:
        """The expressions below a node of which no point runs there."""

        def at(axis: str, _: Number) -> int:
            return self.at(digits, path, axis)

        found = set()
        for op in self.topology.ops(path):
            axes = self.topology.optional.get(op, ())
            ranges = (self.topology.range(op, axis, path, at, self.inside) for axis in axes)
            if any(end <= first for first, end in ranges):
                found.add(op)
        return frozenset(found)

    def ends(self, path: Path, digits: Digits) -> dict[str, int]:
        """Where the loops end that a mask ends early, while a node runs."""
        found = {}
        for one in self.topology.seen:
            last = one.last.constant
            for axis, factor in one.last.terms.items():
                name = self.topology.problem.names[one.op, axis.name]
                known = [loop for loop in self.topology.along(path, name) if loop in one.loops]
                first = sum(digits[loop] * self.strides[loop] for loop in known)
                size = self.inside(one.op, name, ()) // prod(self.factors[loop] for loop in known)
                last += factor * (min(first + size, self.topology.extents[name]) - 1 if factor > 0 else first)
            steps = max(last, 0) // one.points + 1
            found[one.axis] = min(steps * one.points, self.topology.extents[one.axis])
        return found

    def live(self, path: Path, digits: Digits) -> bool:
        """Whether the loops around a node are inside their extents."""

        def at(axis: str, _: Number) -> int:
            return self.at(digits, path, axis)

        extents = {**self.topology.extents, **self.ends(path, digits)} if self.topology.seen else self.topology.extents
        for axis in {loop.axis for loop in self.topology.above(path)}:
            if axis in extents:
                if self.at(digits, path, axis) >= extents[axis]:
                    return False
            elif axis in self.topology.cut:
                span = self.topology.span(*self.topology.cut[axis], path, at, self.inside)
                if span[0] + self.at(digits, path, axis) >= span[1]:
                    return False
        return not self.topology.optional or len(self.idle(path, digits)) < len(self.topology.ops(path))

    def continues(self, path: Path, tensor: str, digits: Digits) -> bool:
        """Whether a child adds to what it has written before."""
        sums = self.topology.problem.reductions(tensor)
        return (self.compat_evict and bool(sums)) or any(
            digits[loop] for loop in self.topology.above(path) if loop.axis in sums and not loop.spatial
        )


def lacking(box: Box, other: Box | None) -> int:
    """How many elements of a box are not in another one."""
    return size(box) - (0 if other is None else size(_common(box, other)))


def size(box: Box) -> int:
    """How many elements a box has."""
    found = 1
    for low, high in box:
        found *= max(0, high - low)
    return found


def _common(a: Box, b: Box) -> Box:
    return tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
