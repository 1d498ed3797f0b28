"""Frozen dataclasses that are read from plain values: every field has a kind, which checks what a file says.

The one reader of JSON and YAML for machine files, manifests, decisions and tuning results. A kind takes a value and its
place, and returns what the field holds; where the value is wrong it adds a fault to a list and what it returns is not
used. All faults of a value are found in one pass.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeAlias, cast

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidFile, nearest

Place: TypeAlias = tuple[str | int, ...]  # keys and list positions from the top of the value
Kind: TypeAlias = Callable[[Any, Place, "list[Fault]"], Any]

_LARGEST: Final = 1 << 62
_LARGEST_FINITE: Final = 1e300  # leaves room for products
_MOST_LETTERS: Final = 100
_SHOWN_FAULTS: Final = 8  # of a value, in one message
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Fault:
    """What is wrong at a place, and what would be legal there, or ""."""

    place: Place
    message: str
    help: str = ""

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.place))} {self.message}".strip()


class Contradiction(ValueError):
    """What is wrong with one field, found by comparing it with others, and what would be legal there.

    `field` is a name, or the place of an item below: ("launches", 3).
    """

    def __init__(self, field: str | Place, message: str, help: str = "") -> None:
        super().__init__(message)
        self.place: Place = (field,) if isinstance(field, str) else field
        self.help = help


def required(kind: Kind) -> Any:
    """A field that a description has to state."""
    return dataclasses.field(metadata={"kind": kind})


def optional(kind: Kind, default: Any = None) -> Any:
    """A field with a default; a value of None stands for a field that is left out."""
    return dataclasses.field(default=default, metadata={"kind": kind})


class Readable:
    """The base of frozen dataclasses whose fields are made by `required` and `optional`.

    It is no dataclass itself: `tilewright.dataclass` makes a class quickly that extends none.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        """What is read in place of `value`. Raises ValueError where its fields contradict each other."""
        return value

    def check(self) -> None:
        """Raises ValueError, best a `Contradiction`, where fields that are right each contradict each other."""

    def to_json(self) -> dict[str, Any]:
        """The fields as values of JSON, without what is None; `from_json` takes them back."""
        return cast("dict[str, Any]", _plain(self))

    @classmethod
    def from_json(
        cls, value: Any, where: str | Callable[[Place], str] = "", error: type[CompileError] = InvalidFile
    ) -> Self:
        """The value that `to_json` wrote.

        Raises `error` with everything that is wrong. The first fault sets its help, and its place where `where` gives
        one for it.
        """
        return cast("Self", read(record(cls), value, where, error))


def read(kind: Kind, value: Any, where: str | Callable[[Place], str], error: type[CompileError] = InvalidFile) -> Any:
    """What a kind makes of a value. Raises `error` as `Readable.from_json` does."""
    faults: list[Fault] = []
    found = kind(value, (), faults)
    if not faults:
        return found
    shown = "; ".join(map(str, faults[:_SHOWN_FAULTS]))
    more = f"; and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
    first = faults[0]
    raise error(f"{shown}{more}", where=where if isinstance(where, str) else where(first.place), help=first.help)


def record(cls: type[Readable]) -> Kind:
    """A mapping with the fields of `cls`."""
    fields = {field.name: field for field in dataclasses.fields(cls)}

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            return _refuse(value, place, faults, f"a mapping with the fields {', '.join(fields)}")
        before = len(faults)
        try:
            value = cls.prepared(value)
        except ValueError as error:
            faults.append(Fault(place, str(error)))
        faults += [_unknown(name, place, list(fields)) for name in value if name not in fields]
        given = {}
        for name, field in fields.items():
            is_optional = not (field.default is field.default_factory is dataclasses.MISSING)
            if name not in value:
                if not is_optional:
                    faults.append(Fault((*place, name), "is missing"))
            elif not (is_optional and value[name] is None):
                given[name] = field.metadata["kind"](value[name], (*place, name), faults)
        if len(faults) > before:
            return None
        try:
            found = cls(**given)
            found.check()
        except CompileError as error:  # of a value that checks itself wherever it is made
            faults.append(Fault(place, error.message, error.help))
            return None
        except Contradiction as error:
            faults.append(Fault((*place, *error.place), str(error), error.help))
        except ValueError as error:
            faults.append(Fault(place, str(error)))
        return found

    return read


# Kinds ----------------------------------------------------------------------------------------------------------------


def whole(least: int, bits: int) -> Kind:
    """A whole number from `least` to 2**bits - 1."""
    limit = 1 << bits

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        if type(value) is int and least <= value < limit:
            return value
        return _refuse(value, place, faults, f"a whole number from {least} to 2**{bits} - 1")

    return read


count: Final = whole(1, 62)
size: Final = whole(0, 47)  # bytes or elements: what the addresses of a process reach


