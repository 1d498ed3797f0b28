"""Options, switches, fall-backs, refusals and errors of the deduction."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tilewright.errors import CompileError, InvalidMachine, ScheduleError
from tilewright.expr.text import parse_compute
from tilewright.instruction.mma import (
    POLICIES,
    AttentionProblem,
    MmaIntrinsic,
    MmaProblem,
    MmaSchedule,
    MmaTarget,
    Options,
    Policy,
    Reason,
    ScheduleSeeds,
    check,
    contraction_of,
    deduce_attention,
    deduce_mma,
    eligible,
    fit,
    given_schedule,
    initial_schedule,
    kernel_config,
    mma_target,
)
from tilewright.intrinsics.intrinsic import Cost
from tilewright.intrinsics.registry import standard
from tilewright.intrinsics.shapes import matrix
from tilewright.machine import resolve

PROBLEM = MmaProblem((128,), (256,), (512,))
LARGE = MmaProblem((1024,), (1024,), (1024,))


def matmul(m: int, n: int, k: int, types: str = "f16,f16,f32", **more: bool) -> MmaProblem:
    a, b, c = types.split(",")
    return MmaProblem((m,), (n,), (k,), (), a, b, c, **more)


# -- options --------------------------------------------------------------------------------------------------------


def test_vector_distribution_can_be_off() -> None:
    found = deduce_mma(PROBLEM, "gfx1201", options=Options(vector_distribution=False))
    assert (found.path, found.refusals[0]) == ("TF", ("VD", Reason.STRATEGY_DISABLED))


def test_threshold_chooses_the_seeds() -> None:
    small = deduce_mma(LARGE, "gfx1201", options=Options(c_threshold=1 << 20))
    assert str(small.schedule).endswith("2,2;2,2,8")


def test_subgroup_size_is_one_of_the_choices() -> None:
    wide = deduce_mma(matmul(256, 256, 256, "f32,f32,f32"), "gfx1201", options=Options(subgroup_size=64))
    assert (wide.config.subgroup_size, wide.config.workgroup) == (64, (64, 128, 1))
    assert wide.refusals == (("VD", Reason.NO_INTRINSICS), ("TF", Reason.NO_INTRINSICS))
    with pytest.raises(ScheduleError, match="no subgroups of 16"):
        deduce_mma(PROBLEM, "gfx1201", options=Options(subgroup_size=16))


def test_given_seeds() -> None:
    found = deduce_mma(LARGE, "gfx1201", options=Options(seeds=ScheduleSeeds(8, 4, 2)))
    assert str(found.schedule).endswith("4,2;2,2,2")
    with pytest.raises(ScheduleError, match="more than 1024 threads"):
        deduce_mma(LARGE, "gfx1201", options=Options(seeds=ScheduleSeeds(64, 4, 2)))
    with pytest.raises(ScheduleError, match=r"options\.seeds\.mn_tiles"):
        deduce_mma(LARGE, "gfx1201", options=Options(seeds=ScheduleSeeds(4, 0, 2)))


def test_forced_intrinsic_is_the_only_one_tried() -> None:
    forced = Options(force_intrinsic="VMFMA_F32_32x32x16_F16")
    found = deduce_mma(LARGE, "gfx942", options=forced)
    assert found.schedule is not None
    assert found.schedule.intrinsic.name == "VMFMA_F32_32x32x16_F16"
    other = deduce_mma(matmul(256, 256, 256, "i8,i8,i32"), "gfx942", options=forced)
    assert other.path == "SIMT"
    with pytest.raises(ScheduleError, match="has no intrinsic 'MFMA'"):
        deduce_mma(LARGE, "gfx942", options=Options(force_intrinsic="MFMA"))


def test_forbidden_names_and_paths() -> None:
    without = deduce_mma(PROBLEM, "gfx942", options=Options(forbid=frozenset({"MFMA_F32_16x16x16_F16"})))
    assert without.schedule is not None
    assert without.schedule.intrinsic.name == "VMFMA_F32_16x16x32_F16"
    tiled = deduce_mma(PROBLEM, "gfx942", options=Options(forbid=frozenset({"VD", "VD+upcast"})))
    assert tiled.path == "TF"
    last = Options(forbid=frozenset({"VD", "VD+upcast", "TF", "TF+pad", "SIMT", "WR"}))
    assert deduce_mma(PROBLEM, "gfx942", options=last).path == "GTF"
    with pytest.raises(ScheduleError, match="last resort"):
        deduce_mma(PROBLEM, "gfx942", options=Options(forbid=frozenset({"GTF"})))
    with pytest.raises(ScheduleError, match="did you mean TF"):
        deduce_mma(PROBLEM, "gfx942", options=Options(forbid=frozenset({"TF-pad"})))


def test_stages_share_the_memory() -> None:
    """D6: what holds 32 KiB once holds 2 stages of 32 KiB in 64 KiB, and 4 of 16 KiB."""
    two, four = (deduce_mma(PROBLEM, "gfx1201", options=Options(stages=stages)) for stages in (2, 4))
    assert (str(two.schedule)[-9:], two.shared_bytes) == ("2,2;2,2,8", 65536)
    assert (str(four.schedule)[-9:], four.shared_bytes) == ("2,2;1,1,8", 65536)
    padded = deduce_mma(matmul(100, 256, 512), "gfx1201", options=Options(stages=2))
    assert padded.schedule is not None
    assert padded.shared_bytes == 2 * (padded.schedule.bytes_ab + padded.schedule.bytes_c) <= 65536


def test_prefetch_is_an_option_of_vector_distribution() -> None:
    assert not deduce_mma(PROBLEM, "gfx1201").config.prefetch
    assert deduce_mma(PROBLEM, "gfx1201", options=Options(prefetch=True)).config.prefetch
    assert deduce_mma(PROBLEM, "sm_80").config.prefetch


@pytest.mark.parametrize("name", ["c_threshold", "shared_limit", "stages", "compute_units"])
def test_options_are_positive(name: str) -> None:
    with pytest.raises(ScheduleError, match=f"options.{name}"):
        Options(**{name: 0})
    with pytest.raises(ScheduleError, match="cutoffs"):
        Options(cutoffs=(3.0, 2.0, 1.0))


# -- switches -------------------------------------------------------------------------------------------------------


def test_d1_the_first_attempt_does_not_see_transpositions() -> None:
    """With A stored [k, m] the rows to copy are m; the quirk counts k in the first attempt."""
    problem = matmul(128, 256, 512, lhs_transposed=True)

    def lhs_inner(policy: str) -> int:
        events = deduce_mma(problem, "gfx1201", policy=policy).events
        return next(event.fields["lhs_inner"] for event in events if event.kind == "valid.copy")

    assert (lhs_inner("iree-3.6"), lhs_inner("tilewright")) == (128, 64)


def test_d2_the_next_intrinsic_is_tried() -> None:
    """One tile of f16 needs 1024 bytes: no f16 intrinsic fits into 1000."""
    options = Options(shared_limit=1000)
    strict, patient = (
        deduce_mma(PROBLEM, "gfx942", policy=policy, options=options) for policy in ("iree-3.6", "tilewright")
    )
    tried = [
        [event.fields["intrinsic"] for event in found.events if event.kind == "intrinsic.take"]
        for found in (strict, patient)
    ]
    assert tried[0][:2] == ["MFMA_F32_16x16x16_F16"] * 2
    assert tried[1][:2] == ["MFMA_F32_16x16x16_F16", "VMFMA_F32_16x16x32_F16"]


def test_d3_the_lhs_has_its_own_width() -> None:
    shape = {"shape": (16, 16, 16), "dtypes": ("f16", "i8", "f32"), "group": "warp32"}
    mixed = MmaIntrinsic(matrix("TEST", "test", cost=Cost(1.0), source="test", **shape))
    schedule = MmaSchedule(mixed, (2,), (2,), (2,), (2,), (8,))
    problem, target = matmul(128, 256, 512, "f16,i8,f32"), mma_target("gfx1201")
    for own_width, loads in ((False, 8), (True, 16)):
        numbers = check(problem, schedule, Policy(own_width=own_width), target).numbers
        assert next(event.fields["lhs_loads"] for event in numbers if event.kind == "valid.copy") == loads


def test_d4_tile_and_fuse_accumulates_wider() -> None:
    problem = matmul(76, 262, 172, "f16,f16,f16")
    assert deduce_mma(problem, "gfx942", policy="iree-3.6").path == "SIMT"
    padded = deduce_mma(problem, "gfx942")
    assert (padded.path, padded.config.intrinsic) == ("TF+pad", "MFMA_F32_16x16x16_F16")
    aligned = deduce_mma(matmul(64, 64, 64, "f16,f16,f16"), "gfx942", options=Options(vector_distribution=False))
    assert aligned.path == "TF"
    assert ("TF-1", Reason.NO_ELIGIBLE_INTRINSIC) in aligned.refusals


@dataclass(frozen=True)
class CountsTiles:
    """A cost that likes one list long."""

    liked: str

    def seconds(self, problem: MmaProblem, schedule: MmaSchedule, target: MmaTarget) -> float:
        return 1.0 / getattr(schedule, self.liked)[-1]


class Indifferent:
    """A cost that knows no difference."""

    def seconds(self, problem: MmaProblem, schedule: MmaSchedule, target: MmaTarget) -> float:
        return 1.0


def test_d7_a_cheaper_neighbour_wins_and_a_tie_does_not() -> None:
    heuristic = deduce_mma(PROBLEM, "gfx1201").schedule
    assert heuristic is not None
    found = deduce_mma(PROBLEM, "gfx1201", options=Options(cost=CountsTiles("m_tiles")))
    assert found.schedule == replace(heuristic, m_tiles=(4,))
    assert check(PROBLEM, found.schedule, Policy(), mma_target("gfx1201"))
    assert deduce_mma(PROBLEM, "gfx1201", options=Options(cost=Indifferent())).schedule == heuristic
    compared = [event.fields["candidates"] for event in found.events if event.kind == "cost.compare"]
    assert len(compared) == 1
    assert 0 < compared[0] <= 8


def test_policies_by_name_or_as_switches() -> None:
    own = replace(POLICIES["iree-3.6"], name="mine", tf_upcast=True)
    assert deduce_mma(PROBLEM, "gfx1201", policy=own).events[0].fields["policy"] == "mine"
    with pytest.raises(ScheduleError, match="there is no policy 'fast'"):
        deduce_mma(PROBLEM, "gfx1201", policy="fast")


# -- problems -------------------------------------------------------------------------------------------------------


def test_vector_distribution_looks_through_widening() -> None:
    problem = MmaProblem((128,), (256,), (512,), (), "f16", "f16", "f32", narrow_a="f8E4M3FNUZ", narrow_b="f8E4M3FNUZ")
    found = deduce_mma(problem, "gfx942")
    assert found.config.intrinsic == "MFMA_F32_16x16x32_F8E4M3FNUZ"
    tiled = deduce_mma(problem, "gfx942", options=Options(vector_distribution=False))
    assert tiled.config.intrinsic == "MFMA_F32_16x16x16_F16"


def test_contractions_that_share_the_lhs_share_the_tiles() -> None:
    found = deduce_mma(replace(LARGE, products=3), "gfx942")
    assert next(event.fields["mn_tiles"] for event in found.events if event.kind == "seeds") == 8 // 3
    found = deduce_mma(replace(LARGE, products=100), "gfx942")
    assert next(event.fields["mn_tiles"] for event in found.events if event.kind == "seeds") == 1


def test_convolutions_have_seeds_of_their_own() -> None:
    found = deduce_mma(replace(PROBLEM, operation="convolution"), "gfx942")
    assert str(found.schedule).endswith("2,2;2,4,2")


def test_vector_distribution_tiles_outer_loops_by_one() -> None:
    problem = MmaProblem((3, 128), (5, 256), (7, 512), (2,))
    found = deduce_mma(problem, "gfx1201")
    assert found.path == "VD"
    assert found.config.workgroup == (1, 1, 64, 1, 64, 0, 0)
    assert found.config.reduction == (0, 0, 0, 0, 0, 1, 128)
    grid = next(event for event in found.events if event.kind == "config.grid").fields
    assert (grid["factors"], grid["workgroups"], grid["k_steps"]) == ((2, 3, 2, 5, 4), 2 * 3 * 2 * 5 * 4, 7 * 4)


def test_dynamic_sizes() -> None:
    outer = MmaProblem((None, 64), (64,), (64,))
    found = deduce_mma(outer, "sm_80")
    assert (found.path, found.config.workgroup[0]) == ("TF", 1)
    odd = MmaProblem((None, 65), (64,), (64,))
    assert ("TF-2", Reason.PADDING_NEEDS_STATIC) in deduce_mma(odd, "sm_80").refusals
    inner = deduce_mma(MmaProblem((64,), (64,), (None,)), "gfx1201")
    assert inner.refusals[:2] == (("VD", Reason.DYNAMIC_INNERMOST), ("TF", Reason.DYNAMIC_INNERMOST))
    assert (inner.path, inner.config.reduction) == ("SIMT", (0, 0, 1))
    matvec = deduce_mma(MmaProblem((1,), (64,), (None,)), "gfx1201")
    assert (matvec.path, matvec.config.workgroup_size, matvec.config.reduction) == ("WR", (32, 1, 1), (0, 0, 32))
    skinny = deduce_mma(MmaProblem((4, 2), (None,), (64,)), "gfx1201")
    assert skinny.path == "SIMT"  # two loops of m: not the skinny of one


def test_tf32_needs_permission() -> None:
    allowed = matmul(1024, 1024, 1024, "f32,f32,f32")
    assert deduce_mma(allowed, "sm_80").config.intrinsic == "MMA_SYNC_F32_16x8x8_TF32"
    assert deduce_mma(replace(allowed, tf32_allowed=False), "sm_80").path == "SIMT"


def test_simt_refuses_what_is_no_product() -> None:
    problem = matmul(256, 256, 256, "f32,f32,f32")
    assert ("SIMT", Reason.NOT_A_CONTRACTION) in deduce_mma(replace(problem, broadcasts=False), "gfx1201").refusals
    assert ("SIMT", Reason.FUSED_PRODUCER) in deduce_mma(replace(problem, fused_producer=True), "gfx1201").refusals


def test_reductions_of_64_bits_are_refused() -> None:
    found = deduce_mma(matmul(1, 4096, 4096, "f64,f64,f64"), "gfx942")
    assert ("WR", Reason.ACCUMULATOR_TYPE) in found.refusals
    assert found.path == "GTF"


def test_a_dot_product_is_reduced() -> None:
    assert deduce_mma(matmul(1, 1, 4096), "gfx1201").path == "WR"
    assert deduce_mma(matmul(1, 6, 551, "bf16,bf16,f32"), "gfx1100", policy="iree-3.6").path == "TF+pad"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"m": ()}, "m"),
        ({"n": (0,)}, "n"),
        ({"k": (-4,)}, "k"),
        ({"k": (True,)}, "k"),
        ({"m": 128}, "m"),
        ({"batch": (0,)}, "batch"),
        ({"a": "f12"}, "a"),
        ({"c": "float32"}, "c"),
        ({"narrow_a": "f32"}, "narrow_a"),
        ({"operation": "sort"}, "operation"),
        ({"products": 0}, "products"),
    ],
)
def test_malformed_problems_name_the_field(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        MmaProblem(**{"m": (64,), "n": (64,), "k": (64,), **arguments})
    assert caught.value.where == field
    assert isinstance(caught.value, CompileError)


def test_problems_and_schedules_are_values_with_a_text() -> None:
    assert str(PROBLEM) == "m=[128] n=[256] k=[512] batch=[] f16,f16->f32"
    assert MmaProblem((128,), (256,), (512,), a="F16") == PROBLEM
    assert hash(PROBLEM) == hash(replace(PROBLEM))
    assert deduce_mma(PROBLEM, "gfx1201") == deduce_mma(PROBLEM, "gfx1201")


def test_machines_that_are_no_gpu() -> None:
    with pytest.raises(ScheduleError, match="matrix schedules are for GPUs"):
        deduce_mma(PROBLEM, "znver5")
    with pytest.raises(InvalidMachine):
        deduce_mma(PROBLEM, "gfx9999")


def test_without_a_record_the_next_best_is_taken() -> None:
    records = standard().without("MFMA_F32_16x16x16_F16")
    found = deduce_mma(PROBLEM, mma_target(resolve("gfx942"), records))
    assert found.config.intrinsic == "MFMA_F32_32x32x8_F16"


# -- the parts ------------------------------------------------------------------------------------------------------


def test_the_parts_make_the_whole() -> None:
    target = mma_target("gfx1201")
    x = target.intrinsic("WMMAR4_F32_16x16x16_F16")
    assert eligible(PROBLEM, x, Policy()) is None
    wish = initial_schedule(PROBLEM, x, ScheduleSeeds(4, 4, 8))
    assert check(PROBLEM, wish, Policy(), target)
    fitted = fit(PROBLEM, wish, Policy(), target)
    assert fitted == wish
    found = deduce_mma(PROBLEM, target)
    assert found.schedule == fitted
    assert kernel_config(PROBLEM, wish, "VD") == found.config


def test_eligibility_gives_the_first_reason() -> None:
    x = mma_target("gfx1201").intrinsic("WMMAR4_F32_16x16x16_F16")
    assert eligible(matmul(128, 256, 512, "bf16,bf16,f16"), x, Policy()) is Reason.INPUT_TYPES
    assert eligible(matmul(100, 256, 512, "f16,f16,f16"), x, Policy()) is Reason.ACCUMULATOR_TYPE
    assert eligible(matmul(100, 256, 512, "f16,f16,f16"), x, Policy(upcast_acc=True)) is Reason.UNALIGNED
    assert eligible(matmul(4, 256, 512), x, Policy(aligned_only=False)) is Reason.SKINNY
    assert eligible(matmul(4, 32, 512), x, Policy(aligned_only=False)) is None
    assert eligible(replace(matmul(4, 256, 512), batch=(2,)), x, Policy(aligned_only=False)) is None


def test_a_tile_narrower_than_one_load_passes() -> None:
    record = mma_target("gfx942").intrinsic("MFMA_F32_16x16x4_F32").record
    narrow = MmaIntrinsic(replace(record, extents={**record.extents, "r1": 2}))
    schedule = MmaSchedule(narrow, (1,), (1,), (1,), (1,), (1,))
    assert check(matmul(64, 64, 64, "f32,f32,f32"), schedule, Policy(), mma_target("gfx942")).distributable


def test_a_given_schedule_is_checked_and_not_repaired() -> None:
    x = mma_target("gfx1201").intrinsic("WMMAR4_F32_16x16x16_F16")
    good = MmaSchedule(x, (2,), (2,), (1,), (1,), (4,))
    found = given_schedule(PROBLEM, good, "gfx1201", path="VD")
    assert (found.schedule, found.config.workgroup) == (good, (32, 32, 0))
    with pytest.raises(ScheduleError, match=r"m 128%\(16\*3\*2=96\)=32") as caught:
        given_schedule(PROBLEM, replace(good, m_tiles=(3,)), "gfx1201", path="VD")
    assert caught.value.where == "schedule"
    with pytest.raises(ScheduleError, match="total 81920 of 65536"):
        given_schedule(LARGE, MmaSchedule(x, (2,), (2,), (8,), (2,), (8,)), "gfx1201")
    with pytest.raises(ScheduleError, match="k_tiles has 2 counts and the problem 1 loops of k"):
        given_schedule(PROBLEM, replace(good, k_tiles=(1, 4)), "gfx1201")
    with pytest.raises(ScheduleError, match="m_subgroups is"):
        given_schedule(PROBLEM, replace(good, m_subgroups=(0,)), "gfx1201")
    with pytest.raises(ScheduleError, match="refused by input-types"):
        given_schedule(matmul(128, 256, 512, "i8,i8,i32"), good, "gfx1201")
    with pytest.raises(ScheduleError, match="2048 threads"):
        given_schedule(LARGE, MmaSchedule(x, (8,), (8,), (1,), (1,), (2,)), "gfx1201")
    with pytest.raises(ScheduleError, match="has no matrix schedule"):
        given_schedule(PROBLEM, good, "gfx1201", path="WR")


# -- warpgroups, attention, contractions ------------------------------------------------------------------------------


def test_warpgroups_give_up_stages_then_columns() -> None:
    def steps(limit: int) -> tuple[list[tuple[str, int]], str]:
        found = deduce_mma(matmul(4096, 4096, 4096), "sm_90a", options=Options(warpgroup=True, shared_limit=limit))
        taken = [event.fields for event in found.events if event.kind == "fit.step"]
        return [(step["list"], step["new"]) for step in taken], str(found.config.intrinsic)

    assert steps(4 * 49152) == ([], "WGMMA_64x256x16_F16")
    assert steps(3 * 49152) == ([("stages", 3)], "WGMMA_64x256x16_F16")
    assert steps(2 * 32768) == ([("stages", 3), ("stages", 2), ("n", 128)], "WGMMA_64x128x16_F16")
    narrow, name = steps(40000)
    assert narrow[:4] == [("stages", 3), ("stages", 2), ("n", 128), ("n", 64)]
    assert name == "WGMMA_64x64x16_F16"
    assert {step for step, _ in narrow[4:]} == {"k_tiles"}


def test_warpgroups_where_there_are_none() -> None:
    found = deduce_mma(PROBLEM, "sm_80", options=Options(warpgroup=True))
    assert found.refusals[0] == ("WG", Reason.NO_INTRINSICS)
    assert found.path == "TF"
    odd = deduce_mma(matmul(100, 100, 100), "sm_90a", options=Options(warpgroup=True))
    assert odd.refusals[0] == ("WG", Reason.NO_ELIGIBLE_INTRINSIC)
    assert odd.path == "TF+pad"


@pytest.mark.parametrize(("element", "k"), [("f32", 8), ("i8", 32), ("f8E5M2", 32), ("bf16", 16)])
def test_warpgroup_slices_are_one_swizzle_row(element: str, k: int) -> None:
    problem = matmul(4096, 4096, 4096, f"{element},{element},{'i32' if element == 'i8' else 'f32'}")
    schedule = deduce_mma(problem, "sm_90a", options=Options(warpgroup=True)).schedule
    assert schedule is not None
    assert (schedule.intrinsic.k, schedule.k_tiles) == (k, (4,))


def test_attention_with_a_narrow_result_runs_again() -> None:
    problem = AttentionProblem((4096,), (128,), (128,), (4096,), c="f16")
    found = deduce_attention(problem, "gfx942")
    assert found.upcast
    assert str(found.second) == "MFMA_F32_16x16x16_F16 4,1;1,4,4"


def test_attention_shrinks_until_both_products_fit() -> None:
    problem = AttentionProblem((4096,), (128,), (128,), (4096,))
    found = deduce_attention(problem, "gfx942", options=Options(shared_limit=32768))
    assert found.first is not None
    assert found.second is not None
    assert found.first.bytes_ab + found.second.bytes_ab == found.shared_bytes <= 32768
    assert found.second.n_subgroups == (1,)


def test_attention_that_has_no_schedule_says_why() -> None:
    mixed = AttentionProblem((4096,), (128,), (128,), (4096,), v="bf16")
    assert deduce_attention(mixed, "gfx942").reason is Reason.NO_ELIGIBLE_INTRINSIC
    tiny = deduce_attention(AttentionProblem((64,), (64,), (64,), (64,)), "gfx942", options=Options(shared_limit=512))
    assert tiny.reason is Reason.DOES_NOT_FIT
    unknown = deduce_attention(AttentionProblem((None,), (64,), (64,), (64,)), "gfx942")
    assert unknown.reason is Reason.DYNAMIC_INNERMOST
    with pytest.raises(ScheduleError):
        AttentionProblem((64,), (64,), (), (64,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y[i, j] += f32(a[i, r]) * f32(b[r, j])", MmaProblem((64,), (32,), (16,))),
        ("y[i, j] += f32(a[i, r]) * f32(b[j, r])", MmaProblem((64,), (32,), (16,), rhs_transposed=True)),
        ("y[i, j] += f32(a[i, r] * b[r, j])", MmaProblem((64,), (32,), (16,))),
        ("y[c, i, j] += f32(a[c, i, r]) * f32(b[c, r, j])", MmaProblem((64,), (32,), (16,), (3,))),
        (
            "y[c, i, j] += f32(a[c, r, i]) * f32(b[c, j, r])",
            MmaProblem((64,), (32,), (16,), (3,), lhs_transposed=True, rhs_transposed=True),
        ),
        ("y[i, c, j] += f32(a[i, c, q, r]) * f32(b[q, r, j])", MmaProblem((64, 3), (32,), (5, 16))),
        ("y[i] += f32(a[i]) * f32(b[i, r])", Reason.NOT_A_CONTRACTION),
        ("y[i] += f32(a[i, r]) * f32(b[r])", Reason.NOT_A_CONTRACTION),
        ("y[i, j] += f32(a[i, i, r]) * f32(b[r, j])", Reason.NOT_A_CONTRACTION),
        ("y[i, j] += f32(a[i, r]) + f32(b[r, j])", Reason.NOT_A_CONTRACTION),
        ("y[i, j] max= f32(a[i, r]) * f32(b[r, j])", Reason.NOT_A_CONTRACTION),
        ("y[i, j] += f32(a[i + r, r]) * f32(b[r, j])", Reason.NOT_A_CONTRACTION),
        ("y[i, j] += f32(a[i, r]) * f32(b[r, j]) * 2.0", Reason.NOT_A_CONTRACTION),
    ],
)
def test_contractions_are_recognised_in_expressions(text: str, expected: MmaProblem | Reason) -> None:
    sizes = {"c": 3, "i": 64, "j": 32, "q": 5, "r": 16}
    node = parse_compute(text, sizes, {"a": "f16", "b": "f16", "y": "f32"})
    assert contraction_of(node) == expected
