"""Products run what a mapping onto a record says, and nothing else: take records away, add some, rename everything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tests.covering import some, tries
from tests.random_graphs import graphs, random_inputs
from tilewright.codegen.cpu.pipeline import assembly
from tilewright.compiler.compile import build, compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.tests.bounded import evaluate_bounded, violations
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Compute, Expr, Read, Tensor
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import catalogue, conv, elementwise, linalg
from tilewright.expr.rewrite import transform
from tilewright.expr.text import parse_graph
from tilewright.instruction.products import product_factors
from tilewright.intrinsics.composite import outer
from tilewright.intrinsics.registry import Registry, standard
from tilewright.kernel.text import parse_module
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options
from tilewright.tiles.product import products_of

SUBJECT = "instruction of "


def instructions(plan: Plan) -> list[Decision]:
    """What was decided about the instruction of each product."""
    return [each for each in plan.decisions if each.subject.startswith(SUBJECT)]


def chosen(graph: Graph, machine: str, registry: Registry | None = None) -> str:
    """The instruction of the only product of a graph; empty for a nest."""
    found = instructions(make_plan(graph, resolve_cpu(machine), 1, Options(intrinsics=registry)))
    return found[0].chosen.removeprefix("none").rpartition(" on ")[2] if found else ""


def ways(graph: Graph, machine: str) -> Iterator[tuple[str, Registry]]:
    """The best instruction with the registry that has it, the best without that one, and so on to the nest."""
    registry = standard()
    while True:
        name = chosen(graph, machine, registry)
        yield name, registry
        if not name:
            return
        registry = registry.without(name)


def check(graph: Graph, registry: Registry, seed: int = 0) -> None:
    """Compile with the records of `registry` for the machine at hand, run, and hold every output against its bound."""
    inputs = random_inputs(graph, seed)
    module = compile_graph(graph, "host", 1, Options(cache=False, intrinsics=registry))
    found = module(*(inputs[tensor.name] for tensor in graph.inputs))
    results = found if isinstance(found, tuple) else (found,)
    for tensor, result, bound in zip(graph.outputs, results, evaluate_bounded(graph, inputs), strict=True):
        wrong = violations(result, bound)
        assert not wrong.any(), f"{tensor}: {int(wrong.sum())} wrong, first at {np.argwhere(wrong)[0].tolist()}"


def product(a: str, b: str, to: str) -> Graph:
    """``total[i, j] = sum_k rows[i, k] * columns[k, j]``, of odd extents."""
    i, j, k = Axis("i", 13), Axis("j", 35), Axis("k", 37)
    x, w = Tensor("rows", (13, 37), a), Tensor("columns", (37, 35), b)
    node = Compute(Tensor("total", (13, 35), to), (i, j), x[i, k].cast(to) * w[k, j].cast(to), (k,), "sum")
    return Graph((x, w), (node.output,), (node,))


def convolution(a: str, b: str, to: str) -> Graph:
    """A 3 x 3 convolution with stride 2 of an image with 7 channels."""
    f, p, q, c, r, s = (Axis(name, extent) for name, extent in zip("fpqcrs", (19, 4, 5, 7, 3, 3), strict=True))
    x, w = Tensor("image", (7, 9, 11), a), Tensor("filters", (19, 7, 3, 3), b)
    body = x[c, 2 * p + r, 2 * q + s].cast(to) * w[f, c, r, s].cast(to)
    node = Compute(Tensor("total", (19, 4, 5), to), (f, p, q), body, (c, r, s), "sum")
    return Graph((x, w), (node.output,), (node,))


# Records taken away ----------------------------------------------------------------------------------------------

TYPES = [
    ("f32", "f32", "f32"), ("f64", "f64", "f64"), ("bf16", "bf16", "f32"), ("u8", "i8", "i32"), ("i8", "i8", "i32"),
]  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("graph_of", [product, convolution])
@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_the_next_best_instruction_runs_when_one_is_taken_away(
    graph_of: Callable[..., Graph], types: tuple[str, str, str]
) -> None:
    graph = graph_of(*types)
    seen = []
    for name, registry in ways(graph, "host"):
        check(graph, registry)
        seen.append(name)
    assert len(seen) == len(set(seen)) >= 2, "at least the portable record, then the nest"
    assert seen[-1] == ""


@pytest.mark.parametrize(
    ("types", "machine", "expected"),
    [
        (("f32", "f32", "f32"), "x86-64-v4", "fma_16 fma_8 fma_4"),
        (("f32", "f32", "f32"), "x86-64-v2", "fma_4"),
        (("f64", "f64", "f64"), "x86-64-v3", "fma_4 fma_2"),
        (
            ("bf16", "bf16", "f32"),
            "znver5",
            "vdpbf16ps_16x2 vdpbf16ps_8x2 vdpbf16ps_4x2 widen_16 widen_8 fma_16 fma_8 fma_4 widen_4",
        ),
        (
            ("u8", "i8", "i32"),
            "znver5",
            "vpdpbusd_16x4 vpdpbusd_8x4 vpdpbusd_4x4 widen_16 widen_8 vpmaddwd_16x2 vpmaddwd_8x2 vpmaddwd_4x2 widen_4",
        ),
    ],
)
def test_the_order_of_instructions(types: tuple[str, str, str], machine: str, expected: str) -> None:
    """Families and shapes, best first, then the nest; records that differ in types alone count once.

    Factors of so few products are converted before only where products would take all the longer.
    """
    found = ["_".join(name.split("_")[:2]) for name, _ in ways(product(*types), machine)]
    assert list(dict.fromkeys(found)) == [*expected.split(), ""]


def test_what_the_machine_lacks_is_refused_by_name_and_rule() -> None:
    (decision,) = instructions(make_plan(product("f32", "f32", "f32"), resolve_cpu("x86-64-v3"), 1))
    assert ("fma_16_f32_f32", "the machine has its features", "lacks avx512f") in [
        (each.candidate, each.rule, each.values) for each in decision.refused
    ]
    assert "refused: fma_16_f32_f32 by the machine has its features: lacks avx512f" in decision.explain()


def test_a_refusal_is_told_once() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (1, 16), "u8"), b.input("w", (16, 1), "i8")
    total = linalg.matmul(x, w, accumulate="i32", out_dtype="i32")
    (decision,) = instructions(make_plan(b.finish([total]), resolve_cpu("x86-64-v4"), 1))
    told = [str(each) for each in decision.refused]
    assert len(set(told)) == len(told) >= 2


@pytest.mark.parametrize(("machine", "family"), [("x86-64-v3", "vpmaddwd_8x2"), ("aarch64", "widen_4")])
def test_constant_filters_are_the_vector_whichever_order_a_record_names_the_types_in(machine: str, family: str) -> None:
    graph = convolution("u8", "i8", "i32")
    graph = replace(graph, inputs=graph.inputs[:1], constants={"filters": np.ones((19, 7, 3, 3), np.int8)})
    (decision,) = instructions(make_plan(graph, resolve_cpu(machine), 1))
    assert re.search(rf"\|f\|[crs]+\) on {family}_", decision.chosen)  # rows follow from the register tile


@pytest.mark.parametrize(("a", "b", "instruction"), [("i8", "i8", "sdot"), ("u8", "u8", "udot"), ("u8", "i8", "usdot")])
def test_products_of_bytes_on_arm_are_dot_products(a: str, b: str, instruction: str) -> None:
    machine = resolve_cpu("aarch64")
    machine = replace(machine, features=machine.features | {"dotprod", "i8mm"})
    graph = parse_graph(f"""
        input X: {a}[7, 30]
        input W: {b}[30, 19]
        Y: i32[i:7, j:19] += i32(X[i, k]) * i32(W[k, j]) over k:30
        output Y""")
    program = build(graph, machine, 1, Options(cache=False)).program
    assert re.search(rf"\b{instruction}\b", assembly(parse_module(program)))


# Records added ---------------------------------------------------------------------------------------------------


def only(rows: int, vectors: int, base: str) -> Registry:
    """A registry of one instruction and its outer product of `rows` by `vectors` registers."""
    record = standard().find(base)
    return Registry((outer(record, rows, vectors), record))


def large_product() -> Graph:
    """One that fills register tiles of any shape."""
    builder = GraphBuilder("large")
    x, w = builder.input("rows", (96, 64), "f32"), builder.input("columns", (64, 384), "f32")
    return builder.finish([linalg.matmul(x, w, name="total")])


def test_an_outer_product_of_registers_is_what_the_code_is_made_of() -> None:
    graph, machine = large_product(), resolve_cpu("x86-64-v4")
    built = {}
    for shape in ((6, 4), (4, 6)):
        options = Options(cache=False, intrinsics=only(*shape, "fma_16_f32_f32"))
        artifact = build(graph, machine, 1, options)
        (tile,) = re.findall(r"tile\.dot .*tensor<(\d+)x(\d+)xf32>$", artifact.program, re.MULTILINE)
        built[shape] = tuple(map(int, tile)), artifact.code
    assert built[6, 4][0] == (6, 64)
    assert built[4, 6][0] == (4, 96)
    assert built[6, 4][1] != built[4, 6][1]


@pytest.mark.parametrize("shape", some([(4, 6), (6, 4), (1, 1), (2, 3)], 2), ids=str)
def test_any_outer_product_of_registers_computes_the_same(shape: tuple[int, int]) -> None:
    for graph in (large_product(), product("f32", "f32", "f32"), convolution("f32", "f32", "f32")):
        check(graph, only(*shape, chosen(graph, "host")))


@pytest.mark.parametrize("types", [("f32", "bf16"), ("bf16", "f32"), ("f16", "f32")], ids="-".join)
def test_filters_are_the_vector_whichever_way_round_mixed_types_are_listed(types: tuple[str, str]) -> None:
    graph = convolution(*types, "f32")
    filters = np.random.default_rng(0).uniform(-1, 1, (19, 7, 3, 3)).astype(dtypes.numpy_dtype(types[1]))
    graph = replace(graph, inputs=graph.inputs[:1], constants={"filters": filters})
    (decision,) = instructions(make_plan(graph, resolve_cpu("host"), 1))
    assert re.search(r"\(.*\|f\|.*\) on \S+, .* vectors of filters(\.f32)?, constant", decision.explain())
    check(graph, standard())


# Names -----------------------------------------------------------------------------------------------------------


def renamed(graph: Graph) -> Graph:
    """The graph with other names of all tensors, loops and nodes, in the opposite alphabetic order."""
    tensors = [*graph.inputs, *(node.output for node in graph.nodes)]
    old = sorted({*(tensor.name for tensor in tensors), *graph.constants})
    names = {name: f"renamed{99 - number:02}" for number, name in enumerate(old)}

    def tensor(each: Tensor) -> Tensor:
        return replace(each, name=names[each.name])

    def node(each: Compute) -> Compute:
        axes = {axis: Axis(f"loop{99 - number:02}", axis.extent) for number, axis in enumerate(each.loops)}

        def moved(expr: Expr) -> Expr | None:
            if isinstance(expr, Axis):
                return axes[expr]
            return Read(tensor(expr.tensor), expr.indices) if isinstance(expr, Read) else None

        return Compute(tensor(each.output), tuple(map(axes.__getitem__, each.axes)), transform(each.body, moved),
                       tuple(map(axes.__getitem__, each.reduce)), each.accum, "another")  # fmt: skip

    constants = {names[name]: array for name, array in graph.constants.items()}
    inputs, outputs = tuple(map(tensor, graph.inputs)), tuple(map(tensor, graph.outputs))
    return Graph(inputs, outputs, tuple(map(node, graph.nodes)), constants, "another")


def network() -> Graph:
    """A convolution with weights, a product with variables, element-wise work on both."""
    builder = GraphBuilder("network")
    weights = np.random.default_rng(0).standard_normal((24, 8, 3, 3), np.float32)
    image, filters = builder.input("image", (1, 8, 10, 10), "f32"), builder.constant(weights, "filters")
    x = elementwise.relu(conv.conv(image, filters, pads=1, name="convolved"), name="kept")
    y = linalg.matmul(x, builder.input("matrix", (10, 50), "f32"), name="multiplied")
    return builder.finish([elementwise.relu(y, name="result")])


@pytest.mark.parametrize("machine", ["x86-64-v4", "x86-64-v3", "aarch64"])
def test_names_change_nothing(machine: str) -> None:
    graph = network()
    other = renamed(graph)
    assert not {tensor.name for tensor in graph.inputs} & {tensor.name for tensor in other.inputs}
    options = Options(cache=False)
    first, second = (build(each, resolve_cpu(machine), 2, options) for each in (graph, other))
    assert first.code != second.code or first.program != second.program, "kernels are named after their nodes"
    assert instructions_of(first.program) == instructions_of(second.program)
    assert machine_code(first.code) == machine_code(second.code) != b""


def instructions_of(program: str) -> list[str]:
    """The lines of a tile program, texts in quotes and symbols left out."""
    return [re.sub(r'"[^"]*"|@[\w.$-]+', "", line) for line in program.splitlines()]


def machine_code(code: bytes) -> bytes:
    """The functions of an object, without symbols and their names."""
    from llvmlite.binding.object_file import ObjectFileRef

    sections = ObjectFileRef.from_data(code).sections()
    return b"".join(section.data() for section in sections if section.is_text())


def test_nothing_is_named_after_the_columns_of_images() -> None:
    """Only the ONNX operator and the mode of PTX's tensor copies, whose names are not ours, may say so."""
    package = Path(tilewright.__file__).parent
    found = [
        f"{path.relative_to(package)}:{number}: {line.strip()}"
        for path in package.rglob("*.py")
        if not {"tests", "emulator"} & set(path.relative_to(package).parts)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"im2col|col2im|im2row", line.replace('@op("Col2Im")', ""), re.IGNORECASE)
    ]
    assert found == []


