"""What holds for every problem, on random ones, drawn in blocks by seeds that hypothesis chooses: 10,000 per target."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.instruction.mma import (
    POLICIES,
    KernelConfig,
    MmaProblem,
    Policy,
    ScheduleSeeds,
    check,
    deduce_mma,
    fit,
    initial_schedule,
    mma_target,
)
from tilewright.instruction.mma.config import k_steps
from tilewright.instruction.mma.fallbacks import FALLBACKS
from tilewright.instruction.mma.schedule import LISTS
from tilewright.instruction.mma.trace import Trace

TARGETS = ("gfx1100", "gfx1201", "gfx942", "gfx950", "sm_75", "sm_80", "sm_89", "sm_90")
TYPES = [("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("i8", "i8", "i32"),
         ("f32", "f32", "f32"), ("f64", "f64", "f64"), ("f8E4M3FN", "f8E4M3FN", "f32"), ("f16", "bf16", "f32"),
         ("f8E5M2FNUZ", "f8E4M3FNUZ", "f32")]  # fmt: skip
BLOCK = 100
BLOCKS = 100  # 10,000 problems for each target: spec 5, section 13


def random_size(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.5:
        return 16 * rng.randint(1, 1 << rng.randint(0, 9))
    if kind < 0.7:
        return 1 << rng.randint(0, 13)
    return rng.randint(1, 1 << rng.randint(2, 12))


def random_problem(rng: random.Random, *, static: bool = False) -> MmaProblem:
    def sizes() -> tuple[int | None, ...]:
        outer = [rng.randint(1, 9) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        found: list[int | None] = [*outer, random_size(rng)]
        if not static and rng.random() < 0.05:
            found[rng.randrange(len(found))] = None
        return tuple(found)

    a, b, c = rng.choice(TYPES)
    batch = (rng.randint(1, 7),) if rng.random() < 0.1 else ()
    return MmaProblem(sizes(), sizes(), sizes(), batch, a, b, c, rng.random() < 0.3, rng.random() < 0.3)


def has_sense(problem: MmaProblem, config: KernelConfig, max_threads: int) -> bool:
    """Threads within limits, a tile for every loop, whole subgroups where a matrix intrinsic runs."""
    loops = len(problem.loops)
    threads = prod(config.workgroup_size)
    return (
        0 < threads <= max_threads
        and len(config.workgroup) == len(config.reduction) == len(config.reduction_elements) == loops
        and (config.intrinsic is None or threads % config.subgroup_size == 0)
        and all(tile >= 0 for tile in (*config.workgroup, *config.reduction_elements))
        and all(tile > 0 for role, tile in zip(problem.roles, config.workgroup, strict=True) if role != "k")
        and all(tile > 0 for role, tile in zip(problem.roles, config.reduction, strict=True) if role == "k")
    )


@pytest.mark.parametrize("name", TARGETS)
def test_spec5_properties_of_deductions(name: str) -> None:
    """A returned schedule passes the check, has at most 256 threads, and divides the problem if it must."""
    target = mma_target(name)

    @settings(max_examples=BLOCKS, deadline=None, database=None)
    @given(st.integers(0, 2**32), st.sampled_from(sorted(POLICIES)))
    def block(seed: int, policy: str) -> None:
        rng = random.Random(seed)
        for _ in range(BLOCK):
            problem = random_problem(rng)
            found = deduce_mma(problem, target, policy=policy)
            assert has_sense(problem, found.config, target.max_threads), problem
            if found.schedule is None or found.scheduled is None or found.policy is None:
                assert found.path in dict(FALLBACKS)
                continue
            schedule, scheduled = found.schedule, found.scheduled
            assert check(scheduled, schedule, found.policy, target), problem
            assert schedule.threads <= 256 or policy == "size-classes", problem
            if found.policy.aligned_only:
                m, n, k = scheduled.m[-1], scheduled.n[-1], scheduled.k[-1]
                assert m is not None
                assert n is not None
                assert k is not None
                inner = [(m, schedule.m_tiles[-1] * schedule.m_subgroups[-1] * schedule.intrinsic.m),
                         (n, schedule.n_tiles[-1] * schedule.n_subgroups[-1] * schedule.intrinsic.n),
                         (k, schedule.k_tiles[-1] * schedule.intrinsic.k)]  # fmt: skip
                assert all(size % step == 0 for size, step in inner), problem

    block()


@settings(max_examples=tries(8, full=60), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(TARGETS))
def test_spec5_properties_of_fitting(seed: int, name: str) -> None:
    """A larger limit never lengthens the fit, and no entry grows."""
    rng = random.Random(seed)
    target = mma_target(name)
    for _ in range(20):
        problem = random_problem(rng, static=True)
        x = rng.choice(target.intrinsics)
        wish = initial_schedule(problem, x, ScheduleSeeds(4, rng.choice((4, 8, 16)), rng.choice((2, 4, 8))))
        policy = Policy(aligned_only=False, stage_c=rng.random() < 0.5)
        lengths = []
        for limit in (1 << 12, 1 << 14, 1 << 16, 1 << 18):
            trace = Trace()
            fitted = fit(problem, wish, policy, replace(target, shared_limit=limit), trace)
            lengths.append(trace[-1].fields["steps"] if fitted is not None else 1000)
            if fitted is not None:
                for counts in LISTS:
                    pairs = zip(getattr(fitted, counts), getattr(wish, counts), strict=True)
                    assert all(small <= large for small, large in pairs)
        assert lengths == sorted(lengths, reverse=True), problem


@settings(max_examples=tries(20, full=200), deadline=None)
@given(
    st.integers(2, 64),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from((4, 8, 16)),
)
def test_spec5_a_multiple_never_lowers_the_wish(m: int, n: int, k: int, factor: int, of_n: bool, tiles: int) -> None:
    """On the even branch: N or K times an integer."""
    x = mma_target("gfx1201").intrinsics[0]
    seeds = ScheduleSeeds(4, tiles, 8)
    m *= 8  # of a multiple of every half of the seeds: the even branch
    small = MmaProblem((16 * m,), (16 * n,), (16 * k,))
    large = replace(small, n=(16 * n * factor,)) if of_n else replace(small, k=(16 * k * factor,))
    trace = Trace()
    before, after = (initial_schedule(each, x, seeds, trace=trace) for each in (small, large))
    assert [event.fields["branch"] for event in trace if event.kind == "initial.split"] == ["even", "even"]
    for name in ("n_subgroups", "n_tiles", "k_tiles"):
        assert getattr(after, name) >= getattr(before, name)


def run_tiles(problem: MmaProblem, config: KernelConfig, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product by the configuration's own tiles: the grid, slices of k, zeros beyond the edges."""
    (m, n), k = (problem.m[0], problem.n[0]), problem.k[0]
    assert m is not None
    assert n is not None
    assert k is not None
    tile_m, tile_n, _ = config.workgroup
    tile_k = config.reduction_elements[2]
    rows, columns, depth = (-(-size // tile) * tile for size, tile in ((m, tile_m), (n, tile_n), (k, tile_k)))
    wide_a, wide_b = np.zeros((rows, depth), a.dtype), np.zeros((depth, columns), b.dtype)
    wide_a[:m, :k], wide_b[:k, :n] = a, b
    c = np.zeros((rows, columns), a.dtype)
    for i in range(0, rows, tile_m):
        for j in range(0, columns, tile_n):
            for r in range(0, depth, tile_k):
                c[i : i + tile_m, j : j + tile_n] += (
                    wide_a[i : i + tile_m, r : r + tile_k] @ wide_b[r : r + tile_k, j : j + tile_n]
                )
    assert k_steps(problem, config) == depth // tile_k
    return c[:m, :n]


@settings(max_examples=tries(8, full=60), deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.sampled_from(TARGETS), st.sampled_from(["i8", "f16"])
)
def test_tiles_of_every_path_cover_the_product_once(m: int, n: int, k: int, name: str, element: str) -> None:
    problem = MmaProblem((m,), (n,), (k,), (), element, element, "i32" if element == "i8" else "f32")
    found = deduce_mma(problem, name)
    rng = np.random.default_rng(m * n * k)
    a, b = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
    np.testing.assert_array_equal(run_tiles(problem, found.config, a, b), a @ b)
    schedule = found.schedule
    if schedule is not None:  # a subgroup's tiles, times the subgroups, are the workgroup's tile
        own = schedule.intrinsic.m * schedule.m_tiles[0], schedule.intrinsic.n * schedule.n_tiles[0]
        assert found.config.workgroup[:2] == (own[0] * schedule.m_subgroups[0], own[1] * schedule.n_subgroups[0])


def test_spec5_same_answer_in_any_order_and_process() -> None:
    code = (
        "import hashlib, random, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_properties import random_problem\n"
        "from tilewright.instruction.mma import deduce_mma\n"
        "rng = random.Random(7)\n"
        "problems = [random_problem(rng) for _ in range(40)]\n"
        "answers = {str(p): deduce_mma(p, 'gfx942').explain() for p in (problems[::-1] if sys.argv[2] else problems)}\n"
        "print(hashlib.sha256(repr(sorted(answers.items())).encode()).hexdigest())\n"
    )
    tests = Path(__file__).parent
    root = str(tests.parents[3])
    digests = {
        subprocess.run(
            [sys.executable, "-c", code, str(tests), backward], check=True, capture_output=True, text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": root},
        ).stdout
        for seed, backward in (("1", ""), ("2", "backward"))
    }  # fmt: skip
    assert len(digests) == 1


def test_spec5_work_is_bounded_by_the_counts_not_by_the_sizes() -> None:
    """A deduction takes as many events for sizes of 2**40 as for sizes of 2**12: no step or list grows with them."""
    for name in TARGETS:
        small, large = (
            deduce_mma(MmaProblem((16 * size,), (16 * size,), (16 * size,)), name).events for size in (1 << 8, 1 << 36)
        )
        assert [event.kind for event in small] == [event.kind for event in large]
