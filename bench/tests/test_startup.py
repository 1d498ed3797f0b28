"""Every case of the startup bench runs, in processes of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.startup import __main__ as program
from bench.startup import worker
from bench.startup.__main__ import Case, _run, cases
from bench.workers import ROOT


def test_cases_are_the_import_and_each_model_twice() -> None:
    found = cases([Path("/models/small.onnx")])
    assert [case.name for case in found] == [
        "import tilewright",
        "first product, empty cache",
        "first product, cached",
        "small, empty cache",
        "small, cached",
    ]
    assert found[-1] == Case("small, cached", ("network", "/models/small.onnx"), True)


def test_a_run_of_each_small_case(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert program.main(["--networks", "", "--turns", "1", "--models", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:26].strip() for line in lines[1:]] == [
        "import tilewright", "first product, empty cache", "first product, cached",
    ]  # fmt: skip
    assert all(float(number) > 0 for line in lines[1:] for number in line.split()[-3:])


def test_builders_of_older_checkouts_take_the_graph_first() -> None:
    def older(b: str, x: int, w: int) -> tuple[str, int, int]:
        return b, x, w

    def today(x: int, w: int) -> tuple[int, int]:
        return x, w

    assert worker.built(older, "graph", 1, 2) == ("graph", 1, 2)
    assert worker.built(today, "graph", 1, 2) == (1, 2)


def test_a_network_is_called(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 3]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "x"], ["y"])], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    found = _run(Case("m", ("network", str(tmp_path / "m.onnx")), False), ROOT, tmp_path / "cache")
    assert found.keys() == {"cpu", "wall", "megabytes"}
    assert list((tmp_path / "cache").glob("??/*.zip"))


def test_a_failure_says_which_case(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="failed on nothing"):
        _run(Case("nothing", ("network", "nothing.onnx"), False), ROOT, tmp_path)
