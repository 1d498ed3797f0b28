"""Constants of an NVIDIA GPU that its machine file and the cost rules need, measured by small kernels in PTX.

    python -m bench.gpu.calibrate --out constants.json      # on a machine with a GPU of compute capability 9.0

Rates are of loops that do nothing else; latencies are of chains in which every step waits for the one before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.codegen.host_program import Kernel
from tilewright.runtime.cuda.driver import Slot

ROUNDS = 7
LANES = 32


@dataclass(frozen=True)
class Constant:
    """A measured value; `low` and `high` are the extremes of its rounds."""

    name: str
    unit: str
    value: float
    low: float
    high: float


class Device:
    """A GPU with memory that kernels of PTX get as their only argument."""

    def __init__(self, bytes_: int) -> None:
        from tilewright.runtime.cuda.devices import open_driver

        self.driver: Any = open_driver("cuda")
        self.multiprocessors = _multiprocessors(self.driver)
        self.bytes = bytes_
        self.memory = self.driver.allocate(bytes_)
        self.out = self.driver.allocate(1 << 20)
        self.driver.fill(self.memory, bytes_, 0)

    def seconds(
        self, body: Sequence[str], grid: int, block: int, shared: int = 0, registers: Sequence[str] = (), launches: int = 1
    ) -> list[float]:
        """Seconds of `launches` of a kernel in a row, `ROUNDS` times, after one round that does not count."""
        library = self.driver.load(kernel_text(body, registers, shared).encode())
        slots = [Slot("argument", self.bytes), Slot("argument", 1 << 20)]
        slots[0].word.value, slots[1].word.value = self.memory, self.out
        prepared = self.driver.prepare(library, Kernel("k", "k", (grid, 1, 1), (block, 1, 1), shared), slots)
        found = []
        for _ in range(ROUNDS + 1):
            start, end = self.driver.new_event(), self.driver.new_event()
            self.driver.record(start, 0)
            for _ in range(launches):
                self.driver.launch(prepared, 0)
            self.driver.record(end, 0)
            self.driver.synchronize(0)
            found.append(float(self.driver.seconds(start, end)))
        return found[1:]

    def read(self, count: int) -> Any:
        """The first numbers of 64 bits that a kernel wrote to its second argument."""
        words = np.zeros(count, np.uint64)
        self.driver.download(words.ctypes.data, self.out, words.nbytes, 0)
        self.driver.synchronize(0)
        return words

    def write(self, words: Any) -> None:
        self.driver.upload(self.memory, words.ctypes.data, words.nbytes, 0)
        self.driver.synchronize(0)


def _multiprocessors(driver: Any) -> int:
    from cuda.bindings import driver as api

    kind = api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return int(api.cuDeviceGetAttribute(kind, api.cuDeviceGet(driver.ordinal)[1])[1])


def kernel_text(body: Sequence[str], registers: Sequence[str], shared: int) -> str:
    """A kernel with the addresses %mem and %out, the thread %thread, the block %number, blocks %n, and the clock at %t0.

    `body` ends in its own stores; time between %t0 and %t1 is what chains write.
    """
    return "\n".join([
        ".version 8.0", ".target sm_90a", ".address_size 64", "",
        *([".extern .shared .align 1024 .b8 buffer[];"] if shared else []),
        ".visible .entry k(.param .u64 pm, .param .u64 po)", "{",
        "  .reg .pred %p, %q;", "  .reg .b32 %thread, %number, %n, %i, %j, %x, %y, %s;", "  .reg .b64 %mem, %out, %at, %t0, %t1, %w;",
        *registers,
        "  ld.param.u64 %mem, [pm];", "  ld.param.u64 %out, [po];",
        "  mov.u32 %thread, %tid.x;", "  mov.u32 %number, %ctaid.x;", "  mov.u32 %n, %nctaid.x;",
        *(["  mov.u32 %s, buffer;"] if shared else []),
        *body, "  ret;", "}", "",
    ])  # fmt: skip


def loop(count: int, body: Sequence[str], name: str = "L") -> list[str]:
    return ["  mov.u32 %i, 0;", f"{name}:", *body, "  add.u32 %i, %i, 1;", f"  setp.lt.u32 %p, %i, {count};", f"  @%p bra {name};"]


def timed(body: Sequence[str]) -> list[str]:
    """A body between two readings of the clock, whose distance thread 0 of block 0 stores."""
    return [
        "  mov.u64 %t0, %clock64;", *body, "  mov.u64 %t1, %clock64;", "  sub.u64 %t1, %t1, %t0;",
        "  or.b32 %j, %thread, %number;", "  setp.eq.u32 %q, %j, 0;", "  @%q st.global.u64 [%out], %t1;",
    ]  # fmt: skip


def measure(device: Device) -> Iterator[Constant]:
    """All constants, each as soon as it is known."""
    units = device.multiprocessors
    clock = yield from _clock(device)

    def constant(name: str, unit: str, values: Sequence[float]) -> Constant:
        return Constant(name, unit, statistics.median(values), min(values), max(values))

    one = device.seconds([], 1, LANES, launches=1)
    many = device.seconds([], 1, LANES, launches=1001)
    between = (statistics.median(many) - statistics.median(one)) / 1000
    yield constant("launch_seconds", "s from kernel to kernel of a stream, one empty block", [between])
    blocks = 1 << 20
    yield constant("dispatch_seconds", "s per empty block of 32 threads", [s / blocks for s in device.seconds([], blocks, LANES)])
    blocks = 200 * units
    whole = device.seconds([], blocks, 256, shared=227 << 10)
    yield constant("block_cycles", "cycles between blocks that are alone on a multiprocessor", [s * clock / 200 for s in whole])
    yield from _latencies(device, constant)
    yield from _bandwidths(device, constant, clock)
    yield from _matrix_rates(device, constant, clock)


def _clock(device: Device) -> Any:
    body = ["  mov.u64 %w, %globaltimer;", *timed(loop(2_000_000, ["  add.u32 %x, %x, %i;", "  xor.b32 %x, %x, %thread;"]))]
    body += ["  mov.u64 %at, %globaltimer;", "  sub.u64 %at, %at, %w;", "  @%q st.global.u64 [%out+8], %at;", "  @%q st.global.u32 [%out+16], %x;"]
    device.seconds(body, 4 * device.multiprocessors, 256)
    cycles, nanoseconds = (int(each) for each in device.read(2))
    found = cycles / nanoseconds * 1e9
    yield Constant("clock_hz", "Hz, integer instructions on all multiprocessors", found, found, found)
    return found


def _latencies(device: Device, constant: Callable[..., Constant]) -> Iterator[Constant]:
    steps = 4096
    for name, span, stride in (("l2_latency", 4 << 20, 512), ("dram_latency", 512 << 20, 4 << 10)):
        places = np.arange(0, span, stride, dtype=np.uint64)
        order = np.random.default_rng(0).permutation(places)
        chain = np.zeros(span // 8, np.uint64)
        chain[(order // 8).astype(np.int64)] = np.roll(order, -1) + np.uint64(device.memory)
        device.write(chain)
        count = min(steps, len(places) - 1)
        body = ["  mov.u64 %at, %mem;"]
        if name == "l2_latency":  # all of it to L2 first
            body += loop(len(places), ["  ld.global.cg.u64 %at, [%at];"], "W")
        body += timed(loop(count, ["  ld.global.cg.u64 %at, [%at];"]))
        device.seconds([*body, "  st.global.u64 [%out+8], %at;"], 1, 1)
        yield constant(name, "cycles of a load that waits for the one before", [int(device.read(1)[0]) / count])
    count = 2048
    copy = ["  cp.async.cg.shared.global [%s], [%at], 16;", "  cp.async.wait_all;", "  ld.shared.u32 %x, [%s];",
            "  mul.wide.u32 %w, %x, 0;", "  add.u64 %at, %at, %w;", "  add.u64 %at, %at, 512;"]  # fmt: skip
    device.driver.fill(device.memory, device.bytes, 0)
    body = ["  mov.u64 %at, %mem;", *loop(count, copy, "W"), "  mov.u64 %at, %mem;", *timed(loop(count, copy))]
    device.seconds([*body, "  st.global.u64 [%out+8], %at;"], 1, 1, shared=16 << 10)
    yield constant("copy_cycles", "cycles of cp.async from L2, until a load from shared memory has it", [int(device.read(1)[0]) / count])
    chains = {
        "shared_latency": ["  ld.shared.u32 %s, [%s];"],
        "shuffle_add": ["  shfl.sync.bfly.b32 %y, %x, 1, 31, -1;", "  add.u32 %x, %x, %y;"],
        "barrier": ["  bar.sync 0;"],
    }
    for name, step in chains.items():
        first = ["  st.shared.u32 [%s], %s;", "  bar.sync 0;", "  mov.u32 %x, %thread;"]
        body = [*first, *timed(loop(count, step * 4)), "  add.u32 %x, %x, %s;", "  st.global.u32 [%out+8], %x;"]
        device.seconds(body, 1, 256 if name == "barrier" else LANES, shared=16 << 10)
        yield constant(name, "cycles of a step", [int(device.read(1)[0]) / count / 4])


def _bandwidths(device: Device, constant: Callable[..., Constant], clock: float) -> Iterator[Constant]:
    regs = ["  .reg .b32 %v<64>;"]

    def reading(span: int, trips: int) -> list[str]:
        """Every thread reads 16 bytes, 8 times, a whole grid apart, round and round a span (a power of two)."""
        loads, sums = [], []
        for number in range(8):
            loads += [f"  and.b64 %w, %at, {span - 16};", "  add.u64 %w, %w, %mem;",
                      f"  ld.global.cg.v4.u32 {{%v{4 * number}, %v{4 * number + 1}, %v{4 * number + 2}, %v{4 * number + 3}}}, [%w];",
                      "  add.u64 %at, %at, %t1;"]  # fmt: skip
            sums += [f"  xor.b32 %x, %x, %v{4 * number + part};" for part in range(4)]
        start = ["  mov.u32 %y, %ntid.x;", "  mad.lo.u32 %j, %number, %y, %thread;", "  mul.wide.u32 %at, %j, 16;",
                 "  mul.lo.u32 %j, %n, %y;", "  mul.wide.u32 %t1, %j, 16;", "  mov.u32 %x, 0;"]  # fmt: skip
        return [*start, *loop(trips, [*loads, *sums]), "  setp.eq.u32 %q, %x, 123456789;", "  @%q st.global.u32 [%out], %x;"]

    for name, span, blocks in (("l2", 16 << 20, 8 * device.multiprocessors), ("l2_port", 1 << 20, 2), ("dram", 1 << 31, 8 * device.multiprocessors)):
        trips = 64 if name != "dram" else (1 << 31) // (blocks * 512 * 16 * 8)
        moved = blocks * 512 * 16 * 8 * trips
        found = device.seconds(reading(span, trips), blocks, 512, registers=regs)
        if name == "dram":
            yield constant("dram_read", "bytes per second", [moved / s for s in found])
        else:
            active = 1 if name == "l2_port" else 1
            yield constant(f"{name}_bytes_per_cycle", f"bytes, {blocks} blocks of 512 threads", [moved / s / clock / active for s in found])
    copied = []
    half = device.bytes // 2
    for _ in range(ROUNDS):
        start, end = device.driver.new_event(), device.driver.new_event()
        device.driver.record(start, 0)
        _copy(device, half)
        device.driver.record(end, 0)
        device.driver.synchronize(0)
        copied.append(2 * half / float(device.driver.seconds(start, end)))
    yield constant("driver_copy", "bytes read and written per second", copied)


def _copy(device: Device, size: int) -> None:
    from cuda.bindings import driver as api

    api.cuMemcpyDtoDAsync(device.memory + size, device.memory, size, 0)


def _matrix_rates(device: Device, constant: Callable[..., Constant], clock: float) -> Iterator[Constant]:
    trips, warps, chains = 512, 8, 4
    units = device.multiprocessors
    for name, opcode, (a, b, c), macs, kinds in (
        ("mma_f16_f32", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (4, 2, 4), 2048, ("b32", "f32")),
        ("mma_bf16_f32", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", (4, 2, 4), 2048, ("b32", "f32")),
        ("mma_f16_f16", "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", (4, 2, 2), 2048, ("b32", "b32")),
        ("mma_tf32_f32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", (4, 2, 4), 1024, ("b32", "f32")),
        ("mma_s8_s32", "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", (4, 2, 4), 4096, ("b32", "b32")),
        ("mma_m8n8k4_f64", "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", (1, 1, 2), 256, ("f64", "f64")),
        ("mma_m16n8k16_f64", "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", (8, 4, 4), 2048, ("f64", "f64")),
    ):
        read, sum_ = kinds
        registers = [f"  .reg .{read} %a<{a}>, %b<{b}>;", f"  .reg .{sum_} %c<{c * chains}>;"]
        body = [f"  mov.{read} %{operand}{number}, {_one(read, number)};" for operand, count in (("a", a), ("b", b)) for number in range(count)]
        body += [f"  mov.{sum_} %c{number}, {_one(sum_, 0)};" for number in range(c * chains)]
        steps = []
        for chain in range(chains):
            sums = ", ".join(f"%c{chain * c + number}" for number in range(c))
            of_a, of_b = (", ".join(f"%{operand}{number}" for number in range(count)) for operand, count in (("a", a), ("b", b)))
            steps.append(f"  {opcode} {{{sums}}}, {{{of_a}}}, {{{of_b}}}, {{{sums}}};")
        body += loop(trips, steps) + ["  setp.eq.u32 %q, %thread, 99999;"]
        body += [f"  @%q st.global.{sum_} [%out], %c{chain * c};" for chain in range(chains)]
        found = device.seconds(body, 2 * units, 32 * warps, registers=registers)
        yield constant(name, "multiply-adds per cycle of a multiprocessor",
                       [macs * trips * chains * warps * 2 / s / clock for s in found])  # fmt: skip
    chains = 16
    registers = [f"  .reg .f32 %c<{chains}>, %a;"]
    body = ["  cvt.rn.f32.u32 %a, %thread;", *(f"  mov.f32 %c{n}, 0f3F800000;" for n in range(chains))]
    body += loop(trips, [f"  fma.rn.f32 %c{n}, %c{n}, %a, %a;" for n in range(chains)] * 4) + ["  setp.eq.u32 %q, %thread, 99999;"]
    body += [f"  @%q st.global.f32 [%out], %c{n};" for n in range(chains)]
    found = device.seconds(body, 2 * units, 512, registers=registers)
    yield constant("fma_f32", "multiply-adds per cycle of a multiprocessor", [512 * 2 * trips * chains * 4 / s / clock for s in found])
    for name, kind, k, sums in (("wgmma_f16", "f16.f16", 16, "f32"), ("wgmma_bf16", "bf16.bf16", 16, "f32"), ("wgmma_tf32", "tf32.tf32", 8, "f32"),
                                ("wgmma_s8", "s8.s8", 32, "s32"), ("wgmma_e4m3", "e4m3.e4m3", 32, "f32")):  # fmt: skip
        yield constant(name, "multiply-adds per cycle of a multiprocessor, m64n256 from shared memory",
                       _warpgroups(device, kind, k, sums, trips, clock))  # fmt: skip


def _one(kind: str, number: int) -> str:
    """A number near 1 or 0.5 in both halves of a word."""
    return {"b32": f"0x3C{number:02X}38{number:02X}", "f32": "0f3F000000", "f64": f"0d3FF{number:X}000000000000"}[kind]


def _warpgroups(device: Device, kind: str, k: int, sums: str, trips: int, clock: float) -> list[float]:
    """Two groups of four warps, 64 x 256 sums each; a tile without swizzle, of random numbers near 1, is read again and
    again.
    """
    type_, letter = ("f32", "f") if sums == "f32" else ("b32", "r")
    registers = [f"  .reg .{type_} %c<128>;", "  .reg .b64 %da, %db;"]
    listed = ", ".join(f"%c{number}" for number in range(128))
    tail = ", 1, 1, 0, 0" if kind in ("f16.f16", "bf16.bf16") else (", 1, 1" if sums == "f32" else "")
    product = f"  wgmma.mma_async.sync.aligned.m64n256k{k}.{sums}.{kind} {{{listed}}}, %da, %db, %q{tail};"
    body = [
        "  mov.u32 %i, %thread;", "F:", "  mad.lo.u32 %x, %i, 2654435761, 12345;", "  and.b32 %x, %x, 0x83FF83FF;",
        "  or.b32 %x, %x, 0x38003800;", "  shl.b32 %y, %i, 2;", "  add.u32 %y, %y, %s;", "  st.shared.u32 [%y], %x;",
        "  add.u32 %i, %i, 256;", "  setp.lt.u32 %p, %i, 8192;", "  @%p bra F;", "  fence.proxy.async.shared::cta;", "  bar.sync 0;",
        "  shr.u32 %x, %s, 4;", "  cvt.u64.u32 %da, %x;",
        f"  or.b64 %da, %da, {(8 << 16) | (16 << 32)};", "  mov.b64 %db, %da;", "  setp.ge.u32 %q, %thread, 0;",
        *(f"  mov.{type_} %c{number}, {'0f00000000' if sums == 'f32' else '0'};" for number in range(128)),
        *loop(trips, ["  wgmma.fence.sync.aligned;", *[product] * 4, "  wgmma.commit_group.sync.aligned;", "  wgmma.wait_group.sync.aligned 0;"]),
        "  setp.eq.u32 %q, %thread, 99999;", *(f"  @%q st.global.{type_} [%out], %c{number};" for number in range(128)),
    ]  # fmt: skip
    found = device.seconds(body, device.multiprocessors, 256, shared=64 << 10, registers=registers)
    return [64 * 256 * k * 4 * trips * 2 / s / clock for s in found]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.calibrate", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="write the constants as JSON")
    options = parser.parse_args(arguments)
    device = Device(8 << 30)
    found = []
    for each in measure(device):
        found.append(each)
        print(f"{each.name}: {each.value:.6g} {each.unit} ({each.low:.6g} to {each.high:.6g})", flush=True)
        if options.out:
            options.out.write_text(json.dumps({"device": device.driver.name, "constants": list(map(asdict, found))}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
