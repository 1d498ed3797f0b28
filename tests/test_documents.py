"""The examples in README.md and docs/, run as their readers would; doctests in the package likewise.

Blocks of a page run in order, in one empty folder. ```python blocks share one namespace. In ```console blocks a line
`$ command` is run (`; exit N` gives another expected status than 0), and the lines after it are its output, in which
`…` stands for anything; no lines: the output is not looked at. `test_shell_blocks` has ```sh blocks.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import re
import shlex
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.machine import Cpu
from tilewright.runtime import calibrate

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NEEDS = dict.fromkeys(("onnx.md", "count.md", "accelerators.md", "walk.md"), "onnx")
NEEDS |= {"torch.md": "torch", "triton.md": "triton"}
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@dataclass(frozen=True)
class Command:
    """A command of a console block with what it should do."""

    text: str
    status: int
    output: str


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """Line, language and content of every block that can be run."""
    text = page.read_text()
    return [(text.count("\n", 0, found.start()) + 2, found[1], found[2]) for found in BLOCK.finditer(text)]


def commands(block: str) -> list[Command]:
    """The commands of a console block."""
    found = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        first, _, output = part.partition("\n")
        text, _, status = first.partition(" ; exit ")
        found.append(Command(text, int(status or 0), output.strip("\n")))
    return found


def matches(expected: str, actual: str) -> bool:
    """Whether an output is as shown."""
    pattern = ".*".join(re.escape(piece) for piece in expected.split("…"))
    return re.fullmatch(pattern, actual.strip("\n"), re.DOTALL) is not None


def run_command(command: Command, where: str) -> None:
    name, *arguments = shlex.split(command.text)
    assert name == "tilewright", f"{where}: only tilewright is run here"
    result = CliRunner().invoke(app, arguments, prog_name="tilewright", env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == command.status, f"{where}: {command.text}: {result.output}"
    if command.output:
        assert matches(command.output, result.output), f"{where}: {command.text}\n{result.output}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    if 'backend="tilewright"' in page.read_text() and not _is_installed():
        pytest.skip("torch.compile finds the backend of an installed package only")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "AGREE", 1.0)  # other tests run at the same time
    monkeypatch.setattr(calibrate, "measure", _measured_once)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line, language, content in blocks(page):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * (line - 1) + content, str(page), "exec"), namespace)
        else:
            for command in commands(content):
                run_command(command, f"{page.name}:{line}")


_measure = calibrate.measure
_MEASURED: dict[str, Cpu] = {}


def _measured_once(machine: Cpu) -> Cpu:
    """What the first page that asks measures serves all pages."""
    if machine.name not in _MEASURED:
        _MEASURED[machine.name] = _measure(machine)
    return _MEASURED[machine.name]


def _is_installed() -> bool:
    return any(entry.name == "tilewright" for entry in metadata.entry_points(group="torch_dynamo_backends"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    reached = {(index.parent / target).resolve() for target in LINK.findall(index.read_text()) if "://" not in target}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index} <= reached


def test_every_error_class_is_in_the_reference() -> None:
    from tilewright import errors

    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    classes = [value for value in vars(errors).values() if isinstance(value, type) and value is not errors.CompileError]
    assert [each.__name__ for each in classes if f"| `{each.code}` | `{each.__name__}` |" not in text] == []


def test_every_command_is_in_the_reference() -> None:
    from tilewright.cli.main import COMMANDS

    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert [name for name, _, _ in COMMANDS if not re.search(rf"^\| `{name}\b", text, re.MULTILINE)] == []


def test_every_environment_variable_is_documented() -> None:
    read = set(re.findall(r'environ\.get\("(\w+)"', (ROOT / "tilewright" / "options.py").read_text()))
    text = (ROOT / "docs" / "how-to" / "threads-and-cache.md").read_text()
    assert read
    assert {name for name in read if name not in text} == set()


def test_environment_variables_are_read_in_one_place() -> None:
    allowed = {"options.py"}
    paths = [path for path in (ROOT / "tilewright").rglob("*.py") if "tests" not in path.parts]
    readers = {path.relative_to(ROOT / "tilewright").as_posix() for path in paths if "os.environ" in path.read_text()}
    assert readers <= allowed


def _with_doctests() -> list[str]:
    paths = (path for path in sorted((ROOT / "tilewright").rglob("*.py")) if "tests" not in path.parts)
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if ">>> " in path.read_text()]


@pytest.mark.parametrize("name", _with_doctests())
def test_doctests(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name.removesuffix(".__init__")))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [("a … c", "a b c", True), ("a …", "a b\nc\n", True), ("a", "a b", False), ("…c", "abd", False)],
)
def test_dots_stand_for_anything(expected: str, actual: str, same: bool) -> None:
    assert matches(expected, actual) is same