def rate(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A positive finite number."""
    if type(value) in (int, float) and 0 < value < math.inf and (type(value) is float or value < _LARGEST):
        return float(value)
    return _refuse(value, place, faults, "a finite number above 0")


def real(value: Any, place: Place, faults: list[Fault]) -> Any:
    """Any number; measured and predicted seconds may be infinite."""
    if type(value) is float or (type(value) is int and abs(value) < _LARGEST):
        return float(value)
    return _refuse(value, place, faults, "a number")


def finite(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A finite number, below zero too."""
    if type(value) in (int, float) and abs(value) <= _LARGEST_FINITE:
        return float(value)
    return _refuse(value, place, faults, "a finite number")


def integer(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A whole number, below zero too."""
    if type(value) is int and abs(value) < _LARGEST:
        return value
    return _refuse(value, place, faults, "an integer of 63 bits")


def anything(value: Any, place: Place, faults: list[Fault]) -> Any:
    """What another reader checks."""
    return value


def flag(value: Any, place: Place, faults: list[Fault]) -> Any:
    return value if type(value) is bool else _refuse(value, place, faults, "true or false")


def string(value: Any, place: Place, faults: list[Fault]) -> Any:
    """Any text."""
    return value if isinstance(value, str) else _refuse(value, place, faults, "a text")


def word(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A name that stands in files, commands and code alike."""
    if isinstance(value, str) and len(value) <= _MOST_LETTERS and _WORD.fullmatch(value):
        return value
    return _refuse(value, place, faults, f"a word of at most {_MOST_LETTERS} letters, digits and _.+-")


def text(pattern: str) -> Kind:
    """A string of that form as a whole."""
    form = re.compile(pattern)

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        right = isinstance(value, str) and form.fullmatch(value) is not None
        return value if right else _refuse(value, place, faults, f"a string of the form {pattern}")

    return read


def choice(*legal: str | int) -> Kind:
    """One of a few values."""
    *some, last = map(repr, legal)
    listed = f"{', '.join(some)} or {last}" if some else last

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        right = type(value) in (str, int) and value in legal
        return value if right else _refuse(value, place, faults, listed)

    return read


def items(*kinds: Kind) -> Kind:
    """A list with one item for each kind, as a tuple."""

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(kinds):
            return _refuse(value, place, faults, f"a list of {len(kinds)}")
        return tuple(kind(item, (*place, n), faults) for n, (kind, item) in enumerate(zip(kinds, value, strict=True)))

    return read


def chosen_by(key: str, kinds: Mapping[str, Kind]) -> Kind:
    """A mapping whose word `key`, in any case, says by which kind the rest of it is read."""

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            return _refuse(value, place, faults, f"a mapping with {key}")
        chosen = value.get(key)
        kind = kinds.get(chosen.lower()) if isinstance(chosen, str) else None
        if kind is None:
            return choice(*kinds)(chosen, (*place, key), faults)
        return kind({name: item for name, item in value.items() if name != key}, place, faults)

    return read


def several(kind: Kind, least: int = 0) -> Kind:
    """A list of at least so many items of one kind, as a tuple."""

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        if not isinstance(value, list | tuple) or len(value) < least:
            return _refuse(value, place, faults, f"a list of {least} or more")
        return tuple(kind(item, (*place, number), faults) for number, item in enumerate(value))

    return read


def table(key: Kind, kind: Kind) -> Kind:
    """A mapping from one kind to another."""

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        if not isinstance(value, dict):
            return _refuse(value, place, faults, "a mapping")
        return {key(name, (*place, name), faults): kind(item, (*place, name), faults) for name, item in value.items()}

    return read


def names(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A list of different words, as a tuple in its order."""
    if not isinstance(value, list | tuple | set | frozenset):
        return _refuse(value, place, faults, "a list of words")
    given = list(value)
    twice = sorted({item for item in given if isinstance(item, str) and given.count(item) > 1})
    if twice:
        faults.append(Fault(place, f"lists {', '.join(twice)} twice"))
    return tuple(word(item, (*place, number), faults) for number, item in enumerate(given))


def name_set(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A list of different words, whose order has no meaning."""
    found = names(value, place, faults)
    return None if found is None else frozenset(found)


# Faults ---------------------------------------------------------------------------------------------------------------


def _refuse(value: Any, place: Place, faults: list[Fault], legal: str) -> None:
    shown = repr(value)
    faults.append(Fault(place, f"is {shown if len(shown) <= 60 else shown[:57] + '...'}, not {legal}"))


def _unknown(name: Any, place: Place, fields: Sequence[str]) -> Fault:
    close = nearest(str(name), fields)
    help = f"did you mean {close[0]}?" if close else f"the fields here are {', '.join(fields)}"
    return Fault((*place, name), "is not a field", help)


def _plain(value: Any) -> Any:
    if isinstance(value, Readable):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: _plain(item) for name, item in fields if item is not None}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
