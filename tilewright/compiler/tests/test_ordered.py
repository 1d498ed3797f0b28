"""Scans, sorts and scatters compiled: against the evaluator on every machine, and their work counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.covering import FULL, some
from tests.random_graphs import random_array
from tilewright.compiler import gpu
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement
from tilewright.compiler.tests.bounded import evaluate_bounded, violations
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import indexing, order_statistics, reduce, shape
from tilewright.kernel import interpreter
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.text import parse_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.options import Options

Array = np.ndarray[Any, Any]
UNCACHED = replace(Options(), cache=False)
# Of three tests of all of these, each takes others without `--full`.
TYPES = ["f64", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool"]
SHAPES = [((1,), 0), ((3, 17), 0), ((3, 17), -1), ((2, 3, 5), 1), ((5, 66), 0), ((1, 66), 1), ((0, 4), 1), ((4, 0), 1)]


def built(build: Callable[[GraphBuilder], Tensor | Sequence[Tensor]]) -> Graph:
    b = GraphBuilder("ordered")
    made = build(b)
    return b.finish([made] if isinstance(made, Tensor) else list(made))


def special(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """Elements with many ties; floats also with both zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    kind = dtypes.numpy_dtype(dtype)
    if not dtypes.is_float(dtype):
        return (rng.integers(0, 5, shape) - (0 if dtype == "bool" or dtypes.is_unsigned(dtype) else 2)).astype(kind)
    pool = np.array([0.0, -0.0, 1.5, -1.5, 2.0, -7.0, np.inf, -np.inf, np.nan])
    return rng.choice(pool, shape).astype(kind)


def agrees(graph: Graph, inputs: dict[str, Array], threads: int = 1) -> None:
    """The module, and the interpreter on its tile program, give what the evaluator does."""
    module = compile_graph(graph, "host", threads, UNCACHED)
    expected = evaluate_bounded(graph, inputs)
    returned = module(*(inputs[tensor.name] for tensor in graph.inputs))
    found = list(returned) if isinstance(returned, tuple) else [returned]
    arguments = [_stored(np.ascontiguousarray(inputs[tensor.name])).reshape(-1) for tensor in graph.inputs]
    played = [_stored(np.zeros(result.size, result.dtype)) for result in found]
    run_main(parse_module(module.artifact.program), arguments, played, module.artifact.constants, races=True)
    for tensor, result, again, wanted in zip(graph.outputs, found, played, expected, strict=True):
        wrong = violations(result, wanted)
        assert not wrong.any(), f"{tensor}: {int(wrong.sum())} elements, first at {np.argwhere(wrong)[0].tolist()}"
        again = again.view(result.dtype).reshape(result.shape)
        assert not violations(again, (result.astype(np.float64), np.zeros(result.shape))).any()


def _stored(array: Array) -> Array:
    """As a view holds it: bool as i8, unsigned integers without a sign."""
    if array.dtype == bool:
        return array.view(np.int8)
    return array.view(array.dtype.str.replace("u", "i")) if array.dtype.kind == "u" else array


# Scans ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_scan(shape: tuple[int, ...], axis: int) -> None:
    def build(b: GraphBuilder) -> list[Tensor]:
        x, n = b.input("x", shape, "f32"), b.input("n", shape, "i32")
        ways = [(t, e) for t in (x, n) for e in (False, True)]
        made = [reduce.cum_sum(t, axis=axis, exclusive=e, reverse=not e) for t, e in ways]
        return [*made, reduce.cum_prod(x, axis=axis), reduce.cum_sum(x, axis=axis, exclusive=True, reverse=True)]

    graph = built(build)
    agrees(graph, {tensor.name: random_array(tensor, 3) for tensor in graph.inputs})


