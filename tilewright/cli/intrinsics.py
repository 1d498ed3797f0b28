"""`tilewright intrinsics`: the catalogue of intrinsics, and one record in full."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.arguments import AsJson
from tilewright.cli.console import show_json, table

if TYPE_CHECKING:
    from tilewright.instruction.intrinsic import Intrinsic

EPILOG = """\
\b
example: tilewright intrinsics
         tilewright intrinsics 'mma_*'
         tilewright intrinsics mma_m16n8k16_f16_f32 --layout
         tilewright intrinsics my_unit --records mine.yaml
exit status: 0 listed, 2 no such intrinsic, or records that contradict themselves
"""

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="a record by name or alias; with * those that match", show_default=False),
]
Target = Annotated[str | None, typer.Option("--target", metavar="T", help="list every record of this target")]
Layout = Annotated[bool, typer.Option("--layout", help="draw where every element of each operand lies")]
Records = Annotated[
    Path | None, typer.Option("--records", metavar="FILE", help="a file (YAML, JSON) with records of your own")
]


def intrinsics(
    name: Name = None, target: Target = None, layout: Layout = False, records: Records = None, as_json: AsJson = False
) -> None:
    """List the intrinsics, by family, or print one: what it computes and moves, its layouts, numerics and cost."""
    from tilewright.instruction.drawing import describe
    from tilewright.instruction.files import load_records
    from tilewright.instruction.registry import standard

    registry = standard() if records is None else standard().add(*load_records(records))
    if name is not None and "*" not in name:
        record = registry.find(name)
        if as_json:
            show_json(_facts(record, layout))
        else:
            print(describe(record, layouts=layout))
        return
    if target is not None and target not in registry.targets:
        raise typer.BadParameter(f"no target {target!r}: one of {', '.join(registry.targets)}", param_hint="--target")
    found = [
        record
        for record in registry
        if (target is None or record.target == target) and (name is None or fnmatchcase(record.name, name))
    ]
    if as_json:
        show_json([_facts(record, layout) for record in found])
    elif name is not None or target is not None:
        rows = [[record.name, record.target, _shape(record), _types(record), str(record.macs)] for record in found]
        table({"name": "left", "target": "left", "loops": "left", "types": "left", "points": "right"}, rows)
    else:
        _families(found)


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
    """The target, and the words of a name before its shape."""
    first, *others = record.name.split("_")
    shape = next((place for place, word in enumerate(others) if any(map(str.isdigit, word))), len(others))
    return record.target, "_".join([first, *others[:shape]])


def _some(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} and {len(texts) - 1} more"


def _shape(record: Intrinsic) -> str:
    return " ".join(f"{loop}:{extent}" for loop, extent in record.extents.items())


def _types(record: Intrinsic) -> str:
    return " x ".join(operand.dtype for operand in record.sources) + f" -> {record.destination.dtype}"


def _facts(record: Intrinsic, layout: bool) -> dict[str, Any]:
    """A record as the fields of a file, with its loops and points; with `layout` the elements that lanes hold."""
    from tilewright.instruction.files import to_json
    from tilewright.instruction.fragments import places
    from tilewright.instruction.intrinsic import Fragment

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
