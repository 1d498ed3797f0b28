"""The page of results on GPUs, docs/reference/gpu-results.md, from the files in bench/gpu/results.

    python -m bench.gpu.page                                # writes the page

A file `run-*.json` is what `python -m bench.gpu --out` wrote, `constants-*.json` what `bench.gpu.calibrate` did,
`networks-*.json` what `bench.gpu.networks` did. A row that several runs have is taken from the last one, by file name.
`turns-*.json` has modules that were timed in turns with torch between two runs: seconds as (least, median, most);
`ablation-*.json` is of `bench.gpu.ablation`. `tiles-*.json` has the times of many tiles of products, for
`bench.gpu.tile_prices`.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.gpu import results
from bench.gpu.contenders import APART, FUSED, ONE_WARP, OURS
from bench.gpu.networks import results as network_results
from bench.gpu.results import ratio
from bench.gpu.runs import Run, stored
from bench.gpu.tile_prices import Prices, prices, timed

FOLDER = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "gpu-results.md"
KINDS = ("run", "constants", "networks", "turns", "ablation")
MULTIPROCESSORS = 132  # of an H100 SXM and an H200
PEAKS = {  # the constant that is the peak of a type
    "f16": "wgmma_f16", "bf16": "wgmma_bf16", "tf32": "wgmma_tf32", "s8": "wgmma_s8", "f64": "mma_m16n8k16_f64",
    "f32": "fma_f32",
}  # fmt: skip
BOUND_BY_MEMORY = ("rows", "elementwise", "copy")
OUT_OF_TIME = "took longer than"  # begins the note of a row whose share of the time was too short
CHAIN = "chain"  # the family of two products of which the second reads what the first gives
Row = dict[str, Any]


def main() -> int:
    PAGE.write_text(stored_page())
    return 0


def stored_page() -> str:
    """The page of all that is stored."""
    runs, constants, networks, turns, ablations = map(_load, KINDS)
    return page(runs, constants, networks, turns, ablations, list(prices(timed())))


def _load(kind: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in stored(FOLDER, kind)]


def page(
    runs: Sequence[dict[str, Any]],
    constants: Sequence[dict[str, Any]],
    networks: Sequence[dict[str, Any]] = (),
    turns: Sequence[dict[str, Any]] = (),
    ablations: Sequence[dict[str, Any]] = (),
    prices: Sequence[Prices] = (),
) -> str:
    """The text, from the contents of the files, and prices of tiles."""
    measured = {each["name"]: each for run in constants for each in run["constants"]}
    lines = [
        "# Results on GPUs", "",
        "What `python -m bench.gpu`, `bench.gpu.calibrate` and `bench.gpu.networks` measured, written by",
        "`python -m bench.gpu.page`. Every result was checked first, against torch in float64 on fresh random inputs.",
        "Times are medians of calls in a CUDA graph over inputs that rotate through more than the L2 cache holds;",
        "clocks are as the device chose them. Ratios are the other's time by ours: above 1 ours is faster. Where torch",
        "was timed in turns with each, ratios are by the times of these turns.", "",
    ]  # fmt: skip
    for run in runs:
        facts = run["machine"]
        about = ", ".join(f"{name} {facts[name]}" for name in ("driver", "torch", "cuda", "commit") if facts.get(name))
        lines.append(f"- {facts['device']}, {facts['date']}: {about}; {len(run['rows'])} rows")
    cases = _cases(runs)
    lines += ["", "## Products", "", *_products(cases, measured)]
    if any(family == CHAIN for family, *_ in cases):
        lines += ["", "## Chains of two products", "", *_chains(cases)]
    lines += ["", "## Kernels that memory bounds", "", *_memory(cases)]
    lines += ["", "## Tiles by prediction and by time", "", *_tiles(prices)]
    if ablations:
        lines += ["", "## Where the time of products goes", "", *_ablations(ablations)]
    if turns:
        lines += ["", "## Other modules", "", *_turns(turns)]
    if networks:
        lines += ["", "## Networks", "", *_networks(networks)]
    lines += ["", "## Constants", "", *_constants(measured)]
    lines += ["", "## What was wrong, or failed", "", *_otherwise(cases)]
    return "\n".join(lines) + "\n"


def _cases(runs: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Row]]:
    """The rows of every case by contender, each of the last run that had time for it.

    Ratios are by the times of turns with torch, and so hold between rows of two runs.
    """
    found: dict[tuple[str, str, str], dict[str, Row]] = {}
    for run in runs:
        for row in run["rows"]:
            if row["family"] == "check" or row["status"] == "skipped":
                continue
            rows = found.setdefault((row["family"], row["case"], row["dtype"]), {})
            if row["contender"] not in rows or not row["note"].startswith(OUT_OF_TIME):
                rows[row["contender"]] = row
    return {key: rows for key, rows in found.items() if OURS in rows or key[0] == "copy"}


def _products(cases: dict[tuple[str, str, str], dict[str, Row]], measured: dict[str, Row]) -> Iterator[str]:
    yield "A peak is what a loop of nothing but matrix instructions reached (multiply-adds for f32 without tf32)."
    yield "Products of 16-bit floats are there twice: as the rule makes them, and on `mma.sync`. Attention is named by"
    yield "batch, heads, length and width."
    yield ""
    yield "| case | type | ours | TFLOP/s | spread | library | ratio | Triton | ratio | share of peak |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for (family, case, dtype), rows in cases.items():
        if family in (*BOUND_BY_MEMORY, CHAIN):
            continue
        library, triton, peak = _library(rows), rows.get("triton"), _peak(case, dtype, measured)
        what = f"{family} {case}" if family == "attention" else case
        for name in (OURS, ONE_WARP):
            ours = rows.get(name)
            if ours is None or not ours["seconds"]:
                continue
            share = f"{100 * ours['flops'] / ours['seconds'] / peak:.0f} %" if peak and ours["flops"] else ""
            cells = [
                what, dtype, {OURS: "rule", ONE_WARP: "mma.sync"}[name], _tera(ours), _spread(ours), _tera(library),
                _ratio(library, ours), _tera(triton), _ratio(triton, ours), share,
            ]  # fmt: skip
            yield f"| {' | '.join(cells)} |"


def _chains(cases: dict[tuple[str, str, str], dict[str, Row]]) -> Iterator[str]:
    yield "Batches of m x k by k x l by l x n, named by batch, m, n, k and l. The library runs two kernels. Ours is"
    yield "what the rule chooses, one kernel or two; beside it are both, whatever the rule says."
    yield ""
    yield "| case | type | ours, µs | spread | library, µs | ratio | one kernel, µs | ratio | two, µs | ratio |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for (family, case, dtype), rows in cases.items():
        ours = rows.get(OURS)
        if family != CHAIN or ours is None or not ours["seconds"]:
            continue
        others = _library(rows), rows.get(FUSED), rows.get(APART)
        compared = [cell for other in others for cell in (_micro(other), _ratio(other, ours))]
        yield f"| {' | '.join([case, dtype, _micro(ours), _spread(ours), *compared])} |"


def _memory(cases: dict[tuple[str, str, str], dict[str, Row]]) -> Iterator[str]:
    copies = {
        row["bytes"]: row["bytes"] / row["seconds"]
        for (family, *_), rows in cases.items()
        for row in rows.values()
        if family == "copy" and row["seconds"]
    }
    yield "Bandwidth counts what has to be read and written once; beside it is the copy that moves about as many bytes:"
    yield ", ".join(f"{size / 1e6:.0f} MB at {rate * 1e-9:.0f} GB/s" for size, rate in sorted(copies.items())) + "."
    yield ""
    yield "| case | type | ours, GB/s | spread | of such a copy | library | ratio | Triton | ratio |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for (family, case, dtype), rows in cases.items():
        ours = rows.get(OURS)
        if family not in BOUND_BY_MEMORY or ours is None or not ours["seconds"]:
            continue
        near = min(copies, key=lambda size: abs(math.log(size / ours["bytes"])), default=None)
        share = f"{100 * ours['bytes'] / ours['seconds'] / copies[near]:.0f} %" if near else ""
        library, triton = _library(rows), rows.get("triton")
        cells = [
            case, dtype, _giga(ours), _spread(ours), share, _giga(library), _ratio(library, ours), _giga(triton),
            _ratio(triton, ours),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _tiles(prices: Sequence[Prices]) -> Iterator[str]:
    yield "Of each product some tiles were timed. τ is Kendall's, between these times and the cycles that the code of"
    yield "today predicts (`python -m bench.gpu.tile_prices`); the loss is the time of the tile that it would take over"
    yield "that of the fastest, less 1."
    yield ""
    yield "| case | type | instructions | tiles | τ | loss |"
    yield "| --- | --- | --- | ---: | ---: | ---: |"
    for each in prices:
        what = f"{each.case} | {each.dtype} | {each.mma}"
        yield f"| {what} | {len(each.cycles)} | {each.tau:.2f} | {100 * each.loss:.0f} % |"
    if prices:
        tau, loss = (statistics.mean(getattr(each, name) for each in prices) for name in ("tau", "loss"))
        yield ""
        yield f"The mean of τ is {tau:.2f}, that of the loss {100 * loss:.1f} %."


def _turns(turns: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "Modules that were timed in turns with torch; µs are medians (least to most)."
    yield ""
    yield "| case | type | what | commit | ours, µs | torch, µs | ratio |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: |"
    for each in (row for run in turns for row in run["rows"]):
        times = [f"{median * 1e6:.1f} ({least * 1e6:.1f} to {most * 1e6:.1f})"
                 for least, median, most in (each["ours"], each["torch"])]  # fmt: skip
        ratio_ = f"{each['torch'][1] / each['ours'][1]:.2f}"
        yield f"| {' | '.join([each['case'], each['dtype'], each['what'], each['commit'], *times, ratio_])} |"


def _ablations(ablations: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "The same product without a pass, or with another tile, timed in turns with torch: torch's time by that."
    yield ""
    yield "| commit | case | type | instructions | variant | TFLOP/s | ratio |"
    yield "| --- | --- | --- | --- | --- | ---: | ---: |"
    for run in ablations:
        for row in run["rows"]:
            cells = [run["commit"], row["case"], row["dtype"], row["mma"], row["what"]]
            figures = [row["failed"], ""] if "failed" in row else [f"{row['tflops']:.0f}", f"{row['ratio']:.2f}"]
            yield f"| {' | '.join([*cells, *figures])} |"


def _networks(networks: Sequence[dict[str, Any]]) -> Iterator[str]:
    for run in networks:
        rows = [network_results.Row(**row) for row in run["rows"]]
        yield f"{run['machine']['device']}, {run['machine']['date']}, torch {run['machine']['torch']}; f16, forward."
        yield ""
        for line in network_results.summary(Run(run["machine"], rows)):
            yield f"#{line}" if line.startswith("##") else line


def _constants(measured: dict[str, Row]) -> Iterator[str]:
    yield "| constant | value | from | to | unit |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for each in measured.values():
        yield f"| {each['name']} | {each['value']:.4g} | {each['low']:.4g} | {each['high']:.4g} | {each['unit']} |"


def _otherwise(cases: dict[tuple[str, str, str], dict[str, Row]]) -> Iterator[str]:
    found = [row for rows in cases.values() for row in rows.values() if row["status"] != "ok"]
    if not found:
        yield "Nothing."
    for row in found:
        yield f"- {row['status']}: {row['contender']}, {row['case']}, {row['dtype']}: {' '.join(row['note'].split())}"


def _library(rows: dict[str, Row]) -> Row | None:
    """The fastest of torch and its libraries."""
    found = [row for name, row in rows.items() if name.startswith(("torch", "sdpa")) and row["seconds"]]
    return min(found, key=_seconds, default=None)


def _seconds(row: Row) -> float:
    return float(row["seconds"])


def _peak(case: str, dtype: str, measured: dict[str, Row]) -> float | None:
    """Floating-point operations per second of the unit that multiplies the type."""
    kind = "tf32" if case.endswith(("tf32", "tf32x3")) else dtype
    constant, clock = measured.get(PEAKS[kind]), measured.get("clock_hz")
    if constant is None or clock is None:
        return None
    return 2 * float(constant["value"]) * MULTIPROCESSORS * float(clock["value"])


def _micro(row: Row | None) -> str:
    return f"{row['seconds'] * 1e6:.1f}" if row and row["seconds"] else ""


def _tera(row: Row | None) -> str:
    return f"{row['flops'] / row['seconds'] * 1e-12:.1f}" if row and row["seconds"] else ""


def _giga(row: Row | None) -> str:
    return f"{row['bytes'] / row['seconds'] * 1e-9:.0f}" if row and row["seconds"] else ""


def _spread(row: Row) -> str:
    """From the 10th to the 90th percentile, as a share of the median."""
    return f"±{50 * (row['high'] - row['low']) / row['seconds']:.1f} %"


def _ratio(other: Row | None, ours: Row) -> str:
    found = None if other is None else ratio(results.Row(**other), results.Row(**ours))
    return "" if found is None else f"{found:.2f}"


if __name__ == "__main__":
    sys.exit(main())
