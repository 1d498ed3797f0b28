"""Help: it fits a terminal, its examples are right, and usage errors are JSON too."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.command_line import CliRunner, parse
from tilewright.cli.main import COMMANDS, app
from tilewright.cli.tests.example_files import example_files
from tilewright.runtime import calibrate

#: Examples that are parsed only, and why; the others run.
PARSED = {
    r"--seconds": "measures or searches for so long",
    r"--search joint": "times schedules of a product that the model does not have",
    r"reproduce amos-mappings$": "takes 10 s",
    r"reproduce amos-cpu --layers": "takes minutes",
    r"reproduce chimera-orders": "takes 4 s",
    r"reproduce mlir-matmul": "takes 10 to 40 s, and with --device needs a GPU",
    r"emulate ~": "the path of a kernel that Triton wrote, with an ellipsis in it",
}

#: Examples whose answer is negative, and why.
NEGATIVE_ANSWERS = {r"--policy tilewright": "the rows were recorded from another policy",
                    r"reproduce amos-cpu --from": "the stored result is made up"}  # fmt: skip


def examples() -> list[str]:
    """Every command line in the epilogs, with lines that end in a backslash joined."""
    found = []
    for _, _, epilog in COMMANDS:
        text = epilog.replace("\\\n", " ")
        block = text[text.index("example: ") + len("example: ") :]
        found += re.findall(r"^ *(tilewright .*)$", block, re.MULTILINE)
    return found


@pytest.mark.parametrize("name", ["", *(name for name, _, _ in COMMANDS)])
def test_help_has_80_columns(name: str) -> None:
    text = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="tilewright", env={"COLUMNS": "80"}).stdout
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_every_command_has_examples() -> None:
    names = [name for name, _, _ in COMMANDS]
    shown = [part for line in examples() for part in re.split(r"^tilewright |\| *tilewright ", line) if part]
    assert [name for name in names if not any(re.match(rf"{name}\b", part) for part in shown)] == []


@pytest.mark.parametrize("line", examples())
def test_examples_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    if "--plot" in line:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "measure", lambda machine: machine)  # which takes a second
    example_files(of_kernel="emulate" in line)
    expected = int(any(re.search(pattern, line) for pattern in NEGATIVE_ANSWERS))
    piped = None
    for part in re.split(r" \| ", line.partition(" > ")[0]):
        _, *words = shlex.split(part)
        if any(re.search(pattern, part) for pattern in PARSED):
            parse(app, words)
            continue
        result = CliRunner().invoke(app, words, input=piped, prog_name="tilewright")
        assert result.exit_code == expected, result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        piped = result.stdout


@pytest.mark.parametrize("pattern", [*PARSED, *NEGATIVE_ANSWERS])
def test_every_exception_is_of_an_example(pattern: str) -> None:
    assert any(re.search(pattern, line) for line in examples())


@pytest.mark.parametrize("words", [["nosuch"], ["run"], ["run", "a", "--bad"], ["validate", "nosuch"], ["opt", "-p"]])
def test_what_does_not_parse_is_refused(words: list[str]) -> None:
    with pytest.raises(AssertionError):
        parse(app, words)


@pytest.mark.parametrize(
    "line",
    [
        "run --bad --json", "map --limit x --json", "opt --json -p", "nosuch --json", "validate nosuch --json",
        "validate --json", "--json", "--json nosuch", "validate --bad tileflow --json", "run --json",
    ],
)  # fmt: skip
def test_usage_errors_are_json_where_it_is_asked_for(line: str) -> None:
    result = CliRunner().invoke(app, line.split(), prog_name="tilewright")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "usage"
    assert "Error: " in result.stderr


@pytest.mark.parametrize("line", ["nosuch", "validate nosuch", "run --bad"])
def test_usage_errors_are_text_otherwise(line: str) -> None:
    result = CliRunner().invoke(app, line.split(), prog_name="tilewright")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    "command",
    ["compile model.onnx -o {}", "run model.onnx -o {}", "emulate a.ptx -o {}", "layout x --shape 1 --svg {}"],
)
@pytest.mark.parametrize(("place", "fact"), [("folder", "it is a directory"), ("none/a", "there is no folder")])
def test_the_output_is_looked_at_first(
    command: str, place: str, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    result = CliRunner().invoke(app, shlex.split(command.format(place)), prog_name="tilewright")
    assert result.exit_code == 2
    assert fact in result.stderr, "not that the model is missing"
