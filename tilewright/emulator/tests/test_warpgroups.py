"""Products of four warps: what belongs to the moment at which they are issued, and what to their wait."""

from __future__ import annotations

import numpy as np

from tilewright.emulator.tests.harness import execute, kinds

# Ones at bytes 0 to 2047 (A, 64 x 16) and 2048 to 2303 (B, 16 x 8); sums start at 5.
ONES = """mov.b32 %r1, 0x3c003c00; shl.b32 %r2, %r0, 4; st.shared.v4.b32 [%r2], {%r1, %r1, %r1, %r1};
setp.lt.u32 %p1, %r0, 16; @%p1 st.shared.v4.b32 [%r2 + 2048], {%r1, %r1, %r1, %r1};
fence.proxy.async.shared::cta; bar.sync 0;
mov.b64 %rd5, 0x0000001000080000; mov.b64 %rd6, 0x0000001000080080;
mov.f32 %f1, 0f40A00000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1; wgmma.fence.sync.aligned;"""
PRODUCT = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd5, %rd6, %p2, 1, 1, 0, 0;"
STORE = "shl.b32 %r3, %r0, 2; cvt.u64.u32 %rd7, %r3; add.s64 %rd7, %rd1, %rd7; st.global.f32 [%rd7], %f1;"


def test_whether_a_sum_is_kept_is_read_when_the_product_is_issued() -> None:
    body = f"""{ONES} mov.pred %p2, 0; {PRODUCT} wgmma.commit_group.sync.aligned; mov.pred %p2, 1;
    wgmma.wait_group.sync.aligned 0; {STORE}"""
    out = np.zeros(128, np.float32)
    assert kinds(execute(body, out, out, threads=128, shared=2304, target="sm_90a")) == []
    assert (out == 16).all()
    kept = np.zeros(128, np.float32)
    body = body.replace("mov.pred %p2, 0", "mov.pred %p2, -1").replace("mov.pred %p2, 1", "mov.pred %p2, 0")
    assert kinds(execute(body, kept, kept, threads=128, shared=2304, target="sm_90a")) == []
    assert (kept == 21).all()
