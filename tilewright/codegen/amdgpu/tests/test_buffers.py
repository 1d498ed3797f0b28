"""Accesses through buffer resources: what LLVM makes of them, and where they go when the CPU imitates them."""

from __future__ import annotations

import ctypes
import re

import llvmlite.binding as llvm
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.amdgpu.emission import OUTSIDE
from tilewright.codegen.amdgpu.offsets import Offsets, Parts
from tilewright.codegen.amdgpu.pipeline import generate, llvm_text
from tilewright.codegen.amdgpu.target import target_of
from tilewright.codegen.amdgpu.tests.compile import compiled, instructions, kernel, targeted
from tilewright.codegen.gpu.control import elements_of
from tilewright.kernel import dialect as tile
from tilewright.kernel.interpreter import run_kernel
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.text import parse_module

MACHINES = ("gfx1100", "gfx1201", "gfx942")


def distributed(text: str, machine: str, warps: int = 2) -> ModuleOp:
    module = targeted(text, machine)
    settings = {name: {"warps": warps} for name in ("assign-layouts", "distribute")}
    run_pipeline(module, "gpu", verify_each=True, lanes=target_of(module).lanes, options=settings)
    return module


# Imitation: the LLVM IR of a kernel, thread by thread, on this CPU ----------------------------------------------------

_STUBS = """
@at = global [4 x i32] zeroinitializer
@wrong = global i32 0
declare ptr @malloc(i64)
declare i32 @llvm.umin.i32(i32, i32)
define void @amd.sched.barrier(i32 %mask) {
  ret void
}
define ptr @amd.make.buffer.rsrc.p8.p1(ptr %base, i16 %stride, i64 %size, i32 %flags) {
  %r = call ptr @malloc(i64 16)
  store ptr %base, ptr %r
  %s = getelementptr i64, ptr %r, i64 1
  store i64 %size, ptr %s
  ret ptr %r
}
define ptr @place(ptr %r, i32 %lane, i32 %wave, i64 %bytes) {
  %base = load ptr, ptr %r
  %s = getelementptr i64, ptr %r, i64 1
  %size = load i64, ptr %s
  %w = zext i32 %wave to i64
  %l = zext i32 %lane to i64
  %room = sub i64 %size, %w
  %end = add i64 %l, %bytes
  %inside = icmp sle i64 %end, %room
  %meant = icmp eq i32 %lane, OUTSIDE
  %short = icmp slt i64 %room, 0
  %either = xor i1 %inside, %meant
  %fine = icmp ugt i1 %either, %short
  %bad = xor i1 %fine, true
  %one = zext i1 %bad to i32
  %before = load i32, ptr @wrong
  %after = or i32 %before, %one
  store i32 %after, ptr @wrong
  %sum = add i64 %l, %w
  %there = getelementptr i8, ptr %base, i64 %sum
  %found = select i1 %inside, ptr %there, ptr null
  ret ptr %found
}
"""
_ACCESS = """
define TYPE @amd.raw.ptr.buffer.load.NAME(ptr %r, i32 %lane, i32 %wave, i32 %aux) {
  %p = call ptr @place(ptr %r, i32 %lane, i32 %wave, i64 BYTES)
  %out = icmp eq ptr %p, null
  br i1 %out, label %zero, label %inside
zero:
  ret TYPE zeroinitializer
inside:
  %v = load TYPE, ptr %p, align 1
  ret TYPE %v
}
define void @amd.raw.ptr.buffer.store.NAME(TYPE %v, ptr %r, i32 %lane, i32 %wave, i32 %aux) {
  %p = call ptr @place(ptr %r, i32 %lane, i32 %wave, i64 BYTES)
  %out = icmp eq ptr %p, null
  br i1 %out, label %nothing, label %inside
nothing:
  ret void
inside:
  store TYPE %v, ptr %p, align 1
  ret void
}
"""
_TYPES = {"i8": ("i8", 1), "i16": ("i16", 2), "i32": ("i32", 4), "v2i32": ("<2 x i32>", 8), "v4i32": ("<4 x i32>", 16)}


