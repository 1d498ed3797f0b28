"""Two products as one kernel on a GPU: right on random sizes, with and without a softmax, and chosen by cycles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as draws
from hypothesis import settings
from hypothesis import strategies as st
from xdsl.dialects import scf

from tests.covering import some, tries
from tilewright.codegen.nvptx.pipeline import generate
from tilewright.compiler import gpu, gpu_fused
from tilewright.compiler.compile import compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.program import Placement
from tilewright.compiler.tests.edited_trees import given
from tilewright.decision import Decision
from tilewright.errors import CompileError
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.attention import attention
from tilewright.expr.text import parse_graph
from tilewright.instruction.gpu_products import matrix_records
from tilewright.kernel import dialect as tile
from tilewright.machine.registry import resolve
from tilewright.operator.fused_blocks import fused_blocks
from tilewright.options import Options
from tilewright.runtime import emulated
from tilewright.tiles.notation import print_tree
from tilewright.tiles.product import products_of
from tilewright.tiles.shared_memory import is_warpgroup
from tilewright.tiles.tree import from_json

Array = np.ndarray[Any, Any]
ALWAYS = Options(cache=False, fuse="always", verify_each=True)
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
# Of a result: weights and results round to 11 or 8 bits, exponentials of a GPU are approximate.
BOUNDS = {"f16": 2e-3, "bf16": 2e-2}


def attending(
    sizes: Sequence[int], dtype: str = "f16", heads: tuple[int, int] = (2, 2), mask: str = "", **how: Any
) -> Graph:
    """Attention of `sizes` rows, keys and width, with a mask of that type."""
    rows, keys, width = sizes
    builder = GraphBuilder("attending")
    q = builder.input("q", (heads[0], rows, width), dtype)
    k, v = (builder.input(name, (heads[1], keys, width), dtype) for name in "kv")
    given = builder.input("mask", (rows, keys), mask) if mask else None
    return builder.finish([attention(q, k, v, given, scale=width**-0.5, **how)])


def chain(sizes: Sequence[int], between: str = "", after: str = "", dtype: str = "f16") -> Graph:
    """C = A·B, E = f(C)·D; f and what follows E are expressions of @."""
    batch, m, n, k, l = sizes
    lines = [f"input A: {dtype}[{batch}, {m}, {k}]", f"input B: {dtype}[{batch}, {k}, {l}]"]
    lines += [f"input D: {dtype}[{batch}, {l}, {n}]", f"input V: {dtype}[{l}]"]
    lines += [f"S: f32[b:{batch}, m:{m}, l:{l}] += f32(A[b, m, k]) * f32(B[b, k, l]) over k:{k}"]
    made = between.replace("@", "S[b, m, l]") if between else "S[b, m, l]"
    lines += [f"C: {dtype}[b:{batch}, m:{m}, l:{l}] = {dtype}({made})"]
    lines += [f"T: f32[b:{batch}, m:{m}, n:{n}] += f32(C[b, m, l]) * f32(D[b, l, n]) over l:{l}"]
    made = after.replace("@", "T[b, m, n]") if after else "T[b, m, n]"
    lines += [f"E: {dtype}[b:{batch}, m:{m}, n:{n}] = {dtype}({made})"]
    return parse_graph("\n".join(["graph chain", *lines, "output E"]))


def inputs(graph: Graph, seed: int = 0) -> list[Array]:
    """Numbers around 0; masks of conditions that hold for most."""
    random, found = np.random.default_rng(seed), list[Array]()
    for each in graph.inputs:
        shape = tuple(map(int, each.shape))
        numbers = random.standard_normal(shape)
        found.append(numbers > -1 if each.dtype == "bool" else numbers.astype(TYPES[each.dtype]))
    return found


def planned(graph: Graph, options: Options = ALWAYS, machine: str = "sm_90") -> Plan:
    return make_plan(graph, resolve(machine), 1, options)  # type: ignore[arg-type]


def fusion(plan: Plan) -> Decision:
    """The decision about fusing products."""
    (found,) = (each for each in plan.decisions if re.fullmatch(r"fusion of \S+( \+ \S+)+", each.subject))
    return found


def check(graph: Graph, options: Options = ALWAYS, machine: str = "sm_80") -> None:
    """One kernel computes what the evaluator does, which rounds at the same places; the emulator finds nothing."""
    plan = planned(graph, options, machine)
    products = [kernel.name for kernel in plan.kernels if kernel.instruction]  # others copy a result to an output
    assert len(products) == 1, [kernel.name for kernel in plan.kernels]
    given = inputs(graph)
    found = computed(graph, given, options, machine)
    (wanted,) = (each.astype(np.float64) for each in evaluate(graph, given))
    bound = BOUNDS[graph.outputs[0].dtype]
    np.testing.assert_allclose(found, wanted, rtol=bound, atol=bound * max(1.0, np.nanmax(np.abs(wanted), initial=0)))


def computed(graph: Graph, given: Sequence[Array], options: Options = ALWAYS, machine: str = "sm_80") -> Array:
    """What the emulator computes, in f64."""
    module = compile_graph(graph, machine, options=options, device="emulator")
    return np.asarray(module(*given)).astype(np.float64)


@settings(max_examples=tries(2, full=40), deadline=None)
@draws(
    sizes=st.tuples(st.integers(2, 140), st.integers(2, 140), st.sampled_from([8, 16, 24, 40])),
    dtype=st.sampled_from(["f16", "bf16"]), heads=st.sampled_from([(1, 1), (2, 2), (4, 2)]),
    how=st.sampled_from([{}, {"causal": True}, {"causal": True, "causal_offset": 9}, {"softcap": 3.0}]),
    mask=st.sampled_from(["", "", "bool", "f16"]),
)  # fmt: skip
def test_attention_is_one_kernel(
    sizes: tuple[int, int, int], dtype: str, heads: tuple[int, int], how: dict[str, Any], mask: str
) -> None:
    check(attending(sizes, dtype, heads, mask if mask != "f16" else dtype, **how))


@pytest.mark.parametrize("machine", ["sm_75", "sm_90"])
def test_of_other_gpus(machine: str) -> None:
    check(attending((65, 70, 32)), machine=machine)


@pytest.mark.parametrize(("rows", "keys", "offset"), some([(257, 130, -60), (300, 320, 0)], 1))
def test_blocks_that_stay_count_trips_of_uneven_tiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, keys: int, offset: int
) -> None:
    """Tiles of two heads on two multiprocessors, by products of four warps; a mask shows the last rows more keys."""
    monkeypatch.setattr(gpu_fused, "matrix_records", lambda *given: list(filter(is_warpgroup, matrix_records(*given))))
    few = tmp_path / "few.yaml"
    few.write_text("name: few\nextends: sm_90a\nmultiprocessors: 2\n")
    graph = attending((rows, keys, 16), causal=True, causal_offset=offset)
    given = inputs(graph)
    found = computed(graph, given, machine=str(few))
    (wanted,) = evaluate(graph, given)
    np.testing.assert_allclose(found, wanted.astype(np.float64), rtol=2e-3, atol=4e-3)


@pytest.mark.parametrize("causal", some([True, False], 1))
def test_blocks_that_stay_with_k_tiles_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    """Bounds of the loop over k tiles are made within the loop over tiles of the link."""
    monkeypatch.setattr(gpu_fused, "matrix_records", lambda *given: list(filter(is_warpgroup, matrix_records(*given))))
    few = tmp_path / "few.yaml"
    few.write_text("name: few\nextends: sm_90a\nmultiprocessors: 2\n")
    graph = attending((150, 70, 136), causal=causal, causal_offset=9 if causal else 0)
    given = inputs(graph)
    (kernel,) = planned(graph, machine=str(few)).kernels
    assert not fused_blocks(kernel.scheduled).keeps_a
    (wanted,) = evaluate(graph, given)
    np.testing.assert_allclose(
        computed(graph, given, machine=str(few)), wanted.astype(np.float64), rtol=2e-3, atol=4e-3
    )


@settings(max_examples=tries(2, full=20), deadline=None)
@draws(
    sizes=st.tuples(st.integers(1, 2), st.integers(2, 90), *[st.integers(2, 40)] * 2, st.integers(2, 90)),
    between=st.sampled_from(["", "max(@, 0.0)", "max(@ + f32(V[l]), 0.0)"]), after=st.sampled_from(["", "@ * 2.0"]),
)  # fmt: skip
def test_a_chain_is_one_kernel(sizes: tuple[int, ...], between: str, after: str) -> None:
    check(chain(sizes, between, after))


@pytest.mark.parametrize("between", ["0.0 / @", "min(1.0 / max(@, 0.0), 9.0) * 0.1", "tanh(@)"])
def test_a_link_that_ends_within_a_tile(between: str) -> None:
    """What is made of the zeros behind its last column, or of an infinity times those, is no number."""
    graph = chain((1, 20, 16, 24, 67), between)
    given = inputs(graph)
    given[0][0, 3, 5] = np.inf if between == "tanh(@)" else 0
    (wanted,) = evaluate(graph, given)
    assert np.isfinite(wanted).all()
    assert len(planned(graph).kernels) == 1
    np.testing.assert_allclose(computed(graph, given), wanted.astype(np.float64), rtol=2e-3, atol=4e-3)


def test_k_tiles_of_the_first_product() -> None:
    graph = chain((1, 64, 32, 300, 64))
    check(graph)
    (tree,) = planned(graph).trees().values()
    assert "@L1 for k:3" in print_tree(from_json(tree))


def test_keys_that_end_within_a_tile_of_scores_that_nothing_changes() -> None:
    """Elements behind the last key have no weight: a row of small scores would see them as 0."""
    builder = GraphBuilder("bare")
    q, k, v = (builder.input(name, (1, rows, 16), "f16") for name, rows in (("q", 20), ("k", 35), ("v", 35)))
    graph = builder.finish([attention(q, k, v)])
    given = inputs(graph)
    given[0][:], given[1][:] = 0.5, -0.5
    (wanted,) = evaluate(graph, given)
    np.testing.assert_allclose(computed(graph, given), wanted.astype(np.float64), rtol=2e-3, atol=2e-3)


def test_rows_that_are_masked_completely_are_nan() -> None:
    graph = attending((20, 40, 16), causal=True, causal_offset=-4)
    given = inputs(graph)
    found = computed(graph, given)
    (wanted,) = evaluate(graph, given)
    assert np.isnan(found[:, :4]).all()
    np.testing.assert_allclose(found[:, 4:], wanted[:, 4:].astype(np.float64), rtol=2e-3, atol=4e-3)


@pytest.mark.parametrize("hidden", ["S[b, m, l] + V[m, l]", "V[m, l] < 0.0 ? V[m, l] : S[b, m, l]"])
def test_numbers_that_hide_elements_before_they_are_scaled(hidden: str) -> None:
    """All of the first tile of the link is hidden by finite numbers, whose multiples round by more than 2^60."""
    graph = parse_graph("\n".join([
        "graph hiding", "input A: f16[1, 32, 16]", "input B: f16[1, 16, 150]", "input D: f16[1, 150, 16]",
        "input V: f32[32, 150]", "S: f32[b:1, m:32, l:150] += f32(A[b, m, k]) * f32(B[b, k, l]) over k:16",
        f"F: f32[b:1, m:32, l:150] = ({hidden}) * 0.25", "M: f32[b:1, m:32] max= F[b, m, l] over l:150",
        "X: f32[b:1, m:32, l:150] = exp(F[b, m, l] - M[b, m])", "T: f32[b:1, m:32] += X[b, m, l] over l:150",
        "W: f16[b:1, m:32, l:150] = f16(X[b, m, l] / T[b, m])",
        "O: f32[b:1, m:32, n:16] += f32(W[b, m, l]) * f32(D[b, l, n]) over l:150",
        "E: f16[b:1, m:32, n:16] = f16(O[b, m, n])", "output E",
    ]))  # fmt: skip
    given, lowest = inputs(graph), np.linspace(-3.4e38, -1e27, 32, dtype=np.float32)
    given[3] = np.where(np.arange(150) >= 135, np.float32(0), lowest[:, None])
    (wanted,) = evaluate(graph, given)
    assert np.isfinite(wanted).all()
    assert len(planned(graph).kernels) == 1
    np.testing.assert_allclose(computed(graph, given), wanted.astype(np.float64), rtol=2e-3, atol=4e-3)


def test_hidden_tiles_are_left_out() -> None:
    """A block runs tiles of the link up to that of its last row."""
    every, masked = (attending((400, 400, 16), heads=(1, 1), causal=each) for each in (False, True))
    (kernel,) = planned(masked, machine="sm_80").kernels
    points = fused_blocks(kernel.scheduled).points
    rows, link = points["i"], points["l"]
    seen = [(min(end, 400) - 1) // link + 1 for end in range(rows, 400 + rows, rows)]
    assert sum(seen) < len(seen) * -(-400 // link)
    assert launched(masked) * len(seen) * -(-400 // link) == launched(every) * sum(seen)


@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_the_link_are_in_tiles_that_want_them(causal: bool) -> None:
    plan = planned(attending((64, 300, 16), causal=causal))
    program = gpu.tile_program(plan, Placement(plan), resolve("sm_90"))  # type: ignore[arg-type]
    selects = [op for op in program.walk() if isinstance(op, tile.SelectOp) and isinstance(op.parent_op(), scf.IfOp)]
    assert len(selects) == 1 + causal  # of the end of the link, of the mask


def launched(graph: Graph) -> int:
    """Matrix instructions of the one kernel."""
    plan = planned(graph, machine="sm_80")
    program = gpu.tile_program(plan, Placement(plan), resolve("sm_80"))  # type: ignore[arg-type]
    gpu.distribute(program, ALWAYS)
    run = emulated.run_module(generate(program), inputs(graph), [np.zeros(graph.outputs[0].shape, np.float16)])
    assert run.diagnostics == []
    ((_, counts),) = run.counts
    return counts.warp_instructions["matrix product"]


def test_where_it_pays_both_numbers_are_told() -> None:
    plan = planned(attending((1024, 1024, 64), heads=(16, 16)), Options(cache=False))
    decision = fusion(plan)
    assert decision.chosen.startswith("one kernel")
    one, several = (cost.cycles for cost in (decision.cost, decision.runner_up_cost) if cost is not None)
    assert one is not None
    assert several is not None
    assert one < several
    assert len(plan.kernels) == 1
    assert len(planned(attending((1024, 1024, 64)), Options(cache=False, fuse="never")).kernels) == 3


def test_a_mask_in_memory_has_room_beside_products_of_four_warps() -> None:
    """Its layouts pass through shared memory, which the tile leaves for them."""
    graph = attending((1024, 1024, 64), heads=(16, 4), mask="bool", causal=True)
    assert "wgmma" in fusion(planned(graph, Options(cache=False), "sm_90a")).chosen
    compile_graph(graph, "sm_90a", options=Options(cache=False), device="emulator")


@pytest.mark.parametrize(
    ("graph", "rule"),
    [
        (attending((64, 64, 16), "f32"), "factors have elements of 2 bytes"),
        (chain((1, 64, 300, 16, 64)), "the second has 256 columns at most"),
    ],
    ids=["f32", "columns"],
)
def test_what_stays_apart(graph: Graph, rule: str) -> None:
    decision = fusion(planned(graph))
    assert decision.chosen == "a kernel each"
    assert rule in str(decision.refused)


def test_rows_that_read_what_is_not_planned_yet() -> None:
    graph = parse_graph("""
        graph gated
        input Q: f16[64, 32]
        input K: f16[32, 96]
        input V: f16[96, 32]
        input X: f32[96, 8]
        G: f32[l:96] += X[l, c] over c:8
        C: f32[m:64, l:96] += f32(Q[m, k]) * f32(K[k, l]) over k:32
        Max: f32[m:64] max= C[m, l] over l:96
        Exp: f32[m:64, l:96] = exp(C[m, l] - Max[m])
        Sum: f32[m:64] += Exp[m, l] over l:96
        P: f16[m:64, l:96] = f16(Exp[m, l] / Sum[m] * G[l])
        T: f32[m:64, n:32] += f32(P[m, l]) * f32(V[l, n]) over l:96
        E: f16[m:64, n:32] = f16(T[m, n])
        output E""")
    decision = fusion(planned(graph))
    assert "P is a softmax" in str(decision.refused)


@pytest.mark.parametrize(("fuse", "kernels"), [("always", ["S+C+T+E"]), ("never", ["S+C", "T+E"])])
def test_kernels_are_explained_by_their_names_in_the_plan(fuse: str, kernels: list[str]) -> None:
    """Names of kernels in machine code have no signs."""
    module = compile_graph(
        chain((2, 64, 64, 64, 64), "max(@, 0.0)"), "sm_80", options=Options(cache=False, fuse=fuse), device="emulator"
    )
    for kernel in kernels:
        said = module.explain(kernel=kernel)
        assert "cycles predicted" in said
        assert "on mma_m16n8k16_f16_f32" in said


# Trees ----------------------------------------------------------------------------------------------------------------


def given_tree(graph: Graph, old: str, new: str) -> Options:
    """Options with the tree of the one kernel, its text changed."""
    plan = planned(graph, machine="sm_80")
    (kernel,) = plan.kernels
    return given(plan, kernel.name, (old, new), verify_each=True)


def test_a_tree_that_was_changed_changes_the_program() -> None:
    graph = attending((64, 96, 16))
    check(graph, given_tree(graph, "slots 2", "slots 3"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("par h:2, i:1", "par i:1", "h"),
        ("@L2 for l:", "@L2 for i:1, l:", "does not go with"),
        ("stage k in SHARED", "stage v in SHARED", "stage v in SHARED keeps what nothing in it uses"),
        ("i:64", "i:48", "make i at REG 64"),
        ("j:16 {", "j:8 {", "make j at REG 16"),
    ],
)
def test_trees_that_are_not_lowered(old: str, new: str, says: str) -> None:
    graph = attending((64, 96, 16))
    with pytest.raises(CompileError, match=re.escape(says)) as raised:
        compile_graph(graph, "sm_80", options=given_tree(graph, old, new), device="emulator")
    assert raised.value.help


def test_the_reader_gives_what_the_writer_was_given() -> None:
    (kernel,) = planned(attending((64, 96, 16), causal=True)).kernels
    found = fused_blocks(kernel.scheduled)
    assert found.tree() == kernel.scheduled.tree
    assert len(products_of(kernel.scheduled)) == 2


def test_a_tree_apart_keeps_products_apart() -> None:
    graph = attending((64, 96, 16))
    apart = planned(graph, Options(cache=False, fuse="never"))
    trees = {name: tree for name, tree in apart.trees().items() if "scores" in name}
    assert len(planned(graph, Options(cache=False, fuse="always", trees=trees)).kernels) == 3
