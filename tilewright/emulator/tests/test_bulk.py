"""Bulk copies, tensor copies and clusters, in kernels of a few lines; counters of shared memory."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import emulator
from tilewright.emulator import Result, TensorMap, parse
from tilewright.emulator.scalars import Array
from tilewright.emulator.tests.harness import execute, kernel, kinds

START = """mov.u32 %r10, 2048; mov.u32 %r11, 0; setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared::cta.b64 [%r10], 1; bar.sync 0;
"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0; @!%p2 bra W;"
# Addresses of a variable say in which block of a cluster it is; plain offsets do not, on hardware, which keeps the
# first 1024 bytes for itself.
MEMORY = ".extern .shared .align 1024 .b8 memory[];"
FLAT = """@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 256;
@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%rd0], 256, [%r10];
"""


def test_a_flat_load_and_store() -> None:
    body = f"""{START} {FLAT} {WAIT} shl.b32 %r1, %r0, 2; ld.shared.u32 %r2, [%r1]; add.u32 %r2, %r2, 1; bar.sync 0;
    st.shared.u32 [%r1], %r2; FENCE bar.sync 0; @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r11], 256;
    @%p1 cp.async.bulk.commit_group; END"""
    end = "@%p1 cp.async.bulk.wait_group.read 0;"
    source, target = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    whole = body.replace("FENCE", "fence.proxy.async.shared::cta;").replace("END", end)
    assert not execute(whole, source, target, threads=64, shared=4096, target="sm_90a").diagnostics
    assert (target == source + 1).all()
    unfenced = body.replace("FENCE", "").replace("END", end)
    assert kinds(execute(unfenced, source, target, threads=64, shared=4096)) == ["missing-fence"]
    unawaited = body.replace("FENCE", "fence.proxy.async.shared::cta;").replace("END", "")
    assert kinds(execute(unawaited, source, target, threads=64, shared=4096)) == ["overwritten"]
    early = whole.replace(WAIT, "")
    assert "early-read" in kinds(execute(early, source, target, threads=64, shared=4096))


def tensor_load(tensor: TensorMap, found: Array, row: int, column: int) -> Result:
    """A run that copies the box at a place of a tensor, and its bytes as they lie in shared memory to `found`."""
    start = START.replace("mov.u32 %r10, 2048; mov.u32 %r11, 0;", "mov.u32 %r11, memory; add.u32 %r10, %r11, 2048;")
    body = f"""{start} @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {found.nbytes};
    mov.u32 %r12, {column}; mov.u32 %r13, {row};
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%r11], [%rd0, {{%r12, %r13}}], [%r10];
    {WAIT} mov.u32 %r2, %r0; L: shl.b32 %r1, %r2, 2; add.u32 %r4, %r1, %r11; ld.shared.u32 %r3, [%r4];
    cvt.u64.u32 %rd5, %r1; add.s64 %rd5, %rd1, %rd5;
    st.global.u32 [%rd5], %r3; add.u32 %r2, %r2, 32; setp.lt.u32 %p3, %r2, {found.nbytes // 4}; @%p3 bra L;"""
    return execute(body, tensor, found, shared=4096, target="sm_90a", before=MEMORY)


@pytest.mark.parametrize(("swizzle", "inner"), [(0, 64), (32, 16), (64, 32), (128, 64)])
def test_a_tensor_load_swizzles_and_fills_with_zeros(swizzle: int, inner: int) -> None:
    source = np.arange(1, 1 + 40 * 72, dtype=np.uint16).reshape(40, 72)
    found = np.zeros(8 * inner, np.uint16)
    assert not tensor_load(TensorMap(source, (8, inner), swizzle), found, -3, 56).diagnostics
    wanted = np.zeros((8, inner), np.uint16)
    wanted[3:, : min(16, inner)] = source[:5, 56 : 56 + min(16, inner)]
    at = np.arange(2 * 8 * inner)
    mask = swizzle // 16 - 1 if swizzle else 0
    raw = np.zeros(2 * 8 * inner, np.uint8)
    raw[at ^ ((at >> 7 & mask) << 4)] = wanted.reshape(-1).view(np.uint8)
    assert (found.view(np.uint8) == raw).all()


