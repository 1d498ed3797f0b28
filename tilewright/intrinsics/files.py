"""Records in files: YAML or JSON with the fields of `Intrinsic`, and records as such fields.

A file is a mapping with a list `intrinsics`. Nothing in it is executed; whatever is wrong is an InvalidIntrinsic.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, cast

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidIntrinsic, InvalidMachine
from tilewright.fields import Readable, record, required, several
from tilewright.files import as_path
from tilewright.intrinsics.check_record import check
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.machine.reading import Document, read_document


@dataclass(frozen=True)
class _File(Readable):
    """What a file holds."""

    intrinsics: tuple[Intrinsic, ...] = required(several(record(Intrinsic)))


def load_records(path: str | os.PathLike[str]) -> tuple[Intrinsic, ...]:
    """The records of a file, each proven consistent; raises InvalidIntrinsic with file and line."""
    try:
        document = read_document(as_path(path, "path"))
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
    records = _File.from_json(document.values, document.where, InvalidIntrinsic).intrinsics
    for number, each in enumerate(records):
        try:
            check(each)
        except InvalidIntrinsic as error:
            message = f"{error.where}: {error.message}" if error.where else error.message
            raise InvalidIntrinsic(message, where=document.where(("intrinsics", number)), help=error.help) from error
    return records


def to_json(intrinsic: Intrinsic) -> dict[str, Any]:
    """A record as the plain values of a file, fields with their usual value left out."""
    return cast("dict[str, Any]", _plain(intrinsic))


def _plain(value: Any) -> Any:
    if isinstance(value, Readable):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: _plain(item) for field, item in pairs if field.default is MISSING or item != field.default}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
