"""Nests on the blocks of a GPU: right in the emulator, and by count as few accesses of memory as there can be."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from xdsl.dialects import arith, scf

from tests.random_graphs import random_graph, random_inputs
from tilewright import Options
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import PtxCode, generate
from tilewright.compiler import gpu
from tilewright.compiler import rows as rows_module
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement
from tilewright.compiler.tests.bounded import evaluate_bounded, violations
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, elementwise, linalg, norm, pool, reduce, shape
from tilewright.kernel import simt
from tilewright.kernel.dialect import shape as tile_shape
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.operator.block_rows import BlockRows, block_rows
from tilewright.operator.rewrites.following import with_following
from tilewright.operator.rewrites.split_reduction import split_reduction
from tilewright.operator.rules.gpu_rows import kernel_on_blocks
from tilewright.operator.statements import inner_loops
from tilewright.operator.tests.test_gpu_rows import tile_of
from tilewright.runtime import emulated
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.tree import InvalidTree

Array = np.ndarray[Any, Any]
Build = Callable[[GraphBuilder], Tensor]
MACHINE = "sm_90a"


def graph_of(build: Build) -> Graph:
    b = GraphBuilder()
    return b.finish([build(b)])


def plan_of(graph: Graph) -> Plan:
    machine = resolve(MACHINE)
    assert isinstance(machine, Gpu)
    return make_plan(graph, machine, 1)


@dataclass(frozen=True)
class Ran:
    """What a graph came to: its plan and code, and the counts of its kernels."""

    plan: Plan
    code: PtxCode
    counts: dict[str, dict[str, Any]]

    def total(self, what: str) -> int:
        return sum(counts[what] for counts in self.counts.values())

    def bytes(self, what: str) -> int:
        return sum(counts["bytes"].get(what, 0) for counts in self.counts.values())


def ran(build: Build, tolerance: float = 1e-4, arrays: list[Array] | None = None) -> Ran:
    """Compile and emulate a graph: right, nothing found, no registers spilled."""
    graph = graph_of(build)
    machine = resolve(MACHINE)
    assert isinstance(machine, Gpu)
    plan = plan_of(graph)
    placement = Placement(plan)
    program = gpu.tile_program(plan, placement, machine)
    gpu.distribute(program, Options(verify_each=True))
    code = generate(program)
    resources = ptxas.check(code.ptx, MACHINE)
    assert resources is None or all(each.spills == 0 for each in resources.values())
    rng = np.random.default_rng(0)
    given = arrays or [
        rng.standard_normal(static_shape(tensor.shape)).astype(dtypes.numpy_dtype(tensor.dtype))
        for tensor in graph.inputs
    ]
    outputs = [np.zeros(static_shape(tensor.shape), dtypes.numpy_dtype(tensor.dtype)) for tensor in graph.outputs]
    done = emulated.run_module(code, given, outputs, placement.packed(plan))
    assert not done.diagnostics, done.diagnostics[:3]
    for found, wanted in zip(outputs, evaluate(graph, given), strict=True):
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance)
    return Ran(plan, code, {name: counts.to_json() for name, counts in done.counts})


def trees(plan: Plan) -> list[BlockRows]:
    return [block_rows(kernel.scheduled) for kernel in plan.kernels]


def in_one_pass(tree: BlockRows) -> bool:
    """Whether a running sum of exponentials follows the largest value in chunks of a row."""
    return bool(tree.chunks) and any(len(names) > 1 for names in tree.passes)


def biased_gelu(b: GraphBuilder, rows: int, columns: int, dtype: str) -> Tensor:
    x, residual = (b.input(name, (rows, columns), dtype) for name in ("x", "residual"))
    biased = elementwise.binary(x, b.input("bias", (columns,), dtype), "add")
    return elementwise.binary(elementwise.gelu(biased), residual, "add")


def layer_norm(b: GraphBuilder, rows: int, columns: int, dtype: str) -> Tensor:
    scale, bias = (b.input(name, (columns,), dtype) for name in ("scale", "bias"))
    return norm.layer_norm(b.input("x", (rows, columns), dtype), scale, bias)


def rms_norm(b: GraphBuilder, rows: int, columns: int, dtype: str) -> Tensor:
    return norm.rms_norm(b.input("x", (rows, columns), dtype), b.input("scale", (columns,), dtype))


def softmax(b: GraphBuilder, rows: int, columns: int, dtype: str, axis: int = -1) -> Tensor:
    return norm.softmax(b.input("x", (rows, columns), dtype), axis=axis)


def transpose(b: GraphBuilder, rows: int, columns: int, dtype: str) -> Tensor:
    return shape.transpose(b.input("x", (rows, columns), dtype), (1, 0))


def depthwise(b: GraphBuilder, channels: int, height: int, width: int) -> Tensor:
    x, w = b.input("x", (1, channels, height, width), "f32"), b.input("w", (channels, 1, 3, 3), "f32")
    return conv.conv(x, w, groups=channels)


WHOLE: dict[str, Build] = {
    "softmax": lambda b: softmax(b, 24, 1024, "f32"),
    "softmax of halves": lambda b: softmax(b, 24, 1024, "f16"),
    "softmax of short rows": lambda b: softmax(b, 2048, 32, "f32"),
    "layer norm": lambda b: layer_norm(b, 8, 1024, "f16"),
    "rms norm": lambda b: rms_norm(b, 8, 1024, "f32"),
    "bias, gelu, residual": lambda b: biased_gelu(b, 16, 512, "f32"),
    "transpose": lambda b: transpose(b, 128, 192, "f32"),
    "transpose of halves": lambda b: transpose(b, 128, 128, "f16"),
    "transpose of bytes": lambda b: transpose(b, 512, 1024, "i8"),
    "heads": lambda b: shape.transpose(b.input("x", (2, 32, 4, 64), "f16"), (0, 2, 1, 3)),
    "sum along rows": lambda b: reduce.reduce_sum(b.input("x", (64, 512), "f32"), axes=(1,)),
    "sum of all": lambda b: reduce.reduce_sum(b.input("x", (1024, 512), "f32")),
    "mean per channel": lambda b: reduce.reduce_mean(b.input("x", (8, 16, 8, 16), "f32"), axes=(0, 2, 3)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_tiles_touch_memory_once(name: str) -> None:
    """Sectors are as few as the bytes need, every large tensor is read and written once, no bank waits."""
    found = ran(WHOLE[name], 4e-3 if "halves" in name or name == "layer norm" else 1e-4)
    assert found.total("global_transactions") == found.total("global_transactions_fewest")
    assert found.total("bank_conflicts") == 0
    read = max(found.plan.graph.inputs, key=lambda tensor: tensor.size_bytes)
    (written,) = found.plan.graph.outputs
    again = sum(t.size_bytes * prod(grid_of(found)) for t in found.plan.graph.inputs if t.size_bytes < read.size_bytes)
    large = [tensor for tensor in found.plan.graph.inputs if tensor.size_bytes == read.size_bytes]
    parts = sum(stored.bytes for name, stored in found.plan.stored.items() if name.endswith(".parts"))
    assert found.bytes("global_load") <= sum(tensor.size_bytes for tensor in large) + again + parts
    assert found.bytes("global_store") == written.size_bytes + parts


def grid_of(found: Ran) -> tuple[int, int, int]:
    return found.code.kernels[-1].grid


RAGGED: dict[str, Build] = {
    "softmax": lambda b: softmax(b, 13, 1001, "f16"),
    "softmax along columns": lambda b: softmax(b, 70, 130, "f32", axis=0),
    "softmax of short rows": lambda b: softmax(b, 77, 9, "f32"),
    "layer norm": lambda b: layer_norm(b, 5, 770, "f16"),
    "rms norm": lambda b: rms_norm(b, 5, 333, "f32"),
    "bias, gelu, residual": lambda b: biased_gelu(b, 7, 333, "f16"),
    "transpose": lambda b: transpose(b, 130, 67, "f32"),
    "transpose of bytes": lambda b: transpose(b, 67, 45, "i8"),
    "to channels last": lambda b: shape.transpose(b.input("x", (2, 19, 7, 7), "f32"), (0, 2, 3, 1)),
    "sum along rows": lambda b: reduce.reduce_sum(b.input("x", (31, 700), "f32"), axes=(1,)),
    "sum along columns": lambda b: reduce.reduce_sum(b.input("x", (700, 131), "f32"), axes=(0,)),
    "largest in the middle": lambda b: reduce.reduce_max(b.input("x", (6, 70, 33), "f32"), axes=(1,)),
    "sum of all": lambda b: reduce.reduce_mean(b.input("x", (524309,), "f32")),
    "pool": lambda b: pool.max_pool(b.input("x", (1, 5, 19, 19), "f32"), (3, 3), strides=2, pads=1),
    "depthwise": lambda b: depthwise(b, 5, 21, 19),
    "product with a row": lambda b: linalg.matmul(b.input("x", (1, 333), "f32"), b.input("w", (333, 77), "f32")),
    "product with a column": lambda b: linalg.linear(b.input("x", (1, 333), "f16"), b.input("w", (77, 333), "f16")),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_tiles(name: str) -> None:
    found = ran(RAGGED[name], 4e-3 if "f16" in str(found_types(RAGGED[name])) else 1e-4)
    assert found.total("bank_conflicts") == 0


def found_types(build: Build) -> list[str]:
    return [tensor.dtype for tensor in graph_of(build).inputs]


# Schedules for real sizes ---------------------------------------------------------------------------------------------

REAL: dict[str, tuple[Build, Build]] = {  # the size that is scheduled, and fewer rows that are run so
    "softmax": (lambda b: softmax(b, 16384, 1024, "f32"), lambda b: softmax(b, 10, 1024, "f32")),
    "softmax of long rows": (lambda b: softmax(b, 512, 32768, "f32"), lambda b: softmax(b, 1, 32768, "f32")),
    "layer norm": (lambda b: layer_norm(b, 8192, 4096, "f16"), lambda b: layer_norm(b, 3, 4096, "f16")),
    "rms norm": (lambda b: rms_norm(b, 8192, 4096, "f16"), lambda b: rms_norm(b, 3, 4096, "f16")),
    "bias, gelu, residual": (lambda b: biased_gelu(b, 8192, 4096, "f16"), lambda b: biased_gelu(b, 2, 4096, "f16")),
    "transpose": (lambda b: transpose(b, 4096, 8192, "f32"), lambda b: transpose(b, 128, 128, "f32")),
    "transpose of halves": (lambda b: transpose(b, 4096, 8192, "f16"), lambda b: transpose(b, 128, 128, "f16")),
    "matrix by vector": (
        lambda b: linalg.linear(b.input("x", (1, 4096), "f16"), b.input("w", (16384, 4096), "f16")),
        lambda b: linalg.linear(b.input("x", (1, 4096), "f16"), b.input("w", (12, 4096), "f16")),
    ),
    "vector by matrix": (
        lambda b: linalg.matmul(b.input("x", (1, 4096), "f16"), b.input("w", (4096, 16384), "f16")),
        lambda b: linalg.matmul(b.input("x", (1, 4096), "f16"), b.input("w", (4096, 128), "f16")),
    ),
    "depthwise": (lambda b: depthwise(b, 2048, 58, 58), lambda b: depthwise(b, 1, 58, 58)),
    "sum along columns": (
        lambda b: reduce.reduce_sum(b.input("x", (8192, 4096), "f32"), axes=(0,)),
        lambda b: reduce.reduce_sum(b.input("x", (8192, 128), "f32"), axes=(0,)),
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_schedules_for_real_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They fill the machine; run on fewer rows, they are right and access memory as they should."""
    real, small = REAL[name]
    machine = resolve(MACHINE)
    assert isinstance(machine, Gpu)
    plan = plan_of(graph_of(real))
    large = trees(plan)[0]
    assert prod(loop.programs for loop in large.grid) >= 3 * machine.multiprocessors
    assert 64 <= large.warps * 32 <= 1024
    chosen = {kernel.name: tile_of(kernel.scheduled) for kernel in plan.kernels}
    divided = [kernel.name for kernel in plan.kernels if kernel.name.endswith(".parts")]
    if divided:
        count = int(next(d.chosen for d in plan.decisions if d.subject.startswith("parts of")).split()[0])
        again = lambda given, *_: (split_reduction(given, inner_loops(given)[0], count), None)  # noqa: E731
        monkeypatch.setattr(rows_module, "choose_split", again)
    else:
        monkeypatch.setattr(rows_module, "choose_split", lambda *_: (None, None))
    fewer = lambda nest, *others: (kernel_on_blocks(with_following(nest), chosen[others[1]]), Decision("tile", "", ""))  # noqa: E731
    monkeypatch.setattr(rows_module, "schedule_statements", fewer)
    found = ran(small, 4e-3)
    assert found.total("bank_conflicts") == 0
    # Windows begin between sectors; lanes along the sum of a product repeat what they read of the vector.
    most = {"depthwise": 1.5, "vector by matrix": 1.05}.get(name, 1)
    assert found.total("global_transactions") <= most * found.total("global_transactions_fewest")
    # While memory moves what there is to move, threads issue no more than this part of what they can. Each of the three
    # operators before a residual rounds to f16.
    moved = sum(tensor.size_bytes for tensor in (*found.plan.graph.inputs, *found.plan.graph.outputs))
    slots = machine.multiprocessors * machine.fma_per_cycle["f32"] * machine.clock_hz / machine.dram.bytes_per_second
    issued = sum(sum(counts["thread_instructions"].values()) for counts in found.counts.values())
    assert issued <= {"depthwise": 0.75, "bias, gelu, residual": 0.7}.get(name, 0.6) * slots * moved


