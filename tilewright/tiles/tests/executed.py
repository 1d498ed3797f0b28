"""A tree carried out step by step: which points of which expression run, and whether what they read is complete.

What an expression computes follows from its points and from what they read. So a tree computes what its expressions say
if every point that is needed runs, and none before the elements of other expressions that it reads have all of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.expr.affine import affine
from tilewright.expr.core import Compute
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.topology import LoopAt, Topology, bound
from tilewright.tiles.tree import Leaf, Path, Scope, Tile, TileTree

Ranges = Mapping[str, tuple[int, int]]  #: of the values of axes


class Execution:
    """The run of a tree without open factors. `evaluations` counts points of each expression, repeated ones too."""

    def __init__(self, tree: TileTree, problem: Problem, resources: Resources | None = None) -> None:
        self.problem, self.topology = problem, Topology(tree, problem, resources)
        self.factors = bound(self.topology)
        self.strides = self.topology.strides(self.factors)
        self.computes = {compute.name: compute for compute in problem.computes}
        self.done = {name: np.zeros([a.size for a in each.loops], bool) for name, each in self.computes.items()}
        self.evaluations = dict.fromkeys(self.computes, 0)
        self.faults: list[str] = []
        self._node((), {})

    @property
    def complete(self) -> bool:
        """Whether what no other expression here reads has all of its points."""
        read = {tensor.name for compute in self.computes.values() for tensor in compute.inputs()}
        return all(bool(self._elements(name).all()) for name in self.computes if name not in read)

    def _elements(self, name: str) -> np.ndarray[Any, Any]:
        """Which elements of a result have all of their points."""
        rank = len(self.computes[name].axes)
        done = self.done[name]
        return np.asarray(done.all(axis=tuple(range(rank, done.ndim))))

    def _node(self, path: Path, digits: dict[LoopAt, int]) -> None:
        here = self.topology.nodes[path]
        if isinstance(here, Tile) and isinstance(here.child, Leaf):
            self._step(path, self.computes[here.child.op], digits)  # all steps of the tile at once
        elif isinstance(here, Scope):
            for number in range(len(here.children)):
                self._node((*path, number), digits)
        else:
            loops = self.topology.loops[path]
            for values in product(*(range(self.factors[loop]) for loop in loops)):
                self._node((*path, 0), {**digits, **dict(zip(loops, values, strict=True))})

    def _step(self, path: Path, compute: Compute, digits: dict[LoopAt, int]) -> None:
        ranges = self._ranges(path, compute, digits)
        if any(end <= first for first, end in ranges.values()):
            return
        for read in compute.reads():
            if read.tensor.name in self.computes and not self._is_complete(read.tensor.name, read.indices, ranges):
                self.faults.append(f"{compute.name} reads {read.tensor.name} too early at {ranges}")
        self.done[compute.name][tuple(slice(*ranges[axis.name]) for axis in compute.loops)] = True
        self.evaluations[compute.name] += prod(end - first for first, end in ranges.values())

    def _ranges(self, path: Path, compute: Compute, digits: dict[LoopAt, int]) -> Ranges:
        def at(axis: str, _: int) -> int:
            return sum(digits[loop] * self.strides[loop] for loop in self.topology.above(path) if loop.axis == axis)

        def inside(op: str, axis: str, node: Path) -> int:
            loops, size = self.topology.inside(op, axis, node)
            return size * prod(self.factors[loop] for loop in loops)

        return {a.name: self.topology.range(compute.name, a.name, path, at, inside) for a in compute.loops}

    def _is_complete(self, name: str, indices: Any, ranges: Ranges) -> bool:
        """Whether all elements at affine indices have all of their points; what lies outside is not read."""
        axes = list(ranges)
        places, inside = [], np.ones([1] * len(axes), bool)
        for index, extent in zip(indices, self._elements(name).shape, strict=True):
            form = affine(index)
            assert form is not None, "indices of tests are affine"
            place: Any = np.full([1] * len(axes), form.constant)
            for axis, coefficient in form.terms.items():
                values = np.arange(*ranges[axis.name])
                place = place + coefficient * values.reshape([-1 if a == axis.name else 1 for a in axes])
            inside = inside & (place >= 0) & (place < extent)
            places.append(np.clip(place, 0, extent - 1))
        return bool((self._elements(name)[tuple(places)] | ~inside).all())
