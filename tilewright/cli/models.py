"""From files on the command line to modules, graphs and arrays, and back to files."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cli.arguments import is_stored, refuse, refuse_for_stored
from tilewright.cli.arrays import Array, read_npz
from tilewright.cli.console import MachineLacks, progress
from tilewright.errors import InvalidArgument
from tilewright.options import Options

if TYPE_CHECKING:
    from tilewright.compiler.plan import Plan
    from tilewright.expr.graph import Graph
    from tilewright.machine import Cpu, Gpu
    from tilewright.runtime.artifact import Artifact
    from tilewright.runtime.manifest import Manifest, TensorSpec
    from tilewright.runtime.module import Module

_NPZ_HELP = "np.savez with the inputs' names as keys"


def open_module(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    machine: str,
    threads: int | None,
    options: Options,
    *,
    rebuild: bool = False,
    device: str | None = None,
    no_cache: bool = False,
) -> Module:
    """A module that runs here, from a `.twm` (loaded) or from a model file (compiled).

    A `.twm` is compiled again with `rebuild`, or where its code needs what this machine lacks. Raises InvalidArgument
    for what has no effect on such a file and such code; `no_cache` is whether `options` were asked to be without.
    """
    import tilewright
    from tilewright.runtime.container import opened

    if rebuild or not is_stored(path):
        artifact = build_artifact(path, shapes, machine, threads, options, rebuild=rebuild, device=device)
        _check_runs_here(artifact.manifest, machine)
        return opened(artifact, threads, options, device)
    given = {
        "--shape": bool(shapes), "--machine": machine != "host", "--disable": bool(options.disable),
        "--no-cache": no_cache,
    }  # fmt: skip
    refuse_for_stored(path, given, "--rebuild, which `run` and `compile` take")
    if device is not None:  # checked first: code for another CPU is compiled again as it is loaded
        _check_stored_place(read_artifact(path).manifest, threads, device)
    with progress(f"loading {path}"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        module = tilewright.load(path, threads=threads, options=options, device=device)
    for each in said:
        print(f"note: {each.message}", file=sys.stderr)
    _check_stored_place(module.manifest, threads, device)
    return module


def build_artifact(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    machine: str,
    threads: int | None,
    options: Options,
    *,
    rebuild: bool = False,
    device: str | None = None,
) -> Artifact:
    """Compile a model file, or with `rebuild` the program in a `.twm`, for any machine; nothing is loaded.

    Raises InvalidArgument, before anything is compiled, for threads or a device that the machine leaves nothing to.
    """
    from tilewright.compiler.compile import build, rebuilt, resolve_target, thread_count
    from tilewright.compiler.source import source_of
    from tilewright.compiler.targets import target_of

    if rebuild != is_stored(path):
        message = "only a .twm can be rebuilt" if rebuild else "is compiled already"
        raise InvalidArgument(message, where=str(path), help="leave out --rebuild" if rebuild else "add --rebuild")
    if rebuild:
        refuse_for_stored(path, {"--shape": bool(shapes)})
    count, target = thread_count(threads), resolve_target(machine, options)
    _check_place(target.name, target_of(target).on_host, threads, device)
    if rebuild:
        stored = read_artifact(path)
        with progress(f"compiling {path} again"):
            return rebuilt(stored, machine, count, options)
    source = source_of(str(path), None, shapes or None)
    with progress(f"compiling {path}"):
        return build(source, target, count, options)


def plan_model(
    path: Path, shapes: Mapping[str, Sequence[int]], machine: str, threads: int | None, options: Options
) -> tuple[Plan, Cpu | Gpu]:
    """Every decision about a model file for a machine, and that machine; no code is made."""
    from tilewright.compiler.compile import plan_graph, resolve_target, thread_count
    from tilewright.compiler.targets import target_of

    target = resolve_target(machine, options)
    _check_place(target.name, target_of(target).on_host, threads)
    graph = import_graph(path, shapes)
    count = target_of(target).threads(thread_count(threads))
    with progress(f"planning {path}"):
        return plan_graph(graph, target, count, options), target


def measured_rates(machine: str) -> Cpu | None:
    """The host with its measured rates if `machine` is its name, measured now if they never were.

    None for other machines, and, with a warning, where the host is too busy to be measured.
    """
    from tilewright.machine import host
    from tilewright.runtime.calibrate import BusyMachine, calibrated

    if machine != host().name:
        return None
    try:
        with progress("measuring the rates of this machine"):
            return calibrated()
    except BusyMachine as error:
        print(f"no predicted seconds: {error}", file=sys.stderr)
        return None


def _check_runs_here(manifest: Manifest, machine: str) -> None:
    from tilewright.runtime.loader import missing_features, same_platform

    if manifest.code != "object":
        return  # what is for a GPU runs in the emulator at least
    lacking = ", ".join(missing_features(manifest.features))
    if not same_platform(manifest.triple) or lacking:
        what = f"lacks {lacking}" if same_platform(manifest.triple) else f"is no {manifest.triple}"
        raise MachineLacks(
            f"code for {machine} does not run here: this machine {what}",
            where="--machine",
            help="compile it to a file with `tilewright compile`, or leave out --machine",
        )


def _check_stored_place(manifest: Manifest, threads: int | None, device: str | None) -> None:
    _check_place(manifest.machine or manifest.triple, manifest.code == "object", threads, device)


def _check_place(machine: str, on_cpu: bool, threads: int | None, device: str | None = None) -> None:
    """Raise InvalidArgument for a device of code for a CPU, and for threads of code for a GPU."""
    message = f"{device} for {machine}: code for a CPU runs on the CPU"
    refuse({"--device": on_cpu and device is not None}, message, "leave it out, or compile for a GPU")
    message = f"{threads} threads for {machine}: code for a GPU has none of the host's"
    refuse({"--threads": not on_cpu and threads is not None}, message, "leave it out for a GPU")


def read_artifact(path: Path) -> Artifact:
    from tilewright.runtime.artifact import Artifact

    return Artifact.read(path)


def import_graph(path: Path, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph of a model file, as it was imported."""
    from tilewright.compiler.compile import import_any

    with progress(f"reading {path}"):
        return import_any(str(path), None, shapes or None)


