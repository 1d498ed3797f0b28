"""Convolutions leave out products with padding: taps that meet nothing else go, others run where they meet elements.

A dilated convolution of a small image multiplies mostly zeros: of 3 taps 12 apart, on 14 places, the outer ones meet
2 places each. One product for each tap, over the places at which it meets the image, leaves the others out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from itertools import chain, combinations, product
from math import prod
from operator import add
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import simplify
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, const, select, static_shape, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.live import live
from tilewright.expr.names import claim
from tilewright.expr.rewrite import replaced, substitute, transform
from tilewright.graph.passes.padded_windows import PaddedSum, PaddedWindow, find_padded_sum
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.through_zeros import kernel_dimension

_ZERO = Const(0, INDEX)
_GAIN = 0.8  # the part of its time that a sum may take to be cut: what is left has smaller tiles
_MOST_KERNELS = 16  # of one sum: each is a kernel to generate

Taps = Mapping[PaddedWindow, int]
"""The tap of each window that is cut."""


@dataclass(frozen=True)
class CutCost:
    """What a cut costs, in multiply-adds, of which a core does some 10^11 in a second.

    element  an element that one kernel writes and another reads: 8 bytes at some 10^10 bytes per second
    kernel   a kernel more: some microseconds
    rows     rows that a product computes in the time in which it reads its weights
    """

    element: int = 64
    kernel: int = 1 << 18
    rows: int = 16


@dataclass(frozen=True)
class SplitTaps:
    """Drop the taps of a window that meet only padding; cut others into a product for each tap where that is faster.

    Before:  P[i] = i >= 12 and i < 26 ? x[i - 12] : 0.0    y[o] += P[o + 12*r] * w[r] over r:3
    After:   y.taps0[o:2] = x[o] * w.taps[0]    y.taps1[o:14] = x[o] * w.taps.1[0]
             y.taps2[o:2] = x[o + 12] * w.taps.2[0]
             y[o] = y.taps1[o] + (o >= 12 ? y.taps0[o - 12] : 0.0) + (o < 2 ? y.taps2[o] : 0.0)
    Legal for sums of products in which one factor is padded with zeros and the other does not depend on o. The terms
    left out are exact zeros; a cut adds the others in another order. Runs before constants are folded, so that the
    weights of taps are stored once, and behind the split of phases, whose sums may have taps of this kind.
    """

    cost: CutCost = CutCost()
    name: ClassVar[str] = "split-taps"

    def apply(self, state: Rewritten) -> Rewritten:
        graph, decisions = state.graph, list(state.decisions)
        producers = graph.producers()
        nodes: list[Compute] = []
        taken = set(graph.tensors()) | set(graph.constants)
        for node in graph.nodes:
            found = find_padded_sum(node, producers)
            cut = () if found is None else _cut(found, self.cost)
            if found is None or (not cut and all(len(w.needed) == w.kernel.size for w in found.windows)):
                nodes.append(node)
                continue
            nodes += _Taps(found, cut, taken).nodes()
            decisions.append(_decision(found, cut))
        return replace(state, graph=live(replace(graph, nodes=tuple(nodes))), decisions=tuple(decisions))


def _decision(found: PaddedSum, cut: tuple[PaddedWindow, ...]) -> Decision:
    before = prod(window.spatial.size * window.kernel.size for window in found.windows)
    after = prod(_products(window, window in cut) for window in found.windows)
    loops = ", ".join(window.kernel.name for window in cut)
    return Decision(
        f"padding of {found.source.tensor.name}",
        f"{found.node.name} by taps of {loops}" if cut else f"{found.node.name} without taps that meet nothing else",
        f"{after} products in place of {before} for each channel: the others are with zeros",
    )


# What to cut ----------------------------------------------------------------------------------------------------------


def _cut(found: PaddedSum, cost: CutCost) -> tuple[PaddedWindow, ...]:
    """The windows to cut, so that the predicted time is the least; none where that gains little.

    None either where sums of taps would be rounded to less than 32 bits before they are added up.
    """
    windows, dtype = found.windows, found.node.output.dtype
    if not all(window.live for window in windows) or (dtypes.is_float(dtype) and dtypes.bits(dtype) < 32):
        return ()
    choices = chain.from_iterable(combinations(windows, count) for count in range(1, len(windows) + 1))
    legal = [cut for cut in choices if prod(len(window.live) for window in cut) <= _MOST_KERNELS]
    best = min(legal, key=lambda cut: _multiply_adds(found, cut, cost), default=())
    return best if _multiply_adds(found, best, cost) <= _GAIN * _multiply_adds(found, (), cost) else ()


def _multiply_adds(found: PaddedSum, cut: tuple[PaddedWindow, ...], cost: CutCost) -> int:
    """The time of a sum whose windows `cut` are by taps, as that of so many multiply-adds."""
    node, windows = found.node, found.windows
    in_weights = {axis for axis in walk(found.weights) if isinstance(axis, Axis)}
    spatial, kernels = ({getattr(window, side) for window in windows} for side in ("spatial", "kernel"))
    batch = prod(axis.size for axis in node.axes if axis not in in_weights and axis not in spatial)
    filters = prod(axis.size for axis in node.axes if axis in in_weights)
    channels = prod(axis.size for axis in node.reduce if axis not in kernels)
    whole = [window for window in windows if window not in cut]
    rows = batch * prod(window.spatial.size for window in whole)
    summed = channels * prod(len(window.needed) for window in whole)
    total = 0
    for taps in product(*(window.live for window in cut)):
        points = rows * prod(_extent(window, tap) for window, tap in zip(cut, taps, strict=True))
        total += max(points, cost.rows) * filters * summed
        total += (cost.element * points * filters + cost.kernel) if cut else 0
    return total


def _extent(window: PaddedWindow, tap: int) -> int:
    first, end = window.places(tap)
    return end - first


def _products(window: PaddedWindow, cut: bool) -> int:
    """Pairs of an output place and a tap that are multiplied, in one dimension."""
    if not cut:
        return len(window.needed) * window.spatial.size
    return sum(_extent(window, tap) for tap in window.live)


# What it becomes ------------------------------------------------------------------------------------------------------


class _Taps:
    """The nodes that compute a sum over windows without taps that meet only padding, the windows `cut` tap by tap."""

    def __init__(self, found: PaddedSum, cut: tuple[PaddedWindow, ...], taken: set[str]) -> None:
        """`taken` are the names of the graph's tensors; it receives those of the new ones."""
        self.found, self.node, self.cut = found, found.node, cut
        self.whole = tuple(window for window in found.windows if window not in cut)
        self.taken = taken
        self.made: list[Compute] = []

    def nodes(self) -> list[Compute]:
        """In order; the last one writes what the sum did."""
        if not all(window.live for window in self.found.windows):
            return [replace(self.node, accum=None, reduce=(), body=const(0, self.node.output.dtype))]
        source = self._source()
        if not self.cut:
            self.made.append(self._sum(self.node.name, source, {}))
            return self.made
        sums: list[tuple[Taps, Tensor]] = []
        for taps in product(*(window.live for window in self.cut)):
            name = claim(f"{self.node.name}.taps{'x'.join(map(str, taps))}", self.taken)
            chosen = dict(zip(self.cut, taps, strict=True))
            self.made.append(self._sum(name, source, chosen))
            sums.append((chosen, self.made[-1].output))
        self.made.append(self._together(sums))
        return self.made

    def _source(self) -> Read:
        """The read of x over the loops of the node, of x with zeros around it where a whole window needs any."""
        read = self.found.source
        axes = [Axis(f"i{dimension}", extent) for dimension, extent in enumerate(static_shape(read.tensor.shape))]
        own: list[Expr] = list(axes)
        indices = list(read.indices)
        inside: list[Expr] = []
        for window in self.whole:
            low, high = _reach(window)
            if low >= window.low and high <= window.high:
                continue
            axes[window.dimension] = axis = Axis(f"i{window.dimension}", high - low + 1)
            own[window.dimension] = axis + low
            indices[window.dimension] = simplify(indices[window.dimension] - low)
            inside += [axis + low >= window.low] if low < window.low else []
            inside += [axis + low <= window.high] if high > window.high else []
        if not inside:
            return read
        condition = reduce(lambda left, right: left & right, inside)
        body = simplify(select(condition, read.tensor[tuple(own)], const(0, read.dtype)))
        name = claim(f"{self.node.name}.pad", self.taken)
        output = Tensor(name, tuple(axis.extent for axis in axes), read.dtype)
        self.made.append(Compute(output, tuple(axes), body, source=self.node.source))
        return output[tuple(indices)]

    def _sum(self, name: str, source: Read, taps: Taps) -> Compute:
        """The sum over the taps that each window needs, or over the given one at the places at which it meets x."""
        loops: dict[Axis, Expr] = {}
        axes: dict[Axis, Axis] = {}
        left: dict[Axis, Axis] = {}
        runs: dict[Axis, range] = {}
        for window in self.found.windows:
            spatial, kernel, run = window.spatial, window.kernel, window.needed
            if window in taps:
                first, end = window.places(taps[window])
                axes[spatial] = Axis(spatial.name, end - first)
                loops[spatial] = axes[spatial] + first
                run = range(taps[window], taps[window] + 1)
            runs[kernel] = run
            left[kernel] = Axis(kernel.name, len(run))
            loops[kernel] = left[kernel] + run.start if len(run) > 1 else Const(run.start, INDEX)
        weights = self._weights(left, runs)
        body = replaced(self.node.body, self.found.padded, source)
        body = transform(substitute(body, loops), lambda each: weights if self._is_weights(each) else None)
        summed = tuple(left.get(axis, axis) for axis in self.node.reduce if axis not in left or left[axis].size > 1)
        spatial_loops = tuple(axes.get(axis, axis) for axis in self.node.axes)
        return replace(
            self.node,
            output=replace(self.node.output, name=name, shape=tuple(axis.extent for axis in spatial_loops)),
            axes=spatial_loops,
            reduce=summed,
            accum=self.node.accum if summed else None,
            body=body,
        )

    def _is_weights(self, expr: Expr) -> bool:
        return isinstance(expr, Read) and expr.tensor == self.found.weights.tensor

    def _weights(self, left: Mapping[Axis, Axis], runs: Mapping[Axis, range]) -> Read:
        """The read of the weights over the loops `left` of the kernel loops, which run through `runs` of their taps.

        Of a tensor that holds these taps alone, if they are not all.
        """
        read = self.found.weights
        axes = [Axis(f"i{dimension}", extent) for dimension, extent in enumerate(static_shape(read.tensor.shape))]
        own: list[Expr] = list(axes)
        indices = list(read.indices)
        for kernel, run in runs.items():
            dimension = kernel_dimension(read, kernel)
            assert dimension is not None
            if len(run) == kernel.size:
                indices[dimension] = substitute(
                    read.indices[dimension], {kernel: left[kernel] if len(run) > 1 else _ZERO}
                )
                continue
            axes[dimension] = axis = Axis(f"i{dimension}", len(run))
            own[dimension] = substitute(read.indices[dimension], {kernel: axis + run.start})
            indices[dimension] = left[kernel] if len(run) > 1 else _ZERO
        if all(len(run) == kernel.size for kernel, run in runs.items()):
            return read.tensor[tuple(indices)]
        output = Tensor(claim(f"{read.tensor.name}.taps", self.taken), tuple(axis.extent for axis in axes), read.dtype)
        self.made.append(Compute(output, tuple(axes), read.tensor[tuple(own)], source=self.node.source))
        return output[tuple(indices)]

    def _together(self, sums: list[tuple[Taps, Tensor]]) -> Compute:
        """The map that adds up, at every place, the sums of the taps that meet x there."""
        everywhere: list[Expr] = []
        somewhere: list[Expr] = []
        for taps, tensor in sums:
            places: dict[Axis, Expr] = {}
            inside: list[Expr] = []
            for window, tap in taps.items():
                first, end = window.places(tap)
                places[window.spatial] = window.spatial - first if first else window.spatial
                inside += [window.spatial >= first] if first else []
                inside += [window.spatial < end] if end < window.spatial.size else []
            value = tensor[tuple(places.get(axis, axis) for axis in self.node.axes)]
            if inside:
                condition = reduce(lambda left, right: left & right, inside)
                somewhere.append(select(condition, value, const(0, tensor.dtype)))
            else:
                everywhere.append(value)
        return Compute(
            self.node.output, self.node.axes, simplify(reduce(add, everywhere + somewhere)), source=self.node.source
        )


def _reach(window: PaddedWindow) -> tuple[int, int]:
    """The least and the greatest place of x that the taps which are left ask for."""
    ends = [window.step * tap for tap in (window.needed[0], window.needed[-1])]
    last = window.stride * (window.spatial.size - 1)
    return window.begin + min(ends), window.begin + last + max(ends)
