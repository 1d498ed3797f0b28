"""What a process has once is made once, whoever asks for it, and also where making it is interrupted."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings

import pytest

from tilewright.runtime import fastcall, pool
from tilewright.runtime.once import creation_lock, once


def test_threads_that_ask_at_once_get_one_value() -> None:
    made = []

    @once
    def make(key: int) -> object:
        made.append(key)
        time.sleep(0.02)  # lets all others come here meanwhile
        return object()

    found: list[object] = []
    threads = [threading.Thread(target=lambda n=n: found.append(make(n % 2))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [0, 1]
    assert len(set(map(id, found))) == 2


def test_what_fails_is_made_again() -> None:
    outcomes = iter([ValueError("not yet"), 7])

    @once
    def make() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, int):
            return outcome
        raise outcome

    with pytest.raises(ValueError, match="not yet"):
        make()
    assert make() == make() == 7


def test_the_handler_of_a_signal_may_ask_while_its_thread_makes() -> None:
    answers = []
    before = signal.signal(signal.SIGUSR1, lambda *_: answers.append(make(1)))

    @once
    def make(key: int) -> int:
        if key == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
        return key

    try:
        assert make(0) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_does_not_wait_for_a_thread_that_it_has_not() -> None:
    holds, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with creation_lock():
            holds.set()
            ends.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        os._exit(0 if creation_lock().acquire(blocking=False) else 1)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_who_keeps_an_address_keeps_the_code() -> None:
    """Not only the cache does: a second copy of the code would be unloaded under its user."""
    if fastcall.available():
        function = fastcall.FastCall([], [], 0, 0, 0, alive=None)
        assert any(kept is fastcall.call_code() for kept in function._alive)
    assert pool.Pool(2, (), None)._code is pool.pool_code(False)
