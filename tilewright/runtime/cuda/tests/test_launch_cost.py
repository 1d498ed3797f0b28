"""What a launch costs beside the driver: our code and cuda-bindings, with a driver that does nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
MEASURE = """
import ctypes, sys, time
from dataclasses import replace
from tilewright.runtime.cuda.arrays import View
from tilewright.runtime.cuda.bindings import CudaDriver
from tilewright.runtime.cuda.module import DeviceModule
from tilewright.runtime.cuda.tests import made

driver = CudaDriver()
assert driver.name == "imitation"
kernel = replace(made.KERNEL, waits=sys.argv[1] == "overlapping")
module = DeviceModule(made.artifact(100 * made.CHAIN, kernel=kernel), driver)
context, view = module._context(0), (View(1, made.BYTES, None), False)
count = ctypes.CDLL("libcuda.so.1").imitation_launches
count.restype = ctypes.c_long
best = float("inf")
for _ in range(50):
    before, start = count(), time.perf_counter()
    context.run([view], [view])
    best = min(best, time.perf_counter() - start)
    assert count() - before == 400
print(best / 400)
"""


@pytest.mark.parametrize("kind", ["plain", "overlapping"])
def test_a_launch_through_the_bindings_costs_less_than_ten_microseconds(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.driver")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(HERE / "imitation.c")], check=True)
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": path}
    command = [sys.executable, "-c", MEASURE, kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    print(f"{1e6 * float(done.stdout):.2f} microseconds per launch")
    assert float(done.stdout) < 10e-6