# What is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "matrices", "lane_by_lane"), some([("mobilenet-v2", 36, 17), ("bert-layer", 8, 0), ("resnet18", 21, 0)], 2)
)
def test_every_product_of_a_network_says_what_it_maps_to(name: str, matrices: int, lane_by_lane: int) -> None:
    """And those that run as outer products of registers what came second, or why nothing could."""
    pytest.importorskip("torch")
    from examples.networks import build as build_network
    from tilewright.frontend.torch import import_module

    module, inputs = build_network(name)
    plan = make_plan(import_module(module, tuple(inputs.values())), resolve_cpu("znver5"), 1)
    decisions = [each for each in instructions(plan) if each.chosen != "none"]
    factors = {node.name: product_factors(node) for node in plan.graph.nodes}
    products = {name for name, pair in factors.items() if pair is not None and pair[0] != pair[1]}  # squares are rows
    assert {decision.subject.removeprefix(SUBJECT) for decision in decisions} == products
    depthwise = [each for each in decisions if re.fullmatch(r"\(.+\) on fma_full_16_f32_f32", each.chosen)]
    assert len(depthwise) == lane_by_lane
    others = [each for each in decisions if each not in depthwise]
    assert len(others) == matrices == sum(len(products_of(kernel.scheduled)) for kernel in plan.kernels)
    for decision in others:
        assert re.fullmatch(r"\(.+\|.+\|.+\) on fma_16_f32_f32", decision.chosen)
        text = decision.explain()
        assert "at full rate" in text
        second = re.search(r"\n  second: \(.+\|.+\|.+\) on \w+ with vectors of \S+ \(.+\)", text)
        refused = re.search(r"\n  refused: (\w+ with b = \S+ by |\(.+\) on \w+ by \S+ can be packed)", text)
        assert second or refused, text
    assert sum(bool(decision.runner_up) for decision in others) >= matrices - 2


