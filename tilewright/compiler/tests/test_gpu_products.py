"""Products of graphs on the blocks of a GPU, run by the emulator without diagnostics, against the evaluator."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.covering import some
from tilewright import emulator
from tilewright.codegen.nvptx import ptxas
from tilewright.compiler.make_plan import make_plan
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, norm, pool, shape
from tilewright.instruction.relayout import PREFIX
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options
from tilewright.runtime.module import Module

Build = Callable[[GraphBuilder], Tensor]
Array = np.ndarray[Any, Any]

TOLERANCE = {"f16": 4e-3, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-13, "i32": 0.0}  # of the largest result


def graph_of(build: Build) -> Graph:
    b = GraphBuilder()
    return b.finish([build(b)])


def arrays_of(graph: Graph, rng: np.random.Generator) -> list[Array]:
    found = []
    for tensor in graph.inputs:
        extents, dtype = static_shape(tensor.shape), dtypes.numpy_dtype(tensor.dtype)
        whole = rng.integers(-3, 4, extents) if tensor.dtype[0] in "iu" else rng.standard_normal(extents)
        found.append(whole.astype(dtype))
    return found


def check(build: Build, machine: str = "sm_80", tolerance: float = 0.0, **options: Any) -> Module:
    """Run in the emulator, which raises for anything it finds, and compare with the evaluator."""
    graph = graph_of(build)
    arrays = arrays_of(graph, np.random.default_rng(0))
    module = tilewright.compile(graph, machine=machine, options=Options(cache=False, verify_each=True, **options))
    found, wanted = (array.astype(np.float64) for array in (module(*arrays), evaluate(graph, arrays)[0]))
    limit = tolerance or TOLERANCE[graph.outputs[0].dtype]
    assert np.abs(found - wanted).max() <= limit * max(1.0, np.abs(wanted).max())
    ptxas.check(ptx(module), next(line for line in ptx(module).splitlines() if line.startswith(".target")).split()[1])
    return module


def ptx(module: Module) -> str:
    return module.artifact.code.decode()


def products(module: Module) -> list[dict[str, Any]]:
    """What was decided about the products of a module."""
    return list(json.loads(module.artifact.plan)["products"].values())


def product(
    dtype: str, sizes: tuple[int, int, int], transposes: str = "", batch: tuple[int, ...] = (), shared: bool = False,
    epilogue: str = "",
) -> Build:  # fmt: skip
    """A product of two inputs with what follows it; `transposes` names the factors stored the other way round."""
    m, n, k = sizes

    def build(b: GraphBuilder) -> Tensor:
        x = b.input("x", (*batch, *((k, m) if "a" in transposes else (m, k))), dtype)
        w = b.input("w", (*(() if shared else batch), *((n, k) if "b" in transposes else (k, n))), dtype)
        wide: dict[str, Any] = {"accumulate": "i32", "out_dtype": "i32"} if dtype == "i8" else {}
        y = linalg.matmul(x, w, transpose_a="a" in transposes, transpose_b="b" in transposes, **wide)
        match epilogue:
            case "bias":
                return elementwise.binary(y, b.input("c", (n,), y.dtype), "add")
            case "residual":
                return elementwise.binary(y, b.input("c", static_shape(y.shape), y.dtype), "add")
            case "gelu":
                return elementwise.gelu(y)
        return y

    return build


@pytest.mark.parametrize(
    ("dtype", "machine", "instruction"),
    [
        ("f16", "sm_75", "mma_m16n8k8_f16_f32"), ("f16", "sm_80", "mma_m16n8k16_f16_f32"),
        ("bf16", "sm_90a", "mma_m16n8k16_bf16_f32"), ("i8", "sm_75", "mma_m8n8k16_s8_s32"),
        ("i8", "sm_80", "mma_m16n8k32_s8_s32"), ("f64", "sm_80", "mma_m8n8k4_f64_f64"),
        ("f64", "sm_90a", "mma_m16n8k16_f64_f64"), ("f32", "sm_80", "fma"), ("bf16", "sm_75", "fma"),
        ("f64", "sm_75", "fma"),
    ],
)  # fmt: skip
def test_the_instruction_is_that_of_the_machine(dtype: str, machine: str, instruction: str) -> None:
    module = check(product(dtype, (40, 24, 48)), machine)
    (decided,) = products(module)
    assert decided["instruction"] == instruction
    assert ("mma.sync" in ptx(module)) == instruction.startswith("mma")
    assert ("wgmma.mma_async" in ptx(module)) == instruction.startswith("wgmma")
    assert instruction in module.explain(all=True)


@pytest.mark.parametrize(
    ("sizes", "transposes"),
    some([((1, 1, 19), ""), ((70, 45, 37), "a"), ((130, 70, 65), ""), ((70, 45, 37), "b"), ((70, 45, 37), "ab")], 3),
)
def test_f64_on_instructions_of_sixteen_rows(sizes: tuple[int, int, int], transposes: str) -> None:
    module = check(product("f64", sizes, transposes), "sm_90a")
    if sizes != (1, 1, 19):
        assert products(module)[0]["instruction"].startswith("mma_m16n8k")


def test_large_products_of_f64_do_not_spill() -> None:
    graph = graph_of(product("f64", (2048, 2048, 2048)))
    module = tilewright.compile(graph, machine="sm_90a", device="emulator", options=Options(cache=False))
    assert "mma.sync.aligned.m16n8k" in ptx(module)
    resources = ptxas.check(ptx(module), "sm_90a")
    assert resources is None or resources["matmul"].spills == 0


def test_f32_on_matrix_instructions_where_that_is_allowed() -> None:
    build = product("f32", (40, 24, 48), "b")
    module = check(build, tolerance=4e-3, input_precision="tf32")
    assert ".tf32" in ptx(module)


SIZES = (1, 2, 7, 8, 17, 31, 64, 65, 100)


@pytest.mark.parametrize("seed", some(range(24), 4))
def test_random_products(seed: int) -> None:
    """Sizes that no tile divides, every storage of the factors, batches, epilogues, types, machines."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["f16", "bf16", "f32", "i8", "f64"]))
    m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
    batch = ((), (), (2,), (2, 3))[rng.integers(4)]
    transposes = ("", "a", "b", "ab")[rng.integers(4)]
    epilogue = "" if dtype == "i8" else ("", "bias", "residual", "gelu")[rng.integers(4)]
    machine = ("sm_75", "sm_80", "sm_90a")[rng.integers(3)]
    check(product(dtype, (m, n, k), transposes, batch, bool(rng.integers(2)), epilogue), machine)


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", [(7, 17, 13), (17, 2, 1), (101, 67, 131), (1, 17, 7)], ids=str)
@pytest.mark.parametrize(("dtype", "transposes"), [("f16", ""), ("i8", "b")])
def test_products_of_odd_sizes_without_asynchronous_copies(
    sizes: tuple[int, int, int], dtype: str, transposes: str
) -> None:
    check(product(dtype, sizes, transposes), "sm_75")


