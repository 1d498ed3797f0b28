"""An entry of the cache that is not what this plan would have put is compiled anew, whatever is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.compiler import compile as compiling
from tilewright.compiler.compile import compile_graph
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise
from tilewright.options import Options
from tilewright.runtime.archive import read_archive, write_archive

X = np.linspace(-1, 1, 37, dtype=np.float32)
Blocks = dict[str, Any]


def graph(size: int = 37) -> Graph:
    b = GraphBuilder("relu")
    return b.finish([elementwise.relu(b, b.input("x", (size,), "f32"), name="y")])


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


def entry(options: Options) -> Path:
    (path,) = options.cache_dir.glob("??/*.zip")
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


def test_a_stored_search_that_cannot_be_read_is_made_again(options: Options) -> None:
    from tilewright.compiler.search import _Kept
    from tilewright.machine import host

    for content, answer in ((b"{", "new"), (b"[" * 100_000, "new"), (b'{"a": 1}', "new"), (b'{"word": "old"}', "old")):
        kept = _Kept(host(), 1, options)
        kept.remembered("product", "x", lambda: {"word": "first"}, lambda stored: stored["word"])
        write_archive(entry(options), {"search.json": content})
        kept = _Kept(host(), 1, options)
        assert kept.remembered("product", "x", lambda: {"word": "new"}, lambda stored: stored["word"]) == answer
