"""A run as Markdown: one row per case and number of threads, the ceiling beside it, and what went otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from bench.peers import OURS
from bench.results import Conditions, Result, Run, share
from bench.summary import geometric_mean

DRIFT = 0.1  # change of a ceiling between turns from which it is reported
QUIET = 0.05  # cores' worth of load by others under which a measurement counts as undisturbed

HOW_TO_READ = f"""\
Times are medians with the range from the 10th to the 90th percentile. `ceiling` is the least time for the same work and
what sets it: a peak or a bandwidth, measured on the same cores in the same turns as the peers, since clocks and
bandwidths change within minutes. To the time of products at their peak it adds that of the exponentials of a softmax,
as fast as those of {OURS} are alone. Percentages are of it: the median over turns, each peer's turn held against the
ceiling of that turn. `vs best` is the speed of {OURS} over that of the fastest other peer: above 1 it is the fastest.
""".splitlines()

FAMILIES = f"""\
Speed of {OURS} over that of the best peer of each case, and over that of each peer in the cases that it has times for:
geometric means.
""".splitlines()


def markdown(run: Run) -> str:
    """The whole report, ending with a newline."""
    sections = (_head, _ceilings, _times, _means, _compile_times, _remarks)
    return "\n".join(line for section in sections for line in section(run)) + "\n"


def _head(run: Run) -> Iterator[str]:
    environment = run.environment
    yield "# Benchmark results"
    yield ""
    cores = ", ".join(map(str, environment["cores"]))
    yield f"{environment['date']}, {environment['processor']}, cores {cores}, Linux {environment['kernel']}, Python"
    yield f"{environment['python']}; {', '.join(dict.fromkeys(run.versions.values()))}"
    yield ""
    yield from HOW_TO_READ


def _ceilings(run: Run) -> Iterator[str]:
    if not run.ceilings:
        return
    yield from ["", "## Ceilings", ""]
    yield from ["The best of several runs before the cases; those of the turns may differ.", ""]
    yield "| threads | f32 | bf16 | int8 | exponentials | L1 read | L2 read | L3 read | DRAM read | non-temporal copy |"
    yield "| --- |" + " --- |" * 9
    for threads, c in run.ceilings.items():
        peaks = (f"{_scaled(peak)}op/s" if peak else "–" for peak in (c.f32, c.bf16, c.int8))
        widths = (f"{_scaled(width)}B/s" for width in (c.l1_read, c.l2_read, c.l3_read, c.dram_read, c.copy))
        yield _row(str(threads), *peaks, f"{_scaled(c.exponentials)}/s", *widths)


def _times(run: Run) -> Iterator[str]:
    peers = list(dict.fromkeys(result.peer for result in run.results))
    yield from ["", "## Times", ""]
    yield _row("case", "threads", "ceiling", *peers, "vs best")
    yield "| --- |" + " --- |" * (len(peers) + 3)
    for conditions in run.conditions:
        results = {
            result.peer: result
            for result in run.results
            if (result.case, result.threads) == (conditions.case, conditions.threads)
        }
        bound = median(conditions.turn_bounds) if conditions.turn_bounds else conditions.bound_seconds
        cells = [_cell(results[peer], conditions) if peer in results else "" for peer in peers]
        ratio = run.ratio(conditions.case, conditions.threads)
        yield _row(
            conditions.case,
            str(conditions.threads),
            f"{_time(bound)} {_label(conditions)}" if bound else "–",
            *cells,
            f"{ratio:.2f}" if ratio else "–",
        )


def _cell(result: Result, conditions: Conditions) -> str:
    """``1.23 ms (1.20-1.30), 201 G/s, 80 %``, or why there is no time."""
    if not result.times:
        return result.status
    times = result.times
    parts = [f"{_time(times.median)} ({_time(times.p10)}-{_time(times.p90)})"]
    if conditions.limit == "copy":
        parts.append(f"{_scaled(conditions.bytes / times.median)}B/s")
    elif conditions.limit != "none":
        parts.append(f"{_scaled(conditions.flops / times.median)}op/s")
    if part := share(result, conditions):
        parts.append(f"{part:.0%}")
    if result.variant:
        parts.append(f"*{result.variant}*")
    return ", ".join(parts)


def _label(conditions: Conditions) -> str:
    """``f32``, ``copy``, ``L3 read``."""
    words = (conditions.ceiling or "").split("_")
    return " ".join([words[0].upper() if len(words) > 1 else words[0], *words[1:]])


def _means(run: Run) -> Iterator[str]:
    """Geometric means of our speed over that of the best peer of each case, and of each peer, by family and threads."""
    family = {result.case: result.family for result in run.results}
    ratios: dict[tuple[str, int], list[dict[str, float]]] = {}  # by peer, for each case
    for conditions in run.conditions:
        if by_peer := run.ratios(conditions.case, conditions.threads):
            ratios.setdefault((family[conditions.case], conditions.threads), []).append(by_peer)
    if not ratios:
        return
    peers = list(dict.fromkeys(result.peer for result in run.results if result.peer != OURS))
    yield from ["", "## Families", ""]
    yield from [*FAMILIES, ""]
    yield _row("family", "threads", "vs best", "least", "cases at 1 or above", *(f"vs {peer}" for peer in peers))
    yield "| --- |" + " --- |" * (len(peers) + 4)
    for (name, threads), of_cases in ratios.items():
        best = [min(by_peer.values()) for by_peer in of_cases]
        won = f"{sum(value >= 1 for value in best)} of {len(best)}"
        means = []
        for peer in peers:
            values = [by_peer[peer] for by_peer in of_cases if peer in by_peer]
            means.append(f"{geometric_mean(values):.2f}" if values else "–")
        yield _row(name, str(threads), f"{geometric_mean(best):.2f}", f"{min(best):.2f}", won, *means)


def _compile_times(run: Run) -> Iterator[str]:
    """Of whole networks, where they matter."""
    results = [result for result in run.results if result.family == "networks" and result.compile_seconds is not None]
    if not results:
        return
    yield from ["", "## Compile times of networks", ""]
    peers = list(dict.fromkeys(result.peer for result in results))
    yield _row("network", "threads", *peers)
    yield "| --- |" + " --- |" * (len(peers) + 1)
    for case, threads in dict.fromkeys((result.case, result.threads) for result in results):
        seconds = {
            result.peer: result.compile_seconds or 0.0
            for result in results
            if (result.case, result.threads) == (case, threads)
        }
        yield _row(case, str(threads), *(_time(seconds[peer]) if peer in seconds else "–" for peer in peers))


def _remarks(run: Run) -> Iterator[str]:
    remarks = [*_reasons(run), *_disturbances(run)]
    if remarks:
        yield from ["", "## Remarks", "", *(f"- {remark}" for remark in remarks)]


def _reasons(run: Run) -> Iterator[str]:
    """Why peers have no times or other conditions; the same remark on many cases is one line."""
    cases: dict[str, dict[str, list[str]]] = {}  # remark → case → numbers of threads
    for result in run.results:
        remarks = []
        if result.status != "ok":
            remarks.append(f"{result.status}: {result.reason}")
        elif result.notes:
            remarks.append(result.notes)
        if result.faults >= 1:
            remarks.append("page faults in timed calls")
        if any(not cores.isdigit() for cores in result.busy_threads):
            remarks.append("not all threads are pinned")
        if len(set(result.busy_threads)) < len(result.busy_threads):
            remarks.append("two threads share a core")
        for remark in remarks:
            cases.setdefault(f"{result.peer}: {remark}", {}).setdefault(result.case, []).append(str(result.threads))
    for remark, places in cases.items():
        yield f"{remark}: {_listed(places)}"


def _disturbances(run: Run) -> Iterator[str]:
    for conditions in run.conditions:
        if conditions.turn_bounds and max(conditions.turn_bounds) > (1 + DRIFT) * min(conditions.turn_bounds):
            least, most = min(conditions.turn_bounds), max(conditions.turn_bounds)
            yield (
                f"{conditions.case} ({conditions.threads}): the least time by its ceiling, {_label(conditions)}, was "
                f"between {_time(least)} and {_time(most)} in its turns"
            )
    for who, loads in (
        ("waiting peers", {(c.case, c.threads): c.idle_load for c in run.conditions}),
        ("other processes", {(c.case, c.threads): c.foreign_load for c in run.conditions}),
    ):
        places: dict[str, list[str]] = {}
        for (case, threads), load in loads.items():
            if load > QUIET:
                places.setdefault(case, []).append(str(threads))
        if places:
            yield f"{who} took up to {max(loads.values()):.2f} cores while it was timed: {_listed(places)}"


def _listed(places: dict[str, list[str]]) -> str:
    """``gemm (1, 2), norm (2)``: cases and the numbers of threads."""
    return ", ".join(f"{case} ({', '.join(threads)})" for case, threads in places.items())


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _time(seconds: float) -> str:
    return _in_unit(seconds, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)))


def _scaled(rate: float) -> str:
    """``253 G`` for 253e9: a unit follows."""
    return _in_unit(rate, (("T", 1e12), ("G", 1e9), ("M", 1e6), ("", 1.0)))


def _in_unit(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Three digits in the first unit in which they make at least 1 (0.9999 rounds to it), or in the last."""
    unit, factor = next(((unit, factor) for unit, factor in units if value >= 0.9995 * factor), units[-1])
    return f"{value / factor:.3g} {unit}"
