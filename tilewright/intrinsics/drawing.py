"""A record as text for people: what it computes and moves, and its fragments as the tables that manuals draw."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.intrinsics.check_layout import WORDS
from tilewright.intrinsics.formula import formula
from tilewright.intrinsics.fragments import places
from tilewright.intrinsics.intrinsic import GROUP_LANES, Fragment, Intrinsic, Movement, Operand

_WIDEST = 32  # columns of a drawn table


def describe(record: Intrinsic) -> str:
    """The compute and memory abstraction of a record, its limits, numerics and cost."""
    others = f" ({', '.join(record.aliases)})" if record.aliases else ""
    lanes = GROUP_LANES[record.group]
    issued = f"issued by {lanes} lanes together" if lanes > 1 else "one lane of code"
    loops = ", ".join(f"{loop.name} {loop.extent} {_KINDS[loop.kind]}" for loop in record.loops)
    lines = [
        f"{record.name}{others}",
        f"  target    {', '.join([record.target, *record.features])}; {record.group}, {issued}",
        f"  computes  {record.compute}",
        f"  loops     {loops}; {record.macs} points",
        *_lines("operands", _columns([_operand(operand) for operand in record.operands])),
        *_lines("memory", _columns([_movement(record, movement) for movement in record.memory])),
        f"  numerics  {_numerics(record)}; padding {record.pad_identity:g}",
        *_lines("limits", list(_limits(record))),
        f"  cost      {_cost(record)}",
    ]
    if record.realised_by:
        lines.append(f"  made of   {record.realised_by}")
    if record.emitter or record.llvm:
        lines.append(f"  emitted   {' as '.join(filter(None, (record.emitter, record.llvm)))}")
    lines.append(f"  source    {record.source}")
    return "\n".join(lines)


def draw(record: Intrinsic, operand: Operand) -> str:
    """An operand's layout as a table: its first loop downwards, the second to the right.

    A cell of a fragment is ``lane:e``, lanes with the same element joined by ``/``; a cell of a formula is its offset.
    """
    title = f"{operand.role}[{', '.join(operand.loops)}]"
    layout, shape = operand.layout, record.shape(operand)
    if isinstance(layout, Fragment):
        title += f"  ({', '.join(layout.indices)})"
        cells = _holders(layout, shape)
    elif layout in WORDS:
        return f"{title}  {_WORDS[layout]}"
    else:
        title += f"  {layout}"
        offsets = formula(layout)(dict(zip(operand.loops, np.indices(shape), strict=True)))
        cells = np.broadcast_to(np.asarray(offsets), shape).astype(str)
    if len(shape) > 2:
        return f"{title}\n  {len(shape)} loops: not drawn"
    table = cells.reshape(1, -1) if len(shape) < 2 else cells
    note = "" if table.shape[1] <= _WIDEST else f"\n  … {table.shape[1] - _WIDEST} more columns"
    rows = [["", *map(str, range(min(table.shape[1], _WIDEST)))]]
    rows += [[str(number), *row[:_WIDEST].tolist()] for number, row in enumerate(table)]
    return "\n".join([title, *("  " + line for line in _columns(rows, right=True))]) + note


_KINDS = {"S": "spatial", "R": "reduced"}
_WORDS = {
    "row_major": "lies in the order of its loops, the last one fastest",
    "descriptor": "is read from shared memory, where a descriptor says",
    "opaque": "has an unspecified layout: only the same operation on every element is possible",
}


def _holders(fragment: Fragment, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    found = np.full(shape, "", dtype=object)
    indices = places(fragment)
    for lane, e in np.ndindex(fragment.lanes, fragment.elements):
        at = tuple(int(index[lane, e]) for index in indices)
        before = found[at].rpartition(":")[0]
        found[at] = f"{before}/{lane}:{e}" if before else f"{lane}:{e}"
    return found


def _operand(operand: Operand) -> list[str]:
    layout = operand.layout
    if isinstance(layout, Fragment):
        where = f"{layout.elements} per lane{', replicated' if layout.replicated else ''}"
    else:
        where = layout if layout in WORDS else f"at {layout}"
    return [operand.role, operand.dtype, f"[{', '.join(operand.loops)}]", operand.scope, where]


def _movement(record: Intrinsic, movement: Movement) -> list[str]:
    loops = ", ".join(record.operand(movement.operand).loops)
    if movement.value is not None:
        return [movement.name, f"{movement.destination}.{movement.operand}[{loops}] = {movement.value:g}", movement.via]
    register, memory = f"{movement.operand}[{loops}]", f"{movement.operand}[{movement.address}]"
    stores = movement.source in ("reg", "l0c")
    left, right = (memory, register) if stores else (register, memory)
    notes = [movement.via] if movement.via else []
    if movement.alignment_bytes > 1:
        notes.append(f"{movement.alignment_bytes}-byte aligned")
    if movement.stride_multiple > 1:
        notes.append(f"strides % {movement.stride_multiple} = 0")
    if movement.lane_address:
        notes.append(f"lane's row at {movement.lane_address}")
    return [movement.name, f"{movement.destination}.{left} = {movement.source}.{right}", "; ".join(notes)]


def _numerics(record: Intrinsic) -> str:
    numerics = record.numerics
    parts = [numerics.rule + (f", {numerics.group} at a time" if numerics.group else "")]
    if record.destination.dtype in ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"):
        parts.append("saturates" if numerics.saturate else "wraps")
    if numerics.denormals == "zero":
        parts.append("denormals are zero")
    return ", ".join([*parts, f"order of sums {numerics.order}"])


def _cost(record: Intrinsic) -> str:
    cost = record.cost
    units = f"one of {cost.units_per_core} units" if cost.units_per_core > 1 else "the one unit"
    return f"{cost.issue_cycles:g} cycles per call on {units} of a core, result after {cost.latency_cycles:g}"


def _limits(record: Intrinsic) -> Iterator[str]:
    if record.limits.registers:
        yield f"{record.limits.registers} registers per call"
    for scope, size in record.limits.capacity_bytes.items():
        yield f"{scope}: {size} bytes"


def _lines(title: str, lines: list[str]) -> list[str]:
    return [f"  {title if number == 0 else '':<8}  {line}" for number, line in enumerate(lines)]


def _columns(rows: list[list[str]], *, right: bool = False) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    place = str.rjust if right else str.ljust
    return [
        "  ".join(place(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]  # fmt: skip
