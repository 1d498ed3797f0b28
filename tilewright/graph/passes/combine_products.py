"""Products that multiply one tensor, at the same points, with constants: one product that has the columns of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, keep
from tilewright.expr.affine import simplify
from tilewright.expr.core import Axis, Compute, Expr, Read, Tensor, walk
from tilewright.expr.live import live
from tilewright.expr.names import claim
from tilewright.expr.rewrite import transform
from tilewright.graph.passes.rewritten import Part, Rewritten

Cycles = Callable[[Compute], float | None]
"""Predicted cycles of a kernel of a product alone. None: the machine does not combine any."""

SEVERAL = "a kernel each"
LEAST_GAIN = 1.02  # times as fast, for what a prediction leaves open
_COLUMNS = Axis("columns", 1)  # in keys: the columns of any product


@dataclass(frozen=True)
class CombineProducts:
    """Let products that share a factor run as one, with the maps behind them.

    Before:  p[i, n] += x[i, k] * wp[n, k]    a[i, n] = p[i, n] + bp[n]
             q[i, n] += x[i, k] * wq[n, k]    b[i, n] = q[i, n] + bq[n]    y[i] = a[i, 0] - b[i, 0]
    After:   r[i, n] += x[i, k] * wr[n, k]    c[i, n] = r[i, n] + br[n]    y[i] = c[i, 0] - c[i, 768]
    Legal where the products are equal but for constants and the extent of one loop, the columns. These index one
    dimension of the result and of each of these constants, and nothing else. No result is an output. The constants are
    put together along the columns. Done where `cycles` predicts that it pays, and only where a map that alone reads a
    product, which would be its epilogue, is alike for all. Afterwards readers read parts of one tensor.
    """

    cycles: Cycles
    name: ClassVar[str] = "combine-products"

    def apply(self, state: Rewritten) -> Rewritten:
        combining = _Combining(state)
        for names in combining.candidates():
            combining.combine(names, self.cycles)
        return combining.finished()


@dataclass(frozen=True)
class _Columns:
    """The columns of a node as a loop and as a dimension of the result; the constants that they index, and where.

    Nodes with equal keys are equal but for their columns and these constants.
    """

    axis: Axis
    dim: int
    constants: tuple[tuple[Tensor, int], ...]
    key: tuple[Any, ...]


@dataclass(frozen=True)
class _Whole:
    """The tensor that holds a result as columns `begin` and so on of dimension `dim`."""

    tensor: Tensor
    dim: int
    begin: int


@dataclass(frozen=True)
class _Joined:
    """A constant that has others, `parts`, one behind the other along dimension `dim`."""

    name: str
    parts: tuple[Tensor, ...]
    dim: int


class _Combining:
    """A graph while products are combined."""

    def __init__(self, state: Rewritten) -> None:
        self.state, self.graph = state, state.graph
        self.nodes = {node.name: node for node in self.graph.nodes}
        self.constants = dict(self.graph.constants)
        self.parts = dict(state.parts)
        self.decisions = list(state.decisions)
        self._kept = {tensor.name for tensor in self.graph.outputs}
        self._taken = set(self.graph.tensors()) | set(self.graph.constants)

    def candidates(self) -> list[list[str]]:
        """The names of products that are alike, two at least."""
        found: dict[tuple[Any, ...], list[str]] = {}
        sums = [node for node in self.nodes.values() if node.accum == "sum"]
        readers = Counter(tensor.name for node in sums for tensor in node.inputs() if tensor.name not in self.constants)
        for node in sums:
            if all(readers[tensor.name] < 2 for tensor in node.inputs()):
                continue
            columns = self._columns_of_product(node)
            behind = None if columns is None else self._key_behind(node, columns)
            if columns is not None and behind is not None:
                found.setdefault((columns.key, behind), []).append(node.name)
        return [names for names in found.values() if len(names) > 1]

    def combine(self, names: Sequence[str], cycles: Cycles) -> None:
        """Replace products by one, if that is predicted to pay, with the maps behind them that are alike."""
        nodes = [self.nodes[name] for name in names]  # combining others may have changed what they read
        found = [each for each in map(self._columns_of_product, nodes) if each is not None]
        if len(found) < len(nodes) or len({each.key for each in found}) > 1:
            return
        whole, joined = self._combined(nodes, found, {})
        if not self._pays(nodes, whole, cycles):
            return
        added, wholes = [whole], self._wholes(nodes, found, whole)
        self._join(joined)
        while followers := self._followers(nodes, wholes):
            nodes, found = followers
            whole, joined = self._combined(nodes, found, wholes)
            wholes |= self._wholes(nodes, found, whole)
            added.append(whole)
            self._join(joined)
        self._insert(added, before=names[0], wholes=wholes)

    def finished(self) -> Rewritten:
        """The state without the nodes and constants that nothing reads any more."""
        graph = replace(self.graph, nodes=tuple(self.nodes.values()), constants=self.constants)
        return replace(self.state, graph=live(graph), parts=self.parts, decisions=tuple(self.decisions))

    # What is alike ----------------------------------------------------------------------------------------------

    def _columns_of_product(self, node: Compute) -> _Columns | None:
        """The columns of a sum of products with a constant: the first loop that may be."""
        if node.accum != "sum" or all(each.name in self.constants for each in node.inputs()):
            return None
        found = (self._columns(node, axis, {}) for axis in node.axes)
        return next((each for each in found if each is not None and each.constants), None)

    def _key_behind(self, node: Compute, columns: _Columns) -> tuple[Any, ...] | None:
        """The key of the map that alone reads a product, empty where only sums read it; None where it is to stay."""
        users = self._users(node)
        if not self._is_read_by_nodes(node):
            return None
        if all(user.accum is not None for user in users):
            return ()
        shape = (*node.output.shape[: columns.dim], 0, *node.output.shape[columns.dim + 1 :])
        whole = _Whole(replace(node.output, name="whole", shape=shape), columns.dim, 0)
        if len(users) > 1 or not self._is_read_by_nodes(users[0]):
            return None
        behind = self._columns_of_map(users[0], {node.name: whole})
        return None if behind is None else behind.key

    def _columns_of_map(self, node: Compute, wholes: Mapping[str, _Whole]) -> _Columns | None:
        """The columns of a map that reads them in `wholes`."""
        if node.accum is not None:
            return None
        return next((c for axis in node.axes if (c := self._columns(node, axis, wholes)) is not None), None)

    def _columns(self, node: Compute, axis: Axis, wholes: Mapping[str, _Whole]) -> _Columns | None:
        """The loop as the columns of a node; None where it indexes something else than constants and `wholes`."""
        loops = {each: Axis(f"l{place}", each.extent) for place, each in enumerate(node.loops)} | {axis: _COLUMNS}
        if not all(isinstance(each.extent, int) and each.extent for each in node.loops):
            return None
        constants: dict[tuple[Tensor, int], Tensor] = {}
        places = 0

        def rule(expr: Expr) -> Expr | None:
            nonlocal places
            if isinstance(expr, Axis):
                return loops[expr]
            if not isinstance(expr, Read) or _COLUMNS not in expr.indices:
                return None
            dim, tensor = expr.indices.index(_COLUMNS), expr.tensor
            if tensor.name in self.constants:
                places += 1
                shape = (*tensor.shape[:dim], 0, *tensor.shape[dim + 1 :])
                part = Tensor(f"part{len(constants)}", shape, tensor.dtype)
                return Read(constants.setdefault((tensor, dim), part), expr.indices)
            if tensor.name in wholes and wholes[tensor.name].dim == dim:
                places += 1
                return Read(wholes[tensor.name].tensor, expr.indices)
            return None

        body = transform(node.body, rule)
        if places != sum(each == axis for each in walk(node.body)) or not places:
            return None
        dim = node.axes.index(axis)
        others = [each for each in node.axes if each != axis]
        extents = (tuple(each.extent for each in group) for group in (others, node.reduce))
        return _Columns(axis, dim, tuple(constants), (dim, *extents, node.accum, node.output.dtype, body))

    def _is_read_by_nodes(self, node: Compute) -> bool:
        """Whether only computes read a result: neither outputs, loops, nor what writes in an order."""
        return node.name not in self._kept and all(
            user.accum is None or isinstance(user.accum, str) for user in self._users(node)
        )

    def _users(self, node: Compute) -> list[Compute]:
        return [each for each in self.nodes.values() if node.output in each.inputs()]

    def _followers(
        self, nodes: Sequence[Compute], wholes: Mapping[str, _Whole]
    ) -> tuple[list[Compute], list[_Columns]] | None:
        """The maps that alone read these results, each one of them, if they are alike."""
        users = [self._users(node) for node in nodes]
        followers = [each[0] for each in users if len(each) == 1]
        if len({each.name for each in followers}) < len(nodes) or not all(map(self._is_read_by_nodes, followers)):
            return None
        columns = [each for node in followers if (each := self._columns_of_map(node, wholes)) is not None]
        alike = len(columns) == len(nodes) and len({each.key for each in columns}) == 1
        return (followers, columns) if alike else None

    # In place of several ----------------------------------------------------------------------------------------

    def _combined(
        self, nodes: Sequence[Compute], columns: Sequence[_Columns], wholes: Mapping[str, _Whole]
    ) -> tuple[Compute, list[_Joined]]:
        """One node for several that are alike, and its constants."""
        first, its = nodes[0], columns[0]
        wide = Axis(its.axis.name, sum(each.axis.size for each in columns))
        joined: list[_Joined] = []
        tensors: dict[tuple[Tensor, int], Tensor] = {}
        for number, (tensor, dim) in enumerate(its.constants):
            shape = (*tensor.shape[:dim], wide.extent, *tensor.shape[dim + 1 :])
            tensors[tensor, dim] = Tensor(claim(f"{tensor.name}.combined", self._taken), shape, tensor.dtype)
            parts = tuple(each.constants[number][0] for each in columns)
            joined.append(_Joined(tensors[tensor, dim].name, parts, dim))

        def rule(expr: Expr) -> Expr | None:
            if expr == its.axis:
                return wide
            if not isinstance(expr, Read) or wide not in expr.indices:
                return None
            dim = expr.indices.index(wide)
            if (expr.tensor, dim) in tensors:
                return Read(tensors[expr.tensor, dim], expr.indices)
            return Read(wholes[expr.tensor.name].tensor, expr.indices)

        axes = tuple(wide if axis == its.axis else axis for axis in first.axes)
        shape = tuple(axis.extent for axis in axes)
        output = Tensor(claim(f"{first.name}.combined", self._taken), shape, first.output.dtype)
        return replace(first, output=output, axes=axes, body=transform(first.body, rule)), joined

    def _wholes(self, nodes: Sequence[Compute], columns: Sequence[_Columns], whole: Compute) -> dict[str, _Whole]:
        """Where the results of nodes are in that of the node in their place."""
        begins = accumulate((each.axis.size for each in columns[:-1]), initial=0)
        return {
            node.name: _Whole(whole.output, each.dim, begin)
            for node, each, begin in zip(nodes, columns, begins, strict=True)
        }

    def _join(self, joined: Sequence[_Joined]) -> None:
        """Add constants, and note which others they hold."""
        for each in joined:
            array = np.concatenate([self.constants[part.name] for part in each.parts], axis=each.dim)
            self.constants[each.name] = array
            begin = 0
            for part in each.parts:
                end = begin + self.constants[part.name].shape[each.dim]
                widths = [(0, 0)] * array.ndim
                widths[each.dim] = begin, array.shape[each.dim] - end
                self.parts.setdefault(part.name, Part(each.name, tuple(widths)))
                begin = end

    def _insert(self, added: Sequence[Compute], before: str, wholes: Mapping[str, _Whole]) -> None:
        """Add nodes before one, and let readers of what they hold read them."""

        def rule(expr: Expr) -> Expr | None:
            whole = wholes.get(expr.tensor.name) if isinstance(expr, Read) else None
            if whole is None:
                return None
            assert isinstance(expr, Read)
            indices = list(expr.indices)
            indices[whole.dim] = simplify(indices[whole.dim] + whole.begin)
            return Read(whole.tensor, tuple(indices))

        nodes: dict[str, Compute] = {}
        for node in self.nodes.values():
            if node.name == before:
                nodes |= {each.name: each for each in added}
            read = any(tensor.name in wholes for tensor in node.inputs())
            nodes[node.name] = replace(node, body=transform(node.body, rule)) if read else node
        self.nodes = {name: node for name, node in nodes.items() if name not in wholes}

    def _pays(self, nodes: Sequence[Compute], whole: Compute, cycles: Cycles) -> bool:
        """Whether one product is predicted to be faster than several; the decision has both numbers."""
        one, each_alone = cycles(whole), [cycles(node) for node in nodes]
        if one is None or None in each_alone:
            return False
        several = sum(each for each in each_alone if each is not None)
        subject = f"products of {', '.join(node.name for node in nodes)}"
        numbers = f"{one:.0f} predicted cycles", f"{several:.0f} predicted cycles"
        costs = Cost(cycles=one), Cost(cycles=several)
        if one * LEAST_GAIN <= several:
            self.decisions.append(Decision(subject, "one product", numbers[0], SEVERAL, numbers[1], (), *costs))
            return True
        self.decisions.append(keep(subject, SEVERAL, several, "one product", one, LEAST_GAIN))
        return False
