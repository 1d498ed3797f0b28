"""Kernels in PTX that do one thing over and over: what `calibrate` times.

A kernel gets the address of a large buffer (%mem) and of its results (%out), and knows its thread (%thread), its block
(%number) and how many blocks there are (%n). Bodies are lines of PTX.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.dataclass import dataclass

Lines = list[str]
NEVER = 99_999  # the number of no thread: what only this one stores is computed and not written
_REGISTERS = """
  .reg .pred %p, %q;
  .reg .b32 %thread, %number, %n, %i, %j, %x, %y, %s;
  .reg .b64 %mem, %out, %at, %t0, %t1, %w;
"""
_PROLOGUE = """
  ld.param.u64 %mem, [pm];
  ld.param.u64 %out, [po];
  mov.u32 %thread, %tid.x;
  mov.u32 %number, %ctaid.x;
  mov.u32 %n, %nctaid.x;
"""


@dataclass(frozen=True)
class Probe:
    """A kernel and its launch. `shared` is in bytes."""

    body: tuple[str, ...]
    grid: int
    block: int
    shared: int = 0
    registers: tuple[str, ...] = ()

    def text(self) -> str:
        """The module that has the kernel as its entry `k`."""
        shared = [".extern .shared .align 1024 .b8 buffer[];"] if self.shared else []
        start = ["  mov.u32 %s, buffer;"] if self.shared else []
        return "\n".join([
            ".version 8.0", ".target sm_90a", ".address_size 64", *shared,
            ".visible .entry k(.param .u64 pm, .param .u64 po)", "{", _REGISTERS, *self.registers, _PROLOGUE, *start,
            *self.body, "  ret;", "}", "",
        ])  # fmt: skip


PRAGMA = '  .pragma "nounroll";'  # else ptxas unrolls thousands of products: minutes, and other code than is meant


def loop(trips: int, body: Sequence[str], name: str = "L") -> Lines:
    """`trips` times a body that leaves %i and %p alone."""
    return [
        "  mov.u32 %i, 0;", f"{name}:", PRAGMA, *body, "  add.u32 %i, %i, 1;", f"  setp.lt.u32 %p, %i, {trips};",
        f"  @%p bra {name};",
    ]  # fmt: skip


def timed(body: Sequence[str]) -> Lines:
    """A body between two readings of the clock, whose distance the first thread (%q) stores."""
    return [
        "  mov.u64 %t0, %clock64;", *body, "  mov.u64 %t1, %clock64;", "  sub.u64 %t1, %t1, %t0;",
        "  or.b32 %j, %thread, %number;", "  setp.eq.u32 %q, %j, 0;", "  @%q st.global.u64 [%out], %t1;",
    ]  # fmt: skip


def empty(grid: int, block: int, shared: int = 0) -> Probe:
    return Probe((), grid, block, shared)


def clock(grid: int, block: int) -> Probe:
    """Cycles and, behind them, nanoseconds of some million integer instructions."""
    work = loop(1_000_000, ["  add.u32 %x, %x, %i;", "  xor.b32 %x, %x, %thread;"])
    body = ["  mov.u64 %w, %globaltimer;", *timed(work), "  mov.u64 %at, %globaltimer;", "  sub.u64 %at, %at, %w;"]
    return Probe((*body, "  @%q st.global.u64 [%out+8], %at;", "  @%q st.global.u32 [%out+16], %x;"), grid, block)


def chase(steps: int, warm: int) -> Probe:
    """Cycles of `steps` loads, each of the address of the next, after `warm` that bring what they read to L2."""
    load = ["  ld.global.cg.u64 %at, [%at];"]
    first = loop(warm, load, "W") if warm else []
    return Probe(("  mov.u64 %at, %mem;", *first, *timed(loop(steps, load)), "  st.global.u64 [%out+8], %at;"), 1, 1)


def copy_to_shared(steps: int) -> Probe:
    """Cycles of `steps` asynchronous copies of 16 bytes from L2, each awaited and read."""
    copy = [
        "  cp.async.cg.shared.global [%s], [%at], 16;", "  cp.async.wait_all;", "  ld.shared.u32 %x, [%s];",
        "  mul.wide.u32 %w, %x, 0;", "  add.u64 %at, %at, %w;", "  add.u64 %at, %at, 512;",
    ]  # fmt: skip
    body = ["  mov.u64 %at, %mem;", *loop(steps, copy, "W"), "  mov.u64 %at, %mem;", *timed(loop(steps, copy))]
    return Probe((*body, "  st.global.u64 [%out+8], %at;"), 1, 1, 16 << 10)


CHAINS = {
    "shared_latency": ("  ld.shared.u32 %s, [%s];",),
    "shuffle_add": ("  shfl.sync.bfly.b32 %y, %x, 1, 31, -1;", "  add.u32 %x, %x, %y;"),
    "barrier": ("  bar.sync 0;",),
}


def chain(name: str, steps: int, threads: int) -> Probe:
    """Cycles of four times `steps` steps that wait for each other."""
    first = ["  st.shared.u32 [%s], %s;", "  bar.sync 0;", "  mov.u32 %x, %thread;"]
    body = [*first, *timed(loop(steps, CHAINS[name] * 4)), "  add.u32 %x, %x, %s;", "  st.global.u32 [%out+8], %x;"]
    return Probe(tuple(body), 1, threads, 16 << 10)


LOADS = 8  # of 16 bytes that a thread of `reading` has under way


def reading(span: int, trips: int, grid: int, block: int) -> Probe:
    """Every thread reads 16 bytes, `LOADS` times, a grid apart, round and round a span, which is a power of two."""
    loads, sums = [], []
    for number in range(LOADS):
        parts = [f"%v{4 * number + part}" for part in range(4)]
        loads += ["  and.b64 %w, %at, " + str(span - 16) + ";", "  add.u64 %w, %w, %mem;"]
        loads += [f"  ld.global.cg.v4.u32 {{{', '.join(parts)}}}, [%w];", "  add.u64 %at, %at, %t1;"]
        sums += [f"  xor.b32 %x, %x, {part};" for part in parts]
    start = [
        "  mov.u32 %y, %ntid.x;", "  mad.lo.u32 %j, %number, %y, %thread;", "  mul.wide.u32 %at, %j, 16;",
        "  mul.lo.u32 %j, %n, %y;", "  mul.wide.u32 %t1, %j, 16;", "  mov.u32 %x, 0;",
    ]  # fmt: skip
    end = ["  setp.eq.u32 %q, %x, 123456789;", "  @%q st.global.u32 [%out], %x;"]
    return Probe((*start, *loop(trips, [*loads, *sums]), *end), grid, block, 0, (f"  .reg .b32 %v<{4 * LOADS}>;",))


@dataclass(frozen=True)
class MatrixUnit:
    """An `mma`: its opcode, registers of a, b and c, multiply-adds, and the types of registers of inputs and sums."""

    opcode: str
    registers: tuple[int, int, int]
    macs: int
    inputs: str = "b32"
    sums: str = "f32"


MATRIX_UNITS = {
    "mma_f16_f32": MatrixUnit("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (4, 2, 4), 2048),
    "mma_bf16_f32": MatrixUnit("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", (4, 2, 4), 2048),
    "mma_f16_f16": MatrixUnit("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", (4, 2, 2), 2048, sums="b32"),
    "mma_tf32_f32": MatrixUnit("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", (4, 2, 4), 1024),
    "mma_s8_s32": MatrixUnit("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", (4, 2, 4), 4096, sums="b32"),
    "mma_m8n8k4_f64": MatrixUnit("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", (1, 1, 2), 256, "f64", "f64"),
    "mma_m16n8k16_f64": MatrixUnit("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", (8, 4, 4), 2048, "f64", "f64"),
}
SUMS = 4  # products of a warp that do not wait for each other
REPEATED = 8  # times in the text of a loop: with one an H200 makes 856 multiply-adds a cycle, with eight 1187


def products_of_warps(unit: MatrixUnit, trips: int, grid: int, warps: int) -> Probe:
    """`SUMS` times `trips` products in each warp, of numbers near 1 that differ by register and sum.

    `trips` is a multiple of `REPEATED`.
    """
    a, b, c = unit.registers
    registers = (f"  .reg .{unit.inputs} %a<{a}>, %b<{b}>;", f"  .reg .{unit.sums} %c<{c * SUMS}>;")
    body = [f"  mov.{unit.inputs} %a{number}, {_near_one(unit.inputs, number)};" for number in range(a)]
    body += [f"  mov.{unit.inputs} %b{number}, {_near_one(unit.inputs, number)};" for number in range(b)]
    body += [f"  mov.{unit.sums} %c{number}, {_near_one(unit.sums, number)};" for number in range(c * SUMS)]
    of_a, of_b = (", ".join(f"%{name}{number}" for number in range(count)) for name, count in (("a", a), ("b", b)))
    steps = []
    for sums in range(SUMS):
        own = ", ".join(f"%c{sums * c + number}" for number in range(c))
        steps.append(f"  {unit.opcode} {{{own}}}, {{{of_a}}}, {{{of_b}}}, {{{own}}};")
    assert trips % REPEATED == 0
    body += [*loop(trips // REPEATED, steps * REPEATED), f"  setp.eq.u32 %q, %thread, {NEVER};"]
    body += [f"  @%q st.global.{unit.sums} [%out], %c{number};" for number in range(c * SUMS)]
    return Probe(tuple(body), grid, 32 * warps, 0, registers)


def _near_one(kind: str, number: int) -> str:
    """A number of its own: two halves of a word from 0.5 to 1, or a float from 1 to 2."""
    return {
        "b32": f"0x3C{number:02X}38{number:02X}", "f32": f"0f3F8{number:02X}000",
        "f64": f"0d3FF{number:02X}00000000000",
    }[kind]  # fmt: skip


def multiply_adds(trips: int, grid: int, threads: int, chains: int = 16) -> Probe:
    """Four times `trips` rounds of fused multiply-adds in so many chains of each thread."""
    body = ["  cvt.rn.f32.u32 %a, %thread;", *(f"  mov.f32 %c{n}, {_near_one('f32', n)};" for n in range(chains))]
    body += loop(trips, [f"  fma.rn.f32 %c{n}, %c{n}, %a, %a;" for n in range(chains)] * 4)
    body += [f"  setp.eq.u32 %q, %thread, {NEVER};", *(f"  @%q st.global.f32 [%out], %c{n};" for n in range(chains))]
    return Probe(tuple(body), grid, threads, 0, (f"  .reg .f32 %c<{chains}>, %a;",))


WARPGROUP_KINDS = {
    "wgmma_f16": ("f16.f16", 16), "wgmma_bf16": ("bf16.bf16", 16), "wgmma_tf32": ("tf32.tf32", 8),
    "wgmma_s8": ("s8.s8", 32), "wgmma_e4m3": ("e4m3.e4m3", 32),
}  # fmt: skip
WARPGROUP_COLUMNS, WARPGROUP_SUMS = 256, 128  # of an instruction; sums of a thread
PRODUCTS = 4  # of a group that is awaited


def products_of_warpgroups(name: str, trips: int, grid: int) -> Probe:
    """Two groups of four warps, each with `PRODUCTS` times `trips` products of 64 x 256 from the same 64 KiB of shared
    memory, which hold random numbers without a swizzle.
    """
    kind, k = WARPGROUP_KINDS[name]
    integers = kind.startswith("s8")
    type_, result, zero = ("b32", "s32", "0") if integers else ("f32", "f32", "0f00000000")
    flags = "" if integers else ", 1, 1"
    flags += ", 0, 0" if kind in ("f16.f16", "bf16.bf16") else ""
    sums = [f"%c{number}" for number in range(WARPGROUP_SUMS)]
    product = f"  wgmma.mma_async.sync.aligned.m64n256k{k}.{result}.{kind} {{{', '.join(sums)}}}, %da, %db, %q{flags};"
    fill = [
        "  mov.u32 %i, %thread;", "F:", "  mad.lo.u32 %x, %i, 2654435761, 12345;", "  and.b32 %x, %x, 0x83FF83FF;",
        "  or.b32 %x, %x, 0x38003800;", "  shl.b32 %y, %i, 2;", "  add.u32 %y, %y, %s;", "  st.shared.u32 [%y], %x;",
        "  add.u32 %i, %i, 256;", "  setp.lt.u32 %p, %i, 16384;", "  @%p bra F;", "  fence.proxy.async.shared::cta;",
        "  bar.sync 0;",
    ]  # fmt: skip
    describe = [
        "  shr.u32 %x, %s, 4;", "  cvt.u64.u32 %da, %x;", f"  or.b64 %da, %da, {8 << 16 | 16 << 32};",
        "  mov.b64 %db, %da;", "  setp.ge.u32 %q, %thread, 0;", *(f"  mov.{type_} {each}, {zero};" for each in sums),
    ]  # fmt: skip
    group = [
        "  wgmma.fence.sync.aligned;", *[product] * PRODUCTS, "  wgmma.commit_group.sync.aligned;",
        "  wgmma.wait_group.sync.aligned 0;",
    ]  # fmt: skip
    end = [f"  setp.eq.u32 %q, %thread, {NEVER};", *(f"  @%q st.global.{type_} [%out], {each};" for each in sums)]
    registers = (f"  .reg .{type_} %c<{WARPGROUP_SUMS}>;", "  .reg .b64 %da, %db;")
    return Probe((*fill, *describe, *loop(trips, group), *end), grid, 256, 64 << 10, registers)
