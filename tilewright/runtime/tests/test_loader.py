"""Loading machine code where memory is in pieces."""

from __future__ import annotations

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
y = norm.layer_norm(b, norm.softmax(b, elementwise.gelu(b, x), axis=-1))
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
