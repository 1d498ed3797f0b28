"""`python -m examples.demo`: two real networks from PyTorch through ONNX to machine code, beside onnxruntime.

Needs the extra `demo`. Times are medians of calls that take turns, on equally many threads, each pinned to its own
core; a machine that does other work meanwhile makes them longer for both. Exit status: 0 right, 1 a wrong result.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import tilewright
from examples.networks import export_onnx
from tilewright.compiler.compile import compile_graph, import_any
from tilewright.expr.evaluate import evaluate
from tilewright.runtime.pool import affinity, default_threads

NETWORKS = {"resnet18": "ResNet-18", "bert-layer": "BERT-base layer"}
TOLERANCE = 1e-4  # of the largest output: what sums of some thousand rounded f32 terms stay below
TURNS = 30

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """What the demo found out about one network. `error` is relative to the largest magnitude of the exact output."""

    title: str
    compile_seconds: float
    seconds: float
    peer_seconds: float
    error: float


def main() -> int:
    console, threads = Console(), default_threads()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, title in NETWORKS.items():
            with console.status(f"{title} …") if console.is_terminal else nullcontext():
                rows.append(measure(name, title, Path(folder), threads))
    console.print(_table(rows, threads))
    return int(any(not row.error <= TOLERANCE for row in rows))


def measure(name: str, title: str, folder: Path, threads: int) -> Row:
    """Export, compile, check and time one network."""
    path = folder / f"{name}.onnx"
    export_onnx(name, str(path))
    start = time.perf_counter()
    graph = import_any(path)
    # torch is loaded, and with it OpenMP, whose workers spin for milliseconds after a call: in the other's turn.
    options = tilewright.Options(cache=False, openmp=False)
    module = compile_graph(graph, threads=threads, options=options)
    compile_seconds = time.perf_counter() - start
    shape = module.manifest.inputs[0].shape
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    result = module(x)
    (exact,) = evaluate(graph, [x], precise=True, wide=True)
    error = float(np.abs(result - exact).max() / np.abs(exact).max())
    peer = onnxruntime_call(path, module.manifest.inputs[0].name, x, threads)
    with caller_on_its_core(threads):
        ours, theirs = medians(lambda: module(x, out=result), peer)
    return Row(title, compile_seconds, ours, theirs, error)


def onnxruntime_call(path: Path, name: str, x: Array, threads: int) -> Callable[[], Any]:
    """A call of the model in onnxruntime, its input bound once, its threads pinned as ours are."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    cores = affinity()
    if 1 < threads <= len(cores):  # the caller is the first thread; onnxruntime counts processors from 1
        pinned = ";".join(str(core + 1) for core in cores[1:threads])
        options.add_session_config_entry("session.intra_op_thread_affinities", pinned)
    options.add_session_config_entry("session.force_spinning_stop", "1")  # spin in a call, not while it is our turn
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input(name, x)
    binding.bind_output(session.get_outputs()[0].name, "cpu")
    return lambda: session.run_with_iobinding(binding)


@contextmanager
def caller_on_its_core(threads: int) -> Iterator[None]:
    """Keep the calling thread on the first core, away from onnxruntime's pinned workers; both use it as a thread."""
    cores = affinity()
    if 1 < threads <= len(cores) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores[0]})
    try:
        yield
    finally:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)


def medians(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of two calls that take turns, so that a slow moment of the machine meets both."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(TURNS + 3):
        for call, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            call()
            if turn >= 3:  # the first turns warm up caches and threads
                taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def _table(rows: list[Row], threads: int) -> Table:
    table = Table(title=f"{threads} threads, batch 1, f32, random weights; ratio above 1: tilewright is faster")
    table.add_column("model")
    for heading in ("compiled in", "tilewright", "onnxruntime", "ratio", "largest error"):
        table.add_column(heading, justify="right")
    for row in rows:
        verdict = "" if row.error <= TOLERANCE else " WRONG"
        table.add_row(
            row.title,
            f"{row.compile_seconds:.1f} s",
            f"{row.seconds * 1e3:.2f} ms",
            f"{row.peer_seconds * 1e3:.2f} ms",
            f"{row.peer_seconds / row.seconds:.2f}",
            f"{row.error:.1e}{verdict}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
