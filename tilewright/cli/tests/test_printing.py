"""Text has the columns of the terminal, and nothing of it is lost: tables, prose, and what commands print."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.command_line import CliRunner
from tilewright.cli import printing
from tilewright.cli.main import app
from tilewright.cli.tests.example_files import example_files
from tilewright.runtime import calibrate

#: One for each kind of table and prose. What takes minutes prints the same tables.
LINES = [
    "machines", "intrinsics", "intrinsics mma_*", "intrinsics --target cuda", "intrinsics mma_m16n8k16_f16_f32",
    "doctor", "cache", "reproduce", "opt --list", "calibrate", "fuse --workload gemm-chain-G2 --machine edge",
    "fuse chain.onnx --threads 1", "map --op DEP --all --limit 7",
    "map --op C2D --intrinsic mma_m16n8k16_f16_f32 --explain --mapping (np|k|c)",
    "map --op C2D --intrinsic mma_m16n8k16_f16_f32 --mode signature", "run chain.onnx --fuse always --count --check",
    "search chain.onnx --machine edge --evaluations 7", "bench chain.onnx --seconds 0.01", "profile chain.onnx",
    "search --workload attention --shape bert-large --machine edge --evaluations 7", "compile chain.onnx",
    "explain chain.onnx --all", "explain chain.onnx --kernel c", "model chain.tile --machine edge",
    "schedule-mma --m 128 --n 256 --k 512 --machine nvidia-h200-sxm --explain",
    "schedule-mma --m 4,16 --n 2,32 --k 3,128 --machine nvidia-h200-sxm", "reproduce chimera-orders --layers G2",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_output_has_80_columns(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "cache")  # whose path is short
    monkeypatch.setattr(calibrate, "measure", lambda machine: machine)  # which takes a second
    example_files()
    result = CliRunner().invoke(app, line.split(), prog_name="tilewright", env={"COLUMNS": "80"})
    assert result.exit_code in (0, 1), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.stdout
    # A word is not cut, as a path.
    wide = [text for text in result.stdout.splitlines() if len(text) > 80 and len(text.split()) > 1]
    assert wide == []


def test_a_table_that_fits_is_not_wrapped() -> None:
    lines = printing.table_lines({"name": "left", "µs": "right"}, [["a b", "1"], ["c", "17"]], 9)
    assert list(lines) == ["name   µs", "a b     1", "c      17"]


@pytest.mark.parametrize("limit", [20, 37, 80])
@pytest.mark.parametrize("seed", range(7))
def test_tables_of_any_width_keep_every_word(seed: int, limit: int) -> None:
    draw = random.Random(seed)
    columns = {f"head {number}": draw.choice(["left", "right"]) for number in range(draw.choice([1, 2, 7]))}

    def cell(side: str) -> str:
        words = ["x" * draw.randint(1, 13) for _ in range(1 if side == "right" else draw.randint(0, 17))]
        return " ".join(words)

    rows = [[cell(side) for side in columns.values()] for _ in range(draw.choice([0, 1, 7]))]
    lines = list(printing.table_lines(columns, rows, limit))
    assert max(map(len, lines)) <= limit
    expected = sorted(word for cells in [list(columns), *rows] for text in cells for word in text.split())
    assert sorted(word for line in lines for word in line.split()) == expected


def test_a_name_that_is_longer_than_the_terminal_goes_on_below() -> None:
    name = "n" * 47
    lines = list(printing.table_lines({"name": "left", "count": "right"}, [[name, "17"]], 20))
    assert max(map(len, lines)) <= 20
    assert "".join(line.strip() for line in lines).count("n") == name.count("n") + "namecount".count("n")


def test_the_columns_are_those_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "97")
    assert printing.terminal_columns() == 97
    assert printing.terminal_columns(most=90) == 90
    monkeypatch.setenv("COLUMNS", "1")
    assert printing.terminal_columns() == 20


def test_words_of_prose_stay_whole() -> None:
    path = "/a" * 50
    assert list(printing.wrapped(f"    {path} is there", 80)) == [f"    {path}", "      is there"]
    assert list(printing.wrapped("a\n\n  b", 20)) == ["a", "", "  b"]
    assert list(printing.wrapped("", 20)) == [""]
