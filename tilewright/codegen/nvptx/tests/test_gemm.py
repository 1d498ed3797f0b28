"""A product of matrices with staged copies, by mma and by wmma: right, without spills, of the expected instructions."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.nvptx.tests.execute import Array, compiled, emulate, resources
from tilewright.codegen.nvptx.tests.gemm import gemm
from tilewright.runtime.emulated import run_kernel


def _operands(m: int, n: int, k: int) -> tuple[Array, Array, Array, Array]:
    """Small integers: every sum is exact, in any order."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    return a, b, np.full((m, n), np.nan, np.float32), a.astype(np.float32) @ b.astype(np.float32)


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 64, 160), (64, 128, 32)])
def test_gemm_by_mma(m: int, n: int, k: int, machine: str) -> None:
    a, b, c, expected = _operands(m, n, k)
    code = emulate(gemm(m, n, k), [a.reshape(-1), b.reshape(-1), c.reshape(-1)], machine)
    assert (c == expected).all()
    found = resources(code)["k"]
    assert found.spills == found.stack_bytes == 0
    assert found.registers <= 128


def test_instructions_of_the_gemm() -> None:
    """Per slice: 2 x 2 x 4 products, 8 ldmatrix; prologue and loop copy 4 chunks of 16 bytes each."""
    ptx = compiled(gemm(256, 256, 512)).ptx
    assert ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 16
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == 4
    assert ptx.count("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") == 4
    assert ptx.count("cp.async.cg.shared.global") == 12
    assert ptx.count("cp.async.wait_group") == 1
    assert ptx.count("bar.sync") + ptx.count("barrier.sync") == 1
    assert ptx.count("st.global.v2.b32") == 16


@pytest.mark.parametrize("machine", ["sm_75", "sm_80", "sm_90a"])
def test_gemm_by_wmma(machine: str) -> None:
    a, b, c, expected = _operands(64, 128, 96)
    code = emulate(gemm(64, 128, 96, wmma=True), [a.reshape(-1), b.reshape(-1), c.reshape(-1)], machine)
    assert (c == expected).all()
    assert code.ptx.count("wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32") == 8
    assert resources(code)["k"].spills == 0


def test_copies_of_the_gemm_have_no_bank_conflicts() -> None:
    a, b, c, _ = _operands(64, 64, 96)
    done = run_kernel(compiled(gemm(64, 64, 96)), "k", [a.reshape(-1), b.reshape(-1), c.reshape(-1)])
    counts = done.counts[0][1]
    assert counts.total("shared", "conflicts") == 0


@pytest.mark.emulator_only
@pytest.mark.parametrize("drop", ["barrier", "wait"])
def test_what_is_left_out_is_found(drop: str) -> None:
    a, b, c, _ = _operands(64, 64, 160)
    done = run_kernel(compiled(gemm(64, 64, 160, drop=drop)), "k", [a.reshape(-1), b.reshape(-1), c.reshape(-1)])
    assert done.diagnostics
