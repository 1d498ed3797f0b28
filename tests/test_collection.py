"""The garbage collector is off while a model is compiled, and after that as it was before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tilewright.collection import collect_new, imports, paused_collection
from tilewright.compiler import compile as compiling
from tilewright.compiler import timer
from tilewright.errors import InvalidArgument
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise, linalg
from tilewright.options import Options
from tilewright.runtime import calibrate


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """As a user has it: the session of the tests keeps what it imported out of searches (`conftest.py`)."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.enable()
    yield
    gc.enable()
    if frozen:
        gc.freeze()


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
    monkeypatch.setattr(timer, "collect_new", lambda: collections.append(None))
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


@pytest.fixture
def module() -> Iterator[str]:
    """The name of a module that a test imports."""
    yield "imported_by_a_test"
    sys.modules.pop("imported_by_a_test", None)


def _is_old(each: object) -> bool:
    return any(each is old for old in gc.get_objects(2))


def test_what_imports_make_is_old(module: str) -> None:
    with imports():
        sys.modules[module] = ModuleType(module)
        made = [Node()]
    assert _is_old(made)
    assert gc.isenabled()


def test_what_is_made_without_an_import_is_young() -> None:
    with imports():
        made = [Node()]
        assert not _is_old(made)
    assert not gc.get_freeze_count()


def test_objects_that_the_user_froze_stay_frozen(module: str) -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with imports():
            sys.modules[module] = ModuleType(module)
        assert 0 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


def test_imports_leave_a_collector_that_the_user_paused_alone(module: str) -> None:
    gc.disable()
    with imports():
        sys.modules[module] = ModuleType(module)
        made = [Node()]
    assert not _is_old(made)
    assert not gc.isenabled()


def test_no_collection_of_a_first_compilation_looks_at_what_was_imported() -> None:
    code = """
import gc
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import linalg
import tilewright
b = GraphBuilder()
x, w = b.input("x", (16, 32), "f32"), b.input("w", (8, 32), "f32")
graph = b.finish([linalg.linear(x, w)])
largest = 0
def noted(phase, about):
    global largest
    if phase == "start":
        largest = max(largest, sum(len(gc.get_objects(each)) for each in range(about["generation"] + 1)))
gc.callbacks.append(noted)
tilewright.compile(graph, threads=1, options=tilewright.Options(cache=False))
gc.callbacks.remove(noted)
print(largest)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 30_000  # the modules are made of 90,000
