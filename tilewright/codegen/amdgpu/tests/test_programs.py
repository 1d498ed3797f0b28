"""Whole kernels: random programs, entries, limits, metadata, the linker, errors."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, ModuleOp, i64

from tests import random_distributed
from tests.covering import some
from tests.random_kernels import random_kernel
from tilewright.codegen.amdgpu import link
from tilewright.codegen.amdgpu.pipeline import generate, llvm_text
from tilewright.codegen.amdgpu.resources import resources_of
from tilewright.codegen.amdgpu.target import Target
from tilewright.codegen.amdgpu.tests.compile import compiled, count, kernel, targeted
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module
from tilewright.machine import targets
from tilewright.machine.registry import names

MACHINES = ("gfx1100", "gfx1201", "gfx942", "gfx908")


def one_thread(program: ModuleOp) -> ModuleOp:
    """A program in tile form, every program of which is one thread."""
    for op in program.body.block.ops:
        if isinstance(op, tile.FuncOp):
            op.properties["threads"] = DenseArrayBase.from_list(i64, [1, 1, 1])
            op.properties["warp"] = IntegerAttr(1, 64)
    return program


@pytest.mark.parametrize("seed", some(range(9), 4))
def test_random_programs_of_one_thread_compile(seed: int) -> None:
    code = compiled(one_thread(random_kernel(seed, 24).module), MACHINES[seed % len(MACHINES)])
    assert code.object[:4] == b"\x7fELF"


@pytest.mark.parametrize("seed", some(range(9), 4))
def test_random_distributed_programs_compile(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MACHINES[seed % len(MACHINES)]
    lanes = targets.lanes(machine)
    other = {"product"} if lanes == 32 else {"product", "matrices"}  # of warps of 32, on other processors
    steps = [step for step in random_distributed._TOGETHER if step.__name__ not in other]
    monkeypatch.setattr(random_distributed, "_TOGETHER", steps)
    if lanes == 64:
        monkeypatch.setattr(random_distributed, "WARP", 64)
        monkeypatch.setattr(random_distributed, "BLOCKS", ((64, 1, 1), (16, 4, 2)))
    code = compiled(random_distributed.random_distributed(seed).module, machine)
    assert code.resources["random"].lanes == lanes


def counted(machine: str, threads: str = "", attributes: str = "") -> str:
    body = """
    %t = simt.thread_id 0
    %v = tile.load %a[%t] strides [] : memref<2048xf32> -> f32
    %e = math.exp %v : f32
    tile.store %e, %o[%t] strides [] : f32, memref<2048xf32>"""
    text = kernel(body, "%a: memref<2048xf32>, %o: memref<2048xf32>", machine, threads)
    lanes = targets.lanes(machine)
    return text.replace(f"warp {lanes} {{", f"warp {lanes} attributes {{{attributes}}} {{") if attributes else text


@pytest.mark.parametrize("machine", [name for name in names() if name.startswith("gfx")])
def test_every_processor_takes_a_kernel(machine: str) -> None:
    code = compiled(counted("gfx942" if machine.startswith("gfx9") else "gfx1100"), machine)
    assert f'.amdgcn_target "amdgcn-amd-amdhsa--{machine}"' in code.assembly
    found = code.resources["k"]
    assert found.argument_bytes == 16
    assert 0 < found.vector_registers < 64
    text = code.explain()
    assert "does not run code on AMD GPUs" in text
    assert f"kernel k: waves of {found.lanes}" in text


def test_limits_reach_the_entry() -> None:
    text = counted("gfx942", "256, 1, 1", "registers = 32 : i64, blocks_per_multiprocessor = 2 : i64")
    made = llvm_text(targeted(text, "gfx942"))
    for wanted in ('"amdgpu-num-vgpr"="32"', '"amdgpu-waves-per-eu"="2"', '"amdgpu-flat-work-group-size"="256,256"'):
        assert wanted in made
    assert compiled(text, "gfx942").resources["k"].vector_registers <= 32


def test_accesses_stay_wide_and_bounds_mask_them() -> None:
    body = """
    %t = simt.thread_id 0
    %c = arith.constant 8 : index
    %n = arith.constant 1001 : index
    %i = arith.muli %t, %c : index
    %left = arith.subi %n, %i : index
    %v = tile.load %a[%i] bounds(%left) strides [1] align 16 : memref<1001xf16> -> tensor<8xf16>
    %w = arith.addf %v, %v : tensor<8xf16>
    tile.store %w, %o[%i] bounds(%left) strides [1] align 16 : tensor<8xf16>, memref<1001xf16>"""
    text = kernel(body, "%a: memref<1001xf16>, %o: memref<1001xf16>", "gfx1100", "128, 1, 1")
    found = count(compiled(text))
    assert found["buffer_load_b128"] == 1
    assert found["buffer_store_b128"] == 1
    assert found["buffer_store_b16"] + found["buffer_store_d16_hi_b16"] > 0  # the last elements one by one


def test_a_thread_keeps_memory_of_its_own() -> None:
    body = """
    %t = simt.thread_id 0
    %c = arith.constant 7 : index
    %i = arith.remui %t, %c : index
    %m = tile.alloc : memref<8xf32>
    %z = arith.constant 0 : index
    %v = tile.load %a[%t] strides [] : memref<64xf32> -> f32
    tile.store %v, %m[%i] strides [] : f32, memref<8xf32>
    %w = tile.load %m[%z] strides [] : memref<8xf32> -> f32
    tile.store %w, %o[%t] strides [] : f32, memref<64xf32>"""
    made = llvm_text(targeted(kernel(body, "%a: memref<64xf32>, %o: memref<64xf32>"), "gfx1100"))
    assert "ptr addrspace(5)" in made
    compiled(kernel(body, "%a: memref<64xf32>, %o: memref<64xf32>"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (counted("gfx942"), "kernel k: warps of 64 threads"),
        (counted("gfx1100", "2048, 1, 1"), r"kernel k: TC06 2048\*1\*1 = 2048 threads exceed 1024"),
        (counted("gfx1100", "", "registers = -1 : i64"), "kernel k: registers = -1"),
        (
            kernel('%s = simt.shared align 16 : memref<16385xf32, "shared">', "%a: memref<4xf32>"),
            "kernel k: TC13 65540 bytes of shared memory needed, 65536 available",
        ),
        (
            kernel(
                '%z = arith.constant 0 : index\n%s = simt.load_fragment "wmma_16x16x16_f16_f32" "a" %a[%z, %z] : '
                "memref<512xf16> -> tensor<16xf16>",
                "%a: memref<512xf16>",
            ),
            "kernel k: fragments of wmma_16x16x16_f16_f32",
        ),
    ],
)
def test_errors_name_the_kernel(text: str, message: str) -> None:
    with pytest.raises(InvalidProgram, match=message):
        compiled(text, "gfx1100")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target("gfx900"), "cpu is 'gfx900', which is no processor of amdgcn"),
        (Target("gfx1100", triple="x86_64-linux"), "triple is 'x86_64-linux', which is no system"),
        (None, r"no tile\.target attribute"),
    ],
)
def test_targets_that_have_no_code(target: Target | None, message: str) -> None:
    module = parse_module(kernel("", ""))
    if target is not None:
        module.attributes[ATTRIBUTE] = target.attribute()
    with pytest.raises(InvalidProgram, match=message):
        generate(module)


def test_metadata_is_read_field_by_field() -> None:
    text = """\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     4
    .args:
      - .name:           !str '.1'
    .group_segment_fixed_size: 128
    .kernarg_segment_size: 24
    .name:           k
    .private_segment_fixed_size: 8
    .sgpr_count:     18
    .sgpr_spill_count: 1
    .vgpr_count:     40
    .vgpr_spill_count: 2
    .wavefront_size: 64
