"""Split the channel loop of flat grouped and depthwise convolutions, so that every index becomes affine.

Before:  ``O[b,k,i] = sum X[b, (k//2)*3 + rc, i+rx] * W[k,rc,rx]``
After:   ``S[b,g,k,i] = sum X[b, g*3 + rc, i+rx] * W[g*2 + k,rc,rx]``, ``O[b,k,i] = S[b, k//2, k%2, i]``
Legal where a spatial loop occurs under ``//`` or ``%`` by constants that divide its extent (nothing else is looked
at, no name). The sum keeps its order, so results are equal bit for bit. S in row-major order is O in row-major order,
so the second node moves nothing if both are stored that way.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise

from tilewright.expr.affine import affine, simplify
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.graph import Graph
from tilewright.expr.rewrite import substitute


def flat_to_split(graph: Graph) -> Graph:
    """`graph` with every reduction that can be split replaced by its two nodes, the first called `name.split`."""
    taken = set(graph.tensors()) | set(graph.constants)
    nodes: list[Compute] = []
    for node in graph.nodes:
        pair = split_compute(node, _unique(f"{node.name}.split", taken))
        if pair is None:
            nodes.append(node)
        else:
            taken.add(pair[0].name)
            nodes.extend(pair)
    return replace(graph, nodes=tuple(nodes))


def split_compute(compute: Compute, name: str) -> tuple[Compute, Compute] | None:
    """The reduction over split loops, writing tensor `name`, and the node that merges it into `compute`'s output.

    None if `compute` does not reduce, has no such loop, or would keep an index that is not affine.
    """
    pieces = {axis: _pieces(compute, axis) for axis in compute.axes}
    if compute.accum is None or all(len(parts) == 1 for parts in pieces.values()):
        return None
    whole = {
        axis: reduce(lambda left, right: left + right, [piece * stride for piece, stride in parts])
        for axis, parts in pieces.items()
    }
    body = substitute(compute.body, whole)
    if any(affine(index) is None for node in walk(body) if isinstance(node, Read) for index in node.indices):
        return None
    axes = tuple(piece for parts in pieces.values() for piece, _ in parts)
    output = Tensor(name, tuple(axis.extent for axis in axes), compute.output.dtype)
    split = Compute(output, axes, body, compute.reduce, compute.accum, compute.source)
    place = [index for axis, parts in pieces.items() for index in _places(axis, parts)]
    merged = simplify(output[tuple(place)])
    return split, Compute(compute.output, compute.axes, merged, source=compute.source)


def _pieces(compute: Compute, axis: Axis) -> list[tuple[Axis, int]]:
    """The loops that `axis` becomes, outermost first, each with its stride; `axis` itself where nothing divides it."""
    strides = sorted(_boundaries(compute.body, axis), reverse=True)
    if not strides or not isinstance(axis.extent, int):
        return [(axis, 1)]
    steps = list(pairwise([axis.extent, *strides, 1]))
    if any(above % stride for above, stride in steps):
        return [(axis, 1)]
    names = {loop.name for loop in compute.loops}
    return [
        (Axis(_unique(f"{axis.name}_{number}", names), above // stride), stride)
        for number, (above, stride) in enumerate(steps)
    ]


def _places(axis: Axis, parts: list[tuple[Axis, int]]) -> list[Expr]:
    """Where along each of the loops that it became a value of `axis` lies."""
    if len(parts) == 1:
        return [axis]
    sizes = static_shape(tuple(piece.extent for piece, _ in parts))
    return [axis // stride % size for size, (_, stride) in zip(sizes, parts, strict=True)]


def _boundaries(body: Expr, axis: Axis) -> set[int]:
    """The constants c of ``axis // c``, ``axis % c`` and, for ``axis // a % c``, ``a*c``, that cut the loop in two."""
    found: set[int] = set()
    for node in walk(body):
        value: Expr = node
        c = 1
        while isinstance(value, Apply) and value.function in ("floordiv", "mod") and isinstance(value.args[1], Const):
            if value.function == "mod" and value is not node:
                break
            c *= int(value.args[1].value)
            value = value.args[0]
        if value == axis:
            found.add(c)
    return {c for c in found if c != 1 and c != axis.extent}


def _unique(hint: str, taken: set[str]) -> str:
    name, count = hint, 0
    while name in taken:
        count += 1
        name = f"{hint}.{count}"
    return name
