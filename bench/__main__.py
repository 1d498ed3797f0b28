"""Command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import cases, peers
from bench.processes import own_cores
from bench.report import markdown
from bench.results import Run
from bench.runner import Effort, run
from bench.workers import WorkerError
from tilewright.files import write_file

DESCRIPTION = """\
Time cases on Tilewright and its peers, check every result first, and put measured ceilings beside the times.
"""

EPILOG = """\
Patterns are names of cases or families with * and ?; "all" is every one. Output goes to standard output if no file is
named. Each peer and case takes about turns × turn seconds; nothing else should run on the machine meanwhile.
With --peers tilewright --earlier TREE, "vs best" is the speed of this version over that of the other.
example: python -m bench --cases gemm-f32-square,yolo --threads 1,2 --out results.json --markdown results.md
exit status: 0 done, 1 tilewright was wrong or failed in some case, 2 bad usage
"""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        width = max(map(len, cases.CASES))
        for case in cases.CASES.values():
            print(f"{case.name:{width}}  {case.family}")
        return 0
    try:
        if options.report:
            done = Run.load(options.report)
        else:
            done = run(
                cases.select(options.cases.split(",")),
                peers.select(options.peers.split(",")),
                [int(count) for count in options.threads.split(",")],
                Effort(options.turns, options.turn_seconds),
                with_ceilings=not options.no_ceilings,
                earlier=options.earlier,
                progress=lambda message: print(message, file=sys.stderr, flush=True),
            )
    except (ValueError, WorkerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.out:
        done.save(options.out)
    text = markdown(done)
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        write_file(options.markdown, text.encode())
    else:
        print(text)
    return int(any(result.peer == peers.OURS and result.status in ("wrong", "failed") for result in done.results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    threads = ",".join(str(count) for count in range(1, min(2, len(own_cores())) + 1))
    parser.add_argument("--list", action="store_true", help="list the cases and their families, and stop")
    parser.add_argument("--cases", default="all", metavar="PATTERNS", help="separated by commas (default: all)")
    parser.add_argument("--peers", default="all", metavar="NAMES", help=f"of {', '.join(peers.PEERS)} (default: all)")
    parser.add_argument("--threads", default=threads, metavar="COUNTS", help=f"by commas (default: {threads})")
    parser.add_argument(
        "--turns", type=int, default=Effort.turns, help="per peer and case; 0: only check (default: %(default)s)"
    )
    parser.add_argument(
        "--turn-seconds", type=float, default=Effort.turn_seconds, metavar="S", help="of a turn (default: %(default)s)"
    )
    parser.add_argument("--no-ceilings", action="store_true", help="do not measure what the machine can reach")
    parser.add_argument(
        "--earlier", type=Path, metavar="TREE", help="time another version too: the root of its source tree"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all results as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report")
    parser.add_argument("--report", type=Path, metavar="JSON", help="run nothing, report on an earlier run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
