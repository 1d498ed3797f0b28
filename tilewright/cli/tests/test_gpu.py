"""Commands for GPUs, on the emulator: every form, the same code from each of them, run, explain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.runtime import calibrate

Invoke = Callable[..., Any]
GPU = ("--machine", "sm_80")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and what it was compiled to."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Softmax", ["r"], ["y"])]
    inputs, outputs = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 40])] for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path = tmp_path_factory.mktemp("gpu")
    onnx.save(model, path / "model.onnx")
    return path


@pytest.fixture
def invoke(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "emulator")
    monkeypatch.setattr(calibrate, "measure", lambda machine: machine)  # which takes a second

    def run(*arguments: str, status: int = 0) -> Any:
        result = CliRunner().invoke(app, list(arguments), prog_name="tilewright")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    if not (folder / "model.twm").exists():
        run("compile", "model.onnx", *GPU)
    return run


def test_forms_of_model_and_file_are_the_same(invoke: Invoke) -> None:
    marks = {
        "plan": "decisions", "mapped": "max", "tile": "tile.func", "distributed": "simt.", "llvm": "define",
        "ptx": ".visible .entry",
    }  # fmt: skip
    for form, mark in marks.items():
        text = invoke("compile", "model.onnx", *GPU, "--emit", form).stdout
        assert mark in text, form
        assert invoke("compile", "model.twm", "--emit", form).stdout == text, form
    assert "simt." not in invoke("compile", "model.twm", "--emit", "tile").stdout


@pytest.mark.parametrize("form", ["tile", "distributed"])
def test_the_text_of_a_form_is_all_that_its_code_is_made_of(invoke: Invoke, form: str) -> None:
    invoke("compile", "model.onnx", *GPU, "--emit", form, "-o", "program.tile")
    assert invoke("compile", "program.tile", "--emit", form).stdout == Path("program.tile").read_text()
    ptx = invoke("compile", "program.tile", "--emit", "ptx").stdout
    assert ptx == invoke("compile", "model.twm", "--emit", "ptx").stdout


def product(path: str, element_type: str, size: int) -> None:
    """Store a model of one product of square matrices."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper

    type_ = getattr(onnx.TensorProto, element_type)
    x, w, y = (helper.make_tensor_value_info(name, type_, [size, size]) for name in "xwy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x, w], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_matrix_instructions_that_the_user_names(invoke: Invoke) -> None:
    product("product.onnx", "FLOAT16", 64)
    for mma, instruction in (("auto", "mma.sync.aligned.m16n8k16"), ("wmma", "wmma.mma.sync.aligned")):
        given = ("product.onnx", *GPU, "--mma", mma)
        assert instruction in invoke("compile", *given, "--emit", "ptx").stdout
        assert ("by wmma" in invoke("explain", *given, "--all").stdout) == (mma == "wmma")


def test_what_f32_may_be_read_as_can_be_said(invoke: Invoke) -> None:
    product("floats.onnx", "FLOAT", 64)
    for precision, said in (
        ("ieee", "with input_precision ieee"),
        ("tf32", "rounded to tf32"),
        ("tf32x3", "as tf32x3"),
    ):
        given = ("floats.onnx", *GPU, "--input-precision", precision)
        assert (".tf32.f32" in invoke("compile", *given, "--emit", "ptx").stdout) == (precision != "ieee")
        assert said in invoke("explain", *given, "--all").stdout


def test_blocks_of_a_cluster_can_be_asked_for(invoke: Invoke) -> None:
    product("large.onnx", "FLOAT16", 1024)
    for cluster in ("1", "2"):
        given = ("large.onnx", "--machine", "sm_90a", "--cluster", cluster)
        assert (".multicast::cluster" in invoke("compile", *given, "--emit", "ptx").stdout) == (cluster == "2")
        assert ("clusters of 2 blocks" in invoke("explain", *given, "--all").stdout) == (cluster == "2")
    assert "cluster: error" in invoke("compile", "large.onnx", *GPU, "--cluster", "2", status=2).stderr
    assert "cluster is 3" in invoke("compile", "large.onnx", "--cluster", "3", status=2).stderr


def test_forms_of_the_other_kind_of_machine_are_refused(invoke: Invoke) -> None:
    assert "tile, distributed, llvm, ptx" in invoke("compile", "model.twm", "--emit", "asm", status=2).stderr
    assert "tile, llvm, asm or object" in invoke("compile", "model.onnx", "--emit", "ptx", status=2).stderr


def test_run_checks_and_profile_times(invoke: Invoke) -> None:
    for model in (("model.onnx", *GPU), ("model.twm",)):
        record = json.loads(invoke("run", *model, "--check", "--json").stdout)
        assert record["device"] == "emulator"
        assert [each["ok"] for each in record["check"]] == [True]
        profile = json.loads(invoke("profile", *model, "--repeats", "1", "--json").stdout)
        assert len(profile["launches"]) == 2
        assert {row["bound"] for row in profile["rows"]} == {None}, "no rates of a GPU were measured"
    np.savez("in.npz", x=np.zeros((4, 40), np.float32))
    invoke("run", "model.twm", "--inputs", "in.npz", "-o", "out.npz", "--device", "emulator")
    np.testing.assert_allclose(np.load("out.npz")["y"], np.full((4, 40), 1 / 40), rtol=1e-6)
    assert "there is no device 'quda'" in invoke("run", "model.twm", "--device", "quda", status=2).stderr


def test_a_file_for_a_gpu_is_rebuilt_for_the_host(invoke: Invoke) -> None:
    record = json.loads(invoke("run", "model.twm", "--rebuild", "--check", "--json").stdout)
    assert (record["device"], record["check"][0]["ok"]) == ("cpu", True)


def test_explain_says_what_was_decided_for_the_gpu(invoke: Invoke) -> None:
    text = invoke("explain", "model.twm", "--all").stdout
    assert "because" in text
    assert invoke("explain", "model.onnx", *GPU, "--all").stdout == text
    assert invoke("explain", "model.onnx", "--all").stdout != text


def test_switched_off_passes_change_the_code_and_not_the_result(invoke: Invoke) -> None:
    usual = invoke("compile", "model.twm", "--emit", "distributed").stdout
    other = invoke("compile", "model.onnx", *GPU, "--disable", "cse", "--emit", "distributed").stdout
    assert other != usual
    invoke("run", "model.onnx", *GPU, "--disable", "cse", "--check")


DECIDED = {
    "--machine": "sm_90a", "--threads": "2", "--shape": "x=4,40", "--search": "joint", "--mma": "wmma",
    "--input-precision": "tf32", "--cluster": "2", "--trials": "3", "--disable": "fold-padding", "--fuse": "never",
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("option", [*DECIDED, "--rebuild", "--no-cache"])
@pytest.mark.parametrize("form", ["tile", "distributed", "ptx"])
def test_a_tile_program_takes_no_decisions(option: str, form: str, invoke: Invoke) -> None:
    if not Path("decided.tile").exists():  # the folder is that of all tests
        invoke("compile", "model.onnx", *GPU, "--emit", "tile", "-o", "decided.tile")
    given = (option, DECIDED[option]) if option in DECIDED else (option,)
    assert f"{option}: error" in invoke("compile", "decided.tile", "--emit", form, *given, status=2).stderr


def test_passes_that_run_on_a_tile_program_can_be_left_out(invoke: Invoke) -> None:
    for form in ("tile", "distributed"):
        invoke("compile", "model.onnx", *GPU, "--emit", form, "-o", f"{form}.tile")
    usual, other = (
        invoke("compile", "tile.tile", "--emit", "distributed", *given).stdout for given in ((), ("--disable", "cse"))
    )
    assert usual != other
    for name, form in (("tile", "tile"), ("distributed", "distributed"), ("distributed", "ptx")):
        errors = invoke("compile", f"{name}.tile", "--emit", form, "--disable", "cse", status=2).stderr
        assert "--disable: error[invalid-argument]: no passes run on this program" in errors


@pytest.mark.covering(1)
@pytest.mark.parametrize("option", [*DECIDED, "--no-cache"])
@pytest.mark.parametrize("form", ["expr", "plan", "tile", "ptx"])
def test_forms_of_a_file_take_no_decisions(option: str, form: str, invoke: Invoke) -> None:
    given = (option, DECIDED[option]) if option in DECIDED else (option,)
    assert f"{option}: error" in invoke("compile", "model.twm", "--emit", form, *given, status=2).stderr


@pytest.mark.parametrize("option", [each for each in DECIDED if each != "--shape"])
def test_the_graph_of_a_model_takes_no_decisions(option: str, invoke: Invoke) -> None:
    invoke("compile", "model.onnx", "--shape", "x=4,40", "--emit", "expr")
    errors = invoke("compile", "model.onnx", "--emit", "expr", option, DECIDED[option], status=2).stderr
    assert f"{option}: error" in errors


def test_threads_are_of_a_cpu(invoke: Invoke) -> None:
    for command in (("compile", "model.onnx", *GPU), ("explain", "model.onnx", *GPU), ("run", "model.twm"),
                    ("run", "model.onnx", *GPU), ("compile", "model.onnx", *GPU, "--emit", "ptx")):  # fmt: skip
        errors = invoke(*command, "--threads", "2", status=2).stderr
        assert "--threads: error[invalid-argument]: 2 threads for sm_80: " in errors
