"""`--sweep`: a command's numbers for several values of a field of the machine, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.errors import InvalidArgument

if TYPE_CHECKING:
    from tilewright.machine import Machine

SweepText = Annotated[
    str | None,
    typer.Option("--sweep", metavar="FIELD=V,…", help="a row of CSV per value of a field of the machine, as "
                 "L1.capacity_bytes or clock_hz"),
]  # fmt: skip


def swept(text: str, machine: Machine) -> list[tuple[str, float, Machine]]:
    """The field, each of its values, and the machine that has it.

    Raises InvalidArgument for a text that is no sweep or a field that the description does not have, InvalidMachine for
    a value that it refuses.
    """
    field, values = sweep_of(text)
    return [(field, value, with_field(machine, field, value)) for value in values]


def refuse_beside_sweep(given: Mapping[str, bool]) -> None:
    """Raise InvalidArgument for options that a sweep leaves nothing to do."""
    for option, is_given in given.items():
        if is_given:
            raise InvalidArgument("a sweep prints CSV", where="--sweep", help=f"without {option}")


def sweep_of(text: str) -> tuple[str, list[int | float]]:
    """The field and the values of `--sweep`.

    >>> sweep_of("L1.capacity_bytes=65536,131072")
    ('L1.capacity_bytes', [65536, 131072])
    """
    field, equals, values = text.partition("=")
    parts = values.split(",")
    try:
        if not field or not equals:
            raise ValueError
        return field, [int(part) if part.strip().isdecimal() else float(part) for part in parts]
    except ValueError:
        raise InvalidArgument(
            f"{text!r} is no sweep", where="--sweep", help="FIELD=VALUE,VALUE, as clock_hz=1e9,2e9"
        ) from None


def with_field(machine: Any, field: str, value: float) -> Any:
    """The machine with another value of a field: its own, or that of a memory level, as ``L1.capacity_bytes``.

    Raises InvalidArgument for a field that the description does not have, InvalidMachine for a value that it refuses.
    """
    from tilewright.machine.registry import machine_from_json

    facts = machine.to_json()
    level, _, name = field.rpartition(".")
    owners = {each["name"]: each for each in facts.get("levels", facts.get("caches", ()))} | {"": facts}
    if level not in owners or not isinstance(owners[level].get(name), int | float):
        legal = [
            f"{owner}.{key}" if owner else key
            for owner, values in owners.items()
            for key, known in values.items()
            if isinstance(known, int | float) and not isinstance(known, bool)
        ]
        raise InvalidArgument(f"{machine.name} has no number {field!r}", where="--sweep",
                              help=f"one of {', '.join(legal)}")  # fmt: skip
    owners[level][name] = value
    return machine_from_json(facts)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with the keys of all of them as its head; a cell that a row lacks is empty."""
    text = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
