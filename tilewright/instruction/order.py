"""How an operand lies in memory: dimensions in an order, each a digit of an index that loops of the node decide.

An *index* is a loop, several loops fused (``v = n * 16 + p * 4 + q``), or a form of loops that the operand keeps as one
dimension (``p + r``). A dimension of storage is one digit of it, ``v // divisor % extent``. Tiles of an intrinsic,
matrices with a leading dimension, panels of a register tile and operands with neighbours of a group side by side are
all orders; they differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine, affine, simplify
from tilewright.expr.core import Axis, Const, Expr, Read, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.layouts import Packed, packed


@dataclass(frozen=True)
class Index:
    """What digits are taken of: an affine form of loops that runs from 0 to `extent` - 1."""

    name: str
    extent: int
    form: Affine

    @classmethod
    def of(cls, *loops: Axis) -> Index:
        """A loop, or several as one: the last is the fastest."""
        extents = static_shape(tuple(loop.extent for loop in loops))
        steps = [prod(extents[number + 1 :]) for number in range(len(loops))]
        return cls(
            "_".join(loop.name for loop in loops), prod(extents), Affine(0, dict(zip(loops, steps, strict=True)))
        )

    def decode(self, value: Expr) -> dict[Axis, Expr]:
        """The fused loops at a value, the first without ``%``: padding is seen as an index that is too large."""
        found: dict[Axis, Expr] = {}
        for number, (axis, step) in enumerate(self.form.terms.items()):
            (extent,) = static_shape((axis.extent,))
            digit = value // step if step > 1 else value
            found[axis] = digit % extent if number else digit
        return found


@dataclass(frozen=True)
class Digit:
    """One dimension of storage: ``index // divisor % extent``."""

    index: str
    divisor: int
    extent: int


@dataclass(frozen=True)
class Order:
    """`digits` are the dimensions, outermost first.

    The digits of an index number at least its values; what they number beyond is padding.
    """

    indices: tuple[Index, ...]
    digits: tuple[Digit, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(digit.extent for digit in self.digits)

    @cached_property
    def highest(self) -> Mapping[str, int]:
        """The divisor of the highest digit of every index."""
        return {index.name: max((d.divisor for d in self.digits if d.index == index.name), default=1)
                for index in self.indices}  # fmt: skip

    def room(self, index: Index) -> int:
        """How many values of an index its digits number."""
        return 1 + sum((digit.extent - 1) * digit.divisor for digit in self.digits if digit.index == index.name)

    def places(self, values: Mapping[str, Expr] | None = None) -> tuple[Expr, ...]:
        """Where an element lies, one number per dimension, at `values` of the indices (without: over the loops)."""
        at = {each.name: each.form.expression() for each in self.indices} if values is None else values
        return tuple(simplify(self._digit(digit, at[digit.index])) for digit in self.digits)

    def address(self, values: Mapping[str, Expr] | None = None) -> Expr:
        """Where an element lies, as one number, index after index."""
        places = self.places(values)
        total: Expr = Const(0, INDEX)
        for index in self.indices:
            for number, digit in enumerate(self.digits):
                if digit.index == index.name:
                    total = total + places[number] * prod(self.shape[number + 1 :])
        return simplify(total)

    def layout(self, read: Read) -> Packed | None:
        """The order as a layout of the tensor itself, where `read` has one loop of its own for each dimension."""
        dims: dict[str, int] = {}
        for dim, (place, extent) in enumerate(zip(read.indices, static_shape(read.tensor.shape), strict=True)):
            form = affine(place)
            index = next((each for each in self.indices if each.form == form), None)
            if index is not None and index.extent == extent and index.name not in dims:
                dims[index.name] = dim
            elif form != Affine() or extent != 1:
                return None
        if len(dims) != len(self.indices):
            return None
        return packed(static_shape(read.tensor.shape), [(dims[digit.index], digit.extent) for digit in self.digits])

    def _digit(self, digit: Digit, value: Expr) -> Expr:
        if digit.extent == 1:
            return Const(0, INDEX)
        if digit.divisor < self.highest[digit.index]:
            value = simplify(value % (digit.divisor * digit.extent))
        return value // digit.divisor if digit.divisor > 1 else value

    def __str__(self) -> str:
        """``[n/32:2 k:70 n%32:32]``: of which index a dimension is, and its extent."""
        parts = []
        for digit in self.digits:
            high = digit.divisor == self.highest[digit.index]
            over = f"/{digit.divisor}" if digit.divisor > 1 else ""
            parts.append(f"{digit.index}{'' if high else f'%{digit.divisor * digit.extent}'}{over}:{digit.extent}")
        return f"[{' '.join(parts)}]"


def undivided(indices: Sequence[Index]) -> Order:
    """Every index as one dimension, in this order."""
    return Order(tuple(indices), tuple(Digit(each.name, 1, each.extent) for each in indices))