@pytest.mark.parametrize(("dtype", "column", "legal"), [
    (np.uint16, 60, False), (np.uint16, -4, False), (np.float32, 60, True), (np.float32, -2, False),
])  # fmt: skip
def test_the_innermost_coordinate_is_a_multiple_of_16_bytes(dtype: type, column: int, legal: bool) -> None:
    source, found = np.ones((40, 72), dtype), np.zeros((8, 8), dtype)
    wrong = tensor_load(TensorMap(source, (8, 8)), found, 0, column).diagnostics
    said = f"the innermost coordinate {column} is {column * found.itemsize} bytes, no multiple of 16"
    assert (bool(wrong), found.all()) == (not legal, legal)
    assert legal or said in [each.message for each in wrong if each.kind == "bad-operand"]


def test_a_reducing_tensor_store_stays_inside() -> None:
    body = """mov.u32 %r11, 0; setp.eq.u32 %p1, %r0, 0; shl.b32 %r1, %r0, 4; mov.f32 %f1, 0f40000000;
    st.shared.v4.f32 [%r1], {%f1, %f1, %f1, %f1}; fence.proxy.async; bar.sync 0; mov.u32 %r12, 8; mov.u32 %r13, 2;
    @%p1 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd0, {%r12, %r13}], [%r11];
    @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;"""
    target = np.ones((8, 12), np.float32)
    assert not execute(body, TensorMap(target, (16, 8)), shared=512, target="sm_90a").diagnostics
    wanted = np.ones((8, 12), np.float32)
    wanted[2:, 8:] += 2
    assert (target == wanted).all()