# Any records -----------------------------------------------------------------------------------------------------

INSTRUCTIONS = sorted({record.realised_by for record in standard() if record.emitter and record.realised_by})
BUILD: Callable[..., Graph] = catalogue.build
OPERATORS: list[tuple[str, dict[str, int]]] = [
    ("GMM", {"m": 9, "n": 21, "k": 11}),
    ("GMV", {"rows": 19, "columns": 13}),
    ("BIL", {"n": 3, "m": 5, "k": 7, "l": 11}),
    ("C1D", {"batch": 1, "c": 3, "size": 9, "k": 9}),
    ("C2D", {"batch": 1, "c": 5, "size": 7, "k": 9, "stride": 2}),
    ("C3D", {"batch": 1, "c": 3, "size": 4, "k": 5, "depth": 3}),
    ("T2D", {"batch": 1, "c": 3, "size": 4, "k": 9}),
    ("GRP", {"batch": 1, "c": 6, "size": 5, "k": 18, "groups": 2}),
    ("DEP", {"batch": 1, "c": 5, "size": 6, "multiplier": 2}),
    ("DIL", {"batch": 1, "c": 3, "size": 8, "k": 5}),
]


@st.composite
def registries(draw: st.DrawFn) -> Registry:
    """The catalogue without some of the instructions that products can use."""
    kept, random = draw(st.sampled_from((0.2, 0.5, 0.8))), draw(st.randoms(use_true_random=False))
    return standard().without(*(name for name in INSTRUCTIONS if random.random() > kept))


