"""Timing on a device: on the emulator as one, with a library of NumPy's; every way in which it can go wrong."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from tilewright.errors import DeviceError
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.reproduce import device as device_module
from tilewright.reproduce.experiment import find
from tilewright.reproduce.matmul import ablation, measured
from tilewright.reproduce.matmul.measured import Measured, measure
from tilewright.reproduce.matmul.switches import Settings, Tiling, Tilings, closed, settings
from tilewright.runtime.cuda.driver import DriverFault
from tilewright.runtime.cuda.emulated import EmulatedDriver
from tilewright.runtime.cuda.measure import Timing
from tilewright.runtime.cuda.tests.made import Recorder

SMALL = Tilings(
    Tiling((4, 16, 16), (1, 2)), Tiling((8, 8, 16), (1, 2)), Tiling((16, 16, 16), (1, 2)), Tiling((32, 32, 32), (2, 2))
)
LEVELS = {level: settings(on, SMALL) for level, on in closed([]).items() if level in ("L3", "L7")}


class Clock(EmulatedDriver):
    """A device on which a recorded sequence takes `took` seconds, whatever it does; a product sums up what it runs."""

    def __init__(self, took: float = 1e-3) -> None:
        super().__init__()
        self.took = took

    def seconds(self, start: Any, end: Any) -> float:
        return self.took


class Library:
    """A product that takes twice as long as all else; `events` has its samples in order."""

    name = "torch 0"

    def __init__(self, events: list[str] | None = None, full: bool = False) -> None:
        self.events, self.full, self.released = events if events is not None else [], full, 0

    def sample(self, a: Any, b: Any, sets: int) -> measured.Sample:
        if self.full:
            raise RuntimeError("out of memory\nfor good")
        assert a.dtype == b.dtype == np.float16

        def sample() -> float:
            self.events.append("library")
            return 2e-3

        return sample

    def release(self) -> None:
        self.released += 1


def machine() -> Gpu:
    found = resolve(ablation.MACHINE)
    assert isinstance(found, Gpu)
    return found


def timed(driver: Any, library: Any = None, sizes: tuple[int, ...] = (32,), **given: Any) -> Measured:
    levels: dict[str, Settings] = given.pop("levels", LEVELS)
    return measure(levels, sizes, machine(), driver, library, warm=1, runs=2, **given)


def test_levels_and_library_are_timed_and_right() -> None:
    driver, library = Clock(), Library()
    found = timed(driver, library, (64, 32))
    assert (found.device, found.library, found.wrong, found.left_out) == ("emulator", "torch 0", [], [])
    assert list(found.levels) == ["L3", "L7"]
    assert {size: each.samples for size, each in found.levels["L7"].items()} == {32: 2, 64: 2}
    assert found.levels["L3"][32] == Timing(5e-4, 5e-4, 5e-4, 2)  # two sets, a millisecond for both
    assert found.products[64].seconds == 1e-3
    assert (library.released, driver.allocated_bytes) == (2, 0)
    assert Measured.from_json(json.loads(json.dumps(asdict(found)))) == found


def test_samples_come_in_turns() -> None:
    events: list[str] = []

    class Watched(Clock):
        def launch_graph(self, graph: Any, stream: int) -> None:
            events.append("ours")

    timed(Watched(), Library(events))
    assert events == ["ours", "ours", "library"] * 3  # once to warm up, then twice


def test_inputs_rotate_and_exceed_the_cache() -> None:
    """Every recorded product is of another set; the sets together are larger than twice the cache."""
    driver, seen = Recorder(), []
    prepare = driver.prepare

    def noted(library: Any, kernel: Any, arguments: Any) -> Any:
        seen.append(tuple(each.word.value for each in arguments))
        return prepare(library, kernel, arguments)

    driver.prepare = noted  # type: ignore[method-assign]
    driver.cache_bytes = 20_000
    timed(driver, levels={"L7": LEVELS["L7"]})
    assert len({address for addresses in seen for address in addresses}) == 3 * len(seen)
    assert len(seen) == 2 * 20_000 // (8 * 32 * 32) + 1
    calls = driver.taken()
    assert calls.count("unload") == calls.count("drop_graph") == 1
    assert calls.count("free") == calls.count("allocate")


def test_a_product_that_is_not_right_is_named() -> None:
    class Wrong(Clock):
        def download(self, host: int, address: int, size: int, stream: int) -> None:
            self._view(address, size)[0].view(np.float32)[-1] += 1  # of the last row and column
            super().download(host, address, size, stream)

    assert timed(Wrong()).wrong == ["L3 at 32", "L7 at 32"]


def test_what_does_not_fit_in_memory_is_left_out() -> None:
    class Full(Clock):
        def allocate(self, size: int) -> int:
            if size > 2 * 32 * 32 * 2:
                raise DriverFault("CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
            return super().allocate(size)

    driver = Full()
    found = timed(driver, Library(full=True), (32, 64))
    assert found.left_out == ["torch 0 at 32: out of memory", "64: CUDA_ERROR_OUT_OF_MEMORY: out of memory"]
    assert (list(found.levels["L3"]), driver.allocated_bytes) == ([32], 0)


def test_slow_levels_run_less_and_then_not_at_all() -> None:
    found = timed(Clock(took=2.0), sizes=(32, 64), levels={"L3": LEVELS["L3"]})
    assert list(found.levels["L3"]) == [32]
    assert found.left_out == ["L3 at 64: too slow"]  # 8 times a second


def test_a_fault_names_level_and_size() -> None:
    class Faulty(Clock):
        def load(self, code: bytes) -> Any:
            raise DriverFault("CUDA_ERROR_NO_BINARY_FOR_GPU")

    driver = Faulty()
    with pytest.raises(DeviceError, match="CUDA_ERROR_NO_BINARY_FOR_GPU on emulator") as caught:
        timed(driver)
    assert "L3, 32x32x32" in str(caught.value)
    assert driver.allocated_bytes == 0


@pytest.mark.parametrize(
    ("call", "where"),
    [
        ("new_stream", "mlir-matmul, a stream"), ("upload", "32x32x32"), ("launch", "L3, 32x32x32"),
        ("download", "L3, 32x32x32"), ("new_event", "L3, 32x32x32"), ("launch_graph", "L3, 32x32x32"),
        ("seconds", "L3, 32x32x32"),
    ],
)  # fmt: skip
def test_a_fault_of_any_call_is_an_error_for_the_user(call: str, where: str) -> None:
    """A device often notices late: in a copy back, or when events are read."""
    driver, asked = Clock(), []

    def faulty(*arguments: Any) -> Any:
        asked.append(call)
        raise DriverFault("CUDA_ERROR_ILLEGAL_ADDRESS")

    setattr(driver, call, faulty)
    with pytest.raises(DeviceError, match="CUDA_ERROR_ILLEGAL_ADDRESS on emulator") as caught:
        timed(driver)
    assert caught.value.where.endswith(where)
    assert (asked, driver.allocated_bytes) == ([call], 0)


def test_one_stream_is_used_for_all_sizes() -> None:
    streams = set()

    class Watched(Clock):
        def fill(self, address: int, size: int, stream: int) -> None:
            streams.add(stream)
            super().fill(address, size, stream)

    assert len(timed(Watched(), sizes=(32, 64)).levels["L7"]) == 2
    assert len(streams) == 1


@pytest.fixture(scope="module")
def report() -> ablation.Report:
    """Invented counts and times of two levels."""
    step = ablation.Step("L2", ("block-tiling",), (128, 128, 64), (2, 4), ablation.Slice(*[1.0] * 8))
    names = ("L2", "L3", "L4", "L5", "L6", "L7")
    steps = tuple(ablation.Step(name, step.on, step.block, step.warps, step.slice) for name in names)
    levels = {name: {4096: Timing(1 / number, 0.9 / number, 1.1 / number, 10)} for number, name in enumerate(names, 1)}
    found = Measured("a GPU", "torch 0", levels, {4096: Timing(0.1, 0.1, 0.1, 10)}, [], ["L2 at 8192: too slow"])
    return ablation.Report(ablation.MACHINE, ("padding",), steps, {name: {4096: 1.0} for name in names}, found)


def test_the_report_shows_times_and_ratios(report: ablation.Report) -> None:
    times, ratios = report.tables[2:4]
    assert times.title == "TFLOP/s on a GPU, measured"
    assert times.rows[-1] == ("torch 0", "torch.matmul, which is cuBLAS", "1.4")
    assert "20% of them or less" in times.note
    assert "Left out: L2 at 8192: too slow." in times.note
    assert [row[-1] for row in ratios.rows] == ["10.0%", "20.0%", "30.0%", "40.0%", "50.0%", "60.0%"]
    assert [claim.verdict for claim in report.claims if "device" in claim.name] == ["met", "met"]
    assert len(report.pictures) == 2
    again = ablation.Report.from_json(json.loads(json.dumps(report.to_json())))
    assert (again.tables, again.claims, again.pictures) == (report.tables, report.claims, report.pictures)


def test_a_level_that_is_slower_is_a_claim_not_met(report: ablation.Report) -> None:
    slower = dict(report.measured.levels) if report.measured else {}
    slower["L6"] = {4096: Timing(1.0, 1.0, 1.0, 10)}
    timed = Measured("a GPU", "", slower, {}, ["L7 at 4096"], [])
    found = ablation.Report(report.machine, report.without, report.steps, report.seconds, timed)
    claims = {claim.name: (claim.verdict, claim.ours, claim.reason.rpartition(": ")[2]) for claim in found.claims}
    assert claims["ablation on the device"] == ("differs", 1, "L6 at 4096")
    assert claims["products on the device"] == ("differs", 1, "L7 at 4096")
    assert "no torch here" in found.tables[2].note
    assert found.tables[3].title == "What the switches change here"  # no ratios


def test_levels_are_not_compared_where_no_size_is_large(report: ablation.Report) -> None:
    assert report.measured is not None
    small = {name: {256: next(iter(times.values()))} for name, times in report.measured.levels.items()}
    found = replace(report, measured=replace(report.measured, levels=small),
                    seconds={name: {256: 1.0} for name in report.seconds})  # fmt: skip
    verdicts = {claim.name: claim.verdict for claim in found.claims}
    assert verdicts == {
        "ablation": "open",
        "ablation on the device": "open",
        "products on the device": "met",
        "counters": "met",
    }


def test_a_driver_that_is_there_is_measured(monkeypatch: pytest.MonkeyPatch, report: ablation.Report) -> None:
    """All levels at all sizes, with what torch has; counts are those of a run without it."""
    driver, asked = Clock(), {}

    def noted(levels: Any, sizes: Any, machine: Any, device: Any, library: Any) -> Any:
        asked.update(levels=list(levels), sizes=sizes, machine=machine.name, device=device, library=library)
        return report.measured

    monkeypatch.setattr(device_module, "open_driver", lambda name: {"cuda": driver}[name])
    monkeypatch.setattr(ablation, "torch_library", lambda device: "torch")
    monkeypatch.setattr(ablation, "measure", noted)
    monkeypatch.setattr(ablation, "counted_step", lambda level, *given: replace(report.steps[0], name=level))
    found = ablation.report(sizes=(1024,), device="auto")
    assert found.measured == report.measured
    assert asked == {"levels": [f"L{n}" for n in range(8)], "sizes": (1024,), "machine": ablation.MACHINE,
                     "device": driver, "library": "torch"}  # fmt: skip


def test_the_device_is_that_of_the_options(monkeypatch: pytest.MonkeyPatch, report: ablation.Report) -> None:
    """The variable of the environment says where, unless an argument does."""
    opened: list[str] = []
    monkeypatch.setattr(device_module, "open_driver", lambda name: opened.append(name) or Clock())
    monkeypatch.setattr(ablation, "torch_library", lambda device: None)
    monkeypatch.setattr(ablation, "measure", lambda *arguments: report.measured)
    monkeypatch.setattr(ablation, "counted_step", lambda level, *given: replace(report.steps[0], name=level))
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "emulator")
    assert find("mlir-matmul").run(sizes=[1024]).to_json()["measured"] is None
    assert opened == []
    monkeypatch.setenv("TILEWRIGHT_DEVICE", "cuda:1")
    ablation.report(sizes=(1024,))
    ablation.report(sizes=(1024,), device="cuda:2")
    assert opened == ["cuda:1", "cuda:2"]


def test_products_of_torch_are_recorded_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what a GPU does replaced: the calls are torch's own, on tensors of the host."""
    torch = pytest.importorskip("torch")
    events: list[str] = []

    class Aside:
        def synchronize(self) -> None:
            events.append("wait")

    class Graph:
        def replay(self) -> None:
            events.append("replay")

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            events.append("record")

        def synchronize(self) -> None:
            events.append("wait")

        def elapsed_time(self, end: Event) -> float:
            return 2.5

    for name, value in {"Stream": Aside, "CUDAGraph": Graph, "Event": Event, "stream": nullcontext,
                        "graph": nullcontext, "device": nullcontext}.items():  # fmt: skip
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, value)
    products = []
    matmul = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b, out: products.append((a.data_ptr(), matmul(a, b, out=out))))
    library = measured._Torch(torch, 0)
    library._device = "cpu"
    a, b = (np.eye(8, dtype=np.float16) * number for number in (2, 3))
    sample = library.sample(a, b, 2)
    assert sample() == 2.5e-3
    assert events == ["wait", "record", "replay", "record", "wait"]
    assert len({place for place, _ in products}) == 2  # two sets, each once before and once in the record
    assert [float(each[0, 0]) for _, each in products] == [6.0] * 4
    library.release()


def test_a_device_that_is_asked_for_has_to_be_there() -> None:
    """Without one the reason is told; asked for, it is an error."""
    driver, reason = device_module.opened("auto")
    if driver is not None:
        pytest.skip("there is a GPU")
    assert reason
    with pytest.raises(Exception, match="cuda") as caught:
        find("mlir-matmul").run(device="cuda")
    assert getattr(caught.value, "message", "") == reason
    assert device_module.opened("emulator")[1] == "the emulator was asked for, which counts"
