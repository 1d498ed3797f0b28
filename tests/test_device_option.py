"""`--device`: a device gets what the emulator gets, and a test without a device is skipped with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.agreement import Arithmetic, arithmetic, mismatch
from tests.on_device import on_both
from tilewright import emulator
from tilewright.emulator.tests.harness import kernel
from tilewright.errors import CompileError
from tilewright.runtime.cuda.devices import open_driver
from tilewright.runtime.cuda.driver import DriverFault
from tilewright.runtime.cuda.emulated import EmulatedDriver
from tilewright.runtime.cuda.tests import made

ROOT = Path(__file__).parents[1]
BYTES = 4 * made.ELEMENTS
Array = np.ndarray[Any, Any]


class Changed(EmulatedDriver):
    """A device whose results differ from the emulator's: `change` alters what it computed."""

    def __init__(self, change: Callable[[Array], None]) -> None:
        super().__init__()
        self.change = change

    def synchronize(self, stream: int) -> None:
        for memory in self._memory.values():
            self.change(memory.bytes[:BYTES].view(np.float32))


class Idle(EmulatedDriver):
    """A device that does nothing."""

    def launch(self, prepared: Any, stream: int) -> None:
        pass


def add_one_bit(values: Array) -> None:
    values.view(np.uint32)[values > 2.5] += 1  # the sums of ones and twos


def add(driver: EmulatedDriver, code: str = made.ADD) -> Array:
    x, y, out = (np.full(made.ELEMENTS, value, np.float32) for value in (1, 2, 9))
    result = on_both(driver, emulator.parse(code), "add", (1, 1, 1), (32, 1, 1), [x, y, out])
    assert result.diagnostics == []
    assert result.counts.total("global", "transactions") == 12
    assert driver.allocated_bytes == 0
    return out


APPROXIMATE = made.ADD.replace("add.f32 %f3, %f1, %f2;", "ex2.approx.f32 %f3, %f2; sub.f32 %f3, %f3, %f1;")  # 3 too


def test_a_device_that_gives_the_same_agrees() -> None:
    assert set(add(EmulatedDriver())) == {3}
    assert set(add(EmulatedDriver(), APPROXIMATE)) == {3}


def test_a_device_that_does_nothing_does_not_agree() -> None:
    with pytest.raises(AssertionError, match=r"argument 2 of add: element \[0\]: 3.0 .* and 9.0 .* 32 of 32 "):
        add(Idle())


def test_one_bit_is_too_much_where_arithmetic_is_defined() -> None:
    with pytest.raises(AssertionError, match=r"3.0 \(40400000\) and 3.0000002.* \(40400001\)"):
        add(Changed(add_one_bit))


def test_approximate_functions_have_bounds_and_results_are_those_of_the_device() -> None:
    assert set(add(Changed(add_one_bit), APPROXIMATE).view(np.uint32)) == {0x40400001}

    def much(values: Array) -> None:
        values[values > 2.5] *= np.float32(1.001)

    with pytest.raises(AssertionError, match="do not agree within"):
        add(Changed(much), APPROXIMATE)


@pytest.mark.parametrize(
    ("body", "error", "order"),
    [("add.rn.f32 %f1, %f1, %f2; mul.rn.f32 %f1, %f1, %f1; fma.rn.f32 %f1, %f1, %f2, %f1; sqrt.rn.f32 %f1, %f2;",
      0, ""),
     ("div.rn.f32 %f1, %f1, %f2; cvt.rn.f16.f32 %h1, %f1; red.global.add.u32 [%rd0], %r1;", 0, ""),
     ("add.f32 %f1, %f1, %f2; sub.f32 %f1, %f1, %f2;", 0, ""),
     ("add.f32 %f1, %f1, %f2; mul.f32 %f1, %f1, %f2;", 2.0**-20, ""),  # may become a fused multiply-add
     ("ex2.approx.ftz.f32 %f1, %f2;", 2.0**-20, ""),
     ("tanh.approx.f32 %f1, %f2;", 2.0**-8, ""),
     ("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r1, %r2}, {%r3}, {%r4}, {%r5, %r6};", 0, ""),
     ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3}, {%f1, %f2, %f3, %f4};",
      2.0**-14, ""),
     ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r5, %r6}, {%r1, %r2}, {%r3}, {%r5, %r6};", 2.0**-8, ""),
     ("red.global.add.f32 [%rd0], %f1;", 2.0**-14, ""),
     ("atom.global.add.u32 %r1, [%rd0], %r2;", 0, "atom.global.add.u32"),
     ("mov.u32 %r1, %clock;", 0, "%clock")],
)  # fmt: skip
def test_what_is_open_in_arithmetic(body: str, error: float, order: str) -> None:
    assert arithmetic(emulator.parse(kernel(body)), "k") == Arithmetic(error, order)


