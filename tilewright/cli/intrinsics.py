"""`tilewright intrinsics`: the catalogue of intrinsics, and one record in full."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson
from tilewright.cli.completion import among
from tilewright.cli.console import show_json
from tilewright.cli.printing import say, table
from tilewright.errors import InvalidArgument

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic

EPILOG = """\
\b
example: tilewright intrinsics
         tilewright intrinsics 'mma_*'
         tilewright intrinsics mma_m16n8k16_f16_f32 --layout
         tilewright intrinsics my_unit --records mine.yaml
exit status: 0 listed,
             2 no such intrinsic, or records that contradict themselves
"""

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="a record by name or alias; with * those that match",
        show_default=False,
        autocompletion=among(completion.intrinsics),
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="T",
        help="list the records of this target",
        autocompletion=among(completion.intrinsic_targets),
    ),
]
Layout = Annotated[bool, typer.Option("--layout", help="draw where every element of each operand lies")]
Records = Annotated[
    Path | None, typer.Option("--records", metavar="FILE", help="a file (YAML, JSON) with records of your own")
]


def intrinsics(
    name: Name = None, target: Target = None, layout: Layout = False, records: Records = None, as_json: AsJson = False
) -> None:
    """List the intrinsics, by family, or print one: what it computes and moves, its layouts, numerics and cost."""
    from tilewright.intrinsics.drawing import describe, draw
    from tilewright.intrinsics.files import load_records
    from tilewright.intrinsics.registry import standard

    registry = standard() if records is None else standard().add(*load_records(records))
    if name is not None and "*" not in name:
        record = registry.find(name)
        if as_json:
            show_json(_facts(record, layout))
        else:
            say(describe(record), indent=10)
            for operand in record.operands if layout else ():
                print(f"\n{draw(record, operand)}")
        return
    if target is not None and target not in registry.targets:
        known = ", ".join(registry.targets)
        raise InvalidArgument(f"no target {target!r}", where="--target", help=f"one of {known}")
    found = [
        record
        for record in registry
        if (target is None or record.target == target) and (name is None or fnmatchcase(record.name, name))
    ]
    if as_json:
        show_json([_facts(record, layout) for record in found])
    elif name is not None or target is not None:
        groups = groupby(found, key=_instruction)
        rows = [row for made_of, group in groups for row in _rows(list(group), together=made_of != "" and name is None)]
        table({"name": "left", "target": "left", "loops": "left", "types": "left", "points": "right"}, rows)
    else:
        _families(found)


def _rows(records: list[Intrinsic], together: bool) -> list[list[str]]:
    """One line per record, or one for all outer products of an instruction: `tilewright intrinsics NAME` lists them."""
    if not together:
        return [[each.name, each.target, _shape(each), _types(each), str(each.macs)] for each in records]
    first = records[0]
    shapes = ", ".join(f"{rows}x{vectors}" for rows, vectors, _ in (each.grid for each in records))
    name = f"{_words(first.name)}_*_{_instruction(first)}"
    return [[name, first.target, f"{shapes} registers", _types(first), ""]]


def _instruction(record: Intrinsic) -> str:
    """The instruction of which a record is an outer product of registers; empty for other records."""
    return record.realised_by if record.grid != (1, 1, 1) else ""


def _families(records: Iterable[Intrinsic]) -> None:
    """One line per family of a target: its records are listed by `tilewright intrinsics 'FAMILY_*'`."""
    rows = []
    for (target, family), group in groupby(sorted(records, key=_family), key=_family):
        members = list(group)
        shapes = list(dict.fromkeys(map(_shape, members)))
        types = list(dict.fromkeys(map(_types, members)))
        rows.append([f"{family}_*", target, str(len(members)), _some(shapes), _some(types)])
    columns = {"family": "left", "target": "left", "records": "right", "loops": "left", "types": "left"}
    table(columns, rows)


def _family(record: Intrinsic) -> tuple[str, str]:
    """The target, and the words of a name before its shape; of an outer product also those of its instruction."""
    made_of, own = _instruction(record), _words(record.name)
    return record.target, f"{own}_*_{_words(made_of)}" if made_of else own


def _words(name: str) -> str:
    """
    >>> _words("vpdpbusd_full_16x4_u8s8_s32")
    'vpdpbusd_full'
    """
    first, *others = name.split("_")
    shape = next((place for place, word in enumerate(others) if any(map(str.isdigit, word))), len(others))
    return "_".join([first, *others[:shape]])


def _some(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} and {len(texts) - 1} more"


def _shape(record: Intrinsic) -> str:
    return " ".join(f"{loop}:{extent}" for loop, extent in record.extents.items())


def _types(record: Intrinsic) -> str:
    return " x ".join(operand.dtype for operand in record.sources) + f" -> {record.destination.dtype}"


def _facts(record: Intrinsic, layout: bool) -> dict[str, Any]:
    """A record as the fields of a file, with its loops and points; with `layout` the elements that lanes hold."""
    from tilewright.intrinsics.files import to_json
    from tilewright.intrinsics.fragments import places
    from tilewright.intrinsics.intrinsic import Fragment

    loops = [{"name": loop.name, "extent": loop.extent, "kind": loop.kind} for loop in record.loops]
    facts = {**to_json(record), "loops": loops, "macs": record.macs}
    if layout:
        facts["elements"] = {
            operand.role: [
                [list(map(int, element)) for element in zip(*lane, strict=True)]
                for lane in zip(*places(operand.layout), strict=True)
            ]
            for operand in record.operands
            if isinstance(operand.layout, Fragment)
        }
    return facts
