"""What the passes hand to each other: a graph, the borders its tensors are stored with, and the choices made so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import reduce
from math import copysign
from typing import Protocol

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.affine import simplify
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, select, static_shape
from tilewright.expr.graph import Graph
from tilewright.expr.infer import stays_inside
from tilewright.expr.names import unique
from tilewright.expr.rewrite import transform


@dataclass(frozen=True)
class Border:
    """Elements stored before and after each dimension of a tensor, all of one value."""

    widths: tuple[tuple[int, int], ...]
    value: Const

    @property
    def of_zeros(self) -> bool:
        """Whether all bytes of the elements are 0, which those of -0.0 are not."""
        return self.value.value == 0 and copysign(1, self.value.value) > 0


@dataclass(frozen=True)
class Part:
    """A constant as part of another, `whole`: so many elements of it lie before and after in each dimension."""

    whole: str
    widths: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rewritten:
    """A graph between two passes. A tensor with a border may be read outside its shape, as far as the border goes.

    `parts` says which constants of the graph before are parts of constants of this one.
    """

    graph: Graph
    borders: Mapping[str, Border] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    parts: Mapping[str, Part] = field(default_factory=dict)

    def explicit(self) -> Graph:
        """The graph with every border as a node, ``X.bordered``, for those reads that may reach into it."""
        taken = set(self.graph.tensors())
        wide = {name: unique(f"{name}.bordered", taken) for name in self.borders}

        def moved(expr: Expr) -> Expr | None:
            if not isinstance(expr, Read) or expr.tensor.name not in wide or stays_inside(expr):
                return None
            widths = self.borders[expr.tensor.name].widths
            indices = [index + before for index, (before, _) in zip(expr.indices, widths, strict=True)]
            return _wider(expr.tensor, wide[expr.tensor.name], widths)[tuple(indices)]

        def stated(graph: Graph) -> Graph:
            nodes: list[Compute] = []
            for node in graph.nodes:
                nodes.append(replace(node, body=transform(node.body, moved)))
                if node.name in self.borders:
                    nodes.append(_bordered(node.output, wide[node.name], self.borders[node.name]))
            return replace(graph, nodes=tuple(nodes))

        return self.graph.map_graphs(stated)


class GraphPass(Protocol):
    """A rewrite that keeps what every output holds. Each is a frozen dataclass with its options and runs alone."""

    @property
    def name(self) -> str: ...

    def apply(self, state: Rewritten) -> Rewritten: ...


def _bordered(tensor: Tensor, name: str, border: Border) -> Compute:
    output = _wider(tensor, name, border.widths)
    axes = tuple(Axis(f"i{dim}", extent) for dim, extent in enumerate(static_shape(output.shape)))
    own = [axis - before if before else axis for axis, (before, _) in zip(axes, border.widths, strict=True)]
    inside: list[Expr] = []
    for axis, extent, (before, after) in zip(axes, static_shape(tensor.shape), border.widths, strict=True):
        inside += [axis >= before] if before else []
        inside += [axis < before + extent] if after else []
    body = select(reduce(lambda left, right: left & right, inside), tensor[tuple(own)], border.value)
    return Compute(output, axes, simplify(body))


def _wider(tensor: Tensor, name: str, widths: tuple[tuple[int, int], ...]) -> Tensor:
    shape = zip(static_shape(tensor.shape), widths, strict=True)
    return Tensor(name, tuple(extent + before + after for extent, (before, after) in shape), tensor.dtype)
