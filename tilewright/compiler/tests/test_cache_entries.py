"""What a model is found by in the cache, and that an entry which is not what was put is made anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.compiler import compile as compiling
from tilewright.compiler.compile import compile_graph
from tilewright.errors import CompileError, InvalidModel
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise
from tilewright.intrinsics.registry import Registry
from tilewright.options import Options
from tilewright.runtime.archive import read_archive, write_archive

X = np.linspace(-1, 1, 37, dtype=np.float32)
Blocks = dict[str, Any]


def graph(size: int = 37) -> Graph:
    b = GraphBuilder("relu")
    return b.finish([elementwise.relu(b.input("x", (size,), "f32"), name="y")])


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path / "cache")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with everything that is compiled."""
    names: list[str] = []
    generate = compiling._generate

    def counted(plan: Any, *rest: Any) -> Any:
        names.append(plan.graph.name)
        return generate(plan, *rest)

    monkeypatch.setattr(compiling, "_generate", counted)
    return names


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with everything that is planned."""
    names: list[str] = []
    plan_graph = compiling.plan_graph

    def counted(graph: Graph, *rest: Any) -> Any:
        names.append(graph.name)
        return plan_graph(graph, *rest)

    monkeypatch.setattr(compiling, "plan_graph", counted)
    return names


def entries(options: Options, member: str) -> list[Path]:
    """The entries with a member of that name."""
    return [path for path in options.cache_dir.glob("??/*.zip") if member in read_archive(path)]


def entry(options: Options, member: str = "plan.json") -> Path:
    (path,) = entries(options, member)
    return path


def changed_manifest(change: Callable[[Any], object]) -> Callable[[Blocks], None]:
    def apply(blocks: Blocks) -> None:
        manifest = json.loads(bytes(blocks["manifest.json"]))
        change(manifest)
        blocks["manifest.json"] = json.dumps(manifest).encode()

    return apply


CHANGES: dict[str, Callable[[Blocks], Any]] = {
    "another shape": changed_manifest(lambda m: m["outputs"][0].update(shape=[1])),
    "another type": changed_manifest(lambda m: m["inputs"][0].update(dtype="f64")),
    "another name": changed_manifest(lambda m: m["inputs"][0].update(name="z")),
    "no launches": changed_manifest(lambda m: m.update(launches=[])),
    "another machine": changed_manifest(lambda m: m.update(triple="s390x-unknown-linux-gnu")),
    "absurd memory": changed_manifest(lambda m: m.update(arena_bytes=1 << 80)),
    "garbage for code": lambda blocks: blocks.update({"code.o": b"\x90" * 4000}),
    "half of the code": lambda blocks: blocks.update({"code.o": bytes(blocks["code.o"])[:300]}),
    "no code": lambda blocks: blocks.pop("code.o"),
    "no JSON": lambda blocks: blocks.update({"plan.json": b"["}),
    "another kind": lambda blocks: (blocks.clear(), blocks.update({"search.json": b"{}"})),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_entry_that_is_not_of_this_graph_is_compiled_anew(change: str, options: Options, made: list[str]) -> None:
    compile_graph(graph(), threads=1, options=options)
    blocks: Blocks = dict(read_archive(entry(options)))
    CHANGES[change](blocks)
    write_archive(entry(options), blocks)
    for compiled in (2, 2):  # once more, and then the entry is right
        module = compile_graph(graph(), threads=1, options=options)
        assert np.array_equal(module(X), np.maximum(X, 0))
        assert len(made) == compiled


def test_an_entry_of_another_graph_is_not_used(options: Options, made: list[str]) -> None:
    compile_graph(graph(), threads=1, options=options)
    first = entry(options)
    content = first.read_bytes()
    first.unlink()
    compile_graph(graph(1), threads=1, options=options)
    entry(options).write_bytes(content)
    assert compile_graph(graph(1), threads=1, options=options)(X[:1]).shape == (1,)
    assert len(made) == 3


MODEL_CHANGES: dict[str, Callable[[Blocks], Any]] = {
    "another key": lambda blocks: changed_model(blocks, key="0" * 64),
    "no such code": lambda blocks: changed_model(blocks, code="0" * 64),
    "no key of code": lambda blocks: changed_model(blocks, code="../../../etc"),
    "another digest": lambda blocks: changed_model(blocks, digest="0" * 64),
    "no JSON": lambda blocks: blocks.update({"model.json": b"["}),
    "a list": lambda blocks: blocks.update({"model.json": b"[]"}),
    "too few constants": lambda blocks: blocks.update({"constants.bin": bytes(blocks["constants.bin"])[:-64]}),
    "no constants": lambda blocks: blocks.pop("constants.bin"),
}


def changed_model(blocks: Blocks, **values: str) -> None:
    blocks["model.json"] = json.dumps({**json.loads(bytes(blocks["model.json"])), **values}).encode()


@pytest.mark.parametrize("change", MODEL_CHANGES)
def test_an_entry_of_a_model_that_is_not_what_was_put_is_made_anew(
    change: str, options: Options, planned: list[str]
) -> None:
    compile_graph(scaled(2.0), threads=1, options=options)
    path = entry(options, "model.json")
    blocks: Blocks = dict(read_archive(path))
    MODEL_CHANGES[change](blocks)
    write_archive(path, blocks)
    for plans in (2, 2):  # once more, and then the entry is right
        module = compile_graph(scaled(2.0), threads=1, options=options)
        assert np.array_equal(module(X), 2 * X)
        assert len(planned) == plans


def test_a_damaged_entry_of_a_model_is_made_anew(options: Options, planned: list[str]) -> None:
    compile_graph(scaled(2.0), threads=1, options=options)
    path = entry(options, "model.json")
    content = bytearray(path.read_bytes())
    place = content.index(np.full(5, 2, np.float32).tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert np.array_equal(compile_graph(scaled(2.0), threads=1, options=options)(X), 2 * X)
    assert len(planned) == 2


def test_an_entry_under_the_key_of_another_model_is_not_used(options: Options, planned: list[str]) -> None:
    compile_graph(scaled(2.0), threads=1, options=options)
    two = entry(options, "model.json")
    compile_graph(scaled(3.0), threads=1, options=options)
    (three,) = set(entries(options, "model.json")) - {two}
    two.write_bytes(three.read_bytes())
    assert np.array_equal(compile_graph(scaled(2.0), threads=1, options=options)(X), 2 * X)
    assert len(planned) == 3


# What a model is found by ---------------------------------------------------------------------------------------------


def scaled(factor: float, name: str = "y") -> Graph:
    b = GraphBuilder("scaled")
    factors = b.constant(np.full(X.size, factor, np.float32), "factors")
    return b.finish([elementwise.binary(b.input("x", X.shape, "f32"), factors, "mul", name=name)])


def onnx_model(weight: float = 2.0) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    w = numpy_helper.from_array(np.full((5, 2), weight, np.float32), "w")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 2])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_model_that_was_compiled_is_neither_imported_nor_planned(
    options: Options, planned: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.frontend.onnx import importer

    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_model().SerializeToString())
    x = np.ones((3, 5), np.float32)
    first = tilewright.compile(path, shapes={"rows": 3}, threads=1, options=options)
    monkeypatch.setattr(importer, "import_source", None)
    for model in (path, str(path), path.read_bytes(), onnx_model()):
        again = tilewright.compile(model, shapes={"rows": 3}, threads=1, options=options)
        assert np.array_equal(again(x), np.full((3, 2), 10, np.float32))
        assert again.manifest == first.manifest
        assert again.explain(all=True) == first.explain(all=True) != ""
        assert again.artifact.to_blocks() == first.artifact.to_blocks()
    assert len(planned) == 1


def test_whatever_changes_a_model_makes_it_another(options: Options, planned: list[str], tmp_path: Path) -> None:
    machine = tmp_path / "machine.yaml"
    machine.write_text("name: other\nextends: host\ncores: 3\n")
    arguments: list[dict[str, Any]] = [
        {},
        {"shapes": {"rows": 4}},
        {"shapes": {"x": (5, 5)}},
        {"threads": 2},
        {"machine": machine},
        {"options": replace(options, disable=("cse",))},
        {"options": replace(options, input_precision="tf32")},
        {"options": replace(options, intrinsics=Registry())},
        {"model": onnx_model(weight=3.0)},
    ]
    given = {"model": onnx_model(), "shapes": {"rows": 3}, "threads": 1, "options": options}
    for count, changed in enumerate(arguments, start=1):
        values = {**given, **changed}
        tilewright.compile(values.pop("model"), **values)
        assert len(planned) == count, changed
    for changed in arguments:
        values = {**given, **changed}
        tilewright.compile(values.pop("model"), **values)
    assert len(planned) == len(arguments), "each of them is found again"


def test_options_of_running_find_the_same_model(options: Options, planned: list[str]) -> None:
    for same in ({}, {"pin": False}, {"openmp": False}, {"output_pool_bytes": 0}, {"cache_bytes": 1 << 29}):
        compile_graph(graph(), threads=1, options=replace(options, **same))
    assert len(planned) == 1


def test_names_are_part_of_a_model(options: Options, planned: list[str]) -> None:
    for name in ("y", "z"):
        (output,) = compile_graph(scaled(2.0, name), threads=1, options=options).manifest.outputs
        assert output.name == name
    assert len(planned) == 2


@pytest.mark.parametrize("name", ["y", "turn/square"])
def test_outputs_have_their_names_whatever_is_called_so_in_the_graph(
    name: str, options: Options, planned: list[str]
) -> None:
    """The loop has its own name or that of its result; what it computes is called after both."""
    from onnx import TensorProto, helper, numpy_helper

    def value(name: str, kind: int = TensorProto.FLOAT, shape: tuple[int, ...] = (5,)) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [helper.make_node("Mul", ["s", "s"], ["square"]), helper.make_node("Identity", ["c"], ["again"])],
        "body",
        [value("i", TensorProto.INT64, ()), value("c", TensorProto.BOOL, ()), value("s")],
        [value("again", TensorProto.BOOL, ()), value("square")],
    )
    node = helper.make_node("Loop", ["n", "", "x"], [name], name="" if name == "y" else "turn", body=body)
    trips = numpy_helper.from_array(np.array(3, np.int64), "n")
    graph = helper.make_graph([node], "g", [value("x")], [value(name)], [trips])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for _ in range(2):
        module = tilewright.compile(proto, threads=1, options=options)
        assert [spec.name for spec in module.manifest.outputs] == [name]
        assert np.array_equal(module(np.full(5, 2, np.float32)), np.full(5, 256, np.float32))
    assert len(planned) == 1


def test_models_that_differ_in_weights_share_code(options: Options, made: list[str], planned: list[str]) -> None:
    for _ in range(2):
        for factor in (2.0, 3.0, 4.0):
            assert np.array_equal(compile_graph(scaled(factor), threads=1, options=options)(X), factor * X)
    assert len(made) == 1
    assert len(planned) == 3


def test_weights_in_other_files_are_part_of_a_model(options: Options, planned: list[str], tmp_path: Path) -> None:
    import onnx

    for weight in (2.0, 3.0, 3.0):
        (tmp_path / "weights.bin").unlink(missing_ok=True)  # onnx would append
        onnx.save(
            onnx_model(weight=weight),
            tmp_path / "model.onnx",
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
        )
        module = tilewright.compile(tmp_path / "model.onnx", shapes={"rows": 1}, threads=1, options=options)
        assert np.array_equal(module(np.ones((1, 5), np.float32)), np.full((1, 2), 5 * weight, np.float32))
    assert len(planned) == 2


def test_a_model_whose_files_change_while_it_is_read_is_not_kept(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save(onnx_model(), path, save_as_external_data=True, location=weights.name, size_threshold=0)
    plan_graph = compiling.plan_graph

    def disturbed(*arguments: Any) -> Any:
        weights.write_bytes(np.full((5, 2), 7, np.float32).tobytes())
        return plan_graph(*arguments)

    monkeypatch.setattr(compiling, "plan_graph", disturbed)
    tilewright.compile(path, shapes={"rows": 1}, threads=1, options=options)
    assert entries(options, "model.json") == []
    monkeypatch.undo()
    module = tilewright.compile(path, shapes={"rows": 1}, threads=1, options=options)
    assert np.array_equal(module(np.ones((1, 5), np.float32)), np.full((1, 2), 35, np.float32))


def test_a_model_whose_own_file_changes_is_not_kept(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan_graph = tmp_path / "model.onnx", compiling.plan_graph
    path.write_bytes(onnx_model().SerializeToString())

    def disturbed(*arguments: Any) -> Any:
        path.write_bytes(onnx_model(weight=7.0).SerializeToString())
        return plan_graph(*arguments)

    monkeypatch.setattr(compiling, "plan_graph", disturbed)
    tilewright.compile(path, shapes={"rows": 1}, threads=1, options=options)
    assert entries(options, "model.json") == []


def test_a_model_whose_file_becomes_shorter_is_an_error(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.compiler.source import OnnxModel

    path, read_graph = tmp_path / "model.onnx", OnnxModel.graph
    path.write_bytes(onnx_model().SerializeToString())

    def shortened(self: OnnxModel) -> Graph:
        path.write_bytes(path.read_bytes()[:50])
        return read_graph(self)

    monkeypatch.setattr(OnnxModel, "graph", shortened)
    with pytest.raises(InvalidModel, match="cannot be read: it ends at byte"):
        tilewright.compile(path, shapes={"rows": 1}, threads=1, options=options)


@pytest.mark.parametrize("content", [b"", b"\x3a\xff", b"\x3b", b"\x08", b"\xff" * 20, b"\x3a\x02\x0b\x00"])
def test_what_is_no_model_is_reported_by_the_importer(content: bytes, options: Options) -> None:
    with pytest.raises(InvalidModel):
        tilewright.compile(content, options=options)


def test_shapes_that_only_the_importer_can_judge_are_its_matter(options: Options) -> None:
    for shapes in ({"rows": 2.5}, {"rows": "3"}):
        with pytest.raises(CompileError):
            tilewright.compile(onnx_model(), shapes=shapes, options=options)  # type: ignore[arg-type]


# Searches -------------------------------------------------------------------------------------------------------------


def test_a_stored_search_that_cannot_be_read_is_made_again(options: Options) -> None:
    from tilewright.compiler.search import _Kept
    from tilewright.machine import host

    for content, answer in ((b"{", "new"), (b"[" * 100_000, "new"), (b'{"a": 1}', "new"), (b'{"word": "old"}', "old")):
        kept = _Kept(host(), 1, options)
        kept.remembered("product", "x", lambda: {"word": "first"}, lambda stored: stored["word"])
        write_archive(entry(options, "search.json"), {"search.json": content})
        kept = _Kept(host(), 1, options)
        assert kept.remembered("product", "x", lambda: {"word": "new"}, lambda stored: stored["word"]) == answer


def test_a_file_for_another_machine_is_compiled_once_for_this_one(
    options: Options, planned: list[str], tmp_path: Path
) -> None:
    """Each load says so; `planned` grows with the first alone."""
    artifact = compile_graph(graph(), threads=1, options=replace(options, cache=False)).artifact
    path, count = tmp_path / "elsewhere.twm", len(planned)
    replace(artifact, manifest=replace(artifact.manifest, features=("antigravity",))).save(path)
    for _ in range(2):
        with pytest.warns(UserWarning, match="needs the CPU features antigravity, and is compiled again") as said:
            module = tilewright.load(path, threads=1, options=options)
        assert len(said) == 1
        assert np.array_equal(module(X), np.maximum(X, 0))
    assert len(planned) == count + 1