def imitated(module: ModuleOp) -> str:
    """The IR of a module for this CPU, with functions instead of intrinsics."""
    text = re.sub(r"target (triple|datalayout).*\n", "", llvm_text(module))
    text = re.sub(r" addrspace\(\d\)", "", text).replace("amdgpu_kernel ", "").replace("@llvm.amdgcn.", "@amd.")
    text = re.sub(r'@"llvm\.amdgcn\.([^"]*)"', r'@"amd.\1"', text)
    text = re.sub(r'declare .*@"?(amd\.|llvm\.umin\.i32).*\n', "", text)
    text += _STUBS.replace("OUTSIDE", str(-OUTSIDE))
    for number, name in enumerate(["workitem.id.x", *(f"workgroup.id.{axis}" for axis in "xyz")]):
        pointer = f"getelementptr ([4 x i32], ptr @at, i64 0, i64 {number})"
        text += f"define i32 @amd.{name}() {{\n  %v = load i32, ptr {pointer}\n  ret i32 %v\n}}\n"
    for name, (type_, count) in _TYPES.items():
        text += _ACCESS.replace("NAME", name).replace("TYPE", type_).replace("BYTES", str(count))
    return text


def run_imitated(module: ModuleOp, arrays: list[np.ndarray]) -> None:
    """Run @k, which has one axis of programs and no barriers, in place; no access may lie outside unless it says so."""
    kernel = next(op for op in module.body.ops if isinstance(op, tile.FuncOp))
    assert not [op.name for op in kernel.walk() if op.name.startswith("simt.") and op.name != "simt.thread_id"]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(imitated(module), context=llvm.create_context())
    parsed.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), jit=True)
    with llvm.create_mcjit_compiler(parsed, machine) as engine:
        engine.finalize_object()
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(engine.get_function_address("k"))
        at = (ctypes.c_int32 * 4).from_address(engine.get_global_value_address("at"))
        wrong = ctypes.c_int32.from_address(engine.get_global_value_address("wrong"))
        (programs_,) = kernel.extents
        for program in range(programs_):
            for thread in range(kernel.block[0]):
                at[0], at[1] = thread, program
                function(*[array.ctypes.data for array in arrays])
        assert wrong.value == 0, "an access lies outside of its view"


# A window that begins before its view and ends behind it, as borders of convolutions do; loops; strides of both signs.
WINDOW = """builtin.module {
  tile.func @k(%a: memref<ELEMENTSxTYPE>, %o: memref<1024xTYPE>) grid [4] {
    %p = tile.program_id 0
    %size = arith.constant 64 : index
    %start = arith.muli %p, %size : index
    %before = arith.constant 24 : index
    %first = arith.subi %start, %before : index
    %t = tile.iota 0 : tensor<64xi64>
    %w = arith.index_cast %first : index to i64
    %b = tile.broadcast %w : i64 -> tensor<64xi64>
    %i = arith.addi %t, %b : tensor<64xi64>
    %zero = arith.constant dense<0> : tensor<64xi64>
    %end = arith.constant dense<ELEMENTS> : tensor<64xi64>
    %low = tile.compare "ge" %i, %zero : tensor<64xi64> -> tensor<64xi1>
    %high = tile.compare "lt" %i, %end : tensor<64xi64> -> tensor<64xi1>
    %inside = arith.andi %low, %high : tensor<64xi1>
    %v = tile.load %a[%first] mask %inside : tensor<64xi1> strides [1] : memref<ELEMENTSxTYPE> -> tensor<64xTYPE>
    tile.store %v, %o[%start] strides [1] : tensor<64xTYPE>, memref<1024xTYPE>
    tile.return
  }
}"""
STREAM = """builtin.module {
  tile.func @k(%a: memref<4000xTYPE>, %o: memref<4096xTYPE>) grid [3] {
    %p = tile.program_id 0
    %zero = arith.constant 0 : index
    %step = arith.constant 32 : index
    %columns = arith.constant 128 : index
    %rows = arith.constant 8 : index
    %r = arith.muli %p, %rows : index
    %count = arith.constant 21 : index
    %left = arith.subi %count, %r : index
    %row = arith.muli %r, %columns : index
    scf.for %k = %zero to %columns step %step {
      %at = arith.addi %row, %k : index
      %end = arith.constant 125 : index
      %right = arith.subi %end, %k : index
      %v = tile.load %a[%at] bounds(%left, %right) strides [128, 1] align 16 : memref<4000xTYPE> -> tensor<8x32xTYPE>
      tile.store %v, %o[%at] bounds(%left, %right) strides [128, 1] : tensor<8x32xTYPE>, memref<4096xTYPE>
    }
    tile.return
  }
}"""
BACKWARDS = """builtin.module {
  tile.func @k(%a: memref<512xTYPE>, %o: memref<512xTYPE>) grid [2] {
    %p = tile.program_id 0
    %size = arith.constant 256 : index
    %last = arith.constant 511 : index
    %start = arith.muli %p, %size : index
    %from = arith.subi %last, %start : index
    %v = tile.load %a[%from] strides [-1] : memref<512xTYPE> -> tensor<256xTYPE>
    tile.store %v, %o[%from] strides [-1] : tensor<256xTYPE>, memref<512xTYPE>
    tile.return
  }
}"""
TYPES = {"i8": np.int8, "i16": np.int16, "f32": np.float32, "f64": np.float64}
CASES = {"window": WINDOW.replace("ELEMENTS", "200"), "stream": STREAM, "backwards": BACKWARDS}


