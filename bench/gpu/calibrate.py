"""Constants of an NVIDIA GPU of compute capability 9.0 that its machine file and the cost rules need, measured.

    python -m bench.gpu.calibrate --out constants.json

Rates are of loops that do nothing else; latencies are of chains in which every step waits for the one before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu import probes
from bench.gpu.probes import Probe
from tilewright.codegen.host_program import Kernel
from tilewright.dataclass import dataclass
from tilewright.runtime.cuda.driver import Slot

ROUNDS = 7
MEMORY_BYTES, OUT_BYTES = 8 << 30, 1 << 20
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Constant:
    """A measured value: the median of its rounds, and their extremes."""

    name: str
    unit: str
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, name: str, unit: str, values: Sequence[float]) -> Constant:
        return cls(name, unit, statistics.median(values), min(values), max(values))


class Device:
    """A GPU, a large buffer on it, and a small one for what kernels say."""

    def __init__(self) -> None:
        from cuda.bindings import driver as api

        from tilewright.runtime.cuda.devices import open_driver

        self.api: Any = api
        self.driver: Any = open_driver("cuda")
        kind = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self.multiprocessors = int(api.cuDeviceGetAttribute(kind, api.cuDeviceGet(self.driver.ordinal)[1])[1])
        self.memory, self.out = self.driver.allocate(MEMORY_BYTES), self.driver.allocate(OUT_BYTES)
        self.driver.fill(self.memory, MEMORY_BYTES, 0)

    def seconds(self, probe: Probe, launches: int = 1, rounds: int = ROUNDS) -> list[float]:
        """Seconds of `launches` of a kernel in one graph, `rounds` times, after a round that does not count."""
        library = self.driver.load(probe.text().encode())
        slots = [Slot("argument", MEMORY_BYTES), Slot("argument", OUT_BYTES)]
        slots[0].word.value, slots[1].word.value = self.memory, self.out
        kernel = Kernel("k", "k", (probe.grid, 1, 1), (probe.block, 1, 1), probe.shared)
        prepared = self.driver.prepare(library, kernel, slots)
        stream = self.driver.begin_capture()
        for _ in range(launches):
            self.driver.launch(prepared, stream)
        graph = self.driver.end_capture(stream)
        found = [self._between_events(lambda: self.driver.launch_graph(graph, 0)) for _ in range(rounds + 1)]
        self.driver.drop_graph(graph)
        self.driver.unload(library)
        return found[1:]

    def cycles(self, probe: Probe) -> int:
        """What the first thread of one launch measured itself."""
        self.seconds(probe, rounds=0)
        return int(self.numbers(1)[0])

    def numbers(self, count: int) -> Array:
        """The first numbers of 64 bits that the last kernel wrote."""
        words = np.zeros(count, np.uint64)
        self.driver.download(words.ctypes.data, self.out, words.nbytes, 0)
        self.driver.synchronize(0)
        return words

    def write(self, words: Array) -> None:
        """Fill the large buffer from its start, and L2 with what lies far behind."""
        self.driver.upload(self.memory, words.ctypes.data, words.nbytes, 0)
        self.driver.fill(self.memory + MEMORY_BYTES // 2, 4 * self.driver.cache_bytes, 0)
        self.driver.synchronize(0)

    def copy_seconds(self) -> float:
        """Of a copy of half of the large buffer to the other half by the driver."""
        half = MEMORY_BYTES // 2
        return self._between_events(lambda: self.api.cuMemcpyDtoDAsync(self.memory + half, self.memory, half, 0))

    def _between_events(self, work: Any) -> float:
        start, end = self.driver.new_event(), self.driver.new_event()
        self.driver.record(start, 0)
        work()
        self.driver.record(end, 0)
        self.driver.synchronize(0)
        return float(self.driver.seconds(start, end))


def measure(device: Device) -> Iterator[Constant]:
    """All constants, each as soon as it is known."""
    units = device.multiprocessors
    device.seconds(probes.clock(4 * units, 256), rounds=1)
    cycles, nanoseconds = (int(each) for each in device.numbers(2))
    clock = cycles / nanoseconds * 1e9
    yield Constant.of("clock_hz", "Hz under integer instructions", [clock])
    yield from _launches(device, clock)
    yield from _latencies(device)
    yield from _bandwidths(device, clock)
    yield from _matrix_rates(device, clock)


def _launches(device: Device, clock: float) -> Iterator[Constant]:
    units, launches, blocks, waves = device.multiprocessors, 400, 1 << 20, 200
    found = [s / launches for s in device.seconds(probes.empty(1, 32), launches)]
    yield Constant.of("launch_seconds", "s from kernel to kernel of a graph", found)
    found = [s / blocks for s in device.seconds(probes.empty(blocks, 32))]
    yield Constant.of("dispatch_seconds", "s per empty block of 32 threads", found)
    found = [s * clock / waves for s in device.seconds(probes.empty(waves * units, 256, 227 << 10))]
    yield Constant.of("block_cycles", "cycles from block to block of a multiprocessor that holds one", found)


def _latencies(device: Device) -> Iterator[Constant]:
    unit = "cycles of a step"
    for name, span, stride, warm in (("l2_latency", 4 << 20, 512, True), ("dram_latency", 256 << 20, 4096, False)):
        places = np.arange(0, span, stride, dtype=np.uint64)
        order = np.concatenate([places[:1], np.random.default_rng(0).permutation(places[1:])])
        words = np.zeros(span // 8, np.uint64)
        words[(order // 8).astype(np.int64)] = np.roll(order, -1) + np.uint64(device.memory)
        device.write(words)
        steps = len(places) // 2 - 1
        yield Constant.of(name, unit, [device.cycles(probes.chase(steps, len(places) * warm)) / steps])
    device.driver.fill(device.memory, MEMORY_BYTES, 0)
    steps = 2048
    yield Constant.of("copy_cycles", unit, [device.cycles(probes.copy_to_shared(steps)) / steps])
    for name in probes.CHAINS:
        threads = 256 if name == "barrier" else 32
        yield Constant.of(name, unit, [device.cycles(probes.chain(name, steps, threads)) / steps / 4])


def _bandwidths(device: Device, clock: float) -> Iterator[Constant]:
    threads, many = 512, 8 * device.multiprocessors
    for name, span, grid, trips in (
        ("l2_bytes_per_cycle", 16 << 20, many, 64), ("l2_port_bytes_per_cycle", 1 << 20, 1, 256),
        ("dram_read_bytes_per_cycle", 4 << 30, many, 60),
    ):  # fmt: skip
        moved = grid * threads * 16 * probes.LOADS * trips
        found = device.seconds(probes.reading(span, trips, grid, threads))
        yield Constant.of(name, f"bytes read by {grid} blocks", [moved / s / clock for s in found])
    copied = [MEMORY_BYTES / device.copy_seconds() for _ in range(ROUNDS + 1)][1:]
    yield Constant.of("copy_bytes_per_second", "bytes read and written by the driver's copy", copied)


def _matrix_rates(device: Device, clock: float) -> Iterator[Constant]:
    unit, trips, units = "multiply-adds per cycle of a multiprocessor", 2048, device.multiprocessors
    warps, blocks = 8, 2
    for name, each in probes.MATRIX_UNITS.items():
        done = each.macs * trips * probes.SUMS * warps * blocks
        found = device.seconds(probes.products_of_warps(each, trips, blocks * units, warps))
        yield Constant.of(name, unit, [done / s / clock for s in found])
    threads, chains = 512, 16
    found = device.seconds(probes.multiply_adds(trips, blocks * units, threads, chains))
    yield Constant.of("fma_f32", unit, [threads * blocks * trips * chains * 4 / s / clock for s in found])
    for name, (_, k) in probes.WARPGROUP_KINDS.items():
        done = 2 * 64 * probes.WARPGROUP_COLUMNS * k * probes.PRODUCTS * trips
        found = device.seconds(probes.products_of_warpgroups(name, trips, units))
        yield Constant.of(name, unit, [done / s / clock for s in found])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.calibrate", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="write the constants as JSON")
    options = parser.parse_args(arguments)
    device = Device()
    found: list[Constant] = []
    for each in measure(device):
        found.append(each)
        print(f"{each.name}: {each.value:.6g} {each.unit} ({each.low:.6g} to {each.high:.6g})", flush=True)
        if options.out:
            stored = {"device": device.driver.name, "constants": [asdict(constant) for constant in found]}
            options.out.write_text(json.dumps(stored, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
