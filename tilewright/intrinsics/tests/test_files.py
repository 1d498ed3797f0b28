"""Records in files: what is read, what is refused, and that no input does anything worse."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.errors import InvalidIntrinsic
from tilewright.intrinsics.files import load_records, to_json
from tilewright.intrinsics.registry import Registry, standard

DOT3 = """\
intrinsics:
- name: dot3_8x3_f32_f32
  target: mine
  compute: "Dst[i] += Src1[r] * Src2[i, r]"
  extents: {i: 8, r: 3}
  operands:
  - {role: Src1, dtype: f32, loops: [r]}
  - {role: Src2, dtype: f32, loops: [i, r], layout: "3 * i + r"}
  - {role: Dst, dtype: f32, loops: [i]}
  cost: {issue_cycles: 2}
  source: invented here
  numerics: {rule: fma, order: fixed}
  memory:
  - {name: lda, operand: Src1, destination: reg, source: shared, address: addr_a + r}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_a_file_adds_a_record(tmp_path: Path) -> None:
    records = load_records(written(tmp_path, DOT3))
    registry = standard().add(*records)
    assert registry.find("dot3_8x3_f32_f32").macs == 24
    assert registry.records[0] is records[0]
    assert "dot3_8x3_f32_f32" not in standard()


def test_every_record_survives_a_file(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"intrinsics": [to_json(record) for record in list(standard())[::7]]}))
    assert load_records(path) == tuple(standard())[::7]


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("i: 8", "i: -8", "loop i has extent -8", 2),
        ("i: 8", "i: eight", "intrinsics.0.extents.i is 'eight', not an integer", 5),
        ("dtype: f32, loops: [r]", "dtype: f99, loops: [r]", "unknown element type 'f99'", 2),
        ("loops: [r]", "loops: [q]", "unknown loop 'q'", 2),
        ("  target: mine\n", "", "intrinsics.0.target is missing", 2),
        ("target", "traget", "intrinsics.0.traget is not a field", 3),
        ('"3 * i + r"', '"2 * i + r"', "puts [i=0, r=2] and [i=1, r=0] at 2", 2),
        ('"3 * i + r"', "{lanes: 1, elements: 24, indices: [e // 3]}", "1 indices for 2 loops", 2),
        ("addr_a + r", "addr_a + q", "unknown name 'q'", 2),
        ("{rule: fma, order: fixed}", "[fma]", "numerics is ['fma'], not a mapping", 12),
        ("loops: [i]}", "loops: *x}", "is not YAML", 9),
        ("source: invented here", "source: !!python/name:os.system", "the tag", 0),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, old: str, new: str, message: str, line: int) -> None:
    assert old in DOT3
    with pytest.raises(InvalidIntrinsic) as caught:
        load_records(written(tmp_path, DOT3.replace(old, new, 1)))
    assert message in caught.value.message
    assert not line or caught.value.where.endswith(f"mine.yaml:{line}")


def test_a_missing_file_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidIntrinsic, match="there is no such file"):
        load_records(tmp_path / "no.yaml")


_LINES = DOT3.splitlines()
_NUMBERS = ["-1", "1e400", "9" * 26, "true", "null", "~", "nan", "1 // 0"]
_MARKS = ["[", "{}", '""', "[[]]", "r: r", "{i: 8}", "- - -", "(" * 90]
_TEXTS = ["i", "lane", "e ** 9", "Dst[i] += 1", "opaque", "\u2603", "i" * 500]
_WORDS = st.sampled_from([*_NUMBERS, *_MARKS, *_TEXTS])


@settings(max_examples=tries(60, full=300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, len(_LINES) - 1), st.integers(0, 9), _WORDS), min_size=1, max_size=3))
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, edits: list[tuple[int, int, str]]) -> None:
    lines = list(_LINES)
    for number, place, word in edits:
        parts = lines[number].split(" ")
        parts[place % len(parts)] = word
        lines[number] = " ".join(parts)
    with contextlib.suppress(InvalidIntrinsic):  # anything else is a failure
        Registry(load_records(written(tmp_path, "\n".join(lines))))
