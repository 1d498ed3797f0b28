"""The garbage collector is off while a model is compiled, and after that as it was before."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from tilewright.collection import paused_collection
from tilewright.compiler import compile as compiling
from tilewright.errors import InvalidArgument
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise
from tilewright.options import Options


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def graph() -> Graph:
    b = GraphBuilder("relu")
    return b.finish([elementwise.relu(b, b.input("x", (3,), "f32"))])


@pytest.mark.parametrize("enabled", [True, False])
def test_compiling_pauses_the_collector(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    generate = compiling._generate

    def noted(*arguments: object) -> object:
        seen.append(gc.isenabled())
        return generate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compiling, "_generate", noted)
    (gc.enable if enabled else gc.disable)()
    compiling.compile_graph(graph(), threads=1, options=Options(cache=False))
    assert seen == [False]
    assert gc.isenabled() == enabled


def test_a_failure_turns_the_collector_on_again() -> None:
    with pytest.raises(InvalidArgument):
        compiling.compile_graph(graph(), threads=1, options=Options(cache=False, disable=("nothing",)))
    assert gc.isenabled()


def test_pauses_may_be_nested() -> None:
    with paused_collection():
        with paused_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_child_that_is_forked_in_a_pause_collects() -> None:
    with paused_collection():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
    assert os.waitpid(child, 0)[1] == 0
