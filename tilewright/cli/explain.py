"""`tilewright explain`: why the kernels of a model are as they are, the most expensive first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.arguments import (
    AsJson,
    Cluster,
    Disable,
    Fuse,
    InputPrecision,
    InputPrecisionName,
    Machine,
    Mma,
    MmaOption,
    ModelFile,
    Shapes,
    Threads,
    given_decisions,
    is_stored,
    options_of,
    refuse_for_stored,
    shapes_of,
)
from tilewright.cli.console import progress, show_json
from tilewright.cli.models import measured_rates, open_module, plan_model, random_arrays, read_artifact
from tilewright.cli.printing import say, terminal_columns
from tilewright.options import Options
from tilewright.runtime.explanation import TOP, Explanation

EPILOG = """\
\b
example: tilewright explain model.twm
         tilewright explain model.twm --top 10 --measure
         tilewright explain model.onnx --machine other.yaml --json
exit status: 0 explained, 2 bad usage or input, 3 a missing package
"""

KernelName = Annotated[str, typer.Option("--kernel", metavar="NAME", help="every decision about this kernel")]
Top = Annotated[int, typer.Option("--top", metavar="N", min=0, help="kernels to summarise, the most expensive first")]
All = Annotated[bool, typer.Option("--all", help="after the summaries, every decision")]
Measure = Annotated[bool, typer.Option("--measure", help="time the kernels too: runs the code on random inputs")]


def explain(
    model: ModelFile,
    kernel: KernelName = "",
    top: Top = TOP,
    all: All = False,
    measure: Measure = False,
    machine: Machine = "host",
    threads: Threads = None,
    shape: Shapes = None,
    disable: Disable = None,
    mma: MmaOption = Mma.AUTO,
    input_precision: InputPrecisionName = InputPrecision.IEEE,
    cluster: Cluster = Options.cluster,
    fuse: Fuse = "auto",
    as_json: AsJson = False,
) -> None:
    """Say of the most expensive kernels what bounds them, what was chosen, what came second, and what was refused.

    Of a .twm: the decisions stored in it; its code is not loaded but by --measure. Of an .onnx: those of a compilation
    now. Seconds are predicted where the code runs on this machine, by rates that are measured once and kept, as
    `tilewright calibrate` does.
    """
    stored = is_stored(model)
    if stored:
        given = given_decisions(machine, threads, disable, mma, input_precision, cluster, fuse)
        refuse_for_stored(model, {"--shape": bool(shape)} | given)
    options = options_of(disable, mma=mma.value, input_precision=input_precision.value, cluster=cluster, fuse=fuse)
    if measure:
        module = open_module(model, shapes_of(shape), machine, threads, options)
        with progress("measuring"):
            profile = module.profile(*random_arrays(module.manifest.inputs, 0))
        rates = measured_rates(module.manifest.machine)
        found = Explanation.of(module.artifact, module.threads, rates, profile)
    elif stored:
        found = _stored(model)
    else:
        found = _planned(model, shapes_of(shape), machine, threads, options)
    if as_json:
        show_json(found.to_json())
        return
    say(found.text(top, kernel, all, terminal_columns(most=120)))


def _stored(path: Path) -> Explanation:
    from tilewright.compiler.compile import thread_count

    artifact = read_artifact(path)
    return Explanation.of(artifact, thread_count(None), measured_rates(artifact.manifest.machine))


def _planned(
    path: Path, shapes: dict[str, tuple[int, ...]], machine: str, threads: int | None, options: Options
) -> Explanation:
    from tilewright.compiler.compile import thread_count
    from tilewright.compiler.interface import planned_manifest

    plan, target = plan_model(path, shapes, machine, threads, options)
    return Explanation(
        planned_manifest(plan, target), plan.decisions, thread_count(threads), measured_rates(target.name)
    )
