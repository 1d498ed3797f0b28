"""The ladder: every level, each switch left out, and any legal set of them compute the product, without a race."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.kernel.interpreter import run_kernel
from tilewright.reproduce.experiment import find
from tilewright.reproduce.matmul import ladder
from tilewright.reproduce.matmul.switches import LEVELS, SWITCHES, Tiling, closed, compiled, settings

RNG = np.random.default_rng(0)
SMALL = Tiling((32, 32, 32), (2, 2))
ELEMENTS = Tiling((4, 32, 32), (2, 2))


def subsets() -> list[frozenset[str]]:
    """Every level, every switch left out of the last, and some legal sets at random."""
    found = dict.fromkeys([*closed([]).values(), *(closed([name])["L7"] for name in SWITCHES)])
    random = Random(0)
    while len(found) < 32:
        found[closed(random.sample(sorted(SWITCHES), random.randrange(1, 5)))["L7"]] = None
    return list(found)


def check(on: Collection[str]) -> None:
    tiling = SMALL if "tiles" in on else ELEMENTS
    m, n, k = 2 * tiling.block[0], 2 * tiling.block[1], 3 * tiling.block[2]
    a, b, c = (np.asarray(RNG.integers(-2, 3, shape), dtype) for shape, dtype in
               (((m, k), np.float16), ((k, n), np.float16), ((m, n), np.float32)))  # fmt: skip
    wanted = c + np.asarray(a.astype(np.float32) @ b.astype(np.float32))
    found = c.ravel()
    run_kernel(compiled((m, n, k), settings(on, tiling)), "k", [a.ravel(), b.ravel(), found], races=True)
    np.testing.assert_array_equal(found.reshape(m, n), wanted)


@pytest.mark.parametrize("on", subsets(), ids=lambda on: "+".join(name for name in SWITCHES if name in on) or "none")
def test_every_legal_set_computes_the_product(on: frozenset[str]) -> None:
    check(on)


def test_levels_add_to_each_other() -> None:
    levels = list(closed([]).values())
    assert all(earlier < later for earlier, later in pairwise(levels))
    assert levels[-1] == set(SWITCHES)
    assert set().union(*map(set, LEVELS.values())) == set(SWITCHES)


def test_what_needs_a_switch_goes_with_it() -> None:
    assert closed(["hoist-c"])["L7"] == set(SWITCHES) - {"hoist-c", "latency-hiding", "async-copy", "prefetch"}
    with pytest.raises(InvalidArgument, match="no optimisation 'unroll'"):
        closed(["unroll"])
    with pytest.raises(InvalidArgument, match="latency-hiding without tiles, hoist-c"):
        settings(["latency-hiding"])


@pytest.fixture(scope="module")
def found() -> ladder.Report:
    return ladder.report(sizes=(1024, 4096))


def test_claims_are_met(found: ladder.Report) -> None:
    assert [claim.name for claim in found.claims if not claim.ok] == []
    assert len(found.claims) == 6


def test_counts_of_the_running_example(found: ladder.Report) -> None:
    """128x128x64 on 8 warps; a product of 16x16x16 is two of 16x8x16."""
    steps = {step.name: step.slice for step in found.steps}
    assert [steps[name].global_requests / 8 for name in ("L4", "L5", "L6", "L7")] == [64, 8, 8, 8]
    assert {step.products for name, step in steps.items() if name >= "L2"} == {8 * 2 * 32}
    assert steps["L3"].conflicts > 8 * steps["L4"].conflicts
    assert steps["L7"].conflicts == steps["L5"].conflicts == 0
    assert steps["L7"].global_bytes == 2 * 128 * 64 * 2


def test_predictions_rise_and_stay_below_the_peak(found: ladder.Report) -> None:
    rates = [found.teraflops(step.name, 4096) for step in found.steps]
    assert rates == sorted(rates)
    assert rates[-1] < found.peak == pytest.approx(71.2, abs=0.1)


def test_stored_results_are_read_back(found: ladder.Report) -> None:
    again = ladder.Report.from_json(json.loads(json.dumps(found.to_json())))
    assert again.tables == found.tables
    assert again.claims == found.claims
    assert again.pictures == found.pictures


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="size 1000"):
        find("mlir-matmul").run(sizes=[1000])
    with pytest.raises(InvalidArgument, match="does not have mma_m16n8k16_f16_f32"):
        find("mlir-matmul").run(machine="nvidia-v100-sxm2")