@settings(max_examples=tries(2, full=10), deadline=None)
@given(registry=registries(), case=st.sampled_from(OPERATORS), seed=st.integers(0, 99))
def test_operators_agree_with_the_evaluator_whatever_records_there_are(
    registry: Registry, case: tuple[str, dict[str, int]], seed: int
) -> None:
    operator, sizes = case
    check(BUILD(operator, **sizes), registry, seed)


@settings(max_examples=tries(2, full=10), deadline=None)
@given(registry=registries(), graph=graphs(nodes=4, points=2048), seed=st.integers(0, 99))
def test_random_graphs_agree_with_the_evaluator_whatever_records_there_are(
    registry: Registry, graph: Graph, seed: int
) -> None:
    check(graph, registry, seed)


def test_a_refused_operand_names_its_record() -> None:
    """The order of the factors of a product with a vector that has no loop of its own is refused once per record."""
    b = GraphBuilder("matvec")
    y = linalg.matmul(b.input("a", (32, 64), "f32"), b.input("x", (64, 1), "f32"), name="y")
    (decision,) = instructions(make_plan(b.finish([y]), resolve_cpu("x86-64-v3"), 1))
    candidates = [each.candidate for each in decision.refused if "a loop indexes b" in each.rule]
    assert candidates, decision.explain()
    assert all(re.fullmatch(r"\w+ with b = \S+", each) for each in candidates)
    assert {each.split()[0] for each in candidates} <= {record.name for record in standard()}
