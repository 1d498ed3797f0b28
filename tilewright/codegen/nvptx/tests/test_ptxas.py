"""What the assembler reports, read."""

from __future__ import annotations

import pytest

from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.tests.execute import compiled, kernel, resources
from tilewright.errors import InvalidProgram

REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    96 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 1024 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 376 bytes cmem[0]
"""


def test_reports_of_several_entries() -> None:
    assert ptxas.parsed(REPORT) == {
        "first": ptxas.Resources(registers=255, spills=84, stack_bytes=96, shared_bytes=1024),
        "second": ptxas.Resources(registers=8, spills=0, stack_bytes=0, shared_bytes=0),
    }


def test_warnings_belong_to_the_entry_that_they_name_or_to_all() -> None:
    serial = "(C7510) Potential Performance Loss: products wait for each other in function 'second'"
    ignored = "(C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry."
    old = "unsupported .version"
    report = f"ptxas info    : {serial}\nptxas info    : {ignored}\nptxas a.ptx, line 1; warning : {old}\n{REPORT}"
    assert {name: each.warnings for name, each in ptxas.parsed(report).items()} == {
        "first": (ignored, old),
        "second": (serial, ignored, old),
    }


def test_registers_that_cannot_be_handed_over_are_a_warning() -> None:
    if ptxas.find() is None:
        pytest.skip("no ptxas here")
    text = """.version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k(){
        setmaxnreg.inc.sync.aligned.u32 160; ret; }"""
    found = ptxas.check(text, "sm_90a")
    assert found is not None
    assert "'setmaxnreg' ignored" in found["k"].warnings[0]


def test_wrong_text_is_refused() -> None:
    if ptxas.find() is None:
        pytest.skip("no ptxas here")
    with pytest.raises(InvalidProgram, match="ptxas refuses the PTX for sm_80"):
        ptxas.check(".version 7.8\n.target sm_80\n.visible .entry k() { add.nonsense; }", "sm_80")


def test_memory_of_a_thread_is_its_stack() -> None:
    body = """
    %t = simt.thread_id 0
    %m = tile.alloc : memref<32xf32>
    %c3 = arith.constant 7 : index
    %v = arith.constant 1.0 : f32
    %r = arith.remui %t, %c3 : index
    tile.store %v, %m[%t] strides [] : f32, memref<32xf32>
    %w = tile.load %m[%r] strides [] : memref<32xf32> -> f32
    tile.store %w, %o[%t] strides [] : f32, memref<32xf32>"""
    assert resources(compiled(kernel(body, "%o: memref<32xf32>")))["k"].stack_bytes == 128