# What a thread does: several accesses, in both directions, some of them left out, each behind a bound of its own.
PIECES = """
%t = simt.thread_id 0
%p = tile.program_id 0
%eight = arith.constant 8 : index
%size = arith.constant 512 : index
%end = arith.constant 899 : index
%q = arith.muli %p, %size : index
%r = arith.muli %t, %eight : index
%i = arith.addi %q, %r : index
%left = arith.subi %end, %i : index
%v = tile.load %a[%i] bounds(%left) strides [1] align 8 : memref<900xTYPE> -> tensor<8xTYPE>
tile.store %v, %o[%i] bounds(%left) strides [1] align 8 : tensor<8xTYPE>, memref<900xTYPE>"""
DOWNWARDS = """
%t = simt.thread_id 0
%p = tile.program_id 0
%four = arith.constant 4 : index
%last = arith.constant 3 : index
%size = arith.constant 256 : index
%q = arith.muli %p, %size : index
%r = arith.muli %t, %four : index
%s = arith.ori %r, %last : index
%i = arith.addi %q, %s : index
%v = tile.load %a[%i] strides [-1] : memref<900xTYPE> -> tensor<4xTYPE>
tile.store %v, %o[%i] strides [-1] : tensor<4xTYPE>, memref<900xTYPE>"""
COUNTED = """
%t = simt.thread_id 0
%one = arith.constant 1 : index
%three = arith.constant 3 : index
%four = arith.constant 4 : index
%size = arith.constant 256 : index
%r = arith.muli %t, %four : index
scf.for %k = %one to %three step %one {
  %s = arith.muli %k, %size : index
  %i = arith.addi %s, %r : index
  %v = tile.load %a[%i] strides [-1] : memref<900xTYPE> -> tensor<4xTYPE>
  tile.store %v, %o[%i] strides [-1] : tensor<4xTYPE>, memref<900xTYPE>
}"""
THREADS = {"pieces": PIECES, "downwards": DOWNWARDS, "counted, downwards": COUNTED}


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_accesses_go_where_the_program_says(name: str, type_: str, machine: str) -> None:
    text = CASES[name].replace("TYPE", type_)
    check(parse_module(text), distributed(text, machine), type_)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("name", THREADS)
def test_accesses_of_a_thread(name: str, type_: str, machine: str) -> None:
    views = f"%a: memref<900x{type_}>, %o: memref<900x{type_}>"
    text = kernel(THREADS[name].replace("TYPE", type_), views, machine, "64, 1, 1", "2")
    check(parse_module(text), targeted(text, machine), type_)


