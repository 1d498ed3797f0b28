"""`--device`: a device gets what the emulator gets, and a test without a device is skipped with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.on_device import on_both
from tilewright import emulator
from tilewright.errors import CompileError
from tilewright.runtime.cuda.devices import open_driver
from tilewright.runtime.cuda.emulated import EmulatedDriver
from tilewright.runtime.cuda.tests import made

ROOT = Path(__file__).parents[1]


class Marked(EmulatedDriver):
    """A device that can be told from the emulator: everything it gives back is one larger."""

    def download(self, host: int, address: int, size: int, stream: int) -> None:
        values = self._view(address, size)[0].view(np.float32)
        values += 1
        super().download(host, address, size, stream)


@pytest.mark.parametrize("fresh", [False, True])
def test_arrays_hold_what_the_device_computed(fresh: bool) -> None:
    x, y, out = (np.full(made.ELEMENTS, value, np.float32) for value in (1, 2, 9))
    given: Any = emulator.Uninitialised(out) if fresh else out
    driver = Marked()
    result = on_both(driver, emulator.parse(made.ADD), "add", (1, 1, 1), (32, 1, 1), [x, y, given])
    assert result.findings == []
    assert result.counts.total("global", "transactions") == 12
    assert [set(each.tolist()) for each in (x, y, out)] == [{2.0}, {3.0}, {4.0}]
    assert driver.allocated_bytes == 0


def test_an_array_given_twice_is_one_buffer() -> None:
    x = np.arange(made.ELEMENTS, dtype=np.float32)
    on_both(EmulatedDriver(), emulator.parse(made.ADD), "add", (1, 1, 1), (32, 1, 1), [x, x, x])
    np.testing.assert_array_equal(x, 2 * np.arange(made.ELEMENTS))


def test_a_kernel_with_findings_stays_off_the_device() -> None:
    x, short = np.zeros(made.ELEMENTS, np.float32), np.zeros(8, np.float32)
    driver = made.Recorder()
    result = on_both(driver, emulator.parse(made.ADD), "add", (1, 1, 1), (32, 1, 1), [x, short, x])
    assert result.findings != []
    assert driver.calls == []


def test_without_a_device_tests_are_skipped_with_the_reason() -> None:
    try:
        open_driver("cuda")
    except CompileError as error:
        reason = error.message.splitlines()[0][:40]
    else:
        pytest.skip("there is a GPU")
    test = "tests/test_gpu_chain.py::test_element_work[1-sm_80]"
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--device=cuda", test]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert f"--device=cuda: {reason}" in done.stdout
