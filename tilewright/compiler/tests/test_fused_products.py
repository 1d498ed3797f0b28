"""Chains of products as one kernel: right on random sizes, and chosen by the predicted cycles of both ways."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as draws
from hypothesis import settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.compile import build, compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.tests.edited_trees import given
from tilewright.decision import Decision
from tilewright.errors import InvalidArgument
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_graph
from tilewright.machine import resolve_cpu
from tilewright.operator.rules import cpu_fused
from tilewright.options import Options
from tilewright.runtime.loader import missing_features
from tilewright.tiles.legality import IllegalTree
from tilewright.tiles.tree import InvalidTree

Array = np.ndarray[Any, Any]
ALWAYS = Options(cache=False, fuse="always")
MACHINE = "znver5"
LARGE = (8, 512, 64, 64, 512)  # batch, m, n, k, l: the link takes 8 MiB
SMALL = (1, 64, 64, 64, 64)


def chain(sizes: tuple[int, ...], between: str = "", after: str = "", nested: str = "left") -> Graph:
    """C = A·B, E = f(C)·D, or with `nested` "right" E = D·f(C); f and what follows E are expressions of @."""
    batch, m, n, k, l = sizes
    b, index, size = (f"b:{batch}, ", "b, ", f"{batch}, ") if batch > 1 else ("", "", "")
    link, result = "C", "E"
    lines = [f"input A: f32[{size}{m}, {k}]", f"input B: f32[{size}{k}, {l}]"]
    d = (l, n) if nested == "left" else (n, m)
    lines += [f"input D: f32[{size}{d[0]}, {d[1]}]", f"input V: f32[{l}]"]
    lines += [f"C: f32[{b}m:{m}, l:{l}] += A[{index}m, k] * B[{index}k, l] over k:{k}"]
    if between:
        lines += [f"F: f32[{b}m:{m}, l:{l}] = {between.replace('@', f'C[{index}m, l]')}"]
        link = "F"
    if nested == "left":
        lines += [f"E: f32[{b}m:{m}, n:{n}] += {link}[{index}m, l] * D[{index}l, n] over l:{l}"]
        loops, place = f"{b}m:{m}, n:{n}", f"E[{index}m, n]"
    else:
        lines += [f"E: f32[{b}n:{n}, l:{l}] += D[{index}n, m] * {link}[{index}m, l] over m:{m}"]
        loops, place = f"{b}n:{n}, l:{l}", f"E[{index}n, l]"
    if after:
        lines += [f"G: f32[{loops}] = {after.replace('@', place)}"]
        result = "G"
    return parse_graph("\n".join(["graph chain", *lines, f"output {result}"]))


def inputs(graph: Graph) -> list[Array]:
    """Small integers, whose sums are exact in any order."""
    generator = np.random.default_rng(0)
    return [generator.integers(-3, 4, tuple(map(int, each.shape))).astype(np.float32) for each in graph.inputs]


def planned(graph: Graph, options: Options = ALWAYS, threads: int = 1) -> Plan:
    return make_plan(graph, resolve_cpu(MACHINE), threads, options)


def fusion(plan: Plan) -> Decision:
    """The one decision about fusing products."""
    (found,) = (each for each in plan.decisions if re.fullmatch(r"fusion of \w+ \+ \w+", each.subject))
    return found


@settings(max_examples=tries(2, full=12), deadline=None)
@draws(
    sizes=st.tuples(st.integers(1, 3), st.integers(2, 150), *[st.integers(2, 90)] * 2, st.integers(2, 300)),
    between=st.sampled_from(["", "max(@, 0.0)", "@ * 0.5", "max(@ + V[l], 0.0)"]),
    after=st.sampled_from(["", "@ * 2.0"]),
    nested=st.sampled_from(["left", "right"]), threads=st.integers(1, 2),
)  # fmt: skip
def test_one_kernel_computes_the_chain(
    sizes: tuple[int, ...], between: str, after: str, nested: str, threads: int
) -> None:
    graph = chain(sizes, between, after, nested)
    assert fusion(make_plan(graph, resolve_cpu("host"), threads, ALWAYS)).chosen.startswith("one kernel")
    (expected,) = evaluate(graph, inputs(graph))
    np.testing.assert_array_equal(compile_graph(graph, threads=threads, options=ALWAYS)(*inputs(graph)), expected)


@pytest.mark.covering(1)
@pytest.mark.parametrize("sizes", [(1, 97, 50, 23, 1000), (2, 101, 33, 16, 523)])
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_wait_in_scratch_where_the_link_is_cut(
    sizes: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_fused, "l2_bytes", lambda _: 200_000)
    graph = chain(sizes, "max(@, 0.0)", "@ * 2.0")
    assert "stage" in str(make_plan(graph, resolve_cpu("host"), threads, ALWAYS).trees().values())
    (expected,) = evaluate(graph, inputs(graph))
    np.testing.assert_array_equal(compile_graph(graph, threads=threads, options=ALWAYS)(*inputs(graph)), expected)


def test_an_epilogue_of_many_registers_runs_between_the_products() -> None:
    import onnx
    from onnx import TensorProto, helper

    from tilewright.compiler.compile import import_any

    shapes = {"a": [37, 40], "b": [40, 70], "d": [70, 20]}
    given_values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Gelu", ["c"], ["g"]),
        helper.make_node("MatMul", ["g", "d"], ["e"]),
    ]  # fmt: skip
    out = helper.make_tensor_value_info("e", TensorProto.FLOAT, [37, 20])
    model = helper.make_model(
        helper.make_graph(nodes, "mlp", given_values, [out]), opset_imports=[helper.make_opsetid("", 20)]
    )
    onnx.checker.check_model(model)
    graph = import_any(model.SerializeToString())
    assert fusion(planned(graph)).chosen.startswith("one kernel")
    generator = np.random.default_rng(0)
    values = [generator.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
    (expected,) = evaluate(graph, [value.astype(np.float32) for value in values])
    found = compile_graph(graph, threads=1, options=ALWAYS)(*values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=70 * 2.0**-20 * np.abs(expected).max())


def attention(
    sizes: tuple[int, ...], scale: str = "0.25", mask: bool = False, along: str = "l", weight: str = "exp"
) -> Graph:  # fmt: skip
    """Two products around a softmax over the columns of the first one; with `along` "m" over its rows.

    Another `weight` than an exponential makes it no softmax.
    """
    batch, m, n, k, l = sizes
    b, index, size = (f"b:{batch}, ", "b, ", f"{batch}, ") if batch > 1 else ("", "", "")
    other, extent, rest = ("m", l, m) if along == "l" else ("l", m, l)
    here = f"{index}{other}"
    added = " + M[m, l]" if mask else ""
    return parse_graph(f"""
        graph attention
        input Q: f32[{size}{m}, {k}]
        input K: f32[{size}{k}, {l}]
        input V: f32[{size}{l}, {n}]
        {f"input M: f32[{m}, {l}]" if mask else ""}
        C: f32[{b}m:{m}, l:{l}] += Q[{index}m, k] * K[{index}k, l] over k:{k}
        S: f32[{b}m:{m}, l:{l}] = C[{index}m, l] * {scale}{added}
        Max: f32[{b}{other}:{rest}] max= S[{index}m, l] over {along}:{extent}
        Exp: f32[{b}m:{m}, l:{l}] = {weight}(S[{index}m, l] - Max[{here}])
        Sum: f32[{b}{other}:{rest}] += Exp[{index}m, l] over {along}:{extent}
        P: f32[{b}m:{m}, l:{l}] = Exp[{index}m, l] / Sum[{here}]
        E: f32[{b}m:{m}, n:{n}] += P[{index}m, l] * V[{index}l, n] over l:{l}
        output E""")


@settings(max_examples=tries(2, full=10), deadline=None)
@draws(
    sizes=st.tuples(st.integers(1, 3), st.integers(2, 150), *[st.integers(2, 90)] * 2, st.integers(2, 300)),
    mask=st.booleans(), threads=st.integers(1, 2),
)  # fmt: skip
def test_softmax_between_products_is_in_their_kernel(sizes: tuple[int, ...], mask: bool, threads: int) -> None:
    graph = attention(sizes, mask=mask)
    plan = make_plan(graph, resolve_cpu("host"), threads, ALWAYS)
    assert [kernel.name for kernel in plan.kernels if kernel.instruction] == [plan.kernels[-1].name]
    values = inputs(graph)
    (expected,) = evaluate(graph, values)
    found = compile_graph(graph, threads=threads, options=ALWAYS)(*values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(values[2]).max())


def test_rows_that_are_masked_completely_stay_nan() -> None:
    graph = attention((1, 40, 24, 16, 50), mask=True)
    q, k, v, mask = inputs(graph)
    mask[:] = 0.0
    mask[7] = -np.inf
    found = compile_graph(graph, threads=1, options=ALWAYS)(q, k, v, mask)
    assert np.isnan(found[7]).all()
    assert np.isfinite(np.delete(found, 7, 0)).all()


def test_a_softmax_across_the_rows_stays_apart() -> None:
    decisions = planned(attention((1, 60, 24, 16, 50), along="m")).decisions
    (found,) = (each for each in decisions if each.subject.startswith("fusion of S + "))
    assert found.chosen == "a kernel each"
    assert "sums over another loop than P runs along" in found.refused[0].rule


def test_rows_that_cannot_go_on_from_block_to_block_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sums do not follow the largest value as those of exponentials do."""
    monkeypatch.setattr(cpu_fused, "l2_bytes", lambda _: 100_000)
    plan = planned(attention((1, 60, 24, 16, 3000), weight="sigmoid"))
    assert any(each.refused and each.refused[0].rule == "a block fits L2" for each in plan.decisions)