def test_the_choice_is_explained() -> None:
    plan = plan_of(graph_of(lambda b: softmax(b, 16384, 1024, "f32")))
    text = next(decision for decision in plan.decisions if decision.subject == "tile of softmax").explain()
    for part in ("rows in registers", "predicted cycles", "on each of 132 multiprocessors", "KiB under way", "second:"):
        assert part in text
    assert Decision.from_json(plan.decisions[-1].to_json()) == plan.decisions[-1]


def test_what_registers_forbid_is_said() -> None:
    plan = plan_of(graph_of(lambda b: softmax(b, 512, 65536, "f32")))
    text = next(decision for decision in plan.decisions if decision.subject == "tile of softmax").explain()
    assert "rows in registers" not in text.splitlines()[0]
    assert "by registers of a thread" in text


def test_rows_that_registers_do_not_hold() -> None:
    """Passes walk a row in chunks, the last of them ragged."""
    found = ran(lambda b: softmax(b, 2, 40_000, "f32"))
    (tree,) = trees(found.plan)
    assert tree.chunks
    assert found.total("bank_conflicts") == 0


@pytest.mark.parametrize(
    ("build", "carried"),
    [
        (lambda b: reduce.reduce_sum(b.input("x", (512, 65536), "f32"), axes=(1,)), [1]),
        (lambda b: softmax(b, 512, 131072, "f16"), [1, 1]),
        (lambda b: layer_norm(b, 512, 131072, "f32"), [1, 1]),
        (lambda b: layer_norm(b, 512, 131071, "f32"), [1, 1, 1]),
        (lambda b: linalg.matmul(b.input("x", (1, 8192), "f16"), b.input("w", (8192, 16384), "f16")), [8]),
    ],
    ids=["sum", "softmax", "norm", "ragged norm", "product"],
)
def test_trips_hand_on_one_sum_of_a_thread(build: Build, carried: list[int]) -> None:
    """Not one per element: registers are for what is under way. Nothing passes through memory in a trip."""
    machine = resolve(MACHINE)
    assert isinstance(machine, Gpu)
    plan = plan_of(graph_of(build))
    program = gpu.tile_program(plan, Placement(plan), machine)
    loop = next(op for op in program.walk() if isinstance(op, scf.ForOp))
    threads = 32 * trees(plan)[0].warps
    assert [prod(tile_shape(value)) / threads for value in loop.iter_args if tile_shape(value)] == carried
    gpu.distribute(program, Options(verify_each=True))
    loop = next(op for op in program.walk() if isinstance(op, scf.ForOp))
    assert not any(isinstance(op, simt.BarrierOp) for op in loop.walk())