def test_maps_that_hardware_refuses() -> None:
    from tilewright.errors import InvalidArgument

    for array, box, swizzle in (
        (np.zeros((4, 4), np.float32), (4,), 0), (np.zeros((4, 5), np.float32), (4, 4), 0),
        (np.zeros((4, 8), np.float32), (4, 300), 0), (np.zeros((4, 8), np.float32), (4, 8), 48),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            execute("", TensorMap(array, box, swizzle))
    body = f"""{START} mov.u32 %r12, 0;
    @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
    [%r11], [%rd0, {{%r12, %r12}}], [%r10];"""
    wide = TensorMap(np.zeros((8, 64), np.float32), (8, 64), 128)
    assert kinds(execute(body, wide, shared=4096)) == ["bad-operand"]


def test_blocks_of_a_cluster_read_each_other() -> None:
    body = """mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, memory; mad.lo.u32 %r2, %r0, 4, %r2;
    mad.lo.u32 %r3, %r1, 100, %r0; st.shared.u32 [%r2], %r3;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; xor.b32 %r4, %r1, 1;
    mapa.shared::cluster.u32 %r5, %r2, %r4; ld.shared::cluster.u32 %r6, [%r5]; mov.u32 %r7, %ctaid.x;
    mad.lo.u32 %r8, %r7, 32, %r0; mul.wide.u32 %rd5, %r8, 4; add.s64 %rd5, %rd1, %rd5; st.global.u32 [%rd5], %r6;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
    out = np.zeros(4 * 32, np.uint32)
    text = kernel(body, target="sm_90a", before=MEMORY)
    result = emulator.run(parse(text), "k", (4, 1, 1), (32, 1, 1), [out, out], 128, cluster=(2, 1, 1))
    assert not result.diagnostics
    assert (out.reshape(2, 2, 32) == np.arange(32) + np.array([100, 0])[:, None]).all()


@pytest.mark.parametrize("first", ["exit;", "barrier.cluster.arrive; exit;"])
def test_a_cluster_does_not_wait_for_threads_that_have_exited(first: str) -> None:
    body = f"""mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, 0; @!%p1 bra ON; setp.lt.u32 %p1, %r0, 40; @!%p1 bra ON;
    {first}
    ON: barrier.cluster.arrive; barrier.cluster.wait; mad.lo.u32 %r8, %r1, 64, %r0; mul.wide.u32 %rd5, %r8, 4;
    add.s64 %rd5, %rd1, %rd5; st.global.u32 [%rd5], %r8;"""
    out = np.zeros(128, np.uint32)
    result = emulator.run(
        parse(kernel(body, target="sm_90a")), "k", (2, 1, 1), (64, 1, 1), [None, out], cluster=(2, 1, 1)
    )
    assert not result.diagnostics
    assert (out == np.where(np.arange(128) < 40, 0, np.arange(128))).all()


def test_a_multicast_reaches_every_block() -> None:
    body = """mov.u32 %r11, memory; add.u32 %r10, %r11, 2048; setp.eq.u32 %p1, %r0, 0; mov.u32 %r1, %cluster_ctarank;
    @%p1 mbarrier.init.shared::cta.b64 [%r10], 1; @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 128;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; setp.eq.and.u32 %p3, %r1, 0, %p1; mov.u16 %h1, 3;
    @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
    [%r11], [%rd0], 128, [%r10], %h1;
    W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0; @!%p2 bra W;
    mad.lo.u32 %r2, %r0, 4, %r11; ld.shared.u32 %r3, [%r2];
    mad.lo.u32 %r8, %r1, 32, %r0; mul.wide.u32 %rd5, %r8, 4; add.s64 %rd5, %rd1, %rd5; st.global.u32 [%rd5], %r3;"""
    source, out = np.arange(32, dtype=np.uint32) * 3, np.zeros((2, 32), np.uint32)
    text = kernel(body, target="sm_90a", before=MEMORY)
    result = emulator.run(parse(text), "k", (2, 1, 1), (32, 1, 1), [source, out], 4096, cluster=(2, 1, 1))
    assert not result.diagnostics
    assert (out == source).all()


@pytest.mark.parametrize(
    ("stride", "width", "conflicts"),
    [(4, 4, 0), (8, 4, 1), (128, 4, 31), (8, 8, 0), (16, 16, 0), (32, 16, 4), (0, 4, 0)],
)
def test_bank_conflicts(stride: int, width: int, conflicts: int) -> None:
    vector = {4: ("", "%r3"), 8: (".v2", "{%r3, %r4}"), 16: (".v4", "{%r3, %r4, %r5, %r6}")}[width]
    body = f"mul.lo.u32 %r1, %r0, {stride}; mov.u32 %r3, 7; mov.u32 %r4, 7; mov.u32 %r5, 7; mov.u32 %r6, 7; " \
           f"st.shared{vector[0]}.u32 [%r1], {vector[1]};"  # fmt: skip
    result = execute(body, shared=8192)
    assert result.counts.to_json()["bank_conflicts"] == conflicts
    assert not result.diagnostics


@pytest.mark.parametrize(("stride", "sectors"), [(4, 4), (8, 8), (32, 32), (0, 1)])
def test_transactions(stride: int, sectors: int) -> None:
    body = f"mul.wide.u32 %rd5, %r0, {stride}; add.s64 %rd5, %rd0, %rd5; ld.global.u32 %r1, [%rd5];"
    counts = execute(body, np.zeros(1024, np.uint32)).counts.to_json()
    assert counts["global_transactions"] == sectors
    assert counts["global_requests"] == 1


# Clusters: every block writes its thread numbers, plus 100 for rank 1, and reads those of its neighbour.

SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
WRITE = """mov.u32 %r1, %cluster_ctarank; xor.b32 %r4, %r1, 1; mov.u32 %r2, memory; mad.lo.u32 %r2, %r0, 4, %r2;
mad.lo.u32 %r3, %r1, 100, %r0; st.shared.u32 [%r2], %r3; mapa.shared::cluster.u32 %r5, %r2, %r4;"""
HALF = "setp.lt.u32 %p3, %r0, 16; @%p3 bar.warp.sync 65535;"  # from here on order is followed thread by thread
READ = "ld.shared::cluster.u32 %r6, [%r5];"
OUT = """mov.u32 %r7, %ctaid.x; mad.lo.u32 %r8, %r7, 32, %r0; mul.wide.u32 %rd5, %r8, 4; add.s64 %rd5, %rd1, %rd5;
st.global.u32 [%rd5], %r6;"""


def pair(body: str) -> tuple[list[str], np.ndarray]:
    """Kinds of diagnostics of two blocks of a cluster, 32 threads each, and what they store."""
    out = np.zeros((2, 32), np.uint32)
    found = emulator.run(
        parse(kernel(body, target="sm_90a", before=MEMORY)), "k", (2, 1, 1), (32, 1, 1), [out, out], 4096,
        cluster=(2, 1, 1),
    )  # fmt: skip
    return sorted(set(kinds(found))), out


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (f"{WRITE} {SYNC} {READ} {SYNC}", []),
        (f"{HALF} {WRITE} {SYNC} {READ} {SYNC}", []),
        (f"{HALF} {WRITE} {SYNC} {READ}", ["race"]),
        (f"{WRITE} {SYNC} {READ}", ["race"]),  # the neighbour may have ended
        (f"{WRITE} {SYNC} setp.eq.u32 %p1, %r1, 0; @%p1 exit; {READ} {OUT}", ["race"]),
        (f"{WRITE} bar.sync 0; {READ}", ["race"]),  # a barrier of the block says nothing about the neighbour
        (f"{WRITE} {SYNC} {READ} bar.sync 0; st.shared.u32 [%r2], 7; {SYNC}", ["race"]),  # the neighbour may still read
        (f"{WRITE} {SYNC} {READ} {SYNC} st.shared.u32 [%r2], 7;", []),
        (f"{WRITE} {SYNC} {READ} st.shared.u32 [%r2], 7; {SYNC}", ["race"]),
        # Written between arrival and wait: not covered by this barrier.
        (f"{WRITE} {SYNC} barrier.cluster.arrive; st.shared.u32 [%r2], %r0; barrier.cluster.wait; {READ} {SYNC}",
         ["race"]),
        (f"{WRITE} {SYNC} {READ} barrier.cluster.arrive; barrier.cluster.wait; st.shared.u32 [%r2], 7;",
         []),
        (f"{WRITE} {SYNC} st.shared::cluster.u32 [%r5], %r0; bar.sync 0; ld.shared.u32 %r6, [%r2]; {SYNC}", ["race"]),
        (f"{WRITE} {SYNC} st.shared::cluster.u32 [%r5], %r0; {SYNC} ld.shared.u32 %r6, [%r2];", []),
    ],
)  # fmt: skip
def test_races_between_blocks_of_a_cluster(body: str, found: list[str]) -> None:
    assert pair(body)[0] == found


HANDSHAKE = f"""mov.u32 %r2, memory; add.u32 %r10, %r2, 2048; setp.eq.u32 %p1, %r0, 0; mov.u32 %r1, %cluster_ctarank;
xor.b32 %r4, %r1, 1; @%p1 mbarrier.init.shared::cta.b64 [%r10], COUNT; INIT mad.lo.u32 %r2, %r0, 4, %r2;
mad.lo.u32 %r3, %r1, 100, %r0; mapa.shared::cluster.u32 %r5, %r2, %r4; mapa.shared::cluster.u32 %r12, %r10, %r4; SEND
W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r10], 0; @!%p2 bra W; ld.shared.u32 %r6, [%r2]; {OUT} {SYNC}"""
ARRIVE = "st.shared::cluster.u32 [%r5], %r3; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];"
LATE = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12]; st.shared::cluster.u32 [%r5], %r3;"
ASYNC = """@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 128;
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r5], %r3, [%r12];"""
COPY = """add.u32 %r14, %r2, 1024; st.shared.u32 [%r14], %r3; FENCE bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 128;
@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r5], [%r14], 128, [%r12];"""


@pytest.mark.parametrize(
    ("send", "count", "init", "found"),
    [
        (ARRIVE, 32, SYNC, []),
        (f"{ARRIVE} exit;", 32, SYNC, ["race"]),
        (f"{ASYNC} exit;", 1, SYNC, ["overwritten"]),
        (ARRIVE, 32, "bar.sync 0;", ["race"]),  # the neighbour may arrive before the mbarrier is there
        (LATE, 32, SYNC, ["race"]),
        (ASYNC, 1, SYNC, []),
        (ASYNC + "ld.shared.u32 %r6, [%r2];", 1, SYNC, ["early-read"]),
        (COPY.replace("FENCE", "fence.proxy.async;"), 1, SYNC, []),
        (COPY.replace("FENCE", ""), 1, SYNC, ["missing-fence"]),
        (COPY.replace("FENCE", "fence.proxy.async;") + "st.shared.u32 [%r14], %r0;", 1, SYNC, ["overwritten"]),
    ],
)
def test_mbarriers_of_another_block(send: str, count: int, init: str, found: list[str]) -> None:
    body = HANDSHAKE.replace("COUNT", str(count)).replace("INIT", init).replace("SEND", send)
    kinds_found, out = pair(body)
    assert kinds_found == found
    if not found:
        assert (out == np.arange(32) + np.array([100, 0])[:, None]).all()


STORES = {
    "flat": "cp.async.bulk.global.shared::cta.bulk_group [%rd5], [%r11], 512;",
    "flat reduction": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd5], [%r11], 512;",
    "box": "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r11, %r9}], [%r11];",
    "box reduction": "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
    "[%rd1, {%r11, %r9}], [%r11];",
}
STORE_STEPS = {
    "fence": "fence.proxy.async.shared::cta;", "meet": "bar.sync 0;", "copy": "@%p1 {copy} "
    "@%p1 cp.async.bulk.commit_group;", "wait": "@%p1 cp.async.bulk.wait_group{read} 0;", "again": "bar.sync 0;",
}  # fmt: skip


@pytest.mark.parametrize("copy", STORES)
@pytest.mark.parametrize("read", ["", ".read"])
@pytest.mark.parametrize(
    ("missing", "found"),
    [("", []), ("fence", ["missing-fence"]), ("meet", ["race"]), ("wait", ["overwritten"]), ("again", ["race"])],
)
def test_a_buffer_is_stored_from_three_times(copy: str, read: str, missing: str, found: list[str]) -> None:
    """Each step between the writes of a buffer, its copy to global memory and the next writes is needed."""
    steps = " ".join(text for name, text in STORE_STEPS.items() if name != missing)
    steps = steps.replace("{copy}", STORES[copy]).replace("{read}", read)
    body = "setp.eq.u32 %p1, %r0, 0; shl.b32 %r1, %r0, 2; mov.u32 %r11, 0; mov.u64 %rd5, %rd1; mov.u32 %r2, %r0;" + (
        f"""st.shared.u32 [%r1], %r2; {steps} add.s64 %rd5, %rd5, 512; add.u32 %r2, %r2, 1000;
        add.u32 %r9, %r9, 1;"""
        * 3
    )
    target = np.zeros((3, 128), np.uint32)
    given = TensorMap(target, (1, 128)) if "box" in copy else target
    end = "@%p1 cp.async.bulk.wait_group 0;" if missing == "wait" else ""
    result = execute("mov.u32 %r9, 0;" + body + end, None, given, threads=128, shared=512, target="sm_90a")
    assert sorted(set(kinds(result))) == found
    if not found:
        assert (target == np.arange(128) + 1000 * np.arange(3)[:, None]).all()


def test_a_thread_may_overwrite_at_once_what_its_own_copy_has_read() -> None:
    body = """setp.eq.u32 %p1, %r0, 0; mov.u32 %r11, 0; mov.u32 %r1, 7; @!%p1 bra END; st.shared.u32 [%r11], %r1;
    st.shared.u32 [%r11+4], %r1; st.shared.u32 [%r11+8], %r1; st.shared.u32 [%r11+12], %r1; fence.proxy.async;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r11], 16; cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0; st.shared.u32 [%r11], %r0; END:"""
    target = np.zeros(4, np.uint32)
    assert not execute(body, None, target, shared=16, target="sm_90a").diagnostics
    assert (target == 7).all()
