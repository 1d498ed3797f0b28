"""Recognises transposed convolutions: sums of products over a tensor into which zeros were inserted.

Nothing is known by name: a tensor counts as expanded where it reads ``x[e // s]`` if s divides e, and zero elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, static_shape, walk
from tilewright.graph.passes.through_zeros import interval, is_zero, keeps_zeros, kernel_dimension, through_zeros


@dataclass(frozen=True)
class PhaseGroup:
    """Phases `first`, …, `first + count - 1`, which meet `taps` kernel places each."""

    first: int
    count: int
    taps: int


@dataclass(frozen=True)
class Window:
    """One dimension of a transposed convolution: ``y[o] = sum of x[i] * w[j] where i*stride + j = o + begin``.

    `spatial` is the loop over o, `kernel` that over ``kernel.extent - 1 - j``, `size` the extent of x, `dimension` its
    position there.
    """

    spatial: Axis
    kernel: Axis
    stride: int
    begin: int
    size: int
    dimension: int

    @property
    def taps(self) -> int:
        return self.kernel.size

    @property
    def groups(self) -> tuple[PhaseGroup, ...]:
        """Phases with equally many kernel places; one group if the stride divides the kernel."""
        short, rest = divmod(self.taps, self.stride)
        if not rest:
            return (PhaseGroup(0, self.stride, short),)
        return PhaseGroup(0, rest, short + 1), PhaseGroup(rest, self.stride - rest, short)

    @property
    def aligned(self) -> bool:
        """Whether one affine index in o // stride and o % stride reaches every phase."""
        exact = self.begin % self.stride == 0 or self.stride == 2
        return exact and len(self.groups) == 1 and self.spatial.size % self.stride == 0

    def first_step(self, group: PhaseGroup) -> int:
        """The least quotient (o + begin) // stride of the places o with a phase of the group."""
        return -((group.first + group.count - 1 - self.begin) // self.stride)

    def steps(self, group: PhaseGroup) -> int:
        """How many quotients there are from the first one on."""
        last = (self.spatial.size - 1 + self.begin - group.first) // self.stride
        return last - self.first_step(group) + 1


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution: which read of `node` is the expanded input, and of which tensor it has the elements."""

    node: Compute
    expanded: Read
    source: Read
    weights: Read
    windows: tuple[Window, ...]


def find_transposed(node: Compute, producers: Mapping[str, Compute]) -> Transposed | None:
    """The transposed convolution that a node is, or None."""
    reads = node.reads()
    if node.accum != "sum" or len(reads) != 2 or not keeps_zeros(node.body):
        return None
    for expanded, weights in (reads, reads[::-1]):
        source, conditions = through_zeros(expanded, producers)
        windows = _windows(node, source, conditions)
        if not windows or all(window.stride == 1 for window in windows):
            continue
        if _fits(weights, node, windows):
            return Transposed(node, expanded, source, weights, windows)
    return None


def _windows(node: Compute, source: Read, conditions: Sequence[Expr]) -> tuple[Window, ...] | None:
    """The dimensions in which the conditions let just the inserted elements through, or None if they say more."""
    found: dict[int, tuple[Window, Affine]] = {}
    for dimension, index in enumerate(source.indices):
        stride, place = 1, index
        if isinstance(index, Apply) and index.function == "floordiv" and isinstance(index.args[1], Const):
            stride, place = int(index.args[1].value), index.args[0]
        form = affine(place)
        window = None if form is None else _window(node, form, stride, source, dimension)
        if window is not None and form is not None:
            found[dimension] = window, form
        elif stride != 1:
            return None
    whole: set[int] = set()
    low = dict.fromkeys(found, -(1 << 62))
    high = dict.fromkeys(found, 1 << 62)
    limited: set[int] = set()
    for condition in conditions:
        for dimension, (_, form) in found.items():
            if _is_whole(condition, form, source.indices[dimension]):
                whole.add(dimension)
                break
            limit = interval(condition, form)
            if limit is not None:
                low[dimension], high[dimension] = max(low[dimension], limit[0]), min(high[dimension], limit[1])
                limited.add(dimension)
                break
        else:
            return None
    windows: list[Window] = []
    for dimension, (window, _) in found.items():
        last = (window.size - 1) * window.stride
        if low[dimension] > 0 or high[dimension] < last:
            return None
        divided = isinstance(source.indices[dimension], Apply) and affine(source.indices[dimension]) is None
        highest = min(high[dimension], window.spatial.size - 1 + window.begin)
        if divided and dimension not in whole and (last or highest > 0):
            return None  # places between elements are read too
        if divided or dimension in limited:  # other dimensions are read as they are
            windows.append(window)
    return tuple(windows)


def _window(node: Compute, form: Affine, stride: int, source: Read, dimension: int) -> Window | None:
    """The window of an index ``o + r - left``: one spatial loop and one reduction, both in steps of one."""
    spatial = [axis for axis in form.terms if axis in node.axes]
    kernel = [axis for axis in form.terms if axis in node.reduce]
    if len(spatial) != 1 or len(kernel) != 1 or len(form.terms) != 2 or stride < 1:
        return None
    if any(coefficient != 1 for coefficient in form.terms.values()):
        return None
    size, places, taps = static_shape((source.tensor.shape[dimension], spatial[0].extent, kernel[0].extent))
    if not size * places * taps:
        return None
    begin = taps - 1 + form.constant
    if size == 1 and begin == 0 and places == taps:
        stride = taps  # one element meets each kernel place once
    return Window(spatial[0], kernel[0], stride, begin, size, dimension)


def _is_whole(condition: Expr, form: Affine, index: Expr) -> bool:
    """Whether a condition says that the division in ``index = form // stride`` leaves no remainder."""
    if not isinstance(condition, Apply) or condition.function != "eq":
        return False
    remainder, zero = condition.args
    if not is_zero(zero) or not isinstance(remainder, Apply) or remainder.function != "mod":
        return False
    value, divisor = remainder.args
    return affine(value) == form and isinstance(index, Apply) and divisor == index.args[-1]


def _fits(weights: Read, node: Compute, windows: Sequence[Window]) -> bool:
    """Whether the other factor has one dimension for each kernel loop, and depends on no place of the output."""
    spatial = {window.spatial for window in windows}
    kernels = {window.kernel for window in windows}
    if len(spatial) != len(windows) or len(kernels) != len(windows):
        return False
    used = [axis for axis in walk(weights) if isinstance(axis, Axis)]
    if spatial & set(used) or any(used.count(kernel) != 1 for kernel in kernels):
        return False
    return all(kernel_dimension(weights, window.kernel) is not None for window in windows)