def test_bits_of_floats_are_compared_as_such() -> None:
    one = np.array([1.0, 1000.0], np.float16)
    near, far = np.array([1.001, 1000.0], np.float16), np.array([3.0, 1000.0], np.float16)
    allowed = Arithmetic(2.0**-14)
    for kind in (np.float16, np.int16, np.uint8):
        assert mismatch(one.view(kind), near.view(kind), allowed) == ""
        assert mismatch(one.view(kind), near.view(kind), Arithmetic()) != ""
    assert mismatch(one, far, allowed).startswith("element [0]: 1.0 (3c00) and 3.0 (4200); 1 of 2 do not agree within")
    assert mismatch(np.array([4, 5], np.int32), np.array([4, 9], np.int32), allowed) != ""
    assert mismatch(one, far, Arithmetic(order="%clock")) == ""
    nan, other = np.array([0x7FC00000], np.uint32), np.array([0x7FFFFFFF], np.uint32)
    assert mismatch(nan.view(np.float32), other.view(np.float32), Arithmetic()) == ""


def test_scalars_and_null_pointers_are_words_of_a_launch() -> None:
    given: list[tuple[int, ...]] = []

    class Noted(Idle):
        def prepare(self, library: Any, kernel: Any, arguments: Sequence[Any]) -> Any:
            given.append(tuple(each.word.value for each in arguments[:3]))
            return super().prepare(library, kernel, arguments)

    text = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .f32 a, .param .u64 b, .param .s32 c, .param .u64 d) { ret; }
"""
    on_both(Noted(), emulator.parse(text), "k", (1, 1, 1), (1, 1, 1), [1.0, None, -1])
    assert given == [(0x3F800000, 0, 0xFFFFFFFF)]


def test_an_array_given_twice_is_one_buffer() -> None:
    x = np.arange(made.ELEMENTS, dtype=np.float32)
    on_both(EmulatedDriver(), emulator.parse(made.ADD), "add", (1, 1, 1), (32, 1, 1), [x, x, x])
    np.testing.assert_array_equal(x, 2 * np.arange(made.ELEMENTS))


def test_a_kernel_with_diagnostics_stays_off_the_device() -> None:
    x, short = np.zeros(made.ELEMENTS, np.float32), np.zeros(8, np.float32)
    driver = made.Recorder()
    result = on_both(driver, emulator.parse(made.ADD), "add", (1, 1, 1), (32, 1, 1), [x, short, x])
    assert result.diagnostics != []
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


IMITATION = """
from tilewright.runtime.cuda import devices
from tilewright.runtime.cuda.emulated import EmulatedDriver

class Imitation(EmulatedDriver):
    def __init__(self, ordinal):
        super().__init__()

    def launch(self, prepared, stream):
        if {runs}:
            super().launch(prepared, stream)

devices.CudaDriver = Imitation
"""
FAULTY = """
from tilewright.runtime.cuda import devices
from tilewright.runtime.cuda.driver import DriverFault
from tilewright.runtime.cuda.emulated import EmulatedDriver

class Faulty(EmulatedDriver):
    lost = False

    def __init__(self, ordinal):
        super().__init__()

    def launch(self, prepared, stream):
        self.lost = True

    def synchronize(self, stream):
        if self.lost:
            raise DriverFault("ILLEGAL_ADDRESS")

