"""Schedules run whole: workgroups, staged slices, subgroups, the intrinsic's reference behaviour and its fragments."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.instruction.emulate import exact_bound
from tilewright.instruction.mma import Deduction, MmaProblem, Options, deduce_mma
from tilewright.intrinsics.elements import storage
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.fragments import from_registers, to_registers
from tilewright.intrinsics.intrinsic import Fragment, Intrinsic, Operand
from tilewright.intrinsics.registry import standard


def places(
    sizes: tuple[int, ...], subgroups: tuple[int, ...], tiles: tuple[int, ...], extent: int
) -> tuple[np.ndarray, list[int]]:
    """Which element of the padded loops [workgroup, subgroup, tile, element of the intrinsic] is; the padded sizes."""
    flat, padded = np.zeros((1, 1, 1, 1), np.int64), []
    for dim, (size, own_subgroups, own_tiles) in enumerate(zip(sizes, subgroups, tiles, strict=True)):
        elements = extent if dim == len(sizes) - 1 else 1
        groups = -(-size // (own_subgroups * own_tiles * elements))
        padded.append(groups * own_subgroups * own_tiles * elements)
        part = np.arange(padded[-1]).reshape(groups, own_subgroups, own_tiles, elements)
        outer = flat[:, None, :, None, :, None, :, None] * padded[-1]
        flat = (outer + part[None, :, None, :, None, :, None, :]).reshape(
            [flat.shape[axis] * part.shape[axis] for axis in range(4)]
        )
    return flat, padded


def held(operand: Operand, tile: np.ndarray) -> np.ndarray:
    """A tile as lanes hold it, or as it is where the instruction reads memory or hides who holds what."""
    return to_registers(operand.layout, tile) if isinstance(operand.layout, Fragment) else tile


def box_of(record: Intrinsic, operand: Operand, value: np.ndarray) -> np.ndarray:
    if isinstance(operand.layout, Fragment):
        return from_registers(operand.layout, value, record.shape(operand))
    return value


def run(found: Deduction, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C[m..., n...] of A[m..., k...] and B[k..., n...] by the schedule; zeros beyond the edges."""
    schedule, problem = found.schedule, found.scheduled
    assert schedule is not None
    assert problem is not None
    x, record = schedule.intrinsic, standard().find(schedule.intrinsic.name)
    lhs, rhs, dst = record.operands
    m_sizes, n_sizes, k_sizes = (tuple(size or 0 for size in sizes) for sizes in (problem.m, problem.n, problem.k))
    m_of, m_padded = places(m_sizes, schedule.m_subgroups, schedule.m_tiles, x.m)
    n_of, n_padded = places(n_sizes, schedule.n_subgroups, schedule.n_tiles, x.n)
    k_of, k_padded = places(k_sizes, (1,) * len(k_sizes), schedule.k_tiles, x.k)
    for of, padded in ((m_of, m_padded), (n_of, n_padded), (k_of, k_padded)):
        np.testing.assert_array_equal(np.sort(of.ravel()), np.arange(prod(padded)))  # everything once
    wide_a, wide_b = (
        np.pad(array, [(0, size - own) for size, own in zip(padded, array.shape, strict=True)])
        for array, padded in ((a, m_padded + k_padded), (b, k_padded + n_padded))
    )
    wide_a = wide_a.reshape(prod(m_padded), -1)
    wide_b = wide_b.reshape(prod(k_padded), -1)
    c = np.zeros((len(wide_a), wide_b.shape[1]), storage(dst.dtype))
    for rows in m_of:  # workgroups
        for columns in n_of:
            tiles = np.zeros((*rows.shape[:1], *columns.shape[:1], *rows.shape[1:2], *columns.shape[1:2], x.m, x.n),
                             storage(dst.dtype))  # fmt: skip
            sums = held(dst, tiles)  # subgroup of m and of n, tile of m and of n, what lanes hold
            for depth in k_of[:, 0]:
                staged_a = wide_a[rows[..., None, None], depth]  # subgroup, tile, row, tile of k, element of k
                staged_b = wide_b[depth[..., None, None, None], columns]  # tile of k, element, subgroup, tile, column
                for step in range(len(depth)):
                    factors = (
                        held(lhs, staged_a[:, None, :, None, :, step]),
                        held(rhs, staged_b[step].transpose(1, 2, 0, 3)[None, :, None]),
                    )
                    result = execute(record, box_of(record, dst, sums), box_of(record, lhs, factors[0]),
                                     box_of(record, rhs, factors[1]))  # fmt: skip
                    sums = held(dst, result)
            c[rows[:, None, :, None, :, None], columns[None, :, None, :, None, :]] = box_of(record, dst, sums)
    grid = next(event.fields for event in found.events if event.kind == "config.grid")
    if found.problem == problem:
        assert (grid["workgroups"], grid["k_steps"]) == (len(m_of) * len(n_of), len(k_of))
    c = c.reshape(*m_padded, *n_padded)[tuple(slice(size) for size in (*m_sizes, *n_sizes))]
    return c.astype(storage(problem.c))


def operands(problem: MmaProblem, record: Intrinsic, seed: int, *, exact: bool) -> tuple[np.ndarray, np.ndarray]:
    """Random A and B; if `exact`, small integers of which no sum is rounded."""
    generator = np.random.default_rng(seed)
    shapes = [tuple(size or 0 for size in sizes) for sizes in ((*problem.m, *problem.k), (*problem.k, *problem.n))]
    terms = prod(shapes[1][: len(problem.k)])
    bound = min(exact_bound(dtype, terms) for dtype in (record.destination.dtype, problem.c))
    values = [generator.integers(-bound, bound + 1, shape) if exact else generator.standard_normal(shape)
              for shape in shapes]  # fmt: skip
    a, b = (value.astype(storage(each.dtype)) for value, each in zip(values, record.sources, strict=True))
    return a, b


