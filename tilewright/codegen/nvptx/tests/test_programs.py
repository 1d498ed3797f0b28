"""Whole kernels: random programs of one thread against the interpreter, grids, limits, names, errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.covering import some
from tests.random_kernels import random_kernel
from tilewright.codegen.nvptx import ptxas
from tilewright.codegen.nvptx.pipeline import generate, llvm_text
from tilewright.codegen.nvptx.target import Target
from tilewright.codegen.nvptx.tests.execute import MACHINES, agree, compiled, kernel, one_thread, same, target
from tilewright.errors import InvalidProgram
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module, print_module
from tilewright.runtime.emulated import run_module


@pytest.mark.parametrize("seed", some(range(18), 5))
def test_random_programs_agree_with_the_interpreter(seed: int) -> None:
    program = random_kernel(seed, functions=False)
    expected, got = program.outputs(), program.outputs()
    run_main(program.module, program.inputs, expected)
    code = compiled(one_thread(program.module), MACHINES[seed % len(MACHINES)])
    done = run_module(code, program.inputs, got)
    assert not done.diagnostics, (seed, done.diagnostics)
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert same(a, b).all(), f"seed {seed}, output {number}: {a} instead of {b}"


@pytest.mark.parametrize("machine", [*MACHINES, "sm_100a", "sm_120"])
def test_every_processor_takes_a_kernel(machine: str) -> None:
    body = """
    %t = simt.thread_id 0
    %v = tile.load %a[%t] strides [] : memref<32xf32> -> f32
    %e = math.exp %v : f32
    tile.store %e, %o[%t] strides [] : f32, memref<32xf32>"""
    code = compiled(kernel(body, "%a: memref<32xf32>, %o: memref<32xf32>"), machine)
    assert f".target {machine}" in code.ptx
    assert ".reqntid 32, 1, 1" in code.ptx


def test_the_same_text_gives_the_same_bytes() -> None:
    program = one_thread(random_kernel(3).module)
    assert compiled(program, "sm_90a").ptx == compiled(print_module(program), "sm_90a").ptx


def test_other_processes_make_the_same_bytes() -> None:
    """Nothing depends on the order of sets or on addresses."""
    script = (
        "import sys; from tilewright.codegen.nvptx.tests.execute import compiled; "
        "sys.stdout.write(compiled(sys.stdin.read(), 'sm_90a').ptx)"
    )
    text = print_module(one_thread(random_kernel(4).module))
    made = {
        subprocess.run(
            [sys.executable, "-c", script], input=text, text=True, capture_output=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in some(("1", "2"), 1)  # and this process has one of its own
    }  # fmt: skip
    assert made == {compiled(text, "sm_90a").ptx}


@pytest.mark.parametrize(
    ("grid", "launched"),
    [
        ("5", (5, 1, 1)),
        ("2, 3, 4", (4, 3, 2)),
        ("2, 3, 2, 5", (60, 1, 1)),
        ("70000, 1", (1, 70_000, 1)),
        ("70000, 2", (140_000, 1, 1)),
    ],
)
def test_grids_map_to_blocks(grid: str, launched: tuple[int, int, int]) -> None:
    """The last axis is x; what does not fit y and z, or has more axes, is distributed along x."""
    extents = [int(number) for number in grid.split(",")]
    if launched[1] == 70_000:
        launched = (70_000, 1, 1)  # y takes 65535 blocks
    total = int(np.prod(extents))
    body = "%c0 = arith.constant 0 : index\n%n0 = arith.addi %c0, %c0 : index\n"
    for axis, extent in enumerate(extents):
        body += f"%p{axis} = tile.program_id {axis}\n%e{axis} = arith.constant {extent} : index\n"
        body += (
            f"%m{axis} = arith.muli %n{axis}, %e{axis} : index\n%n{axis + 1} = arith.addi %m{axis}, %p{axis} : index\n"
        )
    last = len(extents)
    body += f"%i = arith.index_cast %n{last} : index to i32\n"
    body += f"tile.store %i, %o[%n{last}] strides [] : i32, memref<{total}xi32>"
    text = kernel(body, f"%o: memref<{total}xi32>", grid, "1, 1, 1", 1)
    assert compiled(text).kernel("k").grid == launched
    if total < 1000:
        out = np.full(total, -1, np.int32)
        agree(text, [out])
        assert (out == np.arange(total)).all()


def test_limits_of_registers_and_blocks_reach_the_entry() -> None:
    text = kernel("", "%o: memref<32xf32>").replace(
        "warp 32 {", "warp 32 attributes {registers = 64 : i64, blocks_per_multiprocessor = 2 : i64} {"
    )
    code = compiled(text)
    assert ".maxnreg 64" in code.ptx
    assert ".minnctapersm 2" in code.ptx


def test_limits_of_a_kernel_in_tile_form_reach_the_entry() -> None:
    text = programs.matmul((64, 64, 64), (64, 64, 32))
    asked = text.replace(" {", " attributes {registers = 96 : i64, blocks_per_multiprocessor = 3 : i64} {", 1)
    module = parse_module(asked)
    module.attributes[ATTRIBUTE] = target("sm_80").attribute()
    run_pipeline(module, "gpu", verify_each=True)
    code = generate(module)
    assert ".maxnreg 96" in code.ptx
    assert ".minnctapersm 3" in code.ptx
    resources = ptxas.check(code.ptx, "sm_80")
    assert resources is None or resources["k"].registers <= 96


@pytest.mark.parametrize("form", ["tile", "distributed"])
@pytest.mark.parametrize(
    ("given", "threads", "message"),
    [
        ("warps = array<i64: 64, 1>", 2048, r"kernel k: TC06 2048\*1\*1 = 2048 threads exceed 1024"),
        ("registers = 256 : i64", 128, r"kernel k: registers = 256(.|\n)*255 at most"),
    ],
)
def test_a_block_has_no_more_than_its_machine(form: str, given: str, threads: int, message: str) -> None:
    text = programs.add(4096, 4096) if form == "tile" else kernel("", "%o: memref<32xf32>", threads=f"{threads}, 1, 1")
    start = text.index(" {", text.index("tile.func"))
    asked = f"{text[:start]} attributes {{{given}}}{text[start:]}"
    for machine in ("sm_80", "sm_90a"):
        module = parse_module(asked)
        module.attributes[ATTRIBUTE] = target(machine).attribute()
        with pytest.raises(InvalidProgram, match=message):
            _ = run_pipeline(module, "gpu") or generate(module)


def test_large_views_are_indexed_with_64_bits() -> None:
    body = """
    %p = tile.program_id 0
    %n = arith.constant 2000000000 : index
    %x = arith.muli %p, %n : index
    %v = tile.load %a[%x] strides [] : memref<4000000000xi8> -> i8
    tile.store %v, %o[%p] strides [] : i8, memref<2xi8>"""
    text = kernel(body, "%a: memref<4000000000xi8>, %o: memref<2xi8>", "2", "1, 1, 1", 1)
    module = parse_module(text)
    module.attributes[ATTRIBUTE] = Target("sm_80").attribute()
    assert re.search(r"mul nsw i32", llvm_text(module)) is None
    module = parse_module(text.replace("4000000000", "4000"))
    module.attributes[ATTRIBUTE] = Target("sm_80").attribute()
    assert re.search(r"mul nsw i32", llvm_text(module))


@pytest.mark.parametrize(
    ("text", "cpu", "message"),
    [
        ("builtin.module {\n tile.func @k() grid [1] {\n tile.return\n }\n}", "sm_80", "tile form"),
        (kernel("", "", "1", "64, 1, 1", 64), "sm_80", "warps of 64 threads"),
        (kernel("", "", "70000, 70000"), "sm_80", "4900000000 blocks"),
        (kernel("", ""), "sm_60", "cpu is .sm_60., which is no processor of nvptx64"),
        (kernel("", ""), "znver5", "cpu is .znver5., which is no processor of nvptx64"),
    ],
)
def test_refusals(text: str, cpu: str, message: str) -> None:
    module = parse_module(text)
    module.attributes[ATTRIBUTE] = Target(cpu).attribute()
    with pytest.raises(InvalidProgram, match=message):
        generate(module)


def test_a_module_without_a_target_is_refused() -> None:
    with pytest.raises(InvalidProgram, match=r"no tile\.target attribute"):
        generate(parse_module(kernel("", "")))


def test_kernels_that_share_a_name_in_ptx_are_refused() -> None:
    text = kernel("", "").replace("@k", '@"k.1"').rstrip("}") + kernel("", "").replace("@k", '@"k_1"').split("\n", 1)[1]
    with pytest.raises(InvalidProgram, match="share a name in machine code: k_1, k_1"):
        compiled(text)


MODULE = """builtin.module {
  tile.func @k(%a: memref<128xf32>, %o: memref<128xf32>) grid [1] threads [32, 1, 1] warp 32 cost {flops = 7 : i64} {
    %t = simt.thread_id 0
    %c = arith.constant 4 : index
    %i = arith.muli %t, %c : index
    %v = tile.load %a[%i] strides [1] : memref<128xf32> -> tensor<4xf32>
    %w = arith.addf %v, %v : tensor<4xf32>
    tile.store %w, %o[%i] strides [1] : tensor<4xf32>, memref<128xf32>
    tile.return
  }
  tile.func @none() grid [0] threads [32, 1, 1] warp 32 {
    tile.return
  }
  tile.main arena 1024 constants 0 {
    %0 = tile.buffer "input" 0 : memref<128xf32>
    %1 = tile.buffer "arena" ARENA : memref<128xf32>
    %2 = tile.buffer "output" 0 : memref<128xf32>
    tile.launch @k(%0, %1) : memref<128xf32>, memref<128xf32>
    tile.launch @none() :
    tile.launch @k(%1, %2) : memref<128xf32>, memref<128xf32>
  }
}"""


@pytest.mark.parametrize(("arena", "align", "access"), [(256, 256, "v4"), (8, 8, "v2"), (16, 16, "v4")])
def test_launches_tell_how_their_buffers_are_aligned(arena: int, align: int, access: str) -> None:
    """The alignment of an argument is the least of all launches; a launch of an empty grid is left out."""
    code = compiled(MODULE.replace("ARENA", str(arena)))
    assert f".ptr .global .align {align} k_param_0" in code.ptx
    assert f"ld.global.nc.{access}.b32" in code.ptx
    assert [launch.kernel for launch in code.launches] == ["k", "k"]
    assert code.launches[0].flops == 7
    assert (code.arena_bytes, code.constants_bytes) == (1024, 0)
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    assert not run_module(code, [x], [out]).diagnostics
    assert (out == 4 * x).all()