def test_kernels_whose_loads_pass_registers_do_not_spill_for_more_blocks() -> None:
    """`ptxas` takes 168 registers and spills 40 bytes of a tile of 64 x 32 x 64 bytes on one warp, if it is let."""
    graph = graph_of(product("i8", (1024, 1024, 1024), "b"))
    code = tilewright.compile(graph, machine="sm_75", options=Options(cache=False)).artifact.code.decode()
    assert ".minnctapersm 1" in code
    taken = ptxas.check(code, "sm_75")
    assert taken is None or {each.spills for each in taken.values()} == {0}


def constant(b: GraphBuilder, extents: tuple[int, ...], dtype: str) -> Tensor:
    values = np.random.default_rng(len(b.constants)).standard_normal(extents) * 0.3
    return b.constant(values.astype(dtypes.numpy_dtype(dtype)))


CONVOLUTIONS: dict[str, Build] = {
    "stride 2": lambda b: conv.conv(
        b.input("x", (1, 3, 9, 9), "f32"), b.input("w", (5, 3, 3, 3), "f32"), pads=1, strides=2
    ),
    "many channels": lambda b: conv.conv(
        b.input("x", (2, 24, 9, 7), "f16"), constant(b, (20, 24, 3, 3), "f16"), pads=1
    ),
    "dilated": lambda b: conv.conv(
        b.input("x", (1, 16, 12, 11), "f16"), constant(b, (8, 16, 3, 3), "f16"), dilations=2
    ),
    "1x1": lambda b: conv.conv(b.input("x", (2, 40, 6, 5), "f16"), constant(b, (33, 40, 1, 1), "f16")),
    "groups": lambda b: conv.conv(
        b.input("x", (1, 32, 8, 8), "f16"), constant(b, (32, 16, 3, 3), "f16"), pads=1, groups=2
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_products(name: str) -> None:
    assert products(check(CONVOLUTIONS[name]))


def test_constants_in_another_order_are_nodes_of_the_mapped_graph() -> None:
    graph = graph_of(CONVOLUTIONS["many channels"])
    machine = resolve("sm_80")
    assert isinstance(machine, Gpu)
    plan = make_plan(graph, machine, 1)
    mapped = plan.mapped_graph()
    (into,) = (node for node in mapped.nodes if node.name.startswith(PREFIX))
    assert into.name in {name for kernel in plan.kernels for name in kernel.reads}
    arrays = arrays_of(graph, np.random.default_rng(0))
    np.testing.assert_array_equal(evaluate(mapped, arrays)[0], evaluate(graph, arrays)[0])


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_random_convolutions(seed: int) -> None:
    """Windows, strides, dilations, borders, groups and batches, with a constant or a given kernel."""
    rng = np.random.default_rng(seed)

    def one_of(*numbers: int) -> int:
        return int(rng.choice(numbers))

    dtype, groups = str(rng.choice(["f16", "bf16", "f32"])), one_of(1, 1, 2)
    channels, filters = groups * one_of(1, 3, 8, 20), groups * one_of(2, 5, 16, 33)
    image = (one_of(1, 3), channels, one_of(5, 8, 11), one_of(5, 8, 12))
    kernel = (filters, channels // groups, one_of(1, 2, 3), one_of(1, 3))
    settings: dict[str, Any] = {"strides": one_of(1, 2), "dilations": one_of(1, 2), "pads": one_of(0, 1)}
    known, machine = bool(rng.integers(2)), ("sm_75", "sm_80", "sm_90a")[rng.integers(3)]

    def build(b: GraphBuilder) -> Tensor:
        weights = constant(b, kernel, dtype) if known else b.input("w", kernel, dtype)
        return elementwise.relu(conv.conv(b.input("x", image, dtype), weights, groups=groups, **settings))

    check(build, machine)


def test_a_small_network() -> None:
    def build(b: GraphBuilder) -> Tensor:
        x = b.input("x", (1, 3, 12, 12), "f16")
        x = elementwise.relu(conv.conv(x, constant(b, (8, 3, 3, 3), "f16"), pads=1))
        x = elementwise.relu(conv.conv(x, constant(b, (16, 8, 3, 3), "f16"), pads=1, strides=2))
        x = shape.flatten(pool.global_average_pool(x))
        return norm.softmax(linalg.linear(x, constant(b, (10, 16), "f16")))

    assert len(products(check(build))) >= 2


def transformer(dtype: str) -> Build:
    """A block with 2 heads of attention over 24 rows of 32, and a layer of 128 between two norms."""
    rows, width, heads = 24, 32, 2
    own = width // heads

    def build(b: GraphBuilder) -> Tensor:
        def linear(y: Tensor, columns: int) -> Tensor:
            made = linalg.matmul(y, constant(b, (static_shape(y.shape)[-1], columns), dtype))
            return elementwise.binary(made, constant(b, (columns,), dtype), "add")

        def split(y: Tensor) -> Tensor:
            return shape.transpose(shape.reshape(y, (1, rows, heads, own)), (0, 2, 1, 3))

        def normed(y: Tensor) -> Tensor:
            return norm.layer_norm(y, constant(b, (width,), dtype), constant(b, (width,), dtype))

        x = b.input("x", (1, rows, width), dtype)
        q, k, v = (split(linear(normed(x), width)) for _ in range(3))
        scores = linalg.matmul(q, k, transpose_b=True)
        scale = b.constant(np.asarray(own**-0.5).astype(dtypes.numpy_dtype(dtype)))
        weights = norm.softmax(elementwise.binary(scores, scale, "mul"), axis=-1)
        mixed = shape.transpose(linalg.matmul(weights, v), (0, 2, 1, 3))
        y = elementwise.binary(x, linear(shape.reshape(mixed, (1, rows, width)), width), "add")
        return elementwise.binary(y, linear(elementwise.gelu(linear(normed(y), 4 * width)), width), "add")

    return build


@pytest.mark.parametrize("dtype", some(["f16", "f32"], 1))
def test_a_transformer_block(dtype: str) -> None:
    module = check(transformer(dtype), tolerance=1e-2 if dtype == "f16" else 2e-5)
    assert len(products(module)) == 8


@pytest.mark.parametrize(
    ("dtype", "transposes", "wide"),
    some(
        [
            ("f16", "ab", True),
            ("f16", "", True),
            ("i8", "b", True),
            ("f32", "", False),
            ("f64", "", False),
            ("f32", "ab", False),
            ("f32", "a", True),
            ("f32", "b", False),
        ],
        4,
    ),
)
def test_aligned_products_copy_whole_sectors_without_conflicts(dtype: str, transposes: str, wide: bool) -> None:
    """By the emulator's counts: no bank conflicts, no sector of global memory more than the bytes need.

    16 bytes at once where matrix loads read them. Bytes are multiplied where both factors are stored along k: matrix
    loads do not transpose them.
    """
    graph = graph_of(product(dtype, (128, 128, 256), transposes))
    arrays = arrays_of(graph, np.random.default_rng(0))
    module = tilewright.compile(graph, machine="sm_80", options=Options(cache=False, disable=("split-k",)))
    resources = ptxas.check(ptx(module), "sm_80")
    assert resources is None or all(each.spills == 0 for each in resources.values())
    (tensor,) = graph.outputs
    output = np.zeros(static_shape(tensor.shape), dtypes.numpy_dtype(tensor.dtype))
    (kernel,), parsed = module.manifest.kernels, emulator.parse(ptx(module))
    run = emulator.run(parsed, kernel.entry, kernel.grid, kernel.block, [*arrays, output], kernel.shared_bytes)
    assert run.diagnostics == []
    assert run.counts.total("shared", "conflicts") == 0
    assert run.counts.total("global", "transactions") == run.counts.total("global", "fewest")
    copies = [line for line in ptx(module).splitlines() if "cp.async." in line and "group" not in line]
    assert copies
    assert not wide or all("cp.async.cg" in line and ", 16" in line for line in copies)
    assert dtype != "f32" or "st.shared" not in ptx(module)  # threads store their sums themselves


def test_ragged_tails_are_copied_ahead_too() -> None:
    module = check(product("f16", (65, 40, 104)))
    program = module.artifact.program
    assert "tile.stage" not in program
    assert program.count("simt.async_copy") > 0
    assert " valid " in program


@pytest.mark.parametrize(
    ("dtype", "transposes", "cluster"),
    some([("f16", "b", 1), ("bf16", "b", 2), ("f16", "b", 2), ("f32", "", 2), ("f32", "ab", 1), ("f32", "b", 1)], 2),
)
def test_batches_of_ragged_rows_come_by_boxes(dtype: str, transposes: str, cluster: int) -> None:
    """k is whole: a factor has a bound along its rows alone, and a batch in what is left of its offset."""
    given: dict[str, Any] = {"input_precision": "tf32"} if dtype == "f32" else {}
    module = check(product(dtype, (248, 248, 64), transposes, (6,)), "sm_90a", 5e-3, cluster=cluster, **given)
    (decided,) = products(module)
    assert decided["instruction"].startswith("wgmma")
    assert "wgmma.mma_async" in ptx(module)
    assert (".multicast::cluster" in ptx(module)) == (decided["cluster"] == 2)


@pytest.mark.covering(1)
@pytest.mark.parametrize("epilogue", some(["", "bias", "residual", "gelu"], 2))
@pytest.mark.parametrize(("transposes", "read"), [("", "b"), ("ab", "a")])
def test_factors_of_f32_that_do_not_lie_along_k_are_read_by_threads(transposes: str, read: str, epilogue: str) -> None:
    """As tf32, and rounded there; ptxas serialises no products."""
    build = product("f32", (96, 160, 96), transposes, epilogue=epilogue)
    module = check(build, "sm_90a", 4e-3, input_precision="tf32")
    (decided,) = products(module)
    assert decided["instruction"].startswith("wgmma")
    assert "cvt.rna.tf32" in ptx(module)
    resources = ptxas.check(ptx(module), "sm_90a")
    assert resources is None or not any(each.spills or each.warnings for each in resources.values())
    assert f"f32 is rounded to tf32 in {read}" in module.explain(all=True)


def test_where_neither_factor_of_f32_lies_along_k_single_warps_multiply() -> None:
    module = check(product("f32", (100, 136, 68), "a"), "sm_90a", 4e-3, input_precision="tf32")
    (decided,) = products(module)
    assert decided["instruction"].startswith("mma")
    machine = resolve("sm_90a")
    assert isinstance(machine, Gpu)
    large = graph_of(product("f32", (4096, 4096, 4096), "a"))
    plan = make_plan(large, machine, 1, Options(input_precision="tf32"))
    reasons = "".join(decision.explain() for decision in plan.decisions)
    assert "x and w do not lie along k: threads read fragments of 4 bytes of one" in reasons


def test_a_single_row_is_a_nest_and_says_why() -> None:
    module = check(product("f32", (1, 33, 64)))
    assert not products(module)
    assert "a row alone is a reduction" in module.explain(all=True)
