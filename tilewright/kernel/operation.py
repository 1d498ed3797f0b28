"""What all operations of tile programs share: they are made of operands, and of properties as Python values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import IRDLOperation, eq
from xdsl.irdl.operations import BaseAttrAccessor
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.tile_types import i64s

NUMBER = IntegerAttr.constr(eq(i64))
NUMBERS = DenseArrayBase.constr(eq(i64))

Defined = TypeVar("Defined", bound=type[IRDLOperation])
Property = Attribute | bool | int | str | Sequence[int] | None


class KernelOp(IRDLOperation):
    """An operation of a tile program."""

    def __init__(
        self,
        *operands: SSAValue | Sequence[SSAValue] | None,
        results: Sequence[Attribute | Sequence[Attribute]] = (),
        regions: Sequence[Region] = (),
        **properties: Property,
    ) -> None:
        """Operands in the order of their definition, None for an optional one that is left out; properties by name."""
        attributes = {name: _attribute(value) for name, value in properties.items()}
        super().__init__(operands=operands, result_types=results, properties=attributes, regions=regions)


def _attribute(value: Property) -> Attribute | None:
    """Flags that hold are units, numbers have 64 bits; what is False or None is left out."""
    if isinstance(value, bool):
        return UnitAttr() if value else None
    if isinstance(value, int):
        return _number(value)
    if isinstance(value, str):
        return StringAttr(value)
    if value is None or isinstance(value, Attribute):
        return value
    return i64s(value)


@lru_cache(4096)
def _number(value: int) -> Attribute:
    return IntegerAttr(value, 64)


def with_known_segments(definition: Defined) -> Defined:
    """Decorates a definition: its operands are found without unpacking the sizes of segments at each access."""
    for name, accessor in list(vars(definition).items()):
        if isinstance(accessor, BaseAttrAccessor):
            setattr(definition, name, _Segment(accessor))
    return definition


class _Segment:
    """An operand, or several, of an operation with `operandSegmentSizes`, as the accessor of xDSL finds it."""

    def __init__(self, accessor: BaseAttrAccessor) -> None:
        self._accessor = accessor
        self._sizes: dict[bytes, tuple[int, ...]] = {}

    def __get__(self, op: IRDLOperation, owner: type | None = None) -> Any:
        attribute = op.properties["operandSegmentSizes"]
        assert isinstance(attribute, DenseArrayBase)
        content = attribute.data.data
        sizes = self._sizes.get(content)
        if sizes is None:
            sizes = self._sizes[content] = tuple(attribute.get_values())
        return self._accessor.index(sizes, op._operands)


def verify_word(word: StringAttr, words: Sequence[str], noun: str = "kind") -> None:
    """VerifyException for a word that is none of these."""
    if word.data not in words:
        raise VerifyException(f"unknown {noun} {word.data!r}; one of {', '.join(words)}")