@pytest.mark.parametrize("n", some([15, 16, 32, 17, 100], 3))
def test_scan_of_neighbours(n: int) -> None:
    """Rows shorter than a vector, of whole vectors, and of some and a part; in all directions, also as maxima."""

    def build(b: GraphBuilder) -> list[Tensor]:
        x, m = b.input("x", (3, n), "f32"), b.input("m", (3, n), "bool")
        ways = [(e, r) for e in (False, True) for r in (False, True)]
        sums = [reduce.cum_sum(x, axis=1, exclusive=e, reverse=r) for e, r in ways]
        return [*sums, *(t for each in (x, m) for t in order_statistics.cum_extreme(each, axis=1))]

    graph = built(build)
    agrees(graph, {"x": special((3, n), "f32"), "m": special((3, n), "bool")}, threads=2)


@pytest.mark.parametrize("dtype", some(["f64", "i64", "f16", "u8", "bf16"], 3))
def test_scan_of_type(dtype: str) -> None:
    graph = built(lambda b: reduce.cum_sum(b.input("x", (5, 37), dtype), axis=1))
    agrees(graph, {"x": random_array(graph.inputs[0], 1)}, threads=2)


def test_long_scan_keeps_its_digits() -> None:
    """f32 added one after the other was off by some thousand units after so many elements."""
    graph = built(lambda b: reduce.cum_sum(b.input("x", (2, 20000), "f32"), axis=1))
    x = random_array(graph.inputs[0], 0)
    (found,) = [compile_graph(graph, "host", 1, UNCACHED)(x)]
    np.testing.assert_array_max_ulp(found, np.cumsum(x.astype(np.float64), axis=1).astype(np.float32), 1)


# Sorts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.covering(1)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sort(shape: tuple[int, ...], axis: int, largest: bool) -> None:
    """Whole rows and parts of them; ties keep their order, -0 is 0, and NaN above all numbers."""

    def build(b: GraphBuilder) -> list[Tensor]:
        x = b.input("x", shape, "f32")
        counts = {shape[axis], min(3, shape[axis])}
        return [each for k in sorted(counts) for each in reduce.top_k(x, k, axis=axis, largest=largest)]

    agrees(built(build), {"x": special(shape, "f32")})


@pytest.mark.parametrize("dtype", TYPES if FULL else TYPES[0::3])
def test_sort_of_type(dtype: str) -> None:
    """Rows that are counted, and one that is sorted by digits."""

    def build(b: GraphBuilder) -> list[Tensor]:
        x, y = b.input("x", (3, 19), dtype), b.input("y", (1, 70), dtype)
        return [*reduce.top_k(x, 19, largest=False), *reduce.top_k(y, 67)]

    graph = built(build)
    agrees(graph, {"x": special((3, 19), dtype), "y": random_array(graph.inputs[1], 2)})


@pytest.mark.parametrize(
    ("n", "k"),
    some(
        [
            (65, 16),
            (65, 1),
            (67, 3),
            (128, 8),
            (257, 64),
            (300, 65),
            (1000, 17),
            (4097, 100),
            (4097, 4097),
            (4097, 1024),
        ],
        5,
    ),
)
def test_selection_of_a_few_from_many(n: int, k: int) -> None:
    def build(b: GraphBuilder) -> list[Tensor]:
        given = b.input("x", (2, n), "f32")
        return [*reduce.top_k(given, k), *reduce.top_k(given, k, largest=False)]

    graph = built(build)
    made = {"normal": random_array(graph.inputs[0]), "equal": np.full((2, n), 3, np.float32),
            "special": special((2, n), "f32"), "nan": np.full((2, n), np.nan, np.float32)}  # fmt: skip
    module = compile_graph(graph, "host", 2, UNCACHED)
    for name, x in made.items():
        for result, expected in zip(module(x), evaluate(graph, [x]), strict=True):
            np.testing.assert_array_equal(result, expected, err_msg=name)


@pytest.mark.parametrize("dtype", TYPES if FULL else TYPES[1::3])
def test_selection_of_type(dtype: str) -> None:
    """As few as are counted, and as many as are sorted by digits; bytes have many ties."""

    def build(b: GraphBuilder) -> list[Tensor]:
        x = b.input("x", (1, 283), dtype)
        return [*reduce.top_k(x, 5), *reduce.top_k(x, 70, largest=False)]

    agrees(built(build), {"x": special((1, 283), dtype)})