def read_arrays(path: Path, specs: Sequence[TensorSpec]) -> list[Array]:
    """The inputs in an `.npz`, in the order of `specs`. Raises InvalidArgument if names are missing or too many."""
    found = read_npz(path, InvalidArgument, help=_NPZ_HELP, names=[spec.name for spec in specs])
    return [_as_stored(found[spec.name], spec) for spec in specs]


def _as_stored(array: Array, spec: TensorSpec) -> Array:
    """NumPy files keep bfloat16 as two bytes without a type."""
    if spec.dtype == "bf16" and array.dtype == np.dtype("V2"):
        from tilewright.expr.dtypes import numpy_dtype

        return array.view(numpy_dtype("bf16"))
    return array


def random_arrays(specs: Sequence[TensorSpec], seed: int) -> list[Array]:
    """Random inputs: normal floats, bytes of any value, and wider integers of 0 or 1, which fit as indices.

    >>> from tilewright.runtime.manifest import TensorSpec
    >>> [array.shape for array in random_arrays([TensorSpec("x", "f32", (2, 3))], seed=0)]
    [(2, 3)]
    """
    from tilewright.expr.dtypes import is_float, numpy_dtype

    generator = np.random.default_rng(seed)
    found = []
    for spec in specs:
        dtype = numpy_dtype(spec.dtype)
        if is_float(spec.dtype):
            array: Array = generator.standard_normal(spec.shape, np.float32)
        elif dtype.itemsize == 1 and spec.dtype != "bool":
            limits = np.iinfo(dtype)
            array = generator.integers(limits.min, limits.max, spec.shape, dtype, endpoint=True)
        else:
            array = generator.integers(0, 2, spec.shape)
        found.append(np.asarray(array).astype(dtype, copy=False))
    return found


def as_tuple(results: Any) -> tuple[Array, ...]:
    """The outputs of a module call, which is one array or a tuple."""
    return results if isinstance(results, tuple) else (results,)
