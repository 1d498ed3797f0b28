"""Nodes that move nothing: a reshape or transposition of a tensor whose storage holds the result already.

A node can be a *view* of its source where it reads every element once, at indices that split and merge dimensions. It
is one where the source then stores the digits of each dimension of the result together, as one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataclass import dataclass
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.graph.passes.rewritten import Border
from tilewright.layouts import Packed

Digit = tuple[int, int, int]
"""A dimension of the result, the stride and the extent of the part of its index: ``index // stride % extent``."""


@dataclass(frozen=True)
class View:
    """`result` read from `source`: for each dimension of the source, the digits it consists of, outermost first."""

    source: Tensor
    result: Tensor
    digits: tuple[tuple[Digit, ...], ...]

    def grouped(self, order: Sequence[int]) -> list[int]:
        """An order of the source's dimensions in which those that make up one dimension of the result are together.

        They go to the place of the last of them.
        """
        found: list[int] = []
        families = self._families()
        for dim in reversed(order):
            if dim not in found:
                found = [*next((family for family in families if dim in family), [dim]), *found]
        return found

    def order_of(self, order: Sequence[int]) -> list[int] | None:
        """The order of the source's dimensions that stores the result's in `order`; None where one is cut."""
        if any(len(digits) > 1 for digits in self.digits):
            return None
        families = {self.digits[family[0]][0][0]: family for family in self._families()}
        moved = [dim for place in order for dim in families.get(place, [])]
        return [dim for dim in range(len(self.digits)) if dim not in moved] + moved

    def border(self, border: Border) -> Border | None:
        """The border of the source that is this one of the result; None where a split or merged dimension has one."""
        widths = [(0, 0)] * len(self.digits)
        for place, width in enumerate(border.widths):
            if width == (0, 0):
                continue
            dims = [dim for dim, digits in enumerate(self.digits) if any(d == place for d, _, _ in digits)]
            if len(dims) != 1 or len(self.digits[dims[0]]) != 1:  # cut, or part of another
                return None
            widths[dims[0]] = width
        return Border(tuple(widths), border.value)

    def layout(self, source: Packed) -> Packed | None:
        """How the result is stored where the source is; None where a dimension of it is not one run of elements."""
        shape = static_shape(self.result.shape)
        halo = [(0, 0)] * len(shape)
        stored: list[Digit] = []
        for dim, extent in source.digits:
            digits = self.digits[dim]
            if not digits and extent == 1:
                continue
            if source.halo[dim] != (0, 0):
                if len(digits) != 1 or digits[0][2] != shape[digits[0][0]]:
                    return None
                halo[digits[0][0]] = source.halo[dim]
                digits = ((digits[0][0], 1, extent),)
            elif len(source.digits_of(dim)) != 1:
                return None
            for place, stride, count in digits:
                if stored and stored[-1][0] == place and stored[-1][1] == stride * count:
                    count *= stored.pop()[2]
                stored.append((place, stride, count))
        places = [place for place, _, _ in stored]
        if len(set(places)) != len(places) or any(stride != 1 for _, stride, _ in stored):
            return None
        return Packed(shape, tuple((place, count) for place, _, count in stored), tuple(halo))

    def _families(self) -> list[list[int]]:
        """The source's dimensions that are whole digits of one dimension of the result, outermost first."""
        members: dict[int, list[tuple[int, int]]] = {}
        for dim, digits in enumerate(self.digits):
            if len(digits) == 1:
                place, stride, _ = digits[0]
                members.setdefault(place, []).append((-stride, dim))
        return [[dim for _, dim in sorted(each)] for each in members.values()]


def view_of(node: Compute) -> View | None:
    """The view that a node may be: it reads each element of one tensor once, and nothing else."""
    if node.accum is not None or not isinstance(node.body, Read) or node.body.dtype != node.output.dtype:
        return None
    digits = []
    for index, extent in zip(node.body.indices, static_shape(node.body.tensor.shape), strict=True):
        found = _digits(index, extent, node.axes)
        if found is None:
            return None
        digits.append(found)
    for place, axis in enumerate(node.axes):
        mine = sorted((stride, count) for each in digits for d, stride, count in each if d == place)
        inside = 1
        for stride, count in mine:
            if stride != inside:
                return None
            inside *= count
        if inside != axis.extent:
            return None
    return View(node.body.tensor, node.output, tuple(digits))


def _digits(index: Expr, extent: int, axes: tuple[Axis, ...]) -> tuple[Digit, ...] | None:
    """The digits that an index of a dimension of `extent` consists of, outermost first."""
    if extent == 1:
        return ()
    part = _part(index, extent)
    if part is not None:
        axis, stride = part
        return ((axes.index(axis), stride, extent),)
    form = affine(index)
    if form is None or form.constant or not set(form.terms) <= set(axes):
        return None
    found: list[Digit] = []
    inside = 1
    for axis, step in sorted(form.terms.items(), key=lambda term: term[1]):
        (count,) = static_shape((axis.extent,))
        if step != inside:
            return None
        found.insert(0, (axes.index(axis), 1, count))
        inside *= count
    return tuple(found) if inside == extent else None


def _part(index: Expr, extent: int) -> tuple[Axis, int] | None:
    """The loop and the stride of ``axis // stride % extent``; the remainder may be missing where it changes nothing."""
    if isinstance(index, Apply) and index.function == "mod" and index.args[1] == Const(extent, INDEX):
        index = index.args[0]
    stride = 1
    if isinstance(index, Apply) and index.function == "floordiv" and isinstance(index.args[1], Const):
        stride = int(index.args[1].value)
        index = index.args[0]
    return (index, stride) if isinstance(index, Axis) else None
