"""Values of a kernel that are read through windows: at other points than the reader's own.

``d[i] = sum over r of c[2 * i + r - 1] * w[r]`` reads c, another statement of the kernel, with one index for each loop
of c. A block of the loop i needs the points of c that its windows touch: as many as `Window.span` says, some of which
the windows of the next block touch again (the *halo*). Where a window reaches beyond the loop of c, the reader selects
a constant instead (`inside`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine, affine, bounds, simplify
from tilewright.expr.core import Apply, Axis, Const, Expr, Read, static_shape, walk
from tilewright.tiles.kernel import Statement


@dataclass(frozen=True)
class Window:
    """How the loops of a reader move along `axis`, a loop of the value: it is read at `form`, all of whose
    coefficients are positive.
    """

    axis: Axis
    form: Affine

    @property
    def end(self) -> int:
        """The point behind the last one that a window touches, which may be outside of the loop."""
        return int(self.form.bounds()[1]) + 1

    @property
    def before(self) -> int:
        """Points before the loop that windows touch."""
        return max(0, -self.form.constant)

    @property
    def after(self) -> int:
        """Points behind the loop that windows touch."""
        return max(0, self.end - self.axis.size)

    def is_cut(self, blocks: Mapping[Axis, int]) -> bool:
        """Whether a block, which has so many points of loops, has a part of the windows."""
        return any(axis in blocks for axis in self.form.terms)

    def span(self, blocks: Mapping[Axis, int]) -> int:
        """Points that the windows of one block touch, from the first to the last one."""
        return 1 + sum(factor * (blocks.get(axis, axis.size) - 1) for axis, factor in self.form.terms.items())

    def step(self, blocks: Mapping[Axis, int]) -> int:
        """Points from the first window of a block to that of the next block, along all loops that are cut."""
        return sum(factor * blocks[axis] for axis, factor in self.form.terms.items() if axis in blocks)


@dataclass(frozen=True)
class WindowRead:
    """A value that is read through windows, and what its reader has where these are outside of its loops.

    `border` is None where they are never outside.
    """

    read: Read
    border: Const | None

    def windows(self, axes: Sequence[Axis]) -> list[Window]:
        """The windows along the loops of the value that the reader does not share."""
        found = []
        for axis, index in zip(axes, self.read.indices, strict=True):
            if index != axis:
                form = affine(index)
                assert form is not None, f"{index} is no window"
                assert min(form.terms.values(), default=0) > 0, f"{index} is no window"
                found.append(Window(axis, form))
        return found


def window_reads(statements: Sequence[Statement]) -> dict[str, WindowRead]:
    """The values of a kernel that a statement reads through windows, by name; each is read by one index."""
    values = {each.name: len(each.axes) for each in statements if each.address is None}
    found: dict[str, WindowRead] = {}
    for node in (node for each in statements for node in walk(each.body)):
        guarded = guarded_read(node)
        if guarded is not None and guarded.read.tensor.name in values:
            found[guarded.read.tensor.name] = guarded
    for node in (node for each in statements for node in walk(each.body)):
        if isinstance(node, Read) and node.indices and values.get(node.tensor.name) == len(node.indices):
            here = found.setdefault(node.tensor.name, WindowRead(node, None))
            assert here.read == node, f"{node.tensor.name} is read by several indices"
            assert here.border is not None or inside(node) is None, f"{node.tensor.name} is read outside of its loops"
    return found


def guarded_read(node: Expr) -> WindowRead | None:
    """The read of a node that selects a constant where the indices of the read are outside of its tensor."""
    if not isinstance(node, Apply) or node.function != "select":
        return None
    condition, read, border = node.args
    wanted = inside(read) if isinstance(read, Read) and isinstance(border, Const) else None
    if wanted is None or simplify(condition) != simplify(wanted):
        return None
    assert isinstance(read, Read), "it was asked for"
    assert isinstance(border, Const), "it was asked for"
    return WindowRead(read, border)


def inside(read: Read) -> Expr | None:
    """The condition under which a read is of an element of its tensor, with both bounds of each index that may be
    outside; None where it always is.
    """
    found = []
    for index, extent in zip(read.indices, static_shape(read.tensor.shape), strict=True):
        low, high = bounds(index)
        if low < 0 or high >= extent:
            found.append((index >= 0) & (index < extent))
    return reduce(and_, found) if found else None
