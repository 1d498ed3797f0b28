"""What this machine can reach at most, measured: arithmetic peaks and bandwidths, for any number of threads.

Small loops in LLVM IR, compiled at run time: independent chains of one instruction in registers for the peaks, plain
reads and non-temporal copies of buffers of chosen size for the bandwidths. Exponentials are those of Tilewright's own
softmax, of numbers in L1. Each thread is pinned to a core of its own; the best of several runs counts, since a ceiling
is what nothing else may exceed.

`python -m bench.ceilings --cores 0,1` prints JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.problem import Facts, Limit
from tilewright.runtime.loops import LINE_BYTES, METADATA, UNROLL, Words, memory_loop, pages, seconds_of

RUN_SECONDS = 0.02  # of one run; threads start within a few microseconds of each other
RUNS = 15
EXPONENTIALS = 4  # vectors of them per trip of their loop
HALF_PAGE = 2048  # bytes: numbers lie in the first half of a page, their exponentials in the second
TURN_RUNS = 3  # when a ceiling is measured between the turns of peers

Rate = float | None  # None: the machine lacks the instruction

# Bytes that each of some threads reads, by ceiling; a copy writes as many.
READS: dict[str, Callable[[int], int]] = {
    "l1_read": lambda threads: cache_bytes()[0] // 2,
    "l2_read": lambda threads: cache_bytes()[1] // 2,
    "l3_read": lambda threads: max(cache_bytes()[2] // 2 // threads, 2 * cache_bytes()[1]),
    "dram_read": lambda threads: _main_memory_bytes() // threads,
    "copy": lambda threads: _main_memory_bytes() // 2 // threads,
}


@dataclass(frozen=True)
class Ceilings:
    """Peaks in operations per second (an addition and a multiplication are two), bandwidths in bytes per second.

    `exponentials` are those of numbers of at most 0 in f32, per second. A copy counts what it reads and what it writes.
    Cache sizes are per core for `l2_bytes`, in total for `l3_bytes`.
    """

    threads: int
    f32: float
    bf16: Rate
    int8: Rate
    exponentials: float
    l1_read: float
    l2_read: float
    l3_read: float
    dram_read: float
    copy: float
    l2_bytes: int
    l3_bytes: int


@dataclass(frozen=True)
class Bound:
    """What bounds a problem: the ceiling (a field of `Ceilings`), and so many operations or bytes at its rate."""

    ceiling: str
    amount: int
    seconds: float


def bound(limit: Limit, facts: Facts, ceilings: Ceilings) -> Bound | None:
    """What sets the least time: the operations at the peak, or the bytes moved once, whichever takes longer.

    An exponential counts as so many operations as take as long. A problem bound by "copy" moves its bytes at the rate
    of a non-temporal copy; others read them from the smallest level that holds them all, since a problem is run again
    and again. None: there is no ceiling to compare with.
    """
    if limit == "none":
        return None
    if limit == "copy":
        return Bound("copy", facts.bytes, facts.bytes / ceilings.copy)
    peak: Rate = getattr(ceilings, limit)
    if peak is None:
        return None
    if facts.bytes <= ceilings.l2_bytes * ceilings.threads:
        level = "l2_read"
    else:
        level = "l3_read" if facts.bytes <= ceilings.l3_bytes else "dram_read"
    operations = facts.flops + round(facts.exponentials * peak / ceilings.exponentials)
    arithmetic = Bound(limit, operations, operations / peak)
    memory = Bound(level, facts.bytes, facts.bytes / getattr(ceilings, level))
    return max(arithmetic, memory, key=lambda bound: bound.seconds)


def measure(cores: Sequence[int]) -> Ceilings:
    """The ceilings of one thread on each of `cores`. Takes about four seconds."""
    loops = Loops()
    rates: dict[str, Rate] = {
        name: max(Gauge(loops, name, cores).rates(RUNS)) if name in READS or name in loops.operations else None
        for name in ("f32", "bf16", "int8", "exponentials", *READS)
    }
    _, l2, l3 = cache_bytes()
    return Ceilings(threads=len(cores), l2_bytes=l2, l3_bytes=l3, **rates)  # type: ignore[arg-type]


def cache_bytes() -> tuple[int, int, int]:
    """Sizes of the first core's L1 data, L2 and last-level caches; common sizes where the system does not tell."""
    sizes = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if (index / "type").read_text().strip() != "Instruction":
            text = (index / "size").read_text().strip()
            sizes[int((index / "level").read_text())] = int(text.rstrip("KM")) << (20 if text.endswith("M") else 10)
    return sizes[1], sizes[2], sizes[3]


