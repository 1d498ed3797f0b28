"""One architecture in one way: export or capture, compile, compare, time. Runs in a process of its own."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilewright
from tests.models.definition import Architecture
from tests.models.outcome import Outcome, Way
from tilewright.errors import CompileError

Array = np.ndarray[Any, Any]
Tensors = Sequence[torch.Tensor]

TURNS = 15  # calls of each peer, one after the other
TURN_SECONDS = 6.0  # after which no further call is timed
SHOWN = 3  # kernels that are named


class StageError(Exception):
    """Something failed in one stage."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage, self.reason = stage, reason


@dataclass
class Compilation:
    """What a compilation took."""

    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_bytes: int = 0


@dataclass
class Subject:
    """A module, its inputs, and what it has to compute."""

    architecture: Architecture
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    exact: list[Array] = field(default_factory=list)
    eager: list[Array] = field(default_factory=list)

    @classmethod
    def of(cls, architecture: Architecture) -> Subject:
        with _stage("build"), _quiet():
            module, inputs = architecture.built()
            subject = cls(architecture, module, inputs)
            with torch.inference_mode():
                subject.eager = arrays(module(*inputs))
            subject.exact = _in_double(architecture) or subject.eager
        return subject


def measure(architecture: Architecture, way: Way) -> Outcome:
    """Compile and compare one architecture; whatever fails is part of the result."""
    torch.set_num_threads(1)
    outcome = Outcome(architecture.name, architecture.family, way, "failed")
    try:
        subject = Subject.of(architecture)
        return (_through_onnx if way == "onnx" else _through_compile)(subject, outcome)
    except StageError as failure:
        return replace(outcome, stage=failure.stage, reason=failure.reason)


# The ways -----------------------------------------------------------------------------------------------------------


def _through_onnx(subject: Subject, outcome: Outcome) -> Outcome:
    with _stage("export"), _quiet():
        program = torch.onnx.export(subject.module, subject.inputs, dynamo=True, verbose=False)
        assert program is not None
        model = program.model_proto
    options = tilewright.Options(cache=False)
    with _stage("compile"), _compilation() as took:
        module = tilewright.compile(model, threads=1, options=options)
    given = _by_name(model, module, subject.inputs)
    with _stage("run"):
        outcome = _judged(subject, outcome, took, arrays(module(*given)))
    peer = _onnxruntime(model, dict(zip((spec.name for spec in module.manifest.inputs), given, strict=True)))
    seconds, peer_seconds = interleaved(lambda: module(*given), peer)
    return replace(outcome, seconds=seconds, peer_seconds=peer_seconds, slowest=_slowest(module, given))


def _through_compile(subject: Subject, outcome: Outcome) -> Outcome:
    import torch._dynamo
    from torch._dynamo.utils import counters

    from tilewright.compiler.dynamo import backend

    options = {"threads": 1, "options": tilewright.Options(cache=False)}
    compiled = torch.compile(subject.module, backend=backend, options=options)
    recurrent = torch._dynamo.config.patch(allow_rnn=True)  # as docs/how-to/torch.md says
    with recurrent, _warnings_of("tilewright.dynamo") as said, torch.inference_mode():
        with _stage("compile"), _quiet(), _compilation() as took:
            found = compiled(*subject.inputs)
        with _stage("run"):
            outcome = _judged(subject, outcome, took, arrays(found))
        breaks = [reason.strip().splitlines()[0] for reason in counters["graph_break"]]
        if not counters["stats"].get("unique_graphs"):
            raise StageError("compile", f"nothing is captured: {breaks[0] if breaks else 'no graph'}")
        if said:
            raise StageError("compile", "; ".join(dict.fromkeys(said)))
        seconds, peer_seconds = interleaved(lambda: compiled(*subject.inputs), lambda: subject.module(*subject.inputs))
    notes = f"{len(breaks)} kinds of graph breaks: {breaks[0]}" if breaks else ""
    return replace(outcome, seconds=seconds, peer_seconds=peer_seconds, notes=notes)


# Right or not -------------------------------------------------------------------------------------------------------


def _judged(subject: Subject, outcome: Outcome, took: Compilation, found: Sequence[Array]) -> Outcome:
    """`outcome` with the verdict: an error as large as torch's own in float32, up to a factor, is right too."""
    error, eager_error = errors(found, subject.exact), errors(subject.eager, subject.exact)
    allowed = max(subject.architecture.tolerance, 8 * eager_error)
    wrong = not error <= allowed
    return replace(
        outcome,
        state="wrong" if wrong else "right",
        reason=f"an error of {error:.2g}, torch has {eager_error:.2g}" if wrong else "",
        error=error,
        eager_error=eager_error,
        cpu_seconds=took.cpu_seconds,
        wall_seconds=took.wall_seconds,
        peak_bytes=took.peak_bytes,
    )


