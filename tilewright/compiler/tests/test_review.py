"""One test per mistake that a review found: whole programs against the evaluator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.compiler.compile import compile_graph, rebuilt
from tilewright.compiler.stored import stored_graph
from tilewright.errors import InvalidFile
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Compute, Read, Tensor, select, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options
from tilewright.runtime.module import Module

RNG = np.random.default_rng(0)
UNCACHED = Options(cache=False)


def machine_with_small_caches(folder: Path, kilobytes: tuple[int, int, int] = (1, 8, 16), base: str = "host") -> str:
    """A machine with caches so small that streams, prefetches and blocks of k show on small tensors."""
    path = folder / "small.yaml"
    caches = "".join(
        f"  - {{name: {name}, bytes: {size}, ways: 8, line_bytes: 64, shared_by: 1, bytes_per_cycle: 64}}\n"
        for name, size in zip(("L1", "L2", "L3"), (each * 1024 for each in kilobytes), strict=True)
    )
    path.write_text(f"name: small\nextends: {resolve_cpu(base).name}\ncaches:\n{caches}")
    return str(path)


def agrees(graph: Graph, machine: str = "host", threads: int = 2) -> None:
    inputs = [RNG.uniform(-1, 1, static_shape(tensor.shape)).astype(np.float32) for tensor in graph.inputs]
    results = compile_graph(graph, machine, threads, UNCACHED)(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    for found, wanted in zip(results, evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_streamed_tensor_that_is_gathered_too(tmp_path: Path) -> None:
    b = GraphBuilder()
    x = b.input("x", (9000,), "f32")
    places = b.constant(RNG.integers(0, 9000, 9000))
    i = Axis("i", 9000)
    b.add(Compute(Tensor("y", (9000,), "f32"), (i,), x[Read(places, (i,))] + x[i]))
    agrees(b.finish([b.nodes[-1].output]), machine_with_small_caches(tmp_path))


def test_a_constant_that_only_the_stored_graph_reads_is_there_to_compile_again() -> None:
    b = GraphBuilder()
    x, i = b.input("x", (8,), "f32"), Axis("i", 8)
    never = b.constant(np.ones(3, np.float32))
    b.add(Compute(Tensor("y", (8,), "f32"), (i,), select(i >= 8, never[i - 8], x[i])))
    graph = b.finish([b.nodes[-1].output])
    first = compile_graph(graph, threads=1, options=UNCACHED).artifact
    again = rebuilt(rebuilt(first, "host", 2, UNCACHED), "host", 2, UNCACHED)
    values = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(Module(again, threads=2)(values), values)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"offset": -1}, r"constants\.\S+\.offset is -1, not a whole number"),
        ({"layout": {"shape": [4], "digits": [[0, 2]], "halo": [[0, 0]]}}, r"digits of dimension 0 hold 2 of 4"),
        ({"layout": {"shape": [4]}}, r"layout\.digits is missing"),
        ({"of": "elsewhere"}, "the stored graph is damaged: KeyError"),
    ],
)
def test_a_damaged_place_of_a_constant_is_the_files_fault(damage: dict[str, object], message: str) -> None:
    b = GraphBuilder()
    graph = b.finish([b.input("x", (8,), "f32") + b.constant(np.arange(8, dtype=np.float32))])
    artifact = compile_graph(graph, threads=1, options=UNCACHED).artifact
    stored = json.loads(artifact.graph)
    (constant,) = stored["constants"].values()
    constant.update(damage)
    with pytest.raises(InvalidFile, match=rf"graph\.json: .*{message}"):
        stored_graph(replace(artifact, graph=json.dumps(stored)))


@pytest.mark.covering(1)
@pytest.mark.parametrize(("a", "b", "total"), [("u8", "i8", "i32"), ("bf16", "bf16", "f32"), ("f32", "f32", "f32")])
@pytest.mark.parametrize("inner", ["both", "only a", "only b"])
def test_a_reduction_loop_that_indexes_one_factor(a: str, b: str, total: str, inner: str) -> None:
    builder = GraphBuilder()
    i, k, r, n = Axis("i", 9), Axis("k", 7), Axis("r", 6), Axis("n", 33)
    x_loops = (i, k) if inner == "only b" else (i, k, r)
    w_loops = (k, n) if inner == "only a" else (k, r, n)
    x = builder.input("x", static_shape(tuple(axis.extent for axis in x_loops)), a)
    w = builder.input("w", static_shape(tuple(axis.extent for axis in w_loops)), b)
    body = x[x_loops].cast(total) * w[w_loops].cast(total)
    builder.add(Compute(Tensor("y", (9, 33), total), (i, n), body, (k, r), "sum"))
    inputs = [RNG.integers(0, 9, static_shape(t.shape)).astype(dtypes.numpy_dtype(t.dtype)) for t in builder.inputs]
    graph = builder.finish([builder.nodes[-1].output])
    found = compile_graph(graph, threads=2, options=UNCACHED)(*inputs)
    (wanted,) = evaluate(graph, inputs)
    np.testing.assert_array_equal(found, wanted)  # small whole numbers: every sum is exact
