"""Sums that follow another reduction in its pass: softmax and layer norm of odd rows, against f64, wherever they run.

Rules join passes of long rows only, so that tests decide it in their place. One matrix has a row of every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tilewright.compiler.gpu_relayouts  # noqa: F401 - it would keep what `on_chunks` puts in place while it is imported
import tilewright.compiler.rows as rows_module
import tilewright.operator.rules.cpu_rows as cpu_rows
from tests.covering import tries
from tilewright.codegen.cpu.pipeline import assembly
from tilewright.compiler.compile import build, compile_graph
from tilewright.decision import Decision
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import norm
from tilewright.expr.ops.reduce import reduce_max
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module
from tilewright.layouts.blocked import Blocked
from tilewright.machine import resolve_cpu
from tilewright.operator.rewrites.following import with_following
from tilewright.operator.rules.gpu_rows import kernel_on_blocks
from tilewright.operator.rules.gpu_rows_time import RowsTile
from tilewright.operator.statements import Statements, inner_loops, outer_loops
from tilewright.options import Options
from tilewright.runtime.module import Module
from tilewright.tiles.kernel import Kernel, joined

Array = np.ndarray[Any, Any]
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
HALF_ULP = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
LENGTHS = st.sampled_from([1, 2, 7, 16, 17, 63, 64, 65, 130, 257, 331])
UNCACHED = Options(cache=False)


def rows(points: int, dtype: str, seed: int) -> Array:
    """Ordinary, far, large, tiny, equal and growing numbers; some minus infinity, nothing else, infinity, no number.

    Squares of what is far, large or equal have no sum in f32 from which anything could be subtracted.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((10, points))
    x[1] += 1000 if dtype == "f16" else 1e5
    x[2] *= 1e4 if dtype == "f16" else 1e15
    x[3] *= 1e-7 if dtype == "f16" else 1e-30
    x[4] = 1000 if dtype == "f16" else 1e24
    x[5] += np.linspace(-300, 300, points)
    x[6, rng.integers(points, size=points // 2)] = -np.inf
    x[7] = -np.inf
    x[8, rng.integers(points)] = np.inf
    x[9, rng.integers(points)] = np.nan
    return x.astype(NUMPY[dtype])


def softmax(points: int, dtype: str) -> Graph:
    b = GraphBuilder()
    return b.finish([norm.softmax(b.input("x", (10, points), dtype))])


def layer_norm(points: int, dtype: str) -> Graph:
    b = GraphBuilder()
    x, scale, bias = b.input("x", (10, points), dtype), b.input("s", (points,), dtype), b.input("b", (points,), dtype)
    return b.finish([norm.layer_norm(x, scale, bias)])


def inputs_of(graph: Graph, dtype: str, seed: int) -> list[Array]:
    points = int(graph.inputs[0].shape[1])  # type: ignore[arg-type]
    return [rows(points, dtype, seed), *(np.full(points, number, NUMPY[dtype]) for number in (1, 0))][
        : len(graph.inputs)
    ]


def expected(graph: Graph, x: Array, dtype: str) -> tuple[Array, Array]:
    """The result in f64, and how far from it a result may be (Higham 2002, section 4.2: sums of random errors).

    The norm divides errors of the mean, which grow with the numbers, by the deviation.
    """
    unit = HALF_ULP["f64" if dtype == "f64" else "f32"] * (16 + 2 * np.sqrt(x.shape[1]))
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        if len(graph.inputs) == 1:
            power = np.exp(x - x.max(-1, keepdims=True))
            result = power / power.sum(-1, keepdims=True)
            error = unit * (1 + np.minimum(x.max(-1, keepdims=True) - x, 800)) * result + 1e-37
        else:
            centred = x - x.mean(-1, keepdims=True)
            deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
            result = centred / deviation
            error = unit * (2 + abs(x).max(-1, keepdims=True) / deviation) * (1 + abs(result))
    return result, error + 2 * HALF_ULP[dtype] * abs(result) + (2.0**-24 if dtype == "f16" else 0)


def holds(graph: Graph, found: Array, x: Array, dtype: str) -> None:
    wanted, error = expected(graph, x, dtype)
    found = found.astype(np.float64)
    known = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isnan(found), ~known)
    apart = abs(found - wanted)[known] / error[known]
    assert not apart.size or apart.max() <= 1, np.argwhere((abs(found - wanted) > error) & known)[:3]


GRAPHS = {"softmax": softmax, "layer norm": layer_norm}


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4"])
def test_the_largest_value_of_a_softmax_takes_one_instruction(machine: str) -> None:
    """The sum has every NaN, so that none needs to win; where the largest value is a result, one does."""
    b = GraphBuilder()
    x = b.input("x", (10, 256), "f32")
    both = b.finish([norm.softmax(x), reduce_max(x, [1])])
    programs = [build(graph, resolve_cpu(machine), 1, UNCACHED).program for graph in (softmax(256, "f32"), both)]
    assert ["vcmp" in assembly(parse_module(program)) for program in programs] == [False, True]


# CPUs -----------------------------------------------------------------------------------------------------------------


@contextmanager
def always_joined() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_rows, "WORTH", 0.0)
        yield


