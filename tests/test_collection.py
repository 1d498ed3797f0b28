"""The garbage collector is off while a model is compiled, and after that as it was before."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator

import pytest

from tilewright.collection import collect_new, paused_collection
from tilewright.compiler import compile as compiling
from tilewright.compiler import stopwatch
from tilewright.errors import InvalidArgument
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise, linalg
from tilewright.options import Options
from tilewright.runtime import calibrate


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def graph() -> Graph:
    b = GraphBuilder("relu")
    return b.finish([elementwise.relu(b.input("x", (3,), "f32"))])


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


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_a_pause_collects_what_it_is_asked_to() -> None:
    with paused_collection():
        garbage = weakref.ref(Node())
        assert garbage() is not None
        collect_new()
        assert garbage() is None


def test_a_collector_that_the_user_paused_is_left_alone() -> None:
    gc.disable()
    garbage = weakref.ref(Node())
    with paused_collection():
        collect_new()
    assert garbage() is not None


def test_each_timed_schedule_is_followed_by_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    collections: list[None] = []
    monkeypatch.setattr(stopwatch, "collect_new", lambda: collections.append(None))
    monkeypatch.setattr(calibrate, "measure", lambda machine: machine)
    b = GraphBuilder("product")
    product = linalg.matmul(b.input("x", (40, 24), "f32"), b.input("w", (24, 48), "f32"))
    options = Options(cache=False, search="joint", trials=2)
    compiling.compile_graph(b.finish([product]), threads=1, options=options)
    assert len(collections) >= 2


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
