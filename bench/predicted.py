"""Predicted beside measured time of the cases, and whether their decisions hold: `python -m bench.predicted`.

Every case is compiled and timed; the prediction is that of `tilewright explain`, by rates that `calibrate` measured.
Calls on one thread are timed in CPU time, in which other processes on the same cores do not count; kernels are timed by
the clock. A decision is wrong whose winner costs more than what came second, both by the model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import cases
from bench.problem import Case
from tilewright.decision import ASKED, Decision
from tilewright.machine.description import Cpu

EXAMPLE = "example: python -m bench.predicted --cases resnet50,gemm-* --threads 1"
WITHIN = 2.0  # times the measured time, and its inverse
SHORTEST = 5e-6  # seconds of kernels that are listed: of shorter ones the clock and the launch are a good part
PROFILES = 3  # whose least times count
CALLS = 20  # likewise, as far as they take no longer than
CALL_SECONDS = 2.0


@dataclass(frozen=True)
class Kernel:
    """Seconds of the launches of one code; None where there is no model."""

    name: str
    bound: str
    measured: float
    predicted: float | None

    @property
    def ratio(self) -> float:
        """Predicted by measured; 1 without a model."""
        return 1.0 if self.predicted is None else self.predicted / self.measured

    @property
    def is_off(self) -> bool:
        return not 1 / WITHIN <= self.ratio <= WITHIN


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.predicted",
        description="Predicted and measured seconds of every case, with the kernels that are off by more than 2.",
        epilog=EXAMPLE,
    )
    parser.add_argument("--cases", default="all", metavar="PATTERNS", help="separated by commas (default: all)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of the compiled code (default: 1)")
    given = parser.parse_args(arguments)
    from tilewright.runtime.calibrate import calibrated

    machine, off, wrong, listed, timed = calibrated(), 0, 0, 0, 0
    print(f"{'case':28}{'measured µs':>12}{'predicted':>11}{'ratio':>7}  without a model")
    for case in cases.select(given.cases.split(",")):
        kernels, decisions, seconds = measured(case, machine, given.threads)
        without = sum(each.measured for each in kernels if each.predicted is None)
        whole = total(kernels, seconds - without)
        times = f"{1e6 * whole.measured:12.1f}{1e6 * (whole.predicted or 0.0):11.1f}{whole.ratio:7.2f}"
        print(f"{case.name:28}{times}  {1e6 * without:.1f}", flush=True)
        long = [each for each in kernels if each.measured >= SHORTEST and each.predicted is not None]
        timed += len(long)
        for each in long:
            if each.is_off:
                listed += 1
                print(f"    {each.name}: {1e6 * each.measured:.1f} µs, {each.ratio:.2f} of it predicted, {each.bound}")
        for decision in lost(decisions):
            print(f"    {decision.explain()}")
        off += whole.is_off and whole.measured >= SHORTEST
        wrong += len(lost(decisions))
    print(f"{off} cases and {listed} of {timed} kernels off by more than {WITHIN:g}")
    print(f"{wrong} decisions whose winner costs more than what came second")
    return int(bool(off or wrong))


def measured(case: Case, machine: Cpu, threads: int) -> tuple[list[Kernel], list[Decision], float]:
    """Times of a case by kernel, of all launches with the same code together, what was decided, seconds of a call."""
    import tilewright
    from tilewright.cli.models import as_tuple, random_arrays
    from tilewright.runtime.explanation import Explanation

    module = tilewright.compile(case.build().model, threads=threads)
    arrays = random_arrays(module.manifest.inputs, 0)
    profiles = [module.profile(*arrays).rows(machine) for _ in range(PROFILES)]
    least: dict[str, float] = {}
    for row in (row for rows in profiles for row in rows):
        least[row.name] = min(row.seconds, least.get(row.name, row.seconds))
    kernels = [Kernel(row.name, row.bound or "", least[row.name], row.predicted_seconds) for row in profiles[0]]
    decisions = list(Explanation.of(module.artifact, threads).decisions)
    results = as_tuple(module(*arrays))
    return kernels, decisions, call_seconds(lambda: module(*arrays, out=results), threads)


def call_seconds(call: Callable[[], object], threads: int) -> float:
    """The least time of some calls: CPU time of one thread, else by the clock."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: list[float] = []
    end = time.perf_counter() + CALL_SECONDS
    while len(times) < 2 or (len(times) < CALLS and time.perf_counter() < end):
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def total(kernels: list[Kernel], seconds: float) -> Kernel:
    """All kernels that have a model as one, which took so many seconds."""
    known = [each.predicted for each in kernels if each.predicted is not None]
    return Kernel("all", "", seconds, sum(known) if known else None)


def lost(decisions: list[Decision]) -> list[Decision]:
    """Decisions whose winner costs more than what came second, those that were asked for aside."""
    compared = [each for each in decisions if each.cost and each.runner_up_cost and each.reason != ASKED]
    return [each for each in compared if each.cost and each.runner_up_cost and each.cost.exceeds(each.runner_up_cost)]


if __name__ == "__main__":
    sys.exit(main())
