"""The real bindings, down to an imitation of the driver's library (`library.py`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.runtime.cuda.tests.library import SHIM

ROOT = Path(__file__).parents[4]
CALLS = """
from dataclasses import replace
import numpy as np
from tilewright.runtime.cuda.tests import library, made
library.install()
from tilewright.errors import DeviceError
from tilewright.runtime.cuda.bindings import CudaDriver
from tilewright.runtime.cuda.devices import open_driver
from tilewright.runtime.cuda.driver import Resources
from tilewright.runtime.cuda.module import DeviceModule

driver, x = open_driver("cuda"), np.arange(made.ELEMENTS, dtype=np.float32)
assert (driver.name, driver.cache_bytes) == ("an imitation", 1 << 16)
module = DeviceModule(made.artifact(), "cuda")
for number in range(4):  # one by one, recorded, replayed
    assert (module(x + number) == x + number + 2).all()
assert library.STATE.graphs and not library.STATE.overlapping
assert all(each.seconds > 0 for each in module.profile(x, repeats=2))
assert len(module.samples(x, repeats=3)) == 3
assert module.resources() == {"add": Resources(4, 3, 1)}  # the numbers of the attributes
for name, broken, wanted in (
    ("text", made.artifact(code="this is no PTX"), "CUDA_ERROR_INVALID_PTX: ptxas fatal: "),
    ("entry", made.artifact(code=made.ADD.replace("entry add", "entry sub")), "CUDA_ERROR_NOT_FOUND: status 500"),
    ("shared memory", made.artifact(kernel=replace(made.KERNEL, shared_bytes=300_000)), "CUDA_ERROR_INVALID_VALUE: "),
):
    try:
        DeviceModule(broken, "cuda")(x)
    except DeviceError as error:
        assert wanted in str(error), (name, str(error))
    else:
        raise AssertionError(name)
waiting = replace(made.KERNEL, waits=True)
code = made.ADD.replace(".version 7.0", ".version 7.8").replace("sm_80", "sm_90")
right = code.replace("ld.global", "griddepcontrol.wait; ld.global", 1)
early = DeviceModule(made.artifact(code=right, kernel=waiting), "cuda")
for number in range(4):
    assert (early(x + number) == x + number + 2).all()
assert library.STATE.overlapping == 2 * len(made.CHAIN)  # one call by itself, and one that is recorded
try:
    DeviceModule(made.artifact(code=code, kernel=waiting, name="never waits"), "cuda")(x)
except DeviceError as error:
    assert "CUDA_ERROR_INVALID_VALUE" in str(error)
else:
    raise AssertionError("it starts early, and does not wait")
library.STATE.version, before = 12020, library.STATE.overlapping
older = CudaDriver()
library.STATE.version = library.VERSION
assert (DeviceModule(early.artifact, older)(x) == x + 2).all()
assert library.STATE.overlapping == before, "older drivers record launches without what they say of others"
other = DeviceModule(made.artifact(made.CHAIN[:1], name="other"), "cuda")
other(x)
stream = driver.new_stream()
assert driver._api.cuStreamBeginCapture(stream, driver._api.CUstreamCaptureMode(0)) == (0,)
module._context(stream)  # memory is taken and given back while the caller records
del module, other, early, older
assert driver._api.cuStreamEndCapture(stream)[0] == 0
driver.drop_stream(stream)
assert not library.STATE.memory, "memory goes with modules"
assert not library.STATE.events, "events go with their objects"
assert not library.STATE.recorded, "streams go with their modules"
"""
KERNELS = (
    "tests/test_gpu_chain.py::test_element_work[1-sm_80]",
    "tests/test_gpu_tensor_copies.py::test_a_graph_gets_products_of_four_warps",
    "tilewright/emulator/tests/test_bulk.py::test_a_tensor_load_swizzles_and_fills_with_zeros[128-64]",
    "tilewright/emulator/tests/test_bulk.py::test_a_multicast_reaches_every_block",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    pytest.importorskip("cuda.bindings.driver")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "shim.c").write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(folder / "shim.c")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def test_modules_run_through_the_bindings(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLS], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_tests_of_kernels_run_on_a_device(environment: dict[str, str]) -> None:
    """With tensor maps as parameters and in memory, more shared memory than a block has unasked, arrays of tests of the
    emulator, and clusters.
    """
    plugin = ["-p", "tilewright.runtime.cuda.tests.library", "-p", "no:cacheprovider", "--device=cuda"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *KERNELS],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert f"{len(KERNELS)} passed" in done.stdout, done.stdout
