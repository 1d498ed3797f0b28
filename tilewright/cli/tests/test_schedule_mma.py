"""`schedule-mma` and `validate mma-schedule` as users type them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app

DATA = Path(__file__).parents[2] / "instruction/mma/tests/data/iree_3_6_matmul_configs.csv"
KEYS = ["pipeline", "intrinsic", "subgroup_size", "m_subgroups", "n_subgroups", "m_tiles", "n_tiles", "k_tiles",
        "workgroup_tile", "reduction_tile", "workgroup_size", "shared_bytes"]  # fmt: skip


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), prog_name="tilewright")
    assert result.exit_code == status, result.output
    return result.output


def scheduled(*arguments: str) -> Any:
    return json.loads(run("schedule-mma", *arguments, "--json"))


def test_the_json_of_a_schedule() -> None:
    found = scheduled("--m", "128", "--n", "256", "--k", "512", "--a", "f16", "--b", "f16", "--c", "f32",
                      "--machine", "gfx1201", "--policy", "iree-3.6")  # fmt: skip
    assert list(found) == KEYS
    assert found == {
        "pipeline": "vector-distribute", "intrinsic": "WMMAR4_F32_16x16x16_F16", "subgroup_size": 32,
        "m_subgroups": [2], "n_subgroups": [2], "m_tiles": [2], "n_tiles": [2], "k_tiles": [8],
        "workgroup_tile": [64, 64, 0], "reduction_tile": [0, 0, 128], "workgroup_size": [128, 1, 1],
        "shared_bytes": 32768,
    }  # fmt: skip


def test_lists_have_an_entry_per_loop() -> None:
    tiled = scheduled("--m", "4,16", "--n", "2,32", "--k", "3,128", "--batch", "5", "--machine", "sm_80")
    assert (tiled["m_subgroups"], tiled["n_subgroups"]) == ([1, 1], [1, 4])
    assert (tiled["m_tiles"], tiled["n_tiles"], tiled["k_tiles"]) == ([2, 1], [2, 1], [1, 4])
    assert tiled["workgroup_tile"] == [1, 2, 16, 2, 32, 0, 0]
    assert tiled["reduction_tile"] == [0, 0, 0, 0, 0, 1, 64]
    distributed = scheduled("--m", "4,128", "--n", "256", "--k", "3,512", "--machine", "gfx1201")
    assert (distributed["m_tiles"], distributed["k_tiles"]) == ([1, 2], [1, 8])
    assert distributed["workgroup_tile"] == [1, 64, 64, 0, 0]
    unknown = scheduled("--m", "?,128", "--n", "256", "--k", "512", "--machine", "sm_80")
    assert (len(unknown["m_tiles"]), unknown["m_tiles"][0], unknown["workgroup_tile"][0]) == (2, 1, 1)


def test_reduction_tiles_are_elements_on_every_path() -> None:
    padded = scheduled("--m", "100", "--n", "256", "--k", "512", "--machine", "gfx1201")
    assert (padded["k_tiles"], padded["reduction_tile"]) == ([4], [0, 0, 64])


def test_a_fallback_says_why() -> None:
    found = scheduled("--m", "4", "--n", "4096", "--k", "4096", "--machine", "gfx1201", "--policy", "iree-3.6")
    assert (found["fallback"], found["pipeline"], found["intrinsic"]) == ("WR", "warp-reduction", None)
    assert found["why"][-1] == {"tried": "SIMT", "reason": "skinny"}
    assert found["workgroup_size"] == [128, 1, 1]
    text = run("schedule-mma", "--m", "4", "--n", "4096", "--k", "4096", "--machine", "gfx1201")
    assert "fall-back  WR" in text
    assert "SIMT: skinny" in text


def test_fixed_tiles_and_what_is_forbidden() -> None:
    sizes = ("--m", "4096", "--n", "4096", "--k", "4096", "--machine", "sm_80")
    found = scheduled(*sizes, "--tensor-core-table", "auto")
    assert list(found) == [*KEYS, "stages"]
    assert (found["pipeline"], found["stages"], found["shared_bytes"]) == ("tensor-core-mma-sync", 3, 73728)
    assert (found["workgroup_tile"], found["reduction_tile"]) == ([128, 256, 0], [0, 0, 32])
    assert (found["m_subgroups"], found["n_subgroups"], found["m_tiles"], found["n_tiles"]) == ([2], [4], [4], [8])
    wmma = run("schedule-mma", *sizes, "--tensor-core-table", "wmma", "--forbid", "NV_WMMA_F16_16x16x16_F16")
    assert "NV_WMMA_F32_16x16x16_F16, path TC, pipeline tensor-core" in wmma
    assert "81408 bytes in 3 stages" in wmma
    assert wmma == run("schedule-mma", *sizes, "--tensor-core-table", "wmma", "--forbid", "wmma_16x16x16_f16_f16")
    rest = scheduled(*sizes, "--tensor-core-table", "auto", "--forbid", "TC", "--forbid", "TF", "--forbid", "TF+pad")
    assert (rest["fallback"], rest["why"][0]) == ("SIMT", {"tried": "TC", "reason": "strategy-disabled"})
    outer = scheduled("--m", "3,64", "--n", "64", "--k", "64", "--machine", "sm_80", "--tensor-core-table", "auto")
    assert (outer["m_subgroups"], outer["m_tiles"]) == ([1, 2], [1, 1])
    assert "is neither a path" in run("schedule-mma", *sizes, "--forbid", "FAST", status=2)
    assert "tensor-core-table" in run("schedule-mma", *sizes, "--tensor-core-table", "old", status=2)


def test_explain_prints_the_trace() -> None:
    sizes = ("--m", "128", "--n", "256", "--k", "512", "--machine", "gfx1201")
    assert run("schedule-mma", *sizes, "--explain").startswith("schedule.begin   op=matmul target=gfx1201")
    assert len(scheduled(*sizes, "--explain")["trace"]) == 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--m", "12x"], "is no list of sizes"),
        (["--m", ""], "is no list of sizes"),
        (["--m", "0"], "0 is not a positive size"),
        (["--batch", "0,2"], "0 is not a positive size"),
        (["--a", "f17"], "is no element type"),
        (["--c", "f17"], "is no element type"),
        (["--forbid", "XY"], "is neither a path nor an intrinsic"),
        (["--machine", "gfx9999"], "there is no machine"),
        (["--machine", "znver5"], "matrix schedules are for GPUs"),
        (["--policy", "fast"], "there is no policy"),
    ],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    given = {"--m": "64", "--n": "64", "--k": "64", "--machine": "sm_80"} | {arguments[0]: arguments[1]}
    command = [part for pair in given.items() for part in pair]
    assert message in run("schedule-mma", *command, status=2)
    error = json.loads(run("schedule-mma", *command, "--json", status=2).split("\n}\n")[0] + "\n}")["error"]
    assert error["message"]
    if arguments[0] != "--machine":
        assert error["where"] == arguments[0], "an error names the option, however deep its cause is"


def test_every_recorded_row_matches() -> None:
    found = json.loads(run("validate", "mma-schedule", "--data", str(DATA), "--policy", "iree-3.6", "--json"))
    assert found == {"rows": 391, "match": 391, "mismatches": []}


def test_differences_are_listed_and_make_the_status_1(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(DATA.read_text().replace('"[64, 64, 0]"', '"[64, 32, 0]"'))
    found = json.loads(run("validate", "mma-schedule", "--data", str(path), "--json", status=1))
    assert found["rows"] == 391
    assert found["match"] == 391 - len(found["mismatches"]) < 391
    text = run("validate", "mma-schedule", "--data", str(path), status=1)
    assert "workgroup [64, 64, 0] instead of [64, 32, 0]" in text
    assert "--json lists all" in text


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "there is no such file" in run("validate", "mma-schedule", "--data", "absent.csv", status=2)
    path = tmp_path / "rows.csv"
    path.write_text("target,M\n")
    assert "has no column N" in run("validate", "mma-schedule", "--data", str(path), status=2)
    run("validate", "something", "--data", str(path), status=2)
