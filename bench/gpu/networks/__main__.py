"""Command line of the benchmark of whole networks on a GPU."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

DESCRIPTION = """\
Run ResNet-50, BERT-base and a decoder layer of Llama in f16 on a GPU, ours beside torch: check each against torch in
f64, time calls, the host's part of a call and what precedes the first, and list the slowest kernels.
"""

EPILOG = """\
Every contender on every network is a process of its own. At most --together of them prepare at once (they export and
compile); then each has the GPU to itself. Preparing takes at most 60 % of --seconds; what is not ready then is
dropped and named. The machine needs torch and the whole compiler; weights are made there from a seed.
example: python -m bench.gpu.networks --seconds 300 --out networks.json --table networks.md
exit status: 0 done, 1 tilewright was wrong or failed, 2 bad usage
"""
WRITING_SECONDS = 2.0  # at the end


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.worker:
        from bench.gpu.networks import worker

        worker.main(options.network, options.batch, options.contender, options.device, options.mode, options.machine)
        return 0
    from bench.gpu.networks.cases import networks
    from bench.gpu.networks.results import COMPILED, EAGER, MINE, OURS, tables
    from bench.gpu.networks.runner import ProcessChild, Task, run
    from bench.gpu.runs import keeper

    known = [network.name for network in networks(options.device)]
    chosen = options.networks.split(",") if options.networks else known
    contenders = options.contenders.split(",")
    unknown = [*(set(chosen) - set(known)), *(set(contenders) - {OURS, EAGER, COMPILED})]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join([*known, OURS, EAGER, COMPILED])}")
    tasks = [
        Task(name, int(batch), contender)
        for name in chosen
        for batch in options.batches.split(",")
        for contender in contenders
    ]

    keep = keeper(options.out, options.table, tables)
    together = options.together or (len(tasks) if options.device == "cuda" else 1)
    done = run(
        tasks, options.seconds - WRITING_SECONDS, together,
        lambda task: ProcessChild(task, options.device, options.mode, options.machine), time.perf_counter, keep,
    )  # fmt: skip
    keep(done, "")
    print(tables(done), end="")
    return int(any(row.contender in MINE and row.status != "ok" for row in done.rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.networks", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=300.0, help="when the run ends (default: 300)")
    parser.add_argument("--networks", help="of these only, separated by commas (default: all)")
    parser.add_argument("--batches", default="1,16", help="batch sizes (default: 1,16)")
    parser.add_argument("--contenders", default="torch eager,torch.compile,tilewright",
                        help="separated by commas (default: torch eager,torch.compile,tilewright)")  # fmt: skip
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile (default: reduce-overhead)")
    parser.add_argument("--machine", help="what ours is compiled for (default: sm_90a on a GPU that is one)")
    parser.add_argument("--together", type=int, help="processes at a time (default: all; 1 with --device cpu)")
    parser.add_argument("--out", type=Path, help="write everything as JSON")
    parser.add_argument("--table", type=Path, help="write the tables, which are printed too")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu: tiny networks in the emulator, to try the script out")  # fmt: skip
    for name in ("--worker", "--network", "--batch", "--contender"):
        kind = {"action": "store_true"} if name == "--worker" else {"type": int} if name == "--batch" else {}
        parser.add_argument(name, help=argparse.SUPPRESS, **kind)
    return parser


if __name__ == "__main__":
    sys.exit(main())
