"""Shell commands of README.md, docs/ and bench/: each parses, and those of `tilewright` run, but for those in `PARSED`.

They stand in ```sh blocks, or in indented lines. `make` names a target that there is, `pip install` an extra, a script
a file. Modules of benchmarks parse their arguments and stop.
"""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command_line import CliRunner, parse
from tests.test_documents import PAGES, ROOT
from tilewright.cli.main import app
from tilewright.cli.tests.example_files import example_files
from tilewright.runtime import calibrate

ALL_PAGES = [*PAGES, *sorted((ROOT / "bench").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4,}((?:tilewright|python|make|pip) .*)$", re.MULTILINE)
NOT_SHELL = {"python", "console", "text", "diff", "yaml", "json", "mlir", "cpp", "c", ""}

#: Commands of `tilewright` that are parsed only, and why; the others run.
PARSED = {
    r"emulate ~": "the path of a kernel that Triton wrote, with an ellipsis in it",
    r"reproduce amos-model --json": "takes 5 min",
}


class Accepted(Exception):
    """An argument parser accepts its arguments."""


def shell_lines(text: str) -> Iterator[str]:
    """The lines of shell blocks and the indented commands of a page, with lines that end in a backslash joined."""
    blocks = [found[2] for found in FENCE.finditer(text) if found[1] == "sh"]
    for block in [*blocks, *INDENTED.findall(FENCE.sub("", text))]:
        yield from block.replace("\\\n", " ").splitlines()


def commands(line: str) -> list[list[str]]:
    """The commands of a line as words, without comments, assignments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if word in (">", ">>", "<"):
            next(words)
        elif word and set(word) <= set("|;&"):
            found.append([])
        elif found[-1] or not re.match(r"\w+=", word):
            found[-1].append(word)
    return [each for each in found if each]


def check(words: Sequence[str]) -> None:
    """Assert that a command names what there is, and that its arguments parse."""
    program, *rest = words
    if program == "tilewright":
        parse(app, rest)
    elif program == "make":
        assert set(rest) <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)), words
    elif program == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        extras = re.findall(r"\w+", "".join(re.findall(r"\[(.*?)\]", " ".join(rest))))
        assert set(extras) <= set(known), words
    elif program == "python" and rest[0] == "-m":
        check_module(rest[1], rest[2:])
    else:
        assert (ROOT / program).is_file(), f"{program}: there is no such file"


def check_module(name: str, arguments: Sequence[str]) -> None:
    """Assert that the argument parser of a module accepts the arguments; nothing else of the module runs."""
    parse_args = argparse.ArgumentParser.parse_args

    def only_parse(parser: argparse.ArgumentParser, *_: Any) -> None:
        parse_args(parser, list(arguments))
        raise Accepted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
        patch.setattr(sys, "argv", [name, *arguments])
        try:
            runpy.run_module(name, run_name="__main__")
        except Accepted:
            return
        except SystemExit as left:
            raise AssertionError(f"python -m {name} {' '.join(arguments)}: status {left.code}") from left
    raise AssertionError(f"{name} parses no arguments")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_COMMANDS = [page for page in ALL_PAGES if any(map(commands, shell_lines(page.read_text())))]


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # a module that its package imports
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_name)
def test_commands_parse(page: Path) -> None:
    for line in shell_lines(page.read_text()):
        for words in commands(line):
            check(words)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=page_name)
def test_commands_of_tilewright_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "measure", lambda machine: machine)  # which takes a second
    lines = list(shell_lines(page.read_text()))
    if any("--plot" in line for line in lines):
        pytest.importorskip("matplotlib")
    example_files()
    np.savez("in.npz", x=np.ones((1, 3, 224, 224), np.float32))  # what model.onnx reads
    for line in lines:
        for program, *words in commands(line):
            if program == "tilewright" and not any(re.search(pattern, line) for pattern in PARSED):
                result = CliRunner().invoke(app, words, prog_name="tilewright")
                assert result.exit_code == 0, f"{line}: {result.output}"


def test_what_there_is_to_check_is_found() -> None:
    names = set(map(page_name, WITH_COMMANDS))
    assert {"README.md", "docs/how-to/reproduce.md", "docs/how-to/triton.md", "bench/README.md"} <= names
    lines = [line for page in WITH_COMMANDS for line in shell_lines(page.read_text())]
    assert all(any(re.search(pattern, line) for line in lines) for pattern in PARSED)


def test_every_language_of_a_block_is_known() -> None:
    languages = {found[1] for page in ALL_PAGES for found in FENCE.finditer(page.read_text())}
    assert languages - NOT_SHELL == {"sh"}


@pytest.mark.parametrize(
    "line",
    [
        "tilewright nosuch", "tilewright run", "make nonsuch", "pip install '.[nonsuch]'", "bench/nonsuch.sh a",
        "python -m bench --nonsuch", "python -m bench --turns many", "cat a | tilewright opt --bad -",
    ],
)  # fmt: skip
def test_a_command_that_is_wrong_is_found(line: str) -> None:
    words = commands(line)[-1]
    with pytest.raises(AssertionError):
        check(words)


def test_a_line_has_the_commands_between_its_operators() -> None:
    assert commands("a=1") == []
    assert commands("tilewright doctor --json > 'a b' # all | well") == [["tilewright", "doctor", "--json"]]
    assert commands("x=1 make a && make b; tilewright map --expr 'a | b' | head -1") == [
        ["make", "a"], ["make", "b"], ["tilewright", "map", "--expr", "a | b"], ["head", "-1"]
    ]  # fmt: skip
