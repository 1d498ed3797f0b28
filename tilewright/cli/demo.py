"""`tilewright demo`: a small network through the whole compiler, without any extra package."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import typer

from tilewright.cli.arguments import AsJson, Threads
from tilewright.cli.bench import call_seconds
from tilewright.cli.console import NEGATIVE, progress, show_json
from tilewright.cli.printing import say
from tilewright.cli.run import TOLERANCE, difference
from tilewright.options import Options

EPILOG = """\
\b
example: tilewright demo --threads 1
exit status: 0 the result is right, 1 it is not
"""

_ROWS, _WIDTHS = 32, (784, 512, 10)  # the classic network for handwritten digits


def demo(threads: Threads = None, as_json: AsJson = False) -> None:
    """Build a two-layer perceptron, compile it, run it, check it against the reference, and time it beside NumPy.

    `make demo` in the source tree does the same with ResNet-18 and a BERT layer, beside onnxruntime.
    """
    from tilewright.cli.sample import perceptron, perceptron_in_numpy
    from tilewright.compiler.compile import compile_graph
    from tilewright.expr.evaluate import evaluate

    graph = perceptron(_ROWS, _WIDTHS)
    start = time.perf_counter()
    with progress("compiling"):
        module = compile_graph(graph, "host", threads, Options(cache=False))
    compile_seconds = time.perf_counter() - start
    x = np.random.default_rng(0).standard_normal((_ROWS, _WIDTHS[0]), np.float32)
    result = module(x)
    (expected,) = evaluate(graph, [x], precise=True, wide=True)
    found = difference("probabilities", result, expected, TOLERANCE["f32"])
    ours = statistics.median(call_seconds(lambda: module(x, out=result), 0.5))
    numpys = statistics.median(call_seconds(lambda: perceptron_in_numpy(graph, x), 0.5))
    record: dict[str, Any] = {
        "compile_seconds": compile_seconds,
        "largest_error": found.absolute_error,
        "ok": found.ok,
        "median_seconds": ours,
        "numpy_median_seconds": numpys,
        "threads": module.threads,
    }
    if as_json:
        show_json(record)
    else:
        say(f"compiled  {' → '.join(map(str, _WIDTHS))} perceptron, batch of {_ROWS}, in {compile_seconds:.2f} s")
        say(f"checked   largest error {found.absolute_error:.1e}: {'ok' if found.ok else 'TOO LARGE'}")
        say(f"timed     {ours * 1e6:.0f} µs a call with {module.threads} threads; NumPy {numpys * 1e6:.0f} µs")
        say("next      tilewright compile model.onnx -o model.twm; tilewright explain model.twm", indent=10)
    if not found.ok:
        raise typer.Exit(NEGATIVE)
