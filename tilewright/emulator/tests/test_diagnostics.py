"""Diagnostics, each in a kernel of a few lines, beside the kernel that does it right.

Those of threads that wait for each other are in `test_waiting.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emulator import Uninitialised, parse, run
from tilewright.emulator.isa.control import _registers_at_first
from tilewright.emulator.link import link
from tilewright.emulator.tests.harness import MINE, NEXT, SHARED, buffers, execute, kernel, kinds, run64

pytestmark = pytest.mark.emulator_only


def test_reading_past_a_buffer_names_it() -> None:
    result = execute("ld.global.u32 %r1, [%rd2+4]; st.global.u32 [%rd3], %r1;", *buffers(32))
    (diagnostic,) = result.diagnostics
    assert diagnostic.kind == "out-of-bounds"
    assert "byte 128 of p0, which has 128" in diagnostic.message
    assert diagnostic.thread == (31, 0, 0)
    assert diagnostic.block == (0, 0, 0)


def test_null_and_misaligned_addresses() -> None:
    assert kinds(execute("mov.u64 %rd5, 0; st.global.u32 [%rd5], %r0;", *buffers(32))) == ["out-of-bounds"]
    assert kinds(execute("ld.global.v2.u32 {%r1, %r2}, [%rd0+4];", *buffers(32))) == ["misaligned"]


def test_a_masked_access_outside_is_none() -> None:
    body = "setp.lt.u32 %p1, %r0, 31; mov.u32 %r1, 0; @%p1 ld.global.u32 %r1, [%rd2+4]; st.global.u32 [%rd3], %r1;"
    arrays = buffers(32)
    assert not execute(body, *arrays).diagnostics
    assert arrays[1].tolist() == [*range(1, 32), 0]


@pytest.mark.parametrize(
    ("between", "found"),
    [("", ["race"]), ("bar.sync 0;", []), ("bar.warp.sync -1;", ["race"]), ("barrier.sync 1, 64;", []),
     ("bar.sync 2, 64;", [])],
)  # fmt: skip
def test_neighbours_need_a_barrier(between: str, found: list[str]) -> None:
    body = f"{MINE} {NEXT} st.shared.u32 [%r3], %r0; {between} ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd3], %r5;"
    got, arrays = run64(body)
    assert got == found
    if not found:
        assert arrays[1].tolist() == [*range(1, 64), 0]


def test_within_a_warp_syncwarp_is_enough_and_a_shuffle_is_not() -> None:
    body = """add.u32 %r4, %r0, 1; and.b32 %r4, %r4, 31; shl.b32 %r4, %r4, 2;
    shl.b32 %r1, %r0, 2; st.shared.u32 [%r1], %r0; {} ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd3], %r5;"""
    assert not execute(body.format("bar.warp.sync -1;"), *buffers(32), shared=128).diagnostics
    shuffle = "shfl.sync.idx.b32 %r6, %r0, 0, 31, -1;"
    assert kinds(execute(body.format(shuffle), *buffers(32), shared=128)) == ["race"]


@pytest.mark.parametrize(("between", "found"), [("bar.warp.sync %r4;", []), ("", ["race"])])
def test_half_a_warp_orders_its_own_reads(between: str, found: list[str]) -> None:
    """Lanes 0 to 15 read what lane 0 wrote, meet, and lane 1 writes there; the others do so elsewhere."""
    body = f"""shr.u32 %r1, %r0, 4; shl.b32 %r2, %r1, 2; and.b32 %r3, %r0, 15; setp.eq.u32 %p1, %r3, 0;
    setp.eq.u32 %p2, %r3, 1; setp.eq.u32 %p3, %r1, 0; selp.b32 %r4, 65535, 0xffff0000, %p3;
    @%p1 st.shared.u32 [%r2], %r0; bar.warp.sync %r4; ld.shared.u32 %r5, [%r2]; {between}
    @%p2 st.shared.u32 [%r2], %r0; bar.warp.sync %r4; ld.shared.u32 %r6, [%r2]; add.u32 %r5, %r5, %r6;
    st.global.u32 [%rd3], %r5;"""
    arrays = buffers(32)
    assert kinds(execute(body, *arrays, shared=8)) == found
    assert arrays[1].tolist() == [1] * 16 + [33] * 16


def test_overwriting_what_another_thread_still_reads() -> None:
    body = f"""{MINE} {NEXT} st.shared.u32 [%r3], %r0; bar.sync 0; ld.shared.u32 %r5, [%r4]; {{}}
    add.u32 %r6, %r0, 7; st.shared.u32 [%r3], %r6; st.global.u32 [%rd3], %r5;"""
    assert run64(body.format(""))[0] == ["race"]
    assert run64(body.format("bar.sync 0;"))[0] == []


def test_equal_values_in_one_place_are_no_race_and_different_ones_are() -> None:
    assert run64("mov.u32 %r2, s; mov.u32 %r5, 3; st.shared.u32 [%r2], %r5;")[0] == []
    assert run64("mov.u32 %r2, s; st.shared.u32 [%r2], %r0;")[0] == ["race"]


@pytest.mark.parametrize(
    ("kind", "scale", "found"),
    [("f32", 2e-7, []), ("f32", 1e-2, ["race"]), ("f64", 1e-15, []), ("f64", 1e-3, ["race"])],
)  # fmt: skip
def test_lanes_that_add_in_another_order_do_not_race(kind: str, scale: float, found: list[str]) -> None:
    """Reductions over butterflies leave sums in all lanes that differ in their last bits; any of them may stay."""
    value = {"f32": "%f1", "f64": "%fd1"}[kind]
    body = f"""mov.u32 %r2, s; and.b32 %r5, %r0, 7; cvt.rn.{kind}.u32 {value}, %r5;
    mul.{kind} {value}, {value}, {_constant(scale, kind)}; add.{kind} {value}, {value}, {_constant(1.0, kind)};
    st.shared.{kind} [%r2], {value};"""
    assert run64(body)[0] == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("add.u32 %r6, %r5, 1065353216;", ["race"]),  # integers that would be floats close to 1
        ("cvt.rn.f32.u32 %f1, %r5; ex2.approx.f32 %f1, %f1; mul.f32 %f1, %f1, 0f3f800001; mov.b32 %r6, %f1;", ["race"]),
        ("add.u32 %r6, %r5, 1006648320;", ["race"]),  # two halves close to 1
        ("mov.b32 %r7, 1006648320; add.u32 %r6, %r5, 3; fma.rn.f16x2 %r6, %r7, %r7, %r6;", []),
        ("mov.b32 %r7, 1006648320; mul.lo.u32 %r6, %r5, 4096; fma.rn.f16x2 %r6, %r7, %r7, %r6;", ["race"]),
        ("cvt.rn.f32.u32 %f1, %r5; fma.rn.f32 %f1, %f1, 0f36000000, 0f3f800000; cvt.rn.bf16x2.f32 %r6, %f1, %f1;", []),
        ("cvt.rn.f32.u32 %f1, %r5; fma.rn.f32 %f1, %f1, 0f36000000, 0f3f800000; mov.b32 %r6, %f1;", []),
        ("cvt.rn.f32.u32 %f1, %r5; fma.rn.f32 %f1, %f1, 0f36000000, 0f3f800000; mov.b32 %r7, %f1; or.b32 %r6, %r7, 0;",
         ["race"]),
        # Sums whose terms cancel, beside one that is as large as those were.
        ("cvt.rn.f32.u32 %f1, %r5; mul.f32 %f1, %f1, 0f33000000; sub.f32 %f1, 0f34000000, %f1; shr.u32 %r8, %r0, 5; "
         "setp.eq.u32 %p1, %r8, 0; selp.f32 %f1, 0f3f800000, %f1, %p1; mad.lo.u32 %r2, %r8, 4, %r2; mov.b32 %r6, %f1;",
         []),
    ],
)  # fmt: skip
def test_only_what_is_a_sum_may_differ_in_its_last_bits(value: str, found: list[str]) -> None:
    assert run64(f"mov.u32 %r2, s; and.b32 %r5, %r0, 3; {value} st.shared.b32 [%r2], %r6;", target="sm_90")[0] == found


def _constant(value: float, kind: str) -> str:
    if kind == "f32":
        return f"0f{int(np.float32(value).view(np.uint32)):08x}"
    return f"0d{int(np.float64(value).view(np.uint64)):016x}"


OTHER = "xor.b32 %r4, %r0, 33; mul.wide.u32 %rd5, %r4, 4; add.s64 %rd5, %rd1, %rd5;"  # the word of another thread


@pytest.mark.parametrize(
    ("load", "write", "found"),
    [("ld.global.nc.u32 %r5, [%rd5];", "st.global.u32 [%rd3], %r0;", ["not-constant"]),
     ("ld.global.nc.L1::no_allocate.b32 %r5, [%rd3];", "st.global.u32 [%rd3], %r0;", ["not-constant"]),
     ("ld.global.nc.u32 %r5, [%rd5];", "red.global.add.u32 [%rd3], 1;", ["not-constant"]),
     ("ld.global.u32 %r5, [%rd5];", "st.global.u32 [%rd3], %r0;", []),
     ("ld.global.nc.u32 %r5, [%rd2];", "st.global.u32 [%rd3], %r0;", []),
     ("ld.global.nc.u32 %r5, [%rd5+256];", "st.global.u32 [%rd3], %r0;", []),
     ("ld.global.nc.u8 %r5, [%rd3+1];", "st.global.u8 [%rd3], %r0;", []),
     ("ld.global.nc.u8 %r5, [%rd3+1];", "st.global.u8 [%rd3+1], %r0;", ["not-constant"])],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_what_is_loaded_as_constant_is_not_written(load: str, write: str, found: list[str], first: bool) -> None:
    """Whichever is first, and by whichever threads."""
    arrays = np.arange(64, dtype=np.uint32), np.zeros(128, np.uint32)
    body = f"{OTHER} {load} bar.sync 0; {write}" if first else f"{OTHER} {write} bar.sync 0; {load}"
    result = execute(body, *arrays, threads=64)
    assert kinds(result) == found
    assert all(diagnostic.space == "global" and diagnostic.times == 64 for diagnostic in result.diagnostics)


def test_blocks_write_what_others_load_as_constant() -> None:
    body = """mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 5; @%p1 st.global.u32 [%rd3], %r0; setp.eq.u32 %p1, %r1, 9;
    @%p1 ld.global.nc.u32 %r5, [%rd3];"""
    assert kinds(execute(body, *buffers(), threads=64, blocks=10)) == ["not-constant"]


WAIT = "griddepcontrol.wait;"


@pytest.mark.parametrize(
    ("access", "verb"),
    [("ld.global.u32 %r5, [%rd2];", "reads"), ("ld.u32 %r5, [%rd2];", "reads"),
     ("st.global.u32 [%rd3], %r0;", "writes"), ("red.global.add.u32 [%rd3], 1;", "changes"),
     ("cp.async.ca.shared.global [%r3], [%rd2], 4;", "reads")],
)  # fmt: skip
def test_global_memory_is_touched_behind_the_wait_for_other_kernels(access: str, verb: str) -> None:
    behind = "griddepcontrol.launch_dependents; cp.async.wait_all;"
    for early in (True, False):
        body = f"{access} {WAIT} {behind}" if early else f"{WAIT} {access} {behind}"
        result = execute(f"{MINE} {body}", *buffers(), threads=64, before=SHARED, target="sm_90")
        assert kinds(result) == (["too-early"] if early else [])
        for each in result.diagnostics:
            assert each.message.startswith(f"{verb} byte 0 of p{0 if verb == 'reads' else 1}, which has 256, before")
            assert (each.space, each.times) == ("global", 64)


@pytest.mark.parametrize("early", [True, False])
def test_a_bulk_store_is_started_behind_the_wait_for_other_kernels(early: bool) -> None:
    """It writes when its group is waited for, here behind the wait for kernels either way."""
    start = "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 256;"
    end = "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;"
    body = f"""{MINE} st.shared.u32 [%r3], %r0; fence.proxy.async; bar.sync 0; setp.eq.u32 %p1, %r0, 0;
    {f"{start} {WAIT}" if early else f"{WAIT} {start}"} {end}"""
    got, arrays = run64(body, target="sm_90")
    assert got == (["too-early"] if early else [])
    assert arrays[1].tolist() == list(range(64))


@pytest.mark.parametrize("early", [True, False])
def test_a_bulk_load_is_started_behind_the_wait_for_other_kernels(early: bool) -> None:
    """One that is too early brings its bytes all the same: nobody waits for ever for them."""
    start = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 256, [%r10];"
    body = f"""{MINE} mov.u32 %r10, bar; setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r10], 1; bar.sync 0;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r10], 256;
    {f"{start} {WAIT}" if early else f"{WAIT} {start}"}
    WAITING: mbarrier.try_wait.parity.shared.b64 %p2, [%r10], 0; @!%p2 bra WAITING;
    ld.shared.u32 %r5, [%r3]; st.global.u32 [%rd3], %r5;"""
    arrays = buffers()
    before = f"{SHARED} .shared .align 8 .b64 bar;"
    result = execute(body, *arrays, threads=64, before=before, target="sm_90")
    assert kinds(result) == (["too-early"] if early else [])
    assert arrays[1].tolist() == list(range(64))


def test_half_of_the_threads_wait_too_late() -> None:
    body = f"""setp.lt.u32 %p1, %r0, 32; @%p1 bra LATE; {WAIT} LATE: st.global.u32 [%rd3], %r0; {WAIT}
    st.global.u32 [%rd3], %r0;"""
    (diagnostic,) = execute(body, *buffers(), threads=64, target="sm_90").diagnostics
    assert (diagnostic.kind, diagnostic.thread, diagnostic.times) == ("too-early", (0, 0, 0), 32)


def test_what_other_kernels_do_not_write_may_be_read_before_the_wait() -> None:
    """Parameters, constants and memory of the block; and whatever it is in kernels that do not wait."""
    before = f"{SHARED} .const .align 4 .b32 c = 7;"
    body = f"""{MINE} st.shared.u32 [%r3], %r0; ld.const.u32 %r5, [c]; ld.param.u64 %rd5, [p0]; {WAIT}
    st.global.u32 [%rd3], %r5;"""
    assert not execute(body, *buffers(), threads=64, before=before, target="sm_90").diagnostics
    body = "st.global.u32 [%rd3], %r0; griddepcontrol.launch_dependents;"
    assert not execute(body, *buffers(), threads=64, target="sm_90").diagnostics


def test_atomics_do_not_race_with_each_other() -> None:
    body = """mov.u32 %r2, s; setp.eq.u32 %p1, %r0, 0; mov.u32 %r5, 0; @%p1 st.shared.u32 [%r2], %r5; bar.sync 0;
    atom.shared.add.u32 %r6, [%r2], 1; bar.sync 0; ld.shared.u32 %r7, [%r2]; st.global.u32 [%rd3], %r7;"""
    got, arrays = run64(body)
    assert got == []
    assert (arrays[1] == 64).all()


@pytest.mark.parametrize(
    ("compared", "found"), [("%r5", []), ("%r6", ["race"])]
)  # %r6: what the thread wants to see, not what it read
def test_a_guess_that_is_compared_needs_no_order(compared: str, found: list[str]) -> None:
    body = f"""setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0; mov.u32 %r6, 0; ld.shared.u32 %r7, [s];
    AGAIN: mov.b32 %r5, %r7; add.u32 %r8, %r5, %r0; atom.shared.cas.b32 %r7, [s], {compared}, %r8;
    setp.ne.u32 %p2, %r7, {compared}; @%p2 bra AGAIN; bar.sync 0; ld.shared.u32 %r9, [s]; st.global.u32 [%rd3], %r9;"""
    if found:
        body = body.replace("@%p2 bra AGAIN;", "")
    got, arrays = run64(body)
    assert got == found
    assert found or arrays[1].tolist() == [2016] * 64


WORDS = "setp.eq.u32 %p9, %r0, 0; @%p9 st.shared.u32 [s], 0; @%p9 st.shared.u32 [s+4], 0; mov.u32 %r3, s; bar.sync 0;"


@pytest.mark.parametrize(
    ("loop", "total"),
    [  # the greatest float, the sum of floats, the greatest integer by generic addresses
        ("""cvt.rn.f32.u32 %f3, %r0; ld.shared.u32 %r7, [%r3]; L: mov.b32 %f1, %r7; max.f32 %f2, %f1, %f3;
         mov.b32 %r5, %f2; atom.shared.cas.b32 %r6, [%r3], %r7, %r5; setp.ne.s32 %p1, %r7, %r6; mov.u32 %r7, %r6;
         @%p1 bra L;""", float(63)),
        ("""cvt.rn.f32.u32 %f3, %r0; ld.shared.f32 %f5, [%r3]; L: add.f32 %f2, %f5, %f3; mov.b32 %r5, %f2;
         mov.b32 %r4, %f5; atom.shared.cas.b32 %r6, [%r3], %r4, %r5; setp.eq.s32 %p1, %r6, %r4; mov.b32 %f5, %r6;
         @%p1 bra D; bra.uni L; D: st.global.u32 [%rd2], %r6;""", float(2016)),
        ("""cvt.u64.u32 %rd6, %r3; cvta.shared.u64 %rd7, %rd6; L: ld.u32 %r5, [%rd7]; setp.gt.u32 %p1, %r0, %r5;
         selp.b32 %r8, %r0, %r5, %p1; atom.cas.b32 %r6, [%rd7], %r5, %r8; setp.ne.u32 %p2, %r6, %r5;
         @%p2 bra L;""", 63),
    ],
)  # fmt: skip
def test_loops_around_compare_and_swap_start_with_a_guess(loop: str, total: float) -> None:
    got, arrays = run64(f"{WORDS} {loop} bar.sync 0; ld.shared.u32 %r9, [s]; st.global.u32 [%rd3], %r9;")
    assert got == []
    assert (arrays[1].view(np.float32 if isinstance(total, float) else np.uint32) == total).all()


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("atom.shared.cas.b32 %r6, [%r10], %r5, 1;", False),
        ("st.global.u32 [%rd3], %r5; atom.shared.cas.b32 %r6, [b], %r5, 1;", True),
        ("atom.shared.cas.b32 %r6, [b], %r5, 1;", True),
        ("atom.shared.cas.b32 %r6, [%r10+4], %r5, 1;", True),
        ("st.global.u32 [%rd3], %r5; mov.u32 %r5, 0; atom.shared.cas.b32 %r6, [b], %r5, 1;", True),
        ("st.global.u32 [%rd3], %r5; mov.u32 %r5, 0; atom.shared.cas.b32 %r6, [%r10], %r5, 1;", True),
        ("mov.u32 %r7, %r5; st.global.u32 [%rd3], %r7; atom.shared.cas.b32 %r6, [%r10], %r5, 1;", True),
        ("add.u32 %r6, %r5, 1; st.global.u32 [%rd3], %r6; atom.shared.cas.b32 %r7, [%r10], %r5, %r6;", True),
        ("mov.b32 {%h1, %h2}, %r5; st.global.u16 [%rd3], %h1; atom.shared.cas.b32 %r6, [%r10], %r5, 1;", True),
        ("shfl.sync.idx.b32 %r7, %r5, 0, 31, -1; atom.shared.cas.b32 %r6, [%r10], %r5, %r7;", True),
        ("setp.eq.u32 %p2, %r5, 3; @%p2 st.global.u32 [%rd3], 1; atom.shared.cas.b32 %r6, [%r10], %r5, 1;", True),
        ("atom.shared.cas.b32 %r6, [%r10], %r5, 1; setp.ne.u32 %p2, %r6, %r5; @%p2 st.global.u32 [%rd3], 1;", True),
        ("mov.u32 %r7, %r5; @%p1 mov.u32 %r7, 0; atom.shared.cas.b32 %r6, [%r10], %r7, 1;", True),
        ("atom.shared.cas.b32 %r6, [%r10], %r0, %r5;", True),
    ],
)
def test_a_load_that_anything_else_sees_is_no_guess(use: str, found: bool) -> None:
    """Words that neighbours wrote without a barrier: the swap is found, and the load unless the swap confirms it."""
    body = f"""{WORDS} {MINE} {NEXT} mov.u32 %r10, %r4; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [b], 0; bar.sync 0;
    st.shared.u32 [%r3], %r0; ld.shared.u32 %r5, [%r10]; {use}"""
    races = execute(body, *buffers(), threads=64, before=f"{SHARED} .shared .align 4 .b8 b[4];").diagnostics
    assert any(each.kind == "race" and each.message.startswith("reads") for each in races) == found
    assert found or any(each.kind == "race" for each in races)


@pytest.mark.parametrize("between", ["", "bar.sync 0;"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("st.shared.u32 [%r3], %r0;", "ld.relaxed.cta.shared.u32 %r5, [%r4];"),
        ("st.shared.u32 [%r3], %r0;", "ld.acquire.cta.shared.u32 %r5, [%r4];"),
        ("st.shared.u32 [%r3], %r0;", "st.relaxed.cta.shared.u32 [%r4], 99;"),
        ("ld.shared.u32 %r5, [%r3];", "st.relaxed.cta.shared.u32 [%r4], 99;"),
        ("st.relaxed.cta.shared.u32 [%r3], 99;", "ld.shared.u32 %r5, [%r4];"),
        ("st.relaxed.cta.shared.u32 [%r3], 99;", "st.shared.u32 [%r4], %r0;"),
    ],
)
def test_plain_accesses_race_with_ordered_ones_in_either_order(first: str, then: str, between: str) -> None:
    body = f"{MINE} {NEXT} st.shared.u32 [%r3], 5; bar.sync 0; {first} {between} {then}"
    assert run64(body)[0] == ([] if between else ["race"])


def test_ordered_accesses_do_not_race_with_each_other() -> None:
    body = f"""{MINE} {NEXT} st.shared.u32 [%r3], 5; bar.sync 0; st.relaxed.cta.shared.u32 [%r3], %r0;
    ld.relaxed.cta.shared.u32 %r5, [%r4]; st.relaxed.cta.shared.u32 [%r4], 99; atom.shared.add.u32 %r6, [%r4], 1;"""
    assert run64(body)[0] == []


def test_unwritten_shared_memory() -> None:
    got, _ = run64(f"{MINE} ld.shared.u32 %r5, [%r3]; st.global.u32 [%rd3], %r5;")
    assert got == ["undefined-value", "uninitialised"]


def test_sums_of_32_bits_wrap_in_an_address() -> None:
    body = f"{MINE} sub.u32 %r3, %r3, 512; st.shared.u32 [%r3+512], %r0; ld.shared.u32 %r5, [%r3+512]; {{}}"
    got, arrays = run64(body.format("st.global.u32 [%rd3], %r5;"))
    assert got == []
    assert arrays[1].tolist() == [*range(64)]
    assert run64(f"{MINE} sub.u32 %r3, %r3, 512; st.shared.u32 [%r3+508], %r0;")[0] == ["out-of-bounds"]


@pytest.mark.parametrize(
    ("write", "read", "found"),
    [
        ("", "ld.local.u32 %r1, [%rd5+8];", ["undefined-value"]),
        ("", "ld.local.u32 %r2, [%rd5+8];", []),
        ("st.local.u32 [%rd5+8], %r0;", "ld.local.u32 %r1, [%rd5+8];", []),
        ("st.local.u32 [%rd5+8], %r0;", "ld.local.v2.u32 {%r1, %r2}, [%rd5+8];", []),
        ("st.local.u32 [%rd5+8], %r0;", "ld.local.v2.u32 {%r2, %r1}, [%rd5+8];", ["undefined-value"]),
        ("st.local.v2.u32 [%rd5], {%r0, %r33};", "ld.local.u32 %r1, [%rd5];", []),
        ("st.local.u16 [%rd5], %h0;", "cvta.local.u64 %rd5, %rd5; ld.u32 %r1, [%rd5];", ["undefined-value"]),
    ],
)
def test_unwritten_local_memory_matters_where_it_is_used(write: str, read: str, found: list[str]) -> None:
    """Compilers copy structures with what lies between their members."""
    body = f".local .align 8 .b8 t[16]; mov.u64 %rd5, t; mov.u32 %r1, 0; mov.u16 %h0, 0; {write} {read}"
    assert kinds(execute(f"{body} st.global.u32 [%rd3], %r1;", *buffers(32))) == found


def test_unwritten_outputs_and_registers() -> None:
    source, target = buffers(32)
    result = execute("ld.global.u32 %r1, [%rd3]; st.global.u32 [%rd2], %r1;", source, Uninitialised(target))
    assert "uninitialised" in kinds(result)
    assert not execute("st.global.u32 [%rd3], %r0; ld.global.u32 %r1, [%rd3]; st.global.u32 [%rd2], %r1;", source,
                       Uninitialised(target)).diagnostics  # fmt: skip
    assert kinds(execute("st.global.u32 [%rd3], %r33;", *buffers(32))) == ["undefined-value"]
    branch = "setp.eq.u32 %p1, %r33, 0; @%p1 bra L; st.global.u32 [%rd3], %r0; L:"
    assert kinds(execute(branch, *buffers(32))) == ["undefined-value"]


def test_an_undefined_value_that_decides_nothing_is_fine() -> None:
    body = """setp.lt.u32 %p1, %r0, 16; @%p1 ld.global.u32 %r1, [%rd2]; add.u32 %r2, %r1, 1;
    @%p1 st.global.u32 [%rd3], %r2; selp.b32 %r3, %r2, 0, %p1; st.global.u32 [%rd2], %r3;
    prmt.b32 %r4, %r33, %r0, 0x7654; st.global.u32 [%rd2], %r4;"""
    assert not execute(body, *buffers(32)).diagnostics


@pytest.mark.parametrize(
    ("compute", "store", "found"),
    [
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f31, %f1;", "st.global.b8 [%rd3], %h1;", []),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f31, %f1;", "st.global.b16 [%rd3], %h1;", ["undefined-value"]),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f31;", "st.global.b8 [%rd3], %h1;", ["undefined-value"]),
        ("cvt.rn.f16x2.f32 %r1, %f31, %f1; fma.rn.f16x2 %r1, %r1, %r1, %r1;", "st.global.b16 [%rd3], %r1;", []),
        ("cvt.rn.f16x2.f32 %r1, %f31, %f1; add.rn.f16x2 %r1, %r1, %r1;", "st.global.b32 [%rd3], %r1;",
         ["undefined-value"]),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f31, %f1; cvt.rn.f16x2.e4m3x2 %r1, %h1;", "st.global.b16 [%rd3], %r1;", []),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f31, %f1; cvt.rn.f16x2.e4m3x2 %r1, %h1; shr.u32 %r1, %r1, 16;",
         "st.global.b16 [%rd3], %r1;", ["undefined-value"]),
    ],
)  # fmt: skip
def test_halves_of_pairs_are_undefined_apart(compute: str, store: str, found: list[str]) -> None:
    """%f31 is never written."""
    assert run64(f"cvt.rn.f32.u32 %f1, %r0; {compute} {store}", target="sm_90")[0] == found


def test_bits_put_over_undefined_bytes_define_these() -> None:
    """%r33 is never written: its high half is undefined in %r4 until the last 16 bits are there."""
    body = """prmt.b32 %r4, %r0, %r33, 0x5410; bfi.b32 %r5, %r0, %r4, 16, {}; bfi.b32 %r6, %r0, %r5, 24, 8;
    st.global.u32 [%rd2], %r6;"""
    assert not execute(body.format(8), *buffers(32)).diagnostics
    assert kinds(execute(body.format(7), *buffers(32))) == ["undefined-value"]
    body = "bfi.b32 %r5, %r33, %r0, {}, 4; st.global.u32 [%rd2], %r5;"
    assert kinds(execute(body.format(20), *buffers(32))) == ["undefined-value"]
    assert not execute(body.format(40), *buffers(32)).diagnostics


def test_what_the_system_keeps_of_shared_memory_is_zeros_behind_the_own() -> None:
    body = """mov.u32 %r1, %reserved_smem_offset_1; shl.b32 %r2, %r0, 2; add.u32 %r1, %r1, %r2;
    ld.shared.u32 %r3, [%r1]; st.shared.u32 [%r1], %r0; st.shared.u32 [%r2], %r0; st.global.u32 [%rd3], %r3;"""
    arrays = buffers(32)
    arrays[1][:] = 5
    assert not execute(body, *arrays, shared=128).diagnostics
    assert not arrays[1].any()
    outside = "shl.b32 %r2, %r0, 2; st.shared.u32 [%r2+128], %r0;"
    assert kinds(execute(outside, *buffers(32), shared=128)) == ["out-of-bounds"]


def test_traps_and_constant_memory() -> None:
    assert kinds(execute("setp.eq.u32 %p1, %r0, 3; @%p1 trap;")) == ["trap"]
    text = kernel("mov.u64 %rd5, c; st.global.u32 [%rd5], %r0;", before=".const .align 4 .u32 c[32] = {1, 2};")
    assert kinds(run(parse(text), "k", (1, 1, 1), (32, 1, 1), [])) == ["read-only"]


def test_a_diagnostic_names_the_line_of_the_source() -> None:
    text = kernel(".loc 1 7 3\nst.global.u32 [%rd0+4096], %r0;") + '\n.file 1 "mine.py"\n'
    (diagnostic,) = run(parse(text), "k", (1, 1, 1), (32, 1, 1), buffers(32)).diagnostics
    assert diagnostic.source == "mine.py:7:3"
    assert diagnostic.times == 32
    assert text.split("\n")[diagnostic.place.line - 1].startswith("st.global")
    assert "st.global.u32" in str(diagnostic)


def test_what_a_shuffle_reads_of_lanes_that_do_not_take_part_is_undefined() -> None:
    body = "shfl.sync.down.b32 %r1|%p1, %r0, 1, 31, -1; selp.u32 %r2, %r1, 99, %p1; st.global.u32 [%rd3], %r2;"
    arrays = buffers(32)
    assert not execute(body, *arrays).diagnostics
    assert arrays[1].tolist() == [*range(1, 32), 99]
    half = "setp.lt.u32 %p2, %r0, 16; @!%p2 bra L; shfl.sync.down.b32 %r1, %r0, 4, 31, 0xffff; L:"
    assert not execute(half, *buffers(32)).diagnostics
    half = half.replace("L:", "st.global.u32 [%rd3], %r1; L:")
    (diagnostic,) = execute(half, *buffers(32)).diagnostics
    assert (diagnostic.kind, diagnostic.times) == ("undefined-value", 4)
    assert not execute(half.replace("0xffff;", "0xffff; setp.lt.u32 %p2, %r0, 12; @%p2"), *buffers(32)).diagnostics


def test_lanes_that_come_to_a_barrier_later_by_a_jump_back_are_no_divergence() -> None:
    """The other lanes wait there already: all of the warp goes on together."""
    body = """
    setp.gt.u32 %p2, %r0, 3;
    mov.b32 %r2, 0;
    bra.uni AROUND;