def errors(found: Sequence[Array], exact: Sequence[Array]) -> float:
    """The largest error of any result, relative to the largest magnitude of that result; infinite for other shapes.

    Elements that are not finite must be equal.
    """
    if [array.shape for array in found] != [array.shape for array in exact]:
        return float("inf")
    worst = 0.0
    for ours, true in zip(found, exact, strict=True):
        if true.size == 0:
            continue
        a, b = ours.astype(np.float64), true.astype(np.float64)
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        if finite.any():
            largest = np.abs(b[finite]).max() or 1.0
            error = np.abs(a[finite] - b[finite]).max() / largest
            worst = max(worst, float("inf") if np.isnan(error) else float(error))
    return worst


def arrays(found: Any) -> list[Array]:
    """The tensors of a result, in order, as arrays."""
    if isinstance(found, (torch.Tensor, np.ndarray)):
        return [np.asarray(found)]
    if isinstance(found, (tuple, list)):
        return [array for each in found for array in arrays(each)]
    return []


def _in_double(architecture: Architecture) -> list[Array]:
    """The results in float64; none where the module has float32 written into it."""
    module, inputs = architecture.built()
    try:
        with torch.inference_mode():
            return arrays(module.double()(*(x.double() if x.is_floating_point() else x for x in inputs)))
    except RuntimeError:
        return []


# Time and memory ----------------------------------------------------------------------------------------------------


@contextmanager
def _compilation() -> Iterator[Compilation]:
    took = Compilation()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is resident now
    before, cpu, wall = _resident("VmRSS"), time.process_time(), time.perf_counter()
    yield took
    took.cpu_seconds, took.wall_seconds = time.process_time() - cpu, time.perf_counter() - wall
    took.peak_bytes = max(0, _resident("VmHWM") - before)


def _resident(field_name: str) -> int:
    """Bytes of a field of /proc/self/status."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field_name)]
    return 1024 * int(line.split()[1])


def interleaved(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of both, called in turns after one call of each that is not timed."""
    ours(), peer()
    taken: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + TURN_SECONDS
    for _ in range(TURNS):
        for call, times in zip((ours, peer), taken, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return statistics.median(taken[0]), statistics.median(taken[1])


def _slowest(module: Any, given: Sequence[Array]) -> tuple[tuple[str, float], ...]:
    """The kernels that take most of a call, over all their launches, with their share."""
    shares: dict[str, float] = {}
    for launch in module.profile(*given, repeats=3):
        shares[launch.kernel] = shares.get(launch.kernel, 0.0) + launch.seconds
    total = sum(shares.values()) or 1.0
    return tuple(
        (name, round(shares[name] / total, 3)) for name in sorted(shares, key=shares.get, reverse=True)[:SHOWN]
    )


# The peer, and the inputs of an exported model ----------------------------------------------------------------------


def _by_name(model: Any, module: Any, inputs: Tensors) -> list[Array]:
    """The inputs that the compiled module reads; an exporter drops those that nothing needs."""
    exported = [value.name for value in model.graph.input]
    if len(exported) != len(inputs):
        raise StageError("export", f"the model has {len(exported)} inputs of {len(inputs)}")
    given = dict(zip(exported, map(np.asarray, inputs), strict=True))
    return [given[spec.name] for spec in module.manifest.inputs]


def _onnxruntime(model: Any, given: dict[str, Array]) -> Callable[[], object]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, given)


# What is said on the way --------------------------------------------------------------------------------------------


@contextmanager
def _stage(name: str) -> Iterator[None]:
    """Whatever is raised inside becomes a StageError. A CompileError is quoted in full, since it lists all reasons."""
    try:
        yield
    except StageError:
        raise
    except CompileError as error:
        raise StageError(name, f"{error.code}: {error}") from error
    except Exception as error:
        cause = error.__cause__ or error
        lines = str(cause).strip().splitlines() or [""]
        raise StageError(name, f"{type(cause).__name__}: {lines[0][:300]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what other packages warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _warnings_of(name: str) -> Iterator[list[str]]:
    """What a logger warns of inside."""
    said: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, handler = logging.getLogger(name), Keep(logging.WARNING)
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
