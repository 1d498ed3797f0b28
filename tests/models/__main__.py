"""Public architectures through ONNX and through `torch.compile`: `python -m tests.models`.

Each architecture is built with random weights, exported or captured, compiled, compared with float64, and timed on one
thread beside onnxruntime or eager mode. Architectures whose package is not installed are said to be skipped.

    python -m tests.models --list
    python -m tests.models --only bert --only resnet18 --through onnx
    python -m tests.models --store outcomes.jsonl            appends; what failed alone again: --again
    python -m tests.models --store outcomes.jsonl --table outcomes.md

Exit status: 0 all right, 1 something is wrong or failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.models import report
from tests.models.outcome import WAYS, Outcome
from tests.models.runner import Limits, outcomes


def main(arguments: list[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__, formatter_class=form)
    parser.add_argument("--list", action="store_true", help="print the names and families")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="an architecture or a family")
    parser.add_argument("--through", default=",".join(WAYS), help="ways, separated by commas (default: both)")
    parser.add_argument("--store", type=Path, metavar="FILE", help="append outcomes as JSON lines")
    parser.add_argument("--again", action="store_true", help="only what is not right in FILE yet, or missing there")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="write the outcomes of --store as Markdown, run none"
    )
    parser.add_argument("--seconds", type=int, default=Limits.cpu_seconds, help="processor time for each and way")
    parser.add_argument("--gigabytes", type=float, default=Limits.resident_bytes / 2**30, help="memory for each")
    options = parser.parse_args(arguments)
    from tests.models.catalogue import ARCHITECTURES

    ways = [way for way in WAYS if way in options.through.split(",")]
    if set(options.through.split(",")) != set(ways):
        parser.error(f"--through has ways of {', '.join(WAYS)}, got {options.through}")
    unknown = set(options.only) - ARCHITECTURES.keys() - {entry.family for entry in ARCHITECTURES.values()}
    if unknown:
        parser.error(f"no architecture or family is called {', '.join(sorted(unknown))}; --list names them")
    if (options.again or options.table) and options.store is None:
        parser.error("--again and --table read the file of --store")
    if options.table:
        options.table.write_text(report.markdown(*report.read(options.store)))
        return 0
    wanted = [a for a in ARCHITECTURES.values() if not options.only or {a.name, a.family} & set(options.only)]
    if options.list:
        for entry in wanted:
            print(f"{entry.name:32} {entry.family:14} {entry.missing() or entry.notes}")
        return 0
    done = _right(options.store) if options.again else set()
    entries = [(entry, way) for entry in wanted for way in ways if (entry.name, way) not in done]
    if options.store:
        report.append(options.store, report.environment())
    found = []
    for outcome in outcomes(entries, Limits(options.seconds, int(options.gigabytes * 2**30))):
        print(report.line(outcome), flush=True)
        if options.store:
            report.append(options.store, report.as_json(outcome))
        found.append(outcome)
    print("\n".join(report.summary(found)))
    return int(any(outcome.state in ("wrong", "failed") for outcome in found))


def _right(path: Path) -> set[tuple[str, str]]:
    kept: list[Outcome] = report.read(path)[1] if path.exists() else []
    return {(outcome.name, outcome.way) for outcome in kept if outcome.state == "right"}


if __name__ == "__main__":
    sys.exit(main())
