"""Random graphs, compiled and run, against the evaluator: every machine that this one can play, one thread and two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.covering import tries
from tests.random_graphs import random_graph, random_inputs
from tilewright.codegen.cpu.pipeline import generate
from tilewright.codegen.cpu.tests.execute import undefined_symbols
from tilewright.compiler.compile import build, compile_graph
from tilewright.compiler.tests.bounded import evaluate_bounded, violations
from tilewright.expr.graph import Graph
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module
from tilewright.machine.description import missing_features
from tilewright.machine.detect import host
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options
from tilewright.runtime.module import Module

SEEDS = tries(4, full=400)
OTHERS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
RUNNABLE = [name for name in OTHERS if not missing_features(resolve_cpu(name), host())]
Arrays = dict[str, np.ndarray[Any, Any]]


def compiled(graph: Graph, machine: str = "host", threads: int = 1) -> Module:
    return compile_graph(graph, machine, threads, replace(Options(), cache=False))


def outputs(module: Module, graph: Graph, inputs: Arrays) -> list[np.ndarray[Any, Any]]:
    found = module(*(inputs[tensor.name] for tensor in graph.inputs))
    return list(found) if isinstance(found, tuple) else [found]


def holds(graph: Graph, inputs: Arrays, found: list[np.ndarray[Any, Any]]) -> None:
    for tensor, result, expected in zip(graph.outputs, found, evaluate_bounded(graph, inputs), strict=True):
        wrong = violations(result, expected)
        assert not wrong.any(), f"{tensor}: {int(wrong.sum())} elements, first at {np.argwhere(wrong)[0].tolist()}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_graph(seed: int) -> None:
    graph = random_graph(seed)
    inputs = random_inputs(graph, seed)
    one = outputs(compiled(graph), graph, inputs)
    holds(graph, inputs, one)
    for first, second in zip(one, outputs(compiled(graph, threads=2), graph, inputs), strict=True):
        np.testing.assert_array_equal(first, second)  # threads share out tiles, never a sum


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", RUNNABLE)
@pytest.mark.parametrize("seed", range(1000, 1000 + SEEDS // 3))
def test_random_graph_for_another_machine(seed: int, machine: str) -> None:
    graph = random_graph(seed)
    inputs = random_inputs(graph, seed)
    holds(graph, inputs, outputs(compiled(graph, machine), graph, inputs))


@pytest.mark.parametrize("seed", range(2000, 2000 + SEEDS // 3))
def test_interpreter_agrees_on_the_same_tile_program(seed: int) -> None:
    """The interpreter also refuses reads of what nobody wrote, accesses out of bounds, and races of programs."""
    graph = random_graph(seed, nodes=3, points=600)
    inputs = random_inputs(graph, seed)
    module = compiled(graph, threads=2)
    flat = [np.ascontiguousarray(_stored(inputs[tensor.name])).reshape(-1) for tensor in graph.inputs]
    found = [np.zeros(spec.shape, _stored(np.zeros(0, result.dtype)).dtype).reshape(-1) for spec, result in zip(
        module.manifest.outputs, outputs(module, graph, inputs), strict=True)]  # fmt: skip
    constants = module.artifact.constants
    run_main(parse_module(module.artifact.program), flat, found, constants, races=True)
    shaped = [
        array.reshape(spec.shape).astype(bool)
        if spec.dtype == "bool"
        else _unsigned(array, spec.dtype).reshape(spec.shape)
        for array, spec in zip(found, module.manifest.outputs, strict=True)
    ]
    holds(graph, inputs, shaped)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["host", *OTHERS, "aarch64"])
@pytest.mark.parametrize("seed", range(3000, 3000 + SEEDS // 6))
def test_text_is_the_only_input_of_code_generation(seed: int, machine: str) -> None:
    """The printed program, parsed again, gives the bytes that the compilation gave, each time; they call nothing."""
    described, options = resolve_cpu(machine), replace(Options(), cache=False)
    first, second = (build(random_graph(seed), described, 2, options) for _ in range(2))
    assert first.program == second.program
    assert first.code == second.code == generate(parse_module(first.program)).code
    assert not undefined_symbols(first.code)


def _stored(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As a view holds it: bool as i8, unsigned integers without a sign."""
    if array.dtype == bool:
        return array.view(np.int8)
    return array.view(array.dtype.str.replace("u", "i")) if array.dtype.kind == "u" else array


def _unsigned(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    return array.view(array.dtype.str.replace("i", "u")) if dtype.startswith("u") else array
