"""Named forms of layouts: small values that print as text and become linear layouts for a tile of a given shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from tilewright.errors import InvalidArgument
from tilewright.layouts.bits import is_power_of_two, powers_around
from tilewright.layouts.linear import Array, LinearLayout


class Form(ABC):
    """What named forms share: a name, and fields with the keys of their text, in order."""

    FORM: ClassVar[str]
    KEYS: ClassVar[dict[str, str]]  # key in the text -> field

    def __str__(self) -> str:
        return f"#{self.FORM}<{', '.join(f'{key}={_text(getattr(self, f))}' for key, f in self.KEYS.items())}>"

    def refuse(self, message: str, help: str = "") -> InvalidArgument:
        """The error for a contradiction in this layout."""
        return InvalidArgument(message, where=str(self), help=help)

    def powers(self, key: str) -> None:
        """Raise InvalidArgument unless a field is a power of two, or a sequence of them."""
        value = getattr(self, self.KEYS[key])
        for each in value if isinstance(value, tuple) else (value,):
            if not is_power_of_two(each):
                raise self.refuse(f"{key} is {_text(value)}", help=f"powers of two: {powers_around(each)}")

    def shaped(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """`shape`; raises InvalidArgument where it has another rank than `rank` or is not of powers of two."""
        if len(shape) != rank:
            raise self.refuse(f"a layout of {rank} dimensions for a tile of {_by(shape)}")
        if not all(map(is_power_of_two, shape)):
            nearest = "x".join(powers_around(extent).split()[-1] for extent in shape)
            raise self.refuse(
                f"a tile of {_by(shape)}, whose extents are not all powers of two",
                help=f"pad it to {nearest} under a mask",
            )
        return tuple(shape)

    @abstractmethod
    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        """The linear map for a tile of `shape`."""


class Distributed(Form):
    """A tile spread over the registers of the lanes of the warps of a block.

    One repetition covers a tile; larger tiles repeat it in registers, in smaller ones bits that reach outside
    replicate.
    """

    @property
    def opaque(self) -> bool:
        """Whether hardware decides which lane holds what: values enter and leave through memory only."""
        return False

    @abstractmethod
    def repetition(self, shape: tuple[int, ...]) -> LinearLayout:
        """The layout of one repetition, for a tile of `shape`."""

    @abstractmethod
    def rest_order(self, rank: int) -> tuple[int, ...]:
        """The order in which registers walk through further repetitions, fastest dimension first."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Dimensions of the tiles that this layout is for."""

    def to_linear(self, shape: Sequence[int]) -> LinearLayout:
        return _fitted(self, self.shaped(shape, self.rank))


@lru_cache(4096)
def _fitted(form: Distributed, shape: tuple[int, ...]) -> LinearLayout:
    return form.repetition(shape).fit(shape, form.rest_order(len(shape)))


class InShared(Form):
    """A tile in shared memory: which offset, in elements, holds which element."""

    @abstractmethod
    def offsets(self, shape: Sequence[int]) -> Array:
        """The offset of every element: an array of `shape`."""

    @abstractmethod
    def elements(self, shape: Sequence[int]) -> int:
        """Elements of storage, padding included."""


def checked_order(order: Sequence[int], rank: int, form: Form | None = None) -> None:
    """Raise InvalidArgument, which names `form`, unless `order` lists the dimensions, fastest first."""
    if sorted(order) != list(range(rank)):
        refuse = InvalidArgument if form is None else form.refuse
        raise refuse(f"O={list(order)} for {rank} dimensions", help=f"a permutation, as {list(range(rank))[::-1]}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{','.join(map(_text, value))}]"
    return str(value)


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one element"
