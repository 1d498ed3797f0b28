"""Code that modules share is made beside a compilation, and where it is needed if that came to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tilewright.runtime import fastcall, pool, ready

AHEAD = """
import threading
from tilewright.runtime import fastcall, pool, ready
ready.default_threads = lambda: 2
main = threading.current_thread()
made = []
compiled = pool.load_ir
def noted(*given):
    made.append(threading.current_thread() is main)
    return compiled(*given)
pool.load_ir = fastcall.load_ir = noted
with ready.shared_code_ahead(3):
    while len(made) < 2:
        pass
print(made, threading.active_count())
pool.get_pool(3), fastcall.call_code()
with ready.shared_code_ahead(3):
    pass
print(len(made))
"""


def test_the_code_is_made_once_and_on_another_thread() -> None:
    done = subprocess.run([sys.executable, "-c", AHEAD], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["[False, False] 1", "2"], done.stderr[-2000:]


def test_one_core_makes_it_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool.pool_code.cache_clear()
    monkeypatch.setattr(ready, "default_threads", lambda: 1)
    with ready.shared_code_ahead(2):
        assert pool.pool_code.cache_info().currsize == 0
    assert pool.pool_code(False).address("tw_parallel") > 0


def test_an_error_is_raised_where_the_code_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("no memory for code")

    pool.pool_code.cache_clear()
    monkeypatch.setattr(pool, "load_ir", refused)
    with ready.shared_code_ahead(2):
        pass
    with pytest.raises(RuntimeError, match="no memory for code"):
        pool.pool_code(False)
    monkeypatch.undo()
    assert fastcall.call_code().address("tw_fast") > 0