def test_a_long_row_that_another_sum_is_taken_of_first() -> None:
    def build(b: GraphBuilder) -> Tensor:
        x = b.input("x", (2, 40_000), "f32")
        largest = reduce.reduce_max(elementwise.unary(x, "abs"), axes=(1,), keepdims=True)
        return norm.softmax(elementwise.binary(x, largest, "div"))

    found = ran(build)
    (tree,) = trees(found.plan)
    assert in_one_pass(tree)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_long_rows_with_infinities() -> None:
    """The running sum is right whatever comes first: nothing but minus infinity is no number, as in one tile."""
    x = np.random.default_rng(2).standard_normal((5, 40_000)).astype(np.float32)
    x[0, :30_000] = -np.inf
    x[1] = -np.inf
    x[2, 39_999] = np.inf
    x[3, 7] = np.nan
    x[4, 20_000:] += 300
    found = ran(lambda b: softmax(b, 5, 40_000, "f32"), 1e-5, [x])
    (tree,) = trees(found.plan)
    assert in_one_pass(tree)
    assert found.bytes("global_load") == 2 * x.nbytes


def test_a_long_row_is_read_once_for_its_mean_and_deviations() -> None:
    """Twice in all, the last chunk ragged, where passes of their own would read it three times."""
    found = ran(lambda b: layer_norm(b, 2, 40_000, "f32"), 2e-4)
    (tree,) = trees(found.plan)
    assert in_one_pass(tree)
    assert found.bytes("global_load") == 2 * (2 * 40_000 * 4) + 2 * (2 * 40_000 * 4)  # rows; scale and bias of each
    decision = next(each for each in found.plan.decisions if each.subject == "tile of layer_norm")
    assert "layer_norm.squares in the pass that it follows" in decision.chosen


