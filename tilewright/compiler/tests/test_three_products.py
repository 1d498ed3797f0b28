"""Chains of three products as one kernel: right on random sizes, by trees that are given, and chosen by predictions."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, settings
from hypothesis import given as draws
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.compiler.chains import proven_mappings
from tilewright.compiler.compile import build, compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Kernel, Plan
from tilewright.compiler.planning import Planning
from tilewright.compiler.tests.edited_trees import given
from tilewright.compiler.tests.test_fused_products import attention
from tilewright.decision import Decision
from tilewright.expr import GraphBuilder
from tilewright.expr.dtypes import numpy_dtype
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.ops import elementwise, linalg
from tilewright.expr.text import parse_graph
from tilewright.graph.groups import Group
from tilewright.instruction.products import MappedProduct
from tilewright.machine import resolve, resolve_cpu
from tilewright.operator.products_tree import products_tree
from tilewright.operator.rules import cpu_fused
from tilewright.operator.rules.cpu_fused import fused_kernel, point_of
from tilewright.options import Options
from tilewright.runtime.loader import missing_features
from tilewright.tiles.legality import IllegalTree
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.product import products_of
from tilewright.tiles.tree import InvalidTree, to_json

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]  # batch, m, k, l, n, p
ALWAYS = Options(cache=False, fuse="always")
AUTO = Options(cache=False)
MACHINE = "znver5"
FAR = (8, 512, 64, 64, 64, 64)  # both links leave L2
NEAR = (1, 64, 64, 64, 64, 64)
EXTENTS = st.sampled_from([2, 3, 7, 16, 17, 31, 64, 97])
EPILOGUES = st.sampled_from(["", "max(@, 0.0)", "@ * 0.5"])


def chain(sizes: Sizes, epilogues: tuple[str, str, str] = ("", "", "")) -> Graph:
    """C = A·B, E = f(C)·D, G = g(E)·U with h(G) behind it; f, g and h are expressions of @."""
    batch, *others = sizes
    extents = dict(zip("mklnp", others, strict=True))
    b, at, size = (f"b:{batch}, ", "b, ", f"{batch}, ") if batch > 1 else ("", "", "")
    factors = ("Amk", "Bkl", "Dln", "Unp")
    lines = [f"input {name}: f32[{size}{extents[rows]}, {extents[columns]}]" for name, rows, columns in factors]
    link = "A"
    for name, (factor, along, column), epilogue in zip("CEG", factors[1:], epilogues, strict=True):
        loops = f"{b}m:{extents['m']}, {column}:{extents[column]}"
        body = f"{link}[{at}m, {along}] * {factor}[{at}{along}, {column}]"
        lines.append(f"{name}: f32[{loops}] += {body} over {along}:{extents[along]}")
        link = name
        if epilogue:
            lines.append(f"{name}f: f32[{loops}] = {epilogue.replace('@', f'{name}[{at}m, {column}]')}")
            link = f"{name}f"
    return parse_graph("\n".join(["graph chain", *lines, f"output {link}"]))


def narrow_chain(sizes: Sizes, relu: bool = False) -> Graph:
    """Three products of bf16, whose results are rounded to bf16."""
    batch, m, k, l, n, p = sizes
    b = GraphBuilder("chain")
    here = b.input("A", (batch, m, k), "bf16")
    for name, rows, columns in (("B", k, l), ("D", l, n), ("U", n, p)):
        here = linalg.matmul(here, b.input(name, (batch, rows, columns), "bf16"))
        here = elementwise.relu(here) if relu else here
    return b.finish([here])


def inputs(graph: Graph) -> list[Array]:
    """Small integers, whose sums are exact in any order as long as they are small."""
    generator = np.random.default_rng(0)
    return [
        generator.integers(-2, 3, tuple(map(int, each.shape))).astype(numpy_dtype(each.dtype)) for each in graph.inputs
    ]


def planned(graph: Graph, options: Options = ALWAYS, threads: int = 1, machine: str = MACHINE) -> Plan:
    return make_plan(graph, resolve_cpu(machine), threads, options)


def products_in(plan: Plan) -> list[int]:
    """How many products each kernel that has some runs."""
    return [count for each in plan.kernels if (count := len(products_of(each.scheduled)))]


def fusion(plan: Plan, subject: str) -> Decision:
    (found,) = (each for each in plan.decisions if each.subject == f"fusion of {subject}")
    return found


def require_right(graph: Graph, options: Options = ALWAYS, threads: int = 1, machine: str = "host") -> None:
    (expected,) = evaluate(graph, inputs(graph))
    found = compile_graph(graph, machine, threads=threads, options=options)(*inputs(graph))
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


# Right ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=tries(2, full=60), deadline=None)
@example(sizes=(3, 17, 7, 31, 13, 29), epilogues=("max(@, 0.0)", "@ * 0.5", "max(@, 0.0)"), threads=2)
@example(sizes=(1, 97, 2, 7, 2, 1), epilogues=("", "", ""), threads=1)
@example(sizes=(2, 1, 17, 7, 17, 7), epilogues=("", "max(@, 0.0)", ""), threads=2)
@draws(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 130), *[EXTENTS] * 4),
    epilogues=st.tuples(EPILOGUES, EPILOGUES, EPILOGUES), threads=st.integers(1, 2),
)  # fmt: skip
def test_one_kernel_computes_three_products(sizes: Sizes, epilogues: tuple[str, str, str], threads: int) -> None:
    graph = chain(sizes, epilogues)
    assert products_in(planned(graph, threads=threads, machine="host")) == [3]
    require_right(graph, threads=threads)


@settings(max_examples=tries(2, full=40), deadline=None)
@example(sizes=(1, 97, 33, 17, 7, 64), relu=True, threads=2)
@draws(
    sizes=st.tuples(st.integers(1, 2), st.integers(1, 97), *[EXTENTS] * 4),
    relu=st.booleans(),
    threads=st.integers(1, 2),
)
def test_one_kernel_computes_three_products_of_bf16(sizes: Sizes, relu: bool, threads: int) -> None:
    graph = narrow_chain(sizes, relu)
    assert products_in(planned(graph, threads=threads)) == [3]
    require_right(graph, threads=threads)


@pytest.mark.parametrize("which", range(6))
def test_extents_of_one_may_leave_fewer_products(which: int) -> None:
    sizes = [2, 17, 7, 31, 13, 29]
    sizes[which] = 1
    require_right(chain(tuple(sizes), ("max(@, 0.0)", "", "@ * 0.5")), threads=2)


def second_factors(m: int, l: int, n: int) -> Graph:
    """E = D·C reads C as its second factor, and G = E·U reads E as its first one."""
    return parse_graph(f"""
        graph chain
        input A: f32[{m}, 17]
        input B: f32[17, {l}]
        input D: f32[{n}, {m}]
        input U: f32[{l}, 23]
        C: f32[m:{m}, l:{l}] += A[m, k] * B[k, l] over k:17
        E: f32[n:{n}, l:{l}] += D[n, m] * C[m, l] over m:{m}
        G: f32[n:{n}, p:23] += E[n, l] * U[l, p] over l:{l}
        output G""")


@pytest.mark.parametrize(("m", "l", "n"), [(50, 70, 31), (64, 7, 5)])
def test_products_that_read_links_as_their_second_factor(m: int, l: int, n: int) -> None:
    graph = second_factors(m, l, n)
    assert products_in(planned(graph, machine="host")) == [3]
    require_right(graph, threads=2)


def test_vectors_of_a_link_run_along_what_reads_it_whatever_is_cheaper() -> None:
    """Vectors of C along m and vectors of E along l, of which each is the cheaper one here, do not go together."""

    def cost(each: MappedProduct) -> float:
        columns, rows = each.columns.name, {axis.name for axis in each.rows}
        return 0.0 if columns == "m" or (columns == "l" and "n" in rows) else 1.0

    def chosen(planning: Planning, parts: tuple[Group, ...], fits: Any, _: Any) -> tuple[MappedProduct, ...] | None:
        return proven_mappings(planning, parts, fits, cost)

    with patch("tilewright.compiler.fused.proven_mappings", chosen):
        require_right(second_factors(50, 70, 31))


def test_a_loop_that_begins_with_the_second_product() -> None:
    graph = parse_graph("""
        graph chain
        input A: f32[2, 50, 17]
        input B: f32[2, 17, 33]
        input D: f32[3, 33, 31]
        input U: f32[31, 23]
        C: f32[b:2, m:50, l:33] += A[b, m, k] * B[b, k, l] over k:17
        E: f32[b:2, k:3, m:50, n:31] += C[b, m, l] * D[k, l, n] over l:33
        G: f32[b:2, k:3, m:50, l:23] += E[b, k, m, n] * U[n, l] over n:31
        output G""")
    assert products_in(planned(graph, machine="host")) == [3]
    require_right(graph, threads=2)


def test_only_what_the_last_product_reads_is_computed() -> None:
    graph = parse_graph("""
        graph chain
        input A: f32[50, 17]
        input B: f32[17, 70]
        input D: f32[60, 31]
        input U: f32[30, 23]
        C: f32[m:50, l:70] += A[m, k] * B[k, l] over k:17
        E: f32[m:45, n:31] += C[m, l] * D[l, n] over l:60
        G: f32[m:40, p:23] += E[m, n] * U[n, p] over n:30
        output G""")
    plan = planned(graph, machine="host")
    (kernel,) = (each.scheduled for each in plan.kernels if products_of(each.scheduled))
    points = [tuple(axis.size for axis in work.spatial) for work in products_of(kernel)]
    assert points == [(40, 60), (40, 30), (40, 23)]
    require_right(graph, threads=1)


# Which ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_three_are_one_where_both_links_leave_l2_and_apart_where_they_stay(threads: int) -> None:
    far, near = (planned(chain(sizes), AUTO, threads) for sizes in (FAR, NEAR))
    assert products_in(far) == [3]
    assert products_in(near) == [1, 1, 1]
    decision = fusion(far, "C + E + G")
    assert decision.cost is not None
    assert decision.runner_up_cost is not None
    assert (decision.cost.cycles or 0) < (decision.runner_up_cost.cycles or 0)


def test_the_decision_has_the_cycles_of_two_and_one_and_of_a_kernel_each() -> None:
    plan = planned(chain(FAR), AUTO)
    reason = fusion(plan, "C + E + G").reason
    assert "predicted cycles" in reason
    assert "with one for" in reason
    assert "as a kernel each" in reason
    assert "with one for" not in fusion(planned(chain(NEAR), AUTO), "C + E + G").reason, "two of three save nothing"


def test_two_of_three_are_one_where_three_do_not_pay() -> None:
    """The last product has weights that every block would bring again."""
    plan = planned(chain((1, 2048, 64, 128, 64, 4096)), AUTO)
    assert products_in(plan) == [2, 1]
    refused = fusion(plan, "C + E + G")
    assert refused.chosen == "a kernel each"
    assert "with one for C + E" in refused.reason


def test_two_of_three_are_one_where_the_third_gains_little() -> None:
    """Three in one are predicted to be faster than two and one, but not by as much as such predictions are off."""
    assert products_in(planned(chain((1, 2048, 64, 256, 64, 256)), AUTO)) == [2, 1]


def test_links_that_no_block_holds_are_not_in_one_kernel() -> None:
    with patch.object(cpu_fused, "l2_bytes", lambda _: 60_000):
        plan = planned(chain((1, 97, 64, 700, 700, 64)))
    assert fusion(plan, "C + E + G").refused[0].rule == "a block fits L2"


def test_of_four_products_three_are_one_kernel() -> None:
    graph = parse_graph("""
        graph chain
        input A: f32[50, 17]
        input B: f32[17, 40]
        input D: f32[40, 31]
        input U: f32[31, 23]
        input V: f32[23, 19]
        C: f32[m:50, l:40] += A[m, k] * B[k, l] over k:17
        E: f32[m:50, n:31] += C[m, l] * D[l, n] over l:40
        G: f32[m:50, p:23] += E[m, n] * U[n, p] over n:31
        H: f32[m:50, q:19] += G[m, p] * V[p, q] over p:23
        output H""")
    assert products_in(planned(graph, machine="host")) == [3, 1]
    require_right(graph, threads=1)


def test_on_gpus_two_of_three_are_one_kernel() -> None:
    plan = make_plan(narrow_chain((2, 256, 64, 64, 64, 64)), resolve("sm_90a"), 1, ALWAYS)
    assert not any(each.subject.count(" + ") == 2 for each in plan.decisions)
    assert sorted(products_in(plan)) == [1, 2]


@pytest.mark.parametrize(
    ("links", "reason"),
    [
        ("E: f32[m:40, n:32] += C[m, l] * D[l, n] over l:32\n"
         "G: f32[m:40, p:32] += E[m, n] * C[n, p] over n:32\noutput G", "is read elsewhere too"),
        ("E: f32[m:40, n:32] += C[m, l] * D[l, n] over l:32\n"
         "G: f32[m:38, p:32] += E[m + r, n] * U[r, n, p] over r:3, n:32\noutput G", "no first product gives it"),
        ("E: f32[m:38, n:32] += C[m + r, l] * U[r, l, n] over r:3, l:32\n"
         "G: f32[m:38, p:32] += E[m, n] * D[n, p] over n:32\noutput G", "several products follow"),
        ("E: f32[m:40, n:32] += C[m, l] * D[l, n] over l:32\n"
         "G: f32[m:40, p:32] += E[m, n] * D[n, p] over n:32\noutput G\noutput E", "E is read elsewhere too"),
    ],
)  # fmt: skip
def test_why_three_products_stay_apart(links: str, reason: str) -> None:
    head = ["graph g", "input A: f32[40, 16]", "input B: f32[16, 32]", "input D: f32[32, 32]"]
    head += ["input U: f32[3, 32, 32]"]
    head += ["C: f32[m:40, l:32] += A[m, k] * B[k, l] over k:16"]
    plan = planned(parse_graph("\n".join([*head, links])))
    assert 3 not in products_in(plan)
    assert reason in fusion(plan, "C + E + G").refused[0].rule


# Trees that are given -------------------------------------------------------------------------------------------------


def test_a_tree_that_was_given_is_what_runs() -> None:
    graph, machine = chain(FAR), resolve_cpu(MACHINE)
    own = build(graph, machine, 1, ALWAYS).program
    assert build(graph, machine, 1, given(planned(graph), "C+E+G")).program == own
    smaller = given(planned(graph), "C+E+G", ("m:5 {", "m:10 {"), ("m:18", "m:9"))
    artifact = build(graph, machine, 1, smaller)
    assert artifact.program != own
    assert artifact.stored_plan().trees["C+E+G"] == smaller.trees["C+E+G"]
    if not missing_features(machine.features):
        require_right(graph, smaller, machine=MACHINE)


@pytest.mark.covering(1)
@pytest.mark.parametrize("cut", ["k", "l", "n"])
@pytest.mark.parametrize("epilogues", [("", "", ""), ("max(@, 0.0)", "@ * 0.5", "@ * 2.0")])
def test_sums_of_any_of_three_products_wait_from_block_to_block(cut: str, epilogues: tuple[str, str, str]) -> None:
    require_right_with_blocks(chain((2, 97, 65, 130, 131, 40), epilogues), "kln".index(cut))


@pytest.mark.covering(1)
@pytest.mark.parametrize("product", range(3))
@pytest.mark.parametrize("relu", [False, True])
def test_sums_of_bf16_wait_in_wider_memory(product: int, relu: bool) -> None:
    require_right_with_blocks(narrow_chain((2, 33, 65, 130, 131, 40), relu), product)


def kernel_of(graph: Graph, machine: str = MACHINE) -> Kernel:
    """The kernel with products of a graph that has one."""
    (kernel,) = (each for each in planned(graph, machine=machine).kernels if products_of(each.scheduled))
    return kernel


def require_right_with_blocks(graph: Graph, product: int) -> None:
    """What the kernel of a chain computes is right where blocks cut the sum of one product."""
    machine, kernel = resolve_cpu("host"), kernel_of(graph, "host")
    tree = products_tree(kernel.scheduled)
    works, point = [each.work for each in tree.products], point_of(tree)
    axis, tiles = works[product].depth[0], [each.tile for each in tree.products]
    unit = lcm(*(tile.get(axis.name, 1) for tile in tiles))
    cut = SpatialLoop(axis, unit * max(1, 32 // unit))
    assert cut.tiles > 1, "several blocks"
    blocks = (*point.blocks, cut)
    changed = fused_kernel(works, replace(point, blocks=blocks), [False] * 3, {}, machine).tree
    options = Options(cache=False, trees={kernel.name: to_json(changed)})
    assert planned(graph, options, machine="host").trees()[kernel.name] == to_json(changed)
    require_right(graph, options)


@pytest.mark.parametrize(
    ("loops", "reason", "help"),
    [
        ("nl", "blocks cut the sum of E", "the only loop that one product sums over"),
        ("kl", "blocks cut the sum of E", "the only loop that one product sums over"),
        ("lm", "blocks are walked in the order l, m", "the loop that E sums over is the innermost one"),
    ],
)
def test_blocks_that_no_program_is_made_for(loops: str, reason: str, help: str) -> None:
    refused = of_blocks(chain((1, 512, 64, 128, 192, 64)), loops)
    assert reason in refused.message
    assert help in (refused.help or "")


def test_blocks_beside_rows_cut_the_sum_of_the_last_product_only() -> None:
    refused = of_blocks(attention((1, 512, 64, 64, 128)), "k")
    assert "blocks cut the sum of S" in refused.message  # C, with what is computed of it
    assert "the only loop that the last product sums over" in (refused.help or "")


def of_blocks(graph: Graph, loops: str) -> InvalidTree:
    """Why no program is made for the kernel of a graph with these loops in blocks of some register tiles."""
    tree = products_tree(kernel_of(graph).scheduled)
    works, tiles = [each.work for each in tree.products], [each.tile for each in tree.products]
    axes = {axis.name: axis for work in works for axis in (*work.spatial, *work.depth)}
    units = {name: lcm(*(tile.get(name, 1) for tile in tiles)) for name in loops}
    blocks = tuple(SpatialLoop(axes[name], unit * -(-32 // unit)) for name, unit in units.items())
    point, rows = point_of(tree), {number: each.statements for number, each in tree.rows.items()}
    point = replace(point, blocks=blocks)
    with pytest.raises(InvalidTree) as caught:
        products_tree(fused_kernel(works, point, [False] * len(works), rows, resolve_cpu(MACHINE)))
    return caught.value


def test_a_tree_that_cuts_two_sums_is_refused() -> None:
    graph = chain((1, 97, 33, 64, 80, 40))
    options = given(planned(graph), "C+E+G", ("seq[", "@L3 for n:2 { seq["), (" }]", " }] }"))
    with pytest.raises(IllegalTree, match="L4 foreign loop: n:2 at L3 is no loop of C") as caught:
        planned(graph, options)
    assert caught.value.where.startswith("tile tree of C+E+G")
    assert caught.value.help


def test_a_tree_of_two_of_the_products_keeps_the_third_apart() -> None:
    graph = chain((1, 97, 33, 64, 80, 40))
    with patch("tilewright.compiler.fused.MOST_PRODUCTS", 2):
        pair = planned(graph)
    assert products_in(pair) == [2, 1]
    assert products_in(planned(graph, given(pair, "C+E", fuse="always"))) == [2, 1]


def test_a_tree_of_the_last_two_products_keeps_the_first_apart() -> None:
    graph = chain((1, 97, 33, 64, 80, 40))
    alone = planned(graph, Options(cache=False, fuse="never")).trees()["C"]
    pair = planned(graph, Options(cache=False, fuse="always", trees={"C": alone}))
    assert products_in(pair) == [1, 2]
    assert products_in(planned(graph, given(pair, "E+G", fuse="always"))) == [1, 2]


def test_a_tree_whose_links_do_not_fit_is_refused() -> None:
    options = given(planned(chain(FAR)), "C+E+G", ("m:5 {", "m:1 {"), ("m:18", "m:86"))
    machine = resolve_cpu(MACHINE)
    first, second, *others = machine.caches
    small = replace(machine, caches=(first, replace(second, bytes=200_000), *others))
    with pytest.raises(IllegalTree, match=r"L8 resources: a program keeps .* bytes of C, E in L2, which holds 200"):
        make_plan(chain(FAR), small, 1, options)


def test_a_tree_of_another_chain_is_refused() -> None:
    options = given(planned(chain(FAR)), "C+E+G")
    with pytest.raises((IllegalTree, InvalidTree)) as caught:
        planned(chain((8, 512, 64, 64, 96, 64)), options)
    assert caught.value.where.startswith("tile tree of C+E+G")
