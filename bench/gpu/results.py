"""Rows of a run as a table that a person reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.contenders import OURS
from bench.gpu.runs import Run


@dataclass
class Row:
    """One contender on one case. `error` is ‖out − ref‖ / ‖ref‖ against float64; times are seconds of a call."""

    family: str
    case: str
    dtype: str
    contender: str
    status: str  # ok, wrong, failed, skipped
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    error: float | None = None
    note: str = ""
    flops: int = 0
    bytes: int = 0
    beside: float | None = None  # seconds of torch, timed in turns with this contender
    tiles: list[dict[str, Any]] = field(default_factory=list)  # `contenders.Tile`s that were timed


def table(run: Run[Row]) -> str:
    """Every case with its times, ours as a share of the best other, and then what went otherwise."""
    facts = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    lines = ["# Kernels on a GPU", "", f"{facts}; {run.seconds:.0f} s", ""]
    checks = [row for row in run.rows if row.family == "check"]
    if checks:
        right = sum(row.status == "ok" for row in checks)
        lines += [f"Awkward sizes: {right} of {len(checks)} right.", ""]
    copied = next((row for row in run.rows if row.family == "copy" and row.seconds), None)
    rate = copied.bytes / copied.seconds if copied and copied.seconds else None
    lines += ["| family | case | dtype | contender | µs | TFLOP/s | GB/s | of copy | ours vs it | error |",
              "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for rows in _by_case([row for row in run.rows if row.family != "check"]):
        ours = next((row for row in rows if row.contender == OURS), None)
        for row in rows:
            if row.seconds is not None:
                lines.append(_line(row, ours, rate))
    otherwise = [row for row in run.rows if row.status != "ok" or _spills(row)]
    if otherwise:
        lines += ["", "## What went otherwise", ""]
        for row in otherwise:
            note = " ".join(row.note.split())
            error = "" if row.error is None else f", error {row.error:.2g}"
            lines.append(f"- {row.status}: {row.contender}, {row.case}, {row.dtype}{error}: {note}")
    return "\n".join(lines) + "\n"


def ratio(row: Row, ours: Row | None) -> float | None:
    """Seconds of a contender by ours: by those of torch that were taken in turns with each, where there are such.

    >>> row = Row("gemm", "big", "f16", "torch", "ok", seconds=2.0)
    >>> ratio(row, Row("gemm", "big", "f16", OURS, "ok", seconds=1.0, beside=3.0))
    3.0
    >>> ratio(Row("gemm", "big", "f16", "triton", "ok", 1.5, beside=2.0), Row("gemm", "big", "f16", OURS, "ok", 1.0))
    1.5
    """
    if ours is None or not ours.seconds or not row.seconds:
        return None
    if ours.beside and (row.beside or row.contender == "torch"):
        return (row.seconds / row.beside if row.beside else 1.0) / (ours.seconds / ours.beside)
    return row.seconds / ours.seconds


def _line(row: Row, ours: Row | None, rate: float | None) -> str:
    seconds = row.seconds or float("nan")
    moved = row.bytes / seconds
    cells = [
        row.family, row.case, row.dtype, row.contender, f"{seconds * 1e6:.1f}",
        f"{row.flops / seconds * 1e-12:.1f}" if row.flops else "", f"{moved * 1e-9:.0f}",
        f"{100 * moved / rate:.0f} %" if rate and not row.flops else "",
        f"{found:.2f}" if row.contender != OURS and (found := ratio(row, ours)) is not None else "",
        "" if row.error is None else f"{row.error:.1e}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _spills(row: Row) -> bool:
    return re.search(r"[1-9]\d* bytes of local memory", row.note) is not None


def _by_case(rows: Sequence[Row]) -> list[list[Row]]:
    cases: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row.family, row.case, row.dtype), []).append(row)
    return list(cases.values())
