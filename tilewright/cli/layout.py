"""`tilewright layout`: which thread and register, or which offset, holds each element of a tile."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.arguments import AsJson
from tilewright.cli.console import show_json
from tilewright.cli.printing import say
from tilewright.errors import InvalidArgument
from tilewright.files import require_writable, write_file

if TYPE_CHECKING:
    from tilewright.layouts import Conversion, Layout

EPILOG = """\
\b
example: tilewright layout 'mma<v=2, W=[1,1]>' --shape 16x8
         tilewright layout 'shared<vec=8, perPhase=4, maxPhase=2, O=[1,0]>' \\
             --shape 16x16 --bits 16 --svg a.svg
         tilewright layout 'mma<v=2, W=[1,1]>' --shape 16x8 \\
             --to 'blocked<S=[1,1], T=[4,8], W=[1,1], O=[1,0]>'
exit status: 0 shown,
             2 no such layout, or one that contradicts itself or the shape
"""
_DRAWN = 64  # rows and columns of a table on the terminal

Text = Annotated[str, typer.Argument(metavar="LAYOUT", help="as in the text of programs", show_default=False)]
Shape = Annotated[str, typer.Option("--shape", metavar="MxN", help="extents of the tile", show_default=False)]
To = Annotated[str | None, typer.Option("--to", metavar="LAYOUT", help="what a conversion to this layout takes")]
Bits = Annotated[int, typer.Option("--bits", metavar="N", help="width of an element")]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="draw it there, one square per element")]


def layout(text: Text, shape: Shape, to: To = None, bits: Bits = 32, svg: Svg = None, as_json: AsJson = False) -> None:
    """Show where a layout puts every element of a tile: a table, a picture, or JSON; and how it reaches memory."""
    from tilewright.layouts import convert, parse
    from tilewright.layouts.picture import svg as picture
    from tilewright.layouts.shared import checked_bits

    require_writable(svg, "--svg")
    extents = _extents(shape)
    checked_bits(bits)
    shown = parse(text)
    facts = _facts(shown, extents, bits)
    conversion = None
    if to is not None:
        target = parse(to)
        conversion = convert(shown, target, extents, bits)
        facts["conversion"] = _conversion(conversion, shown, target, extents, bits)
    if svg is not None:
        _write(svg, picture(shown, extents, bits))
    if as_json:
        show_json(facts | _places(shown, extents))
        return
    _print(shown, extents, facts)
    if conversion is not None:
        say(f"to {to}\n  {conversion}")
        for key in ("map", "accesses", "matrix_load"):
            if (value := facts["conversion"].get(key)) is not None:
                say(f"  {key.replace('_', ' ')}  {_access(value) if key == 'accesses' else value}")
    if svg is not None:
        say(f"written to {svg}")


def _extents(text: str) -> tuple[int, ...]:
    parts = text.replace(",", "x").split("x")
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 8 and int(part) > 0 for part in parts):
        raise InvalidArgument(f"{text!r} is not a shape", where="--shape", help="write --shape 16x16")
    return tuple(map(int, parts))


def _facts(shown: Layout, shape: tuple[int, ...], bits: int) -> dict[str, Any]:
    """The layout in numbers: its bases and sizes, and accesses of row-major memory or its bytes of storage."""
    from tilewright.layouts import InShared, elements_per_thread, global_access, replication
    from tilewright.layouts.shared import Padded

    found: dict[str, Any] = {"layout": str(shown), "shape": shape, "bits": bits}
    if isinstance(shown, InShared):
        found["storage_bytes"] = -(-shown.elements(shape) * bits // 8)
        if isinstance(shown, Padded) and shown.pad:
            return found | {"linear": None}
    linear = shown.to_linear(shape)
    found |= {"linear": str(linear), "bases": dict(linear.bases), "replication": replication(linear)}
    found["free_bits"] = linear.free_bits()
    found["opaque"] = _is_opaque(shown)
    if not isinstance(shown, InShared) and "lane" in linear.in_names and linear.is_surjective:
        found["elements_per_thread"] = elements_per_thread(linear)
        if bits >= 8 and not found["opaque"]:
            access = global_access(linear, bits)
            vectors = linear.in_bits - len(linear.of("lane"))
            found["row_major_memory"] = {
                "elements_per_access": (1 << vectors) // access.requests,
                "requests": access.requests,
                "sectors": access.sectors,
                "fewest_sectors": access.fewest,
            }
    return found


def _is_opaque(shown: Layout) -> bool:
    """Whether hardware keeps to itself which lane holds what."""
    from tilewright.layouts.form import Distributed

    return isinstance(shown, Distributed) and shown.opaque


def _places(shown: Layout, shape: tuple[int, ...]) -> dict[str, Any]:
    """Every element, row-major: its offset, or all (warp, lane, register) that hold it."""
    import numpy as np

    from tilewright.layouts import InShared

    if isinstance(shown, InShared):
        return {"offsets": shown.offsets(shape).tolist()}
    linear = shown.to_linear(shape)
    table = linear.table()
    order = np.argsort(table.reshape(-1), kind="stable")
    ends = np.searchsorted(table.reshape(-1)[order], np.arange((1 << linear.out_bits) + 1))
    places = np.stack(np.unravel_index(order, table.shape), axis=-1) if table.ndim else np.zeros((1, 0), int)
    return {
        "places": list(reversed(linear.in_names)),
        "elements": [places[start:end].tolist() for start, end in pairwise(ends)],
    }


def _conversion(
    conversion: Conversion, shown: Layout, target: Layout, shape: tuple[int, ...], bits: int
) -> dict[str, Any]:
    from tilewright.layouts import InShared, arrows, matrix_load, shared_access
    from tilewright.layouts.shared import Padded

    found: dict[str, Any] = {
        "kind": conversion.kind,
        "cost": conversion.cost,
        "bytes_per_thread": conversion.bytes_per_thread,
        "shuffles": conversion.rounds,
        "scratch_bytes": conversion.scratch_bytes,
        "map": arrows(conversion.bit_map) if conversion.bit_map is not None else None,
    }
    memory, registers = (shown, target) if isinstance(shown, InShared) else (target, shown)
    if isinstance(memory, InShared) and not isinstance(registers, InShared) and not _is_opaque(registers):
        linear = registers.to_linear(shape)
        access = shared_access(linear, memory, bits)
        found["accesses"] = {"count": access.accesses, "wavefronts": access.wavefronts, "conflicts": access.conflicts}
        if memory is shown and not isinstance(memory, Padded):
            matrices = matrix_load(linear, memory.to_linear(shape), bits)
            found["matrix_load"] = None if matrices is None else str(matrices)
    return found


def _print(shown: Layout, shape: tuple[int, ...], facts: dict[str, Any]) -> None:
    from tilewright.layouts.tables import bases, table

    say(f"{facts['layout']} on {'x'.join(map(str, shape))}")
    if facts["linear"] is not None:
        print("\n".join(f"  {line}" for line in bases(shown.to_linear(shape)).splitlines()))
    if "storage_bytes" in facts:
        say(f"  {facts['storage_bytes']} bytes of shared memory")
    if "elements_per_thread" in facts:
        places = "one place" if facts["replication"] == 1 else f"{facts['replication']} places"
        say(f"  {facts['elements_per_thread']} registers per thread, each element in {places}")
    if facts.get("opaque"):
        say("  opaque: which lane holds which element is unspecified; shown is one assignment that has the size")
    if memory := facts.get("row_major_memory"):
        say(
            f"  row-major memory, {facts['bits']} bits: {memory['elements_per_access']} elements per access, "
            f"{memory['requests']} requests, {memory['sectors']} sectors (fewest {memory['fewest_sectors']})"
        )
    if max(shape[-2:]) > _DRAWN or len(shape) > 3:
        say(f"  a table has at most {_DRAWN} rows and columns; --json and --svg have every element")
    else:
        print(table(shown, shape))


def _access(value: dict[str, int]) -> str:
    return f"{value['count']}, {value['wavefronts']} wavefronts, {value['conflicts']} too many"


def _write(path: Path, text: str) -> None:
    write_file(path, text.encode(), where="--svg")
