"""Sliding windows: attributes with one value per spatial dimension, padding rules, extents, loops and indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict, Unpack, get_args

from tilewright.dataclass import dataclass
from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.affine import simplify
from tilewright.expr.core import Axis, Expr, Extent, Tensor, static_shape
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.nodes import pad_node

#: Attribute with one value per spatial dimension, or one for all.
PerDimension = int | Sequence[int]
#: "same" pads for ceil(n / stride) outputs; an odd total has its extra element at the end (upper) or at the begin.
PadRule = Literal["valid", "same_upper", "same_lower"]
#: One value for all sides, one per dimension (both sides), or all begins and then all ends; or a rule.
Pads = int | Sequence[int] | PadRule


class Sliding(TypedDict, total=False):
    """How a kernel slides over its input, as users say it."""

    strides: PerDimension  # elements from one window to the next; 1 by default
    dilations: PerDimension  # elements from one place of the kernel to the next; 1 by default
    pads: Pads  # elements around the input; 0 by default


_NAMES = {1: ("i",), 2: ("i", "j"), 3: ("d", "i", "j")}
_KERNEL_NAMES = {1: ("rx",), 2: ("rx", "ry"), 3: ("rd", "rx", "ry")}


@dataclass(frozen=True)
class Window:
    """A kernel that slides over padded extents: output o meets place r at ``o*stride + r*dilation - begin``."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    ceil: bool = False  # keep a last window partly outside, if it begins before the end padding

    @staticmethod
    def read(
        sizes: Sequence[Extent],
        kernel: Sequence[Extent],
        *,
        ceil: bool = False,
        where: str,
        **sliding: Unpack[Sliding],
    ) -> Window:
        """The window for attributes as users give them; raises InvalidExpression where they do not fit."""
        extents, window = static_shape(tuple(sizes)), static_shape(tuple(kernel))
        rank = len(extents)
        steps = per_dimension(sliding.get("strides", 1), rank, "strides", where=where)
        spread = per_dimension(sliding.get("dilations", 1), rank, "dilations", where=where)
        begins, ends = read_pads(sliding.get("pads", 0), extents, window, steps, spread, where=where)
        found = Window(extents, window, steps, spread, begins, ends, ceil)
        found.check(where=where)
        return found

    def check(self, *, where: str) -> None:
        """Raise ExtentMismatch where the kernel is empty or larger than the padded input."""
        for dimension, (n, k, d, begin, end) in enumerate(
            zip(self.sizes, self.kernel, self.dilations, self.begins, self.ends, strict=True)
        ):
            place = f"in spatial dimension {dimension}"
            if k < 1:
                raise ExtentMismatch(f"a kernel of extent {k} {place}", where=where, help="an extent of 1 or more")
            span, padded = d * (k - 1) + 1, n + begin + end
            if span > padded:
                raise ExtentMismatch(
                    f"a kernel that spans {span} ({k} at dilation {d}) {place}, where the padded input has {padded} "
                    f"({n} + {begin} + {end})",
                    where=where,
                    help=f"pad {span - padded} more, or use a kernel of at most {max(0, padded - 1) // d + 1}",
                )

    @property
    def outputs(self) -> tuple[int, ...]:
        """Extents of the result."""
        return tuple(self._output(dimension) for dimension in range(len(self.sizes)))

    def _output(self, dimension: int) -> int:
        n, k, s, d = (values[dimension] for values in (self.sizes, self.kernel, self.strides, self.dilations))
        begin, end = self.begins[dimension], self.ends[dimension]
        room = n + begin + end - d * (k - 1) - 1
        if not self.ceil:
            return room // s + 1
        count = -(-room // s) + 1
        return count - 1 if (count - 1) * s >= n + begin else count

    @property
    def pads_nothing(self) -> bool:
        return self.padded == self.sizes and not any(self.begins)

    @property
    def padded(self) -> tuple[int, ...]:
        """Extents of the padded input: begin, input and end, and what a partial last window needs beyond."""
        return tuple(
            max(n + begin + end, (o - 1) * s + d * (k - 1) + 1)
            for n, begin, end, o, s, d, k in zip(
                self.sizes, self.begins, self.ends, self.outputs, self.strides, self.dilations, self.kernel, strict=True
            )
        )

    def pad(
        self, b: GraphBuilder, x: Tensor, lead: int, *, value: Expr | float = 0, keep: bool = False, name: str
    ) -> Tensor:
        """`x` with `value` around it, or `x` where nothing is to pad. Its first `lead` dimensions do not slide."""
        if self.pads_nothing and not keep:
            return x
        return pad_node(
            b,
            x,
            (*[0] * lead, *self.begins),
            (*x.shape[:lead], *self.padded),
            value=value,
            name=f"{name}.pad",
            source=name,
        )

    def slide(
        self, b: GraphBuilder, x: Tensor, lead: int, *, value: Expr | float = 0, keep: bool = False, name: str
    ) -> tuple[Tensor, tuple[Expr, ...], tuple[Axis, ...], tuple[Axis, ...]]:
        """`x` padded, the places at which windows read it, and the loops over windows and over places in them."""
        spatial, kernel = self.axes()
        return self.pad(b, x, lead, value=value, keep=keep, name=name), self.places(spatial, kernel), spatial, kernel

    def axes(self) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """The loops over output positions and over kernel places."""
        rank = len(self.sizes)
        spatial = _NAMES.get(rank) or [f"o{position}" for position in range(rank)]
        kernel = _KERNEL_NAMES.get(rank) or [f"r{position}" for position in range(rank)]
        return (
            tuple(Axis(name, extent) for name, extent in zip(spatial, self.outputs, strict=True)),
            tuple(Axis(name, extent) for name, extent in zip(kernel, self.kernel, strict=True)),
        )

    def places(self, spatial: Sequence[Axis], kernel: Sequence[Axis]) -> tuple[Expr, ...]:
        """Where in the padded input an output position meets a kernel place."""
        return tuple(
            simplify(o * s + r * d) for o, r, s, d in zip(spatial, kernel, self.strides, self.dilations, strict=True)
        )


def per_dimension(value: PerDimension, rank: int, what: str, *, where: str, low: int = 1) -> tuple[int, ...]:
    """`value` for each of `rank` dimensions; raises InvalidExpression for a wrong count or a value below `low`."""
    values = (value,) * rank if isinstance(value, int) else tuple(int(entry) for entry in value)
    if len(values) != rank:
        raise InvalidExpression(
            f"{what} {list(values)} for {rank} spatial dimensions", where=where, help=f"give {rank}"
        )
    for entry in values:
        if entry < low:
            raise InvalidExpression(f"{what} {list(values)}", where=where, help=f"values of {low} or more")
    return values


def read_pads(
    pads: Pads,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    where: str,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding at the begins and at the ends. Negative values cut elements off."""
    rank = len(sizes)
    if isinstance(pads, str):
        if pads == "valid":
            return (0,) * rank, (0,) * rank
        check_pad_rule(pads, where=where)
        totals = [
            max(0, (-(-n // s) - 1) * s + d * (k - 1) + 1 - n)
            for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        return halves(totals, smaller_first=pads == "same_upper")
    if isinstance(pads, int):
        return (pads,) * rank, (pads,) * rank
    values = tuple(int(entry) for entry in pads)
    if len(values) == rank:
        return values, values
    if len(values) != 2 * rank:
        raise InvalidExpression(
            f"pads {list(values)} for {rank} spatial dimensions",
            where=where,
            help=f"give {rank} values, or {2 * rank}: all begins, then all ends",
        )
    return values[:rank], values[rank:]


def halves(totals: Sequence[int], *, smaller_first: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Each total in two parts that differ by at most 1."""
    small, large = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    return (small, large) if smaller_first else (large, small)


def check_pad_rule(rule: str, *, where: str) -> None:
    """Raise InvalidExpression for a string that is no padding rule."""
    if rule not in get_args(PadRule):
        raise InvalidExpression(f"padding {rule!r}", where=where, help=f"numbers, or {', '.join(get_args(PadRule))}")