@pytest.mark.parametrize("seed", [2, 4, 11])
def test_random_graphs(seed: int) -> None:
    """Of seed 4 a value of one row reads memory under a condition."""
    graph = random_graph(seed)
    inputs = random_inputs(graph, seed)
    module = compile_graph(graph, MACHINE, options=Options(cache=False), device="emulator")
    found = module(*(inputs[tensor.name] for tensor in graph.inputs))
    results = found if isinstance(found, tuple) else (found,)
    for result, expected in zip(results, evaluate_bounded(graph, inputs), strict=True):
        assert not violations(result, expected).any()


@pytest.mark.parametrize(("extents", "axis"), [((0, 5), 0), ((3, 0), 1)])
def test_a_sum_of_nothing(extents: tuple[int, int], axis: int) -> None:
    ran(lambda b: reduce.reduce_sum(b.input("x", extents, "f32"), axes=(axis,)))


def test_a_sum_of_exponentials_is_no_extreme_divisor() -> None:
    """The largest of them is 1: its reciprocal needs no scale, and every element one product less."""
    products = []
    machine = resolve(MACHINE)
    assert isinstance(machine, Gpu)
    for build in (lambda b: softmax(b, 8, 1024, "f16"), lambda b: norm.lp_norm(b.input("x", (8, 1024), "f16"), p=1)):
        program = gpu.tile_program(plan := plan_of(graph_of(build)), Placement(plan), machine)
        products.append(sum(isinstance(op, arith.MulfOp) for op in program.walk()))
    assert products == [1, 3]  # of the other: by the scale too, and that of the divisor itself


