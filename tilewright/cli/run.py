"""`tilewright run`: a model on inputs from a file or random ones, checked against the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from tilewright.cli.arguments import (
    AsJson,
    Device,
    Disable,
    Fuse,
    Machine,
    ModelFile,
    NoCache,
    Rebuild,
    Shapes,
    Threads,
    is_stored,
    options_of,
    refuse,
    refuse_for_stored,
    shapes_of,
)
from tilewright.cli.arrays import Array, write_npz
from tilewright.cli.console import NEGATIVE, progress, show_json
from tilewright.cli.counts import counts_record, show_counts, unexplained
from tilewright.cli.models import (
    as_tuple,
    import_graph,
    open_module,
    plan_model,
    random_arrays,
    read_arrays,
    read_artifact,
)
from tilewright.cli.printing import say
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.files import require_writable
from tilewright.options import Options

if TYPE_CHECKING:
    from tilewright.compiler.counting import KernelCount
    from tilewright.runtime.manifest import Manifest, TensorSpec

EPILOG = """\
\b
example: tilewright run model.twm --inputs in.npz -o out.npz
         tilewright run model.onnx --shape x=1,3,224,224 --check
         tilewright run chain.onnx --fuse always --count
         tilewright run model.onnx --machine nvidia-h200-sxm --device emulator
exit status: 0 ran, 1 --check found a difference that is too large, or
             --count one for which there is no known reason,
             2 bad usage or input,
             3 this machine cannot run the file, or a package is missing
"""

# Largest error allowed, relative to the largest magnitude of an output: what sums of some thousand rounded terms stay
# below. Half-precision models round every intermediate tensor, to 2^-11 or 2^-8 of its size.
TOLERANCE = {"f64": 1e-10, "f32": 1e-4, "f16": 2.0**-7, "bf16": 2.0**-4}


class Place(StrEnum):
    """The values of `--count-on`."""

    INTERPRETER = "interpreter"
    CPU = "cpu"


Inputs = Annotated[
    Path | None, typer.Option("--inputs", metavar="FILE", help="an .npz with the inputs by name (default: random)")
]
Outputs = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="write the outputs by name to an .npz")
]
SeedOfInputs = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, help="same seed, same random inputs (default: 0)")
]
Check = Annotated[bool, typer.Option("--check", help="compare with the NumPy reference, computed in float64")]
Count = Annotated[
    bool,
    typer.Option(
        "--count",
        help="count from the addresses that each kernel touches what it moves between memory levels, beside what its "
        "tile tree says",
    ),
]
CountOn = Annotated[
    Place,
    typer.Option(
        "--count-on",
        help="what runs counted kernels: the interpreter, or machine code, on one thread, that writes down what it "
        "touches",
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option("--tolerance", metavar="X", min=0, help="error that --check allows, of the largest output value"),
]


@dataclass(frozen=True)
class Ran:
    """One run of a model: by its machine code, or with counts by the interpreter."""

    manifest: Manifest
    threads: int
    device: str
    results: tuple[Array, ...]
    counts: tuple[KernelCount, ...] = ()


@dataclass(frozen=True)
class Difference:
    """How far one output is from its reference; `relative_error` is to the largest magnitude of the reference."""

    output: str
    absolute_error: float
    relative_error: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.relative_error <= self.allowed


def run(
    model: ModelFile,
    inputs: Inputs = None,
    output: Outputs = None,
    check: Check = False,
    count: Count = False,
    count_on: CountOn = Place.INTERPRETER,
    tolerance: Tolerance = None,
    seed: SeedOfInputs = None,
    machine: Machine = "host",
    device: Device = None,
    threads: Threads = None,
    shape: Shapes = None,
    disable: Disable = None,
    fuse: Fuse = "auto",
    rebuild: Rebuild = False,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Run a model once: a .twm as it was compiled, an .onnx compiled now.

    Random inputs are normal floats, bytes of any value, and 0 or 1 for wider integers. A .twm runs its machine code:
    only run files that you trust. Code for a GPU runs in the emulator where there is none: slow, small shapes only. So
    does --count, which is for programs for CPUs.
    """
    require_writable(output, "-o")
    given = seed is not None and inputs is not None
    refuse({"--seed": given}, f"{seed}, but the inputs are not random: {inputs}", "leave out --inputs")
    refuse({"--tolerance": tolerance is not None and not check}, f"{tolerance}, but nothing is compared", "add --check")
    elsewhere = count_on is not Place.INTERPRETER
    refuse({"--count-on": elsewhere and not count}, f"{count_on.value}, but nothing is counted", "add --count")
    shapes, options = shapes_of(shape), options_of(disable, no_cache, fuse=fuse)
    if is_stored(model):
        refuse_for_stored(model, {"--count": count, "--fuse": fuse != "auto" and not rebuild})

    def given_to(specs: Sequence[TensorSpec]) -> list[Array]:
        return read_arrays(inputs, specs) if inputs else random_arrays(specs, seed or 0)

    if count:
        about = "programs for CPUs are counted, made anew from a model file"
        refuse({"--device": device is not None, "--rebuild": rebuild, "--no-cache": no_cache}, about, "leave it out")
        ran, arrays = _counted(model, shapes, machine, threads, options, given_to, count_on)
    else:
        module = open_module(
            model, shapes, machine, threads, options, rebuild=rebuild, device=device, no_cache=no_cache
        )
        arrays = given_to(module.manifest.inputs)
        ran = Ran(module.manifest, module.threads, module.device, as_tuple(module(*arrays)))
    names = [spec.name for spec in ran.manifest.outputs]
    if output:
        write_npz(output, dict(zip(names, ran.results, strict=True)))
    differences = _differences(model, shapes, ran, arrays, tolerance) if check else []
    if as_json:
        show_json(_record(ran, differences, counted=count))
    else:
        _show(ran, differences)
        show_counts(ran.counts)
    if not all(difference.ok for difference in differences) or unexplained(ran.counts):
        raise typer.Exit(NEGATIVE)