...

\t.end_amdgpu_metadata
"""
    found = resources_of(text)["k"]
    assert (found.vector_registers, found.accumulation_registers, found.scalar_registers) == (40, 4, 18)
    assert (found.vector_spills, found.scalar_spills, found.shared_bytes) == (2, 1, 128)
    assert (found.private_bytes, found.argument_bytes, found.lanes) == (8, 24, 64)


@pytest.mark.parametrize("works", [True, False])
def test_the_linker_makes_a_code_object(works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in for the linker sees its arguments; without one the object stays relocatable."""
    program = tmp_path / "ld.lld"
    body = 'printf linked > "$4"' if works else "echo not today >&2; exit 1"
    program.write_text(f'#!/bin/sh\ntest "$1" = -shared && test -s "$2" && test "$3" = -o || exit 2\n{body}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    link.find.cache_clear()
    try:
        if works:
            code = compiled(counted("gfx1100"))
            assert (code.object, code.executable) == (b"linked", True)
            assert code.explain().startswith("a code object for gfx1100")
        else:
            with pytest.raises(InvalidProgram, match="refuses the object: not today"):
                compiled(counted("gfx1100"))
    finally:
        link.find.cache_clear()


def test_without_a_linker_the_object_is_relocatable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    link.find.cache_clear()
    try:
        code = compiled(counted("gfx1100"))
    finally:
        link.find.cache_clear()
    assert not code.executable
    assert code.object[16:18] == b"\x01\x00"  # ELF's type: relocatable
    assert "no ld.lld was found" in code.explain()