devices.CudaDriver = Faulty
"""
EXACT = "tilewright/emulator/tests/test_scalar.py::test_bfi"
WRONG_ON_PURPOSE = "tilewright/emulator/tests/test_diagnostics.py::test_neighbours_need_a_barrier"


@pytest.mark.parametrize(("runs", "failed"), [(True, 0), (False, 1)])
def test_tests_of_the_emulator_reach_a_device(runs: bool, failed: int, tmp_path: Path) -> None:
    """Those of kernels that are wrong on purpose do not, and pass whatever the device does."""
    (tmp_path / "imitation.py").write_text(IMITATION.format(runs=runs))
    command = [sys.executable, "-m", "pytest", "-p", "imitation", "-p", "no:cacheprovider", "--device=cuda"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    tests = [f"{EXACT}[0-8]", WRONG_ON_PURPOSE]
    done = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == failed, done.stdout
    assert done.stdout.count(f"FAILED {EXACT}") == failed
    assert f"{6 - failed} passed" in done.stdout  # one of the first test, five of the other
    assert bool(failed) == ("emulator and device disagree" in done.stdout)


@pytest.mark.parametrize("processes", [[], ["-n", "1"]])
def test_what_faults_ends_the_run_or_its_process(processes: list[str], tmp_path: Path) -> None:
    if processes:
        pytest.importorskip("xdist")
    (tmp_path / "faulty.py").write_text(FAULTY)
    tests = [f"{EXACT}[0-8]", f"{EXACT}[31-1]"]
    command = [sys.executable, "-m", "pytest", "-p", "faulty", "-p", "no:cacheprovider", "--device=cuda", *processes]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 1, done.stdout
    assert [done.stdout.count(f"FAILED {test}") for test in tests] == ([2, 2] if processes else [1, 0])
    assert ("has lost the device: ILLEGAL_ADDRESS" in done.stdout + done.stderr) == (not processes)


def test_lines_of_sources_are_left_out_and_newer_ptx_is_skipped() -> None:
    loaded: list[bytes] = []

    class Noted(EmulatedDriver):
        def load(self, code: bytes) -> emulator.Module:
            loaded.append(code)
            if b"version 9.9" in code:
                raise DriverFault("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "9.4 is the newest")
            return super().load(code)

    line = ".loc\t1 2 3, function_name $L__info_string0, inlined_at 1 2 3"
    sourced = made.ADD.replace("mov.u32 %r1", f"\t{line}\nmov.u32 %r1")
    assert set(add(Noted(), sourced)) == {3}
    assert (b".loc" in loaded[0], b"mov.u32 %r1" in loaded[0]) == (False, True)
    with pytest.raises(pytest.skip.Exception, match=r"9\.4 is the newest"):
        add(Noted(), made.ADD.replace("version 7.0", "version 9.9"))


def test_the_text_names_the_clusters_of_a_launch() -> None:
    """Unless it does already; entries of other names stay as they are."""
    loaded: list[bytes] = []

    class Noted(EmulatedDriver):
        def load(self, code: bytes) -> emulator.Module:
            loaded.append(code)
            return super().load(code)

    store = """{ .reg .b32 %r; .reg .b64 %rd; mov.u32 %r, %cluster_nctarank; ld.param.u64 %rd, [out];
    st.global.u32 [%rd], %r; ret; }"""
    head = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k2(.param .u64 out) { ret; }"
    for limit, cluster in (("", (4, 2, 1)), (".reqnctapercluster 4, 2", (4, 2)), (".reqnctapercluster 4, 2", ())):
        out = np.zeros(1, np.uint32)
        text = f"{head}\n.visible .entry k(.param .u64 out)\n{limit}\n{store}"
        on_both(Noted(), emulator.parse(text), "k", (4, 2, 1), (1, 1, 1), [out], cluster=cluster)
        assert out.tolist() == [8]
        assert loaded[-1].count(b".reqnctapercluster 4, 2") == loaded[-1].count(b".reqnctapercluster") == 1
        assert b"k2(.param .u64 out) { ret; }" in loaded[-1]


def test_tensor_maps_have_names_of_elements() -> None:
    """As parameters and, where the parameter is a pointer, in memory."""
    seen: list[Any] = []

    class Noted(Idle):
        def prepare(self, library: Any, kernel: Any, arguments: Sequence[Any]) -> Any:
            seen.extend(each.map.element for each in arguments)
            return super().prepare(library, kernel, arguments)

    def launch(parameter: str) -> None:
        text = f".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k({parameter}) {{ ret; }}"
        maps = [emulator.TensorMap(np.zeros((8, 16), np.float16), (8, 16))]
        on_both(Noted(), emulator.parse(text), "k", (1, 1, 1), (1, 1, 1), maps)

    launch(".param .align 64 .b8 a[128]")
    launch(".param .u64 a")
    assert seen == ["f16", "f16"]
