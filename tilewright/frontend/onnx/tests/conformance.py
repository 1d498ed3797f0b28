"""The node tests of the onnx package, run through the importer and any executor.

``run(executor)`` imports every test model, makes it executable with ``executor(graph) -> (arrays -> arrays)`` and
compares the outputs with the expected ones. Inputs that an operator needs when it is compiled (a target shape, axes)
are fixed to their test values. Run as a script, this file runs all with the evaluator, or with ``--compiled`` through
generated code, and prints a table.
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from tilewright.errors import CompileError, Unsupported
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.frontend.onnx import UnsupportedModel, import_model

Arrays = Sequence[np.ndarray[Any, Any]]
Executor = Callable[[Graph], Callable[[Arrays], Arrays]]


@dataclass(frozen=True)
class Result:
    """`outcome` is "passed", "failed" or "unsupported", with the reason; `fixed` are the inputs made constants."""

    name: str
    outcome: str
    reason: str = ""
    fixed: tuple[str, ...] = ()


@dataclass
class Summary:
    results: list[Result] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        return sum(result.outcome == outcome for result in self.results)

    def failures(self) -> list[Result]:
        return [result for result in self.results if result.outcome == "failed"]

    def reasons(self) -> Counter[str]:
        """How often each reason for "unsupported" occurs."""
        return Counter(result.reason for result in self.results if result.outcome == "unsupported")

    def table(self) -> str:
        lines = [f"{outcome:12} {self.count(outcome):5}" for outcome in ("passed", "failed", "unsupported")]
        lines.append(f"{'total':12} {len(self.results):5}")
        lines += [f"  failed: {result.name}: {result.reason}" for result in self.failures()]
        lines += [f"  {count:4} x {reason}" for reason, count in self.reasons().most_common()]
        return "\n".join(lines)


def evaluator(graph: Graph) -> Callable[[Arrays], Arrays]:
    """The reference executor."""
    return lambda arrays: evaluate(graph, arrays)


def cases(every: int = 1, contains: str = "") -> list[Any]:
    """The node tests in order, or one in `every`, or those whose name contains a text."""
    from onnx.backend.test.loader import load_model_tests

    with making_node_tests():
        found = load_model_tests(kind="node")
    return [case for case in found if contains in case.name][::every]


@contextmanager
def making_node_tests() -> Iterator[None]:
    """Around the first import of the node tests, which makes them in a quarter of the time.

    Of 8 s, 5 s would be spent in the windows of three images of 32 x 32 x 32 one by one, and 1 s on the source of each
    test, for a documentation: neither is done here.
    """
    from onnx.backend.test.case import base
    from onnx.reference.ops import op_pool_common

    with (
        warnings.catch_warnings(),
        mock.patch.object(op_pool_common, "pool", partial(pool_at_once, op_pool_common.pool)),
        mock.patch.object(base, "process_snippet", return_value=("", "")),
    ):
        warnings.simplefilter("ignore")
        yield


def pool_at_once(
    pool: Callable[..., Any],
    padded: np.ndarray[Any, Any],
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    out_shape: Sequence[int],
    pooling_type: str,
    *more: Any,
    p: int = 1,
    **options: Any,
) -> Any:
    """What the `pool` of the onnx package gives, with all windows at once where none is padded or dilated."""
    if more or options:
        return pool(padded, x_shape, kernel, strides, out_shape, pooling_type, *more, p=p, **options)
    axes = tuple(range(2, padded.ndim))
    steps = (slice(None), slice(None), *(slice(None, None, step) for step in strides or [1] * len(axes)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), axis=axes)[steps]
    inside = tuple(range(-len(axes), 0))
    if pooling_type == "AVG":
        return np.mean(windows, axis=inside)
    if pooling_type == "MAX":
        return np.max(windows, axis=inside)
    assert pooling_type == "LPPOOL"
    return np.sum(np.abs(windows) ** p, axis=inside) ** padded.dtype.type(1 / p)


def run(executor: Executor = evaluator, *, every: int = 1, contains: str = "") -> Summary:
    return Summary([run_case(case, executor) for case in cases(every, contains)])


def run_case(case: Any, executor: Executor) -> Result:
    fixed: tuple[str, ...] = ()
    try:
        for inputs, expected in case.data_sets:
            names = [value.name for value in case.model.graph.input]
            given = {name: _plain(value) for name, value in zip(names, inputs, strict=False)}
            graph, fixed = _imported(case.model, given)
            compiled = executor(graph)
            results = compiled([np.asarray(given[tensor.name]) for tensor in graph.inputs])
            for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
                problem = _difference(np.asarray(result), _plain(wanted), case.rtol, case.atol)
                if problem:
                    return Result(case.name, "failed", f"output {number}: {problem}", fixed)
    except Unsupported as error:
        return Result(case.name, "unsupported", _reason(error), fixed)
    except CompileError as error:
        return Result(case.name, "failed", str(error), fixed)
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{trace.filename.rsplit('/', 1)[-1]}:{trace.lineno}"
        return Result(case.name, "failed", f"{type(error).__name__}: {error} at {place}", fixed)
    return Result(case.name, "passed", fixed=fixed)


def _imported(model: Any, given: dict[str, Any]) -> tuple[Graph, tuple[str, ...]]:
    """The graph, with as few inputs fixed as the import needs."""
    fixed: set[str] = set()
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    while True:
        shapes = {name: array.shape for name, array in arrays.items() if name not in fixed}
        try:
            return import_model(model, shapes, values={name: arrays[name] for name in fixed}), tuple(fixed)
        except UnsupportedModel as error:
            needed = {name for problem in error.problems for name in problem.needs} - fixed
            others = [problem for problem in error.problems if not problem.needs]
            if others or not needed:
                raise
            fixed |= needed


def _plain(value: Any) -> Any:
    """Arrays of the test data, some of which is given as TensorProto or scalar."""
    from onnx import TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic | int | float) else value


def _reason(error: Unsupported) -> str:
    if isinstance(error, UnsupportedModel):
        return "; ".join(sorted({f"{p.operator}: {p.reason}" for p in error.problems}))
    return error.message


def _difference(result: np.ndarray[Any, Any], wanted: Any, rtol: float, atol: float) -> str:
    """What differs, or nothing."""
    wanted = np.asarray(wanted)
    if result.dtype != wanted.dtype:
        return f"dtype {result.dtype}, expected {wanted.dtype}"
    if result.shape != wanted.shape:
        return f"shape {result.shape}, expected {wanted.shape}"
    if wanted.dtype.kind in "fV":
        if wanted.dtype.itemsize == 2:  # two roundings of values near 1, wherever they happen inside an operator
            step = 2.0**-7 if wanted.dtype.kind == "V" else 2.0**-10
            rtol, atol = max(rtol, 2 * step), max(atol, step)
        if wanted.dtype == np.float32:  # a sum that cancels is off by a unit of the largest ones
            atol = max(atol, 2.0**-23 * float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)))
        result, wanted = result.astype(np.float64), wanted.astype(np.float64)
        if not np.allclose(result, wanted, rtol=rtol, atol=atol, equal_nan=True):
            with np.errstate(all="ignore"):
                return f"largest error {np.nanmax(abs(result - wanted)):.3g}"
        return ""
    return "" if np.array_equal(result, wanted) else f"{int(np.sum(result != wanted))} elements differ"


def compiled(graph: Graph) -> Callable[[Arrays], Arrays]:
    """The executor that compiles the graph for this machine."""
    import tilewright

    module = tilewright.compile(graph)

    def call(arrays: Arrays) -> Arrays:
        results = module(*arrays)
        return results if isinstance(results, list | tuple) else [results]

    return call


def main(arguments: list[str]) -> None:
    """``conformance.py [--compiled] [PART OF A NAME]``."""
    executor = compiled if "--compiled" in arguments else evaluator
    names = [argument for argument in arguments if not argument.startswith("--")]
    began = time.monotonic()
    summary = run(executor, contains=names[0] if names else "")
    sys.stdout.write(f"{summary.table()}\n{time.monotonic() - began:.1f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
