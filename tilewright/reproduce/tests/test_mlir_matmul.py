"""The ladder: every level, each switch left out, and any legal set of them compute the product, without a race."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import pairwise
from math import prod
from random import Random

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.ir import SSAValue

from tilewright.errors import InvalidArgument
from tilewright.kernel.dialect import LoadOp, StoreOp, shape
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.rules.control import trips as number_of_trips
from tilewright.kernel.simt import BarrierOp, MmaOp, SharedOp, is_shared
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
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


@pytest.mark.parametrize(
    ("size", "warps", "grid", "trips"), [(8192, (2, 4), (64, 64), 127), (1024, (4, 2), (8, 8), 15)], ids=["E1", "E2"]
)
def test_structure_of_the_examples(size: int, warps: tuple[int, int], grid: tuple[int, int], trips: int) -> None:
    """Blocks of 128x128x64 on 8 warps, slices through registers into padded rows: one slice ahead, two barriers."""
    chosen = settings(closed([])["L6"], Tiling((128, 128, 64), warps))
    kernel = compiled((size, size, size), chosen).body.block.first_op
    assert (kernel.extents, kernel.block) == (grid, (256, 1, 1))
    (loop,) = [op for op in kernel.body.block.ops if isinstance(op, scf.ForOp)]
    assert number_of_trips(loop) == trips
    inside = list(loop.body.block.ops)
    loads = [op for op in inside if isinstance(op, LoadOp) and not is_shared(op.view)]
    stores = [op for op in inside if isinstance(op, StoreOp) and is_shared(op.view)]
    assert [len(loads), len(stores)] == [8, 8]
    assert {element_count(op.result) for op in loads} == {8}  # of 16 bits: 128 at once
    assert sum(isinstance(op, BarrierOp) for op in inside) == 2
    assert sum(isinstance(op, MmaOp) for op in inside) == 64  # of 16x8x16: 32 of 16x16x16
    assert sum(element_count(value) for value in loop.iter_args if "f32" in str(value.type)) == 64  # accumulators
    assert sum(element_count(value) // 2 for value in loop.iter_args if "f16" in str(value.type)) == 32  # next slice
    assert inside.index(loads[-1]) < min(inside.index(op) for op in inside if isinstance(op, MmaOp | BarrierOp))
    buffers = {op.view.owner for op in stores}
    assert sorted(op.bytes for op in buffers if isinstance(op, SharedOp)) == [17408, 18432]


def element_count(value: SSAValue) -> int:
    return prod(shape(value))


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


def test_rows_without_padding_are_read_in_eight_accesses() -> None:
    """Eight rows of 128 or 256 bytes begin in the same bank; with 16 bytes of padding in eight."""
    machine = resolve(ladder.MACHINE)
    assert isinstance(machine, Gpu)
    plain = frozenset({"tiles", "matrix-ops", "hoist-c", "vector-copy", "ldmatrix"})
    tiling = Tiling((64, 64, 64), (2, 2))
    few, many = (
        {on: ladder.counts(settings(on, tiling), slices, machine)["wavefronts"] for on in (plain, plain | {"padding"})}
        for slices in (2, 4)
    )
    reads = 4 * (2 + 2) * 4  # of one slice: matrices of 8 rows of a warp times warps, 16 bytes of a row at once
    writes = 2 * 64 * 64 * 2 // 128
    per_slice = {on: (many[on] - few[on]) / 2 for on in few}
    assert per_slice[plain | {"padding"}] == writes + 4 * reads
    assert per_slice[plain] == writes + 8 * 4 * reads


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
