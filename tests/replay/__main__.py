"""Record the tile programs of many graphs, and compare them later: `python -m tests.replay record|compare FOLDER`.

A refactoring that should change no code is proven by it: record before, compare after. Graphs are those of the
benchmark, operators of publications and random ONNX graphs.

    python -m tests.replay record before
    python -m tests.replay compare before --only 'bench/gemm-*' --machine host
    python -m tests.replay record before --lowered

Exit status: 0 all alike, 1 something differs, 2 bad usage.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.replay.corpus import entries
from tests.replay.job import Job
from tests.replay.programs import MACHINES
from tests.replay.store import Store


def main(arguments: list[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__, formatter_class=form)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="graphs by name")
    parser.add_argument(
        "--machine", action="append", default=[], metavar="NAME", help=f"default: {', '.join(MACHINES)}"
    )
    parser.add_argument("--threads", type=int, default=2, help="of programs for CPUs (default: 2)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--lowered", action="store_true", help="programs before all passes: minutes instead of hours")
    options = parser.parse_args(arguments)
    try:
        chosen = entries(options.only)
    except ValueError as error:
        parser.error(str(error))
    machines = tuple(options.machine) or MACHINES
    records, patterns = options.action == "record", tuple(options.only)
    job = Job(Store(options.folder), machines, options.threads, records, patterns, options.lowered)
    totals: Counter[str] = Counter()
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        for outcomes in pool.map(job, range(len(chosen))):
            for outcome in outcomes:
                totals["programs"] += 1
                totals["kernels"] += outcome.kernels
                totals["refused"] += outcome.refused
                if outcome.difference:
                    totals["different"] += 1
                    print(f"{outcome.name} for {outcome.machine}:\n{outcome.difference}\n", flush=True)
    print(
        f"{len(chosen)} graphs, {len(machines)} machines, {totals['programs']} programs, {totals['kernels']} kernels: "
        f"{totals['refused']} refused, {totals['different']} different"
    )
    return 1 if totals["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