def test_a_tree_that_cuts_the_rows_of_a_softmax_is_refused() -> None:
    graph = attention((2, 128, 64, 64, 128))
    plan = planned(graph)
    (kernel,) = (each for each in plan.kernels if each.instruction)
    options = given(plan, kernel.name, ("@L3 for b:1, m:2 {", "@L3 for b:1, m:2, l:2 {"))
    with pytest.raises(IllegalTree, match="L5 softmax: l:2 at L3 surrounds Sum and E") as caught:
        planned(graph, options)
    assert caught.value.help


def test_a_tree_whose_rows_have_lanes_twice_says_where() -> None:
    graph = attention((1, 40, 24, 16, 50))
    plan = planned(graph)
    (kernel,) = (each for each in plan.kernels if each.instruction)
    lanes = "par l:16 { op Max }"
    options = given(plan, kernel.name, (lanes, f"par l:1 {{ {lanes} }}"))
    with pytest.raises(InvalidTree, match="inside of lanes along l") as caught:
        planned(graph, options)
    assert caught.value.where.startswith(f"tile tree of {kernel.name}")
    assert caught.value.help


# Decisions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_a_link_that_leaves_l2_is_fused_and_one_that_stays_is_not(threads: int) -> None:
    automatic = Options(cache=False)
    far, near = (fusion(planned(chain(sizes), automatic, threads)) for sizes in (LARGE, SMALL))
    assert far.chosen.startswith("one kernel"), far.explain()
    assert near.chosen == "a kernel each", near.explain()
    for decision in (far, near):
        assert decision.cost is not None
        assert decision.runner_up_cost is not None
        assert decision.runner_up_cost.cycles
        assert decision.cost.cycles
    assert far.runner_up_cost.cycles > far.cost.cycles  # type: ignore[union-attr, operator]


