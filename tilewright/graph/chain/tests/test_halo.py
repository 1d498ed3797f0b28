"""Halos that are kept: blocks compute every row once, and the trees of such plans move what the plans say."""

from __future__ import annotations

import random

import pytest

from tilewright.graph.chain.candidates import Candidate, candidates
from tilewright.graph.chain.halo import keepers, keeping, kept_loop
from tilewright.graph.chain.hierarchy import Hierarchy, Store
from tilewright.graph.chain.index import Index, blocks
from tilewright.graph.chain.levels import Levels, solve_levels
from tilewright.graph.chain.loops import Chain, chain_of
from tilewright.graph.chain.movement import recomputation
from tilewright.graph.chain.orders import legal_orders
from tilewright.graph.chain.solve import solve
from tilewright.graph.chain.tests.chains import Computes, conv_chain, conv_relu_pool_conv, gemm_chain
from tilewright.graph.chain.trees import tree_of
from tilewright.graph.chain.workloads import ConvChain, unpadded_convolutions
from tilewright.machine.registry import resolve
from tilewright.tiles.analysis import analyse
from tilewright.tiles.legality import check
from tilewright.tiles.machines import resources
from tilewright.tiles.notation import print_tree


def one_level(capacity_bytes: int, flops: float = 1e30) -> Hierarchy:
    return Hierarchy("one", (Store("DRAM", None, 1e9), Store("L1", capacity_bytes, 1e12)), flops, 0.0)


def convolutions(stride1: int, stride2: int, kernel1: int, kernel2: int, rows: int = 4) -> Computes:
    size = rows * stride1 * stride2
    return unpadded_convolutions(ConvChain(1, size, size, 2, 2, stride1, stride2, kernel1, kernel2), "f16")


@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (1, 5), (3, 2), (2, 2)])
@pytest.mark.parametrize("tile", [1, 2, 3, 5, 7, 16])
def test_blocks_have_every_row_once(stride: int, kernel: int, tile: int) -> None:
    """Rows of a window, over blocks of 16 steps: those of the step before are left out, none is missing."""
    extents = {"p": 16, "u": kernel}
    index = Index((("p", stride), ("u", 1)), 15 * stride + kernel - 1, 0)  # the last row is outside
    kept = Index(index.terms, index.extent, index.constant, kept="p")
    rows: list[int] = []
    for ranges in blocks(["p"], {"p": tile}, extents):
        rows += sorted(kept.elements({**ranges, "u": (0, kernel)}))
    assert len(rows) == len(set(rows)) == index.distinct(extents)
    assert kept.covered({"p": tile, "u": kernel}, extents, exact=True) == index.distinct(extents)
    assert kept.distinct(extents) == index.distinct(extents)
    if kernel >= stride:
        assert kept.covered({"p": tile, "u": kernel}, extents) == index.distinct(extents)


def kept(computes: Computes) -> tuple[Chain, list[Candidate]]:
    chain = chain_of(computes)
    return chain, candidates(chain, legal_orders(chain)[0], halo=("keep",))


@pytest.mark.parametrize("sizes", [(1, 1, 3, 3), (2, 1, 1, 2), (1, 2, 1, 3)])
def test_a_tree_that_keeps_a_halo_moves_what_its_plan_says(sizes: tuple[int, int, int, int]) -> None:
    """Inputs and result of random tiles, beside the analysis of the tree; and what both convolutions compute."""
    roll = random.Random(sum(sizes))
    chain, every = kept(convolutions(*sizes))
    seen = 0
    for each in [one for one in every if one.halo and not one.moves.stays]:
        levels = solve_levels(each, one_level(2 * roll.randint(60, 200)), 1)
        if levels is None or levels.tiles[0][each.halo] == chain.extents[each.halo]:
            continue
        seen += _agrees(levels, chain)
    assert seen


def _agrees(levels: Levels, chain: Chain) -> bool:
    """Compares a plan with its tree, and says whether there was a halo to keep."""
    tree = tree_of(levels, one_level(2))
    again = any(levels.candidate.moves.again)
    check(tree, chain.problem, imperfect=True, recompute=again)
    assert "keep T" in print_tree(tree)
    analysis = analyse(tree, chain.problem, resources(resolve("edge")))
    moved = analysis.traffic.moved[()]
    assert {name: moved[name].loads for name in ("X", "W1", "W2")} == {
        name: levels.dv[0][name] for name in ("X", "W1", "W2")
    }
    assert moved["Y"].stores == levels.dv[0]["Y"]
    assert 2 * int(analysis.operations) == int(levels.flops)
    return recomputation(chain, 0, levels.tiles[0]) > recomputation(levels.candidate.moves.chain, 0, levels.tiles[0])


def test_what_is_bound_by_compute_gains_by_a_kept_halo() -> None:
    """C6, 1 x 1 and 3 x 3, in little memory: rows are computed again or kept."""
    slow = one_level(2 * 2**11, flops=1e9)
    found = {halo: solve(conv_chain("C6"), slow, halo=(halo,)).best for halo in ("recompute", "keep")}
    once = sum(found["keep"].chain.flops(number) for number in range(2))
    assert found["recompute"].flops > found["keep"].flops >= once
    assert found["keep"].time < found["recompute"].time
    assert "halo along" in found["keep"].policy
    both = solve(conv_chain("C6"), slow, halo=("recompute", "keep")).best
    assert both.time == min(plan.time for plan in found.values())


def test_a_kept_halo_is_of_the_innermost_loop_that_both_run_in() -> None:
    chain = chain_of(convolutions(1, 1, 3, 3))
    assert kept_loop(chain, ("l", "p", "q", "c", "k"), ()) == "q"
    assert kept_loop(chain, ("l", "q", "p", "c", "k"), ()) == "p"
    assert kept_loop(chain, ("p", "q", "l", "c", "k"), ()) == ""  # another part of the link comes in between
    assert kept_loop(chain, ("p", "q", "l", "c", "k"), ("l",)) == "q"
    assert keepers(chain) == ()
    assert [operator.name for operator in keepers(keeping(chain, "q"))] == ["T"]


def test_without_windows_there_is_no_halo() -> None:
    chain = gemm_chain(64, 48, 32, 80)
    every = candidates(chain, legal_orders(chain)[0], halo=("keep",))
    assert every
    assert not any(each.halo for each in every)


def test_maps_between_convolutions_are_kept_too() -> None:
    """A relu and a pooling between two convolutions: trees that keep a halo of all of it are legal."""
    plans = solve(conv_relu_pool_conv(), one_level(2 * 2**11, flops=1e9), halo=("recompute", "keep")).plans
    assert any("halo along" in plan.policy for plan in plans)
    for plan in plans:
        check(plan.tree, plan.chain.problem, imperfect=True, recompute=plan.recomputes)
