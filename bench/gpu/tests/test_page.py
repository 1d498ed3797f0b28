"""The page of results: ratios, shares and rank correlations of made-up runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from bench.gpu import page
from bench.gpu.contenders import APART, FUSED, ONE_WARP, OURS
from bench.gpu.results import Row
from bench.gpu.tile_prices import Prices

MACHINE = {"device": "a GPU", "date": "today", "driver": "1.2", "commit": "abc"}
CONSTANTS = [{"constants": [
    {"name": "clock_hz", "value": 1e9, "low": 1e9, "high": 1e9, "unit": "Hz"},
    {"name": "wgmma_f16", "value": 1000.0, "low": 900.0, "high": 1100.0, "unit": "multiply-adds per cycle"},
]}]  # fmt: skip


def row(family: str, case: str, contender: str, seconds: float, **more: Any) -> dict[str, Any]:
    made = Row(family, case, "f16", contender, "ok", seconds, seconds * 0.99, seconds * 1.01, **more)
    return asdict(made)


def test_products_have_ratios_in_turns_and_shares_of_the_peak() -> None:
    flops = 132 * 10**12 // 10
    rows = [
        row("gemm", "big", "torch", 1.1, flops=flops),
        row("gemm", "big", "triton", 2.0, flops=flops, beside=1.0),
        row("gemm", "big", OURS, 0.1, flops=flops, beside=0.2),
        row("gemm", "big", ONE_WARP, 0.2, flops=flops, beside=0.1),
        row("gemm", "only torch", "torch", 1.0),
    ]
    text = page.page([{"machine": MACHINE, "rows": rows}], CONSTANTS, [])
    assert "- a GPU, today: driver 1.2, commit abc; 5 rows" in text
    assert "| big | f16 | rule | 132.0 | ±1.0 % | 12.0 | 2.00 | 6.6 | 4.00 | 50 % |" in text
    assert "| big | f16 | mma.sync | 66.0 | ±1.0 % | 12.0 | 0.50 | 6.6 | 1.00 | 25 % |" in text
    assert "only torch" not in text
    assert "| clock_hz | 1e+09 | 1e+09 | 1e+09 | Hz |" in text


def test_rows_are_beside_a_copy_of_their_size_and_the_last_run_counts() -> None:
    sizes = (10**12, 1.0), (10**9, 0.01)
    copies = [row("copy", f"copy {size}", "torch", seconds, bytes=size) for size, seconds in sizes]
    before = [*copies, row("rows", "softmax", OURS, 4.0, bytes=10**12)]
    after = [row("rows", "softmax", OURS, 2.0, bytes=10**12), row("rows", "softmax", "torch", 4.0, bytes=10**12)]
    after.append({**row("rows", "sum", OURS, 1.0), "status": "wrong", "seconds": None, "note": "by\n0.5"})
    text = page.page([{"machine": MACHINE, "rows": before}, {"machine": MACHINE, "rows": after}], [], [])
    assert "| softmax | f16 | 500 | ±1.0 % | 50 % | 250 | 2.00 |  |  |" in text
    assert f"- wrong: {OURS}, sum, f16: by 0.5" in text


def test_chains_are_beside_one_kernel_and_two() -> None:
    rows = [
        row("chain", "G1", "torch", 4e-6), row("chain", "G1", OURS, 2e-6, beside=4e-6),
        row("chain", "G1", FUSED, 2e-6, beside=4e-6), row("chain", "G1", APART, 1.5e-6, beside=4e-6),
    ]  # fmt: skip
    text = page.page([{"machine": MACHINE, "rows": rows}], [], [])
    assert text.count("| G1 |") == 1
    assert "| G1 | f16 | 2.0 | ±1.0 % | 4.0 | 2.00 | 2.0 | 1.00 | 1.5 | 0.75 |" in text
    assert "Chains" not in page.page([{"machine": MACHINE, "rows": [row("gemm", "big", OURS, 1.0)]}], [], [])


def test_tiles_have_a_rank_correlation_and_a_loss() -> None:
    text = page.page([], [], prices=[Prices("big", "f16", "auto", (0.0, 1.0, 2.0), (1.1, 1.0, 2.0))])
    assert "| big | f16 | auto | 3 | 0.33 | 10 % |" in text
    assert "The mean of τ is 0.33, that of the loss 10.0 %." in text


def test_the_page_is_written_from_what_is_stored() -> None:
    assert all(page._load(kind) for kind in page.KINDS)
    assert page.PAGE.read_text() == page.stored_page(), "python -m bench.gpu.page"


@pytest.mark.parametrize(("case", "dtype", "wanted"), [("x nn tf32x3", "f32", None), ("x", "f16", 264e12)])
def test_peaks_follow_the_type_that_is_multiplied(case: str, dtype: str, wanted: float | None) -> None:
    measured = {each["name"]: each for run in CONSTANTS for each in run["constants"]}
    assert page._peak(case, dtype, measured) == wanted