INSERTED = [((37, 128), 8, 1), ((70, 31), 13, 1), ((33, 7), 2, 1), ((16, 1), 1, 1), ((65, 19), 3, 0),
            ((5, 67, 23), 4, 1), ((3, 41, 4), 2, 1), ((1, 50, 300), 1, 2)]  # fmt: skip


@pytest.mark.parametrize(("shape", "k", "axis"), some(INSERTED, 4))
def test_insertion_in_rows_side_by_side(shape: tuple[int, ...], k: int, axis: int) -> None:
    """Whole vectors of rows and the rest, whole chunks of elements and the rest, along every dimension."""

    def build(b: GraphBuilder) -> list[Tensor]:
        given = b.input("x", shape, "f32")
        return [t for largest in (True, False) for t in reduce.top_k(given, k, axis=axis, largest=largest)]

    graph = built(build)
    assert _method(graph).startswith("insertion")
    agrees(graph, {"x": special(shape, "f32")}, threads=2)


def test_insertion_of_all_orders() -> None:
    """Elements that all displace others, none that does, and all alike."""
    graph = built(lambda b: reduce.top_k(b.input("x", (48, 300), "f32"), 7))
    made = random_array(graph.inputs[0])
    given = {"normal": made, "equal": np.full_like(made, 3), "nan": np.full_like(made, np.nan),
             "rising": np.sort(made, 1), "falling": -np.sort(-made, 1)}  # fmt: skip
    module = compile_graph(graph, "host", 1, UNCACHED)
    for name, rows in given.items():
        for found, expected in zip(module(rows), evaluate(graph, [rows]), strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("dtype", TYPES if FULL else TYPES[2::3])
def test_insertion_of_type(dtype: str) -> None:
    graph = built(lambda b: reduce.top_k(b.input("x", (41, 35), dtype), 5))
    assert _method(graph).startswith("insertion")
    agrees(graph, {"x": special((41, 35), dtype)})


def test_insertion_of_rows_that_are_computed() -> None:
    """What is sorted is no tensor in memory: rows of a table, which are gathered."""

    def build(b: GraphBuilder) -> Tensor:
        table, at = b.input("table", (9, 40), "f32"), b.input("at", (64,), "i64")
        return reduce.top_k(indexing.gather(table, at), 3)[1]

    graph = built(build)
    at = np.random.default_rng(0).integers(0, 9, 64)
    agrees(graph, {"table": special((9, 40), "f32"), "at": at})


def test_method_of_a_sort_is_the_cheapest() -> None:
    """Few of many rows by insertion, few of a long row by a threshold, short rows by counting, long ones by digits."""
    selected = "those wanted selected, then by"
    cases = {(64, 128, 8): "insertion", (1, 25600, 300): f"{selected} digits", (1, 1000, 10): f"{selected} counting",
             (1, 40, 40): "by counting", (1, 1000, 1000): "by digits"}  # fmt: skip
    for (rows, n, k), expected in cases.items():
        graph = built(lambda b, rows=rows, n=n, k=k: reduce.top_k(b.input("x", (rows, n), "f32"), k)[1])  # type: ignore[misc]
        assert _method(graph).startswith(expected)


def _method(graph: Graph) -> str:
    """How the first sort of a graph runs on a machine with vectors of 512 bits."""
    plan = make_plan(graph, resolve("x86-64-v4"), 1)
    return next(decision.chosen for decision in plan.decisions if decision.subject.startswith("order of "))


# Scatters -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", some(["none", "add", "mul", "max", "min"], 3))
def test_scatter(reduction: str) -> None:
    """Places that repeat, count from the end, or do not exist, with updates smaller than the tensor in both forms."""

    def build(b: GraphBuilder) -> list[Tensor]:
        x, made = b.input("x", (4, 3, 18), "f32"), []
        for axis, picks in enumerate([(7, 3, 17), (4, 5, 18), (3, 3, 25)]):
            i, u = b.input(f"i{axis}", picks, "i64"), b.input(f"u{axis}", picks, "f32")
            made.append(indexing.scatter_elements(x, i, u, axis=axis, reduction=reduction))
        for depth in (1, 2, 3):
            i = b.input(f"j{depth}", (2, 5, depth), "i32")
            u = b.input(f"v{depth}", (2, 5, *static_shape(x.shape)[depth:]), "f32")
            made.append(indexing.scatter_nd(x, i, u, reduction=reduction))
        return made

    graph = built(build)
    rng = np.random.default_rng(0)
    inputs = {tensor.name: random_array(tensor, n) for n, tensor in enumerate(graph.inputs)}
    inputs |= {t.name: rng.integers(-6, 6, static_shape(t.shape)).astype(dtypes.numpy_dtype(t.dtype)) for t in graph.inputs if t.dtype != "f32"}  # fmt: skip  # noqa: E501
    agrees(graph, inputs)


@pytest.mark.parametrize("dtype", some(["f64", "f16", "i8", "i64", "bool", "bf16", "u16"], 3))
def test_scatter_of_type(dtype: str) -> None:
    def build(b: GraphBuilder) -> list[Tensor]:
        x, i, u = b.input("x", (6, 18), dtype), b.input("i", (9, 18), "i64"), b.input("u", (9, 18), dtype)
        kinds = ("none", "max") if dtype == "bool" else ("none", "add", "max")
        return [indexing.scatter_elements(x, i, u, axis=0, reduction=kind) for kind in kinds]

    graph = built(build)
    inputs = {tensor.name: random_array(tensor, n) for n, tensor in enumerate(graph.inputs)}
    agrees(graph, {**inputs, "i": np.random.default_rng(0).integers(-6, 6, (9, 18))})


@pytest.mark.parametrize("shape", [(50, 700), (50, 1)])
def test_rows_are_added_in_threads(shape: tuple[int, int]) -> None:
    """Threads share out columns, never the updates of one element."""

    def build(b: GraphBuilder) -> Tensor:
        x, i = b.input("x", shape, "f32"), b.input("i", (901, 1), "i64")
        return indexing.scatter_nd(x, i, b.input("u", (901, shape[1]), "f32"), reduction="add")

    graph = built(build)
    inputs = {tensor.name: random_array(tensor, n) for n, tensor in enumerate(graph.inputs)}
    inputs["i"] = np.random.default_rng(0).integers(0, 50, (901, 1))
    one, two = (compile_graph(graph, "host", threads, UNCACHED)(*inputs.values()) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert not violations(one, evaluate_bounded(graph, inputs)[0]).any()


# GPUs -----------------------------------------------------------------------------------------------------------------


def _all(b: GraphBuilder) -> list[Tensor]:
    x, i, u = b.input("x", (5, 9), "f32"), b.input("i", (7, 9), "i64"), b.input("u", (7, 9), "f32")
    sums = reduce.cum_sum(x, axis=1, exclusive=True, reverse=True)
    sorts = reduce.top_k(x, 4, axis=0, largest=False)
    return [sums, *sorts, *(indexing.scatter_elements(x, i, u, reduction=r) for r in ("none", "add"))]


def _given() -> list[Array]:
    rng = np.random.default_rng(0)
    return [special((5, 9), "f32"), rng.integers(-6, 6, (7, 9)), rng.standard_normal((7, 9)).astype(np.float32)]


def test_gpus_run_them_as_reductions() -> None:
    graph = built(_all)
    found = compile_graph(graph, "sm_80", 1, UNCACHED, device="emulator")(*_given())
    for result, wanted in zip(found, evaluate(graph, _given()), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_amd_gpus_run_them_as_reductions() -> None:
    graph, machine = built(_all), resolve("gfx1100")
    assert isinstance(machine, Gpu)
    plan: Plan = make_plan(graph, machine, 1)
    assert not any(node.ordered for node in plan.computed.graph.nodes)
    placement = Placement(plan)
    program = gpu.tile_program(plan, placement, machine)
    gpu.distribute(program, Options(verify_each=True))
    found = [np.zeros(each.size, dtypes.numpy_dtype(each.dtype)) for each in graph.outputs]
    run_main(program, [array.reshape(-1) for array in _given()], found, placement.packed(plan))
    for result, wanted in zip(found, evaluate(graph, _given()), strict=True):
        np.testing.assert_allclose(result.reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)


# Work -----------------------------------------------------------------------------------------------------------------


def steps(graph: Graph, inputs: Sequence[Array], monkeypatch: pytest.MonkeyPatch) -> int:
    """Operations that the interpreter runs for a graph's tile program."""
    module = compile_graph(graph, "host", 1, UNCACHED)
    count = 0
    run = interpreter._Program.run

    def counted(self: Any, block: Any) -> Any:
        nonlocal count
        count += len(list(block.ops))
        return run(self, block)

    with monkeypatch.context() as patch:
        patch.setattr(interpreter._Program, "run", counted)
        found = [np.zeros(each.size, dtypes.numpy_dtype(each.dtype)) for each in graph.outputs]
        run_main(parse_module(module.artifact.program), [a.reshape(-1) for a in inputs], found,
                 module.artifact.constants)  # fmt: skip
    return count


@pytest.mark.parametrize("kind", ["scan", "sort", "top", "scatter", "scatter rows"])
def test_work_grows_with_the_number_of_elements(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the elements took four times the work: all of them were quadratic."""

    def graph_of(n: int) -> tuple[Graph, list[Array]]:
        def build(b: GraphBuilder) -> Tensor | Sequence[Tensor]:
            if kind.startswith("scatter"):
                row = (3,) if kind == "scatter rows" else ()
                x, i = b.input("x", (n, *row), "f32"), b.input("i", (n, 1), "i64")
                return indexing.scatter_nd(x, i, b.input("u", (n, *row), "f32"), reduction="add")
            x = b.input("x", (n,), "f32")
            return reduce.cum_sum(x, axis=0) if kind == "scan" else reduce.top_k(x, n if kind == "sort" else 3)

        graph = built(build)
        rng = np.random.default_rng(0)
        return graph, [
            rng.integers(0, n, static_shape(t.shape)) if t.dtype == "i64" else random_array(t) for t in graph.inputs
        ]

    small, large = (steps(*graph_of(n), monkeypatch) for n in (300, 600))
    assert large <= 2.2 * small


@pytest.mark.parametrize("n", [65, 300])
def test_a_few_of_a_row_take_less_work_than_its_order(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    few, all_ = (built(lambda b, k=k: reduce.top_k(b.input("x", (n,), "f32"), k)[1]) for k in (4, n))
    x = [random_array(few.inputs[0])]
    assert 3 * steps(few, x, monkeypatch) < steps(all_, x, monkeypatch)


# Rows of tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 7, 64, 67])
def test_a_row_of_a_table_is_loaded_not_gathered(width: int) -> None:
    """Each element of a row was gathered at an address of its own, in a concatenation under a mask."""

    def build(b: GraphBuilder) -> list[Tensor]:
        x, i, j = b.input("x", (9, width), "f32"), b.input("i", (13,), "i64"), b.input("j", (13,), "i32")
        rows = [indexing.gather(x, at) for at in (i, j)]
        return [*rows, shape.concat([*rows, b.input("y", (13, 3), "f32")], axis=1)]

    graph = built(build)
    rng = np.random.default_rng(0)
    inputs = {tensor.name: random_array(tensor, 0) for tensor in graph.inputs}
    agrees(graph, {**inputs, "i": rng.integers(-30, 30, 13), "j": rng.integers(-9, 9, 13).astype(np.int32)})
    program = compile_graph(replace(graph, outputs=graph.outputs[:1]), "host", 1, UNCACHED).artifact.program
    assert width < 64 or "tile.gather" not in program  # short rows: vectors across them
