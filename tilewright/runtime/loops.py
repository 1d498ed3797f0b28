"""Loops that find out how fast this machine is, in LLVM IR, and their timing: chains in registers, reads, copies.

Every loop does its work `count` times. Nothing but instruction selection runs on the IR: LLVM's passes would see
through loops whose results nobody needs.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import llvmlite.binding as llvm
import numpy as np

from tilewright.runtime.loader import Code

LINE_BYTES = 64
UNROLL = 8  # cache lines per trip of a memory loop
MULTIPLIED = 12  # of one with multiply-adds: of 16 registers, some have factors
LANE_BYTES = 4  # of an element that a broadcast reads
TICKS_PER_TRIP = 128  # of the clock loop

SCATTERED_BYTES = 49 * LINE_BYTES  # between neighbours of a scattered loop: odd numbers of lines use all sets
SCATTERED_WITHIN = 1 << 20  # pages that return, as those of an image do: tables of a core have 256 of them
# Addresses of what L1 holds differ in their lower bits only: the first Zen processors look for a line by a hash of its
# address, and a carry gives neighbouring pages the same one. In one process of ten L1 read at two thirds of its rate.
PAGES_ALIGNED = 1 << 16

MemoryLoop = Literal["read", "scattered", "broadcast", "multiplied", "write", "copy", "stream"]
SPREAD: tuple[MemoryLoop, ...] = ("broadcast", "multiplied")  # that load elements into all lanes
Words = np.ndarray[Any, np.dtype[np.float32]]


def compiled(text: str, functions: Sequence[str], cpu: str, features: str) -> Code:
    """The loops of `text`, compiled for a processor as LLVM names it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.verify()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")
    return Code(machine.emit_object(module), functions)


def clock_loop(name: str) -> str:
    """``void name(i64 count)``: each trip is a chain of `TICKS_PER_TRIP` additions and exclusive ors, a cycle each."""
    body = []
    for i in range(0, TICKS_PER_TRIP, 2):
        body.append(f"  %s{i} = add i64 %{'x' if i == 0 else f't{i - 2}'}, %count\n")
        body.append(f"  %t{i} = xor i64 %s{i}, %i\n")
    last = f"%t{TICKS_PER_TRIP - 2}"
    return (
        f"define i64 @{name}(i64 %count) {{\nentry:\n  br label %loop\nloop:\n"
        f"  %i = phi i64 [ 0, %entry ], [ %next, %loop ]\n  %x = phi i64 [ 1, %entry ], [ {last}, %loop ]\n"
        f"{''.join(body)}  %next = add i64 %i, 1\n  %more = icmp slt i64 %next, %count\n"
        f"  br i1 %more, label %loop, label %done\ndone:\n  ret i64 {last}\n}}\n"
    )


def memory_loop(name: str, kind: MemoryLoop, vector_bits: int = 8 * LINE_BYTES) -> str:
    """``void name(ptr source, ptr sink, i64 bytes, i64 count)``, a whole number of `lines_of_trip` steps per trip.

    "read" combines all lines into one, which it stores; "scattered" does so with lines that are `SCATTERED_BYTES`
    apart, from the beginning again behind `SCATTERED_WITHIN`; "broadcast" does so with vectors of `vector_bits` whose
    lanes all hold one element of a line, of each line of a trip another one: elements that begin all lines of a cache
    lie in one of its banks. "multiplied" does so with each of these vectors times another one, by multiply-adds where
    there are any: on some processors they compete for units.
    "write" stores zeros to every line; "copy" stores every line, and "stream" does so past the caches.
    """
    lanes, spread = vector_bits // (8 * LANE_BYTES), kind in SPREAD
    line = f"<{lanes} x {'float' if kind == 'multiplied' else 'i32'}>" if spread else "<8 x i64>"
    reads, combines = kind != "write", kind in ("read", "scattered", *SPREAD)
    unroll, add = lines_of_trip(kind), "fadd contract" if kind == "multiplied" else "xor"
    step = bytes_of_step(kind)
    entry = [f"  %a{j} = phi {line} [ zeroinitializer, %entry ], [ %b{j}, %latch ]\n" for j in range(unroll)]
    inner = [f"  %c{j} = phi {line} [ %a{j}, %outer ], [ %b{j}, %inner ]\n" for j in range(unroll)]
    past = ", !nontemporal !0" if kind == "stream" else ""
    body = []
    for j in range(unroll):
        place = j * step + (j * LANE_BYTES if spread else 0)
        offset = f"%d{j}" if kind == "scattered" else f"%o{j}"
        body.append(f"  {offset} = add i64 %offset, {place}\n")
        if kind == "scattered":
            body.append(f"  %o{j} = and i64 {offset}, {SCATTERED_WITHIN - 1}\n")
        if reads:
            body.append(f"  %p{j} = getelementptr i8, ptr %source, i64 %o{j}\n")
            body.append(_broadcast(j, line) if spread else f"  %v{j} = load {line}, ptr %p{j}, align 64\n")
        if kind == "multiplied":
            body.append(f"  %m{j} = fmul contract {line} %v{j}, %factor\n")
        if combines:
            body.append(f"  %b{j} = {add} {line} %c{j}, %{'m' if kind == 'multiplied' else 'v'}{j}\n")
        else:
            body.append(f"  %q{j} = getelementptr i8, ptr %sink, i64 %o{j}\n")
            body.append(f"  store {line} {f'%v{j}' if reads else 'zeroinitializer'}, ptr %q{j}, align 64{past}\n")
    sums = [f"  %s{j} = {add} {line} {f'%s{j - 1}' if j > 1 else '%b0'}, %b{j}\n" for j in range(1, unroll)]
    result = f"{''.join(sums)}  store {line} %s{unroll - 1}, ptr %sink, align 64\n"
    factor = f"  %factor = load {line}, ptr %source, align 64\n" if kind == "multiplied" else ""
    return (
        f"define void @{name}(ptr %source, ptr %sink, i64 %bytes, i64 %count) {{\nentry:\n{factor}"
        f"  br label %outer\nouter:\n"
        f"  %i = phi i64 [ 0, %entry ], [ %next, %latch ]\n{''.join(entry) if combines else ''}"
        f"  br label %inner\ninner:\n"
        f"  %offset = phi i64 [ 0, %outer ], [ %further, %inner ]\n{''.join(inner) if combines else ''}{''.join(body)}"
        f"  %further = add i64 %offset, {unroll * step}\n  %rest = icmp slt i64 %further, %bytes\n"
        f"  br i1 %rest, label %inner, label %latch\nlatch:\n"
        f"  %next = add i64 %i, 1\n  %more = icmp slt i64 %next, %count\n"
        f"  br i1 %more, label %outer, label %done\ndone:\n"
        f"{result if combines else '  fence seq_cst'}\n  ret void\n}}\n"
    )


