"""Modules made, called and dropped by many threads at once, in a child: a crash there is a failure here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.runtime.artifact import Artifact

MAKE_CALL_DROP = """
import sys, threading, time
import numpy as np
from tilewright.options import Options
from tilewright.runtime.container import load

path, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sys.setswitchinterval(1e-5)
barrier, right, until = threading.Barrier(count), [], time.monotonic() + seconds

def work(number):
    a, b = np.full(1000, number, np.float32), np.arange(1000, dtype=np.float32)
    barrier.wait()  # the first modules of the process are made at once
    while True:
        module = load(path, threads=1 + number % 3, options=Options(openmp=False))
        results = [module(a, b) for _ in range(3)]
        del module
        if not all(np.array_equal(result, a + b + np.float32(0.5)) for result in results):
            return
        if time.monotonic() > until:
            right.append(number)
            return

threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(right), "right")
"""


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("count", [2, 20])
def test_threads_that_make_their_first_modules_at_once(
    count: int, tmp_path: Path, add_artifact: Callable[..., Artifact]
) -> None:
    """The code that checks arrays was loaded once per thread, and unloaded under the modules that used it."""
    add_artifact((1000,)).save(tmp_path / "add.twm")
    for _ in range(2):  # cold, then warm for the rest of the time
        assert run(MAKE_CALL_DROP, tmp_path / "add.twm", count, 0.5) == f"{count} right\n"


FORK_WHILE_OTHERS_LOAD = """
import faulthandler, os, sys, threading, time, warnings
import numpy as np
from tilewright.options import Options
from tilewright.runtime.container import load

warnings.simplefilter("ignore")
path, ones = sys.argv[1], np.ones(1000, np.float32)
sys.setswitchinterval(1e-5)

def work():
    while True:
        load(path, threads=2, options=Options(openmp=False))(ones, ones)

load(path)  # describes the host, once: what reads its file may have locks of its own
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
right = 0
for _ in range(8):
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(20, exit=True)
        os._exit(0 if (load(path, threads=2)(ones, ones) == 2.5).all() else 1)
    right += os.waitpid(child, 0)[1] == 0
print(right, "right")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_loads_code_whatever_other_threads_were_loading(
    tmp_path: Path, add_artifact: Callable[..., Artifact]
) -> None:
    """Where a thread was inside LLVM, the child waited for its lock for ever. Daemon threads in calls end with it."""
    add_artifact((1000,)).save(tmp_path / "add.twm")
    assert run(FORK_WHILE_OTHERS_LOAD, tmp_path / "add.twm") == "8 right\n"
