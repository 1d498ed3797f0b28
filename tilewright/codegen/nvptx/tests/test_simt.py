"""Warps and blocks: shuffles, shared memory, barriers, asynchronous copies, atomics, matrices of 8 rows."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from tests.covering import FULL
from tilewright.codegen.nvptx.tests.execute import Array, agree, compiled, emulate, kernel
from tilewright.errors import InvalidProgram

DTYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64,
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("type_", DTYPES)
@pytest.mark.parametrize(
    ("kind", "lane"), [("xor", "5"), ("up", "3"), ("down", "17"), ("index", "9"), ("index", "40"), ("down", "%t")]
)
def test_shuffles(kind: str, lane: str, type_: str) -> None:
    """Every width, one element and three; a lane without a source keeps its own."""
    amount = f"%n = arith.constant {lane} : index" if lane != "%t" else "%n = arith.addi %t, %t : index"
    body = f"""
    %t = simt.thread_id 0
    {amount}
    %c3 = arith.constant 3 : index
    %i = arith.muli %t, %c3 : index
    %v = tile.load %a[%i] strides [1] : memref<96x{type_}> -> tensor<3x{type_}>
    %s = simt.shuffle "{kind}" %v, %n : tensor<3x{type_}>
    tile.store %s, %o[%i] strides [1] : tensor<3x{type_}>, memref<96x{type_}>
    %w = tile.load %a[%t] strides [] : memref<96x{type_}> -> {type_}
    %x = simt.shuffle "{kind}" %w, %n : {type_}
    tile.store %x, %p[%t] strides [] : {type_}, memref<32x{type_}>"""
    a = np.arange(96).astype(DTYPES[type_])
    views = f"%a: memref<96x{type_}>, %o: memref<96x{type_}>, %p: memref<32x{type_}>"
    code = agree(kernel(body, views), [a, np.zeros_like(a), np.zeros(32, a.dtype)])
    assert ("shfl.sync" in code.ptx) == (lane != "40")


EXCHANGE = """
%t = simt.thread_id 0
%s = simt.shared align 16 : memref<64xf32, "shared">
%u = simt.shared align 128 : memref<64xf32, "shared">
%c63 = arith.constant 63 : index
%r = arith.subi %c63, %t : index
%v = tile.load %a[%t] strides [] : memref<64xf32> -> f32
tile.store %v, %s[%t] strides [] : f32, memref<64xf32, "shared">
tile.store %v, %u[%r] strides [] : f32, memref<64xf32, "shared">
simt.barrier
%w = tile.load %s[%r] strides [] : memref<64xf32, "shared"> -> f32
%x = tile.load %u[%t] strides [] : memref<64xf32, "shared"> -> f32
%y = arith.addf %w, %x : f32
tile.store %y, %o[%t] strides [] : f32, memref<64xf32>
"""


def test_shared_memory_and_barrier() -> None:
    arrays = [np.arange(64).astype(np.float32), np.zeros(64, np.float32)]
    code = agree(kernel(EXCHANGE, "%a: memref<64xf32>, %o: memref<64xf32>", threads="64, 1, 1"), arrays)
    assert (arrays[1] == 2 * np.arange(63, -1, -1)).all()
    assert code.kernel("k").shared_bytes == 512
    assert code.ptx.count("bar.sync") + code.ptx.count("barrier.sync") == 1
    assert ".extern .shared .align 1024" in code.ptx


def test_places_of_shared_memory_are_kept() -> None:
    """Those that a pass chose may overlap; the others follow."""
    text = EXCHANGE.replace('align 16 : memref<64xf32, "shared">', 'align 16 at 1024 : memref<64xf32, "shared">')
    code = agree(
        kernel(text, "%a: memref<64xf32>, %o: memref<64xf32>", threads="64, 1, 1"),
        [np.arange(64).astype(np.float32), np.zeros(64, np.float32)],
    )
    assert code.kernel("k").shared_bytes == 1024 + 512


@pytest.mark.parametrize(("machine", "most"), [("sm_75", 64 << 10), ("sm_80", 163 << 10), ("sm_90a", 227 << 10)])
def test_a_block_has_no_more_shared_memory_than_its_machine(machine: str, most: int) -> None:
    text = kernel('%s = simt.shared align 16 : memref<{}xi8, "shared">', "%a: memref<4xf32>")
    assert compiled(text.replace("{}", str(most)), machine).kernel("k").shared_bytes == most
    with pytest.raises(InvalidProgram, match=f"kernel k: TC13 {most + 1} bytes of shared memory needed, {most} av"):
        compiled(text.replace("{}", str(most + 1)), machine)


def test_one_lane_of_every_warp_is_elected() -> None:
    body = """
    %t = simt.thread_id 0
    %one = simt.elect
    scf.if %one {
      %v = tile.load %a[%t] strides [] : memref<64xf32> -> f32
      tile.store %v, %o[%t] strides [] : f32, memref<64xf32>
    }"""
    a = (1 + np.arange(64)).astype(np.float32)
    views = "%a: memref<64xf32>, %o: memref<64xf32>"
    code = agree(kernel(body, views, threads="64, 1, 1"), [a, np.zeros_like(a)], "sm_90a")
    assert code.ptx.count("elect.sync") == 1


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize(("count", "valid"), [(8, None), (8, "%t"), (4, "%t"), (2, None)])
def test_asynchronous_copies(count: int, valid: str | None, machine: str) -> None:
    """What is not valid becomes zero; without the instruction the copy is a load and a store."""
    bypass = "bypass " if count == 8 else ""
    given = "valid %n " if valid else ""
    view, block = f"memref<{32 * count}xf16>", f'memref<{32 * count}xf16, "shared">'
    body = f"""
    %t = simt.thread_id 0
    %c = arith.constant {count} : index
    %c4 = arith.constant 4 : index
    %n = arith.subi %t, %c4 : index
    %i = arith.muli %t, %c : index
    %s = simt.shared align 16 : memref<{32 * count}xf16, "shared">
    simt.async_copy %a[%i] to %s[%i] {count} {given}{bypass}: {view}, {block}
    simt.commit
    simt.wait 0
    simt.barrier
    %v = tile.load %s[%i] strides [1] : memref<{32 * count}xf16, "shared"> -> tensor<{count}xf16>
    tile.store %v, %o[%i] strides [1] : tensor<{count}xf16>, memref<{32 * count}xf16>"""
    a = (1 + np.arange(32 * count)).astype(np.float16)
    views = f"%a: memref<{32 * count}xf16>, %o: memref<{32 * count}xf16>"
    code = agree(kernel(body, views), [a, np.zeros_like(a)], machine)
    form = f"cp.async.{'cg' if bypass else 'ca'}.shared.global"
    assert (form in code.ptx) == (machine != "sm_75")
    if machine != "sm_75":
        assert "cp.async.commit_group" in code.ptx
        assert "cp.async.wait_group" in code.ptx


@pytest.mark.parametrize("machine", ["sm_75", "sm_80"])
@pytest.mark.parametrize("valid", ["", "valid %some "])
def test_copies_under_conditions_are_predicated(valid: str, machine: str) -> None:
    """Without a branch, so that other instructions mix with them; where copies are loads and stores, in one."""
    body = f"""
    %t = simt.thread_id 0
    %c3 = arith.constant 3 : index
    %c4 = arith.constant 4 : index
    %c8 = arith.constant 8 : index
    %c64 = arith.constant 64 : index
    %i = arith.muli %t, %c4 : index
    %far = arith.addi %i, %c64 : index
    %z = arith.constant dense<-1.0> : tensor<4xf16>
    %some = arith.subi %c8, %t : index
    %s = simt.shared align 16 : memref<128xf16, "shared">
    tile.store %z, %s[%i] strides [1] align 8 : tensor<4xf16>, memref<128xf16, "shared">
    simt.barrier
    %early = tile.compare "lt" %t, %c8 : index -> i1
    scf.if %early {{
      %later = tile.compare "lt" %c3, %t : index -> i1
      scf.if %later {{
        %j = arith.addi %i, %c4 : index
        simt.async_copy %a[%j] to %s[%i] 4 {valid}: memref<128xf16>, memref<128xf16, "shared">
      }}
      simt.async_copy %a[%i] to %s[%far] 4 : memref<128xf16>, memref<128xf16, "shared">
    }}
    simt.commit
    simt.wait 0
    simt.barrier
    %v = tile.load %s[%i] strides [1] align 8 : memref<128xf16, "shared"> -> tensor<4xf16>
    tile.store %v, %o[%i] strides [1] align 8 : tensor<4xf16>, memref<128xf16>"""
    a = (1 + np.arange(128)).astype(np.float16)
    code = agree(kernel(body, "%a: memref<128xf16>, %o: memref<128xf16>"), [a, np.zeros_like(a)], machine)
    branches = sum("bra" in line for line in code.ptx.splitlines())
    assert code.ptx.count("cp.async.ca") == (2 if machine == "sm_80" else 0)
    assert bool(branches) == (machine == "sm_75")


def test_waits_leave_later_groups_under_way() -> None:
    ptx = compiled(kernel("simt.commit\nsimt.commit\nsimt.wait 1", "%a: memref<8xf16>")).ptx
    assert ptx.count("cp.async.commit_group") == 2
    assert re.search(r"cp\.async\.wait_group\s+1;", ptx)


def _atomics() -> list[tuple[str, str, str, str]]:
    """Every kind of every type, by turns in one memory and the other; in both with `--full`."""
    found = []
    for turn, type_ in enumerate(DTYPES):
        kinds = [(kind, "") for kind in ("add", "max", "min", "exchange")]
        if "f" not in type_:
            kinds += [(kind, "") for kind in ("and", "or", "xor")]
        if type_[0] == "i":
            kinds += [(kind, "unsigned ") for kind in ("max", "min")]
        for number, (kind, unsigned) in enumerate(kinds if FULL else kinds[turn % 2 :: 2], turn):
            spaces = ("global", "shared") if FULL else (("global", "shared")[number % 2],)
            found += [(type_, kind, unsigned, space) for space in spaces]
    return found


@pytest.mark.parametrize(("type_", "kind", "unsigned", "space"), _atomics())
def test_atomics(type_: str, kind: str, unsigned: str, space: str) -> None:
    """Three lanes share a place; every other lane is masked. Results of narrow integers are exact in any order."""
    view = f"memref<16x{type_}>" if space == "global" else f'memref<16x{type_}, "shared">'
    setup = "" if space == "global" else f"%s = simt.shared align 16 : {view}"
    start = "%p" if space == "global" else "%s"
    fill = (
        ""
        if space == "global"
        else f"""
    %i16 = arith.constant 16 : index
    %low = tile.compare "lt" %t, %i16 : index -> i1
    scf.if %low {{
      %f = tile.load %p[%t] strides [] : memref<16x{type_}> -> {type_}
      tile.store %f, %s[%t] strides [] : {type_}, {view}
    }}
    simt.barrier"""
    )
    drain = (
        ""
        if space == "global"
        else f"""
    simt.barrier
    scf.if %low {{
      %g = tile.load %s[%t] strides [] : {view} -> {type_}
      tile.store %g, %p[%t] strides [] : {type_}, memref<16x{type_}>
    }}"""
    )
    body = f"""
    %t = simt.thread_id 0
    {setup}{fill}
    %c2 = arith.constant 2 : index
    %c11 = arith.constant 11 : index
    %at = arith.remui %t, %c11 : index
    %par = arith.remui %t, %c2 : index
    %c0 = arith.constant 0 : index
    %m = tile.compare "eq" %par, %c0 : index -> i1
    %v = tile.load %a[%t] strides [] : memref<32x{type_}> -> {type_}
    %old = simt.atomic "{kind}" %v, {start}[%at] mask %m {unsigned}: {type_}, {view} -> {type_}{drain}"""
    if kind == "exchange":  # which lane is last is open: one lane for each place
        body = (
            body.replace("arith.constant 11 : index", "arith.constant 32 : index")
            .replace("arith.constant 2 : index", "arith.constant 4 : index")
            .replace(
                "%at = arith.remui %t, %c11 : index",
                "%c3 = arith.constant 2 : index\n    %at = arith.divui %t, %c3 : index",
            )
        )
    dtype = np.dtype(DTYPES[type_])
    rng = np.random.default_rng(0)
    a, p = rng.integers(-9, 9, 32).astype(dtype), rng.integers(-9, 9, 16).astype(dtype)
    for machine in ("sm_80", "sm_90a"):
        arrays = [a.copy(), p.copy()]
        agree(kernel(body, f"%a: memref<32x{type_}>, %p: memref<16x{type_}>"), arrays, machine)
        assert (arrays[1] != p).any()


def test_atomic_results_are_the_old_values() -> None:
    """The tickets of a counter: each number once, and 0 where the mask forbids."""
    body = """
    %t = simt.thread_id 0
    %c0 = arith.constant 0 : index
    %c24 = arith.constant 24 : index
    %m = tile.compare "lt" %t, %c24 : index -> i1
    %one = arith.constant 1 : i32
    %old = simt.atomic "add" %one, %p[%c0] mask %m : i32, memref<1xi32> -> i32
    tile.store %old, %o[%t] strides [] : i32, memref<32xi32>"""
    counter, out = np.full(1, 5, np.int32), np.full(32, -1, np.int32)
    code = emulate(kernel(body, "%p: memref<1xi32>, %o: memref<32xi32>"), [counter, out])
    assert counter[0] == 29
    assert sorted(out[:24]) == list(range(5, 29))
    assert (out[24:] == 0).all()
    assert "atom.relaxed.gpu.global.add.u32" in code.ptx


def test_unused_results_make_reductions() -> None:
    body = """
    %t = simt.thread_id 0
    %v = arith.constant 1.0 : f32
    %old = simt.atomic "add" %v, %p[%t] : f32, memref<32xf32> -> f32"""
    code = agree(kernel(body, "%p: memref<32xf32>"), [np.arange(32).astype(np.float32)])
    assert "red.relaxed.gpu.global.add.f32" in code.ptx
    assert "atom." not in code.ptx


def test_atomics_on_memory_of_a_thread_are_refused() -> None:
    body = """
    %c0 = arith.constant 0 : index
    %m = tile.alloc : memref<4xf32>
    %v = arith.constant 1.0 : f32
    %old = simt.atomic "add" %v, %m[%c0] : f32, memref<4xf32> -> f32"""
    with pytest.raises(InvalidProgram, match="atomic operation on memory of one thread"):
        compiled(kernel(body, "%p: memref<4xf32>"))


def _matrix_program(type_: str, count: int, transpose: bool) -> tuple[str, Array]:
    """Load `count` matrices of 8 rows from shared memory and store them, both ways."""
    per = 16 if type_ == "i8" else 8
    each = count * per * 8 // 32
    trans = "transpose " if transpose else ""
    n = 64 * per
    body = f"""
    %t = simt.thread_id 0
    %c = arith.constant {per} : index
    %row = arith.muli %t, %c : index
    %s = simt.shared align 16 : memref<{n}x{type_}, "shared">
    %u = simt.shared align 16 : memref<{n}x{type_}, "shared">
    %all = tile.load %a[%row] strides [1] : memref<{n}x{type_}> -> tensor<{per}x{type_}>
    tile.store %all, %s[%row] strides [1] : tensor<{per}x{type_}>, memref<{n}x{type_}, "shared">
    tile.store %all, %u[%row] strides [1] : tensor<{per}x{type_}>, memref<{n}x{type_}, "shared">
    simt.barrier
    %v = simt.load_matrix %s[%row] {count} {trans}: memref<{n}x{type_}, "shared"> -> tensor<{each}x{type_}>
    %e = arith.constant {each} : index
    %i = arith.muli %t, %e : index
    tile.store %v, %o[%i] strides [1] : tensor<{each}x{type_}>, memref<{n}x{type_}>
    simt.store_matrix %v, %u[%row] {count} : tensor<{each}x{type_}>, memref<{n}x{type_}, "shared">
    simt.barrier
    %w = tile.load %u[%row] strides [1] : memref<{n}x{type_}, "shared"> -> tensor<{per}x{type_}>
    tile.store %w, %p[%row] strides [1] : tensor<{per}x{type_}>, memref<{n}x{type_}>"""
    if transpose:
        body = body.replace(f"%u[%row] {count} :", f"%u[%row] {count} transpose :")
    return kernel(body, f"%a: memref<{n}x{type_}>, %o: memref<{n}x{type_}>, %p: memref<{n}x{type_}>"), np.arange(n)


@pytest.mark.covering
@pytest.mark.parametrize("machine", ["sm_75", "sm_90a"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("type_", "transpose"), [("f16", False), ("f16", True), ("i8", False), ("bf16", True)])
def test_matrices_of_eight_rows(type_: str, transpose: bool, count: int, machine: str) -> None:
    text, a = _matrix_program(type_, count, transpose)
    arrays = [a.astype(DTYPES[type_]), np.zeros(len(a), DTYPES[type_]), np.zeros(len(a), DTYPES[type_])]
    code = agree(text, arrays, machine)
    trans = ".trans" if transpose else ""
    assert f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16" in code.ptx
    assert ("stmatrix" in code.ptx) == (machine == "sm_90a")
