"""Variants of a product: code that differs from the rule's, named by a pass or a tile, and their rows on the page."""

from __future__ import annotations

import json
from pathlib import Path

from bench.gpu import page
from bench.gpu.ablation import PASSES, Variants
from bench.gpu.cases import gemm
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact


def test_variants_differ_in_code_and_say_how(tmp_path: Path) -> None:
    case = gemm(128, 128, 128, "f16")
    Variants(case, "sm_80", Options(), tiles=2, stages=2, passes=True).save(tmp_path)
    about = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    code = [Artifact.read(path).code for path in sorted(tmp_path.glob("*.twm"))]
    assert len(set(code)) == len(code) == len(about)
    names = [each["what"] for each in about]
    assert names[0] == "rule"
    assert "without pipeline-loads" in names
    assert "without tensor-copies" not in names  # sm_80 has no copy engine: the code is the rule's
    assert {name.removeprefix("without ") for name in names if name.startswith("without")} <= set(PASSES)
    tiles = [name for name in names if " on " in name]
    assert 1 <= len(tiles) <= 4
    assert all(each["case"] == case.name and each["dtype"] == "f16" and each["mma"] == "auto" for each in about)


def test_the_page_has_variants_with_their_ratios_and_failures() -> None:
    row = {"case": "big", "dtype": "f16", "mma": "auto"}
    rows = [{**row, "what": "rule", "tflops": 300.4, "ratio": 0.5}, {**row, "what": "without licm", "failed": "wrong"}]
    text = page.page([], [], ablations=[{"commit": "abc", "rows": rows}])
    assert "| abc | big | f16 | auto | rule | 300 | 0.50 |" in text
    assert "| abc | big | f16 | auto | without licm | wrong |  |" in text
