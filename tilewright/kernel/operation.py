"""What all operations of tile programs share: they are made of operands, and of properties as Python values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, cast

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i32, i64
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import AttrSizedOperandSegments, IRDLOperation, OptionalDef, ParsePropInAttrDict, VariadicDef, eq
from xdsl.irdl.operations import BaseAttrAccessor, BeforeVariadicSingleAccessor, VarIRConstruct
from xdsl.utils.exceptions import VerifyException

from tilewright.kernel.tile_types import VALUES, i64s

NUMBER = IntegerAttr.constr(eq(i64))
NUMBERS = DenseArrayBase.constr(eq(i64))

Operands = SSAValue | Sequence[SSAValue] | None
Property = Attribute | bool | int | str | Sequence[int] | None
_SEGMENTS = AttrSizedOperandSegments.attribute_name


class KernelOp(IRDLOperation):
    """An operation of a tile program."""

    def __init__(
        self,
        *operands: Operands,
        results: Sequence[Attribute | Sequence[Attribute]] = (),
        regions: Sequence[Region] = (),
        **properties: Property,
    ) -> None:
        """Operands in the order of their definition, None for an optional one that is left out; properties by name."""
        attributes = {name: _attribute(value) for name, value in properties.items()}
        stated = {name: value for name, value in attributes.items() if value is not None}
        sizes = tuple(map(_size, operands))
        if not _is_plain(type(self), sizes, len(results), len(regions)):
            super().__init__(operands=operands, result_types=results, properties=stated, regions=regions)
            return
        # Past the constructor of xDSL, which asks of every argument what else it could be: three times as long in all.
        if _has_segments(type(self)):
            stated[_SEGMENTS] = _segments(sizes)
        types = cast(Sequence[Attribute], results)
        Operation.__init__(self, operands=_flat(operands), result_types=types, properties=stated, regions=regions)


@lru_cache(4096)
def _is_plain(kind: type[IRDLOperation], sizes: tuple[int, ...], results: int, regions: int) -> bool:
    """Whether a definition takes operands of so many values each, and has so many single results and regions."""
    definition = kind.get_irdl_definition()
    singles = [part for _, part in (*definition.results, *definition.regions)]
    if any(isinstance(part, VariadicDef) for part in singles):
        return False
    for option in definition.options:
        in_property = isinstance(option, AttrSizedOperandSegments) and option.as_property
        if not in_property and not isinstance(option, ParsePropInAttrDict):
            return False
    given = len(sizes), results, regions
    if given != (len(definition.operands), len(definition.results), len(definition.regions)):
        return False
    for size, (_, operand) in zip(sizes, definition.operands, strict=True):
        if isinstance(operand, OptionalDef):
            fits = size <= 1
        else:
            fits = size == 1 or isinstance(operand, VariadicDef)
        if not fits:
            return False
    return True


@cache
def _has_segments(kind: type[IRDLOperation]) -> bool:
    """Whether a property says how many values each operand has."""
    return any(isinstance(option, AttrSizedOperandSegments) for option in kind.get_irdl_definition().options)


@lru_cache(4096)
def _segments(sizes: tuple[int, ...]) -> Attribute:
    return DenseArrayBase.from_list(i32, sizes)


def _size(operand: Operands) -> int:
    if operand is None:
        return 0
    return 1 if type(operand) in VALUES else len(operand)  # type: ignore[arg-type]


def _flat(operands: Sequence[Operands]) -> list[SSAValue]:
    values: list[SSAValue] = []
    for operand in operands:
        if type(operand) in VALUES:
            values.append(operand)  # type: ignore[arg-type]
        elif operand is not None:
            values += operand  # type: ignore[arg-type]
    return values


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


def with_direct_access(*definitions: type[Operation]) -> None:
    """Let operands and results of these definitions be found by their place, which xDSL looks for at each access."""
    for definition in definitions:
        for name, accessor in list(vars(definition).items()):
            if isinstance(accessor, BaseAttrAccessor):
                setattr(definition, name, _Segment(accessor))
            elif isinstance(accessor, BeforeVariadicSingleAccessor) and accessor.construct in _LISTS:
                setattr(definition, name, _Single(_LISTS[accessor.construct], accessor.idx))


_LISTS = {VarIRConstruct.OPERAND: attrgetter("_operands"), VarIRConstruct.RESULT: attrgetter("results")}


class _Single:
    """The operand or result at a place of its list."""

    def __init__(self, values: Callable[[IRDLOperation], tuple[SSAValue, ...]], place: int) -> None:
        self._values, self._place = values, place

    def __get__(self, op: IRDLOperation, owner: type | None = None) -> SSAValue:
        return tuple.__getitem__(self._values(op), self._place)


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
