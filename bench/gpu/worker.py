"""The process that has the GPU: one item per line of standard input, one row per line of standard output.

A kernel that faults takes what this process has on the GPU with it, not the run: `runner` starts another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu import contenders
from bench.gpu.cases import CASES, CHECKS, Case, tiny
from bench.gpu.clock import Clock, CudaClock, WallClock
from bench.gpu.inputs import inputs, unwritten
from bench.gpu.results import Row
from bench.gpu.timing import Recorded, input_sets, record, sample

REFERENCE = "torch"  # what every other contender is timed in turns with


def main(device: str, compiled: Path | None = None) -> None:
    """Serve until standard input ends. Only answers go to standard output, whatever libraries and compilers print."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(device, compiled)
    print(json.dumps(worker.machine()), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        row = worker.run(all_cases(device)[task["case"]], task["contender"], task["seconds"])
        print(json.dumps({"row": asdict(row), "alive": worker.alive()}), file=answers, flush=True)


def all_cases(device: str) -> tuple[Case, ...]:
    return tiny() if device == "cpu" else CHECKS + CASES


def _note(module: Any) -> str:
    """The tile of a module of ours, if it was chosen by time, and what its kernels take, if the device says so."""
    taken = [
        f"{name}: {taken.registers} registers, {taken.local_bytes} bytes of local memory"
        for name, taken in getattr(module, "resources", dict)().items()
        if taken is not None
    ]
    return "; ".join(filter(None, [getattr(module, "tile", ""), *taken]))


def _driver() -> str:
    """The version of the driver, "" where its tool is missing."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False).stdout.split("\n")[0]
    except OSError:
        return ""


class Worker:
    def __init__(self, device: str, compiled: Path | None = None) -> None:
        import torch

        self.device, self.torch, self.compiled = device, torch, compiled
        self._reference: tuple[Case | None, Recorded | None] = None, None  # the case at hand, by torch
        self.clock: Clock = CudaClock(torch) if device == "cuda" else WallClock()
        torch.backends.cudnn.allow_tf32 = False  # f32 means f32
        torch.backends.cudnn.benchmark = True

    def machine(self) -> dict[str, Any]:
        """What the run is on."""
        cuda = self.device == "cuda"
        return {
            "device": self.torch.cuda.get_device_name(0) if cuda else "none: the emulator on the CPU",
            "driver": _driver() if cuda else "", "commit": os.environ.get("TILEWRIGHT_BENCH_COMMIT", ""),
            "torch": self.torch.__version__, "cuda": self.torch.version.cuda, "cache_bytes": self.clock.cache_bytes,
            "date": time.strftime("%Y-%m-%d %H:%M"),
        }  # fmt: skip

    def run(self, case: Case, name: str, seconds: float) -> Row:
        """Check one contender on one case, then time it for about `seconds`, less what preparing took."""
        row = Row(case.family, case.name, case.dtype, name, "failed", flops=case.flops, bytes=case.bytes)
        start = self.clock.now()
        self.torch.backends.cuda.matmul.allow_tf32 = case.input_precision == "tf32"
        try:
            with self.torch.no_grad():
                function = contenders.prepare(name, case, self.torch, self.device, self.compiled)
                row.note = _note(function) if name in contenders.MINE else ""
                row.tiles = [asdict(tile) for tile in getattr(function, "tiles", ())]
                row.error = self._error(case, function, name)
                if not row.error <= case.bound:  # NaN neither
                    row.status, row.note = "wrong", f"at most {case.bound:g} is allowed"
                    return row
                row.status = "ok"
                if case.family != "check":
                    self._time(case, function, row, seconds - (self.clock.now() - start))
        except contenders.Missing as error:
            row.status, row.note = "skipped", str(error)
        except Exception as error:  # whatever a contender does is a fact about it
            row.status, row.note = "failed", f"{type(error).__name__}: {str(error).strip()[:300]}"
        return row

    def alive(self) -> bool:
        """Whether the GPU still works for this process: after a fault every call of the driver fails."""
        try:
            self.clock.now()
        except RuntimeError:
            return False
        return True

    def _error(self, case: Case, function: Callable[..., Any], name: str) -> float:
        """‖out − ref‖ / ‖ref‖ on fresh inputs, the reference in float64; what we leave unwritten is NaN."""
        given = self._inputs(case, seed=1)
        if name in contenders.MINE:
            found = unwritten(case, self.torch, self._place)
            function(*given, out=found)
        else:
            found = function(*given)
        wanted = (case.reference or case.torch)(*(tensor.double() for tensor in given))
        scale = float(wanted.norm()) or 1.0
        return float((found.double().reshape(wanted.shape) - wanted).norm()) / scale

    def _time(self, case: Case, function: Callable[..., Any], row: Row, seconds: float) -> None:
        sets = input_sets(sum(tensor.nbytes for tensor in self._inputs(case, seed=2)), self.clock)
        sets = 2 if self.device == "cpu" else sets
        given = [self._inputs(case, seed=2 + number) for number in range(sets)]
        recorded = record(lambda number: function(*given[number]), sets, self.clock, keep=(function, given))
        known, reference = self._reference
        beside = reference if known is case and row.contender != REFERENCE else None
        timing, *others = sample(recorded, self.clock, max(0.05, seconds), beside)
        row.seconds, row.low, row.high, row.samples = timing.seconds, timing.low, timing.high, timing.samples
        row.beside = others[0].seconds if others else None
        if row.contender == REFERENCE:
            self._reference = case, recorded

    def _inputs(self, case: Case, seed: int) -> list[Any]:
        return inputs(case, self.torch, self._place, seed)

    @property
    def _place(self) -> str:
        return "cuda" if self.device == "cuda" else "cpu"
