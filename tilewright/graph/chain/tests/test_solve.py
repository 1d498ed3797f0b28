"""The solver: tables of the specification, plans at every level, trees, decisions, and its cost."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from tests.fuzz_chains import check_two_products
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.expr.evaluate import evaluate
from tilewright.expr.text import parse_graph
from tilewright.graph.chain.candidates import Candidate, candidates
from tilewright.graph.chain.hierarchy import Hierarchy, Store, hierarchy_of
from tilewright.graph.chain.levels import memory_of, solve_levels
from tilewright.graph.chain.loops import NotAChain, chain_of
from tilewright.graph.chain.orders import check_order, legal_orders
from tilewright.graph.chain.softmax import deferred
from tilewright.graph.chain.solve import NoTiling, solve, solve_level
from tilewright.graph.chain.tests.chains import (
    TABLE_3_5,
    Computes,
    attention,
    conv_chain,
    conv_relu_pool_conv,
    gemm_chain,
    three_products,
    two_convolutions,
    two_products,
)
from tilewright.graph.chain.tests.test_closed_form import TABLE
from tilewright.graph.chain.tilings import Memory, best_tiling, lower_bound
from tilewright.machine import resolve
from tilewright.machine.description import Gpu
from tilewright.tiles.legality import check, violations
from tilewright.tiles.notation import print_tree


def one_level(capacity_bytes: int, *, flops: float = 1e30, start: float = 0.0) -> Hierarchy:
    """A machine with one memory on chip, bound by traffic."""
    return Hierarchy("one", (Store("DRAM", None, 1e9), Store("L1", capacity_bytes, 1e12)), flops, start)


# One level ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_exact_optimum_of_section_3_7(row: tuple[object, ...]) -> None:
    capacity, alpha, *_, volume, tiles = row
    chain = gemm_chain(2048, 2048, 2048, 2048)
    memory = Memory(capacity, smallest=dict.fromkeys("mnkl", alpha))  # type: ignore[arg-type]
    evict = [each for each in candidates(chain, legal_orders(chain)[0]) if each.policy == "EVICT"]
    ((_, found), *_) = solve_level(evict, memory, best=1)
    assert found.volume == volume
    assert sorted((found.tile["m"], found.tile["l"])) == sorted(tiles)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("capacity", "kept"), [(2**13, 786_432), (2**14, 393_216), (2**15, 262_144), (2**16, 196_608), (2**17, 131_072)]
)
def test_keep_wins_for_attention(capacity: int, kept: int) -> None:
    """Section 3.10: the solver finds the row block schedule, or a better one."""
    chain = gemm_chain(512, 64, 64, 512)
    memory = Memory(capacity, smallest=dict.fromkeys("mnkl", 16))
    ((candidate, found), *_) = solve_level(candidates(chain, legal_orders(chain)[0]), memory)
    assert found.volume <= kept
    assert candidate.moves.stays
    row_blocks = [each for each in candidates(chain, legal_orders(chain)[0]) if each.keep == {"A", "E"}]
    best = min(tiling.volume for each in row_blocks if (tiling := best_tiling(each, memory)) is not None)
    assert best == kept


@pytest.mark.parametrize("seed", range(30))
def test_the_solver_finds_what_an_exhaustive_search_finds(seed: int) -> None:
    check_two_products(7000 + seed)


@pytest.mark.parametrize("computes", [three_products(512, 256, 384, 320, 64), conv_chain("C4"), conv_chain("C6")])
def test_the_relaxed_solution_is_the_exact_one(computes: Computes) -> None:
    """SLSQP with its search of neighbours, where enumeration would do."""
    chain = chain_of(computes)
    memory = Memory(2**15)
    some = [each for each in candidates(chain, legal_orders(chain)[0]) if len(each.moves.free) >= 2][:12]
    for each in some:
        exact, relaxed = best_tiling(each, memory), best_tiling(each, memory, most_points=0)
        assert (exact is None) is (relaxed is None)
        if exact is not None and relaxed is not None:
            assert exact.volume <= relaxed.volume <= 1.02 * exact.volume
            assert relaxed.memory <= 2**15


def test_no_tiling_beats_the_bound_of_its_candidate() -> None:
    chain = chain_of(three_products(96, 64, 80, 72, 48))
    for each in candidates(chain, legal_orders(chain)[0]):
        for capacity in (64, 1000, 2**14):
            tiling = best_tiling(each, Memory(capacity))
            if tiling is not None:
                assert tiling.seconds >= lower_bound(each, Memory(capacity))


def test_aligned_tiles_are_multiples() -> None:
    """708 becomes 704, as much traffic (section 3.8, step 4)."""
    chain = gemm_chain(2048, 2048, 2048, 2048)
    memory = Memory(2**19, smallest=dict.fromkeys("mnkl", 16), aligned=True)
    ((_, found), *_) = solve_level(candidates(chain, legal_orders(chain)[0]), memory)
    assert found.volume == 50_331_648
    assert all(size % 16 == 0 for size in found.tile.values())


def test_recomputation_may_pay() -> None:
    """A first product that costs nothing: E moves once, in an order that computes C again for each block of n."""
    chain = gemm_chain(64, 4096, 1, 64)
    memory = Memory(700)
    ((candidate, _), *_) = solve_level(candidates(chain, legal_orders(chain)[0]), memory)
    assert any(candidate.moves.again)


# Every level ----------------------------------------------------------------------------------------------------------

CHAINS: Mapping[str, Computes] = {
    "two products": two_products(512, 64, 64, 512, 12, "f32"),
    "odd sizes": two_products(97, 13, 31, 211, dtype="f32"),
    "one name": parse_graph("""
        input A: f32[64, 48]
        input B: f32[48, 56]
        input D: f32[56, 48]
        C: f32[m:64, l:56] += A[m, k] * B[k, l] over k:48
        E: f32[m:64, k:48] += C[m, l] * D[l, k] over l:56
        output E""").nodes,
    "three products": three_products(512, 256, 384, 320, 64),
    "three products, relus": three_products(128, 64, 96, 80, 48, relu=True),
    "attention": attention(512, 512, 64, 64, 12),
    "convolutions": conv_chain("C3"),
    "strides": two_convolutions(8, 33, 16, 12, (2, 2), (3, 3), batch=2),
    "convolutions, relu, pool": conv_relu_pool_conv(),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["x86-64-v4", "sm_80", "edge", "cloud"])
@pytest.mark.parametrize("name", CHAINS)
def test_trees_of_all_plans_are_legal(name: str, machine: str) -> None:
    hierarchy = hierarchy_of(resolve(machine))
    found = solve(CHAINS[name], hierarchy)
    assert 1 <= len(found.plans) <= 8
    times = [plan.time for plan in found.plans]
    assert times == sorted(times)
    for plan in found.plans:
        check(plan.tree, plan.chain.problem, imperfect=True, recompute=plan.recomputes)
        outside = dict(plan.chain.extents)
        for store in hierarchy.levels[1:]:
            tile = plan.tiles[store.name]
            assert all(1 <= tile[loop] <= outside[loop] for loop in tile)
            outside = dict(tile)
        assert set(plan.seconds) == {*plan.tiles, "compute"}
        off_chip = plan.dv[hierarchy.levels[1].name]
        assert not set(off_chip) & plan.chain.links
        assert all(off_chip[a.tensor] >= 0.99 * a.size for _, a in plan.chain.io if len(a.dims) == 2)


@pytest.mark.parametrize("name", ["two products", "three products", "convolutions", "strides"])
def test_every_candidate_has_a_legal_tree_at_every_level(name: str) -> None:
    from tilewright.graph.chain.trees import tree_of

    hierarchy = hierarchy_of(resolve("x86-64-v4"))
    chain = chain_of(CHAINS[name])
    for each in candidates(chain, legal_orders(chain)[0])[::3]:
        for fused in (1, 2, 3):
            levels = solve_levels(each, hierarchy, fused)
            if levels is not None:
                tree = tree_of(levels, hierarchy)
                again = any(each.moves.again)
                assert list(violations(tree, chain.problem, imperfect=True, recompute=again)) == []


def test_memory_holds_what_a_level_keeps() -> None:
    """At the level of fusion and inside of it; MU is in elements of two bytes here."""
    hierarchy = hierarchy_of(resolve("x86-64-v4"))
    for plan in solve(three_products(512, 256, 384, 320, 64), hierarchy).plans:
        names = [store.name for store in hierarchy.levels]
        for store in hierarchy.levels[names.index(plan.fused_in) :]:
            assert plan.mu[store.name] * 2 <= (store.capacity_bytes or 0)


def test_a_kept_output_lies_on_a_stage_around_the_loops_it_survives() -> None:
    chain = gemm_chain(512, 64, 64, 512)
    hierarchy = one_level(2 * 2**14)
    keep = next(each for each in candidates(chain, legal_orders(chain)[0])
                if each.keep == {"A", "E"} and each.order[:2] == ("m", "l"))  # fmt: skip
    levels = solve_levels(keep, hierarchy, 1, dict.fromkeys("mnkl", 16))
    assert levels is not None
    from tilewright.graph.chain.trees import tree_of

    tree = print_tree(tree_of(levels, hierarchy))
    assert tree == (
        "@DRAM for m:5 { stage A in L1 { stage E in L1 { @DRAM for l:27 { seq["
        "@L1 for m:103, l:19, k:64 { op C }, @L1 for m:103, n:64, l:19 { op E }] } } } }"
    )
    assert levels.dv[0] == {"A": 32_768, "B": 163_840, "D": 163_840, "E": 32_768}


def test_two_levels_are_solved_apart_and_nest() -> None:
    """Section 3.11: the slower level decides, and inner tiles are no larger than outer ones."""
    slow_inside = Hierarchy(
        "two", (Store("DRAM", None, 8.0), Store("L2", 2**20, 1e9), Store("L1", 2**14, 1e12)), 1e30, 0.0
    )
    found = solve(two_products(256, 256, 256, 256), slow_inside).best
    assert found.bound == "L2"  # what comes from DRAM
    assert found.time == found.seconds["L2"] == max(found.seconds.values())
    moved = sum(found.dv["L2"].values())
    assert found.seconds["L2"] == pytest.approx(2 * moved / 8.0)
    assert all(found.tiles["L1"][loop] <= found.tiles["L2"][loop] for loop in "mnkl")


def test_links_move_inside_the_level_of_fusion() -> None:
    hierarchy = hierarchy_of(resolve("x86-64-v4"))
    chain = gemm_chain(1024, 64, 64, 1024)
    each = candidates(chain, legal_orders(chain)[0])[0]
    outer, inner = (solve_levels(each, hierarchy, fused) for fused in (1, 3))
    assert outer is not None
    assert inner is not None
    assert ["C" in volume for volume in outer.dv] == [False, True, True]
    assert ["C" in volume for volume in inner.dv] == [False, False, False]


def test_blocks_take_a_part_of_a_cache_and_all_of_other_memory() -> None:
    caches = {each.name: each.capacity_bytes for each in hierarchy_of(resolve("xeon-gold-6240")).levels}
    assert caches["DRAM"] is None
    assert caches["L1"] == 0.75 * 32_768
    assert caches["L3"] == int(0.75 * 25_952_256 / 18)
    gpu = resolve("sm_80")
    assert isinstance(gpu, Gpu)
    assert hierarchy_of(gpu).levels[-1].capacity_bytes == gpu.shared_bytes_per_block


# A softmax in between -------------------------------------------------------------------------------------------------


def test_a_softmax_needs_its_loop_whole_or_a_rewrite() -> None:
    small = one_level(4 * 3000)  # holds no row of scores
    found = solve(attention(512, 512, 64, 64), small)
    assert found.best.rewrite == "online"
    with pytest.raises(NoTiling, match="smallest tiles"):
        solve(attention(512, 4096, 64, 64), small, softmax=("",))
    for plan in found.plans:
        check(plan.tree, plan.chain.problem, imperfect=True, recompute=plan.recomputes)
    whole = solve(attention(512, 512, 64, 64), one_level(4 * 2**16), softmax=("",)).best
    assert whole.tiles["L1"]["l"] == 512
    assert whole.rewrite == ""


def test_an_online_softmax_rescales_its_sums_at_every_step_but_the_first() -> None:
    """Sums of 512 rows: 64 of the second product, and the one that divides them; a multiplication is as long as two."""
    computes = attention(512, 512, 64, 64)
    plans = {each: solve(computes, one_level(4 * 3000), softmax=(each,)).best for each in ("deferred", "online")}
    tile = plans["online"].tiles["L1"]
    assert tile == plans["deferred"].tiles["L1"]  # bound by traffic
    steps = -(-512 // tile["l"])
    assert steps > 1
    assert plans["online"].flops - plans["deferred"].flops == 2 * 512 * (64 + 1) * (steps - 1)
    whole = solve(computes, one_level(4 * 2**18, flops=1e6), softmax=("online",)).best
    assert whole.tiles["L1"]["l"] == 512
    assert whole.flops == sum(whole.chain.flops(number) for number in range(2))


def test_what_is_bound_by_compute_rescales_as_seldom_as_memory_lets_it() -> None:
    computes = attention(512, 512, 64, 64)
    fast, slow = (solve(computes, one_level(4 * 3000, flops=flops), softmax=("online",)).best for flops in (1e30, 1e6))
    assert slow.bound == "compute"
    assert slow.tiles["L1"]["l"] > fast.tiles["L1"]["l"]
    assert slow.flops < fast.flops


def test_deferred_normalisation_computes_the_same() -> None:
    import numpy as np

    from tilewright.expr.graph import Graph

    nodes = attention(5, 7, 3, 4)
    generator = np.random.default_rng(0)
    inputs = {tensor.name: generator.standard_normal(tensor.shape, dtype=np.float32)
              for node in nodes for tensor in node.inputs() if tensor.name in ("Q", "K", "V")}  # fmt: skip
    tensors = tuple(tensor for node in nodes for tensor in node.inputs() if tensor.name in inputs)
    rewritten = deferred(nodes)
    assert rewritten is not None
    assert [node.accum for node in rewritten] == ["sum", None, "sum", "sum", None]
    expected, found = (
        evaluate(Graph(tensors, (each[-1].output,), tuple(each)), [inputs[t.name] for t in tensors])
        for each in (nodes, rewritten)
    )
    np.testing.assert_allclose(_first(found), _first(expected), rtol=1e-5)


def _first(result: object) -> object:
    return next(iter(result.values())) if isinstance(result, dict) else result[0]  # type: ignore[index]


def test_a_chain_without_softmax_is_not_rewritten() -> None:
    assert deferred(two_products(8, 8, 8, 8)) is None
    assert deferred(three_products(8, 8, 8, 8, 8, relu=True)) is None


# Decisions ------------------------------------------------------------------------------------------------------------


def test_attention_on_a_small_memory_is_fused() -> None:
    """Bound by traffic: a link of 512 by 512 is not written."""
    found = solve(two_products(512, 64, 64, 512), one_level(2 * 2**14))
    assert found.best.fuse
    assert found.decision.chosen == found.best.name
    assert found.best.time < found.apart.time
    assert found.decision.cost is not None
    assert found.decision.cost.seconds == found.best.time
    assert any(refusal.candidate == "apart" for refusal in found.decision.refused)
    assert any(refusal.rule.startswith("R1") for refusal in found.decision.refused)
    assert "us apart" in found.decision.reason


def test_what_is_bound_by_compute_has_nothing_to_save() -> None:
    """Section 3.14: C6 on a machine whose balance is far below its intensity."""
    slow = one_level(2**20, flops=1e9)
    found = solve(conv_chain("C6"), slow)
    assert not found.best.fuse
    assert found.decision.chosen == "apart"
    assert "bound by compute" in found.decision.reason
    assert found.decision.runner_up == found.best.name
    assert found.decision.runner_up_cost is not None
    assert found.decision.runner_up_cost.seconds == found.best.time


def test_large_k_and_n_gain_little() -> None:
    """The saving of 2 M L is small against what the tiles move; small k and n gain much."""
    large = solve(two_products(256, 4096, 4096, 256), one_level(2 * 2**13))
    small = solve(two_products(256, 64, 64, 256), one_level(2 * 2**13))
    assert 0.97 < large.best.time / large.apart.time < 1
    assert small.best.time / small.apart.time < 0.8


def test_a_link_in_the_last_cache_costs_nothing_apart() -> None:
    levels = (Store("DRAM", None, 1e9), Store("L3", 2**16, 1e12, cached_bytes=2**24))
    cached = solve(two_products(512, 64, 64, 512), Hierarchy("cached", levels, 1e30, 0.0)).apart
    assert "C" not in cached.dv
    assert "C" in solve(two_products(512, 64, 64, 512), one_level(2**16)).apart.dv


@pytest.mark.parametrize("name", ["C1", "C6"])
def test_plans_of_convolutions_recompute_rows_of_windows(name: str) -> None:
    found = solve(conv_chain(name), one_level(2 * 2**15)).best
    once = sum(found.chain.flops(number) for number in range(2))
    tiled = found.tiles["L1"]["i2"] < 56
    assert found.flops == pytest.approx(once) if name == "C1" or not tiled else found.flops > once


# Quanta and errors ----------------------------------------------------------------------------------------------------


class Sixteen:
    """Tiles of 16 of every loop."""

    def quanta(self, compute: Compute) -> Mapping[str, int]:
        return {axis.name: 16 for axis in compute.loops}


def test_tiles_are_those_that_instructions_run() -> None:
    plan = solve(two_products(500, 64, 64, 512), one_level(2 * 2**14), Sixteen()).best
    for loop, size in plan.tiles["L1"].items():
        assert size % 16 == 0 or size == plan.chain.extents[loop]


def test_a_memory_that_holds_no_quantum_is_refused() -> None:
    with pytest.raises(NoTiling, match="holds 100 bytes") as error:
        solve(two_products(64, 64, 64, 64), one_level(100), Sixteen())
    assert "m 16" in error.value.message
    assert error.value.where == "C + E"
    assert error.value.help


def test_one_product_is_no_chain() -> None:
    with pytest.raises(NotAChain, match="C is the only product"):
        solve(two_products(8, 8, 8, 8)[:1], one_level(1000))


def test_a_machine_without_memory_on_chip_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no memory on chip") as error:
        Hierarchy("none", (Store("DRAM", None, 1e9),), 1e9, 0.0)
    assert error.value.help


def test_an_order_names_every_loop_once() -> None:
    chain = gemm_chain(8, 8, 8, 8)
    check_order(chain, tuple("mlkn"))
    with pytest.raises(InvalidArgument, match="m, l, k") as error:
        check_order(chain, tuple("mlk"))
    assert error.value.help == "each of k, l, m, n once"


# Cost -----------------------------------------------------------------------------------------------------------------


def cpu_seconds(computes: Computes, hierarchy: Hierarchy, runs: int) -> float:
    """The least CPU time of some runs."""

    def once() -> float:
        begin = time.process_time()
        solve(computes, hierarchy)
        return time.process_time() - begin

    return min(once() for _ in range(runs))


def test_a_gemm_chain_takes_a_tenth_of_a_second() -> None:
    """Twice as long where other processes share the caches."""
    hierarchy = hierarchy_of(resolve("x86-64-v4"))
    g = TABLE_3_5["G1"]
    assert cpu_seconds(two_products(g.m, g.n, g.k, g.l, g.batch, "f32"), hierarchy, 5) < 0.2


@pytest.mark.parametrize("name", ["C2", "C6"])
def test_a_convolution_chain_takes_seconds(name: str) -> None:
    assert cpu_seconds(conv_chain(name), hierarchy_of(resolve("x86-64-v4")), 1) < 10


def test_what_a_candidate_is() -> None:
    chain = gemm_chain(8, 8, 8, 8)
    every = candidates(chain, legal_orders(chain)[0])
    assert isinstance(every[0], Candidate)
    assert len({(each.moves.key(), each.whole) for each in every}) == len(every)
    assert memory_of(one_level(64), 1, None, aligned=False).capacity == 64


def test_a_second_product_may_read_a_part_of_the_first() -> None:
    graph = parse_graph("""
        input A: f32[400, 64]
        input B: f32[64, 320]
        input D: f32[320, 64]
        C: f32[m:400, l:320] += A[m, k] * B[k, l] over k:64
        E: f32[m:390, n:64] += C[m, l] * D[l, n] over l:320
        output E""")
    best = solve(graph.nodes, hierarchy_of(resolve("edge"))).best
    assert list(violations(best.tree, best.chain.problem)) == []
    assert best.dv["L1"]["A"] == 390 * 64
    assert best.flops == 2 * 390 * 320 * (64 + 64)
