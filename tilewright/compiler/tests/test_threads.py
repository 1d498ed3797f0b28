"""Threads that compile, call and drop modules at once, in a child: a crash there is a failure here."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMPILE_CALL_DROP = """
import sys, threading
import numpy as np
from tilewright.compiler.compile import compile_graph
from tilewright.expr import GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import elementwise
from tilewright.options import Options

machine, count, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.setswitchinterval(1e-5)
barrier, right = threading.Barrier(count), []

def work(number):
    barrier.wait()  # the first compilations of the process
    for turn in range(rounds):
        b = GraphBuilder()
        x = b.input("x", (7 + number + turn,), "f32")
        graph = b.finish([elementwise.gelu(x) if number % 2 else elementwise.relu(x)])
        module = compile_graph(graph, machine=machine, threads=1 + number % 2, options=Options(cache=False))
        given = np.linspace(-1, 1, 7 + number + turn, dtype=np.float32)
        found, (wanted,) = module(given), evaluate(graph, [given])
        del module
        if not np.allclose(found, wanted, atol=1e-6):
            return
    right.append(number)

threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(right), "right")
"""


@pytest.mark.parametrize(("machine", "count", "rounds"), [("host", 12, 2), ("sm_90a", 2, 1)])
def test_threads_that_compile_at_once(machine: str, count: int, rounds: int) -> None:
    arguments = [sys.executable, "-c", COMPILE_CALL_DROP, machine, str(count), str(rounds)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"{count} right\n"), done.stderr[-2000:]
