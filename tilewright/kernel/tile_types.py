"""Types of values in tile programs: scalars, tiles, flat views."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerType, MemRefType, TensorType, i64
from xdsl.ir import Attribute, BlockArgument, OpResult, SSAValue
from xdsl.utils.exceptions import VerifyException

I1 = IntegerType(1)
INDEX = IndexType()
# By class, here and where all operations of a kernel are looked at: `isinstance` of xDSL's classes, whose metaclass is
# ABCMeta, takes ten times as long to say no.
_OF_ELEMENTS = frozenset({TensorType, MemRefType})
VALUES = frozenset({OpResult, BlockArgument})


def shape(value: SSAValue | Attribute) -> tuple[int, ...]:
    """Extents of a tile, () for a scalar."""
    type_ = value.type if type(value) in VALUES else value  # type: ignore[union-attr]
    return tuple(type_.get_shape()) if type(type_) is TensorType else ()


def element(value: SSAValue | Attribute) -> Attribute:
    """Element type of a tile or view; the type itself for a scalar."""
    type_: Attribute = value.type if type(value) in VALUES else value  # type: ignore[union-attr, assignment]
    return type_.element_type if type(type_) in _OF_ELEMENTS else type_  # type: ignore[attr-defined]


def element_bytes(view: SSAValue | Attribute) -> int:
    """Bytes of one element of a view or tile."""
    type_ = element(view)
    return 8 if isinstance(type_, IndexType) else -(-type_.bitwidth // 8)  # type: ignore[attr-defined]


def tile_type(extents: Sequence[int], element_type: Attribute) -> Attribute:
    """The type of a tile; the bare element type where there are no dimensions."""
    return _tile_type(tuple(extents), element_type) if extents else element_type


@lru_cache(4096)
def _tile_type(extents: tuple[int, ...], element_type: Attribute) -> Attribute:
    return TensorType(element_type, extents)


def i64s(values: Sequence[int]) -> DenseArrayBase:
    return _i64s(tuple(values))


@lru_cache(4096)
def _i64s(values: tuple[int, ...]) -> DenseArrayBase:
    return DenseArrayBase.from_list(i64, values)


def verify_view(type_: Attribute) -> None:
    assert isinstance(type_, MemRefType)
    if len(type_.get_shape()) != 1 or type_.get_shape()[0] < 0:
        raise VerifyException(f"{type_} is not a flat view: one dimension, extent known")
    if element(type_) == I1:
        raise VerifyException(f"{type_}: bool is stored as i8")
