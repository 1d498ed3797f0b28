"""Loading machine code where memory is in pieces, and unloading it while a process forks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Holes are filled, then one page is left free above a reservation of 6 GB: code of more than a page goes below it, and
# constants of less would go above, too far for the relocations between them.
SCRIPT = """
import ctypes
import numpy as np
from tilewright.compiler.compile import compile_graph
from tilewright.expr import GraphBuilder
from tilewright.expr.ops import elementwise, norm
from tilewright.options import Options
from tilewright.runtime.loader import load_object

b = GraphBuilder()
x = b.input("x", (64, 300), "f32")
y = norm.layer_norm(norm.softmax(elementwise.gelu(x), axis=-1))
module = compile_graph(b.finish([y]), threads=1, options=Options(cache=False))
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
load_object(module.artifact.code, module.manifest)
PRIVATE_ANONYMOUS_NORESERVE = 0x4022
reserved, page = 6 << 30, 4096
place = libc.mmap(None, reserved, 0, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
for size in (1 << 20, 1 << 16, 2 * page, page):
    for _ in range(10_000):
        if libc.mmap(None, size, 0, PRIVATE_ANONYMOUS_NORESERVE, -1, 0) < place:
            break
libc.munmap(place + reserved - 4 * page, page)
loaded = load_object(module.artifact.code, module.manifest)
print("loaded", loaded.address("tw_main") > 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="places memory as Linux does")
def test_code_and_constants_are_placed_together() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["loaded", "True"]


# The hooks of a fork run last to first: LLVM's lock is taken before logging's, which imported first.
HOLDS_ANOTHER_LOCK = """
import logging, os, threading, time
from tilewright.runtime import loader
from llvmlite.binding import ffi
text = "define i32 @f() { ret i32 7 }"
code = loader.load_ir(text, ["f"])
def unload():
    global code
    with logging._lock:
        holds.set()
        while ffi.lib._lock._lock.acquire(blocking=False):
            ffi.lib._lock._lock.release()
            time.sleep(0.001)
        del code
holds = threading.Event()
thread = threading.Thread(target=unload)
thread.start()
holds.wait()
child = os.fork()
if child == 0:
    os._exit(len(loader._pending))
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(loader._pending))
loader.load_ir(text, ["f"])
print(len(loader._pending))
"""
# A thread in LLVM waits for the thread that forks; without hooks of others.
WAITS_IN_LLVM = """
import os, threading
from tilewright.codegen import unlocked
from tilewright.runtime import loader
from llvmlite.binding import ffi
def called(): calls.append(1)
calls = []
ffi.register_lock_callback(called, called)
unlocked._FORK_WAIT_SECONDS = 0.05
holds, ends = threading.Event(), threading.Event()
def work():
    with ffi.lib._lock:
        holds.set()
        ends.wait()
thread = threading.Thread(target=work)
thread.start()
holds.wait()
child = os.fork()
if child == 0:
    loader.load_ir("define i32 @f() { ret i32 7 }", ["f"])
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(calls))
ends.set()
thread.join()
child = os.fork()
if child == 0:
    os._exit(0 if ffi.lib._lock._lock.acquire(blocking=False) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
loader.load_ir("define i32 @f() { ret i32 7 }", ["f"])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    ("script", "printed"), [(HOLDS_ANOTHER_LOCK, "1 1 0"), (WAITS_IN_LLVM, "0 1 0")], ids=["logging", "LLVM"]
)
def test_a_fork_ends_whatever_other_threads_wait_for(script: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, printed.split()), done.stderr[-2000:]