def test_few_sums_are_made_in_parts() -> None:
    found = ran(WHOLE["sum of all"])
    assert [kernel.name for kernel in found.plan.kernels] == ["sum.parts", "sum"]
    assert prod(found.code.kernels[0].grid) > 64
    decision = next(each for each in found.plan.decisions if each.subject == "parts of sum")
    assert "predicted cycles with the kernel that adds them up" in decision.reason


def test_rows_with_the_largest_and_smallest_divisors() -> None:
    """The reciprocal of what a row is divided by may be out of range; quotients are not."""
    rng = np.random.default_rng(1)
    x = rng.uniform(0.5, 1.0, (9, 64)) * 2.0 ** np.array([[-140, -126, -110, -64, 0, 64, 110, 119, 121]]).T
    found = ran(lambda b: norm.lp_norm(b.input("x", (9, 64), "f32"), p=1), 1e-6, [x.astype(np.float32)])
    (kernel,) = found.plan.kernels
    threads = tile_of(kernel.scheduled).threads
    assert threads is not None
    assert len(re.findall(r"\bdiv\.\w+\.f32", found.code.ptx)) < prod(threads.size_per_thread)


def edited(kernel: Kernel, *edits: tuple[str, str]) -> Kernel:
    """The kernel with another tree: each edit is a regular expression and what takes its place in the text."""
    text = print_tree(kernel.tree)
    for old, new in edits:
        assert re.search(old, text), text
        text = re.sub(old, new, text)
    return replace(kernel, tree=parse_tree(text))


