"""Element types: their names, NumPy equivalents, kinds and sizes."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeAlias

import numpy as np

from tilewright.errors import InvalidExpression

DType = str  # one of `DTYPES`

#: What a user may give as an element type: see `named`. Builders of `expr.ops` get the name (`ops.arguments`).
DTypeLike: TypeAlias = Annotated[Any, "element type"]

FLOATS: tuple[DType, ...] = ("bf16", "f16", "f32", "f64")
SIGNED: tuple[DType, ...] = ("i8", "i16", "i32", "i64")
UNSIGNED: tuple[DType, ...] = ("u8", "u16", "u32", "u64")
DTYPES: tuple[DType, ...] = ("bool", *UNSIGNED, *SIGNED, *FLOATS)
SPELLINGS: dict[str, DType] = {name: name for name in DTYPES} | {f"s{name[1:]}": name for name in SIGNED}  # i8 is s8
INDEX: DType = "i64"  # the type of axes and index expressions

_NUMPY = {
    "bool": np.bool_, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip

_BITS = {name: 8 if name == "bool" else int(name.strip("bfiu")) for name in DTYPES}

_BY_WORD: dict[str, DType] = (
    {name: name for name in DTYPES}
    | {np.dtype(numpy).name: name for name, numpy in _NUMPY.items()}
    | {"bfloat16": "bf16"}
)


def named(dtype: DTypeLike, *, where: str = "") -> DType:
    """The name of an element type, given by this name, by the word that NumPy uses, or by a type of NumPy or torch.

    Short codes of NumPy are not taken: they count bytes ("i8" is int64 there), and the names of `DTYPES` count bits.
    Raises InvalidExpression for what is no element type.

    >>> [named(dtype) for dtype in ("f32", "float32", np.float32, np.dtype("f4"), "bfloat16", "i8", bool)]
    ['f32', 'f32', 'f32', 'f32', 'bf16', 'i8', 'bool']
    """
    if isinstance(dtype, str):
        found = _BY_WORD.get(dtype)
    else:
        found = _BY_WORD.get(_word(dtype))
    if found is None:
        shown = repr(dtype) if len(repr(dtype)) <= 60 else type(dtype).__name__
        fact = f"unknown dtype {shown}"
        help = f"one of {', '.join(DTYPES)}, or as NumPy has them: 'float32', np.float32"
        raise InvalidExpression(fact, where=where, help=help)
    return found


def _word(dtype: object) -> str:
    """What NumPy or torch calls a dtype of theirs, in the byte order of this machine; "" for anything else."""
    shown = str(dtype)
    if shown.startswith("torch."):
        return shown.removeprefix("torch.")
    if not isinstance(dtype, type | np.dtype):
        return ""
    try:
        found = np.dtype(dtype)
    except TypeError:
        return ""
    return found.name if found.isnative else ""


def _require_known(dtype: DType) -> None:
    if dtype not in DTYPES:
        raise InvalidExpression(f"unknown dtype {dtype!r}", help=f"one of {', '.join(DTYPES)}")


@cache
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype of `dtype`; bf16 is `ml_dtypes.bfloat16`."""
    if dtype == "bf16":
        import ml_dtypes

        brain: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return brain
    _require_known(dtype)
    found: np.dtype[Any] = np.dtype(_NUMPY[dtype])
    return found


def from_numpy(dtype: Any) -> DType:
    """The name of a NumPy dtype; raises InvalidExpression where there is no equivalent."""
    name = _BY_WORD.get(_word(np.dtype(dtype)))
    if name is None:
        raise InvalidExpression(f"no element type for NumPy dtype {dtype}", help=f"one of {', '.join(DTYPES)}")
    return name


def is_float(dtype: DType) -> bool:
    return dtype in FLOATS


def is_integer(dtype: DType) -> bool:
    return dtype in SIGNED or dtype in UNSIGNED


def is_unsigned(dtype: DType) -> bool:
    return dtype in UNSIGNED or dtype == "bool"


@cache
def limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer type."""
    found = np.iinfo(numpy_dtype(dtype))
    return int(found.min), int(found.max)


def wide(dtype: DType) -> DType:
    """The type that operators compute `dtype` in: f32 for f16 and bf16."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def bits(dtype: DType) -> int:
    """Storage bits; bool is stored as one byte."""
    _require_known(dtype)
    return _BITS[dtype]


def size_bytes(dtype: DType) -> int:
    return bits(dtype) // 8
