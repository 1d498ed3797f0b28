"""Compile time of networks: `python -m bench.compile_time`, one process per compilation, the cache off.

With `--against CHECKOUT` each network is compiled by another checkout of Tilewright too, in turns with this one. Times
are seconds of CPU time, the least of `--turns`; the phases are those of that turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.compile_time import worker
from bench.compile_time.networks import NAMES, write
from bench.workers import ROOT

PHASES = ("import", "plan", "pack", "lower", "passes", "emit", "llvm", "other")
EXAMPLE = "example: python -m bench.compile_time --networks resnet50,qdq-bert-base-128 --against ../before"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compile_time",
        description="How long networks take to compile, by phase, and how many kernels that makes.",
        epilog=EXAMPLE,
    )
    parser.add_argument("--networks", default=",".join(NAMES), metavar="A,B", help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of their ONNX files (%(default)s)")
    parser.add_argument("--against", type=Path, action="append", default=[], help="another checkout to compile with")
    parser.add_argument("--threads", type=int, default=1, help="threads of the compiled code (%(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="compilations per checkout (%(default)s)")
    given = parser.parse_args(arguments)
    names = given.networks.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NAMES)}")
    given.models.mkdir(parents=True, exist_ok=True)
    print(f"{'network':18}{'checkout':14}{'CPU s':>7}{'wall s':>8}", *(f"{phase:>7}" for phase in PHASES), " kernels")
    for name in names:
        model = given.models / f"{name}.onnx"
        if not model.exists():
            write(name, model)
        checkouts = [ROOT, *given.against]
        turns = [[compiled(checkout, model, given.threads) for checkout in checkouts] for _ in range(given.turns)]
        for checkout, runs in zip(checkouts, zip(*turns, strict=True), strict=True):
            print(row(name, checkout, min(runs, key=lambda run: float(run["cpu"]))), flush=True)
    return 0


def compiled(checkout: Path, model: Path, threads: int) -> dict[str, Any]:
    """What `worker` prints about one compilation by a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, worker.__file__, str(model.resolve()), str(threads)]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout} failed on {model.name}:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def row(name: str, checkout: Path, run: dict[str, Any]) -> str:
    phases = dict(run["phases"])
    both = phases.pop("generate", 0.0)
    phases.setdefault("llvm", both - phases.get("emit", 0.0))
    phases["other"] = run["cpu"] - sum(phases.values())
    seconds = " ".join(f"{phases.get(phase, 0.0):7.2f}" for phase in PHASES)
    counts = f"{run['kernels']} of {run['launches']} launches"
    return f"{name:18}{checkout.resolve().name:14}{run['cpu']:7.2f}{run['wall']:8.2f} {seconds}  {counts}"


if __name__ == "__main__":
    sys.exit(main())
