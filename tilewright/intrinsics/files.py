"""Records in files: YAML or JSON with the fields of `Intrinsic`, and records as such fields.

A file is a mapping with a list `intrinsics`. Nothing in it is executed; whatever is wrong is an InvalidIntrinsic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from tilewright.errors import InvalidIntrinsic, InvalidMachine
from tilewright.fields import Place
from tilewright.intrinsics.check_record import check
from tilewright.intrinsics.intrinsic import Cost, Fragment, Intrinsic, Limits, Movement, Numerics, Operand
from tilewright.machine.reading import Document, read_document


def load_records(path: str | Path) -> tuple[Intrinsic, ...]:
    """The records of a file, each proven consistent; raises InvalidIntrinsic with file and line."""
    try:
        document = read_document(Path(path))
    except InvalidMachine as error:
        message = error.message.replace("machine files", "files of intrinsics")
        raise InvalidIntrinsic(message, where=error.where, help="a mapping with a list `intrinsics`") from error
    return _records(document)


def read_text(text: str, where: str) -> tuple[Intrinsic, ...]:
    """The records of a text that `to_text` made, each proven consistent; raises InvalidIntrinsic that names `where`."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidIntrinsic(f"is not JSON: {str(error)[:80]}", where=where) from error
    return _records(Document(where, values, {}))


def to_text(records: Iterable[Intrinsic]) -> str:
    """Records as the text of a JSON file."""
    return json.dumps({"intrinsics": [to_json(record) for record in records]}, separators=(",", ":"))


def _records(document: Document) -> tuple[Intrinsic, ...]:
    reader = _Reader(document)
    top = reader.mapping(document.values, (), {"intrinsics"})
    records = []
    for number, values in enumerate(reader.list(top.get("intrinsics"), ("intrinsics",))):
        place: Place = ("intrinsics", number)
        record = reader.record(values, place)
        try:
            check(record)
        except InvalidIntrinsic as error:
            message = f"{error.where}: {error.message}" if error.where else error.message
            raise InvalidIntrinsic(message, where=document.where(place), help=error.help) from error
        records.append(record)
    return tuple(records)


def to_json(record: Intrinsic) -> dict[str, Any]:
    """A record as the plain values of a file, fields with their usual value left out."""
    found: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.default is MISSING or value != field.default:
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Operand | Movement | Fragment | Limits | Numerics | Cost):
        usual = {field.name: field.default for field in fields(value)}
        items = ((name, getattr(value, name)) for name in usual)
        return {name: _plain(item) for name, item in items if item != usual[name]}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


class _Reader:
    """Plain values to dataclasses: every value has the type of its field, every key is known."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def fail(self, place: Place, message: str, help: str = "") -> InvalidIntrinsic:
        return InvalidIntrinsic(message, where=self.document.where(place), help=help)

    def mapping(self, value: Any, place: Place, known: set[str] | None = None) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(place, f"{_name(place)} is {_shown(value)}, not a mapping")
        for key in value:
            if known is not None and key not in known:
                raise self.fail((*place, key), f"unknown field {key!r}", f"one of {', '.join(sorted(known))}")
        return value

    def list(self, value: Any, place: Place) -> list[Any]:
        if not isinstance(value, list):
            raise self.fail(place, f"{_name(place)} is {_shown(value)}, not a list")
        return value

    def text(self, value: Any, place: Place) -> str:
        if not isinstance(value, str):
            raise self.fail(place, f"{_name(place)} is {_shown(value)}, not a text", "put it in quotes")
        return value

    def integer(self, value: Any, place: Place) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 62:
            raise self.fail(place, f"{_name(place)} is {_shown(value)}, not an integer")
        return value

    def number(self, value: Any, place: Place) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
            raise self.fail(place, f"{_name(place)} is {_shown(value)}, not a number")
        return float(value)

    def flag(self, value: Any, place: Place) -> bool:
        if not isinstance(value, bool):
            raise self.fail(place, f"{_name(place)} is {_shown(value)}, not true or false")
        return value

    def texts(self, value: Any, place: Place) -> tuple[str, ...]:
        return tuple(self.text(item, (*place, number)) for number, item in enumerate(self.list(value, place)))

    def grid(self, value: Any, place: Place) -> tuple[int, int, int]:
        counts = [self.integer(item, (*place, number)) for number, item in enumerate(self.list(value, place))]
        if len(counts) != 3 or min(counts) < 1:
            raise self.fail(place, f"{_name(place)} is {_shown(value)}", "rows, registers per row and steps, 1 or more")
        return counts[0], counts[1], counts[2]

    def integers(self, value: Any, place: Place) -> dict[str, int]:
        return {key: self.integer(item, (*place, key)) for key, item in self.mapping(value, place).items()}

    def layout(self, value: Any, place: Place) -> Fragment | str:
        return value if isinstance(value, str) else self.build(Fragment, value, place)

    def operands(self, value: Any, place: Place) -> tuple[Operand, ...]:
        items = enumerate(self.list(value, place))
        return tuple(self.build(Operand, item, (*place, number)) for number, item in items)

    def movements(self, value: Any, place: Place) -> tuple[Movement, ...]:
        items = enumerate(self.list(value, place))
        return tuple(self.build(Movement, item, (*place, number)) for number, item in items)

    def record(self, value: Any, place: Place) -> Intrinsic:
        record: Intrinsic = self.build(Intrinsic, value, place)
        return record

    def build(self, kind: type[Any], value: Any, place: Place) -> Any:
        """A dataclass from a mapping of its fields, by the reader of each field's annotation."""
        values = self.mapping(value, place, {field.name for field in fields(kind)})
        found = {}
        for field in fields(kind):
            if field.name in values:
                read = _reader_of(str(field.type))
                found[field.name] = read(self, values[field.name], (*place, field.name))
            elif field.default is MISSING and field.default_factory is MISSING:
                raise self.fail(place, f"{_name(place)} lacks {field.name!r}")
        return kind(**found)


_READERS: dict[str, Callable[[_Reader, Any, Place], Any]] = {
    "str": _Reader.text, "DType": _Reader.text, "Scope": _Reader.text, "Group": _Reader.text, "int": _Reader.integer,
    "float": _Reader.number, "bool": _Reader.flag, "float | None": _Reader.number, "tuple[str, ...]": _Reader.texts,
    "tuple[int, int, int]": _Reader.grid, "Mapping[str, int]": _Reader.integers,
    "Mapping[Scope, int]": _Reader.integers, "Fragment | str": _Reader.layout,
    "tuple[Operand, ...]": _Reader.operands, "tuple[Movement, ...]": _Reader.movements,
}  # fmt: skip


def _reader_of(annotation: str) -> Callable[[_Reader, Any, Place], Any]:
    if annotation.startswith("Literal"):
        return _Reader.text
    nested: dict[str, type[Any]] = {"Limits": Limits, "Numerics": Numerics, "Cost": Cost}
    if annotation in nested:
        return lambda reader, value, place: reader.build(nested[annotation], value, place)
    return _READERS[annotation]


def _name(place: Place) -> str:
    return ".".join(map(str, place)) or "the file"


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:60]
