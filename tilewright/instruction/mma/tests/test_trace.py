"""The trace: its exact text, and its events as data."""

from __future__ import annotations

import pytest

from tilewright.instruction.mma import MmaProblem, Options, deduce_mma
from tilewright.instruction.mma.trace import FIELDS, Event

WORKED = """\
schedule.begin   op=matmul target=gfx1201 arch=rdna4 policy=iree-3.6
schedule.dims    m=[128] n=[256] k=[512] batch=[] loops=[m, n, k] static=yes
strategy.try     VD
attempt.begin    VD-1 types f16,f16->f32 intrinsics=9 shared-limit=65536 subgroup=32 upcast=no aligned-only=yes stage-c=no transposed=no,no
seeds            subgroups=4 mn-tiles=4 k-tiles=8 k-elements=0   (m*n = 32768 <= 262144)
intrinsic.try    1/9 WMMAR4_F32_16x16x16_F16  16x16x16  f16,f16->f32
intrinsic.check  input-types  f16,f16 = f16,f16  ok
intrinsic.check  accumulator-type  f32 = f32  ok
intrinsic.check  aligned  128%16=0  256%16=0  512%16=0  ok
intrinsic.take   WMMAR4_F32_16x16x16_F16
initial.tiles    m: 128/16 = 8   n: 256/16 = 16   k: 512/16 = 32
initial.split    dim 0: sqrt-subgroups=2 sqrt-tiles=2; 8 > 4 and 8%4=0 -> even
initial.m        subgroups=2 tiles=2   left: subgroups=2 tiles=2
initial.n        subgroups=gcd(16,2)=2 tiles=gcd(8,2)=2   left: subgroups=1 tiles=1
initial.k        wanted=8 gcd(32,8)=8
initial.done     16x16x16  sg 2,2  tiles 2,2,8
valid.align      m 128%(16*2*2=64)=0  n 256%64=0  k 512%(16*8=128)=0  pass
valid.copy       threads=128 elements-per-load=8 wg=64x64x128 lhs-inner=128 (16 loads) rhs-inner=64 (8 loads)  pass
valid.shared     lhs 64*128*16/8=16384  rhs 64*128*16/8=16384  total 32768 of 65536 (50.0%)  pass
valid.result     valid
fit.done         steps=0
config           pipeline=vector-distribute workgroup=[64, 64, 0] reduction=[0, 0, 128] subgroups=2,2 subgroup-size=32 workgroup-size=[128, 1, 1] promote=[0, 1]
config.grid      2 x 4 = 8 workgroups   k-steps=4   intrinsics-per-subgroup-and-k-step=32
schedule.end     path=VD intrinsic=WMMAR4_F32_16x16x16_F16"""  # noqa: E501

PROBLEM = MmaProblem((128,), (256,), (512,))


def test_spec5_trace_of_the_worked_case() -> None:
    assert deduce_mma(PROBLEM, "gfx1201", policy="iree-3.6").explain() == WORKED


def test_spec5_trace_on_the_older_architecture() -> None:
    expected = WORKED.replace("gfx1201", "gfx1100").replace("rdna4", "rdna3").replace("WMMAR4", "WMMAR3")
    expected = expected.replace("intrinsics=9", "intrinsics=5").replace("1/9", "1/5")
    assert deduce_mma(PROBLEM, "gfx1100", policy="iree-3.6").explain() == expected


def test_spec5_trace_as_data() -> None:
    events = deduce_mma(PROBLEM, "gfx1201", policy="iree-3.6").events
    split = next(event for event in events if event.kind == "initial.split")
    assert split.fields == {"m_dim": 0, "n_dim": 0, "sqrt_subgroups": 2, "sqrt_tiles": 2, "count": 8, "branch": "even"}
    assert Event("fit.done", (0,)) in events


@pytest.mark.parametrize(
    ("problem", "target", "policy", "options"),
    [
        (MmaProblem((100,), (256,), (512,)), "gfx1201", "tilewright", Options()),
        (MmaProblem((4, None), (4096,), (64,)), "gfx942", "tilewright", Options()),
        (MmaProblem((None, 64), (4096,), (64,), (None,)), "gfx942", "tilewright", Options()),
        (MmaProblem((4, 16), (2, 2, 32), (3, 128), (5,)), "sm_80", "size-classes", Options(compute_units=100)),
        (MmaProblem((4096,), (4096,), (4096,)), "sm_90a", "tilewright", Options(warpgroup=True, stages=7)),
        (MmaProblem((288,), (288,), (288,), a="i8", b="i8", c="i32"), "gfx942", "iree-3.6", Options(shared_limit=700)),
        (MmaProblem((2,), (176,), (368,), c="f16"), "gfx1100", "iree-3.6", Options(forbid=frozenset({"WR"}))),
    ],
)
def test_every_event_has_its_fields_and_a_text(problem: MmaProblem, target: str, policy: str, options: Options) -> None:
    deduction = deduce_mma(problem, target, policy=policy, options=options)
    for event in deduction.events:
        assert len(event.fields) == len(FIELDS[event.kind])
        assert str(event).startswith(event.kind)
    assert deduction.explain().count("\n") == len(deduction.events) - 1
    assert hash(deduction.events) == hash(tuple(deduction.events))


def test_a_split_by_gcd_says_why() -> None:
    text = deduce_mma(MmaProblem((288,), (288,), (288,)), "gfx942").explain()
    assert "initial.split    dim 0: sqrt-subgroups=2 sqrt-tiles=2; 18 > 4 and 18%4=2 -> gcd" in text
    assert "initial.n        subgroups=gcd(18,4)=2 tiles=gcd(9,4)=1   left: subgroups=2 tiles=4" in text
    short = deduce_mma(MmaProblem((64,), (256,), (512,)), "gfx1201").explain()
    assert "4 <= 4 -> gcd" in short


def test_a_refused_fit_shows_its_quotients() -> None:
    """Case 27: three tiles of n give 24 loads to 128 threads."""
    text = deduce_mma(MmaProblem((16,), (1024,), (4096,)), "gfx1201").explain()
    assert "rhs-inner=192 (24 loads)  fail" in text
    assert "fit.step         2: n_tiles[0] 3 -> 2" in text
