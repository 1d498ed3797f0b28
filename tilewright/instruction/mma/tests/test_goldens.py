"""Golden cases: deductions with their intermediate values."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from tilewright.instruction.mma import (
    POLICIES,
    AttentionProblem,
    Deduction,
    MmaProblem,
    Options,
    Reason,
    deduce_attention,
    deduce_mma,
    mma_target,
)
from tilewright.instruction.mma.config import product_of
from tilewright.instruction.mma.size_classes import cutoffs

# number (* also in the recorded table) | target | M x N x K | types | path | intrinsic | initial | steps | final |
# workgroup tile | threads | shared bytes | workgroups; schedules are written m_sg,n_sg;m_tiles,n_tiles,k_tiles
SCHEDULES = """
1* | gfx1201 | 128x256x512 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 2,2;2,2,8 | 0 | = | 64x64x128 | 128 | 32768 | 8
2 | gfx1100 | 128x256x512 | f16->f32 | VD | WMMAR3_F32_16x16x16_F16 | 2,2;2,2,8 | 0 | = | 64x64x128 | 128 | 32768 | 8
3 | gfx942 | 128x256x512 | f16->f32 | VD | MFMA_F32_16x16x16_F16 | 2,2;2,2,8 | 0 | = | 64x64x128 | 256 | 32768 | 8
4 | gfx1201 | 512x512x512 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 2,2;2,2,8 | 0 | = | 64x64x128 | 128 | 32768 | 64
5 | gfx1201 | 1024x1024x1024 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 2,2;2,4,4 | 0 | = | 64x128x64 | 128 | 24576 | 128
6 | gfx942 | 4096x4096x4096 | f16->f32 | VD | MFMA_F32_16x16x16_F16 | 2,2;2,4,4 | 0 | = | 64x128x64 | 256 | 24576 | 2048
7 | gfx942 | 4096x4096x4096 | bf16->f32 | VD | MFMA_F32_16x16x16_BF16 | 2,2;2,4,4 | 0 | = | 64x128x64 | 256 | 24576 | 2048
8 | gfx942 | 4096x4096x4096 | f16->f16 | VD+upcast | MFMA_F32_16x16x16_F16 | 2,2;2,4,4 | 0 | = | 64x128x64 | 256 | 24576 | 2048
9 | gfx942 | 2048x2048x2048 | i8->i32 | VD | MFMA_I32_16x16x32_I8 | 2,2;2,4,4 | 0 | = | 64x128x128 | 256 | 24576 | 512
10 | gfx942 | 2048x1280x1280 | f8E4M3FNUZ->f32 | VD | MFMA_F32_16x16x32_F8E4M3FNUZ | 2,2;2,4,4 | 0 | = | 64x128x128 | 256 | 24576 | 320
11 | gfx942 | 512x1024x768 | f8E5M2FNUZ,f8E4M3FNUZ->f32 | VD | MFMA_F32_16x16x32_F8E5M2FNUZ_F8E4M3FNUZ | 2,2;2,4,4 | 0 | = | 64x128x128 | 256 | 24576 | 64
12 | gfx942 | 1024x1024x1024 | f32->f32 | VD | MFMA_F32_16x16x4_F32 | 2,2;2,4,4 | 0 | = | 64x128x16 | 256 | 12288 | 128
13 | gfx942 | 256x256x256 | f64->f64 | VD | MFMA_F64_16x16x4_F64 | 2,2;2,2,8 | 0 | = | 64x64x32 | 256 | 32768 | 16
14 | gfx1201 | 256x256x256 | f16->f16 | VD | WMMAR4_F16_16x16x16_F16 | 2,2;2,2,8 | 0 | = | 64x64x128 | 128 | 32768 | 16
15 | gfx1201 | 256x256x256 | bf16->bf16 | VD | WMMAR4_BF16_16x16x16_BF16 | 2,2;2,2,8 | 0 | = | 64x64x128 | 128 | 32768 | 16
16 | gfx1100 | 1024x1024x1024 | i8->i32 | VD | WMMAR3_I32_16x16x16_I8 | 2,2;2,4,4 | 0 | = | 64x128x64 | 128 | 12288 | 128
17 | gfx1201 | 4096x4096x4096 | f8E4M3FN->f32 | VD | WMMAR4_F32_16x16x16_F8E4M3FN | 2,2;2,4,4 | 0 | = | 64x128x64 | 128 | 12288 | 2048
18 | gfx1100 | 512x1024x768 | bf16->f32 | VD | WMMAR3_F32_16x16x16_BF16 | 2,2;2,4,4 | 0 | = | 64x128x64 | 128 | 24576 | 64
19 | gfx1201 | 640x960x320 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 2,2;2,2,4 | 0 | = | 64x64x64 | 128 | 16384 | 150
20 | gfx1201 | 48x80x96 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 1,1;1,1,2 | 0 | = | 16x16x32 | 32 | 2048 | 15
21 | gfx1201 | 16x16x16 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 1,1;1,1,1 | 0 | = | 16x16x16 | 32 | 1024 | 1
22 | gfx942 | 288x288x288 | f16->f32 | VD | MFMA_F32_16x16x16_F16 | 2,2;1,1,2 | 0 | = | 32x32x32 | 256 | 4096 | 81
23 | gfx942 | 1280x1280x1280 | f16->f32 | VD | MFMA_F32_16x16x16_F16 | 2,2;2,4,4 | 0 | = | 64x128x64 | 256 | 24576 | 200
24 | gfx942 | 5120x640x2048 | f16->f32 | VD | MFMA_F32_16x16x16_F16 | 2,2;2,4,4 | 0 | = | 64x128x64 | 256 | 24576 | 400
25 | gfx1201 | 4096x4096x48 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 2,2;2,4,1 | 0 | = | 64x128x16 | 128 | 6144 | 2048
26 | gfx1201 | 1024x1024x16 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 2,2;2,4,1 | 0 | = | 64x128x16 | 128 | 6144 | 128
27 | gfx1201 | 16x1024x4096 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 1,4;1,4,8 | 2 nn | 1,4;1,2,8 | 16x128x128 | 128 | 36864 | 8
28 | gfx1201 | 1024x16x4096 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 2,1;2,1,8 | 0 | = | 64x16x128 | 64 | 20480 | 16
29* | gfx942 | 624x192x832 | f16->f16 | VD+upcast | MFMA_F32_16x16x16_F16 | 1,4;1,1,4 | 0 | = | 16x64x64 | 256 | 10240 | 117
30* | gfx942 | 880x304x1168 | f16->f32 | VD | MFMA_F32_16x16x16_F16 | 1,1;1,1,1 | 0 | = | 16x16x16 | 64 | 1024 | 1045
31* | gfx1100 | 448x192x1120 | f16->f16 | VD | WMMAR3_F16_16x16x16_F16 | 2,2;2,2,2 | 0 | = | 64x64x32 | 128 | 8192 | 21
32* | gfx1201 | 16x384x992 | f16->f32 | VD | WMMAR4_F32_16x16x16_F16 | 1,4;1,2,2 | 0 | = | 16x128x32 | 128 | 9216 | 3
33 | gfx1201 | 100x256x512 | f16->f32 | TF+pad | WMMAR4_F32_16x16x16_F16 | 1,4;1,4,4 | 0 | = | 16x256x64 | 128 | 51200 | 7
34 | gfx942 | 127x255x511 | f16->f32 | TF+pad | MFMA_F32_16x16x16_F16 | 2,2;2,2,4 | 0 | = | 64x64x64 | 256 | 32768 | 8
35 | gfx1201 | 2040x2040x2040 | f16->f32 | TF+pad | WMMAR4_F32_16x16x16_F16 | 2,2;4,4,2 | 2 mm | 2,2;2,4,2 | 64x128x32 | 128 | 45056 | 512
36 | gfx1201 | 8x4096x4096 | f16->f32 | TF+pad | WMMAR4_F32_16x16x16_F16 | 1,4;1,4,4 | 0 | = | 16x256x64 | 128 | 51200 | 16
37 | gfx1201 | 4x16x4096 | f16->f32 | TF+pad | WMMAR4_F32_16x16x16_F16 | 1,1;1,1,4 | 0 | = | 16x16x64 | 32 | 5120 | 1
38* | gfx942 | 90x156x351 | f16->f32 | TF+pad | MFMA_F32_16x16x16_F16 | 2,2;1,1,2 | 0 | = | 32x32x32 | 256 | 8192 | 15
39* | gfx1201 | 93x64x465 | i8->i32 | TF+pad | WMMAR4_I32_16x16x16_I8 | 1,4;2,1,2 | 0 | = | 32x64x32 | 128 | 11264 | 3
40* | gfx942 | 8x544x368 | f32->f32 | TF+pad | MFMA_F32_16x16x4_F32 | 1,2;1,1,4 | 0 | = | 16x32x16 | 128 | 5120 | 17
41 | sm_80 | 1024x1024x1024 | f16->f32 | TF | MMA_SYNC_F32_16x8x16_F16 | 2,2;4,4,2 | 0 | = | 128x64x32 | 128 | 12288 | 128
42 | sm_80 | 256x256x256 | f16->f32 | TF | MMA_SYNC_F32_16x8x16_F16 | 2,2;2,2,4 | 0 | = | 64x32x64 | 128 | 12288 | 32
43 | sm_80 | 1024x1024x1024 | f32->f32 | TF | MMA_SYNC_F32_16x8x8_TF32 | 2,2;4,4,2 | 0 | = | 128x64x16 | 128 | 12288 | 128
44 | sm_90 | 4096x4096x4096 | bf16->f32 | TF | MMA_SYNC_F32_16x8x16_BF16 | 2,2;4,4,2 | 0 | = | 128x64x32 | 128 | 12288 | 2048
45 | sm_90 | 4096x4096x4096 | f16->f16 | TF | MMA_SYNC_F16_16x8x16_F16 | 2,2;4,4,2 | 0 | = | 128x64x32 | 128 | 12288 | 2048
46 | sm_80 | 1000x1000x1000 | f16->f32 | TF+pad | MMA_SYNC_F32_16x8x16_F16 | 1,1;1,1,1 | 0 | = | 16x8x16 | 32 | 1280 | 7875
47 | sm_80 | [4, 16]x[2, 32]x[3, 128] | f16->f32 | TF | MMA_SYNC_F32_16x8x16_F16 | [1, 1],[1, 4];[2, 1],[2, 1],[1, 4] | 0 | = | 32x64x64 | 128 | 12288 | 2
48 | sm_80 | [8, 64]x[4, 128]x[2, 256] | f16->f32 | TF | MMA_SYNC_F32_16x8x16_F16 | [1, 1],[1, 4];[1, 1],[1, 4],[1, 4] | 0 | = | 16x128x64 | 128 | 18432 | 128
49 | sm_80 | 2048x2048x2048 | i8->i32 | TF | MMA_SYNC_I32_16x8x32_I8 | 2,2;4,4,2 | 0 | = | 128x64x64 | 128 | 12288 | 512
"""  # noqa: E501

LETTERS = {"m_tiles": "m", "n_tiles": "n", "k_tiles": "k", "m_subgroups": "M", "n_subgroups": "N"}


def sizes(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.strip("[]").split(","))


def types(text: str) -> tuple[str, str, str]:
    inputs, _, c = text.partition("->")
    a, _, b = inputs.partition(",")
    return a, b or a, c or a


def problem_of(shape: str, text: str) -> MmaProblem:
    m, n, k = shape.split("x")
    a, b, c = types(text)
    return MmaProblem(sizes(m), sizes(n), sizes(k), (), a, b, c)


def initial_of(deduction: Deduction) -> str:
    """The wished-for schedule of the last attempt, as schedules print."""
    last = [event for event in deduction.events if event.kind == "initial.done"][-1].fields

    def text(name: str) -> str:
        counts = last[name]
        return str(counts[0]) if len(counts) == 1 else str(list(counts))

    subgroups = ",".join(text(name) for name in ("m_subgroups", "n_subgroups"))
    return subgroups + ";" + ",".join(text(name) for name in ("m_tiles", "n_tiles", "k_tiles"))


def steps_of(deduction: Deduction) -> str:
    return "".join(LETTERS[event.fields["list"]] for event in deduction.events if event.kind == "fit.step")


def workgroups_of(deduction: Deduction) -> int:
    return [event for event in deduction.events if event.kind == "config.grid"][-1].fields["workgroups"]


def counts_of(deduction: Deduction) -> str:
    return str(deduction.schedule).partition(" ")[2]


@pytest.mark.parametrize("row", SCHEDULES.strip().splitlines(), ids=lambda row: "case" + row.partition(" ")[0])
def test_spec5_schedules(row: str) -> None:
    cells = [cell.strip() for cell in row.split("|")]
    _, target, shape, element_types, path, intrinsic, initial, steps, final, tile, threads, shared, grid = cells
    deduction = deduce_mma(problem_of(shape, element_types), target, policy="iree-3.6")
    schedule = deduction.schedule
    assert schedule is not None
    assert (deduction.path, schedule.intrinsic.name) == (path, intrinsic)
    assert initial_of(deduction) == initial
    assert counts_of(deduction) == (initial if final == "=" else final)
    assert steps_of(deduction) == steps.lstrip("0123456789 ")
    assert f"{schedule.wg_m}x{schedule.wg_n}x{schedule.wg_k}" == tile
    assert (schedule.threads, deduction.shared_bytes, workgroups_of(deduction)) == (
        int(threads),
        int(shared),
        int(grid),
    )


def test_spec5_loops_have_their_own_tiles() -> None:
    """Cases 47 and 48: elements per loop."""
    first = deduce_mma(problem_of("[4, 16]x[2, 32]x[3, 128]", "f16->f32"), "sm_80", policy="iree-3.6").config
    assert (first.workgroup, first.reduction) == ((2, 16, 2, 32, 0, 0), (0, 0, 0, 0, 1, 4))
    assert first.reduction_elements == (0, 0, 0, 0, 1, 64)
    second = deduce_mma(problem_of("[8, 64]x[4, 128]x[2, 256]", "f16->f32"), "sm_80", policy="iree-3.6").config
    assert (second.workgroup, second.reduction) == ((1, 16, 1, 128, 0, 0), (0, 0, 0, 0, 1, 4))


def test_spec5_case_8_accumulates_wider() -> None:
    """The first attempt fails on the accumulator of the four f16 entries, two of them virtual, and on other inputs."""
    deduction = deduce_mma(problem_of("4096x4096x4096", "f16->f16"), "gfx942", policy="iree-3.6")
    first = deduction.events[: next(i for i, event in enumerate(deduction.events) if event.kind == "attempt.fail")]
    reasons = [event.fields["reason"] for event in first if event.kind == "intrinsic.skip"]
    assert reasons.count(Reason.ACCUMULATOR_TYPE) == 4
    assert reasons.count(Reason.INPUT_TYPES) == len(reasons) - 4 == 16
    assert deduction.refusals == (("VD-1", Reason.NO_ELIGIBLE_INTRINSIC),)


@pytest.mark.parametrize(
    ("target", "shape", "element_types", "path", "refusal"),
    [
        ("gfx1201", "4x4096x4096", "f16->f32", "WR", ("SIMT", Reason.SKINNY)),
        ("gfx1201", "1x4096x4096", "f16->f32", "WR", ("VD", Reason.MATVEC)),
        ("gfx1201", "128x256x512", "f16,bf16->f32", "SIMT", ("TF", Reason.MIXED_INPUT)),
        ("gfx1201", "512x512x512", "f32", "SIMT", ("TF", Reason.NO_ELIGIBLE_INTRINSIC)),
    ],
)
def test_spec5_no_schedule(target: str, shape: str, element_types: str, path: str, refusal: tuple[str, Reason]) -> None:
    deduction = deduce_mma(problem_of(shape, element_types), target, policy="iree-3.6")
    assert deduction.schedule is None
    assert deduction.path == path
    assert refusal in deduction.refusals


def test_spec5_skinny_is_found_in_the_padded_attempt() -> None:
    deduction = deduce_mma(problem_of("4x4096x4096", "f16->f32"), "gfx1201", policy="iree-3.6")
    attempts = [event.fields["attempt"] for event in deduction.events if event.kind == "attempt.begin"]
    assert attempts == ["VD-1", "VD-2", "TF-1", "TF-2"]
    skips = [event.fields["reason"] for event in deduction.events if event.kind == "intrinsic.skip"]
    assert skips.count(Reason.SKINNY) == 1


def test_spec5_no_intrinsics_with_the_original_table() -> None:
    names = ("NV_WMMA_F32_16x16x16_F16", "NV_WMMA_F16_16x16x16_F16")
    target = replace(mma_target("sm_80"), intrinsics=tuple(mma_target("sm_80").intrinsic(name) for name in names))
    deduction = deduce_mma(problem_of("1024x1024x1024", "f16->f32"), target, policy="iree-3.6")
    assert deduction.refusals == (("VD", Reason.NO_INTRINSICS), ("TF", Reason.NO_INTRINSICS))
    assert deduction.path == "SIMT"


@pytest.mark.parametrize(
    ("limit", "steps", "result", "shared"),
    [
        (65536, "", "2,2;2,2,8", 32768),
        (32768, "", "2,2;2,2,8", 32768),
        (16384, "mn", "2,2;1,1,8", 16384),
        (8192, "mnkkkk", "2,2;1,1,4", 8192),
        (4096, "mnkkkkkk", "2,2;1,1,2", 4096),
        (1024, "mnkkkkkkkMN", "1,1;1,1,1", 1024),
    ],
)
def test_spec5_fitting(limit: int, steps: str, result: str, shared: int) -> None:
    options = Options(shared_limit=limit)
    deduction = deduce_mma(problem_of("128x256x512", "f16->f32"), "gfx1201", policy="iree-3.6", options=options)
    assert (deduction.path, steps_of(deduction), counts_of(deduction)) == ("VD", steps, result)
    assert deduction.shared_bytes == shared


def test_spec5_fitting_fails_after_11_steps() -> None:
    options = Options(shared_limit=1023)
    deduction = deduce_mma(problem_of("128x256x512", "f16->f32"), "gfx1201", policy="iree-3.6", options=options)
    assert next(event.fields["steps"] for event in deduction.events if event.kind == "fit.fail") == 11
    assert deduction.refusals[0] == ("VD-1", Reason.DOES_NOT_FIT)
    assert deduction.path == "SIMT"


# target | M x N x K | types | path | workgroup | tile, or rows and the size of a vector | reduction
FALLBACKS = """
gfx1201 | 128x256x512 | f32 | SIMT | 32,8,1 | 32,128,1 | 32
gfx1201 | 4x6x100 | f32 | SIMT | 4,6,1 | 6,4,1 | 4
gfx1201 | 192x592x1872 | f32 | SIMT | 32,8,1 | 32,128,1 | 16
gfx1201 | 128x64x512 | f32 | SIMT | 16,8,1 | 128,64,1 | 8
gfx1201 | 272x256x384 | f32 | SIMT | 64,2,1 | 16,256,1 | 32
gfx1100 | 704x928x1184 | f32 | SIMT | 8,8,1 | 8,32,1 | 32
gfx1100 | 816x192x1520 | f32 | SIMT | 16,2,1 | 16,64,1 | 4
gfx942 | 76x262x172 | f16->f16 | SIMT | 64,16,1 | 64,128,1 | 4
gfx1201 | 1x544x992 | f16->f32 | WR | 992,1,1 | 1,32 | 992
gfx1201 | 1x912x704 | f32 | WR | 352,1,1 | 1,16 | 704
gfx942 | 1x720x448 | f16->f16 | WR | 448,1,1 | 1,16 | 448
gfx1100 | 4x656x512 | i8->i32 | WR | 32,1,1 | 1,1 | 128
gfx1100 | 2x80x192 | i8->i32 | WR | 96,1,1 | 1,1 | 192
gfx1100 | 4x400x384 | f32 | WR | 96,1,1 | 1,1 | 384
gfx1201 | 4x4096x4096 | f16->f32 | WR | 128,1,1 | 1,1 | 512
gfx1201 | 1x4096x4096 | f16->f32 | WR | 128,1,1 | 1,16 | 512
gfx1201 | 4096x1x4096 | f16->f32 | WR | 128,1,1 | 16,1 | 512
gfx1201 | 1x8192x28672 | f16->f32 | WR | 512,1,1 | 1,64 | 2048
gfx1201 | 1x1x4096 | f16->f32 | WR | 1024,1,1 | 1,1 | 4096
gfx1100 | 2x176x368 | f16->f16 | GTF | 32,1,1 | 2,16,0 | 4
gfx942 | 2x704x880 | bf16->f32 | GTF | 64,1,1 | 1,64,0 | 4
gfx942 | 1x416x880 | f32 | GTF | 64,1,1 | 1,64,0 | 4
"""


@pytest.mark.parametrize("row", FALLBACKS.strip().splitlines())
def test_spec5_fallbacks(row: str) -> None:
    target, shape, element_types, path, workgroup, tile, reduction = (cell.strip() for cell in row.split("|"))
    deduction = deduce_mma(problem_of(shape, element_types), target, policy="iree-3.6")
    config = deduction.config
    assert deduction.path == path
    assert config.workgroup_size == sizes(workgroup)
    assert config.workgroup[: len(sizes(tile))] == sizes(tile)
    assert config.reduction == (0, 0, int(reduction))
    if path == "WR":
        assert config.pipeline == "warp-reduction"
    else:
        assert config.pipeline == "tile-and-fuse"
    if path == "GTF":
        assert config.promote == (() if shape.startswith("1x") else (0, 1))


def test_spec5_attention() -> None:
    deduction = deduce_attention(AttentionProblem((4096,), (128,), (128,), (4096,)), "gfx942", policy="iree-3.6")
    assert deduction.second is not None
    assert deduction.first is not None
    assert str(deduction.second) == "MFMA_F32_16x16x16_F16 4,1;1,4,4"
    assert (deduction.first.bytes_ab, deduction.second.bytes_ab, deduction.shared_bytes) == (32768, 16384, 49152)
    assert [event.fields["steps"] for event in deduction.events if event.kind == "fit.done"] == [0]


# target | M x N x K | intensity | class | result | workgroup tile | compute units, if known
SIZE_CLASSES = """
gfx1201 | 128x256x512 | 146 | medium | 2,2;2,2,4 | 64x64x64 |
gfx1201 | 1024x1024x1024 | 682 | medium | 2,2;2,2,4 | 64x64x64 |
gfx1201 | 4096x4096x4096 | 2730 | large | 4,2;4,4,4 | 256x128x64 |
gfx942 | 1024x1024x1024 | 682 | medium | 2,2;2,4,8 | 64x128x128 |
gfx942 | 1024x1024x1024 | 682 | medium | 2,2;1,2,8 | 32x64x128 | 304
gfx942 | 4096x4096x4096 | 2730 | large | 2,2;4,4,2 | 128x128x32 |
gfx942 | 16384x16384x16384 | 10922 | very-large | 2,2;4,4,4 | 256x256x32 |
"""


@pytest.mark.parametrize("row", SIZE_CLASSES.strip().splitlines())
def test_spec5_size_classes(row: str) -> None:
    target, shape, intensity, size_class, result, tile, units = (cell.strip() for cell in row.split("|"))
    options = Options(compute_units=int(units)) if units else Options()
    deduction = deduce_mma(problem_of(shape, "f16->f32"), target, policy="size-classes", options=options)
    found = next(event.fields for event in deduction.events if event.kind == "size.class")
    assert (found["intensity"], found["size_class"]) == (int(intensity), size_class)
    schedule = deduction.schedule
    assert schedule is not None
    assert counts_of(deduction) == result
    assert f"{schedule.wg_m}x{schedule.wg_n}x{schedule.wg_k}" == tile
    assert (schedule.intrinsic.shape == "32x32x8") == (size_class == "very-large")
    if units:
        assert next(event.fields["mn_tiles"] for event in deduction.events if event.kind == "size.units") == 2


def test_spec5_cutoffs_by_peak_and_bandwidth() -> None:
    assert cutoffs(1000, 5) == pytest.approx((10, 1000, 4400))


def test_spec5_pad_to_seed() -> None:
    """D5: 63, 125 and 63 tiles become 64, 128 and 64."""
    policy = replace(POLICIES["tilewright"], pad_to_seed=True)
    deduction = deduce_mma(problem_of("1000x1000x1000", "f16->f32"), "sm_80", policy=policy)
    schedule = deduction.schedule
    assert schedule is not None
    assert counts_of(deduction) == "2,2;4,4,2"
    assert (schedule.wg_m, schedule.wg_n, schedule.wg_k) == (128, 64, 32)
    assert (schedule.bytes_ab, schedule.bytes_c, workgroups_of(deduction)) == (12288, 32768, 128)
    plain = deduce_mma(problem_of("1000x1000x1000", "f16->f32"), "sm_80")
    assert workgroups_of(plain) == 7875


def test_spec5_warpgroups() -> None:
    options = Options(warpgroup=True)
    deduction = deduce_mma(problem_of("4096x4096x4096", "f16->f32"), "sm_90a", options=options)
    schedule = deduction.schedule
    assert schedule is not None
    assert schedule.intrinsic.shape == "64x256x16"
    assert (schedule.wg_m, schedule.wg_n, schedule.wg_k) == (128, 256, 64)
    assert (schedule.bytes_ab, deduction.shared_bytes) == (49152, 196608)
    assert (schedule.threads, deduction.config.producer_threads, deduction.config.stages) == (256, 128, 4)
    assert workgroups_of(deduction) == 512


def test_spec5_intrinsic_tables() -> None:
    counts = {name: len(mma_target(name).intrinsics) for name in ("gfx1100", "gfx1201", "gfx942")}
    assert counts == {"gfx1100": 5, "gfx1201": 9, "gfx942": 16 + 4}
    virtual = [each for each in mma_target("gfx942").intrinsics if each.virtual]
    assert [(each.name, each.k) for each in virtual] == [
        ("VMFMA_F32_16x16x32_F8E4M3FNUZ", 32), ("VMFMA_F32_32x32x16_F8E4M3FNUZ", 16),
        ("VMFMA_F32_16x16x32_F16", 32), ("VMFMA_F32_32x32x16_F16", 16),
    ]  # fmt: skip
    listed = {name: [each for each in mma_target(name).intrinsics if each.distributable]
              for name in ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")}  # fmt: skip
    usable = {name: [each.name.removeprefix("MMA_SYNC_") for each in found if "u8" not in (each.a, each.b)]
              for name, found in listed.items()}  # fmt: skip
    ampere = ["F32_16x8x16_F16", "F16_16x8x16_F16", "F32_16x8x16_BF16", "F32_16x8x8_TF32", "I32_16x8x32_I8"]
    small_floats = {f"F32_16x8x32_{pair}" for pair in ("F8E4M3FN", "F8E5M2", "F8E4M3FN_F8E5M2", "F8E5M2_F8E4M3FN")}
    assert usable["sm_70"] == []
    assert usable["sm_75"] == ["F32_16x8x8_F16", "F16_16x8x8_F16", "I32_8x8x16_I8"]
    assert usable["sm_80"] == [*ampere, "F64_8x8x4_F64"]
    assert usable["sm_86"] == ampere
    assert usable["sm_89"][:5] == ampere
    assert set(usable["sm_89"][5:]) == small_floats
    # Ours beyond the tables: f64 of 16 rows; bytes without a sign, of one factor or of both.
    sixteen_rows = {f"F64_16x8x{k}_F64" for k in (4, 8, 16)}
    assert set(usable["sm_90"]) == {*ampere, *small_floats, "F64_8x8x4_F64", *sixteen_rows}
    assert usable["sm_90"] == usable["sm_90a"]
    bytes_ = {name: [(each.shape, each.a, each.b) for each in found if "u8" in (each.a, each.b)]
              for name, found in listed.items()}  # fmt: skip
    signs = [("u8", "u8"), ("u8", "i8"), ("i8", "u8")]
    assert bytes_.pop("sm_70") == []
    assert bytes_.pop("sm_75") == [("8x8x16", *each) for each in signs]
    assert all(found == [("16x8x32", *each) for each in signs] for found in bytes_.values())


# target | arch | subgroup choices | shared bytes
LIMITS = """
gfx1100 | rdna3 | 32,64 | 65536
gfx1101 | rdna3 | 32,64 | 65536
gfx1102 | rdna3 | 32,64 | 65536
gfx1103 | rdna3 | 32,64 | 65536
gfx1150 | rdna3 | 32,64 | 65536
gfx1151 | rdna3 | 32,64 | 65536
gfx1200 | rdna4 | 32,64 | 65536
gfx1201 | rdna4 | 32,64 | 65536
gfx942 | cdna3 | 64 | 65536
gfx950 | cdna4 | 64 | 163840
sm_70 | volta | 32 | 98304
sm_75 | turing | 32 | 65536
sm_80 | ampere | 32 | 166912
sm_86 | ampere | 32 | 101376
sm_89 | ada | 32 | 101376
sm_90 | hopper | 32 | 232448
sm_90a | hopper | 32 | 232448
"""


@pytest.mark.parametrize("row", LIMITS.strip().splitlines())
def test_spec5_limits(row: str) -> None:
    name, architecture, choices, shared = (cell.strip() for cell in row.split("|"))
    target = mma_target(name)
    assert (target.architecture, target.subgroup_choices) == (architecture, sizes(choices))
    assert (target.shared_limit, target.max_threads, target.load_bits) == (int(shared), 1024, 128)


def test_products_of_unknown_counts() -> None:
    assert product_of((2, 3)) == prod((2, 3))
    assert product_of((2, None)) is None
