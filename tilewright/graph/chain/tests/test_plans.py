"""What a plan says of itself: its numbers follow from each other, its tree agrees, and it is among the best."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tilewright.expr import dtypes
from tilewright.expr.core import Compute
from tilewright.graph.chain.candidates import Candidate, candidates
from tilewright.graph.chain.hierarchy import Hierarchy, Store
from tilewright.graph.chain.levels import memory_of
from tilewright.graph.chain.loops import Chain, chain_of
from tilewright.graph.chain.orders import legal_orders
from tilewright.graph.chain.solve import ChainPlan, cost_apart, smallest_tiles, solve, solve_level
from tilewright.graph.chain.tests.chains import (
    Computes,
    attention,
    gemm_chain,
    three_products,
    two_convolutions,
    two_products,
)
from tilewright.graph.chain.tilings import Memory, Tiling, best_tiling
from tilewright.tiles.legality import violations
from tilewright.tiles.tree import Leaf, Scope, Stage, Tile, TileTree, walk

CHAINS: Mapping[str, Computes] = {
    "two products": two_products(96, 24, 32, 64, dtype="f32"),
    "three products": three_products(48, 32, 40, 24, 16),
    "attention": attention(64, 48, 16, 24),
    "convolutions": two_convolutions(8, 16, 16, 12, (1, 1), (3, 3)),
}
NAMES = ("DRAM", "L2", "L1")


def three_levels(start: float = 1e-6) -> Hierarchy:
    stores = (Store("DRAM", None, 1e9), Store("L2", 2**15, 3e9), Store("L1", 2**12, 7e9))
    return Hierarchy("three", stores, 5e9, start)


def sizes(plan: ChainPlan) -> dict[str, int]:
    """Bytes of an element of every tensor of a plan."""
    return {name: dtypes.size_bytes(tensor.dtype) for name, tensor in plan.chain.problem.tensors().items()}


@pytest.mark.parametrize("name", CHAINS)
def test_numbers_of_a_plan_follow_from_each_other(name: str) -> None:
    hierarchy = three_levels()
    found = solve(CHAINS[name], hierarchy)
    assert len({plan.fused_in for plan in found.plans}) == 2 or name == "convolutions"
    ranks = [(plan.time, sum(plan.seconds.values())) for plan in found.plans]
    assert ranks == sorted(ranks)
    for plan in found.plans:
        assert plan.time == max(plan.seconds.values()) + 1e-6
        for outer, level in zip(hierarchy.levels, NAMES[1:], strict=False):
            moved = sum(count * sizes(plan)[tensor] for tensor, count in plan.dv[level].items())
            assert plan.seconds[level] == pytest.approx(moved / outer.bytes_per_second)
        assert plan.seconds["compute"] == pytest.approx(plan.flops / hierarchy.flops_per_second)
        assert plan.bound in plan.seconds
        assert plan.seconds[plan.bound] == max(plan.seconds.values())
        assert plan.nodes == tuple(compute.name for compute in plan.chain.problem.computes)
        assert sorted(node.op for _, node in walk(plan.tree) if isinstance(node, Leaf)) == sorted(plan.nodes)
        assert plan.fuse is (plan.time < found.apart.time)


@pytest.mark.parametrize("name", CHAINS)
def test_links_stay_where_a_plan_says(name: str) -> None:
    """They move further in only; operators meet in the tile that fills the level, and stages are there."""
    for plan in solve(CHAINS[name], three_levels()).plans:
        fused = NAMES.index(plan.fused_in)
        for number, level in enumerate(NAMES[1:], 1):
            assert bool(set(plan.dv[level]) & plan.chain.links) is (number > fused)
        assert {node.level for _, node in walk(plan.tree) if isinstance(node, Stage)} <= {plan.fused_in}
        assert all(level == NAMES[fused - 1] or number < fused - 1 for number, level in _shared(plan.tree))


def _shared(tree: TileTree) -> list[tuple[int, str]]:
    """Level and its number of every tile around a scope."""
    scopes = [path for path, node in walk(tree) if isinstance(node, Scope)]
    around = [
        node.level
        for path, node in walk(tree)
        if isinstance(node, Tile) and any(scope[: len(path)] == path for scope in scopes)
    ]
    return [(NAMES.index(level), level) for level in around]


@pytest.mark.parametrize("name", CHAINS)
def test_plans_say_whether_they_compute_something_again(name: str) -> None:
    for plan in solve(CHAINS[name], three_levels()).plans:
        broken = [type(each).__name__ for each in violations(plan.tree, plan.chain.problem, imperfect=True)]
        assert ("Recomputation" in broken) is plan.recomputes
        assert set(broken) <= {"Recomputation"}


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("best", [1, 5])
def test_the_best_candidates_are_found_without_solving_all(name: str, best: int) -> None:
    """Beside all candidates with their best tiles, least time first, equal programs once."""
    chain = chain_of(CHAINS[name])
    every = candidates(chain, legal_orders(chain)[0])
    for capacity in (2**10, 2**13):
        memory = Memory(capacity, seconds_per_flop=0.01, weighted=True)
        pairs = [(each, tiling) for each in every if (tiling := best_tiling(each, memory)) is not None]
        pairs.sort(key=lambda pair: (pair[1].seconds, pair[1].volume))
        programs: dict[object, tuple[float, int]] = {}
        for candidate, tiling in pairs:
            programs.setdefault(_program(chain, candidate, tiling), (tiling.seconds, tiling.volume))
        found = [(tiling.seconds, tiling.volume) for _, tiling in solve_level(every, memory, best)]
        assert found == list(programs.values())[:best]


def _program(chain: Chain, candidate: Candidate, tiling: Tiling) -> object:
    """What two candidates have in common that are the same program."""
    loops = [loop for loop in candidate.order if tiling.tile[loop] < chain.extents[loop]]
    stays = {(tensor, loop) for tensor, loop in candidate.moves.stays.items() if loop in loops}
    return tuple(loops), tuple(sorted(tiling.tile.items())), frozenset(stays), candidate.halo in loops


class Uneven:
    """The first product asks for more of m than the second one, and for less of l."""

    def quanta(self, compute: Compute) -> Mapping[str, int]:
        return {"m": 6, "l": 4, "k": 4} if compute.name == "C" else {"m": 4, "l": 6, "n": 6}


def test_a_shared_loop_has_the_larger_quantum() -> None:
    assert smallest_tiles(gemm_chain(48, 36, 24, 60), Uneven()) == {"m": 6, "l": 6, "k": 4, "n": 6}
    assert smallest_tiles(gemm_chain(48, 36, 24, 60), None) == {}


# Apart ----------------------------------------------------------------------------------------------------------------


def test_products_apart_are_kernels_of_their_own() -> None:
    """All of it fits: every tensor moves once per kernel, C twice; a kernel starts twice."""
    hierarchy = Hierarchy("one", (Store("DRAM", None, 1e9), Store("L1", 2**20, 1e12)), 1e30, 1e-6)
    apart = cost_apart(two_products(96, 24, 32, 64, dtype="f32"), hierarchy)
    assert apart.dv == {"A": 96 * 32, "B": 32 * 64, "C": 2 * 96 * 64, "D": 64 * 24, "E": 96 * 24}
    (first, c), (second, e) = apart.kernels
    assert (first, second) == ("C", "E")
    assert c == pytest.approx(4 * (96 * 32 + 32 * 64 + 96 * 64) / 1e9 + 1e-6)
    assert e == pytest.approx(4 * (96 * 64 + 64 * 24 + 96 * 24) / 1e9 + 1e-6)
    assert apart.time == c + e


def test_a_softmax_apart_is_a_kernel_between_the_products() -> None:
    hierarchy = Hierarchy("one", (Store("DRAM", None, 1e9), Store("L1", 2**20, 1e12)), 1e30, 0.0)
    computes = attention(64, 48, 16, 24)
    apart = cost_apart(computes, hierarchy)
    first, rows, last = (name for name, _ in apart.kernels)
    assert (first, last) == (computes[0].name, computes[-1].name)
    assert rows == next(compute.name for compute in computes if compute.accum == "max")
    scores = 64 * 48
    assert apart.dv[first] == 2 * scores  # written by its kernel, read by the rows
    normalised = next(name for name in apart.dv if name not in (first, last) and apart.dv[name] == 2 * scores)
    assert normalised in {compute.name for compute in computes}
    assert dict(apart.kernels)[rows] == pytest.approx(4 * 2 * scores / 1e9)


def test_maps_behind_a_product_are_in_its_kernel() -> None:
    hierarchy = Hierarchy("one", (Store("DRAM", None, 1e9), Store("L1", 2**20, 1e12)), 1e30, 0.0)
    apart = cost_apart(three_products(48, 32, 40, 24, 16, relu=True), hierarchy)
    assert [name for name, _ in apart.kernels] == ["C", "E", "G"]
    assert "C" not in apart.dv
    assert apart.dv["C.relu"] == 2 * 48 * 40


def test_only_links_stay_in_a_cache_between_kernels() -> None:
    levels = (Store("DRAM", None, 1e9), Store("L3", 2**20, 1e12, cached_bytes=2**20))
    apart = cost_apart(two_products(96, 24, 32, 64, dtype="f32"), Hierarchy("cached", levels, 1e30, 0.0))
    assert set(apart.dv) == {"A", "B", "D", "E"}
    assert apart.time == pytest.approx(4 * sum(apart.dv.values()) / 1e9)


def test_the_second_best_is_named_beside_what_is_chosen() -> None:
    found = solve(two_products(512, 64, 64, 512), Hierarchy(
        "one", (Store("DRAM", None, 1e9), Store("L1", 2 * 2**14, 1e12)), 1e30, 0.0
    ))  # fmt: skip
    first, second, *_ = found.plans
    decision = found.decision
    assert first.fuse
    assert second.time < found.apart.time
    assert (decision.chosen, decision.runner_up) == (first.name, second.name)
    assert decision.cost is not None
    assert decision.runner_up_cost is not None
    assert (decision.cost.seconds, decision.runner_up_cost.seconds) == (first.time, second.time)
    assert decision.refused[0].candidate == "apart"


def test_memory_of_a_level_has_the_rate_of_the_one_outside() -> None:
    memory = memory_of(three_levels(), 2, {"m": 4}, aligned=True)
    assert (memory.capacity, memory.seconds, memory.seconds_per_flop) == (2**12, 1 / 3e9, 1 / 5e9)
    assert (memory.smallest, memory.aligned, memory.weighted) == ({"m": 4}, True, True)
