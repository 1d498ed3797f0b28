"""AArch64 code, run by qemu-user where it is installed, against interpreter and bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.random_graphs import random_graph, random_inputs
from tests.random_kernels import random_kernel
from tilewright.codegen.cpu.pipeline import generate
from tilewright.codegen.cpu.tests.emulate import Array, missing, run_aarch64
from tilewright.codegen.cpu.tests.execute import compile_program
from tilewright.compiler.compile import build
from tilewright.compiler.tests.bounded import evaluate_bounded, violations
from tilewright.compiler.tests.test_compile_functions import check_function, function_graph
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.graph import Graph
from tilewright.expr.ops import catalogue
from tilewright.expr.text import parse_graph
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"without {missing()} AArch64 code is unverified")


@pytest.mark.parametrize("seed", range(500, 512))
def test_random_programs(seed: int, tmp_path: Path) -> None:
    kernel = random_kernel(seed)
    wanted = kernel.outputs()
    run_main(kernel.module, kernel.inputs, wanted)
    made = compile_program(kernel.module, "aarch64")
    for found, expected in zip(run_aarch64(made, kernel.inputs, kernel.outputs(), tmp_path), wanted, strict=True):
        if found.dtype.kind == "i":
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=1e-3, atol=1e-4)


GRAPHS = {
    **{f"random-{seed}": random_graph(seed, points=2000) for seed in range(600, 612)},
    **{
        short: catalogue.build(short, dtype=dtype, **sizes)
        for short, dtype, sizes in (
            ("GMM", "f32", {"m": 13, "n": 31, "k": 29}),
            ("GMM", "bf16", {"m": 5, "n": 17, "k": 9}),
            ("C2D", "f32", {"batch": 1, "c": 5, "size": 7, "k": 9}),
            ("DEP", "f16", {"batch": 1, "c": 5, "size": 7, "multiplier": 1}),
        )
    },
}


def run_graph(graph: Graph, arrays: list[Array], folder: Path, features: tuple[str, ...] = ()) -> list[Array]:
    machine = resolve_cpu("aarch64")
    machine = replace(machine, features=machine.features | set(features))
    artifact = build(graph, machine, 1, replace(Options(), cache=False))
    made = generate(parse_module(artifact.program))
    shapes = [np.zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in artifact.manifest.outputs]
    return run_aarch64(made, arrays, shapes, folder, artifact.constants.tobytes())


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]
    inputs = random_inputs(graph)
    found = run_graph(graph, [inputs[tensor.name] for tensor in graph.inputs], tmp_path)
    for tensor, result, expected in zip(graph.outputs, found, evaluate_bounded(graph, inputs), strict=True):
        wrong = violations(result, expected)
        assert not wrong.any(), f"{tensor}: {int(wrong.sum())} of {wrong.size} wrong"


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i8", "u64"])
def test_functions(dtype: str, tmp_path: Path) -> None:
    graph, names, arrays = function_graph(dtype)
    for name, result in zip(names, run_graph(graph, arrays, tmp_path), strict=True):
        check_function(name, dtype, *arrays, result)


@pytest.mark.parametrize(("a", "b"), [("i8", "i8"), ("u8", "u8"), ("u8", "i8")])
def test_dot_products_of_bytes(a: str, b: str, tmp_path: Path) -> None:
    graph = parse_graph(f"""
        input X: {a}[7, 30]
        input W: {b}[30, 19]
        Y: i32[i:7, j:19] += i32(X[i, k]) * i32(W[k, j]) over k:30
        output Y""")
    inputs = random_inputs(graph)
    arrays = [inputs[tensor.name] for tensor in graph.inputs]
    (found,) = run_graph(graph, arrays, tmp_path, ("dotprod", "i8mm"))
    x, w = (array.astype(np.int32) for array in arrays)
    np.testing.assert_array_equal(found, x @ w)