def check(whole: ModuleOp, module: ModuleOp, type_: str) -> None:
    (func,) = (op for op in whole.body.ops if isinstance(op, tile.FuncOp))
    rng = np.random.default_rng(0)
    counts = [elements_of(view) for view in func.body.block.args]
    wanted = [rng.integers(-99, 100, count).astype(TYPES[type_]) for count in counts]
    found = [array.copy() for array in wanted]
    run_kernel(whole, "k", wanted)
    assert "raw.ptr.buffer" in llvm_text(module)
    run_imitated(module, found)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


# Parts of offsets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("%o = arith.addi %p, %t : index", (0, 1, 1)),
        ("%x = arith.addi %t, %c : index\n%y = arith.muli %x, %c : index\n%o = arith.addi %y, %p : index", (9, 1, 3)),
        ("%x = arith.shli %t, %c : index\n%o = arith.addi %x, %x : index", (0, 0, 16)),
        ("%x = arith.minsi %p, %c : index\n%o = arith.addi %x, %t : index", (0, 1, 1)),
        ("%x = arith.subi %t, %c : index\n%o = arith.addi %x, %p : index", None),
        ("%x = arith.subi %p, %t : index\n%o = arith.andi %x, %c : index", (0, 0, 1)),
        ("%x = arith.addi %t, %m : index\n%o = arith.addi %x, %p : index", None),
        ("%x = arith.muli %t, %m : index\n%o = arith.addi %x, %p : index", None),
        ("%w = tile.load %a[%t] strides [] : memref<64xi64> -> i64\n%o = arith.index_cast %w : i64 to index", None),
    ],
)
def test_parts_of_an_offset(lines: str, wanted: tuple[int, int, int] | None) -> None:
    """The constant, what a wave shares and what a thread adds, with the factor of each; None if one may be below 0."""
    names = "%t = simt.thread_id 0\n%p = tile.program_id 0\n"
    numbers = "%c = arith.constant 3 : index\n%m = arith.constant -3 : index\n"
    text = kernel(
        f"{names}{numbers}{lines}\n%v = tile.load %a[%o] strides [] : memref<64xi64> -> i64", "%a: memref<64xi64>"
    )
    *_, last = (op for op in parse_module(text).walk() if isinstance(op, tile.LoadOp))
    found = Offsets().parts(last.offset)
    if wanted is None:
        assert found is None
    else:
        assert isinstance(found, Parts)
        assert (found.constant, sum(found.wave.values()), sum(found.lane.values())) == wanted


def test_a_counter_of_a_loop_is_shared_if_its_bounds_are() -> None:
    body = """
    %t = simt.thread_id 0
    %z = arith.constant 0 : index
    %c = arith.constant 8 : index
    scf.for %k = %z to FROM step %c {
      %o = arith.addi %k, %t : index
      %v = tile.load %a[%o] strides [] : memref<64xi64> -> i64
    }"""
    for bound, lanes in (("%c", 1), ("%t", 2)):
        text = kernel(body.replace("FROM", bound), "%a: memref<64xi64>")
        (load,) = (op for op in parse_module(text).walk() if isinstance(op, tile.LoadOp))
        found = Offsets().parts(load.offset)
        assert found is not None
        assert len(found.lane) == lanes


# What LLVM makes of them ----------------------------------------------------------------------------------------------


def loop_of(listing: str) -> str:
    start = re.search(r"^(\.LBB\d+_\d+):(?=(?s:.)*s_cbranch\w+ \1\n)", listing, re.MULTILINE)
    assert start is not None
    return listing[start.start() : listing.index("s_cbranch", start.start())]


PRODUCTS = {
    "gfx1100": "wmmar3_16x16x16_f16_f32", "gfx1201": "wmmar4_16x16x16_f16_f32", "gfx942": "mfma_16x16x16_f16_f32"
}  # fmt: skip


