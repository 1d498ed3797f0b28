"""`tilewright profile`: which kernels of a model take the time, and how much of what the machine reaches they use."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.cli.arguments import (
    AsJson,
    Device,
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
from tilewright.cli.models import measured_rates, open_module, random_arrays
from tilewright.cli.printing import say, terminal_columns
from tilewright.runtime.profile import MOST_ROWS

EPILOG = """\
\b
example: tilewright profile model.onnx --threads 1
         tilewright profile model.twm --top 40 --json
exit status: 0 timed, 2 bad usage or input,
             3 this machine cannot run the file, or a package is missing
"""

Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="most rows of the table")]
Repeats = Annotated[int, typer.Option("--repeats", metavar="N", min=1, max=100_000, help="calls, after one more")]


def profile(
    model: ModelFile,
    top: Top = MOST_ROWS,
    repeats: Repeats = 10,
    seed: Seed = 0,
    machine: Machine = "host",
    device: Device = None,
    threads: Threads = None,
    shape: Shapes = None,
    disable: Disable = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Time every kernel of a model on random inputs: the longest first, beside what this machine reaches.

    Times are medians; kernels with the same code are one row. `bound` is what the model expects to take the time:
    arithmetic, or a level of memory. `of peak` is the part of what was measured here for that: operations per second of
    the kernel's instruction, or bytes per second read from that level. These rates are measured once and kept, as
    `tilewright calibrate` does. `tilewright explain` says why a kernel is as it is.
    """
    shapes, options = shapes_of(shape), options_of(disable, no_cache)
    module = open_module(model, shapes, machine, threads, options, device=device, no_cache=no_cache)
    arrays = random_arrays(module.manifest.inputs, seed)
    rates = measured_rates(module.manifest.machine)
    with progress("measuring"):
        times = module.profile(*arrays, repeats=repeats)
    if as_json:
        record: dict[str, Any] = {"model": str(model), "device": module.device, **times.to_json(rates)}
        show_json(record)
        return
    say(f"{model}: {times.seconds * 1e3:.4g} ms in {len(times)} kernels, {module.threads} threads")
    print(times.table(rates, top, terminal_columns(most=140)))