MEET:
    bar.sync 0;
    add.s32 %r2, %r2, 1;
    setp.eq.b32 %p1, %r2, 3;
    @%p1 bra DONE;
AROUND:
    bar.sync 0;
    @%p2 bra MEET;
    add.s32 %r3, %r2, 5;
    bra.uni MEET;
DONE:
    st.global.u32 [%rd3], %r2;
    """
    found, (_, out) = run64(body)
    assert found == []
    assert (out == 3).all()


REGISTERS = """setp.lt.u32 %p1, %r0, 128; @%p1 bra GIVE; setmaxnreg.inc.sync.aligned.u32 240; bra END;
GIVE: setmaxnreg.dec.sync.aligned.u32 24; END: st.global.u32 [%rd3], %r0;"""


@pytest.mark.parametrize(
    ("was", "becomes", "limits", "found"),
    [("", "", ".maxntid 384\n.minnctapersm 1", []),  # 384 threads of 168: 128 of 24 leave 240 for each of 256
     ("", "", ".maxnreg 168", []),
     ("", "", ".maxnreg 160", ["deadlock"]),
     ("", "", "", []),  # without a number to start with they do nothing
     ("setmaxnreg.dec.sync.aligned.u32 24;", "", ".maxntid 384\n.minnctapersm 1", ["deadlock"]),
     ("u32 24;", "u32 32;", ".maxnreg 168", ["deadlock"]),
     ("u32 24;", "u32 176;", ".maxnreg 168", ["bad-operand", "deadlock"]),
     ("u32 240;", "u32 160;", ".maxnreg 168", []),  # no more at first than the largest that is asked for
     ("", "", ".maxntid 384\n.minnctapersm 1\n.maxnreg 160", ["deadlock"]),
     ("", "", ".minnctapersm 1", []),  # without threads of a block it says nothing
     ("bra END;", "setmaxnreg.inc.sync.aligned.u32 232; bra END;", ".maxnreg 168", ["bad-operand"]),
     ("128; @", "100; @", ".maxnreg 168", ["barrier-divergence", "deadlock"])],
)  # fmt: skip
def test_registers_that_warps_hand_over(was: str, becomes: str, limits: str, found: list[str]) -> None:
    text = kernel(REGISTERS.replace(was, becomes) if was else REGISTERS, target="sm_90a")
    text = text.replace(")\n{", f")\n{limits}\n{{", 1)
    arrays = buffers(384)
    result = run(parse(text), "k", (1, 1, 1), (384, 1, 1), arrays)
    assert sorted(set(kinds(result))) == found
    assert found or (arrays[1] == arrays[0]).all()


@pytest.mark.parametrize(
    ("limits", "body", "count"),  # the numbers are those that ptxas 13.0 reports for these kernels
    [(".maxntid 256 .minnctapersm 1", "inc 240 dec 40", 240), (".maxntid 256 .minnctapersm 1", "dec 40", 255),
     (".maxntid 256 .minnctapersm 1", "inc 256 dec 176", 255), (".maxntid 384 .minnctapersm 1", "inc 240 dec 40", 168),
     (".maxntid 384 .minnctapersm 1", "inc 160", 160), (".maxnreg 165", "inc 240", 165), (".maxnreg 8", "inc 256", 24),
     (".reqntid 384 .minnctapersm 1 .maxnreg 200", "inc 240", 168), (".reqntid 100 .minnctapersm 5", "inc 240", 96),
     (".maxntid 160 .minnctapersm 2", "inc 256", 168), (".maxntid 33 .minnctapersm 5", "inc 256", 168),
     (".maxntid 20, 20 .minnctapersm 1", "inc 256", 128), (".maxntid 1024 .minnctapersm 4", "inc 256", None),
     (".maxntid 256", "inc 240", None), (".minnctapersm 1", "inc 240", None), ("", "inc 240", None)],
)  # fmt: skip
def test_registers_at_the_start_are_those_of_ptxas(limits: str, body: str, count: int | None) -> None:
    words = body.split()
    lines = [f"setmaxnreg.{way}.sync.aligned.u32 {n};" for way, n in zip(words[::2], words[1::2], strict=True)]
    text = kernel("".join(lines), target="sm_90a").replace(")\n{", f")\n{limits}\n{{", 1)
    found = _registers_at_first(link(parse(text), "k"))
    assert found == (None if count is None else -(-count // 8) * 8)


def test_registers_of_two_groups_of_warps() -> None:
    """All 256 threads start with 240: one group gives most of them away, the other asks for what it has."""
    text = kernel(REGISTERS.replace("u32 24;", "u32 40;"), target="sm_90a")
    text = text.replace(")\n{", ")\n.maxntid 256\n.minnctapersm 1\n{", 1)
    arrays = buffers(256)
    assert kinds(run(parse(text), "k", (1, 1, 1), (256, 1, 1), arrays)) == []
    assert (arrays[1] == arrays[0]).all()