def lines_of_trip(kind: MemoryLoop) -> int:
    """Lines that one trip touches: with multiply-adds more than their latency times their rate, as registers allow."""
    return MULTIPLIED if kind == "multiplied" else UNROLL


def bytes_of_step(kind: MemoryLoop) -> int:
    """From one line that a memory loop touches to the next."""
    return SCATTERED_BYTES if kind == "scattered" else LINE_BYTES


def _broadcast(j: int, vector: str) -> str:
    lanes, _, dtype = vector.strip("<>").split()
    return (
        f"  %e{j} = load {dtype}, ptr %p{j}, align {LANE_BYTES}\n"
        f"  %f{j} = insertelement {vector} poison, {dtype} %e{j}, i64 0\n"
        f"  %v{j} = shufflevector {vector} %f{j}, {vector} poison, <{lanes} x i32> zeroinitializer\n"
    )


#: What a module with the memory loop "stream" ends with.
METADATA = "!0 = !{i32 1}\n"


def function(code: Code, name: str, *arguments: Any) -> Callable[..., None]:
    """A loop as something to call with integers (addresses are integers); the lock of Python is free meanwhile."""
    found = ctypes.CFUNCTYPE(None, *arguments)(code.address(name))
    found.code = code  # type: ignore[attr-defined]  # as long as the function is there
    return found


def pages(bytes_: int, fill: float = 0.0) -> Words:
    """`bytes_` of memory, aligned to `PAGES_ALIGNED` and touched."""
    buffer = np.empty((bytes_ + PAGES_ALIGNED) // 4, np.float32)
    start = -buffer.ctypes.data % PAGES_ALIGNED // 4
    buffer.fill(fill)
    return buffer[start : start + bytes_ // 4]


def best_seconds(
    work: Sequence[Callable[[int], object]], cores: Sequence[int], *, run_seconds: float, within: float
) -> float:
    """Least time of one unit: `work[i](count)` does `count` units on a thread of its own on `cores[i]`.

    A run takes about `run_seconds`, so that starting it does not count. Runs follow each other for `within` seconds;
    one at least counts.
    """
    if len(cores) == 1:
        return best_in_turns(work, cores[0], run_seconds=run_seconds, within=within)[0]
    return _best([lambda count: seconds_of(work, count, cores)], run_seconds, within)[0]


def best_in_turns(
    work: Sequence[Callable[[int], object]], core: int, *, run_seconds: float, within: float
) -> list[float]:
    """Least time of one unit of each of `work`, whose runs take turns on one thread on `core`.

    What changes the speed of the core for a while, such as its clock, changes all of them.
    """
    found: list[float] = []

    def run() -> None:
        _pin(core)
        found.extend(_best([partial(_seconds, each) for each in work], run_seconds, within))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def _seconds(work: Callable[[int], object], count: int) -> float:
    start = time.perf_counter()
    work(count)
    return time.perf_counter() - start


def _best(seconds: Sequence[Callable[[int], float]], run_seconds: float, within: float) -> list[float]:
    deadline = time.perf_counter() + within
    counts, best = [1] * len(seconds), [float("inf")] * len(seconds)
    while time.perf_counter() < deadline or float("inf") in best:
        for number, run in enumerate(seconds):
            taken, count = run(counts[number]), counts[number]
            if taken < run_seconds / 2:  # too short to tell, also where an earlier run was interrupted
                counts[number] *= min(16, max(2, int(run_seconds / max(taken, 1e-9))))
            else:
                best[number] = min(best[number], taken / count)
    return best


def seconds_of(work: Sequence[Callable[[int], object]], count: int, cores: Sequence[int]) -> float:
    """From the start of the first part to the end of the last."""
    barrier = threading.Barrier(len(cores))
    starts, ends = [0.0] * len(cores), [0.0] * len(cores)

    def run(index: int) -> None:
        _pin(cores[index])
        barrier.wait()
        starts[index] = time.perf_counter()
        work[index](count)
        ends[index] = time.perf_counter()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(cores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(ends) - min(starts)


def _pin(core: int) -> None:
    """Keep this thread, and no other, on a core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
