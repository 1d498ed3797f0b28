"""The table of recorded answers, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import InvalidFile
from tilewright.instruction.mma.reference import mismatches, read_recorded

DATA = Path(__file__).parent / "data" / "iree_3_6_matmul_configs.csv"


def test_spec5_every_recorded_row_is_reproduced() -> None:
    rows = read_recorded(DATA)
    assert len(rows) == 391
    assert list(mismatches(rows)) == []


def test_our_policy_differs_only_in_results_narrower_than_the_hardware_sums() -> None:
    """D4: where the recorded answer does without the wide accumulator, ours takes it."""
    differing = {row["line"] for row in mismatches(read_recorded(DATA), "tilewright")}
    problems = [row.problem for row in read_recorded(DATA) if row.line in differing]
    assert len(problems) == 13
    assert {problem.types for problem in problems} == {"f16,f16->f16"}


def changed(tmp_path: Path, old: str, new: str, count: int = 1) -> Path:
    text = "\n".join(DATA.read_text().splitlines()[:3]) + "\n"
    assert old in text
    path = tmp_path / "rows.csv"
    path.write_text(text.replace(old, new, count))
    return path


def test_a_difference_names_row_and_columns(tmp_path: Path) -> None:
    found = list(mismatches(read_recorded(changed(tmp_path, '"[64, 64, 0]"', '"[64, 32, 0]"'))))
    assert [(row["line"], row["target"]) for row in found] == [(2, "gfx1201")]
    assert found[0]["columns"] == {"workgroup": {"recorded": [64, 32, 0], "deduced": [64, 64, 0]}}


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("subgroup_m,", "", ":1", "has no column subgroup_m"),
        ("gfx1201,128", "gfx1201,12x", ":2", "M is '12x'"),
        ("gfx1201,128", "gfx1201,0", ":2", r"0 is not a positive size \(m\)"),
        ("gfx942", "gfx9000", ":3", "there is no machine 'gfx9000'"),
        ("gfx942", "znver5", ":3", "matrix schedules are for GPUs"),
        ("f16,f16,f32", "f16,f17,f32", ":2", r"'f17' is no element type \(b\)"),
        ('"[0, 0, 128]"', '"[0, 0, x]"', ":2", "reduction is '"),
        ('"[0, 0, 128]"', '"{}"', ":2", "reduction is '{}'"),
        (",2,2,", ",2,two,", ":2", "subgroup_n is 'two'"),
        (',,,"[0, 1]"', '', ":2", "another number of cells"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read(tmp_path: Path, old: str, new: str, where: str, message: str) -> None:
    with pytest.raises(InvalidFile, match=message) as caught:
        read_recorded(changed(tmp_path, old, new))
    assert caught.value.where.endswith(where)


def test_no_file_and_no_table(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no such file"):
        read_recorded(tmp_path / "absent.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile, match="not UTF-8"):
        read_recorded(tmp_path / "binary.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InvalidFile, match="has no column target"):
        read_recorded(tmp_path / "empty.csv")
    (tmp_path / "headings.csv").write_text(DATA.read_text().splitlines()[0] + "\n")
    with pytest.raises(InvalidFile, match="has no row"):
        read_recorded(tmp_path / "headings.csv")
    with pytest.raises(InvalidFile, match="cannot be read"):
        read_recorded(tmp_path)
