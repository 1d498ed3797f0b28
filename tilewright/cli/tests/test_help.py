"""Help: it fits a terminal, its examples are right, and usage errors are JSON too."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from tests.command_line import CliRunner
from tilewright.cli.main import COMMANDS, GROUPS, app
from tilewright.cli.sample import perceptron
from tilewright.cli.tests.test_model import RUN
from tilewright.compiler.compile import build
from tilewright.intrinsics.files import to_json
from tilewright.intrinsics.registry import standard
from tilewright.machine import host
from tilewright.options import Options
from tilewright.runtime import calibrate
from tilewright.runtime.artifact import Artifact

#: Commands that take minutes, need a device, or input that only their users have: they are parsed.
PARSED = ("reproduce", "calibrate", "emulate", "validate", "bench", "demo", "doctor", "search")


PRODUCT = """
input A: f16[32, 16]
input B: f16[16, 32]
C: f16[m:32, n:32] += A[m, k] * B[k, n] over k:16
output C
tree
@DRAM for m:2, n:2 { @L1 for m:16, n:16, k:16 { @RF for once:1 { op C } } }
"""

CHIP = """
architecture:
  subtree:
    - name: chip
      local:
        - {name: DRAM, class: DRAM}
        - {name: RF, class: regfile, attributes: {depth: 512}}
        - {name: mac, class: intmac}
"""


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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "measure", lambda machine: machine)  # which takes a second
    example_files()
    piped = None
    for part in re.split(r" \| ", line.partition(" > ")[0]):
        _, name, *rest = shlex.split(part)
        if name in PARSED or "joint" in rest:
            command: Any = get_command(app).commands[name]  # type: ignore[attr-defined]
            if name in GROUPS:
                name, *rest = rest
                command = command.commands[name]
            command.make_context(name, rest).close()
            continue
        result = CliRunner().invoke(app, [name, *rest], input=piped, prog_name="tilewright")
        assert result.exit_code == 0, result.output
        piped = result.stdout


def example_files() -> None:
    """The files that examples name."""
    import onnx
    from onnx import helper

    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, 224, 224]) for name in "xy")
    graph = helper.make_graph([node], "layer", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), "model.onnx")
    shapes = {"a": [2, 9, 8], "b": [2, 8, 20], "d": [2, 20, 7], "e": [2, 9, 7]}
    a, b, d, e = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items())
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("MatMul", ["c", "d"], ["e"])]
    graph = helper.make_graph(nodes, "chain", [a, b, d], [e])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), "chain.onnx")
    _module().save(Path("model.twm"))
    np.savez("in.npz", x=np.ones((4, 6), np.float32))
    Path("other.yaml").write_text("extends: x86-64-v3\nname: other\n")
    Path("mine.yaml").write_text(_record())
    Path("chain.tile").write_text(PRODUCT)
    Path("run.yaml").write_text(RUN)
    Path("chip.yaml").write_text(CHIP)


@cache
def _module() -> Artifact:
    return build(perceptron(4, (6, 5, 3)), host(), 1, Options(cache=False))


def _record() -> str:
    """A file with a record called `my_unit`."""
    record = to_json(standard().find("wmma_16x16x16_f16_f32"))
    return json.dumps({"intrinsics": [record | {"name": "my_unit", "aliases": []}]})


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
