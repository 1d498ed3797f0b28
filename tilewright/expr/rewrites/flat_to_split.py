"""Split the channel loop of flat grouped and depthwise convolutions, so that every index becomes affine.

Before:  ``O[b,k,i] = sum X[b, (k//2)*3 + rc, i+rx] * W[k,rc,rx]``
After:   ``S[b,g,k,i] = sum X[b, g*3 + rc, i+rx] * W[g*2 + k,rc,rx]``, ``O[b,k,i] = S[b, k//2, k%2, i]``
Legal where a spatial loop occurs under ``//`` or ``%`` by constants that divide its extent (nothing else is looked
at, no name). The sum keeps its order, so results are equal bit for bit. S in row-major order is O in row-major order,
so the second node moves nothing if both are stored that way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise

from tilewright.dataclass import dataclass
from tilewright.expr.affine import affine, simplify
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.graph import Graph
from tilewright.expr.names import unique
from tilewright.expr.rewrite import substitute


@dataclass(frozen=True)
class LoopSplit:
    """The spatial loops of a compute, in order, each with the strides at which it is cut: none for a whole loop."""

    strides: Mapping[Axis, tuple[int, ...]]

    def apply(self, compute: Compute, name: str) -> tuple[Compute, Compute]:
        """`compute` over the loops in pieces, writing tensor `name`, and the node that merges it into its output."""
        names = {loop.name for loop in compute.loops}
        pieces = {axis: _pieces(axis, self.strides[axis], names) for axis in compute.axes}
        whole = {axis: _sum_of(parts) for axis, parts in pieces.items() if len(parts) > 1}
        axes = tuple(piece for parts in pieces.values() for piece, _ in parts)
        output = Tensor(name, tuple(axis.extent for axis in axes), compute.output.dtype)
        split = Compute(output, axes, substitute(compute.body, whole), compute.reduce, compute.accum, compute.source)
        merged = simplify(output[self.places(compute.axes)])
        return split, Compute(compute.output, compute.axes, merged, source=compute.source)

    def places(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where along the pieces a point lies that has these indices along the loops."""
        found: list[Expr] = []
        for index, (axis, strides) in zip(indices, self.strides.items(), strict=True):
            if strides:
                sizes = static_shape(tuple(piece.extent for piece, _ in _pieces(axis, strides, ())))
                found += [index // stride % size for size, stride in zip(sizes, (*strides, 1), strict=True)]
            else:
                found.append(index)
        return tuple(found)


def flat_to_split(graph: Graph) -> Graph:
    """`graph` with every reduction that can be split replaced by its two nodes, the first called `name.split`."""
    taken = set(graph.tensors()) | set(graph.constants)
    nodes: list[Compute] = []
    for node in graph.nodes:
        split = find_split(node)
        if split is None:
            nodes.append(node)
        else:
            pair = split.apply(node, unique(f"{node.name}.split", taken))
            taken.add(pair[0].name)
            nodes.extend(pair)
    return replace(graph, nodes=tuple(nodes))


def find_split(compute: Compute) -> LoopSplit | None:
    """The split of a reduction's spatial loops, of which at least one is cut, that makes all its indices affine.

    None if `compute` does not reduce, has no such loop, or would keep an index that is not affine.
    """
    if not isinstance(compute.accum, str):
        return None
    split = LoopSplit({axis: strides_of(compute.body, axis) for axis in compute.axes})
    if not any(split.strides.values()):
        return None
    body = split.apply(compute, compute.name)[0].body
    if any(affine(index) is None for node in walk(body) if isinstance(node, Read) for index in node.indices):
        return None
    return split


def split_sums(compute: Compute) -> Compute:
    """`compute` with its reduction loops cut where they occur under ``//`` or ``%``, if all indices are affine then.

    Before:  ``O[k,i] = sum X[c%2*8 + c//2, i] * W[k,c]``
    After:   ``O[k,i] = sum X[c_1*8 + c_0, i] * W[k,c_0*2 + c_1]``, with c_1 outside of c_0
    Of the pieces of a loop those that move some index most are outermost, so that a sum reads neighbours in turn.
    """
    if not isinstance(compute.accum, str):
        return compute
    names = {loop.name for loop in compute.loops}
    pieces = {axis: _pieces(axis, strides_of(compute.body, axis), names) for axis in compute.reduce}
    whole = {axis: _sum_of(parts) for axis, parts in pieces.items() if len(parts) > 1}
    if not whole:
        return compute
    body = simplify(substitute(compute.body, whole))
    forms = [affine(index) for node in walk(body) if isinstance(node, Read) for index in node.indices]
    steps = [form for form in forms if form is not None]
    if len(steps) < len(forms):
        return compute

    def most(piece: Axis) -> int:
        return max(abs(form.coefficient(piece)) for form in steps)

    loops = [sorted((piece for piece, _ in parts), key=most, reverse=True) for parts in pieces.values()]
    return replace(compute, body=body, reduce=tuple(piece for parts in loops for piece in parts))


def _sum_of(pieces: Sequence[tuple[Axis, int]]) -> Expr:
    """The index along a loop that is in pieces."""
    return reduce(lambda left, right: left + right, [piece * stride for piece, stride in pieces])


def strides_of(body: Expr, axis: Axis) -> tuple[int, ...]:
    """Where the body cuts a loop, largest stride first; nowhere unless each stride divides the one before it."""
    strides = sorted(_boundaries(body, axis), reverse=True)
    if not isinstance(axis.extent, int) or any(above % stride for above, stride in pairwise([axis.extent, *strides])):
        return ()
    return tuple(strides)


def _pieces(axis: Axis, strides: Sequence[int], names: Collection[str]) -> list[tuple[Axis, int]]:
    """The loops that `axis` becomes, outermost first, each with its stride; `axis` itself if it is not cut."""
    if not strides:
        return [(axis, 1)]
    (extent,) = static_shape((axis.extent,))
    return [
        (Axis(unique(f"{axis.name}_{number}", names), above // stride), stride)
        for number, (above, stride) in enumerate(pairwise([extent, *strides, 1]))
    ]


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
