"""Zero padding folded into storage: a padded image is its source, stored with a border of zeros.

Before:  P[n,c,p,q] = (0 <= p-1 < H and 0 <= q-1 < W) ? X[n,c,p-1,q-1] : 0     C[…] += P[n,c,p+r,q+s] * W[…]
After:   C[…] += X[n,c,p+r-1,q+s-1] * W[…], X stored with a halo of (1, 1) in its last two dimensions
Legal when X is written by a node of the graph and is no output, and every consumer of P is a product: the readers then find
zeros where the guard was false.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read
from tilewright.expr.graph import Graph
from tilewright.expr.rewrite import inline

Halo = tuple[tuple[int, int], ...]


def fold_padding(graph: Graph, is_product: Callable[[Compute], bool]) -> tuple[Graph, dict[str, Halo]]:
    """The graph without foldable padding nodes, and the halo that each source must be stored with."""
    halos: dict[str, Halo] = {}
    produced = {node.name for node in graph.nodes}
    outputs = {tensor.name for tensor in graph.outputs}
    nodes = list(graph.nodes)
    for pad in graph.nodes:
        found = padding_of(pad)
        if found is None or pad.name in outputs:
            continue
        read, halo = found
        source = read.tensor.name
        readers = [node for node in nodes if pad.output in node.inputs()]
        if source not in produced or source in outputs or not readers or not all(map(is_product, readers)):
            continue
        if not all(_only_as_operand(node, pad) for node in readers):
            continue
        plain = replace(pad, body=read)
        nodes = [inline(node, plain) if node in readers else node for node in nodes if node is not pad]
        known = halos.get(source, ((0, 0),) * len(halo))
        halos[source] = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(known, halo, strict=True))
    return replace(graph, nodes=tuple(nodes)), halos


def _only_as_operand(node: Compute, pad: Compute) -> bool:
    """A product reads the padded tensor by affine indices."""
    reads = [read for read in node.reads() if read.tensor == pad.output]
    return all(affine(index) is not None for read in reads for index in read.indices)


def padding_of(node: Compute) -> tuple[Read, Halo] | None:
    """The guarded read and the border of a zero-padding node, or None for any other node."""
    body = node.body
    if node.accum is not None or not isinstance(body, Apply) or body.function != "select":
        return None
    condition, read, other = body.args
    if not isinstance(read, Read) or not isinstance(other, Const) or other.value != 0 or repr(other.value) == "-0.0":
        return None
    if len(read.indices) != len(node.axes):
        return None
    wanted: dict[Axis, tuple[int, int]] = {}
    halo = []
    for axis, index, extent in zip(node.axes, read.indices, read.tensor.shape, strict=True):
        form = affine(index)
        if form is None or form.terms != {axis: 1} and not (axis.extent == 1 and not form.terms and form.constant == 0):
            return None
        before = -form.constant if form.terms else 0
        after = int(axis.extent) - before - int(extent)  # type: ignore[arg-type]
        if before < 0 or after < 0:
            return None
        halo.append((before, after))
        if before or after:
            wanted[axis] = (before, before + int(extent) - 1)  # type: ignore[arg-type]
    if not wanted or _intervals(condition, node.axes) != wanted:
        return None
    return read, tuple(halo)


def _intervals(condition: Expr, axes: tuple[Axis, ...]) -> dict[Axis, tuple[int, int]] | None:
    """The box in which a conjunction of comparisons of single loops holds, for the loops it restricts."""
    found: dict[Axis, tuple[int, int]] = {}
    stack = [condition]
    while stack:
        term = stack.pop()
        if not isinstance(term, Apply):
            return None
        if term.function == "and":
            stack.extend(term.args)
            continue
        if term.function not in ("lt", "le", "gt", "ge"):
            return None
        form = affine(term.args[0] - term.args[1])
        if form is None or len(form.terms) != 1:
            return None
        ((axis, coefficient),) = form.terms.items()
        if axis not in axes or coefficient not in (1, -1):
            return None
        low, high = found.get(axis, (0, int(axis.extent) - 1))  # type: ignore[arg-type]
        less = (term.function in ("lt", "le")) == (coefficient == 1)
        strict = 1 if term.function in ("lt", "gt") else 0
        limit = -form.constant * coefficient
        if less:
            high = min(high, limit - strict)
        else:
            low = max(low, limit + strict)
        found[axis] = (low, high)
    return found
