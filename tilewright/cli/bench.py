"""`tilewright bench`: how long a call of a model takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli.arguments import (
    AsJson,
    Disable,
    Machine,
    ModelFile,
    NoCache,
    Seed,
    Shapes,
    Threads,
    options_of,
    shapes_of,
)
from tilewright.cli.console import progress, show_json
from tilewright.cli.models import as_tuple, open_module, random_arrays
from tilewright.cli.printing import say
from tilewright.errors import InvalidArgument

EPILOG = """\
\b
example: tilewright bench model.onnx --threads 2 --seconds 5
exit status: 0 timed, 2 bad usage or input,
             3 this machine cannot run the file, or a package is missing
"""

_WARM_UP_CALLS = 3  # the first call touches every page, the second fills the caches

Seconds = Annotated[float, typer.Option("--seconds", metavar="S", min=0.01, max=3600, help="how long to measure")]


def bench(
    model: ModelFile,
    seconds: Seconds = 2.0,
    seed: Seed = 0,
    machine: Machine = "host",
    threads: Threads = None,
    shape: Shapes = None,
    disable: Disable = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Time calls of a model on random inputs, with the outputs written to the same arrays each time.

    Nothing else should run on the machine meanwhile. In the source tree, `python -m bench` compares with other
    runtimes and with what the machine can reach.
    """
    start = time.perf_counter()
    module = open_module(model, shapes_of(shape), machine, threads, options_of(disable, no_cache), no_cache=no_cache)
    ready_seconds = time.perf_counter() - start
    arrays = random_arrays(module.manifest.inputs, seed)
    outputs = as_tuple(module(*arrays))
    with progress("measuring"):
        times = call_seconds(lambda: module(*arrays, out=outputs), seconds)
    flops = sum(launch.flops for launch in module.manifest.launches)
    record: dict[str, Any] = {
        "model": str(model),
        "threads": module.threads,
        "calls": len(times),
        "median_seconds": statistics.median(times),
        "fastest_seconds": min(times),
        "slowest_seconds": max(times),
        "gflops_per_second": flops / statistics.median(times) / 1e9,
        "ready_seconds": ready_seconds,
    }
    if as_json:
        show_json(record)
        return
    say(
        f"{model}: {record['median_seconds'] * 1e3:.4g} ms a call with {module.threads} threads, median of "
        f"{len(times)} ({record['fastest_seconds'] * 1e3:.4g} to {record['slowest_seconds'] * 1e3:.4g} ms), "
        f"{record['gflops_per_second']:.1f} GFLOP/s; ready after {ready_seconds:.2f} s"
    )
    if (Path.cwd() / "bench" / "__main__.py").is_file():
        say("beside other runtimes: python -m bench --list")


def call_seconds(call: Callable[[], object], seconds: float) -> list[float]:
    """Times of calls, made for about `seconds` and at least three times, after some that are not counted."""
    if seconds <= 0:
        raise InvalidArgument(f"{seconds} seconds of measurement", help="a positive number")
    for _ in range(_WARM_UP_CALLS):
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times
