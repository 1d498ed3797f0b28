"""Waves and blocks, by what LLVM makes of them: shuffles, shared memory, barriers, copies, atomics, matrix rows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tilewright.codegen.amdgpu import simt as threads
from tilewright.codegen.amdgpu.pipeline import generate, llvm_text
from tilewright.codegen.amdgpu.target import target_of
from tilewright.codegen.amdgpu.tests.compile import LANES, compiled, count, instructions, kernel, targeted
from tilewright.errors import InvalidProgram
from tilewright.kernel.target import ATTRIBUTE

TYPES = ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64")


def shuffled(kind: str, lane: str, type_: str, machine: str) -> str:
    amount = f"%n = arith.constant {lane} : index" if lane != "%t" else "%n = arith.addi %t, %t : index"
    body = f"""
    %t = simt.thread_id 0
    {amount}
    %c3 = arith.constant 3 : index
    %i = arith.muli %t, %c3 : index
    %v = tile.load %a[%i] strides [1] : memref<192x{type_}> -> tensor<3x{type_}>
    %s = simt.shuffle "{kind}" %v, %n : tensor<3x{type_}>
    tile.store %s, %o[%i] strides [1] : tensor<3x{type_}>, memref<192x{type_}>"""
    return kernel(body, f"%a: memref<192x{type_}>, %o: memref<192x{type_}>", machine)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", LANES)
@pytest.mark.parametrize("type_", TYPES)
def test_shuffles_of_every_width(type_: str, machine: str) -> None:
    assert count(compiled(shuffled("down", "5", type_, machine), machine))["ds_bpermute_b32"] > 0


@pytest.mark.parametrize(
    ("machine", "kind", "lane", "wanted"),
    [
        ("gfx1100", "xor", 1, r"quad_perm:\[1,0,3,2\]"), ("gfx1100", "xor", 5, "row_xmask:5"),
        ("gfx1201", "xor", 8, "row_ror:8"), ("gfx1201", "xor", 16, "v_permlanex16_b32"),
        ("gfx1100", "xor", 17, "ds_swizzle_b32"), ("gfx942", "xor", 2, r"quad_perm:\[2,3,0,1\]"),
        ("gfx942", "xor", 4, "ds_swizzle_b32"), ("gfx942", "xor", 15, "row_mirror"),
        ("gfx942", "xor", 16, "ds_swizzle_b32"), ("gfx942", "xor", 32, "ds_bpermute_b32"),
        ("gfx942", "up", 3, "ds_bpermute_b32"), ("gfx942", "index", 9, "v_readlane_b32"),
        ("gfx1100", "index", 9, "v_readlane_b32"), ("gfx942", "xor", "%t", "ds_bpermute_b32"),
    ],
)  # fmt: skip
def test_exchanges_stay_out_of_memory_where_they_can(machine: str, kind: str, lane: int | str, wanted: str) -> None:
    assembly = compiled(shuffled(kind, str(lane), "f32", machine), machine).assembly
    assert re.search(wanted, assembly)
    if not wanted.startswith("ds_"):
        assert not re.search(r"\tds_", assembly)


@pytest.mark.parametrize(("kind", "lane"), [("xor", 0), ("index", 64), ("up", 0)])
def test_shuffles_that_move_nothing(kind: str, lane: int) -> None:
    assembly = compiled(shuffled(kind, str(lane), "f32", "gfx942"), "gfx942").assembly
    assert not re.search(r"\tds_|dpp|readlane", assembly)


def test_what_dpp_controls_say() -> None:
    """Four lanes take their source from two bits each; the identity of a row is four bits each."""
    for distance, control in threads._QUAD.items():
        assert [control >> 2 * lane & 3 for lane in range(4)] == [lane ^ distance for lane in range(4)]
    low, high = threads._IDENTITY
    whole = (low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32
    assert [whole >> 4 * lane & 15 for lane in range(16)] == list(range(16))


EXCHANGE = """
%t = simt.thread_id 0
%s = simt.shared align 16 : memref<256xf32, "shared">
%c = arith.constant 255 : index
%r = arith.subi %c, %t : index
%v = tile.load %a[%t] strides [] : memref<256xf32> -> f32
tile.store %v, %s[%t] strides [] : f32, memref<256xf32, "shared">
LATE
simt.barrier
%w = tile.load %s[%r] strides [] : memref<256xf32, "shared"> -> f32
USE
tile.store %x, %o[%t] strides [] : f32, memref<256xf32>
"""
ALONE = EXCHANGE.replace("LATE\n", "").replace("USE", "%x = arith.addf %w, %v : f32")
LATE = EXCHANGE.replace("LATE", "%l = tile.load %b[%t] strides [] : memref<256xf32> -> f32").replace(
    "USE", "%x = arith.addf %w, %l : f32"
)
VIEWS = "%a: memref<256xf32>, %b: memref<256xf32>, %o: memref<256xf32>"


@pytest.mark.parametrize("machine", LANES)
def test_shared_memory_and_barriers(machine: str) -> None:
    code = compiled(kernel(ALONE, VIEWS, machine, "256, 1, 1"), machine)
    found = count(code)
    assert found["s_barrier"] + found["s_barrier_wait"] == 1
    assert found["ds_write_b32"] + found["ds_store_b32"] == 1
    made = re.search(r"\tds_(write|store)_b32.*?s_barrier", code.assembly, re.DOTALL)
    assert made is not None
    assert re.search(r"lgkmcnt\(0\)|s_wait_dscnt 0x0", made[0]), "others may read before it is written"
    assert code.resources["k"].shared_bytes == 1024
    assert code.kernel("k").shared_bytes == 1024


@pytest.mark.parametrize(("machine", "most"), [("gfx1100", 64 << 10), ("gfx942", 64 << 10), ("gfx950", 160 << 10)])
def test_a_block_has_no_more_shared_memory_than_its_machine(machine: str, most: int) -> None:
    text = kernel(
        '%s = simt.shared align 16 : memref<{}xi8, "shared">', "%a: memref<4xf32>", machine.replace("950", "942")
    )
    assert compiled(text.replace("{}", str(most)), machine).kernel("k").shared_bytes == most
    with pytest.raises(InvalidProgram, match=f"kernel k: TC13 {most + 1} bytes of shared memory needed, {most} av"):
        compiled(text.replace("{}", str(most + 1)), machine)


def test_a_machine_may_say_that_it_has_less_shared_memory() -> None:
    module = targeted(kernel('%s = simt.shared align 16 : memref<1025xi8, "shared">', "%a: memref<4xf32>"), "gfx1100")
    assert generate(module).kernel("k").shared_bytes == 1025
    target = target_of(module)
    module.attributes[ATTRIBUTE] = replace(target, facts=replace(target.facts, shared_bytes=1024)).attribute()
    with pytest.raises(InvalidProgram, match="kernel k: TC13 1025 bytes of shared memory needed, 1024 available"):
        generate(module)


@pytest.mark.parametrize("machine", LANES)
def test_a_barrier_waits_for_shared_memory_only(machine: str) -> None:
    """A load that goes on over the barrier is waited for where it is used."""
    text = kernel(LATE, VIEWS, machine, "256, 1, 1")
    listing = compiled(text, machine).assembly
    before = re.split(r"s_barrier(?:_signal)?\b", listing)[0]
    loads = [match.end() for match in re.finditer(r"\tbuffer_load", before)]
    assert len(loads) == 2
    assert not re.search(r"vmcnt\(0\)|loadcnt(_dscnt)? 0x0", before[loads[1] :])
    assert "amdgpu-synchronize-as" in llvm_text(targeted(text, machine))


def test_a_barrier_orders_global_memory_that_threads_pass_on() -> None:
    body = """
    %t = simt.thread_id 0
    %c = arith.constant 255 : index
    %r = arith.subi %c, %t : index
    %v = tile.load %a[%t] strides [] : memref<256xf32> -> f32
    tile.store %v, %o[%t] strides [] : f32, memref<256xf32>
    simt.barrier
    %w = tile.load %o[%r] strides [] : memref<256xf32> -> f32
    tile.store %w, %b[%t] strides [] : f32, memref<256xf32>"""
    text = kernel(body, VIEWS, "gfx1100", "256, 1, 1")
    assert "amdgpu-synchronize-as" not in llvm_text(targeted(text, "gfx1100"))
    found = instructions(compiled(text, "gfx1100"))
    between = found[found.index("global_store_b32") : found.index("s_barrier")]
    assert "s_waitcnt_vscnt" in between


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", LANES)
@pytest.mark.parametrize(("elements", "valid"), [(4, ""), (8, ""), (8, " valid %n")])
def test_copies_become_loads_and_stores(elements: int, valid: str, machine: str) -> None:
    body = f"""
    %t = simt.thread_id 0
    %c = arith.constant {elements} : index
    %n = arith.constant 5 : index
    %i = arith.muli %t, %c : index
    %s = simt.shared align 16 : memref<512xf16, "shared">
    simt.async_copy %a[%i] to %s[%i] {elements}{valid} : memref<512xf16>, memref<512xf16, "shared">
    simt.commit
    simt.wait 0
    %v = tile.load %s[%i] strides [1] : memref<512xf16, "shared"> -> tensor<{elements}xf16>
    tile.store %v, %o[%i] strides [1] : tensor<{elements}xf16>, memref<512xf16>"""
    found = count(compiled(kernel(body, "%a: memref<512xf16>, %o: memref<512xf16>", machine), machine))
    if not valid:
        assert {name for name in found if name.startswith("global_load")} <= {
            "global_load_b64", "global_load_b128", "global_load_dwordx2", "global_load_dwordx4"
        }  # fmt: skip
    assert any(name.startswith("buffer_store") for name in found)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", LANES)
@pytest.mark.parametrize("space", ["", ', "shared"'])
@pytest.mark.parametrize(
    ("kind", "type_", "unsigned"),
    [
        ("add", "i32", ""), ("max", "i32", ""), ("min", "i32", " unsigned"), ("xor", "i64", ""),
        ("exchange", "f32", ""), ("add", "f32", ""), ("add", "f16", ""), ("add", "bf16", ""), ("max", "f32", ""),
        ("add", "i8", ""), ("add", "f64", ""), ("min", "bf16", ""),
    ],
)  # fmt: skip
def test_atomics(kind: str, type_: str, unsigned: str, space: str, machine: str) -> None:
    view = f"memref<64x{type_}{space}>"
    shared = f"%m = simt.shared align 16 : {view}" if space else ""
    body = f"""
    %t = simt.thread_id 0
    {shared}
    %v = tile.load %a[%t] strides [] : memref<64x{type_}> -> {type_}
    %c = arith.constant 3 : index
    %k = tile.compare "lt" %t, %c : index -> i1
    %r = simt.atomic "{kind}" %v, {"%m" if space else "%o"}[%c]{unsigned} : {type_}, {view} -> {type_}
    %q = simt.atomic "{kind}" %v, {"%m" if space else "%o"}[%t] mask %k{unsigned} : {type_}, {view} -> {type_}
    tile.store %r, %a[%t] strides [] : {type_}, memref<64x{type_}>
    tile.store %q, %b[%t] strides [] : {type_}, memref<64x{type_}>"""
    views = ", ".join(f"%{name}: memref<64x{type_}>" for name in "abo")
    code = compiled(kernel(body, views, machine), machine)
    wanted = r"\tds_\w+_rtn" if space else r"\tglobal_atomic_"
    assert re.search(wanted, code.assembly)
    assert code.resources["k"].private_bytes == 0


def test_float_sums_are_single_instructions() -> None:
    body = """
    %t = simt.thread_id 0
    %v = tile.load %a[%t] strides [] : memref<64xf32> -> f32
    %r = simt.atomic "add" %v, %o[%t] : f32, memref<64xf32> -> f32"""
    for machine in LANES:
        found = count(compiled(kernel(body, "%a: memref<64xf32>, %o: memref<64xf32>", machine), machine))
        assert found["global_atomic_add_f32"] == 1
        assert not any("cmpswap" in name for name in found)


@pytest.mark.parametrize("transpose", ["", " transpose"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_rows_of_matrices_are_found_by_asking_other_lanes(number: int, transpose: str) -> None:
    body = f"""
    %t = simt.thread_id 0
    %c = arith.constant 8 : index
    %i = arith.muli %t, %c : index
    %s = simt.shared align 128 : memref<256xf16, "shared">
    %u = simt.shared align 128 : memref<256xf16, "shared">
    %v = tile.load %a[%i] strides [1] : memref<256xf16> -> tensor<8xf16>
    tile.store %v, %s[%i] strides [1] : tensor<8xf16>, memref<256xf16, "shared">
    simt.barrier
    %m = simt.load_matrix %s[%i] {number}{transpose} : memref<256xf16, "shared"> -> tensor<{2 * number}xf16>
    simt.store_matrix %m, %u[%i] {number}{transpose} : tensor<{2 * number}xf16>, memref<256xf16, "shared">
    simt.barrier
    %w = tile.load %u[%i] strides [1] : memref<256xf16, "shared"> -> tensor<8xf16>
    tile.store %w, %o[%i] strides [1] : tensor<8xf16>, memref<256xf16>"""
    views = "%a: memref<256xf16>, %o: memref<256xf16>"
    found = count(compiled(kernel(body, views), "gfx1100"))
    assert found["ds_bpermute_b32"] == (2 if transpose else 1) * number * 2
    with pytest.raises(InvalidProgram, match="load_matrix is of 32 lanes, a wave has 64"):
        compiled(kernel(body, views, "gfx942"), "gfx942")