class Loops:
    """The compiled loops, for the widest vectors of the host."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()  # the dot products are inline assembly: their intrinsics change by version
        features = llvm.get_host_cpu_features()
        lanes = 16 if features.get("avx512f") else 8 if features.get("avx") else 4
        chains = 16 if lanes == 16 else 12  # at least latency times throughput; AVX2 has 16 registers
        vector = f"<{lanes} x float>"
        fma = f"call {vector} @llvm.fma.v{lanes}f32({vector} %x, {vector} %y, {vector} {{a}})"
        steps = {"f32": fma}
        self.operations = {"f32": 2 * lanes * chains}  # per trip
        if features.get("avx512bf16"):
            steps["bf16"] = _assembly("vdpbf16ps", vector)
            self.operations["bf16"] = 4 * lanes * chains
        if features.get("avx512vnni"):
            steps["int8"] = _assembly("vpdpbusd", vector)
            self.operations["int8"] = 8 * lanes * chains
        self.operations["exponentials"] = EXPONENTIALS * lanes
        text = [f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})\n"]
        text += [_chains(name, vector, chains, step) for name, step in steps.items()]
        text += [memory_loop("read", "read"), memory_loop("copy", "stream"), METADATA]
        exponentials = llvm.parse_assembly(_exponentials("exponentials", lanes))

        target = llvm.Target.from_default_triple()
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly("".join(text)), machine)  # owns the code
        self.engine.add_module(exponentials)
        self.engine.finalize_object()

    def function(self, name: str, *arguments: Any) -> Callable[..., None]:
        return ctypes.CFUNCTYPE(None, *arguments)(self.engine.get_function_address(name))


class Gauge:
    """Measures one ceiling, a field of `Ceilings` by its name, again and again: one thread on each core."""

    def __init__(self, loops: Loops, ceiling: str, cores: Sequence[int]) -> None:
        self.loops, self.cores = loops, cores
        self.buffers: list[Words] = []
        if ceiling in loops.operations:
            self.units, self.work = loops.operations[ceiling], self._arithmetic(ceiling)
        else:
            self.units, self.work = self._memory(ceiling)
        self.count = 1  # such that a run is long enough
        while seconds_of(self.work, self.count, cores) < RUN_SECONDS:
            self.count *= 2

    def rates(self, runs: int) -> list[float]:
        """Units per second of so many runs of about `RUN_SECONDS`."""
        units = self.units * self.count * len(self.cores)
        return [units / seconds_of(self.work, self.count, self.cores) for _ in range(runs)]

    def _arithmetic(self, name: str) -> list[Callable[[int], object]]:
        run = self.loops.function(name, ctypes.c_void_p, ctypes.c_int64)
        return [partial(run, self._pages(4096, fill=1.0)) for _ in self.cores]

    def _memory(self, ceiling: str) -> tuple[int, list[Callable[[int], object]]]:
        """Bytes that a thread moves per unit of work, a copy's twice, and the work."""
        name = "copy" if ceiling == "copy" else "read"
        bytes_ = READS[ceiling](len(self.cores))
        bytes_ -= bytes_ % (UNROLL * LINE_BYTES)
        run = self.loops.function(name, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        sink_bytes = bytes_ if name == "copy" else 4096
        work = [partial(run, self._pages(bytes_), self._pages(sink_bytes), bytes_) for _ in self.cores]
        return (2 * bytes_ if name == "copy" else bytes_), list(work)

    def _pages(self, bytes_: int, fill: float = 0.0) -> int:
        """The address of memory that lives as long as the gauge."""
        self.buffers.append(pages(bytes_, fill))
        address: int = self.buffers[-1].ctypes.data
        return address


def _main_memory_bytes() -> int:
    """Of all buffers together, for them to stay out of the last-level cache."""
    return min(max(8 * cache_bytes()[2], 256 << 20), _available_bytes() // 4)


def _chains(name: str, vector: str, chains: int, step: str) -> str:
    """``void name(ptr operands, i64 trips)``: each trip takes one `step` in each of `chains` independent registers.

    `operands` holds x and y and takes the sum of the registers, which keeps them alive.
    """
    body = [f"  %b{i} = {step.format(a=f'%a{i}')}\n" for i in range(chains)]
    registers = [f"  %a{i} = phi {vector} [ zeroinitializer, %entry ], [ %b{i}, %loop ]\n" for i in range(chains)]
    sums = [f"  %s{i} = fadd {vector} %s{i - 1}, %b{i}\n" for i in range(1, chains)]
    return (
        f"define void @{name}(ptr %operands, i64 %trips) {{\nentry:\n"
        f"  %x = load {vector}, ptr %operands\n"
        f"  %second = getelementptr i8, ptr %operands, i64 64\n"
        f"  %y = load {vector}, ptr %second\n"
        f"  br label %loop\nloop:\n"
        f"  %i = phi i64 [ 0, %entry ], [ %next, %loop ]\n{''.join(registers)}{''.join(body)}"
        f"  %next = add i64 %i, 1\n  %more = icmp slt i64 %next, %trips\n"
        f"  br i1 %more, label %loop, label %done\ndone:\n"
        f"  %s0 = fadd {vector} %b0, %b0\n{''.join(sums)}"
        f"  store {vector} %s{chains - 1}, ptr %operands\n  ret void\n}}\n"
    )


def _exponentials(name: str, lanes: int) -> str:
    """``void name(ptr page, i64 trips)``: each trip takes `EXPONENTIALS` vectors, of the next numbers of the page.

    The instructions are those of the exponentials of a softmax in the code that Tilewright makes for this host.
    """
    from llvmlite import ir

    from tilewright.codegen.cpu.interleaved import emit_registers
    from tilewright.codegen.cpu.target import described
    from tilewright.kernel.dialect import ExpNonpositiveOp
    from tilewright.machine import host

    pointer, integer, vector = ir.PointerType(), ir.IntType(64), ir.VectorType(ir.FloatType(), lanes)
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer, integer]), name)
    page, trips = function.args
    entry, loop, done = (function.append_basic_block(block) for block in ("entry", "loop", "done"))
    ir.IRBuilder(entry).branch(loop)
    builder, step = ir.IRBuilder(loop), EXPONENTIALS * lanes * 4
    trip = builder.phi(integer)
    first = builder.and_(builder.mul(trip, integer(step)), integer(HALF_PAGE - 1))

    def place(number: int, start: int) -> ir.Value:
        offset = builder.add(first, integer(start + number * lanes * 4))
        return builder.gep(page, [offset], source_etype=ir.IntType(8))

    numbers = [builder.load(place(each, 0), typ=vector, align=lanes * 4) for each in range(EXPONENTIALS)]
    results = emit_registers(builder, described(host()), ExpNonpositiveOp.name, None, [numbers])
    for number, result in enumerate(results):
        builder.store(result, place(number, HALF_PAGE), align=lanes * 4)
    following = builder.add(trip, integer(1))
    trip.add_incoming(integer(0), entry)
    trip.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, trips), loop, done)
    ir.IRBuilder(done).ret_void()
    return str(module)


def _assembly(mnemonic: str, vector: str) -> str:
    """A step that accumulates: the registers hold whatever element type the instruction reads."""
    return f'call {vector} asm "{mnemonic} $2, $1, $0", "=v,v,v,0"({vector} %x, {vector} %y, {vector} {{a}})'


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ceilings", description="Measure this machine's ceilings.")
    parser.add_argument("--cores", required=True, help="one thread on each of these, separated by commas")
    cores = [int(core) for core in parser.parse_args().cores.split(",")]
    json.dump(asdict(measure(cores)), sys.stdout)


if __name__ == "__main__":
    main()