def product(problem: MmaProblem, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.tensordot(a.astype(np.float64), b.astype(np.float64), len(problem.k))


# target, types, options
CASES = (
    ("gfx1100", "f16,f16,f32"), ("gfx1100", "f16,f16,f16"), ("gfx1100", "i8,i8,i32"), ("gfx1100", "bf16,bf16,bf16"),
    ("gfx1201", "f16,f16,f32"), ("gfx1201", "bf16,bf16,f32"), ("gfx1201", "i8,i8,i32"),
    ("gfx1201", "f8E4M3FN,f8E5M2,f32"), ("gfx942", "f16,f16,f32"), ("gfx942", "f16,f16,f16"),
    ("gfx942", "f32,f32,f32"), ("gfx942", "f64,f64,f64"), ("gfx942", "f8E5M2FNUZ,f8E4M3FNUZ,f32"),
    ("sm_75", "f16,f16,f32"), ("sm_75", "i8,i8,i32"), ("sm_80", "f16,f16,f16"), ("sm_80", "bf16,bf16,f32"),
    ("sm_80", "f32,f32,f32"), ("sm_80", "i8,i8,i32"), ("sm_80", "f64,f64,f64"), ("sm_89", "f8E5M2,f8E5M2,f32"),
)  # fmt: skip


def problem_for(rng: random.Random, types: str, *, loops: bool = True) -> MmaProblem:
    """Small: aligned sizes and ragged ones, sometimes with outer loops."""

    def sizes(most: int) -> tuple[int, ...]:
        outer = (rng.randint(1, 3),) if loops and rng.random() < 0.2 else ()
        return (*outer, 32 * rng.randint(1, most // 32) if rng.random() < 0.6 else rng.randint(2, most))

    return MmaProblem(sizes(128), sizes(96), sizes(64), (), *types.split(","))


@pytest.mark.parametrize(("target", "types"), CASES)
def test_spec5_property_8_schedules_compute_the_product(target: str, types: str) -> None:
    """Exact in every type: small integers, every path with an intrinsic, seeds and policies of all kinds."""
    paths = set()

    @settings(max_examples=tries(2, full=8), deadline=None, database=None)
    @given(st.integers(0, 2**32), st.sampled_from(["tilewright", "iree-3.6", "size-classes"]))
    @example(0, "tilewright")
    def block(seed: int, policy: str) -> None:
        rng = random.Random(seed)
        problem = problem_for(rng, types) if seed else MmaProblem((128,), (64,), (64,), (), *types.split(","))
        limit = rng.choice((None, None, 8192, 3072)) if seed else None  # which a fit has to reach
        found = deduce_mma(problem, target, policy=policy, options=Options(shared_limit=limit))
        if found.schedule is None or found.scheduled is None:
            return
        paths.add(found.path)
        a, b = operands(found.scheduled, standard().find(found.schedule.intrinsic.name), seed, exact=True)
        np.testing.assert_array_equal(
            run(found, a, b).astype(np.float64), product(found.scheduled, a, b), err_msg=f"{found}"
        )

    block()
    assert paths


@pytest.mark.parametrize(
    ("target", "types", "options"),
    [
        ("sm_80", "f16,f16,f32", Options(tensor_core_table="auto")),
        ("sm_80", "f32,f32,f32", Options(tensor_core_table="auto")),
        ("sm_70", "f16,f16,f16", Options(tensor_core_table="auto")),
        ("sm_90a", "f16,f16,f32", Options(warpgroup=True)),
        ("sm_90a", "i8,i8,i32", Options(warpgroup=True)),
        ("gfx942", "f16,f16,f32", Options(force_intrinsic="VMFMA_F32_32x32x16_F16")),
        ("gfx942", "f8E4M3FNUZ,f8E4M3FNUZ,f32", Options(force_intrinsic="VMFMA_F32_16x16x32_F8E4M3FNUZ")),
    ],
)
def test_spec5_property_8_for_special_strategies(target: str, types: str, options: Options) -> None:
    problem = MmaProblem((192,), (128,), (64,), (), *types.split(","))
    found = deduce_mma(problem, target, options=options)
    assert found.schedule is not None
    if options.force_intrinsic is not None:
        assert found.schedule.intrinsic.name == options.force_intrinsic
    a, b = operands(problem, standard().find(found.schedule.intrinsic.name), 3, exact=True)
    np.testing.assert_array_equal(run(found, a, b), product(problem, a, b))


@pytest.mark.parametrize(("target", "types"), [case for case in CASES if not case[1].startswith(("i8", "f8"))])
def test_spec5_property_8_floats_within_the_order_of_sums(target: str, types: str) -> None:
    """Random values: each of the K additions rounds once, in the accumulator and at most once more in the result."""
    problem = MmaProblem((96,), (64,), (112,), (), *types.split(","))
    found = deduce_mma(problem, target)
    assert found.schedule is not None
    record = standard().find(found.schedule.intrinsic.name)
    a, b = operands(problem, record, 5, exact=False)
    if record.sources[0].dtype == "tf32":
        a, b = ((array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for array in (a, b))
    digits = {"f16": 11, "bf16": 8, "f32": 21, "f64": 50}  # less for wide types: hardware truncates to align terms
    bound = (112 / 16 + 4) * 2.0 ** -digits[record.destination.dtype] + 2.0 ** -digits[problem.c]
    error = np.abs(run(found, a, b).astype(np.float64) - product(problem, a, b))
    assert (error <= bound * product(problem, np.abs(a), np.abs(b))).all()
