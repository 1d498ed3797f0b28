"""Counts of what kernels move between memory levels, as text and as JSON (`tilewright run --count`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.cli.printing import say, table

if TYPE_CHECKING:
    from tilewright.compiler.counting import KernelCount, TensorCount
    from tilewright.tiles.traffic import Moved

COLUMNS = {
    "level": "left", "tensor": "left", "fill": "right", "counted": "right", "read": "right", "counted ": "right",
    "update": "right", "counted  ": "right", "": "left",
}  # fmt: skip


def unexplained(counts: Sequence[KernelCount]) -> bool:
    """Whether a program moves something else than its tree says, and no reason is known."""
    from tilewright.compiler.count_reasons import DIFFERS

    return any(row.why == DIFFERS for each in counts for rows in each.levels.values() for row in rows)


def show_counts(counts: Sequence[KernelCount]) -> None:
    """A table for each kernel: what its tree says of each level and tensor, and what was counted, in elements."""
    for each in counts:
        say(f"\n{each.kernel}: {_verdict(each)}")
        if not each.refused:
            lines = [(level, row) for level, rows in each.levels.items() for row in rows if _moves(row)]
            table(COLUMNS, [_line(level, row) for level, row in lines])


def _verdict(each: KernelCount) -> str:
    if each.refused:
        return f"not counted, {each.refused}"
    return "moves what its tree says" if each.equal else "moves something else than its tree says"


def _moves(row: TensorCount) -> bool:
    parts = (row.model, row.counted, row.padding)
    return any(part.loads or part.fills or part.stores for part in parts)


def _line(level: str, row: TensorCount) -> list[str]:
    model, counted = row.model, row.counted
    numbers = (model.fills, counted.fills, model.loads, counted.loads, model.stores, counted.stores)
    extra = f"padding {row.padding.fills:,} and {row.padding.loads:,}" if row.padding.fills + row.padding.loads else ""
    return [level, row.tensor, *(f"{number:,}" for number in numbers), "; ".join(filter(None, (row.why, extra)))]


def counts_record(counts: Sequence[KernelCount]) -> list[dict[str, Any]]:
    """As `show_counts`, for JSON."""
    return [
        {
            "kernel": each.kernel, "equal": each.equal, "refused": each.refused,
            "levels": {level: {row.tensor: _record(row) for row in rows} for level, rows in each.levels.items()},
        }
        for each in counts
    ]  # fmt: skip


def _record(row: TensorCount) -> dict[str, Any]:
    return {
        "model": _moved(row.model), "counted": _moved(row.counted), "padding": _moved(row.padding), "why": row.why
    }  # fmt: skip


def _moved(moved: Moved) -> dict[str, int]:
    return {"fill": int(moved.fills), "read": int(moved.loads), "update": int(moved.stores)}
