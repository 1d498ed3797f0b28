"""The emulator adds as matrix units do: results of an H200 (driver 580.159.04, sm_90a), bit for bit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bench.gpu.arithmetic import INSTRUCTIONS, compare, main, numbers, ptx
from tilewright.codegen.nvptx import ptxas
from tilewright.emulator.products import UNITS, multiply

RESULTS = Path(__file__).parents[1] / "results"


def test_products_of_one_warp_have_the_bits_of_an_h200() -> None:
    found = dict(compare(RESULTS / "mma-h200.npz"))
    assert len(found) == len(INSTRUCTIONS)
    assert all(same.all() for same in found.values()), {name: same.mean() for name, same in found.items()}


@pytest.mark.parametrize("name", ["f16-64-2", "bf16-256-4", "f16-4096-1"])
def test_products_of_four_warps_have_the_bits_of_an_h200(name: str) -> None:
    """Type, terms of a sum and spread of exponents; 64 x 64 sums in steps of `wgmma` with k of 16."""
    kind, k, spread = name.split("-")
    random = np.random.default_rng(int(spread))
    dtype = np.dtype(np.float16 if kind == "f16" else ml_dtypes.bfloat16)
    a, b = (numbers(random, (64, int(k)), int(spread)).astype(dtype).astype(np.float64) for _ in range(2))
    found = multiply(a[None], b.T[None], np.zeros((1, 64, 64)), (kind, kind), "f32", UNITS[90])[0]
    with np.load(RESULTS / "wgmma-h200.npz") as stored:
        assert (found.astype(np.float32) == stored[name]).all()


def test_a_run_is_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "mma.npz")
    assert main(["--device", "emulator", "--warps", "2", "--out", path, "--compare", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(INSTRUCTIONS)
    assert "m16n8k16_row_col_f32_f16_f16_f32: 256 of 256 words are the same" in lines


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda each: each.name)
def test_kernels_assemble(instruction: object) -> None:
    ptxas.check(ptx(instruction), "sm_90")  # type: ignore[arg-type]