def test_a_link_goes_through_memory_where_the_last_cache_has_nothing_but_it() -> None:
    """Until it is read, its kernel reads its factors, too."""
    machine = resolve_cpu(MACHINE)
    *inner, last = machine.caches

    def apart(bytes_: int) -> float:
        held = replace(machine, caches=(*inner, replace(last, bytes=bytes_, ways=None)))
        decision = fusion(make_plan(chain(LARGE), held, 1, Options(cache=False, fuse="always")))
        assert decision.runner_up_cost is not None
        assert decision.runner_up_cost.cycles is not None
        return decision.runner_up_cost.cycles

    assert apart(8 << 20) > 1.1 * apart(16 << 20)


def test_weights_that_every_block_would_bring_again_stay_apart() -> None:
    """The perceptron of BERT-base: what fusing saves of the link, it pays for weights that L2 does not keep."""
    decision = fusion(planned(chain((1, 512, 768, 768, 3072), "max(@, 0.0)"), Options(cache=False)))
    assert decision.chosen == "a kernel each", decision.explain()


def test_never_is_the_plan_of_before() -> None:
    plan = planned(chain(LARGE), Options(cache=False, fuse="never"))
    assert [kernel.name for kernel in plan.kernels if kernel.instruction] == ["C", "E"]
    assert not any("+" in each.subject for each in plan.decisions)


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="there is no fuse 'allways'") as caught:
        Options(fuse="allways")
    assert (caught.value.help or "").startswith("always")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("E: f32[m:40, n:24] += C[m, l] * D[l, n] over l:32\noutput E\noutput C", "C is read elsewhere too"),
        ("E: f32[m:40, n:24] += C[m, l] * D[l, n] over l:32\nG: f32[m:40] += C[m, l] over l:32\noutput E\noutput G",
         "C is read elsewhere too"),
        ("E: f32[m:39, n:24] += C[39 - m, l] * D[l, n] over l:32\noutput E", "which is no window"),
        ("E: f32[m:40, n:24] += C[m, l + r] * D[l, n] over l:30, r:2\noutput E", "other loops than one of C"),
        ("E: f32[m:40, h:2, n:24] += C[m, l] * D[l, n] * 1.0 over l:32\noutput E", ""),
    ],
)  # fmt: skip
def test_why_products_stay_apart(text: str, reason: str) -> None:
    head = ["graph g", "input A: f32[40, 16]", "input B: f32[16, 32]", "input D: f32[32, 24]"]
    head += ["C: f32[m:40, l:32] += A[m, k] * B[k, l] over k:16"]
    plan = planned(parse_graph("\n".join([*head, text])))
    found = [each for each in plan.decisions if each.subject == "fusion of C + E"]
    assert (not found) if not reason else reason in found[0].refused[0].rule


