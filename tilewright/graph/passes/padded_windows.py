"""Recognises sums over windows of a padded tensor, and says which taps of a window meet only zeros.

A *tap* is a value of a kernel loop. Nothing is known by name: a tensor counts as padded where it reads another one
inside an interval of each dimension, and zero elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Axis, Compute, Expr, Read, static_shape, walk
from tilewright.graph.passes.through_zeros import interval, keeps_zeros, kernel_dimension, through_zeros


@dataclass(frozen=True)
class PaddedWindow:
    """One dimension of a sum over windows: ``y[o] += x[stride * o + step * j + begin] * w[j]``.

    `spatial` is the loop over o, `kernel` that over the taps j, and `dimension` the position of the index in x.
    Outside of the places ``low..high`` of x, both ends included, it reads zero.
    """

    spatial: Axis
    kernel: Axis
    stride: int
    step: int
    begin: int
    low: int
    high: int
    dimension: int

    def places(self, tap: int) -> tuple[int, int]:
        """The output places at which a tap meets an element of x: the first one, and the one behind the last."""
        origin = self.begin + tap * self.step
        first = max(0, -((origin - self.low) // self.stride))
        end = min(self.spatial.size, (self.high - origin) // self.stride + 1)
        return first, max(first, end)

    @property
    def live(self) -> tuple[int, ...]:
        """The taps that meet an element of x at some place; a stride may leave out some between others."""
        ends = ((tap, *self.places(tap)) for tap in range(self.kernel.size))
        return tuple(tap for tap, first, end in ends if first < end)

    @property
    def needed(self) -> range:
        """The taps from the first live one to the last."""
        live = self.live
        return range(live[0], live[-1] + 1) if live else range(0)


@dataclass(frozen=True)
class PaddedSum:
    """A sum of products over windows: `node` reads `padded`, which has the element `source` inside of all windows."""

    node: Compute
    padded: Read
    source: Read
    weights: Read
    windows: tuple[PaddedWindow, ...]


def find_padded_sum(node: Compute, producers: Mapping[str, Compute]) -> PaddedSum | None:
    """The sum over windows of a padded tensor that a node is, or None."""
    reads = node.reads()
    if node.accum != "sum" or len(reads) != 2 or not keeps_zeros(node.body):
        return None
    if any(axis.extent == 0 for axis in node.loops):
        return None
    for padded, weights in (reads, reads[::-1]):
        source, conditions = through_zeros(padded, producers)
        windows = _windows(node, source, conditions) if conditions else ()
        if windows and weights.tensor != source.tensor and _fits(weights, windows):
            return PaddedSum(node, padded, source, weights, windows)
    return None


def _windows(node: Compute, source: Read, conditions: Sequence[Expr]) -> tuple[PaddedWindow, ...]:
    """The windows whose padding the conditions are; none where a condition says more."""
    forms = [affine(index) for index in source.indices]
    if any(form is None for form in forms):
        return ()
    limits: dict[int, tuple[int, int]] = {}
    sizes = static_shape(source.tensor.shape)
    for condition in conditions:
        for dimension, form in enumerate(forms):
            found = None if form is None or not form.terms else interval(condition, form)
            if found is not None:
                low, high = limits.get(dimension, (0, sizes[dimension] - 1))
                limits[dimension] = max(low, found[0]), min(high, found[1])
                break
        else:
            return ()
    windows: list[PaddedWindow] = []
    for dimension, (low, high) in limits.items():
        form = forms[dimension]
        window = None if form is None else _window(node, form, low, high, dimension)
        if window is None:
            return ()
        windows.append(window)
    loops = [loop for window in windows for loop in (window.spatial, window.kernel)]
    used = [axis for index in source.indices for axis in walk(index) if axis in loops]
    return tuple(windows) if len(set(loops)) == len(loops) == len(used) else ()


def _window(node: Compute, form: Affine, low: int, high: int, dimension: int) -> PaddedWindow | None:
    """The window of an index with one spatial loop and one reduction."""
    spatial = [axis for axis in form.terms if axis in node.axes]
    kernel = [axis for axis in form.terms if axis in node.reduce]
    if len(form.terms) != 2 or len(spatial) != 1 or len(kernel) != 1 or form.coefficient(spatial[0]) < 1:
        return None
    (o,), (j,) = spatial, kernel
    return PaddedWindow(o, j, form.coefficient(o), form.coefficient(j), form.constant, low, high, dimension)


def _fits(weights: Read, windows: Sequence[PaddedWindow]) -> bool:
    """Whether the other factor has one dimension for each kernel loop, and depends on no place of the output."""
    used = [axis for axis in walk(weights) if isinstance(axis, Axis)]
    if any(window.spatial in used or used.count(window.kernel) != 1 for window in windows):
        return False
    return all(kernel_dimension(weights, window.kernel) is not None for window in windows)
