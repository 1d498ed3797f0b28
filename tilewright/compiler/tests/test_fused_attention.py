"""Attention as one kernel on CPUs: rows whole or in blocks that go on, and keys that a causal mask hides left out."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import build, compile_graph, resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import planned_launches
from tilewright.errors import CompileError
from tilewright.expr.core import static_shape
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.expr.ops.attention import attention
from tilewright.expr.ops.norm import softmax
from tilewright.expr.text import parse_graph
from tilewright.machine import resolve_cpu
from tilewright.operator.rules import cpu_fused
from tilewright.options import Options
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.tree import InvalidTree, kernels, to_json

Array = np.ndarray[Any, Any]
ALWAYS, NEVER = (Options(cache=False, fuse=choice) for choice in ("always", "never"))
SMALL_L2 = 1 << 17  # bytes: blocks of some hundred keys


def attended(
    heads: int, rows: int, keys: int, sizes: tuple[int, int], scale: float = 0.25, offset: int | None = None,
    mask: str = "",
) -> Graph:  # fmt: skip
    """Attention with heads of `sizes` in q and k, and in v; with an offset it is causal; `mask` is a type."""
    b = GraphBuilder("attended")
    q, k, v = (
        b.input(name, (heads, length, size), "f32")
        for name, length, size in (("q", rows, sizes[0]), ("k", keys, sizes[0]), ("v", keys, sizes[1]))
    )
    added = b.input("mask", (rows, keys), mask) if mask else None
    causal = {} if offset is None else {"causal": True, "causal_offset": offset}
    return b.finish([attention(q, k, v, added, scale=scale, **causal)])  # type: ignore[arg-type]


def inputs(graph: Graph) -> list[Array]:
    """Numbers about 1; a mask hides a third of the elements, and all of one row."""
    generator = np.random.default_rng(0)
    found: list[Array] = []
    for tensor in graph.inputs:
        shape = static_shape(tensor.shape)
        values: Array = generator.standard_normal(shape).astype(np.float32)
        if tensor.name == "mask":
            hidden = values > 0.4
            hidden[shape[0] // 2] = True
            values = ~hidden if tensor.dtype == "bool" else np.where(hidden, -np.inf, values)
        found.append(values)
    return found


def exact(values: list[Array], scale: float, offset: int | None) -> Array:
    """Attention in float64."""
    q, k, v = (each.astype(np.float64) for each in values[:3])
    scores = scale * q @ k.transpose(0, 2, 1)
    for mask in values[3:]:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if offset is not None:
        seen = np.arange(k.shape[1]) <= np.arange(q.shape[1])[:, None] + offset
        scores = np.where(seen, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


def fused_tree(plan: Plan) -> str:
    """The tree of the kernel with both products; empty where they are apart."""
    found = [kernel.scheduled.tree for kernel in plan.kernels if len(kernels(kernel.scheduled.tree)) > 1]
    return print_tree(found[0]) if found else ""


def planned(graph: Graph, options: Options = ALWAYS, threads: int = 1, machine: str = "host") -> Plan:
    return make_plan(graph, resolve_cpu(machine), threads, options)


LENGTHS = st.sampled_from([1, 7, 17, 97, 100, 211, 401])
HEADS = st.sampled_from([1, 8, 17, 64])


@example(heads=2, rows=100, keys=401, sizes=(64, 64), scale=0.125, offset=None, mask="", small=True, threads=2)
@example(heads=1, rows=211, keys=401, sizes=(17, 8), scale=1.0, offset=150, mask="bool", small=True, threads=1)
@example(heads=2, rows=97, keys=97, sizes=(64, 17), scale=0.125, offset=0, mask="f32", small=False, threads=1)
@example(heads=1, rows=401, keys=401, sizes=(64, 64), scale=0.125, offset=-7, mask="", small=True, threads=2)
@given(
    heads=st.integers(1, 2), rows=LENGTHS, keys=LENGTHS, sizes=st.tuples(HEADS, HEADS),
    scale=st.sampled_from([1.0, 0.125, -0.5]), offset=st.sampled_from([None, None, 0, 3, 60, -5]),
    mask=st.sampled_from(["", "", "bool", "f32"]), small=st.booleans(), threads=st.integers(1, 2),
)  # fmt: skip
@settings(max_examples=tries(1, full=60), deadline=None)
def test_one_kernel_attends(
    heads: int, rows: int, keys: int, sizes: tuple[int, int], scale: float, offset: int | None, mask: str,
    small: bool, threads: int,
) -> None:  # fmt: skip
    """Against the evaluator; rows without a key are NaN; as good as kernels of their own against float64."""
    graph = attended(heads, rows, keys, sizes, scale, offset, mask)
    values = inputs(graph)
    (expected,) = evaluate(graph, values)
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2 if small else 1 << 21):
        found = compile_graph(graph, threads=threads, options=ALWAYS)(*values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    apart = compile_graph(graph, threads=threads, options=NEVER)(*values)
    right = exact(values, scale, offset)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
    errors = [np.nanmax(np.abs(each - right), initial=0) for each in (found, apart)]
    assert errors[0] <= 2 * errors[1] + 2.0**-22  # where kernels apart happen to be exact, two roundings


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("keys", [200, 700])
def test_other_types_attend(dtype: str, keys: int) -> None:
    """Weights that are rounded are in buffers of their own type, and are added up as they are multiplied."""
    b = GraphBuilder("attended")
    q, k, v = (b.input(name, (1, length, 64), dtype) for name, length in (("q", 50), ("k", keys), ("v", keys)))
    graph = b.finish([attention(q, k, v, scale=0.125, causal=True, causal_offset=keys - 60)])
    values = [each.astype(numpy_dtype(dtype)) for each in inputs(graph)]
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        assert keys == 200 or "seq[@L3 for l:" in fused_tree(planned(graph))
        found = compile_graph(graph, threads=1, options=ALWAYS)(*values)
    right = exact(values, 0.125, keys - 60)
    atol = {"f16": 2.0**-9, "bf16": 2.0**-6, "f64": 1e-14}[dtype]  # two roundings of values below 1
    np.testing.assert_allclose(np.asarray(found, np.float64), right, rtol=0, atol=atol)


@pytest.mark.parametrize("offset", [None, 0])
def test_keys_are_cut_where_whole_rows_do_not_fit(offset: int | None) -> None:
    graph = attended(2, 200, 640, (64, 64), offset=offset)
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        tree = fused_tree(planned(graph))
    assert "stage attention.sum in L2 { seq[@L3 for l:" in tree, tree


@pytest.mark.parametrize(("keys", "whole"), [(256, True), (512, True), (2048, False)])
def test_keys_are_whole_where_half_of_l2_holds_those_of_a_head(keys: int, whole: bool) -> None:
    """Blocks of half of 256 keys were predicted to cost what one kernel gains, so that there were three."""
    graph, machine = attended(12, 256, keys, (64, 64)), resolve_cpu("znver1")
    tree = fused_tree(make_plan(graph, machine, 1, Options(cache=False)))
    assert tree
    assert ("stage" not in tree) == whole, tree


@pytest.mark.parametrize("small", [False, True])
def test_keys_that_no_row_of_a_block_sees_are_not_computed(small: bool) -> None:
    """A key of no numbers makes those of every row that computes with it none, and 0 of the rows that do not see it."""
    graph = attended(1, 400, 400, (64, 64), offset=0)
    q, k, v = inputs(graph)
    v[0, 300:] = np.nan
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2 if small else 1 << 21):
        assert ("stage" in fused_tree(planned(graph))) == small
        found = compile_graph(graph, threads=1, options=ALWAYS)(q, k, v)
    v[0, 300:] = 0
    np.testing.assert_allclose(found[0, :128], exact([q, k, v], 0.25, 0)[0, :128], rtol=0, atol=1e-5)
    assert np.isnan(found[0, 300:]).all()


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("key", [0, 7, 300, 639])
def test_a_score_of_no_number_makes_its_whole_row_none(key: int, small: bool) -> None:
    """The largest score passes over it, in any block; the sum of the exponentials does not."""
    graph = attended(1, 40, 640, (64, 64), mask="f32")
    q, k, v, mask = inputs(graph)
    mask[:] = 0
    mask[5, key], mask[6, key] = np.nan, np.inf
    mask[7, :], mask[7, key] = -np.inf, np.nan
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2 if small else 1 << 21):
        assert ("stage" in fused_tree(planned(graph))) == small
        found = compile_graph(graph, threads=1, options=ALWAYS)(q, k, v, mask)
    others = np.delete(np.arange(40), [5, 6, 7])
    assert np.isnan(found[0, 5:8]).all()
    np.testing.assert_allclose(found[0, others], exact([q, k, v, mask], 0.25, None)[0, others], rtol=0, atol=1e-5)


def test_a_mask_that_follows_no_row_leaves_nothing_out() -> None:
    """Rows of no key at all compute the first keys, as a softmax of nothing is no number."""
    graph = attended(1, 200, 300, (16, 16), offset=-150)
    values = inputs(graph)
    found = compile_graph(graph, threads=1, options=ALWAYS)(*values)
    assert np.isnan(found[0, :150]).all()
    np.testing.assert_allclose(found[0, 150:], exact(values, 0.25, -150)[0, 150:], rtol=0, atol=1e-5)


def test_a_row_whose_first_blocks_are_hidden() -> None:
    graph = attended(1, 64, 640, (64, 64), mask="f32")
    q, k, v, mask = inputs(graph)
    mask[:, :500], mask[:, 500:] = -np.inf, 0
    mask[3] = np.finfo(np.float32).min  # all alike: the mean of the values, as the lowest number is no infinity
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        assert "stage" in fused_tree(planned(graph))
        found = compile_graph(graph, threads=1, options=ALWAYS)(q, k, v, mask)
    np.testing.assert_allclose(found, exact([q, k, v, mask], 0.25, None), rtol=0, atol=1e-5)


def test_rows_without_a_key_that_a_model_defines_as_zeros() -> None:
    graph = parse_graph("""
        graph zeros
        input Q: f32[50, 32]
        input K: f32[32, 120]
        input V: f32[120, 40]
        C: f32[m:50, l:120] += Q[m, k] * K[k, l] over k:32
        S: f32[m:50, l:120] = (l < 3*m - 20 ? C[m, l] * 0.25 : -inf)
        Max: f32[m:50] max= S[m, l] over l:120
        Exp: f32[m:50, l:120] = exp(S[m, l] - Max[m])
        Sum: f32[m:50] += Exp[m, l] over l:120
        P: f32[m:50, l:120] = (Max[m] > -inf ? Exp[m, l] / Sum[m] : 0.0)
        E: f32[m:50, n:40] += P[m, l] * V[l, n] over l:120
        output E""")
    values = inputs(graph)
    assert fused_tree(planned(graph))
    found = compile_graph(graph, threads=1, options=ALWAYS)(*values)
    assert not found[:7].any()
    np.testing.assert_allclose(found, evaluate(graph, values)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("machine", ["host", "sm_90a"])
def test_equal_layers_are_one_code(machine: str) -> None:
    """Sums that follow a softmax kept the name of their factor, so that each layer had code of its own."""
    b = GraphBuilder("layers")
    x = b.input("x", (2, 128, 64), "f16" if machine == "sm_90a" else "f32")
    for _ in range(3):
        x = attention(x, x, x, scale=0.25)
    manifest = build(b.finish([x]), resolve_target(machine), 1, ALWAYS).manifest
    fused = [launch for launch in manifest.launches if launch.flops >= 4 * 2 * 128 * 128 * 64]
    assert len(fused) == 3
    assert len({launch.kernel for launch in fused}) == 1


def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    taken = []
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        for length in (512, 1024, 2048):
            manifest = build(attended(1, length, length, (64, 64), offset=0), resolve_cpu("host"), 1, ALWAYS).manifest
            taken.append(manifest.arena_bytes + manifest.scratch_bytes)
    assert taken[1] <= 2 * taken[0]
    assert taken[2] <= 2 * taken[1]


# Decisions ------------------------------------------------------------------------------------------------------------


def test_decisions_have_the_cycles_of_all_ways() -> None:
    graph = attended(12, 700, 448, (64, 64))
    decisions = {each.subject: each for each in planned(graph, Options(cache=False), machine="znver5").decisions}
    fusion = decisions["fusion of attention.masked + attention.weights + attention"]
    blocks = decisions["blocks of attention"]
    for each in (fusion, blocks):
        assert each.cost is not None, each.explain()
        assert each.runner_up_cost is not None, each.explain()
        assert each.cost.cycles < each.runner_up_cost.cycles, each.explain()  # type: ignore[operator]
    assert ("l in blocks of" in blocks.chosen) != ("l in blocks of" in str(blocks.runner_up))


@pytest.mark.parametrize("offset", [None, 0])
def test_a_mask_takes_no_operations_from_what_it_hides(offset: int | None) -> None:
    """A causal kernel was predicted to take no less than all keys would at the rate of its instruction."""
    machine = resolve_cpu("znver1")
    plan = planned(attended(12, 1024, 1024, (64, 64), offset=offset), Options(cache=False), machine="znver1")
    (launch,) = [each for each in planned_launches(plan) if each.instruction]
    least = launch.flops / 16 / machine.fma_units
    assert least < launch.cycles < 1.4 * least


def test_hidden_keys_are_not_predicted() -> None:
    costs = [
        planned(attended(12, 1024, 1024, (64, 64), offset=offset)).decisions for offset in (None, 0)
    ]  # fmt: skip
    full, causal = (
        next(each.cost.cycles for each in found if each.subject.startswith("fusion of") and each.cost is not None)
        for found in costs
    )
    assert 0.5 < causal / full < 0.65  # type: ignore[operator]


# Trees that are given -------------------------------------------------------------------------------------------------


def in_blocks(machine: str = "host") -> tuple[Graph, str, Kernel]:
    """Attention with the name and the kernel that it has in blocks of keys."""
    graph = attended(2, 204, 640, (64, 64))
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        plan = make_plan(graph, resolve_cpu(machine), 1, ALWAYS)
    ((name, kernel),) = (
        (each.name, each.scheduled) for each in plan.kernels if len(kernels(each.scheduled.tree)) > 1
    )  # fmt: skip
    return graph, name, kernel


def test_a_tree_with_blocks_of_keys_is_what_runs() -> None:
    graph, name, kernel = in_blocks()
    options = Options(cache=False, trees={name: to_json(kernel.tree)})
    assert fused_tree(planned(graph, options)) == print_tree(kernel.tree) != fused_tree(planned(graph))
    values = inputs(graph)
    found = compile_graph(graph, threads=1, options=options)(*values)
    np.testing.assert_allclose(found, exact(values, 0.25, None), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("h:1, i:5 {", "h:1, i:5, l:2 {", "L5 softmax: l:2 at L3 surrounds attention.weights.sum and attention,"),
        ("@L3 for l:5", "@L3 for l:5, k:2", "L3 producer reduction: k:2 at L3 surrounds attention.scores"),
        ("@L3 for l:5", "@L3 for l:5, j:2", "L4 foreign loop: j:2 at L3 is no loop of"),
        ("@L3 for l:5", "@L3 for l:4", "L1 coverage: loop l of"),
        ("@L1 for l:32", "@L1 for l:48", "a block of l has 128 in attention.masked, 192 in attention"),
        ("@L1 for l:2 { @REG unroll l:4 { par l:16 { op attention.weights.max",
         "@L1 for l:1 { @REG unroll l:12 { par l:16 { op attention.weights.max",
         "a block of l has 128 points, a step of attention.weights.max 192"),
        ("@L1 for l:2 { @REG unroll l:4 { par l:16 { op attention.weights.max } } }",
         "@REG unroll l:128 { op attention.weights.max }",
         "a step of attention.weights.max has 128 points of l, which blocks cut"),
        ("stage attention.sum in L2", "stage attention.scores in L2", "stage attention.scores in L2 slots 1 does not"),
    ],
)  # fmt: skip
def test_an_illegal_tree_says_where(before: str, after: str, message: str) -> None:
    graph, name, kernel = in_blocks("znver5")
    text = print_tree(kernel.tree)
    assert before in text, text
    edited = parse_tree(text.replace(before, after), kernels(kernel.tree))
    with pytest.raises(CompileError, match=re.escape(message)) as caught:
        make_plan(graph, resolve_cpu("znver5"), 1, Options(cache=False, trees={name: to_json(edited)}))
    assert caught.value.where.startswith(f"tile tree of {name}")
    assert caught.value.help


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_mask_that_hides_the_first_keys_of_halves_leaves_the_others(dtype: str) -> None:
    """The largest value begins with the lowest number of its type: of an infinity the factor of sums would be none."""
    b = GraphBuilder("attended")
    q, k, v = (b.input(name, shape, dtype) for name, shape in (("q", (50, 64)), ("k", (64, 700)), ("v", (700, 40))))
    mask = b.input("mask", (50, 700), dtype)
    graph = b.finish([linalg.matmul(softmax(linalg.matmul(q, k) + mask), v)])
    values = [(0.25 * each).astype(numpy_dtype(dtype)) for each in inputs(graph)[:3]]
    hidden = np.where(np.arange(700) < 300, -np.inf, 0) + np.zeros((50, 1))
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        assert "seq[@L3 for " in fused_tree(planned(graph))
        found = compile_graph(graph, threads=1, options=ALWAYS)(*values, hidden.astype(numpy_dtype(dtype)))
    scores = values[0].astype(np.float64) @ values[1].astype(np.float64) + hidden
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ values[2].astype(np.float64)
    atol = {"f16": 2.0**-9, "bf16": 2.0**-6}[dtype]
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=atol)


@pytest.mark.parametrize(("scored", "weighted"), [("f32", "f64"), ("f64", "f32"), ("f16", "f32")])
def test_products_of_another_type_than_the_softmax_attend(scored: str, weighted: str) -> None:
    b = GraphBuilder("attended")
    types = scored, scored, weighted
    q, k, v = (b.input(name, (1, rows, 64), t) for name, rows, t in zip("qkv", (50, 700, 700), types, strict=True))
    graph = b.finish([attention(q, k, v, scale=0.125)])
    values = [each.astype(numpy_dtype(t)) for each, t in zip(inputs(graph), types, strict=True)]
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        found = compile_graph(graph, threads=1, options=ALWAYS)(*values)
    atol = 1e-5 if "f16" not in (scored, weighted) else 2.0**-9
    np.testing.assert_allclose(np.asarray(found, np.float64), exact(values, 0.125, None), rtol=0, atol=atol)


def test_a_pass_of_largest_value_and_sum_is_refused_where_blocks_cut_keys() -> None:
    graph = attended(2, 50, 960, (64, 64))
    with patch.object(cpu_fused, "l2_bytes", lambda _: SMALL_L2):
        plan = planned(graph)
        (kernel,) = (each for each in plan.kernels if len(kernels(each.scheduled.tree)) > 1)
        text = print_tree(kernel.scheduled.tree)
        of_max = r"(@L1 for l:\d+ \{ )(@REG unroll l:\d+ \{ par l:\d+ \{ op attention.weights.max \} \}) \}, "
        of_both = (
            r"@L1 for l:\d+ \{ seq\[([^\[]* op attention.weights \} \}), (.*? op attention.weights.sum \} \})\] \}"
        )
        largest, both = re.search(of_max, text), re.search(of_both, text)
        assert largest is not None
        assert both is not None, text
        edited = text.replace(largest[0], "").replace(
            both[0], f"{largest[1]}seq[{largest[2]}, {both[2]}] }}, {largest[1]}{both[1]} }}"
        )
        tree = to_json(parse_tree(edited, kernels(kernel.scheduled.tree)))
        with pytest.raises(InvalidTree, match="sum has a pass with what it follows, of rows that blocks of l cut"):
            planned(graph, Options(cache=False, fuse="always", trees={kernel.name: tree}))