# Trees that are given -------------------------------------------------------------------------------------------------


def test_a_tree_that_was_given_is_what_runs() -> None:
    graph, machine = chain(LARGE), resolve_cpu(MACHINE)
    own = build(graph, machine, 1, ALWAYS).program
    assert build(graph, machine, 1, given(planned(graph), "C+E")).program == own
    smaller = given(planned(graph), "C+E", ("m:5 {", "m:10 {"), ("m:18", "m:9"))
    artifact = build(graph, machine, 1, smaller)
    assert artifact.program != own
    assert artifact.stored_plan().trees["C+E"] == smaller.trees["C+E"]
    assert any("blocks of C+E" in each.subject and "asked" in each.reason for each in artifact.stored_plan().decisions)
    if not missing_features(machine.features):
        (expected,) = evaluate(graph, inputs(graph))
        np.testing.assert_array_equal(
            compile_graph(graph, MACHINE, threads=1, options=smaller)(*inputs(graph)), expected
        )


def test_a_tree_of_one_of_the_products_keeps_them_apart() -> None:
    graph = chain(LARGE)
    apart = planned(graph, Options(cache=False, fuse="never")).trees()["C"]
    plan = planned(graph, Options(cache=False, trees={"C": apart}))
    assert [kernel.name for kernel in plan.kernels if kernel.instruction] == ["C", "E"]


def test_a_tree_whose_buffers_do_not_fit_is_refused() -> None:
    options, machine = given(planned(chain(LARGE)), "C+E"), resolve_cpu(MACHINE)
    first, second, *others = machine.caches
    small = replace(machine, caches=(first, replace(second, bytes=100_000), *others))
    with pytest.raises(
        IllegalTree, match=r"L8 resources: a program keeps .* bytes of C in L2, which holds 1"
    ) as caught:
        make_plan(chain(LARGE), small, 1, options)
    assert "times smaller" in (caught.value.help or "")


def test_a_tree_of_another_chain_is_refused() -> None:
    options = given(planned(chain(LARGE)), "C+E")
    with pytest.raises((IllegalTree, InvalidTree)) as caught:
        planned(chain((8, 512, 64, 64, 384)), options)
    assert caught.value.where.startswith("tile tree of C+E")
