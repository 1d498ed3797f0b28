"""Functions for users take a path as a str, as a Path and as any `os.PathLike`, and refuse what is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tilewright import Options, emulator
from tilewright.compiler.compile import build, import_any, resolve_target
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.tree_files import fused_trees, saved_trees
from tilewright.errors import CompileError
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.instruction.mma.reference import read_recorded
from tilewright.intrinsics.files import load_records, to_text
from tilewright.intrinsics.registry import standard
from tilewright.machine import resolve
from tilewright.machine.registry import resolve_cpu
from tilewright.report import plot
from tilewright.reproduce.tileflow.rtl import GEMM_ROWS, gemm_cases
from tilewright.search.cost import Budget, Evaluation
from tilewright.search.factor_space import FactorSpace, Row
from tilewright.search.minimise import minimise
from tilewright.search.trace import Trace
from tilewright.search.tree_search import TreeSearch
from tilewright.tiles.file import read_tile_file

PACKAGE = Path(tilewright.__file__).parent
TILE_FILE = """\
graph main
input A: f32[8, 4]
input B: f32[4, 6]
C: f32[m:8, n:6] += A[m, k] * B[k, n] over k:4
output C
tree
@L1 for m:8, n:6, k:4 { op C }
"""


class Named:
    """A path of another library: only `os.fspath` gives its text."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __fspath__(self) -> str:
        return self._path


def products() -> Graph:
    b = GraphBuilder("products")
    x = linalg.matmul(b.input("x", (32, 16), "f32"), b.input("v", (16, 16), "f32"))
    return b.finish([linalg.matmul(x, b.input("w", (16, 32), "f32"), name="y")])


def options(**given: Any) -> Options:
    return Options(cache=False, **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of every kind that a user names."""
    found = tmp_path_factory.mktemp("files")
    artifact = build(products(), resolve_target("host"), 1, options(fuse="always"))
    artifact.save(found / "module.twm")
    (found / "plan.json").write_text(artifact.plan)
    (found / "machine.yaml").write_text("name: mine\nextends: x86-64-v3\n")
    (found / "records.json").write_text(to_text([standard().find("sdot_4x4_s8_s32")]))
    (found / "tree").write_text(TILE_FILE)
    shutil.copy(PACKAGE / "instruction/mma/tests/data/iree_3_6_matmul_configs.csv", found / "recorded.csv")
    shutil.copy(GEMM_ROWS, found / "rows.csv")
    shutil.copytree(PACKAGE / "emulator/tests/triton", found / "triton")
    minimise(_half, TreeSearch(_space()), Budget(3), trace=found / "trace")
    return found


def _half(point: Any) -> Evaluation:
    return Evaluation(0.5)


def _space() -> FactorSpace:
    return FactorSpace((Row("m", 8, (None, None)),))


READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "load": ("module.twm", lambda path: tilewright.load(path, threads=1, options=options()).manifest),
    "Options.fuse": ("plan.json", lambda path: options(fuse=path)),
    "fuse": (
        "plan.json",
        lambda path: len(make_plan(products(), resolve_target("host"), 1, options(fuse=path)).kernels),
    ),
    "saved_trees": ("plan.json", saved_trees),
    "fused_trees": ("plan.json", fused_trees),
    "resolve": ("machine.yaml", resolve),
    "resolve_cpu": ("machine.yaml", resolve_cpu),
    "resolve_target": ("machine.yaml", resolve_target),
    "load_records": ("records.json", load_records),
    "read_tile_file": ("tree", lambda path: str(read_tile_file(path).tree)),
    "read_recorded": ("recorded.csv", read_recorded),
    "gemm_cases": ("rows.csv", lambda path: len(gemm_cases(path))),
    "Trace.read": ("trace", Trace.read),
    "load_compiled": ("triton/add_sm80.json", emulator.load_compiled),
}


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_read_by_any_name_of_it(name: str, folder: Path) -> None:
    file, read = READERS[name]
    expected = read(folder / file)
    assert read(str(folder / file)) == expected
    assert read(Named(folder / file)) == expected


@pytest.mark.parametrize("name", [name for name in READERS if name not in ("Options.fuse",)])
def test_an_error_names_the_file(name: str, folder: Path) -> None:
    """Where `str` of a name was its `repr`, errors did not say which file it is."""
    file, read = READERS[name]
    missing = folder / f"no-{Path(file).name}"
    missing = missing if missing.suffix else missing.with_suffix(".none")
    for kind in (str, Named):
        with pytest.raises(CompileError, match="there is no such file") as raised:
            read(kind(missing))
        assert raised.value.where == str(missing)


@pytest.mark.parametrize("name", ["load", "resolve", "resolve_target", "load_records", "load_compiled"])
@pytest.mark.parametrize("value", [3.5, None, b"bytes"])
def test_what_is_no_path_is_refused(name: str, value: Any) -> None:
    with pytest.raises(CompileError, match="is no path") as raised:
        READERS[name][1](value)
    assert raised.value.help == "a str or a pathlib.Path"


@pytest.mark.parametrize("kind", [str, Path, Named])
def test_a_module_is_saved_under_any_name(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    tilewright.compile(products(), threads=1, options=options()).save(kind(tmp_path / "saved.twm"))
    assert (tmp_path / "saved.twm").is_file()


@pytest.mark.parametrize("kind", [str, Path, Named])
def test_a_model_is_read_under_any_name(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    helper = pytest.importorskip("onnx.helper")
    values = [helper.make_tensor_value_info(name, 1, [7]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    assert import_any(kind(tmp_path / "model.onnx")).outputs[0].shape == (7,)


@pytest.mark.parametrize("kind", [str, Path, Named])
def test_a_trace_is_written_under_any_name(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    minimise(_half, TreeSearch(_space()), Budget(3), trace=kind(tmp_path / "trace"))
    assert len(Trace.read(tmp_path / "trace").steps) > 0


@pytest.mark.parametrize("kind", [str, Path, Named])
def test_a_picture_is_checked_under_any_name(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot.check(kind(tmp_path / "plot.svg"))
    with pytest.raises(CompileError, match="no suffix of a picture"):
        plot.check(kind(tmp_path / "plot.gif"))
