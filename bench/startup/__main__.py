"""What a new process waits for: `python -m bench.startup`, with an empty cache and with what is in it.

With `--against CHECKOUT` each case runs with another checkout of Tilewright too, in turns with this one. Times are
seconds of the process, from its start (CPU) and from the import (wall), the least of `--turns`. Networks are compiled
into an empty cache once, and loaded from it in each turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.compile_time.networks import NAMES, write
from bench.startup import worker
from bench.workers import ROOT

EXAMPLE = "example: python -m bench.startup --networks resnet50 --against ../before"


@dataclass(frozen=True)
class Case:
    """What a process does, and whether it finds in the cache what an earlier one made."""

    name: str
    arguments: tuple[str, ...]
    cached: bool


def cases(models: list[Path]) -> list[Case]:
    found = [Case("import tilewright", ("import",), False)]
    for name, arguments in [
        ("first product", ("product",)),
        *((model.stem, ("network", str(model))) for model in models),
    ]:
        found += [Case(f"{name}, empty cache", arguments, False), Case(f"{name}, cached", arguments, True)]
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.startup", description="What a new process waits for.", epilog=EXAMPLE
    )
    parser.add_argument("--networks", default="resnet50,bert-base-128", metavar="A,B", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of their ONNX files (%(default)s)")
    parser.add_argument("--against", type=Path, action="append", default=[], help="another checkout to run")
    parser.add_argument("--turns", type=int, default=5, help="processes per case and checkout (%(default)s)")
    given = parser.parse_args(arguments)
    names = [name for name in given.networks.split(",") if name]
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(NAMES)}")
    given.models.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (given.models / f"{name}.onnx").exists():
            write(name, given.models / f"{name}.onnx")
    checkouts = [ROOT, *given.against]
    print(f"{'case':32}{'checkout':14}{'CPU s':>7}{'wall s':>8}{'peak MB':>9}")
    for case in cases([(given.models / f"{name}.onnx").absolute() for name in names]):
        network_alone = case.arguments[0] == "network" and not case.cached  # takes long
        runs = _runs(case, checkouts, 1 if network_alone else given.turns)
        for checkout, each in zip(checkouts, runs, strict=True):
            cpu, wall, peak = (min(run[key] for run in each) for key in ("cpu", "wall", "megabytes"))
            print(f"{case.name:32}{checkout.resolve().name:14}{cpu:7.3f}{wall:8.3f}{peak:9.0f}", flush=True)
    return 0


def _runs(case: Case, checkouts: list[Path], turns: int) -> list[list[dict[str, float]]]:
    """What the processes print, by checkout; the checkouts take turns, each with a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder) / str(number) for number in range(len(checkouts))]
        for checkout, cache in zip(checkouts, caches, strict=True):
            _run(case, checkout, cache)  # fills the cache, and compiles the sources of the checkout to bytecode
        found: list[list[dict[str, float]]] = [[] for _ in checkouts]
        for turn in range(turns):
            for number, checkout in enumerate(checkouts):
                cache = caches[number] if case.cached else Path(folder) / f"{number}-{turn}"
                found[number].append(_run(case, checkout, cache))
        return found


def _run(case: Case, checkout: Path, cache: Path) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "TILEWRIGHT_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    command = [sys.executable, worker.__file__, *case.arguments]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout} failed on {case.name}:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    sys.exit(main())
