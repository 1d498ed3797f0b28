"""Graphs for AMD GPUs: their distributed programs run by the interpreter, and become code that nothing here runs."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tilewright
from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.codegen.amdgpu.pipeline import generate
from tilewright.compiler import gpu
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement
from tilewright.errors import InvalidMachine
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, norm, pool
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import print_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options

RNG = np.random.default_rng(0)


def _network(b: GraphBuilder) -> Tensor:
    x = b.input("x", (1, 3, 8, 8), "f32")
    weights = b.constant(np.linspace(-1, 1, 108, dtype=np.float32).reshape(4, 3, 3, 3))
    y = elementwise.relu(conv.conv(x, weights, pads=1))
    return norm.softmax(pool.global_average_pool(y), axis=1)


GRAPHS = {
    "gelu": lambda b: elementwise.gelu(b.input("x", (7, 33), "f32")),
    "long softmax": lambda b: norm.softmax(b.input("x", (3, 1300), "f32")),
    "matmul": lambda b: linalg.matmul(b.input("x", (13, 17), "f32"), b.input("w", (17, 9), "f32")),
    "network": _network,
}


def prepared(name: str, machine: str) -> tuple[Graph, Plan, Placement, ModuleOp]:
    """A graph of the table, the plan of it, where its buffers lie, and its distributed program."""
    b = GraphBuilder()
    graph = b.finish([GRAPHS[name](b)])
    target = resolve(machine)
    assert isinstance(target, Gpu)
    plan = make_plan(graph, target, 1)
    placement = Placement(plan)
    program = gpu.tile_program(plan, placement, target)
    gpu.distribute(program, Options(verify_each=True))
    return graph, plan, placement, program


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["gfx1100", "gfx942"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_agree_with_the_evaluator(name: str, machine: str) -> None:
    graph, plan, placement, program = prepared(name, machine)
    arrays = [RNG.standard_normal(static_shape(tensor.shape)).astype(np.float32) for tensor in graph.inputs]
    found = [np.zeros(static_shape(each.shape), dtypes.numpy_dtype(each.dtype)) for each in graph.outputs]
    flat = [each.reshape(-1) for each in found]
    run_main(program, [array.reshape(-1) for array in arrays], flat, placement.packed(plan))
    for one, wanted in zip(found, evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=2e-4, atol=2e-5)
    code = generate(program)
    assert all(each.vector_spills == each.private_bytes == 0 for each in code.resources.values())
    assert [launch.kernel for launch in code.launches] == [kernel.name for kernel in code.kernels]


PRODUCTS = {
    "gfx1100": "wmmar3_16x16x16_f16_f32",
    "gfx1201": "wmmar4_16x16x16_f16_f32",
    "gfx942": "mfma_16x16x16_f16_f32",
    "gfx90a": "mfma_16x16x16_f16_f32",
    "gfx908": "mfma_16x16x16_f16_f32",
}


@pytest.mark.parametrize(("machine", "name"), [("gfx908", "16x16x8_bf16_f32"), ("gfx90a", "16x16x16_bf16_f32")])
def test_products_of_bf16_take_the_instruction_of_their_processor(machine: str, name: str) -> None:
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (37, 50), "bf16"), b.input("w", (50, 72), "bf16"))])
    target = resolve(machine)
    assert isinstance(target, Gpu)
    plan = make_plan(graph, target, 1)
    program = gpu.tile_program(plan, Placement(plan), target)
    assert f'tile.dot "mfma_{name}"' in print_module(program)
    gpu.distribute(program, Options())
    x, w = (RNG.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((37, 50), (50, 72)))
    found = np.zeros(37 * 72, ml_dtypes.bfloat16)
    run_main(program, [x.reshape(-1), w.reshape(-1)], [found], Placement(plan).packed(plan))
    np.testing.assert_array_equal(found.reshape(37, 72), evaluate(graph, [x, w])[0])
    assert "v_mfma_f32" in generate(program).assembly


@pytest.mark.parametrize("machine", PRODUCTS)
def test_products_reach_matrix_instructions(machine: str) -> None:
    """Ragged in every dimension; small whole numbers, exact in any order."""
    b = GraphBuilder()
    graph = b.finish([linalg.matmul(b.input("x", (37, 50), "f16"), b.input("w", (50, 72), "f16"))])
    target = resolve(machine)
    assert isinstance(target, Gpu)
    plan = make_plan(graph, target, 1)
    placement = Placement(plan)
    program = gpu.tile_program(plan, placement, target)
    assert f'tile.dot "{PRODUCTS[machine]}"' in print_module(program)
    gpu.distribute(program, Options())
    x, w = (RNG.integers(-3, 4, shape).astype(np.float16) for shape in ((37, 50), (50, 72)))
    found = np.zeros(37 * 72, np.float16)
    run_main(program, [x.reshape(-1), w.reshape(-1)], [found], placement.packed(plan))
    np.testing.assert_array_equal(found.reshape(37, 72), evaluate(graph, [x, w])[0])
    code = generate(program)
    assert PRODUCTS[machine].split("_")[0][:4] in code.assembly  # v_wmma or v_mfma
    assert all(each.vector_spills == 0 for each in code.resources.values())


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["gfx90a", "gfx942", "gfx1100", "gfx1201"])
@pytest.mark.parametrize(("sizes", "by_columns"), [((7, 17, 13), ""), ((17, 3, 5), "a"), ((101, 67, 131), "b")])
def test_products_of_odd_sizes(sizes: tuple[int, int, int], by_columns: str, machine: str) -> None:
    """On tiles of the grid that every GPU has; the rule that deduces a tile is only one that proposes some."""
    (m, n, k), b = sizes, GraphBuilder()
    x = b.input("x", (k, m) if by_columns == "a" else (m, k), "f16")
    w = b.input("w", (n, k) if by_columns == "b" else (k, n), "f16")
    graph = b.finish([linalg.matmul(x, w, transpose_a=by_columns == "a", transpose_b=by_columns == "b")])
    target = resolve(machine)
    assert isinstance(target, Gpu)
    plan = make_plan(graph, target, 1)
    assert [each.by for decision in plan.decisions for each in decision.proposals] == ["the MMA deduction"]
    placement = Placement(plan)
    program = gpu.tile_program(plan, placement, target)
    gpu.distribute(program, Options(verify_each=True))
    arrays = [RNG.integers(-3, 4, static_shape(each.shape)).astype(np.float16) for each in graph.inputs]
    found = np.zeros(m * n, np.float16)
    run_main(program, [each.reshape(-1) for each in arrays], [found], placement.packed(plan))
    np.testing.assert_array_equal(found.reshape(m, n), evaluate(graph, arrays)[0])


def test_forms_of_a_program(tmp_path: Path) -> None:
    *_, program = prepared("gelu", "gfx1201")
    source, target = tmp_path / "gelu.tile", tmp_path / "gelu.o"
    source.write_text(print_module(program))
    shown = CliRunner().invoke(app, ["compile", str(source), "--emit", "asm"])
    assert (shown.exit_code, "v_" in shown.output) == (0, True)
    assert "amdgpu_kernel" in CliRunner().invoke(app, ["compile", str(source), "--emit", "llvm"]).output
    assert CliRunner().invoke(app, ["compile", str(source), "--emit", "object", "-o", str(target)]).exit_code == 0
    assert target.read_bytes()[:4] == b"\x7fELF"
    refused = CliRunner().invoke(app, ["compile", str(source), "--emit", "ptx"])
    assert refused.exit_code == 2


def test_modules_that_nothing_runs_are_refused() -> None:
    graph, *_ = prepared("gelu", "gfx1201")
    with pytest.raises(InvalidMachine, match="modules for gfx1201 cannot be run: code for amdgcn-amd-amdhsa is made"):
        tilewright.compile(graph, machine="gfx1201")
