"""Transposed convolutions read no inserted zeros: their loops are split by the phase of the stride.

A transposed convolution of stride s is built as a convolution of its input with s - 1 zeros between neighbours. Output
place o then meets, of K kernel places, only those j = (o + begin) % s + s*t whose input place (o + begin)//s - t is a
whole number. The remainder is the *phase* of o: all places of one phase are a dense convolution with ceil(K/s) or
floor(K/s) kernel places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from math import prod
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.expr.affine import affine, simplify
from tilewright.expr.core import Axis, Compute, Expr, Read, Tensor, const, select, static_shape
from tilewright.expr.live import live
from tilewright.expr.names import claim
from tilewright.expr.rewrite import substitute, transform
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.through_zeros import kernel_dimension
from tilewright.graph.passes.transposed import PhaseGroup, Transposed, find_transposed

_NARROW = 16
"""Output channels below which the phases of one input window become channels too: a vector register of f32 on most
machines has 4 to 16 lanes, and a product of fewer channels leaves lanes empty."""


@dataclass(frozen=True)
class SplitPhases:
    """Compute each phase of a transposed convolution as a dense convolution.

    Before:  E[i] = i % 2 == 0 ? x[i//2] : 0.0    P[i] = i >= 2 and i < 9 ? E[i - 2] : 0.0
             y[o] += P[o + r] * w[3 - r]
    After:   y[o] += x.pad[o//2 + o%2 + r] * w.phases[o%2, r]    w.phases[p, r] = w[3 - 2*r - p]
    Legal for sums of products in which one factor is such an expanded and padded tensor, and the other does not depend
    on o. The terms left out are exact zeros; the others keep their order. Where the stride does not divide the kernel,
    phases have different numbers of terms: each group of phases is a sum of its own, and a map puts them together. Runs
    before constants are folded, so that kernels by phases are made once, and before channels are split, which splits o
    at the stride.
    """

    name: ClassVar[str] = "split-phases"

    def apply(self, state: Rewritten) -> Rewritten:
        graph, decisions = state.graph, list(state.decisions)
        producers = graph.producers()
        nodes: list[Compute] = []
        taken = set(graph.tensors()) | set(graph.constants)
        for node in graph.nodes:
            found = find_transposed(node, producers)
            if found is None:
                nodes.append(node)
                continue
            nodes += _Phases(found, taken).nodes()
            decisions.append(_decision(found))
        return replace(state, graph=live(replace(graph, nodes=tuple(nodes))), decisions=tuple(decisions))


def _decision(found: Transposed) -> Decision:
    strides = " x ".join(str(window.stride) for window in found.windows)
    before = prod(window.taps * window.stride for window in found.windows)
    after = prod(sum(group.count * group.taps for group in window.groups) for window in found.windows)
    return Decision(
        f"zeros between elements of {found.source.tensor.name}",
        f"{found.node.name} by phases of the stride {strides}",
        f"{after} products in place of {before} for each {strides} places and channel: the others are with zeros",
    )


class _Phases:
    """The nodes that compute a transposed convolution by phases."""

    def __init__(self, found: Transposed, taken: set[str]) -> None:
        """`taken` are the names of the graph's tensors; it receives those of the new ones."""
        self.node = found.node
        self.found = found
        self.windows = found.windows
        self.taken = taken
        self.made: list[Compute] = []

    def nodes(self) -> list[Compute]:
        """In order; the last one writes what the transposed convolution did."""
        whole = all(window.aligned for window in self.windows)
        channel = self._channel()
        shared = all(window.begin % window.stride == 0 for window in self.windows)
        if whole and (shared or channel is None):
            self.made.append(self._over_places())
            return self.made
        sums: dict[tuple[PhaseGroup, ...], Tensor | None] = {}
        for parts in product(*(window.groups for window in self.windows)):
            if any(part.taps == 0 for part in parts):
                sums[parts] = None
                continue
            node = self._over_steps(parts) if channel is None else self._over_channels(parts, channel)
            self.made.append(node)
            sums[parts] = node.output
        self.made.append(self._interleaved(sums, channel))
        return self.made

    def _channel(self) -> Axis | None:
        """The one loop over few output channels, if x has none of it and all phases meet equally many places."""
        weights = self.found.weights
        inside = [index for index in weights.indices if index in self.node.axes]
        windows = {window.spatial for window in self.windows}
        used = {axis for axis in self.node.axes if axis.extent != 1} - windows
        mine = [axis for axis in inside if isinstance(axis, Axis) and axis in used]
        if len(mine) != 1 or mine[0].size >= _NARROW or any(len(window.groups) > 1 for window in self.windows):
            return None
        return None if _occurs(mine[0], self.found.source) else mine[0]

    # Three forms of the sum: over places of the output, over steps of the stride with phases beside them, and with
    # phases among the channels.

    def _over_places(self) -> Compute:
        """The sum over the loops of the node, with ``o // s`` and ``o % s`` in its indices."""
        steps: list[Expr] = []
        counts: list[int] = []
        for window in self.windows:
            step, later = window.spatial // window.stride, window.begin % window.stride
            steps.append(step + window.spatial % window.stride if later else step)  # of 2: odd places a step later
            counts.append(window.spatial.size // window.stride + (1 if later else 0))
        parts = tuple(replace(window.groups[0], first=window.begin % window.stride) for window in self.windows)
        phases = [window.spatial % window.stride for window in self.windows]
        firsts = [window.begin // window.stride for window in self.windows]
        return self._sum(self.node.axes, self.node.name, parts, steps, firsts, counts, phases)

    def _over_steps(self, parts: Sequence[PhaseGroup]) -> Compute:
        """The sum of one group of phases per window: a loop over places becomes one over steps and one over phases."""
        axes = list(self.node.axes)
        steps: list[Axis] = []
        phases: list[Axis] = []
        for window, part in zip(self.windows, parts, strict=True):
            steps.append(Axis(f"{window.spatial.name}.step", window.steps(part)))
            phases.append(Axis(f"{window.spatial.name}.phase", part.count))
            place = axes.index(window.spatial)
            axes[place : place + 1] = [steps[-1], phases[-1]]
        name = claim(f"{self.node.name}.phases", self.taken)
        firsts = [window.first_step(part) for window, part in zip(self.windows, parts, strict=True)]
        return self._sum(axes, name, parts, steps, firsts, [step.size for step in steps], phases)

    def _over_channels(self, parts: Sequence[PhaseGroup], channel: Axis) -> Compute:
        """The same with the loops over phases as inner parts of the loop over output channels."""
        node = self._over_steps(parts)
        weights = self.made.pop()
        read = next(read for read in node.reads() if read.tensor == weights.output)
        phases = [axis for axis in node.axes if axis.name in {f"{w.spatial.name}.phase" for w in self.windows}]
        joined = Axis(f"{channel.name}.phases", channel.size * prod(axis.size for axis in phases))
        digits = _digits(joined, [channel, *phases])
        kept = [(axis, index) for axis, index in zip(weights.axes, read.indices, strict=True) if index not in phases]
        moved = {axis: digits[index] for axis, index in zip(weights.axes, read.indices, strict=True) if index in digits}
        loops = tuple(joined if index == channel else axis for axis, index in kept)
        output = replace(weights.output, shape=tuple(axis.extent for axis in loops))
        self.made.append(replace(weights, output=output, axes=loops, body=substitute(weights.body, moved)))
        merged = output[tuple(joined if index == channel else index for _, index in kept)]
        body = transform(node.body, lambda expr: merged if expr == read else None)
        axes = tuple(joined if axis == channel else axis for axis in node.axes if axis not in phases)
        result = replace(node.output, shape=tuple(axis.extent for axis in axes))
        return replace(node, output=result, axes=axes, body=body)

    def _sum(
        self,
        axes: Sequence[Axis],
        name: str,
        parts: Sequence[PhaseGroup],
        steps: Sequence[Expr],
        firsts: Sequence[int],
        counts: Sequence[int],
        phases: Sequence[Expr],
    ) -> Compute:
        """The node over `axes` with what it reads by phases: `counts` steps of each window, from `firsts` on."""
        loops = {
            window.kernel: Axis(window.kernel.name, part.taps) for window, part in zip(self.windows, parts, strict=True)
        }
        rows = [step + loop for step, loop in zip(steps, loops.values(), strict=True)]
        lows = [first - (part.taps - 1) for first, part in zip(firsts, parts, strict=True)]
        source = self._padded(
            rows, lows, [count + loop.size - 1 for count, loop in zip(counts, loops.values(), strict=True)]
        )
        weights = self._weights(parts)
        self.made.append(weights)
        places = list(self.found.weights.indices)
        own = {kernel_dimension(self.found.weights, window.kernel): window for window in self.windows}
        by_window = dict(zip(self.windows, phases, strict=True))
        indices: list[Expr] = []
        for dimension, place in enumerate(places):
            window = own.get(dimension)
            indices += [place] if window is None else [by_window[window], loops[window.kernel]]
        read = weights.output[tuple(simplify(index) for index in indices)]

        def rule(expr: Expr) -> Expr | None:
            return source if expr == self.found.expanded else read if expr == self.found.weights else None

        shape = tuple(axis.extent for axis in axes)
        return replace(
            self.node,
            output=replace(self.node.output, name=name, shape=shape),
            axes=tuple(axes),
            body=transform(self.node.body, rule),
            reduce=tuple(loops.get(loop, loop) for loop in self.node.reduce),
        )

    # What the sums read, and what reads them.

    def _padded(self, rows: Sequence[Expr], lows: Sequence[int], extents: Sequence[int]) -> Read:
        """The read of x at `rows`, which count from `lows` to `extents`: of x itself, or of x with zeros around it."""
        source = self.found.source.tensor
        axes = [Axis(f"i{dimension}", extent) for dimension, extent in enumerate(static_shape(source.shape))]
        own: list[Expr] = list(axes)
        inside: list[Expr] = []
        padded = list(self.found.source.indices)
        plain = list(self.found.source.indices)
        for window, row, low, extent in zip(self.windows, rows, lows, extents, strict=True):
            axis = axes[window.dimension] = Axis(f"i{window.dimension}", extent)
            own[window.dimension] = axis + low
            inside += [axis + low >= 0] if low < 0 else []
            inside += [axis + low < window.size] if low + extent > window.size else []
            padded[window.dimension] = simplify(row)
            plain[window.dimension] = simplify(row + low)
        if not inside:
            return source[tuple(plain)]
        zero = const(0, source.dtype)
        body = simplify(select(reduce(lambda left, right: left & right, inside), source[tuple(own)], zero))
        output = Tensor(claim(f"{self.node.name}.pad", self.taken), tuple(axis.extent for axis in axes), source.dtype)
        self.made.append(Compute(output, tuple(axes), body, source=self.node.source))
        return output[tuple(padded)]

    def _weights(self, parts: Sequence[PhaseGroup]) -> Compute:
        """The kernel with two dimensions for that of each window: the phase, and the kernel places that it meets.

        Phases count from the first of their group, and go on from 0 behind the last of the stride.
        """
        tensor = self.found.weights.tensor
        pairs = zip(self.windows, parts, strict=True)
        own = {kernel_dimension(self.found.weights, window.kernel): (window, part) for window, part in pairs}
        loops: list[Axis] = []
        indices: list[Expr] = []
        for dimension, extent in enumerate(static_shape(tensor.shape)):
            if dimension not in own:
                loops.append(Axis(f"i{dimension}", extent))
                indices.append(loops[-1])
                continue
            window, part = own[dimension]
            form = affine(self.found.weights.indices[dimension])
            assert form is not None
            phase, tap = Axis(f"p{dimension}", part.count), Axis(f"t{dimension}", part.taps)
            ahead = form.coefficient(window.kernel)
            j = (phase + part.first) % window.stride + (part.taps - 1 - tap) * window.stride
            begin = form.constant + ahead * (window.taps - 1)
            place = begin - j if ahead > 0 else j + begin if begin else j
            loops += [phase, tap]
            indices.append(simplify(place))
        output = Tensor(claim(f"{tensor.name}.phases", self.taken), tuple(axis.extent for axis in loops), tensor.dtype)
        return Compute(output, tuple(loops), tensor[tuple(indices)], source=self.node.source)

    def _interleaved(self, sums: dict[tuple[PhaseGroup, ...], Tensor | None], channel: Axis | None) -> Compute:
        """The map that reads every place from the sum of its phase."""
        phases = {w: simplify((w.spatial + w.begin % w.stride) % w.stride) for w in self.windows}

        def value(parts: tuple[PhaseGroup, ...]) -> Expr:
            tensor = sums[parts]
            if tensor is None:
                return const(0, self.node.output.dtype)
            places: dict[Axis, list[Expr]] = {axis: [axis] for axis in self.node.axes}
            for window, part in zip(self.windows, parts, strict=True):
                step = (window.spatial + window.begin) // window.stride - window.first_step(part)
                phase = phases[window] - part.first
                places[window.spatial] = [step, phase] if channel is None else [step]
                if channel is not None:
                    places[channel] = [places[channel][0] * part.count + phase]
            return tensor[tuple(simplify(index) for axis in self.node.axes for index in places[axis])]

        def chosen(parts: tuple[PhaseGroup, ...]) -> Expr:
            if len(parts) == len(self.windows):
                return value(parts)
            window = self.windows[len(parts)]
            first, *others = window.groups
            if not others:
                return chosen((*parts, first))
            return select(phases[window] < first.count, chosen((*parts, first)), chosen((*parts, others[0])))

        return Compute(self.node.output, self.node.axes, chosen(()), source=self.node.source)


def _occurs(axis: Axis, expr: Expr) -> bool:
    return expr == axis or any(_occurs(axis, child) for child in expr.children())


def _digits(joined: Axis, loops: Sequence[Axis]) -> dict[Expr, Expr]:
    """The loops, outermost first, as expressions of the loop that counts through all of them."""
    found: dict[Expr, Expr] = {}
    inside = 1
    for loop in reversed(loops):
        found[loop] = joined // inside % loop.size
        inside *= loop.size
    return found