def _counted(
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    machine: str,
    threads: int | None,
    options: Options,
    given_to: Callable[[Sequence[TensorSpec]], list[Array]],
    on: Place,
) -> tuple[Ran, list[Array]]:
    """A run of the plan of a model with counts, and its inputs."""
    from tilewright.compiler.compile import thread_count
    from tilewright.compiler.counting import count_plan
    from tilewright.compiler.interface import planned_manifest

    plan, target = plan_model(model, shapes, machine, threads, options)
    manifest = planned_manifest(plan, target)
    arrays = given_to(manifest.inputs)
    with progress("counting"):
        results, counts = count_plan(plan, target, arrays, on.value)
    return Ran(manifest, thread_count(threads), on.value, tuple(results), tuple(counts)), arrays


def _differences(
    model: Path,
    shapes: dict[str, tuple[int, ...]],
    ran: Ran,
    arrays: list[Array],
    tolerance: float | None,
) -> list[Difference]:
    from tilewright.compiler.stored import stored_graph
    from tilewright.expr.evaluate import evaluate

    graph = stored_graph(read_artifact(model)) if is_stored(model) else import_graph(model, shapes)
    with progress("computing the reference"):
        expected = evaluate(graph, arrays, precise=True, wide=True)
    return [
        difference(spec.name, result, exact, TOLERANCE.get(spec.dtype, 0.0) if tolerance is None else tolerance)
        for spec, result, exact in zip(ran.manifest.outputs, ran.results, expected, strict=True)
    ]


def difference(output: str, result: Array, exact: Array, allowed: float) -> Difference:
    """The largest difference between two arrays; where only one of them has a NaN or an infinity, it is infinite.

    >>> difference("y", np.array([1.0, 2.5]), np.array([1.0, 2.0]), allowed=0.1)
    Difference(output='y', absolute_error=0.5, relative_error=0.25, allowed=0.1)
    """
    if result.shape != exact.shape:
        raise InvalidArgument(f"{output} has shape {result.shape}, the reference {exact.shape}")
    wide, truth = result.astype(np.float64), exact.astype(np.float64)
    same = (wide == truth) | (np.isnan(wide) & np.isnan(truth))
    with np.errstate(invalid="ignore"):
        errors = np.where(same, 0.0, np.abs(wide - truth))
    largest = float(np.where(np.isnan(errors), np.inf, errors).max(initial=0.0))
    scale = float(np.abs(truth[np.isfinite(truth)]).max(initial=0.0))
    relative = 0.0 if largest == 0.0 else largest / scale if scale else float("inf")
    return Difference(output, largest, relative, allowed)


def _record(ran: Ran, differences: list[Difference], *, counted: bool) -> dict[str, Any]:
    outputs = [
        {"name": spec.name, "dtype": spec.dtype, "shape": spec.shape, **_range(result)}
        for spec, result in zip(ran.manifest.outputs, ran.results, strict=True)
    ]
    found: dict[str, Any] = {"model": ran.manifest.name, "threads": ran.threads, "device": ran.device}
    found["outputs"] = outputs
    if counted:
        found["counts"] = counts_record(ran.counts)
    if differences:
        found["check"] = [{**asdict(each), "ok": each.ok} for each in differences]
    return found


def _show(ran: Ran, differences: list[Difference]) -> None:
    for spec, result in zip(ran.manifest.outputs, ran.results, strict=True):
        values = _range(result)
        span = f"from {values['smallest']:.6g} to {values['largest']:.6g}" if values else "no elements"
        say(f"{spec.name}: {spec}, {span}")
    for each in differences:
        verdict = "ok" if each.ok else "too large"
        say(
            f"{each.output}: largest error {each.absolute_error:.3g} absolute, {each.relative_error:.3g} relative "
            f"({verdict}: {each.allowed:.3g} allowed)"
        )


def _range(array: Array) -> dict[str, float]:
    wide = array.astype(np.float64)
    return {"smallest": float(wide.min()), "largest": float(wide.max())} if wide.size else {}
