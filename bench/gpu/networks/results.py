"""Rows of a run as tables that a person reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.gpu.runs import Run

OURS, OURS_GRAPH = "tilewright", "tilewright + CUDA graph"
EAGER, EAGER_GRAPH = "torch eager", "torch eager + CUDA graph"
COMPILED = "torch.compile"
MINE = (OURS, OURS_GRAPH)
CONTENDERS = (*MINE, EAGER, EAGER_GRAPH, COMPILED)
SHOWN_KERNELS = 10  # in the table of a profile


@dataclass
class Row:
    """One contender on one network. Times are seconds of a call, `error` is ‖out − ref‖ / ‖ref‖ against f64.

    `host_seconds`: of the host, to enqueue a call. `steps`: seconds of what precedes the second call, by name.
    `profile`: kernels of a call, the slowest first: name, count, seconds, share, rates, and what is known of them.
    """

    network: str
    batch: int
    contender: str
    status: str = "failed"  # ok, wrong, failed
    error: float | None = None
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    host_seconds: float | None = None
    steps: dict[str, float] = field(default_factory=dict)
    flops: int = 0
    kernels: int = 0
    launches: int = 0
    profile: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""


def tables(run: Run[Row]) -> str:
    """Times of calls, times of the host, what precedes the second call, profiles, and what went otherwise."""
    facts = ", ".join(f"{name} {value}" for name, value in run.machine.items())
    lines = ["# Networks on a GPU", "", f"f16, forward; {facts}; {run.seconds:.0f} s", ""]
    lines += summary(run)
    for rows in _by_case(run.rows).values():
        for row in rows.values():
            lines += _profile(row)
    otherwise = [row for row in run.rows if row.status != "ok" or row.note]
    if otherwise:
        lines += ["", "## Notes", ""]
        lines += [
            f"- {row.status}: {row.contender}, {row.network}, batch {row.batch}: {' '.join(row.note.split())}"
            for row in otherwise
        ]
    return "\n".join(lines) + "\n"


def summary(run: Run[Row]) -> list[str]:
    """Times of calls, times of the host, and what precedes the second call."""
    cases = _by_case(run.rows)
    return _times(cases) + _host_times(cases) + _steps(cases)


Case = tuple[str, int]


def _by_case(rows: Sequence[Row]) -> dict[Case, dict[str, Row]]:
    cases: dict[Case, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.network, row.batch), {})[row.contender] = row
    return cases


def _times(cases: dict[Case, dict[str, Row]]) -> list[str]:
    lines = ["## Times of a call in µs: median (10th to 90th percentile)", ""]
    of_ours = ["best other / best ours", "TFLOP/s of ours", "error of ours", "of torch"]
    lines += _head(["network", "batch", *CONTENDERS, *of_ours])
    for (network, batch), rows in cases.items():
        ours, others = ([rows[name].seconds for name in CONTENDERS if (name in MINE) is mine and name in rows]
                        for mine in (True, False))  # fmt: skip
        best, other = (min((each for each in found if each), default=None) for found in (ours, others))
        flops = max((row.flops for row in rows.values()), default=0)
        lines.append(_cells([
            network, str(batch), *(_spread(rows.get(name)) for name in CONTENDERS),
            f"{other / best:.2f}" if best and other else "", f"{flops / best * 1e-12:.1f}" if best else "",
            *(_error(rows.get(name)) for name in (OURS, EAGER)),
        ]))  # fmt: skip
    return [*lines, ""]


def _host_times(cases: dict[Case, dict[str, Row]]) -> list[str]:
    lines = ["## Time of the host to enqueue a call in µs", "", *_head(["network", "batch", *CONTENDERS])]
    for (network, batch), rows in cases.items():
        found = [rows[name].host_seconds if name in rows else None for name in CONTENDERS]
        lines.append(_cells([network, str(batch), *("" if each is None else f"{each * 1e6:.1f}" for each in found)]))
    return [*lines, ""]


def _steps(cases: dict[Case, dict[str, Row]]) -> list[str]:
    lines = ["## What precedes the second call, in s", "", *_head(["network", "batch", "contender", "steps"])]
    for (network, batch), rows in cases.items():
        for row in rows.values():
            if row.steps:
                steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row.steps.items())
                made = f"; {row.kernels} kernels, {row.launches} launches" if row.launches else ""
                lines.append(_cells([network, str(batch), row.contender, f"{steps}{made}"]))
    return [*lines, ""]


def _profile(row: Row) -> list[str]:
    if not row.profile:
        return []
    total = sum(kernel["seconds"] for kernel in row.profile)
    lines = [f"## Kernels of {row.network}, batch {row.batch}, {row.contender}: {total * 1e6:.0f} µs one by one", ""]
    lines += _head(["kernel", "times", "µs", "share", "GFLOP/s", "GB/s", "what it is"])
    for kernel in row.profile[:SHOWN_KERNELS]:
        rates = (
            f"{kernel[name]:.0f}" if kernel.get(name) else "" for name in ("gflops_per_second", "gbytes_per_second")
        )
        spent = f"{kernel['seconds'] * 1e6:.1f}", f"{100 * kernel['share']:.1f} %"
        lines.append(_cells([str(kernel["name"]), str(kernel["count"]), *spent, *rates, str(kernel.get("what", ""))]))
    return [*lines, ""]


def _spread(row: Row | None) -> str:
    if row is None or row.seconds is None or row.low is None or row.high is None:
        return "" if row is None else row.status if row.status != "ok" else ""
    return f"{row.seconds * 1e6:.1f} ({row.low * 1e6:.1f} to {row.high * 1e6:.1f})"


def _error(row: Row | None) -> str:
    return "" if row is None or row.error is None else f"{row.error:.1e}"


def _head(names: Sequence[str]) -> list[str]:
    return [_cells(names), _cells(["---"] * len(names))]


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