@pytest.mark.parametrize("machine", PRODUCTS)
def test_loads_of_a_product_share_a_register_of_offsets(machine: str) -> None:
    """One for each operand; where their tiles lie is in scalar registers, and no thread adds to it."""
    text = programs.matmul((64, 128, 256), (64, 128, 64), PRODUCTS[machine])
    loop = loop_of(generate(distributed(text, machine, 4)).assembly)
    loads = re.findall(r"\tbuffer_load_(?:b128|dwordx4) v\S+, (v\d+), (s\S+), s\d+ offen", loop)
    assert len(loads) == (64 + 128) * 64 // 8 // (256 if machine == "gfx942" else 128)  # 8 elements for each thread
    assert len(set(loads)) == 2
    assert not re.search(r"\t(global|flat)_|v_add|v_lshl_add|readfirstlane", loop)


@pytest.mark.parametrize("machine", PRODUCTS)
def test_masks_of_a_product_are_no_branches(machine: str) -> None:
    """Ragged in every dimension: the only branch is that of the loop."""
    text = programs.ragged_matmul((60, 120, 248), (64, 128, 32), PRODUCTS[machine])
    listing = generate(distributed(text, machine, 4)).assembly
    assert len(re.findall(r"\ts_c?branch", listing)) == 1
    assert not re.search(r"readfirstlane|\tglobal_", listing)
    assert re.search(f"v_cndmask_b32.*0x{OUTSIDE:x}|v_bfrev_b32_e32 v\\d+, 1\n", listing)


def test_what_is_read_and_written_is_no_buffer() -> None:
    """Nor what all threads read at one place, which scalar instructions load."""
    body = """
    %t = simt.thread_id 0
    %p = tile.program_id 0
    %c = arith.constant 7 : index
    %m = tile.compare "lt" %t, %c : index -> i1
    %s = tile.load %a[%p] strides [] : memref<64xf32> -> f32
    %v = tile.load %o[%t] mask %m : i1 strides [] : memref<64xf32> -> f32
    %w = arith.addf %v, %s : f32
    tile.store %w, %o[%t] mask %m : i1 strides [] : f32, memref<64xf32>"""
    found = instructions(compiled(kernel(body, "%a: memref<64xf32>, %o: memref<64xf32>")))
    assert (found.count("global_load_b32"), found.count("global_store_b32")) == (1, 1)
    assert not [name for name in found if name.startswith("buffer")]


@pytest.mark.parametrize(("machine", "word"), [("gfx942", 0x27000), ("gfx1100", 0x31027000), ("gfx1201", 0x31027000)])
def test_descriptions_of_buffers(machine: str, word: int) -> None:
    """Base and size in bytes; offsets are checked against the size."""
    body = """
    %t = simt.thread_id 0
    %v = tile.load %a[%t] strides [] : memref<100xf64> -> f64
    tile.store %v, %o[%t] strides [] : f64, memref<64xf64>"""
    text = kernel(body, "%a: memref<100xf64>, %o: memref<64xf64>", machine)
    calls = r"call \S+ \S+ @\S+make\.buffer\.rsrc\S*\(ptr addrspace\(1\) \S+, (.*)\)"
    made = re.findall(calls, llvm_text(targeted(text, machine)))
    assert made == [f"i16 0, i64 800, i32 {word}", f"i16 0, i64 512, i32 {word}"]


def test_a_view_that_is_too_large_is_no_buffer() -> None:
    body = """
    %t = simt.thread_id 0
    %v = tile.load %a[%t] strides [] : memref<COUNTxf64> -> f64
    tile.store %v, %o[%t] strides [] : f64, memref<64xf64>"""
    for elements, buffers in ((OUTSIDE // 8 - 1, 2), (OUTSIDE // 8, 1)):
        text = kernel(body.replace("COUNT", str(elements)), f"%a: memref<{elements}xf64>, %o: memref<64xf64>")
        assert llvm_text(targeted(text, "gfx1100")).count("call ptr addrspace(8)") == buffers
