"""The commands, as a user types them: output, JSON, exit statuses, and messages for every kind of mistake."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command_line import CliRunner
from tilewright.cli.arguments import shapes_of
from tilewright.cli.main import COMMANDS, app
from tilewright.cli.run import difference
from tilewright.cli.sample import perceptron, perceptron_in_numpy
from tilewright.compiler.compile import build
from tilewright.expr.evaluate import evaluate
from tilewright.machine import host, resolve_cpu
from tilewright.options import Options
from tilewright.runtime import calibrate
from tilewright.runtime.artifact import Artifact

ROOT = Path(__file__).parents[3]
ROWS, WIDTHS = 4, (6, 5, 3)
Invoke = Callable[..., Any]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run a command in an empty folder with a cache of its own; `status` is the expected exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "measure", lambda machine: machine)  # which takes a second

    def run(*arguments: str, status: int = 0, input: str | None = None, columns: int = 400) -> Any:
        env = {"COLUMNS": str(columns)}
        result = CliRunner().invoke(app, list(arguments), input=input, prog_name="tilewright", env=env)
        unexpected = result.exception if not isinstance(result.exception, SystemExit) else None
        if unexpected is not None:
            raise unexpected
        assert result.exit_code == status, result.output
        return result

    return run


@pytest.fixture
def stored(tmp_path: Path) -> str:
    """A compiled perceptron."""
    compiled_perceptron().save(tmp_path / "model.twm")
    return "model.twm"


@cache
def compiled_perceptron() -> Artifact:
    return build(perceptron(ROWS, WIDTHS), host(), 1, Options(cache=False))


@pytest.fixture
def model(tmp_path: Path) -> str:
    """`y = relu(x @ w)` with an open number of rows."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    w = np.random.default_rng(0).standard_normal((6, 5), np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 6])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", 5])],
        [numpy_helper.from_array(w, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(made, tmp_path / "model.onnx")
    return "model.onnx"


def test_every_command_shows_an_example_and_its_exit_statuses(invoke: Invoke) -> None:
    for name, _, _ in COMMANDS:
        text = invoke(*name.split(), "--help").stdout
        assert f"example: tilewright {name}" in text or f"| tilewright {name}" in text
        assert "exit status: 0" in text
        assert "--json" in text


def test_demo_is_right(invoke: Invoke) -> None:
    record = json.loads(invoke("demo", "--threads", "1", "--json").stdout)
    assert record["ok"] is True
    assert 0 < record["median_seconds"] < 1
    assert "largest error" in invoke("demo").stdout


def test_compile_run_check(invoke: Invoke, model: str) -> None:
    assert "1 kernels" in invoke("compile", model, "--shape", "x=4,6").stdout
    checked = invoke("run", "model.twm", "--check")
    assert re.search(r"largest error \S+ absolute, \S+ relative \(ok", checked.stdout)
    assert "largest error" in invoke("run", model, "--shape", "x=2,6", "--check").stdout


def test_profile_ranks_kernels_beside_measured_rates(
    invoke: Invoke, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = replace(
        host(), clock_hz=4e9, issue_cycles={"fma_16_f32_f32": 0.5}, latency_cycles={"fma_16_f32_f32": 4.0}
    )
    monkeypatch.setattr(calibrate, "calibrated", lambda: measured)
    text = invoke("profile", model, "--shape", "x=40,6", columns=80).stdout
    assert re.search(r"^all +1 ", text, re.M)
    assert max(map(len, text.splitlines())) <= 80
    record = json.loads(invoke("profile", model, "--shape", "x=40,6", "--json").stdout)
    (row,) = record["rows"]
    assert row["count"] == len(record["launches"]) == 1
    assert row["bound"] in {"compute", "L2"}
    assert row["predicted_seconds"] > 0


def test_a_search_is_reported_kept_and_explained(invoke: Invoke, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "measure", lambda machine: machine)
    command = ("compile", model, "--shape", "x=40,6", "--search", "joint", "--trials", "1", "--threads", "1")
    first = invoke(*command)
    assert "product 1 of 1, z" in first.stderr
    assert "the rates of this machine are measured, once" in first.stderr
    assert "product 1 of 1" not in invoke(*command).stderr, "the second time nothing is searched"
    text = invoke("explain", "model.twm", "--all").stdout
    assert re.search(r"search of z: .*s measured \(\S+ s predicted\)", text, re.DOTALL)
    assert "largest error" in invoke("run", "model.twm", "--check").stdout
    plan = json.loads(invoke(*command, "--emit", "plan").stdout)["decisions"]
    assert any(each["subject"] == "search of z" for each in plan)
    assert "search of" not in invoke("explain", model, "--shape", "x=40,6", "--all").stdout, "the default is the rules"


def test_run_with_files(invoke: Invoke, stored: str) -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTHS[0]), np.float32)
    np.savez("in.npz", x=x)
    invoke("run", stored, "--inputs", "in.npz", "-o", "out.npz")
    with np.load("out.npz") as outputs:
        expected = perceptron_in_numpy(perceptron(ROWS, WIDTHS), x)
        assert np.abs(outputs["probabilities"] - expected).max() < 1e-6


def test_same_seed_same_result(invoke: Invoke, stored: str) -> None:
    first, again, other = (invoke("run", stored, "--seed", seed, "--json").stdout for seed in ("1", "1", "2"))
    assert first == again != other


def test_check_with_no_tolerance_is_negative(invoke: Invoke, stored: str) -> None:
    record = json.loads(invoke("run", stored, "--check", "--tolerance", "0", "--json", status=1).stdout)
    assert record["check"][0]["ok"] is False
    assert record["check"][0]["relative_error"] > 0


def test_bench(invoke: Invoke, stored: str) -> None:
    record = json.loads(invoke("bench", stored, "--seconds", "0.05", "--json").stdout)
    assert record["fastest_seconds"] <= record["median_seconds"] <= record["slowest_seconds"]
    assert "ms a call" in invoke("bench", stored, "--seconds", "0.01").stdout


def test_explain_of_both_kinds_of_file_agrees(invoke: Invoke, model: str) -> None:
    invoke("compile", model, "--shape", "x=4,6")
    text = invoke("explain", "model.twm", "--all").stdout
    assert "because" in text
    assert invoke("explain", model, "--shape", "x=4,6", "--all").stdout == text
    record = json.loads(invoke("explain", "model.twm", "--json").stdout)
    assert len(record["decisions"]) == text.count("because")
    (kernel,) = record["kernels"]
    assert kernel["cycles"] > 0
    (name,) = kernel["names"]
    alone = invoke("explain", "model.twm", "--kernel", name).stdout
    assert alone.startswith(f"{name}: ")
    assert alone.count("because") == len(kernel["decisions"]) > 0
    assert "there is no kernel 'zz'" in invoke("explain", "model.twm", "--kernel", "zz", status=2).stderr


def test_explain_times_kernels_beside_predictions(invoke: Invoke, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = replace(
        host(), clock_hz=4e9, issue_cycles={"fma_16_f32_f32": 0.5}, latency_cycles={"fma_16_f32_f32": 4.0}
    )
    monkeypatch.setattr(calibrate, "calibrated", lambda: measured)
    text = invoke("explain", model, "--shape", "x=40,6", "--measure", columns=80).stdout
    assert re.search(r"100% of the time, \S+ \S+ predicted, \S+ \S+ measured", text)
    assert "   bound by " in text
    assert "   tile " in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_busy_machine_is_explained_without_seconds(
    invoke: Invoke, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> None:
        raise calibrate.BusyMachine("rates differ")

    monkeypatch.setattr(calibrate, "calibrated", busy)
    found = invoke("explain", model, "--shape", "x=40,6")
    assert "no seconds" in found.stdout
    assert "rates differ" in found.stderr


def test_every_form_can_be_emitted(invoke: Invoke, model: str) -> None:
    marks = {"expr": "+=", "plan": "decisions", "mapped": "+=", "tile": "tile.func", "llvm": "define", "asm": "tw_main"}
    for form, mark in marks.items():
        of_model = invoke("compile", model, "--shape", "x=4,6", "--emit", form).stdout
        assert mark in of_model, form
        assert json.loads(invoke("compile", model, "--shape", "x=4,6", "--emit", form, "--json").stdout)["text"]
    invoke("compile", model, "--shape", "x=4,6")
    for form, mark in marks.items():
        assert mark in invoke("compile", "model.twm", "--emit", form).stdout, form


def test_a_plan_that_was_emitted_is_taken(invoke: Invoke, model: str, tmp_path: Path) -> None:
    plan, program = str(tmp_path / "model.plan"), ("compile", model, "--shape", "x=4,6", "--emit", "tile")
    invoke("compile", model, "--shape", "x=4,6", "--emit", "plan", "-o", plan)
    assert invoke(*program, "--plan", plan).stdout == invoke(*program).stdout
    content = json.loads(Path(plan).read_text())
    name, tree = next(iter(content["trees"].items()))
    Path(plan).write_text(json.dumps({"trees": {f"{name}.other": tree}}))
    assert f"no kernel '{name}.other'" in invoke(*program, "--plan", plan, status=2).stderr
    for damaged in ("{", "[]", '{"trees": {"a": 1}}'):
        Path(plan).write_text(damaged)
        assert "error[" in invoke(*program, "--plan", plan, status=2).stderr


def test_products_are_fused_as_the_option_or_a_file_says(invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from bench.cases.definition import node, normal, onnx_model

    inputs = {"x": normal(0, 40, 24), "a": normal(1, 24, 48), "b": normal(2, 48, 16)}
    nodes = [node("MatMul", ["x", "a"], "h"), node("MatMul", ["h", "b"], "y")]
    model = onnx_model(nodes, inputs, ("y", (40, 16), np.float32))
    Path("chain.onnx").write_bytes(model.SerializeToString())

    def kernels(fuse: str) -> set[str]:
        invoke("compile", "chain.onnx", "--emit", "plan", "-o", f"{Path(fuse).stem}.plan", "--fuse", fuse)
        return set(json.loads(Path(f"{Path(fuse).stem}.plan").read_text())["trees"])

    assert "h+y" in kernels("always")
    assert {"h", "y"} <= kernels("never")
    assert {"h", "y"} <= kernels("auto"), "what stays in L2 gains nothing"
    Path("file.json").write_bytes(Path("always.plan").read_bytes())
    assert kernels("file.json") == kernels("always")
    assert "one kernel" in invoke("explain", "chain.onnx", "--all", "--fuse", "file.json").stdout
    failed = ("compile", "chain.onnx", "--fuse")
    assert "there is no fuse 'sometimes'" in invoke(*failed, "sometimes", status=2).stderr
    assert "no kernel in it has several products" in invoke(*failed, "never.plan", status=2).stderr


def test_emitted_tile_program_compiles_to_the_same_bytes(invoke: Invoke, model: str) -> None:
    invoke("compile", model, "--shape", "x=4,6")
    invoke("compile", model, "--shape", "x=4,6", "--emit", "tile", "-o", "first.tile")
    invoke("compile", "first.tile", "--emit", "tile", "-o", "second.tile")
    invoke("compile", "second.tile", "--emit", "object", "-o", "again.o")
    invoke("compile", "model.twm", "--emit", "object", "-o", "stored.o")
    assert Path("again.o").read_bytes() == Path("stored.o").read_bytes()
    assert Path("first.tile").read_text() == Path("second.tile").read_text()


def test_compile_for_another_machine(invoke: Invoke, model: str) -> None:
    other = "aarch64" if host().architecture == "x86_64" else "x86-64-v3"
    invoke("compile", model, "--shape", "x=4,6", "--machine", other)
    assert f"is no {resolve_cpu(other).llvm.triple}" in (
        invoke("run", model, "--shape", "x=4,6", "--machine", other, status=3).stderr
    )
    if other == "aarch64":
        assert invoke("run", "model.twm", "--check").stderr.count("note: model.twm: its code needs a machine of") == 1
    invoke("compile", "--rebuild", "model.twm", "-o", "here.twm")
    assert "ok" in invoke("run", "here.twm", "--check").stdout


def test_disabled_passes_change_the_program_and_not_the_result(invoke: Invoke, stored: str, model: str) -> None:
    shape = ("--shape", "x=4,6")
    plain = invoke("compile", model, *shape, "--emit", "tile").stdout
    assert invoke("compile", model, *shape, "--emit", "tile", "--disable", "canonicalise").stdout != plain
    assert "ok" in invoke("run", model, *shape, "--disable", "canonicalise", "--disable", "cse", "--check").stdout
    assert "canonicalise" in invoke("run", model, *shape, "--disable", "nonsense", status=2).stderr


def test_machines(invoke: Invoke) -> None:
    assert "x86-64-v3" in invoke("machines").stdout
    assert json.loads(invoke("machines", "--json").stdout)[0]["name"] == "host"
    facts = json.loads(invoke("machines", "x86-64-v3", "--json").stdout)
    Path("mine.yaml").write_text(invoke("machines", "x86-64-v3").stdout)
    assert json.loads(invoke("machines", "mine.yaml", "--json").stdout) == facts
    assert "did you mean x86-64-v3" in invoke("machines", "x86-64-v33", status=2).stderr


def test_doctor(invoke: Invoke) -> None:
    text = invoke("doctor").stdout
    assert "largest error" in text
    assert not re.search(r"^!", text, re.MULTILINE)
    assert json.loads(invoke("doctor", "--json").stdout)["ok"] is True


def test_doctor_reports_what_is_wrong(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert re.search(r"^! cache .* is not used: .*Not a directory", invoke("doctor", status=1).stdout, re.MULTILINE)


def test_opt_runs_passes_on_a_file_and_on_standard_input(invoke: Invoke, model: str) -> None:
    program = invoke("compile", model, "--shape", "x=4,6", "--emit", "tile").stdout
    Path("program.tile").write_text(program)
    assert invoke("opt", "program.tile").stdout == program
    assert invoke("opt", "-p", "cse", "-p", "dce", "-", input=program).stdout == program  # they ran already
    assert "dce" in invoke("opt", "--list").stdout
    assert json.loads(invoke("opt", "--list", "--json").stdout)["cpu"]


def test_cache(invoke: Invoke, model: str) -> None:
    invoke("compile", model, "--shape", "x=4,6", "--no-cache")
    assert json.loads(invoke("cache", "--json").stdout)["entries"] == 0
    invoke("compile", model, "--shape", "x=4,6")
    assert json.loads(invoke("cache", "--json").stdout)["entries"] == 2  # the model and its code
    assert "0 entries" in invoke("cache", "--clear").stdout


WRONG = {
    "no such file": (["run", "nothing.twm"], r"nothing.twm: error\[invalid-file\]"),
    "no such model": (["compile", "nothing.onnx"], r"nothing.onnx: error\[invalid-model\]"),
    "not a model": (["compile", "text.onnx"], r"text.onnx: error\[invalid-model\]"),
    "not a module": (["run", "text.twm"], r"text.twm: error\[invalid-file\]"),
    "open shape": (["run", "model.onnx"], r"--shape rows=1"),
    "malformed shape": (["run", "model.onnx", "--shape", "x:4"], r"--shape: error\[invalid-argument\]: 'x:4'"),
    "wrong rank": (["run", "model.onnx", "--shape", "x=4"], r"error\[invalid-argument\]: shape \[4\] for x"),
    "unknown input": (["run", "model.onnx", "--shape", "q=4"], r"a shape for q, which is no input"),
    "absurd size": (["run", "model.onnx", "--shape", "x=99999999999999,6"], r"error\["),
    "absurd number": (["run", "model.onnx", "--shape", "x=" + "9" * 40], r"larger than any memory"),
    "shape of a rebuilt module": (
        ["run", "model.twm", "--rebuild", "--shape", "x=4,6"],
        r"--shape: .*model.twm is compiled already: .*\n.*give the model file$",
    ),
    "unknown machine": (["run", "model.onnx", "--machine", "z80"], r"there is no machine 'z80'"),
    "no processor": (["compile", "model.onnx", "--machine", "edge"], r"for which no code is generated"),
    "no threads": (["run", "model.twm", "--threads", "0"], r"error\[invalid-argument\]"),
    "too many threads": (["run", "model.twm", "--threads", "999999999"], r"error\[invalid-argument\]"),
    "no npz": (["run", "model.twm", "--inputs", "text.npz"], r"text.npz: error\[invalid-argument\]: cannot be read"),
    "missing npz": (["run", "model.twm", "--inputs", "q.npz"], r"q.npz: error.*no such file"),
    "wrong names": (["run", "model.twm", "--inputs", "names.npz"], r"has y\n.*the inputs are x"),
    "wrong shape": (["run", "model.twm", "--inputs", "shape.npz"], r"input 'x': error\[invalid-argument\]"),
    "wrong dtype": (["run", "model.twm", "--inputs", "dtype.npz"], r"input 'x': error\[invalid-argument\]"),
    "pickle": (["run", "model.twm", "--inputs", "pickle.npz"], r"pickle.npz: error\[invalid-argument\]"),
    "no folder": (["run", "model.twm", "-o", "no/out.npz"], r"cannot write 'no/out.npz'"),
    "no folder for a module": (["compile", "model.onnx", "--shape", "x=4,6", "-o", "no/m.twm"], r"cannot write"),
    "no folder for a form": (["compile", "model.twm", "--emit", "asm", "-o", "no/m.s"], r"cannot write"),
    "compiled already": (["compile", "model.twm"], r"add --rebuild"),
    "nothing to search": (["compile", "model.twm", "--search", "joint"], r"--search: error.* decisions are made"),
    "no such search": (["compile", "model.onnx", "--search", "best"], r"'best' is not one of 'rules', 'joint'"),
    "no trials": (["compile", "model.onnx", "--trials", "0"], r"--trials"),
    "search for elsewhere": (
        ["compile", "model.onnx", "--shape", "x=4,6", "--search", "joint", "--machine", "sm_90a"],
        r"are not searched",
    ),
    "trials without a search": (["compile", "model.onnx", "--trials", "5"], r"--trials: .*\n.*--search joint"),
    "pass of another target": (
        ["compile", "model.onnx", "--shape", "x=4,6", "--emit", "tile", "--disable", "split-k"],
        r"disable: error.* no pass 'split-k' for a cpu",
    ),
    "pass by its old name": (
        ["compile", "model.onnx", "--shape", "x=4,6", "--emit", "tile", "--disable", "order-blocks"],
        r"disable: error.* pass 'order-blocks' has another name now",
    ),
    "device of a CPU": (
        ["run", "model.twm", "--device", "emulator"],
        r"--device: .*emulator for host: .*runs on the CPU",
    ),
    "tolerance of nothing": (["run", "model.twm", "--tolerance", "1"], r"--tolerance: .*\n.*--check"),
    "seed of given inputs": (["run", "model.twm", "--inputs", "names.npz", "--seed", "3"], r"--seed: .*not random"),
    "pass of a module": (["run", "model.twm", "--disable", "cse"], r"--disable: .*compiled already.*\n.*--rebuild"),
    "cache of a module": (["bench", "model.twm", "--no-cache"], r"--no-cache: .*compiled already.*\n.*--rebuild"),
    "threads of stored decisions": (["explain", "model.twm", "--threads", "2"], r"--threads: .*decisions are made"),
    "rebuilt and emitted": (["compile", "model.twm", "--rebuild", "--emit", "asm"], r"--emit: .*makes a .twm"),
    "a model rebuilt": (["compile", "model.onnx", "--rebuild", "--emit", "asm"], r"--rebuild: .*only a .twm"),
    "pass of text as it is": (
        ["compile", "program.tile", "--emit", "asm", "--disable", "cse"],
        r"--disable: .*no passes",
    ),
    "document of no case": (["reproduce", "--document", "case.md"], r"options without the NAME"),
    "nothing to rebuild": (["compile", "--rebuild", "model.onnx"], r"leave out --rebuild"),
    "object to a terminal": (["compile", "model.twm", "--emit", "object"], r"name a file with -o"),
    "no such pass": (["opt", "-p", "nonsense", "program.tile"], r"no pass 'nonsense'"),
    "no program": (["opt"], r"FILE: error\[invalid-argument\]"),
    "malformed program": (["opt", "program.tile"], r"program.tile:1:1: error\[invalid-program\]"),
    "missing program": (["opt", "q.tile"], r"q.tile: error\[invalid-program\]: there is no such file"),
    "no expressions in a program": (["compile", "program.tile", "--emit", "expr"], r"a tile program has no expr"),
    "decisions of a module": (["explain", "model.twm", "--machine", "edge"], r"its decisions are made"),
    "option by its old name": (["explain", "model.onnx", "--route", "wmma"], r"--route has another name now: --mma"),
    "unknown option": (["run", "model.twm", "--fast"], r"No such option.*--fast"),
    "unknown command": (["fly"], r"No such command.*fly"),
    "unknown form": (["compile", "model.onnx", "--emit", "verilog"], r"verilog"),
}


@pytest.mark.parametrize("given", [("--shape", "x=4,6"), ("--machine", "edge")], ids=lambda given: given[0])
@pytest.mark.parametrize("command", ["run", "bench", "explain", "compile", "compile --emit asm"])
def test_decisions_about_a_module_are_refused_alike(
    command: str, given: tuple[str, str], invoke: Invoke, stored: str
) -> None:
    errors = invoke(*command.split(), stored, *given, status=2).stderr
    message = "model.twm is compiled already: its decisions are made"
    assert f"{given[0]}: error[invalid-argument]: {message}\n" in errors
    assert given[0] != "--shape" or "--rebuild" not in errors, "it keeps the shapes"


@pytest.mark.parametrize("file", ["model.onnx", "model.twm"])
def test_a_device_is_refused_for_a_cpu_before_anything_is_compiled(
    file: str, invoke: Invoke, model: str, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("too late")

    monkeypatch.setattr("tilewright.compiler.compile.build", fails)
    monkeypatch.setattr("tilewright.load", fails)
    shape = ("--shape", "x=4,6") if file == model else ()
    assert "--device: error" in invoke("run", file, *shape, "--device", "cuda", status=2).stderr
    with pytest.raises(AssertionError, match="too late"):
        invoke("run", file, *shape)


@pytest.mark.parametrize("form", ["expr", "plan", "mapped", "tile", "llvm", "asm"])
def test_forms_are_not_cached(form: str, invoke: Invoke, model: str) -> None:
    command = ("compile", model, "--shape", "x=4,6", "--emit", form)
    invoke(*command)
    errors = invoke(*command, "--no-cache", status=2).stderr
    assert f"--no-cache: error[invalid-argument]: {form} is made anew each time" in errors
    assert not list(Path("cache").glob("**/*.zip")), "there is nothing that it could leave aside"


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_answered_with_status_2_and_a_message(
    case: str, invoke: Invoke, model: str, stored: str, tmp_path: Path
) -> None:
    for suffix in ("onnx", "twm", "npz"):
        (tmp_path / f"text.{suffix}").write_text("This is no such file.")
    (tmp_path / "program.tile").write_text("nonsense" if case == "malformed program" else "builtin.module {}")
    x = np.zeros((ROWS, WIDTHS[0]), np.float32)
    np.savez("names.npz", y=x)
    np.savez("shape.npz", x=x[:-1])
    np.savez("dtype.npz", x=x.astype(np.float64))
    np.savez("pickle.npz", x=np.array([{}], dtype=object))
    arguments, message = WRONG[case]
    result = invoke(*arguments, status=2)
    assert re.search(message, result.stderr), result.stderr
    assert "Traceback" not in result.stderr


def test_errors_as_json(invoke: Invoke) -> None:
    record = json.loads(invoke("run", "nothing.twm", "--json", status=2).stdout)
    assert record["error"]["code"] == "invalid-file"
    assert record["error"]["where"] == "nothing.twm"


def test_a_missing_package_is_status_3(invoke: Invoke, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    result = invoke("run", model, status=3)
    assert "pip install 'tilewright[onnx]'" in result.stderr


def test_a_tensor_may_have_any_name(invoke: Invoke) -> None:
    from tilewright.expr.graph import GraphBuilder
    from tilewright.expr.ops.elementwise import relu

    b = GraphBuilder("strange")
    b_input = b.input("file", (3,), "f32")
    build(b.finish([relu(b_input, name="args")]), host(), 1, Options(cache=False)).save("strange.twm")
    invoke("run", "strange.twm", "-o", "out.npz")
    with np.load("out.npz") as outputs:
        assert outputs.files == ["args"]


def test_shapes_are_read_from_the_last_equals_sign() -> None:
    assert shapes_of(["a=b=1,2", " c = 3 "]) == {"a=b": (1, 2), " c ": (3,)}


@pytest.mark.parametrize(
    ("result", "exact", "absolute"),
    [
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.inf], [1.0, np.inf], 0.0),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([1.0, np.inf], [1.0, -np.inf], np.inf),
        ([], [], 0.0),
    ],
)
def test_differences_of_special_values(result: list[float], exact: list[float], absolute: float) -> None:
    found = difference("y", np.array(result), np.array(exact), allowed=1e-6)
    assert found.absolute_error == absolute
    assert found.ok == (absolute == 0.0)


def test_the_sample_network_is_what_it_says() -> None:
    graph = perceptron(3, (7, 4, 2))
    x = np.random.default_rng(0).standard_normal((3, 7), np.float32)
    assert np.abs(evaluate(graph, [x])[0] - perceptron_in_numpy(graph, x)).max() < 1e-6


def test_the_console_script_is_installed_with_the_package() -> None:
    script = Path(sys.executable).parent / "tilewright"
    if not script.exists():
        pytest.skip("tilewright is not installed in this environment")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert re.fullmatch(r"tilewright \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "reader", "status"),
    [
        ("intrinsics --json", "head -n 1", 141),  # more than a pipe holds
        ("machines host", "true", 141),  # flushed at the end
        ("map --help", "true", 141),
        ("machines nosuch", "true", 2),  # prints nothing
        ("machines host", "cat", 0),
    ],
)
def test_a_closed_pipe_is_no_error_and_has_a_status_of_its_own(arguments: str, reader: str, status: int) -> None:
    command = f"{sys.executable} -m tilewright.cli {arguments} | {reader} > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == f"{status}\n"
    assert done.stderr == "" or status == 2


@pytest.mark.parametrize(("arguments", "status"), [("machines", 0), ("machines nosuch", 2)])
def test_a_closed_standard_output_is_no_error(arguments: str, status: int) -> None:
    """Python has no object for it then."""
    command = f"{sys.executable} -m tilewright.cli {arguments} >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_the_module_runs_as_a_script_and_an_interrupt_is_quiet(tmp_path: Path, stored: str) -> None:
    command = [sys.executable, "-m", "tilewright.cli", "bench", str(tmp_path / stored), "--seconds", "600"]
    heeding = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731 - a parent may ignore it
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=heeding
    )
    try:
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


# Counts ---------------------------------------------------------------------------------------------------------------


def test_run_counts_what_kernels_move(invoke: Invoke, model: str) -> None:
    """The result is the interpreter's, which `--check` compares."""
    command = ("run", model, "--shape", "rows=9", "--machine", "x86-64-v3", "--threads", "1", "--count", "--check")
    text = invoke(*command).stdout
    assert "z+y: moves what its tree says" in text
    assert re.search(r"^L1 +z .* in registers$", text, re.MULTILINE)
    record = json.loads(invoke(*command, "--json").stdout)
    assert record["device"] == "interpreter"
    assert record["check"][0]["ok"]
    counts = {each["kernel"]: each for each in record["counts"]}
    assert all(each["equal"] and not each["refused"] for each in counts.values())
    moved = counts["z+y"]["levels"]["DRAM"]["x"]
    assert moved["counted"] == moved["model"] == {"fill": 0, "read": 9 * 6, "update": 0}


def test_machine_code_moves_what_the_interpreter_does(invoke: Invoke, model: str) -> None:
    command = ("run", model, "--shape", "rows=9", "--count", "--check", "--json")
    one, two = (json.loads(invoke(*command, *on).stdout) for on in ((), ("--count-on", "cpu")))
    assert (one["device"], two["device"]) == ("interpreter", "cpu")
    assert one["counts"] == two["counts"]
    assert two["check"][0]["ok"]


def test_a_count_that_differs_for_no_known_reason_is_negative(
    invoke: Invoke, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.compiler import count_reasons

    monkeypatch.setattr(count_reasons, "IN_REGISTERS", count_reasons.DIFFERS)
    command = ("run", model, "--shape", "rows=9", "--machine", "x86-64-v3", "--count")
    assert re.search(r"^L1 +z .* differs$", invoke(*command, status=1).stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model.twm", "--count"), "--count: .*is compiled already"),
        (("model.twm", "--fuse", "never"), "--fuse: .*is compiled already"),
        (("model.onnx", "--shape", "rows=2", "--count", "--rebuild"), "--rebuild: .*programs for CPUs are counted"),
        (("model.onnx", "--shape", "rows=2", "--count", "--device", "emulator"), "--device: .*for CPUs are counted"),
        (("model.onnx", "--shape", "rows=2", "--count", "--no-cache"), "--no-cache: .*programs for CPUs are counted"),
        (("model.onnx", "--shape", "rows=2", "--count-on", "cpu"), "--count-on: .*nothing is counted"),
        (("model.onnx", "--shape", "rows=2", "--count", "--machine", "sm_90a"), "programs for sm_90a are not counted"),
    ],
)
def test_counts_of_what_is_not_counted(
    invoke: Invoke, stored: str, model: str, arguments: tuple[str, ...], message: str
) -> None:
    assert re.search(message, invoke("run", *arguments, status=2).stderr)
