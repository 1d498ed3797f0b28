"""`tilewright map` as a user types it: counts, order, explanations, and what is wrong with bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app

C2D = ("--expr", "Y[n,k,p,q] += X[n,c,p+r,q+s]*W[k,c,r,s]")
SIZES = ("--size", "n=16,k=64,p=56,q=56", "--size", "c=64,r=3,s=3")
WMMA = ("--intrinsic", "wmma_16x16x16_f16_f32")

UNIT = """\
intrinsics:
- name: unit_8x3_f32_f32
  target: acme
  compute: "Dst[i] += Src1[r] * Src2[i, r]"
  extents: {i: 8, r: 3}
  operands:
  - {role: Src1, dtype: f32, loops: [r]}
  - {role: Src2, dtype: f32, loops: [i, r], layout: "3 * i + r"}
  - {role: Dst, dtype: f32, loops: [i]}
  memory:
  - {name: load, operand: Src2, destination: reg, source: global, address: addr + 3 * i + r}
  - {name: store, operand: Dst, destination: global, source: reg, address: addr_c + i}
  numerics: {rule: fma, order: fixed}
  cost: {issue_cycles: 2}
  source: made for a test
"""


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["map", *arguments], prog_name="tilewright")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def value(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_json_of_a_convolution() -> None:
    found = value(*C2D, *SIZES, *WMMA)
    assert found["count"] == len(found["mappings"]) == 35
    by_loops = {tuple(map(tuple, each["loops"].values())): each for each in found["mappings"]}
    chosen = by_loops[("n", "q"), ("k",), ("c", "r")]
    assert chosen["loops"] == {"i1": ["n", "q"], "i2": ["k"], "r1": ["c", "r"]}
    assert (chosen["calls"], chosen["utilisation"]) == (451584, 1.0)
    times = [each["predicted_seconds"] for each in found["mappings"]]
    assert times == sorted(times)
    assert times[0] > 0


@pytest.mark.parametrize(("mode", "count"), [("points", 35), ("signature", 49), ("amos-compat", 35)])
def test_modes(mode: str, count: int) -> None:
    assert value(*C2D, *SIZES, *WMMA, "--mode", mode)["count"] == count


def test_commuted_operands() -> None:
    found = value(*C2D, *SIZES, *WMMA, "--commute")
    assert found["count"] == 70
    assert sum("operands_swapped" in each for each in found["mappings"]) == 35


@pytest.mark.parametrize(
    ("op", "count"), [("C2D", 35), ("T2D", 7), ("DEP", 11), ("CAP", 105), ("GMV", 1), ("MEN", 1), ("SCN", 1)]
)
def test_operators_of_the_table(op: str, count: int) -> None:
    assert value("--op", op, *WMMA)["count"] == count


def test_loops_of_an_operator_have_the_names_of_the_table() -> None:
    found = value("--op", "C2D", *WMMA, "--mapping", "(nq|k|c)")
    assert found["asked"] == {"mapping": "(nq|k|c)", "valid": True, "notes": []}
    assert {"i1": ["n", "p", "q"], "i2": ["k"], "r1": ["c", "r", "s"]} in [each["loops"] for each in found["mappings"]]


def test_sizes_of_an_operator() -> None:
    found = value("--op", "GMM", "--size", "m=32,n=32,k=32", *WMMA)
    assert found["mappings"][0]["calls"] == 8


def test_compat_lists_the_mapping_that_is_no_function() -> None:
    found = value("--op", "C3D", "--intrinsic", "conv_16x4x4x16_f32_f32", "--mode", "amos-compat")
    assert found["count"] == 31
    refused = [each["refused"] for each in found["mappings"] if "refused" in each]
    assert [each["check"] for each in refused] == ["V1"]


def test_a_missing_loop_is_explained_and_completed() -> None:
    vector = ("--expr", "y[i] += a[i,x]*b[x]", "--size", "i=32,x=32", *WMMA)
    found = value(*vector)
    assert (found["count"], found["mappings"]) == (0, [])
    assert "--complete" in found["why"]
    (only,) = value(*vector, "--complete")["mappings"]
    assert only["degenerate"]


@pytest.mark.parametrize(("spelled", "usual"), [("s8", "i8"), ("S8", "i8"), ("F16", "f16"), ("B=s8,A=i8", "i8")])
def test_spellings_of_element_types(spelled: str, usual: str) -> None:
    product = ("--op", "GMM", "--size", "m=32,n=32,k=32", "--all")
    assert value(*product, "--dtype", spelled) == value(*product, "--dtype", usual)


def test_operators_are_found_whatever_the_case() -> None:
    sizes = ("--size", "m=32,n=32,k=32")
    assert value("--op", "gmm", *sizes, *WMMA) == value("--op", "GMM", *sizes, *WMMA)


def test_nothing_is_said_in_words() -> None:
    vector = ("--expr", "y[i] += a[i,x]*b[x]", "--size", "i=32,x=32")
    assert "\nno mappings, mode points: an intrinsic loop has no loop of its own; " in run(*vector, *WMMA)
    assert "\n1 mapping, mode points\n" in run(*vector, *WMMA, "--complete")
    assert run(*vector, "--dtype", "u16", "--all").startswith("none of ")


def test_explanations() -> None:
    text = run(*C2D, *SIZES, *WMMA, "--explain", "--mapping", "(p|k|r)", "--limit", "3")
    assert "35 mappings, mode points" in text
    assert "… and 32 more" in text
    assert "Y onto wmma_16x16x16_f16_f32: (" in text
    assert ", because " in text
    assert "  second: " in text
    assert "(p|k|r): refused, mapping-separability: V7: p on i1 has no match point" in text
    found = value(*C2D, *SIZES, *WMMA, "--explain", "--mapping", "(k|n|c)")
    assert (found["asked"]["valid"], found["asked"]["check"]) == (False, "V3")
    assert found["decision"]["chosen"] == found["mappings"][0]["mapping"]
    assert value(*C2D, *SIZES, *WMMA, "--mapping", "(nq|k|c)")["asked"]["valid"]


def test_verified_mappings() -> None:
    found = value(*C2D, *SIZES, *WMMA, "--verify")
    assert all("refused" not in each for each in found["mappings"])


def test_strict_leaves_out_small_extents() -> None:
    sizes = ("--size", "n=1,k=64,p=7,q=7,c=64,r=3,s=3")
    assert value(*C2D, *sizes, *WMMA, "--strict")["count"] == 8
    narrow = value(*C2D, "--size", "n=1,k=8,p=7,q=7,c=64,r=3,s=3", *WMMA, "--strict")
    assert narrow["count"] == 0
    assert narrow["why"] == "i2 runs over 16 values, k over 8; without --strict, which pads, there are 35"


def test_sums_that_another_arithmetic_gives_are_noted() -> None:
    (note,) = value("--op", "C2D", "--intrinsic", "gemv_16x4_sat16", "--mapping", "(k|c)")["asked"]["notes"]
    assert note.startswith("V6: with Src1 = 255 and Src2 = ")


def test_every_record() -> None:
    found = value(*C2D, *SIZES, "--all")
    counts = {row["intrinsic"]: row["count"] for row in found["records"]}
    assert counts["mma_m16n8k16_f16_f32"] == 35
    batch1 = value(*C2D, "--size", "n=1,k=64,p=56,q=56,c=64,r=3,s=3", *WMMA)
    assert (batch1["count"], batch1["distinct_programs"]) == (35, 17)
    assert counts["arm_dot_4_s8_s32"] == 7
    assert "sdot_full_4x4_s8_s32" not in counts
    assert "records apply" in run("--op", "DEP", "--all")


def test_a_limit_is_one_for_every_record_too() -> None:
    """Without one every record has its line; with one the rest is counted. JSON is whole."""
    whole = run("--op", "GMM", "--all").splitlines()
    short = run("--op", "GMM", "--all", "--limit", "3").splitlines()
    head = next(number for number, line in enumerate(whole) if line.startswith("intrinsic"))
    rows = whole[head + 1 :]
    assert len(rows) > 20
    assert [line.split() for line in short[head + 1 : -1]] == [line.split() for line in rows[:3]]
    assert short[-1] == f"… and {len(rows) - 3} more (--limit)"
    assert len(value("--op", "GMM", "--all", "--limit", "3")["records"]) == len(rows)
    assert run("--op", "GMM", "--all", "--limit", str(len(rows))).splitlines() == whole


def test_records_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "unit.yaml").write_text(UNIT)
    own = ("--records", str(tmp_path / "unit.yaml"), "--intrinsic", "unit_8x3_f32_f32")
    found = value("--op", "C2D", *own, "--verify")
    assert found["count"] == 7
    assert not any("refused" in each for each in found["mappings"])
    assert run("--op", "C2D", "--records", "nothing.yaml", *WMMA, status=2)


def test_given_types_must_be_those_of_the_record() -> None:
    wmma = value(*C2D, *SIZES, *WMMA, "--dtype", "f16")
    assert wmma["count"] == 35
    other = value(*C2D, *SIZES, *WMMA, "--dtype", "X=f32,W=f32")
    assert other["count"] == 0
    assert "Src1 of wmma_16x16x16_f16_f32 is f16, X is f32" in other["why"]
    mixed = value(*C2D, *SIZES, "--intrinsic", "vpdpbusd_16x4_u8s8_s32", "--dtype", "X=u8,W=i8,Y=i32")
    assert mixed["count"] == 7


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((*C2D, *SIZES), "invalid-argument", "no record"),
        ((*C2D, *SIZES, "--intrinsic", "nonsuch"), "invalid-intrinsic", "no intrinsic 'nonsuch'"),
        ((*WMMA,), "invalid-argument", "give one expression"),
        ((*C2D, *SIZES, "--op", "C2D", *WMMA), "invalid-argument", "give one expression"),
        (("--op", "XYZ", *WMMA), "invalid-argument", "unknown operator 'XYZ'"),
        (("--op", "C2D", "--size", "z=3", *WMMA), "invalid-argument", "no size 'z'"),
        (("--expr", "Y[i +", *WMMA), "invalid-expression", "--expr:1"),
        (("--expr", "", *WMMA), "invalid-expression", "statement"),
        (("--expr", "Y[i] = A[i]", "--size", "i=3", *WMMA, "--json"), "", '"count": 0'),
        ((*C2D, "--size", "n=16", *WMMA), "invalid-expression", "give a size for"),
        ((*C2D, "--size", "n=0,k=64", *WMMA), "invalid-argument", "n = 0"),
        ((*C2D, "--size", "n=99999999999", *WMMA), "invalid-argument", "n = 99999999999"),
        ((*C2D, "--size", "n=2147483648,k=2147483648,p=9,q=9,c=9,r=1,s=1", *WMMA), "invalid-argument", "2**62"),
        ((*C2D, "--size", "n=-1", *WMMA), "invalid-argument", "'n=-1' is not a size"),
        ((*C2D, "--size", "n", *WMMA), "invalid-argument", "'n' is not a size"),
        ((*C2D, *SIZES, "--size", "n=3", *WMMA), "invalid-argument", "two sizes for 'n'"),
        ((*C2D, *SIZES, "--size", "zz=3", *WMMA), "invalid-argument", "'zz' is not a loop"),
        ((*C2D, *SIZES, *WMMA, "--mode", "all"), "invalid-argument", "unknown mode 'all'"),
        ((*C2D, *SIZES, *WMMA, "--mapping", "(nz|k|c)"), "invalid-argument", "'z' is not a loop"),
        ((*C2D, *SIZES, *WMMA, "--mapping", "nonsense"), "invalid-argument", "is not a mapping"),
        ((*C2D, *SIZES, *WMMA, "--mapping", "(n|k)"), "invalid-argument", "2 parts for the 3 loops"),
        ((*C2D, *SIZES, *WMMA, "--dtype", "f12"), "invalid-argument", "unknown dtype 'f12'"),
        ((*C2D, *SIZES, *WMMA, "--dtype", "Q=f16"), "invalid-argument", "'Q' is not a tensor"),
        ((*C2D, *SIZES, *WMMA, "--dtype", "X=f16"), "invalid-argument", "no type for W"),
        ((*C2D, *SIZES, *WMMA, "--machine", "nonsuch"), "invalid-machine", "nonsuch"),
        ((*C2D, *SIZES, *WMMA, "--all"), "invalid-argument", "one record"),
        ((*C2D, *SIZES, "--all", "--verify"), "invalid-argument", "one record"),
        ((*C2D, *SIZES, "--all", "--machine", "host"), "invalid-argument", "one record"),
        (("--expr", "Y[i] += A[x]\nZ[i] += A[x]", "--size", "i=2,x=2", *WMMA), "invalid-expression", "one statement"),
    ],
)  # fmt: skip
def test_bad_input(arguments: tuple[str, ...], code: str, words: str) -> None:
    output = run(*arguments, status=2 if code else 0)
    assert f"error[{code}]" in output or not code
    assert words in output


def test_times_of_the_host_are_by_measured_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As described until the host was calibrated, then as measured; the same mappings, other times."""
    from tilewright.machine import host
    from tilewright.runtime import calibrate, calibration_file

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    arguments = ("--expr", "C[i,j] += A[i,k]*B[k,j]", "--size", "i=64,j=64,k=64", "--machine", "host",
                 "--intrinsic", next(iter(calibrate.measurable(host()))).name)  # fmt: skip
    before = value(*arguments)
    slow = replace(host(), name=calibrate.NAME, clock_hz=1e8)
    calibration_file.calibration_file().parent.mkdir(parents=True)
    calibration_file.calibration_file().write_text(calibration_file.to_yaml(slow))
    after = value(*arguments)
    assert (before["machine"], after["machine"]) == (host().name, calibrate.NAME)
    assert before["count"] == after["count"]
    assert after["mappings"][0]["predicted_seconds"] > 2 * before["mappings"][0]["predicted_seconds"]