CHUNKS = (
    (r"warps\(8, 1\)", "warps(2, 1)"),
    (r"W=\[8\]", "W=[2]"),
    (r"@REG par r1:1024 \{ (.*?) \}", r"@L1 for r1:4 { @REG par r1:256 { \1 } }"),
)
JOINED = (r"seq\[@L1 for r1:4 \{ (.*?\}) \}, @L1 for r1:4 \{ (.*?\}) \}", r"seq[@L1 for r1:4 { seq[\1, \2] }")


@pytest.mark.parametrize(
    ("edits", "readings"), [((), 1), (CHUNKS, 3), ((*CHUNKS, JOINED), 2)],
    ids=["held", "in chunks", "in chunks with a running sum"],
)  # fmt: skip
def test_a_tree_that_is_changed_changes_the_code(
    edits: tuple[tuple[str, str], ...], readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax whose rows are cut in chunks is right, and reads them as often as its passes need."""
    scheduled = rows_module.schedule_statements
    monkeypatch.setattr(
        rows_module,
        "schedule_statements",
        lambda *given: (edited(scheduled(*given)[0], *edits), Decision("tile", "", "")),
    )
    found = ran(lambda b: softmax(b, 4, 1024, "f32"))
    assert found.bytes("global_load") == readings * 4 * 1024 * 4


def test_passes_that_differ_in_their_tile_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled = rows_module.schedule_statements
    other = (r"@REG par r1:1024 \{ op softmax \}", "@L1 for r1:2 { @REG par r1:512 { op softmax } }")
    monkeypatch.setattr(
        rows_module,
        "schedule_statements",
        lambda *given: (edited(scheduled(*given)[0], other), Decision("tile", "", "")),
    )
    with pytest.raises(InvalidTree, match="@L1 for r1:2 does not go with"):
        ran(lambda b: softmax(b, 4, 1024, "f32"))
