"""The ablation: every level, each switch left out, and any legal set of them compute the product, without a race."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from math import prod
from random import Random

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.ir import SSAValue

from tests.covering import FULL, cover
from tilewright.errors import InvalidArgument
from tilewright.kernel.dialect import LoadOp, StoreOp, shape
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.common.rules.control import trips as number_of_trips
from tilewright.kernel.simt import BarrierOp, MmaOp, SharedOp, is_shared
from tilewright.kernel.text import print_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.reproduce.experiment import find
from tilewright.reproduce.matmul import ablation
from tilewright.reproduce.matmul.switches import (
    LEVELS,
    SWITCHES,
    USUAL,
    Tiling,
    Tilings,
    closed,
    compiled,
    settings,
)
from tilewright.reproduce.tests.reports import matmul_ablation

SMALL = Tilings(
    Tiling((2, 16, 16), (1, 1)), Tiling((4, 16, 16), (1, 2)), Tiling((16, 16, 16), (1, 2)), Tiling((16, 32, 32), (1, 2))
)


def subsets(random_ones: int) -> list[frozenset[str]]:
    """Every level, every switch left out of the last, and legal sets at random, all different."""
    found = dict.fromkeys([*closed([]).values(), *(closed([name])["L7"] for name in SWITCHES)])
    random, count = Random(0), len(found) + random_ones
    while len(found) < count:
        found[closed(random.sample(sorted(SWITCHES), random.randrange(1, 8)))["L7"]] = None
    return list(found)


@cache
def computes(chosen: str) -> bool:
    """Whether the kernel of some switches, by their names, computes the product; two rows of blocks, two slices.

    Blocks in another order have two columns too.
    """
    settled = settings(chosen.split(), SMALL)
    (bm, bn, bk), rng = settled.tiling.block, np.random.default_rng(0)
    m, n, k = 2 * bm, bn * (2 if "reorder-blocks" in chosen else 1), 2 * bk
    a, b, c = (np.asarray(rng.integers(-2, 3, shape), dtype) for shape, dtype in
               (((m, k), np.float16), ((k, n), np.float16), ((m, n), np.float32)))  # fmt: skip
    wanted = c + np.asarray(a.astype(np.float32) @ b.astype(np.float32))
    found = c.ravel()
    run_kernel(compiled((m, n, k), settled), "k", [a.ravel(), b.ravel(), found], races=True)
    return bool((found.reshape(m, n) == wanted).all())


def some_subsets() -> list[frozenset[str]]:
    """Of `subsets(200)` the ones not at random, and six more: those with most triples of switches that are not met yet.

    All pairs of switches, on or off, are met, and more triples than by 20 sets at random.
    """
    fixed, everything = subsets(0), subsets(200)
    known = set().union(*map(_triples, fixed))
    others = everything[len(fixed) :]
    return fixed + [others[place] for place in cover([_triples(each) - known for each in others], most=6)]


def _triples(chosen: frozenset[str]) -> set[tuple[tuple[str, bool], ...]]:
    return set(combinations([(name, name in chosen) for name in SWITCHES], 3))


def test_some_sets_meet_all_pairs_of_switches() -> None:
    triples = {key: set().union(*map(_triples, sets)) for key, sets in
               (("some", some_subsets()), ("random", subsets(20)), ("all", subsets(200)))}  # fmt: skip
    pairs = {key: {pair for each in found for pair in combinations(each, 2)} for key, found in triples.items()}
    assert pairs["some"] == pairs["all"]
    assert len(triples["some"]) > len(triples["random"])


def test_legal_sets_compute_the_product() -> None:
    """200 at random with `--full`. Sets that mean the same program and passes share a kernel."""
    sets = subsets(200) if FULL else some_subsets()
    one_of = {repr(settings(on, SMALL)): on for on in sets}
    assert len(one_of) > 3 * len(sets) // 4
    assert [sorted(on) for on in one_of.values() if not computes(" ".join(sorted(on)))] == []


def test_every_switch_changes_the_kernel() -> None:
    """Left out of the first level that has it, each gives another program text than with it."""
    texts, sizes = {}, (32, 64, 64)
    for level, on in closed([]).items():
        texts[level] = print_module(compiled(sizes, settings(on, SMALL)))
        for name in LEVELS[level]:
            less = closed([name], {**dict.fromkeys(LEVELS, ()), level: tuple(on)})[level]
            assert print_module(compiled(sizes, settings(less, SMALL))) != texts[level], name
    assert len(set(texts.values())) == len(LEVELS)


@pytest.mark.parametrize(
    ("size", "warps", "grid", "trips"), [(8192, (2, 4), (64, 64), 127), (1024, (4, 2), (8, 8), 15)], ids=["E1", "E2"]
)
def test_structure_of_the_examples(size: int, warps: tuple[int, int], grid: tuple[int, int], trips: int) -> None:
    """Blocks of 128x128x64 on 8 warps, slices through registers into padded rows: one slice ahead, two barriers."""
    chosen = settings(closed([])["L6"], replace(USUAL, matrix=Tiling((128, 128, 64), warps)))
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
    assert all(earlier < later for earlier, later in pairwise(levels[:-1]))
    assert levels[-1] == set(SWITCHES) - {"padding"}  # swizzle takes its place
    assert levels[-2] - levels[-1] == {"padding"}
    assert set().union(*map(set, LEVELS.values())) == set(SWITCHES)


def test_the_switches_are_those_of_the_publication() -> None:
    assert list(SWITCHES)[:14] == [
        "block-tiling", "shared", "warp-tiling", "matrix-ops", "permute", "outer-product", "unroll", "hoist-c",
        "padding", "vector-copy", "latency-hiding", "ldmatrix", "swizzle", "reorder-blocks",
    ]  # fmt: skip


def test_what_needs_a_switch_goes_with_it() -> None:
    gone = {"unroll", "hoist-c", "latency-hiding", "async-copy", "prefetch", "padding"}
    assert closed(["unroll"])["L7"] == set(SWITCHES) - gone
    assert closed(["swizzle"])["L7"] == set(SWITCHES) - {"swizzle"}  # with padding instead
    with pytest.raises(InvalidArgument, match="no optimisation 'tiles'"):
        closed(["tiles"])
    with pytest.raises(InvalidArgument, match="latency-hiding without shared, hoist-c"):
        settings(["latency-hiding"])
    with pytest.raises(InvalidArgument, match="swizzle and padding"):
        settings(["block-tiling", "shared", "padding", "swizzle"])


def test_the_order_of_products() -> None:
    """All products of a step of k first, or all steps of one sum."""
    for on, apart in (({"outer-product"}, 4), (set(), 1)):
        chosen = settings({"block-tiling", "shared", "warp-tiling", "matrix-ops", "permute", "unroll", *on}, USUAL)
        kernel = compiled((128, 128, 64), replace(chosen, tiling=Tiling((32, 32, 64), (2, 2)))).body.block.first_op
        products = [op for op in kernel.walk() if isinstance(op, MmaOp)]
        assert len(products) == 8
        second = next(number for number, op in enumerate(products) if op.c is products[0].result)
        assert second == apart // 2 if apart > 1 else 1


@pytest.fixture(scope="module")
def found() -> ablation.Report:
    return matmul_ablation()


def test_claims_are_met_and_those_of_a_device_open(found: ablation.Report) -> None:
    opened = [claim for claim in found.claims if claim.verdict == "open"]
    assert [claim.name for claim in opened] == ["ablation on the device", "products on the device"]
    assert all("no device: the emulator was asked for" in claim.reason for claim in opened)
    assert [claim.name for claim in found.claims if claim.verdict == "differs"] == []
    assert len(found.claims) == 10


def test_counts_of_the_running_example(found: ablation.Report) -> None:
    """128x128x64 on 8 warps; a product of 16x16x16 is two of 16x8x16."""
    steps = {step.name: step.slice for step in found.steps}
    assert [steps[name].global_requests / 8 for name in ("L4", "L5", "L6", "L7")] == [64, 8, 8, 8]
    assert {step.products for name, step in steps.items() if name >= "L2"} == {8 * 2 * 32}
    assert steps["L3"].conflicts > 8 * steps["L4"].conflicts
    assert steps["L7"].conflicts == steps["L5"].conflicts == 0
    assert steps["L7"].global_bytes == 2 * 128 * 64 * 2


def test_rows_without_padding_are_read_in_eight_accesses() -> None:
    """Eight rows of 128 or 256 bytes begin in the same bank; with 16 bytes of padding in eight."""
    machine = resolve(ablation.MACHINE)
    assert isinstance(machine, Gpu)
    plain = closed([])["L3"] | {"vector-copy", "ldmatrix"}
    tiling = replace(USUAL, matrix=Tiling((64, 64, 64), (2, 2)))
    few, many = (
        {
            on: ablation.counts(settings(on, tiling), slices, machine)["wavefronts"]
            for on in (plain, plain | {"padding"})
        }
        for slices in (2, 4)
    )
    reads = 4 * (2 + 2) * 4  # of one slice: matrices of 8 rows of a warp times warps, 16 bytes of a row at once
    writes = 2 * 64 * 64 * 2 // 128
    per_slice = {on: (many[on] - few[on]) / 2 for on in few}
    assert per_slice[plain | {"padding"}] == writes + 4 * reads
    assert per_slice[plain] == writes + 8 * 4 * reads


def test_predictions_rise_and_stay_below_the_peak(found: ablation.Report) -> None:
    rates = [found.teraflops(step.name, 4096) for step in found.steps]
    assert rates == sorted(rates)
    assert rates[-1] < found.peak == pytest.approx(71.2, abs=0.1)


def test_stored_results_are_read_back(found: ablation.Report) -> None:
    again = ablation.Report.from_json(json.loads(json.dumps(found.to_json())))
    assert again.tables == found.tables
    assert again.claims == found.claims
    assert again.pictures == found.pictures


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="size 1000"):
        find("mlir-matmul").run(sizes=[1000])
    with pytest.raises(InvalidArgument, match="does not have mma_m16n8k16_f16_f32"):
        find("mlir-matmul").run(machine="nvidia-v100-sxm2", device="emulator")
