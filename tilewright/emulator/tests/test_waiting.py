"""Diagnostics of threads that wait for each other: barriers, copies, mbarriers, and what is released and acquired."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.emulator import Uninitialised
from tilewright.emulator.tests.harness import MINE, NEXT, buffers, execute, kinds, run64

pytestmark = pytest.mark.emulator_only


def test_a_barrier_that_half_a_warp_reaches() -> None:
    found, _ = run64("setp.lt.u32 %p1, %r0, 16; @!%p1 bra L; bar.sync 0; L: st.global.u32 [%rd3], %r0; bar.sync 0;")
    assert set(found) == {"barrier-divergence"}


@pytest.mark.parametrize("threads", [1, 20, 32, 45])
@pytest.mark.parametrize("barrier", ["bar.sync 0;", "barrier.sync 3;", "bar.red.popc.u32 %r9, 0, %p2;"])
@pytest.mark.parametrize("late", [False, True])
def test_a_barrier_of_all_threads_does_not_wait_for_those_that_exit(threads: int, barrier: str, late: bool) -> None:
    """PTX ISA, `exit`: a barrier of all threads is released where only exiting threads hold it up."""
    pause = "mov.u32 %r20, 0; P: add.u32 %r20, %r20, 1; setp.lt.u32 %p3, %r20, 9; @%p3 bra P;" if late else ""
    body = f"""setp.lt.u32 %p1, %r0, {threads}; @!%p1 bra ON; {pause} exit;
    ON: {MINE} st.shared.u32 [%r3], %r0; setp.ge.u32 %p2, %r0, 60; {barrier}
    xor.b32 %r4, %r0, 1; max.u32 %r4, %r4, {threads}; shl.b32 %r5, %r4, 2; ld.shared.u32 %r6, [%r5];
    st.global.u32 [%rd3], %r6;"""
    found, arrays = run64(body)
    assert found == []
    wanted = np.maximum(np.arange(64) ^ 1, threads)
    assert (arrays[1] == np.where(np.arange(64) < threads, 0, wanted)).all()


def test_a_barrier_of_a_number_of_threads_waits_for_all_of_them() -> None:
    assert run64("setp.lt.u32 %p1, %r0, 32; @%p1 exit; bar.sync 0, 64;")[0] == ["barrier-divergence"]


def test_a_barrier_that_nobody_else_reaches() -> None:
    assert run64("setp.lt.u32 %p1, %r0, 32; @%p1 bra L; barrier.sync 1, 64; L: bar.warp.sync -1;")[0] == [
        "barrier-divergence"
    ]


COPY = f"{MINE} cp.async.ca.shared.global [%r3], [%rd2], 4; cp.async.commit_group; "


@pytest.mark.parametrize(
    ("wait", "found"),
    [("cp.async.wait_group 0;", []), ("cp.async.wait_all;", []), ("cp.async.wait_group 1;", ["early-read"]),
     ("", ["early-read"])],
)  # fmt: skip
def test_copies_are_there_after_the_wait(wait: str, found: list[str]) -> None:
    got, arrays = run64(f"{COPY} {wait} ld.shared.u32 %r5, [%r3]; st.global.u32 [%rd3], %r5;")
    assert [kind for kind in got if kind != "undefined-value"] == found
    assert (arrays[1] == (arrays[0] if not found else 0)).all()


def test_others_see_a_copy_after_wait_and_barrier() -> None:
    body = f"{COPY} cp.async.wait_group 0; {{}} {NEXT} ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd3], %r5;"
    assert run64(body.format(""))[0] == ["race"]
    assert run64(body.format("bar.sync 0;"))[0] == []


def test_a_store_into_the_target_of_a_pending_copy() -> None:
    assert "overwritten" in run64(f"{COPY} st.shared.u32 [%r3], %r0; cp.async.wait_group 0;")[0]


def test_zero_filled_copies_read_nothing() -> None:
    body = """shl.b32 %r1, %r0, 4; mov.u64 %rd5, 0; mov.u32 %r5, 0; cp.async.cg.shared.global [%r1], [%rd5], 16, %r5;
    cp.async.wait_all; ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r1]; add.u32 %r6, %r6, %r9;
    st.global.u32 [%rd3], %r6;"""
    arrays = buffers(32)
    assert not execute(body, *arrays, shared=512).diagnostics
    assert not arrays[1].any()


MBARRIER = """mov.u32 %r10, 256; setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [%r10], {count}; bar.sync 0;
shl.b32 %r1, %r0, 2; add.u32 %r4, %r0, 32; and.b32 %r4, %r4, 63; shl.b32 %r4, %r4, 2;
st.shared.u32 [%r1], %r0; {arrive}
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r10], {parity}; @!%p2 bra W;
ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd3], %r5;"""


def wait_on_mbarrier(
    count: int = 64, parity: int = 0, arrive: str = "mbarrier.arrive.shared.b64 _, [%r10];"
) -> list[str]:
    body = MBARRIER.format(count=count, parity=parity, arrive=arrive)
    return kinds(execute(body, *buffers(), threads=64, shared=512, limit=100_000))


def test_an_mbarrier_orders_what_it_should() -> None:
    assert wait_on_mbarrier() == []
    assert wait_on_mbarrier(parity=1) == ["deadlock"]
    assert wait_on_mbarrier(count=65) == ["deadlock"]
    assert wait_on_mbarrier(
        count=32, arrive="setp.lt.u32 %p3, %r0, 32; @%p3 mbarrier.arrive.shared.b64 _, [%r10];"
    ) == ["race"]


def test_misuse_of_mbarriers() -> None:
    assert "mbarrier" in kinds(execute("mov.u32 %r10, 0; mbarrier.arrive.shared.b64 _, [%r10];", shared=64))
    body = "mov.u32 %r10, 0; mbarrier.init.shared.b64 [%r10], 3; mbarrier.arrive.shared.b64 _, [%r10], 4;"
    assert "mbarrier" in kinds(execute(body, shared=64, threads=1))


def test_two_roles_that_wait_for_each_other() -> None:
    """A producing and a consuming warp, eight rounds through one slot."""
    body = """mov.u32 %r10, 128; mov.u32 %r11, 136; setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r10], 32; @%p1 mbarrier.init.shared.b64 [%r11], 32; bar.sync 0;
    and.b32 %r12, %r0, 31; shl.b32 %r1, %r12, 2; xor.b32 %r13, %r1, 4; mov.u32 %r2, 0; mov.u32 %r3, 0;
    setp.lt.u32 %p2, %r0, 32; @%p2 bra PRODUCE;
    CONSUME: and.b32 %r4, %r2, 1;
    WF: mbarrier.try_wait.parity.shared.b64 %p3, [%r10], %r4; @!%p3 bra WF;
    ld.shared.u32 %r5, [%r13]; add.u32 %r3, %r3, %r5; {release}
    add.u32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 8; @%p4 bra CONSUME;
    st.global.u32 [%rd3], %r3; exit;
    PRODUCE: and.b32 %r4, %r2, 1; xor.b32 %r4, %r4, 1;
    WE: mbarrier.try_wait.parity.shared.b64 %p3, [%r11], %r4; @!%p3 bra WE;
    mad.lo.u32 %r6, %r2, 100, %r12; st.shared.u32 [%r1], %r6; mbarrier.arrive.shared.b64 _, [%r10];
    add.u32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 8; @%p4 bra PRODUCE;"""
    arrays = buffers()
    good = body.replace("{release}", "mbarrier.arrive.shared.b64 _, [%r11];")
    assert not execute(good, *arrays, threads=64, shared=256).diagnostics
    assert arrays[1][32:].tolist() == [8 * (lane ^ 1) + 2800 for lane in range(32)]
    early = body.replace("{release}", "").replace(
        "ld.shared.u32 %r5", "mbarrier.arrive.shared.b64 _, [%r11]; ld.shared.u32 %r5"
    )
    assert "race" in kinds(execute(early, *buffers(), threads=64, shared=256))
    never = body.replace("{release}", "")
    assert "deadlock" in kinds(execute(never, *buffers(), threads=64, shared=256))


def test_endless_loops_end_at_the_limit() -> None:
    (diagnostic,) = execute("L: bra L;", limit=1000).diagnostics
    assert diagnostic.kind == "no-end"
    assert "1,000 executed" in diagnostic.message
    assert "--limit" in diagnostic.message


def test_a_trap_ends_the_launch_and_nothing_else_is_reported() -> None:
    arrays = buffers(32)
    found = execute("setp.eq.u32 %p1, %r0, 3; @%p1 trap; bar.sync 0; st.global.u32 [%rd3], %r0;", *arrays, blocks=3)
    assert kinds(found) == ["trap"]
    assert not arrays[1].any()


@pytest.mark.parametrize("between", ["bar.sync 0;", "bar.sync 1, 64; mov.u32 %r9, 0;"])
def test_an_own_read_after_a_read_that_is_ordered_is_the_only_one(between: str) -> None:
    """A lane reads and then writes what other lanes of its warp read before the barrier."""
    body = f"""
    shl.b32 %r1, %r0, 2; xor.b32 %r2, %r1, 4; st.shared.u32 [%r1], %r0; {between}
    ld.shared.u32 %r3, [%r2]; {between}
    ld.shared.u32 %r4, [%r1]; add.u32 %r4, %r4, %r3; st.shared.u32 [%r1], %r4; {between}
    ld.shared.u32 %r5, [%r2]; st.global.u32 [%rd3], %r5;
    """
    arrays = buffers(64)
    assert not execute(body, *arrays, threads=64, shared=256).diagnostics
    thread = np.arange(64)
    assert (arrays[1] == (thread ^ 1) + thread).all()
    racy = body.replace(f"ld.shared.u32 %r3, [%r2]; {between}", "ld.shared.u32 %r3, [%r2];")
    assert kinds(execute(racy, *buffers(64), threads=64, shared=256)) == ["race"]


@pytest.mark.parametrize("count", [64, 128])
def test_who_arrives_and_goes_on_passes_on_what_was_before(count: int) -> None:
    """Warp 0 fills two slots in turn, warp 1 takes them: what is written after an arrival is not yet there."""
    body = """
    mov.u32 %r1, 0; mov.u32 %r2, 0; and.b32 %r3, %r0, 31; setp.ge.u32 %p1, %r0, 32;
    setp.ge.u32 %p6, %r0, 64; @%p6 exit;
    LOOP: and.b32 %r4, %r1, 1; shl.b32 %r5, %r4, 7; mad.lo.u32 %r5, %r3, 4, %r5; setp.lt.u32 %p3, %r1, 2;
    add.u32 %r6, %r4, 1; add.u32 %r7, %r4, 3; @%p1 bra TAKE; @%p3 bra FILL; bar.sync %r7, 64;
    FILL: add.u32 %r8, %r0, %r1; st.shared.u32 [%r5], %r8; bar.arrive %r6, 64; bra NEXT;
    TAKE: bar.sync %r6, 64; xor.b32 %r9, %r5, 4; ld.shared.u32 %r8, [%r9]; add.u32 %r2, %r2, %r8; bar.arrive %r7, 64;
    NEXT: add.u32 %r1, %r1, 1; setp.lt.u32 %p5, %r1, 6; @%p5 bra LOOP; @%p1 st.global.u32 [%rd3], %r2;
    """
    arrays = buffers(128)
    assert not execute(body, *arrays, threads=count, shared=256).diagnostics
    assert (arrays[1][32:64] == 6 * (np.arange(32) ^ 1) + 15).all()
    late = "setp.ge.u32 %p7, %r1, 4; @%p7 bra GO; bar.sync %r6, 64; GO:"  # the last two slots are not waited for
    broken = body.replace("TAKE: bar.sync %r6, 64;", f"TAKE: {late}")
    assert "race" in kinds(execute(broken, *buffers(128), threads=count, shared=256))


_SIGNAL = """
shl.b32 %r1, %r0, 2; mov.u32 %r2, 0; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [256], %r2; bar.sync 0;
setp.ge.u32 %p2, %r0, 32; mov.u32 %r3, 1; @%p2 bra WAIT;
st.shared.u32 [%r1], %r0; bar.warp.sync -1; {raise} exit;
WAIT: {look} setp.eq.u32 %p3, %r4, 0; @%p3 bra WAIT; {after}
xor.b32 %r5, %r1, 255; and.b32 %r5, %r5, 124; ld.shared.u32 %r6, [%r5]; st.global.u32 [%rd3], %r6;
"""


@pytest.mark.parametrize(
    ("signal", "found"),
    [
        (("@%p1 st.release.cta.shared.u32 [256], %r3;", "ld.acquire.cta.shared.u32 %r4, [256];", ""), []),
        (("membar.cta; @%p1 st.volatile.shared.u32 [256], %r3;",
          "ld.volatile.shared.u32 %r4, [256];", "membar.cta;"), []),
        (("fence.acq_rel.cta; @%p1 atom.shared.exch.b32 %r7, [256], %r3;",
          "atom.shared.add.u32 %r4, [256], 0;", "fence.acq_rel.cta;"), []),
        (("@%p1 st.relaxed.cta.shared.u32 [256], %r3;", "ld.acquire.cta.shared.u32 %r4, [256];", ""), ["race"]),
        (("@%p1 st.release.cta.shared.u32 [256], %r3;", "ld.relaxed.cta.shared.u32 %r4, [256];", ""), ["race"]),
    ],
)  # fmt: skip
def test_what_is_released_is_there_for_who_acquires(signal: tuple[str, str, str], found: list[str]) -> None:
    body = _SIGNAL
    for name, text in zip(("{raise}", "{look}", "{after}"), signal, strict=True):
        body = body.replace(name, text)
    arrays = buffers(64)
    assert kinds(execute(body, *arrays, threads=64, shared=512)) == found
    assert (arrays[1][32:] == 31 - np.arange(32)).all()


def test_a_whole_grid_meets() -> None:
    """As cooperative launches do: a counter behind the address in %envreg1 and %envreg2."""
    body = """mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 32, %r0; mul.wide.u32 %rd5, %r2, 4; add.s64 %rd6, %rd0, %rd5;
    st.global.u32 [%rd6], %r2; bar.warp.sync -1; membar.gl; mov.u32 %r3, %envreg1; mov.u32 %r4, %envreg2;
    mov.b64 %rd7, {%r4, %r3}; setp.eq.u32 %p1, %r0, 0; @%p1 red.global.add.u32 [%rd7+4], 1;
    W: ld.volatile.global.u32 %r5, [%rd7+4]; setp.lt.u32 %p2, %r5, 4; @%p2 bra W;
    xor.b32 %r6, %r2, 64; mul.wide.u32 %rd8, %r6, 4; add.s64 %rd8, %rd0, %rd8; ld.global.u32 %r7, [%rd8];
    add.s64 %rd9, %rd1, %rd5; st.global.u32 [%rd9], %r7;"""
    seen = np.zeros(128, np.uint32)
    assert not execute(body, Uninitialised(np.zeros(128, np.uint32)), seen, blocks=4).diagnostics
    assert (seen == np.arange(128) ^ 64).all()


@pytest.mark.parametrize(("opened", "found"), [("st.release.cta.shared", []), ("st.shared", ["race"])])
def test_a_lock_is_opened_by_a_store(opened: str, found: list[str]) -> None:
    body = f"""setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s], 1; @%p1 st.shared.u32 [s+4], 0; bar.sync 0;
    AGAIN: atom.acquire.cta.shared.exch.b32 %r1, [s], 0; setp.eq.u32 %p2, %r1, 1; @!%p2 bra LATER;
    ld.shared.u32 %r2, [s+4]; add.u32 %r2, %r2, %r0; st.shared.u32 [s+4], %r2; {opened}.u32 [s], 1;
    LATER: @!%p2 bra AGAIN; bar.sync 0; ld.shared.u32 %r3, [s+4]; st.global.u32 [%rd3], %r3;"""
    got, arrays = run64(body)
    assert sorted(set(got)) == found
    assert arrays[1].tolist() == [2016] * 64


def test_many_blocks_may_wait_for_each_other() -> None:
    body = """
    setp.eq.u32 %p1, %r0, 0; mov.u32 %r1, %nctaid.x; @!%p1 bra DONE; atom.global.add.u32 %r2, [%rd0], 1;
    AGAIN: ld.acquire.gpu.global.u32 %r3, [%rd0]; setp.lt.u32 %p2, %r3, %r1; @%p2 bra AGAIN;
    mov.u32 %r4, %ctaid.x; mad.wide.u32 %rd5, %r4, 4, %rd1; st.global.u32 [%rd5], %r3;
    DONE:
    """
    arrays = np.zeros(1, np.uint32), np.zeros(140, np.uint32)
    assert not execute(body, *arrays, threads=512, blocks=140, limit=20_000).diagnostics
    assert (arrays[1] == 140).all()