@pytest.mark.parametrize("name", GRAPHS)
@example(points=65, dtype="f16", threads=1, seed=0)  # one element in the last step of a lane that has several
@given(points=LENGTHS, dtype=st.sampled_from([*NUMPY]), threads=st.integers(1, 2), seed=st.integers(0, 999))
@settings(max_examples=tries(3, full=15), deadline=None)
def test_on_a_cpu_and_in_the_interpreter(name: str, points: int, dtype: str, threads: int, seed: int) -> None:
    graph = GRAPHS[name](points, dtype)
    with always_joined():
        module = compile_graph(graph, "host", threads, UNCACHED)
    assert (points < 64) or "in one pass with" in module.explain(all=True)
    arrays = inputs_of(graph, dtype, seed)
    holds(graph, np.asarray(module(*arrays)), arrays[0], dtype)
    holds(graph, interpreted(module, arrays), arrays[0], dtype)


def interpreted(module: Module, arrays: list[Array]) -> Array:
    found = np.zeros(arrays[0].size, arrays[0].dtype)
    flat = [array.reshape(-1) for array in arrays]
    run_main(parse_module(module.artifact.program), flat, [found], module.artifact.constants, races=True)
    return found.reshape(arrays[0].shape)


# GPUs -----------------------------------------------------------------------------------------------------------------


def in_chunks(statements: Statements, *_: Any) -> tuple[Kernel, Decision]:
    """Rows in at least two chunks, whose sums follow others in their passes: a row to a warp, or two."""
    statements = with_following(statements)
    followers = tuple(each.name for each in statements if each.follows is not None)
    inner, outer = inner_loops(statements), outer_loops(statements)
    if not inner:
        return kernel_on_blocks(statements, RowsTile()), Decision("tile", "", "")
    points = 1 << min(7, (inner[0].size - 1).bit_length() - 1)
    if points < 64:
        tile = RowsTile({inner[0].name: points}, Blocked((1,), (32,), (1,), (0,)), joined=followers)
    else:
        threads = Blocked((1, 2), (2, 16), (1, 1), (1, 0))
        tile = RowsTile({outer[0].name: 2, inner[0].name: points}, threads, joined=followers)
    kernel = kernel_on_blocks(statements, tile)
    assert points == inner[0].size or set(joined(kernel)) == set(followers)
    return kernel, Decision("tile", "", "")


@contextmanager
def on_chunks(schedule: Callable[..., tuple[Kernel, Decision]] = in_chunks) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "schedule_statements", schedule)
        yield


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", GRAPHS)
@given(points=LENGTHS, dtype=st.sampled_from([*NUMPY]), seed=st.integers(0, 999))
@settings(max_examples=4, deadline=None)
def test_on_a_gpu(name: str, machine: str, points: int, dtype: str, seed: int) -> None:
    graph = GRAPHS[name](points, dtype)
    with on_chunks():
        module = compile_graph(graph, machine, options=UNCACHED, device="emulator")
    arrays = inputs_of(graph, dtype, seed)
    holds(graph, np.asarray(module(*arrays)), arrays[0], dtype)
