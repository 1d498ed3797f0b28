"""Runs the RUN line of every .mlir file of the passes: `tilewright opt`, then filecheck, in this process."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from filecheck.matcher import Matcher
from filecheck.options import Options

from tilewright.kernel.opt import opt

FILES = sorted(Path(__file__).parents[1].glob("*/tests/*.mlir"))


def passes_of(run: str) -> list[str]:
    """The passes that ``tilewright opt -p A -p B %s | filecheck %s`` names."""
    command, pipe, check = run.partition("|")
    words = shlex.split(command)
    assert words[:2] == ["tilewright", "opt"], run
    assert words[-1] == "%s", run
    assert (pipe, check.split()) == ("|", ["filecheck", "%s"]), run
    options = words[2:-1]
    assert options[::2] == ["-p"] * (len(options) // 2), run
    return options[1::2]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = path.read_text()
    runs = [line.split("RUN:")[1] for line in text.splitlines() if "RUN:" in line]
    assert runs, f"{path} has no RUN line"
    for number, run in enumerate(runs):
        result = tmp_path / f"{number}.mlir"
        result.write_text(opt(text, passes_of(run), name=path.name))
        status = Matcher.from_opts(Options(str(path), str(result))).run()
        assert status == 0, capsys.readouterr().err + result.read_text()


def test_every_pass_has_a_file() -> None:
    from tilewright.kernel.passes.table import PASSES

    named = {name.partition("{")[0] for path in FILES for line in path.read_text().splitlines() if "RUN:" in line
             for name in passes_of(line.split("RUN:")[1])}  # fmt: skip
    assert named == set(PASSES)
