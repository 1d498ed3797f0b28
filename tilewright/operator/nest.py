"""Loop nests of element-wise work and reductions: the loops, and what each pass computes.

A nest walks *outer* loops; at each outer point its nodes run in order, each as its own pass over the *inner* loops (the
reduction loops, absent in a map). A node writes a value per outer point or per outer and inner point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tilewright.dataclass import dataclass
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Const, Expr, Read, Tensor, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.expr.rewrite import substitute, transform
from tilewright.tiles.kernel import Statement


@dataclass(frozen=True)
class NestNode:
    """One pass: ``tensor = accum over inner of body``, or without `accum` a value for every point it covers.

    `index` is the linear address in the output's storage, None for a value that stays in the kernel. In `body`, reads
    of stored tensors are flat; reads of the nest's own values are reads of rank 0.
    """

    tensor: Tensor
    body: Expr
    accum: str | None = None
    index: Expr | None = None

    def uses(self, axes: Sequence[Axis]) -> bool:
        return any(node in axes for node in walk(self.body))


@dataclass(frozen=True)
class Nest:
    """`outer` and `inner` loops in storage order, outermost first, and the nodes in order."""

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    nodes: tuple[NestNode, ...]

    def covers_inner(self, node: NestNode) -> bool:
        """Whether a node has a value per inner point, directly or through the values it reads."""
        return node.tensor.name in self._covering

    @cached_property
    def _covering(self) -> frozenset[str]:
        """The names of the nodes that have a value per inner point."""
        found: set[str] = set()
        for node in self.nodes:
            reads = (r.tensor.name for r in walk(node.body) if isinstance(r, Read) and not r.indices)
            indexed = node.index is not None and any(axis in self.inner for axis in walk(node.index))
            if node.accum is None and (node.uses(self.inner) or indexed or not found.isdisjoint(reads)):
                found.add(node.tensor.name)
        return frozenset(found)


def statements_of(nest: Nest) -> tuple[Statement, ...]:
    """What a nest computes as the statements of a kernel."""
    found = []
    for node in nest.nodes:
        axes = (*nest.outer, *(nest.inner if nest.covers_inner(node) else ()))
        reduced = nest.inner if node.accum is not None else ()
        found.append(Statement(node.tensor, axes, node.body, reduced, node.accum, node.index))
    return tuple(found)


def merge_loops(nest: Nest) -> Nest:
    """Fuse neighbouring loops that every address walks as one: fewer loops, longer vectors."""
    for group in ("outer", "inner"):
        position = 0
        while position + 1 < len(getattr(nest, group)):
            merged = _merged(nest, group, position)
            if merged is None:
                position += 1
            else:
                nest = merged
    return nest


def _merged(nest: Nest, group: str, position: int) -> Nest | None:
    axes: tuple[Axis, ...] = getattr(nest, group)
    a, b = axes[position], axes[position + 1]
    indices = [node.index for node in nest.nodes if node.index is not None]
    for node in nest.nodes:
        indices.extend(addresses(node.body))
    if not walked_as_one(a, b, indices) or any(outside_reads(node.body, (a, b)) for node in nest.nodes):
        return None
    name = unique(f"{a.name}_{b.name}", {axis.name for axis in (*nest.outer, *nest.inner)})
    fused = Axis(name, int(a.extent) * int(b.extent))  # type: ignore[arg-type]

    def rule(expr: Expr) -> Expr:
        return substitute(expr, {a: Const(0, INDEX), b: fused})

    nodes = tuple(replace(n, body=rule(n.body), index=None if n.index is None else rule(n.index)) for n in nest.nodes)
    new_axes = (*axes[:position], fused, *axes[position + 2 :])
    return Nest(new_axes if group == "outer" else nest.outer, new_axes if group == "inner" else nest.inner, nodes)


def outside_reads(body: Expr, axes: Sequence[Axis]) -> bool:
    """Whether a loop occurs in a body outside the addresses of its reads."""
    if isinstance(body, Read):
        return False
    return body in axes or any(outside_reads(child, axes) for child in body.children())


def addresses(body: Expr) -> list[Expr]:
    """The linear addresses of the flat reads in a body."""
    return [index for read in walk(body) if isinstance(read, Read) for index in read.indices]


def walked_as_one(a: Axis, b: Axis, indices: Sequence[Expr]) -> bool:
    """Whether every address steps through `a` and, inside it, `b` as through one loop."""
    for index in indices:
        form = affine(index)
        if form is None:
            if any(x in (a, b) for x in walk(index)):
                return False
        elif form.coefficient(a) != form.coefficient(b) * int(b.extent):  # type: ignore[arg-type]
            return False
    return True


def drop_unit_loops(nest: Nest) -> Nest:
    """Remove loops of extent 1."""
    unit = {axis: Const(0, INDEX) for axis in (*nest.outer, *nest.inner) if axis.extent == 1}
    if not unit:
        return nest
    nodes = tuple(
        replace(n, body=substitute(n.body, unit), index=None if n.index is None else substitute(n.index, unit))
        for n in nest.nodes
    )
    outer, inner = (tuple(a for a in axes if a.extent != 1) for axes in (nest.outer, nest.inner))
    return Nest(outer, inner, nodes)


def value_read(expr: Expr) -> str:
    """The name of the value of a nest, computed before, that an expression reads; empty if it is no such read."""
    return expr.tensor.name if isinstance(expr, Read) and not expr.indices else ""


def written_out(body: Expr, values: Mapping[str, NestNode] | Mapping[str, Statement]) -> Expr:
    """A body with the named values that it reads written out."""

    def rule(expr: Expr) -> Expr | None:
        name = value_read(expr)
        return written_out(values[name].body, values) if name in values else None

    return transform(body, rule)
