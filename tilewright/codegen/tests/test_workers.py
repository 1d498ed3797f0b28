"""Threads beside the caller: order, errors, and what is left when a thread is not to be had."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tilewright.codegen.workers import Workers


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_are_in_the_order_of_their_items(threads: int) -> None:
    with Workers(lambda item: item * item, threads) as workers:
        for item in range(40):
            workers.give(item)
        assert workers.results() == [item * item for item in range(40)]


def test_one_thread_is_the_caller() -> None:
    with Workers(lambda _: threading.get_ident(), 1) as workers:
        for item in range(3):
            workers.give(item)
        assert set(workers.results()) == {threading.get_ident()}


def test_work_begins_before_results_are_asked_for() -> None:
    began = threading.Event()
    with Workers(lambda _: began.set(), 2) as workers:
        workers.give(0)
        assert began.wait(60)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_error_of_the_first_item_is_raised(threads: int) -> None:
    def work(item: int) -> int:
        if item % 2:
            raise RuntimeError(f"item {item}")
        return item

    with Workers(work, threads) as workers:
        for item in range(10):
            workers.give(item)
        with pytest.raises(RuntimeError, match="item 1"):
            workers.results()


def test_no_thread_outlives_an_interrupted_statement() -> None:
    release = threading.Event()
    before = threading.active_count()

    def work(_: int) -> None:
        release.wait(60)

    def interrupted() -> None:
        with Workers(work, 2) as workers:
            for item in range(9):
                workers.give(item)
            release.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() == before


def test_the_caller_works_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with Workers(lambda item: -item, 4) as workers:
        for item in range(3):
            workers.give(item)
        assert workers.results() == [0, -1, -2]


FORKS = """
import os, threading, warnings
from tilewright.codegen.workers import Workers
warnings.simplefilter("ignore", DeprecationWarning)
began, release, parent = threading.Event(), threading.Event(), os.getpid()
def work(item):
    if os.getpid() == parent:
        began.set()
        release.wait()
    return item + 1
with Workers(work, 2) as workers:
    workers.give(1)
    workers.give(2)
    began.wait()
    child = os.fork()
    if child == 0:
        os._exit(workers.results() == [2, 3])
    release.set()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), workers.results())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_the_child_of_a_fork_does_what_its_threads_had_begun() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert done.stdout.split(maxsplit=1) == ["1", "[2, 3]\n"], done.stderr[-2000:]
