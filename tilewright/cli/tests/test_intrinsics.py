"""`tilewright intrinsics`: the list, one record, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.intrinsics.files import load_records
from tilewright.intrinsics.registry import standard


def output(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["intrinsics", *words])
    assert result.exit_code == status, result.output
    return result.stdout if status == 0 else result.stderr


def test_the_list_has_a_line_per_family_and_every_record_in_json() -> None:
    assert len(output().splitlines()) < 60
    assert "wgmma_*" in output()
    listed = json.loads(output("--json"))
    assert [facts["name"] for facts in listed] == [record.name for record in standard()]
    assert {"name", "target", "compute", "extents", "operands", "cost", "loops", "macs"} <= set(listed[0])


def test_patterns_and_targets_choose_records() -> None:
    names = [line.split()[0] for line in output("sdot*").splitlines()[1:]]
    assert names == ["sdot_4x4_s8_s32", "sdot_full_4x4_s8_s32"]
    assert len(output("--target", "mali").splitlines()) == 4
    assert len(output("outer_*_fma_16_f32_f32").splitlines()) == 8
    assert "one of" in output("--target", "abacus", status=2)


def test_outer_products_of_an_instruction_are_one_family_and_one_line() -> None:
    assert ["outer_*_fmla_*", "arm", "14"] in [line.split()[:3] for line in output().splitlines()]
    (line,) = (line for line in output("--target", "arm").splitlines() if line.startswith("outer_*_sdot"))
    shapes = "6x4, 4x6, 8x3, 3x7, 14x2, 2x8, 28x1 registers"
    assert line.split() == f"outer_*_sdot_4x4_s8_s32 arm {shapes} i8 x i8 -> i32".split()


def test_one_record_is_described_by_any_of_its_names() -> None:
    text = output("MMA_SYNC_F32_16x8x16_F16")
    assert text == output("mma_m16n8k16_f16_f32")
    for line in (
        "  computes  Dst[i1, i2] += Src1[i1, r1] * Src2[r1, i2]",
        "            Src2  f16  [r1, i2]  reg  4 per lane",
        "  limits    10 registers per call",
        "  cost      8 cycles per call on one of 4 units of a core, result after 33",
    ):
        assert line in text.splitlines()


def test_layouts_are_drawn() -> None:
    drawn = output("mma_m16n8k16_f16_f32", "--layout").split("\n\n")
    table = [line.split() for line in drawn[2].splitlines()[2:]]  # Src2
    assert len(table) == 16
    assert table[2][1:] == ["1:0", "5:0", "9:0", "13:0", "17:0", "21:0", "25:0", "29:0"]
    assert "4/20:3" in output("wmmar3_16x16x16_f16_f32", "--layout")
    assert "unspecified" in output("wmma_16x16x16_f16_f32", "--layout")
    assert "more columns" in output("wgmma_m64n256k16_f16_f32", "--layout")
    assert "not drawn" in output("mad_910", "--layout")
    elements = json.loads(output("mma_m16n8k16_f16_f32", "--layout", "--json"))["elements"]
    assert elements["Dst"][5] == [[1, 2], [1, 3], [9, 2], [9, 3]]


def test_every_record_can_be_described() -> None:
    from tilewright.intrinsics.drawing import describe, draw

    for record in list(standard())[::5]:
        assert record.source in describe(record)
        for operand in record.operands if record.macs < 10_000 else ():
            assert draw(record, operand).startswith(operand.role)


def test_records_of_a_file(tmp_path: Path) -> None:
    facts = json.loads(output("fma_ps", "--json"))
    facts = {key: value for key, value in facts.items() if key not in ("loops", "macs", "aliases")}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"intrinsics": [facts | {"name": "mine_16_f32_f32"}]}))
    assert "mine_16_f32_f32" in output("mine_16_f32_f32", "--records", str(path))
    assert load_records(path)[0].macs == 16
    path.write_text(json.dumps({"intrinsics": [facts | {"name": "mine", "extents": {"i2": -1}}]}))
    assert "loop i2 has extent -1" in output("mine", "--records", str(path), status=2)


@pytest.mark.parametrize(("name", "message"), [("vpdpbusx", "nearest: vpdpbusd, vpdpbusds"), ("%$!", "lists them")])
def test_an_unknown_name_is_answered(name: str, message: str) -> None:
    assert message in output(name, status=2)
