"""The interpreter of the distributed form: what threads compute together, and each mistake that it reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.kernel.interpreter import run_kernel, run_main
from tilewright.kernel.simt_clocks import Clocks
from tilewright.kernel.simt_interpreter import ORDERS, Order
from tilewright.kernel.tests import kernels
from tilewright.kernel.text import parse_module
from tilewright.kernel.views import READ

S = 'memref<256xf32, "shared">'
G = "memref<256xf32>"
START = f"""
  %t = simt.thread_id 0
  %one = arith.constant 1.0 : f32
  %yes = arith.constant true
  %s = simt.shared align 16 : {S}
""" + "\n".join(f"  %c{number} = arith.constant {number} : index" for number in (0, 1, 2, 3, 4, 8, 16, 31, 32, 63, 64))


def kernel(body: str, grid: str = "[1]", threads: str = "[64, 1, 1]", arguments: str = f"%x: {G}, %y: {G}") -> ModuleOp:
    return parse_module(
        f"tile.func @k({arguments}) grid {grid} threads {threads} warp 32 {{\n{START}\n{body}\n  tile.return\n}}"
    )


def run(body: str, order: Order = "together", races: bool = False, **options: Any) -> np.ndarray:
    """The second argument after a run on 0, 1, 2, ..."""
    y = np.full(256, -1, np.float32)
    run_kernel(kernel(body, **options), "k", [np.arange(256, dtype=np.float32), y], order=order, races=races, seed=3)
    return y


def refused(body: str, message: str, thread: str | None, order: Order = "together", **options: Any) -> None:
    """The error has the message, the kernel, the block, the thread where one is to blame, and an operation."""
    with pytest.raises(InvalidProgram) as caught:
        run(body, order, **options)
    assert message in caught.value.message
    assert caught.value.where.startswith("@k, block [")
    if thread is not None:
        assert caught.value.where.endswith(f"thread {thread}")
    assert "\n    " in caught.value.message


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS)
def test_threads_of_a_block_have_three_coordinates(order: Order) -> None:
    body = """
    %u = simt.thread_id 1   %v = simt.thread_id 2   %b = tile.program_id 0
    %a = arith.muli %v, %c2 : index   %d = arith.addi %a, %u : index
    %e = arith.muli %d, %c16 : index  %f = arith.addi %e, %t : index
    %g = arith.muli %b, %c64 : index  %h = arith.addi %f, %g : index
    %w = tile.load %x[%h] strides [] : memref<256xf32> -> f32
    tile.store %w, %y[%h] strides [] : f32, memref<256xf32>"""
    y = run(body, order, races=True, grid="[4]", threads="[16, 2, 2]")
    assert (y == np.arange(256)).all()


@pytest.mark.parametrize("order", ORDERS)
def test_threads_meet_in_shared_memory(order: Order) -> None:
    body = f"""
    %w = tile.load %x[%t] strides [] : {G} -> f32
    tile.store %w, %s[%t] strides [] : f32, {S}
    simt.barrier
    %r = arith.subi %c63, %t : index
    %z = tile.load %s[%r] strides [] : {S} -> f32
    tile.store %z, %y[%t] strides [] : f32, {G}"""
    assert (run(body, order)[:64] == np.arange(63, -1, -1)).all()


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        ("xor", "%c3", lambda lane: lane ^ 3),
        ("up", "%c4", lambda lane: lane - 4 if lane >= 4 else lane),
        ("down", "%c4", lambda lane: lane + 4 if lane < 28 else lane),
        ("index", "%c8", lambda lane: 8),
        ("index", "%c64", lambda lane: lane),
    ],
)
def test_shuffle(kind: str, number: str, expected: Any) -> None:
    body = f"""
    %w = tile.load %x[%t] strides [] : {G} -> f32
    %z = simt.shuffle "{kind}" %w, {number} : f32
    tile.store %z, %y[%t] strides [] : f32, {G}"""
    y = run(body)
    assert y[:64].tolist() == [warp + expected(lane) for warp in (0, 32) for lane in range(32)]


def test_threads_part_and_meet_in_branches_and_loops() -> None:
    body = f"""
    %n = arith.remui %t, %c3 : index
    %total = scf.for %i = %c0 to %n step %c1 iter_args(%sum = %one) -> (f32) {{
      %more = arith.addf %sum, %one : f32
      scf.yield %more : f32
    }}
    %small = tile.compare "lt" %t, %c16 : index -> i1
    %z = scf.if %small -> (f32) {{
      scf.yield %total : f32
    }} else {{
      %negative = arith.negf %total : f32
      scf.yield %negative : f32
    }}
    tile.store %z, %y[%t] strides [] : f32, {G}"""
    expected = [(1 + thread % 3) * (1 if thread < 16 else -1) for thread in range(64)]
    assert run(body)[:64].tolist() == expected


def test_private_memory_and_tiles_belong_to_each_thread() -> None:
    body = f"""
    %p = tile.alloc : memref<5xf32>
    %o = arith.muli %t, %c4 : index
    %w = tile.load %x[%o] strides [1] align 16 : {G} -> tensor<4xf32>
    tile.store %w, %p[%c1] strides [1] : tensor<4xf32>, memref<5xf32>
    %q = tile.load %p[%c1] strides [2, 1] : memref<5xf32> -> tensor<2x2xf32>
    %r = tile.reduce "sum" %q, 1 : tensor<2x2xf32> -> tensor<2x1xf32>
    %d = tile.dot "" %q, %r, %r unsigned "" : tensor<2x2xf32>, tensor<2x1xf32>, tensor<2x1xf32>
    tile.store %d, %y[%o] strides [1, 1] : tensor<2x1xf32>, {G}"""
    q = np.arange(256, dtype=np.float32).reshape(64, 2, 2)
    r = q.sum(axis=2, keepdims=True)
    assert (run(body).reshape(64, 4)[:, :2] == (r + q @ r)[:, :, 0]).all()


def test_parts_of_registers_are_cut_and_joined() -> None:
    body = f"""
    %o = arith.muli %t, %c4 : index
    %w = tile.load %x[%o] strides [1] : {G} -> tensor<4xf32>
    %same = tile.broadcast %one : f32 -> tensor<1xf32>
    %p = simt.part %w[1] : tensor<4xf32> -> tensor<2xf32>
    %z = simt.join %p, %same, %same : tensor<2xf32>, tensor<1xf32>, tensor<1xf32> -> tensor<4xf32>
    tile.store %z, %y[%o] strides [1] : tensor<4xf32>, {G}"""
    x = np.arange(256).reshape(64, 4)
    assert (run(body).reshape(64, 4) == np.c_[x[:, 1:3], np.ones((64, 2))]).all()


def test_atomics_take_turns_in_the_order_of_threads() -> None:
    body = f"""
    tile.store %one, %s[%t] strides [] : f32, {S}
    simt.barrier
    %old = simt.atomic "add" %one, %s[%c0] : f32, {S} -> f32
    tile.store %old, %y[%t] strides [] : f32, {G}"""
    assert run(body, "ascending")[:64].tolist() == list(range(1, 65))
    assert run(body, "descending")[:64].tolist() == list(range(64, 0, -1))
    shuffled = run(body, "random")[:64].tolist()
    assert sorted(shuffled) == list(range(1, 65)) != shuffled


@pytest.mark.parametrize(
    ("kind", "flag", "result"),
    [("add", "", -1 + 5), ("max", "", 5), ("max", "unsigned", -1), ("min", "", -1), ("and", "", 5), ("or", "", -1),
     ("xor", "", -6), ("exchange", "", 5)],
)  # fmt: skip
def test_kinds_of_atomics(kind: str, flag: str, result: int) -> None:
    view = "memref<1xi32>"
    body = f"""
    %five = arith.constant 5 : i32   %first = tile.compare "eq" %t, %c0 : index -> i1
    %old = simt.atomic "{kind}" %five, %z[%c0] mask %first {flag} : i32, {view} -> i32"""
    z = np.asarray([-1], np.int32)
    run_kernel(kernel(body, arguments=f"%z: {view}"), "k", [z])
    assert z.tolist() == [result]


def test_blocks_may_meet_in_atomics() -> None:
    body = f'%old = simt.atomic "add" %one, %y[%c0] : f32, {G} -> f32'
    assert run(body, races=True, grid="[3]")[0] == 3 * 64 - 1


def test_copies_are_zero_beyond_what_is_valid() -> None:
    body = f"""
    %o = arith.muli %t, %c4 : index
    %v = arith.remui %t, %c8 : index
    simt.async_copy %x[%o] to %s[%o] 4 valid %v : {G}, {S}
    simt.commit
    simt.wait 0
    %w = tile.load %s[%o] strides [1] : {S} -> tensor<4xf32>
    tile.store %w, %y[%o] strides [1] : tensor<4xf32>, {G}"""
    thread, element = np.arange(256) // 4, np.arange(256) % 4
    assert (run(body) == np.where(element < thread % 8, np.arange(256), 0)).all()


@pytest.mark.parametrize("transpose", ["", "transpose"])
@pytest.mark.parametrize("order", ORDERS)
def test_load_matrix_and_store_matrix(order: Order, transpose: str) -> None:
    h, k = 'memref<512xf16, "shared">', "memref<512xf16>"
    body = f"""
    %m = simt.shared align 16 : {h}   %n = simt.shared align 16 : {h}
    %o = arith.muli %t, %c8 : index
    simt.async_copy %a[%o] to %m[%o] 8 bypass : {k}, {h}
    simt.commit   simt.wait 0   simt.barrier
    %l = simt.load_matrix %m[%o] 4 {transpose} : {h} -> tensor<8xf16>
    simt.store_matrix %l, %n[%o] 4 : tensor<8xf16>, {h}
    simt.barrier
    %z = tile.load %n[%o] strides [1] align 16 : {h} -> tensor<8xf16>
    tile.store %z, %b[%o] strides [1] : tensor<8xf16>, {k}"""
    a, b = np.arange(512, dtype=np.float16), np.zeros(512, np.float16)
    run_kernel(kernel(body, arguments=f"%a: {k}, %b: {k}"), "k", [a, b], order=order)
    matrices = a.reshape(8, 8, 8)
    assert (b.reshape(8, 8, 8) == (matrices.transpose(0, 2, 1) if transpose else matrices)).all()


def test_load_matrix_gives_fragments_as_the_manual_draws_them() -> None:
    h = 'memref<64xf16, "shared">'
    body = f"""
    %m = simt.shared align 16 : {h}
    %eight = arith.muli %t, %c8 : index   %there = tile.compare "lt" %t, %c8 : index -> i1
    scf.if %there {{
      %row = tile.load %a[%eight] strides [1] : memref<64xf16> -> tensor<8xf16>
      tile.store %row, %m[%eight] strides [1] : tensor<8xf16>, {h}
    }}
    simt.barrier
    %l = simt.load_matrix %m[%eight] 1 : {h} -> tensor<2xf16>
    %o = arith.muli %t, %c2 : index
    tile.store %l, %b[%o] strides [1] : tensor<2xf16>, memref<64xf16>"""
    a, b = np.arange(64, dtype=np.float16), np.zeros(64, np.float16)
    run_kernel(kernel(body, arguments="%a: memref<64xf16>, %b: memref<64xf16>", threads="[32, 1, 1]"), "k", [a, b])
    assert (b == a).all()  # lane l: row l // 4, elements 2 (l % 4) and the next


# Whole kernels --------------------------------------------------------------------------------------------------------


def integers(rng: np.random.Generator, *extents: int) -> np.ndarray:
    return rng.integers(-2, 3, extents).astype(np.float16)


@pytest.mark.covering(1)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("m", "n", "k", "stages", "warp"),
    [(64, 64, 64, 3, (32, 32)), (64, 64, 96, 2, (32, 64)), (70, 72, 40, 3, (64, 32)), (1, 8, 8, 2, (32, 32))],
)  # fmt: skip
def test_staged_gemm(m: int, n: int, k: int, stages: int, warp: tuple[int, int], order: Order) -> None:
    rng = np.random.default_rng(m + n + k)
    a, b, c = integers(rng, m, k), integers(rng, k, n), np.full((m, n), np.nan, np.float32)
    module = kernels.staged_gemm(m, n, k, warp=warp, stages=stages)
    run_kernel(module, "staged_gemm", [a.ravel(), b.ravel(), c.reshape(-1)], races=True, order=order, seed=1)
    assert (c == a.astype(np.float32) @ b.astype(np.float32)).all()


def test_fragment_gemm() -> None:
    m, n, k = 64, 32, 48
    rng = np.random.default_rng(0)
    a, b, c = integers(rng, m, k), integers(rng, k, n), np.ones((m, n), np.float32)
    run_kernel(kernels.fragment_gemm(m, n, k), "fragment_gemm", [a.ravel(), b.ravel(), c.reshape(-1)], races=True)
    assert (c == 1 + a.astype(np.float32) @ b.astype(np.float32)).all()


@pytest.mark.parametrize("order", ORDERS)
def test_other_kernels(order: Order) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (37, 50)).astype(np.float32)
    y = np.full((50, 37), np.nan, np.float32)
    run_kernel(kernels.transpose(37, 50), "transpose", [x.ravel(), y.reshape(-1)], races=True, order=order)
    assert (y == x.T).all()
    sums = np.full(37, np.nan, np.float32)
    run_kernel(kernels.row_sums(37, 50), "row_sums", [x.ravel(), sums], races=True, order=order)
    assert (sums == x.sum(axis=1)).all()
    numbers, counts = rng.integers(0, 70, 500).astype(np.int32), np.zeros(70, np.int32)
    run_kernel(kernels.histogram(500, 70), "histogram", [numbers, counts], races=True, order=order)
    assert (counts == np.bincount(numbers, minlength=70)).all()


# Mistakes -------------------------------------------------------------------------------------------------------------

FILL = f"""%f0 = arith.muli %t, %c4 : index   %full = arith.constant dense<1.0> : tensor<4xf32>
tile.store %full, %s[%f0] strides [1] : tensor<4xf32>, {S}
simt.barrier
"""
WRITE = f"tile.store %one, %s[%t] strides [] : f32, {S}"
READ_NEXT = f"""%n0 = arith.addi %t, %c1 : index   %next = arith.remui %n0, %c64 : index
%z = tile.load %s[%next] strides [] : {S} -> f32"""
WRITE_NEXT = f"""%m0 = arith.addi %t, %c1 : index   %m1 = arith.remui %m0, %c64 : index
tile.store %one, %s[%m1] strides [] : f32, {S}"""
COPY = f"""%o = arith.muli %t, %c4 : index
simt.async_copy %x[%o] to %s[%o] 4 : {G}, {S}"""
READ_COPY = f"%w = tile.load %s[%o] strides [1] : {S} -> tensor<4xf32>"
READ_OTHERS_COPY = f"""%p = arith.subi %c63, %t : index   %q = arith.muli %p, %c4 : index
%w = tile.load %s[%q] strides [1] : {S} -> tensor<4xf32>"""
IN_FIRST_WARP = """%first = tile.compare "lt" %t, %c32 : index -> i1
scf.if %first {"""
IN_HALF_A_WARP = """%first = tile.compare "lt" %t, %c16 : index -> i1
scf.if %first {"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "body",
    [
        f"{WRITE}\n{READ_NEXT}",  # write, read by another
        f"{WRITE}\nsimt.barrier\n{READ_NEXT}\n{WRITE}",  # read, write by another
        f"{WRITE}\n{WRITE_NEXT}",  # two writes
        f"tile.store %one, %s[%c0] strides [] : f32, {S}",  # two writes of one operation
        f"{WRITE}\nsimt.barrier\n{WRITE}\n%a = simt.atomic \"add\" %one, %s[%c0] : f32, {S} -> f32",
        f"{WRITE}\nsimt.barrier\n%a = simt.atomic \"add\" %one, %s[%c0] : f32, {S} -> f32\n{READ_NEXT}",
        f"{COPY}\nsimt.commit\nsimt.wait 0\n{READ_OTHERS_COPY}",  # waited for by another only
        f"tile.store %one, %y[%t] strides [] : f32, {G}\n%r = arith.subi %c63, %t : index\n"
        f"%z = tile.load %y[%r] strides [] : {G} -> f32",  # in global memory
    ],
)  # fmt: skip
def test_race(body: str, order: Order) -> None:
    """All memory is defined, so that whoever comes first does something that may be done."""
    refused(FILL + body, "race: ", None, order)
    with pytest.raises(InvalidProgram, match=r"which (thread \[|another thread).*with no barrier between"):
        run(FILL + body, order)


def test_what_is_no_race() -> None:
    run(f"{WRITE}\n%z = tile.load %s[%t] strides [] : {S} -> f32\n{WRITE}")  # one's own
    run(f"{WRITE}\nsimt.barrier\n%z = tile.load %s[%c0] strides [] : {S} -> f32")  # all read


def test_race_within_a_warp_operation() -> None:
    h = 'memref<1024xf16, "shared">'
    store = f"""%m = simt.shared align 16 : {h}   %o = arith.muli %t, %c16 : index
    %full = arith.constant dense<1.0> : tensor<16xf16>
    tile.store %full, %m[%o] strides [1] : tensor<16xf16>, {h}"""
    load = f"%l = simt.load_matrix %m[%o] 4 : {h} -> tensor<8xf16>"
    run(f"{store}\nsimt.barrier\n{load}")
    refused(f"{store}\n{load}", "race: reads element 0, which thread [0, 0, 0] writes", "[0, 0, 0]")


def test_race_through_overlapping_allocations() -> None:
    body = f"""%m = simt.shared align 16 at 0 : {S}   %n = simt.shared align 16 at 64 : memref<512xf16, "shared">
    tile.store %one, %m[%t] strides [] : f32, {S}
    {{0}}
    %z = tile.load %n[%t] strides [] : memref<512xf16, "shared"> -> f16"""
    run(body.format("simt.barrier").replace("{0}", "simt.barrier"))
    refused(body.replace("{0}", "").replace("{", "").replace("}", ""), "race: reads element 0", None)


def test_race_between_blocks() -> None:
    body = f"tile.store %one, %y[%t] strides [] : f32, {G}"
    run(body, grid="[2]")
    message = "race: writes element 0, which another block of this launch writes"
    refused(body, message, "[0, 0, 0]", grid="[2]", races=True)
    atomic = f'%old = simt.atomic "add" %one, %y[%t] : f32, {G} -> f32'
    other = f"""%b = tile.program_id 0   %zero = tile.compare "eq" %b, %c0 : index -> i1
    scf.if %zero {{ {body} }} else {{ {atomic} }}"""
    refused(other, "which another block of this launch updates", None, grid="[2]", races=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("body", "thread"),
    [
        (f"{IN_FIRST_WARP} simt.barrier }}", "[32, 0, 0]"),
        (f"{IN_HALF_A_WARP} simt.barrier }}", "[16, 0, 0]"),
        (f"{IN_FIRST_WARP} simt.barrier }} else {{ simt.barrier }}", None),
        ("scf.for %i = %c0 to %t step %c32 { simt.barrier }", "[0, 0, 0]"),
    ],
)
def test_divergence_at_a_barrier(body: str, thread: str | None, order: Order) -> None:
    refused(body, "divergence: a barrier that this thread does not reach", thread, order)


@pytest.mark.parametrize(
    "operation",
    [
        '%z = simt.shuffle "xor" %one, %c1 : f32',
        f"%z = simt.load_matrix %s[%c0] 1 : {S} -> tensor<1xf32>",
        "%z = simt.elect",
        '%d = simt.mma "mma_m16n8k16_f16_f32" %a, %b, %c : tensor<8xf16>, tensor<4xf16>, tensor<4xf32>',
        f'%d = simt.load_fragment "mma_m16n8k16_f16_f32" "c" %x[%c0, %c8] : {G} -> tensor<4xf32>',
    ],
)
def test_divergence_at_a_warp_operation(operation: str) -> None:
    tiles = """%a = arith.constant dense<1.0> : tensor<8xf16>  %b = arith.constant dense<1.0> : tensor<4xf16>
    %c = arith.constant dense<1.0> : tensor<4xf32>"""
    message = "is executed by whole warps, and this thread is not there"
    refused(f"{tiles}\n{IN_HALF_A_WARP} {operation} }}", message, "[16, 0, 0]")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("body", "kind", "which"),
    [
        (f"{COPY}\nsimt.commit\n{READ_COPY}", "reads", "to which"),
        (f"{COPY}\nsimt.wait 0\n{READ_COPY}", "reads", "to which"),
        (f"{COPY}\nsimt.commit\nsimt.wait 1\n{READ_COPY}", "reads", "to which"),
        (f"{COPY}\nsimt.commit\nsimt.barrier\n{WRITE}", "writes", "to which"),
        (f"{COPY}\nsimt.barrier\nsimt.async_copy %x[%o] to %s[%o] 4 : {G}, {S}", "writes", "to which"),
        (f"{COPY.replace('%x', '%y')}\nsimt.barrier\ntile.store %one, %y[%t] strides [] : f32, {G}",
         "writes", "from which"),
    ],
)  # fmt: skip
def test_copy_under_way(body: str, kind: str, which: str, order: Order) -> None:
    refused(body, f"{which} an asynchronous copy is under way", None, order)
    refused(body, f"{kind} element ", None, order)


def test_a_waited_copy_is_there_for_its_thread_and_after_a_barrier_for_all() -> None:
    run(f"{COPY}\nsimt.commit\nsimt.wait 0\n{READ_COPY}")
    run(f"{COPY}\nsimt.commit\nsimt.wait 0\nsimt.barrier\n{READ_OTHERS_COPY}")
    refused(f"{COPY}\nsimt.commit\nsimt.barrier\nsimt.wait 0\n{READ_OTHERS_COPY}", "race: reads", None)


@pytest.mark.parametrize(
    ("body", "message", "thread"),
    [
        (f"%o = arith.muli %t, %c8 : index\n%z = tile.load %x[%o] strides [] : {G} -> f32",
         "touches element 256 of a view of 256", "[32, 0, 0]"),
        (f"%o = arith.subi %t, %c1 : index\ntile.store %one, %s[%o] strides [] : f32, {S}",
         "touches element -1 of a view of 256", "[0, 0, 0]"),
        (f"%z = tile.load %s[%t] strides [] : {S} -> f32", "reads element 0, which nothing has written", "[0, 0, 0]"),
        ("%p = tile.alloc : memref<4xf32>\n%z = tile.load %p[%c1] strides [] : memref<4xf32> -> f32",
         "reads element 1, which nothing has written", "[0, 0, 0]"),
        (f"%z = tile.load %x[%t] strides [1] align 8 : {G} -> tensor<2xf32>",
         "misaligned: byte 4 is no multiple of 8", "[1, 0, 0]"),
        (f"%f = arith.constant dense<1.0> : tensor<2xf32>\n%o = arith.muli %t, %c3 : index\n"
         f"tile.store %f, %s[%o] strides [1] align 8 : tensor<2xf32>, {S}",
         "misaligned: byte 12 is no multiple of 8", "[1, 0, 0]"),
        (f"simt.async_copy %x[%t] to %s[%c0] 4 : {G}, {S}", "misaligned: byte 4 is no multiple of 16", "[1, 0, 0]"),
        (f"%o = arith.muli %t, %c3 : index\nsimt.async_copy %x[%c0] to %s[%o] 4 : {G}, {S}",
         "misaligned: byte 12 is no multiple of 16", "[1, 0, 0]"),
        (f"%z = simt.load_matrix %s[%t] 1 : {S} -> tensor<1xf32>", "misaligned: byte 4 is no multiple of 16",
         "[1, 0, 0]"),
        (f'%z = simt.load_fragment "mma_m16n8k16_f16_f32" "c" %x[%t, %c8] : {G} -> tensor<4xf32>',
         "the lanes of a warp disagree about the offset", "[0, 0, 0]"),
        (f'%z = simt.load_fragment "mma_m16n8k16_f16_f32" "c" %x[%c0, %c8] : {G} -> tensor<8xf32>',
         "c of mma_m16n8k16_f16_f32 has 4 elements per lane, not 8", "[0, 0, 0]"),
        (f'%z = simt.load_fragment "wmma_16x16x16_f16_f32" "c" %x[%c0, %c16] : {G} -> tensor<5xf32>',
         "c of wmma_16x16x16_f16_f32, [16, 16] opaque, as 5 per lane", "[0, 0, 0]"),
        (f'%z = simt.load_fragment "mma_m16n8k16_f16_f32" "a" %x[%c0, %c8] : {G} -> tensor<8xf32>',
         "a of mma_m16n8k16_f16_f32 has elements of f16, not float32", "[0, 0, 0]"),
        (f'%z = simt.load_fragment "mma_nonsense" "a" %x[%c0, %c8] : {G} -> tensor<8xf32>',
         "no intrinsic 'mma_nonsense'", "[0, 0, 0]"),
        ("scf.for %i = %c0 to %c4 step %t { }", "steps by 0; a step is positive", "[0, 0, 0]"),
    ],
)  # fmt: skip
def test_mistake(body: str, message: str, thread: str) -> None:
    refused(body, message, thread)


def test_a_mask_hides_what_is_out_of_bounds() -> None:
    body = f"""
    %o = arith.muli %t, %c8 : index   %in = tile.compare "lt" %t, %c32 : index -> i1
    %z = tile.load %x[%o] mask %in : i1 strides [] : {G} -> f32
    %old = simt.atomic "add" %one, %y[%o] mask %in : f32, {G} -> f32"""
    run(body)


def test_unknown_order() -> None:
    with pytest.raises(InvalidArgument, match="no order 'sideways' of threads"):
        run("", "sideways")  # type: ignore[arg-type]


MAIN = """
tile.main arena 512 constants 0 {
  %b = tile.buffer "arena" {0} : memref<64xf32>
  %y = tile.buffer "output" 0 : memref<64xf32>
  tile.launch @fill(%b) : memref<64xf32>
  tile.launch @move(%b, %y) : memref<64xf32>, memref<64xf32>
}
tile.func @fill(%b: memref<64xf32>) grid [1] threads [64, 1, 1] warp 32 {
  %t = simt.thread_id 0
  %one = arith.constant 1.0 : f32
  tile.store %one, %b[%t] strides [] : f32, memref<64xf32>
  tile.return
}
tile.func @move(%b: memref<64xf32>, %y: memref<64xf32>) grid [1] threads [16, 1, 1] warp 16 {
  %t = simt.thread_id 0
  %c4 = arith.constant 4 : index
  %o = arith.muli %t, %c4 : index
  %w = tile.load %b[%o] strides [1] align 16 : memref<64xf32> -> tensor<4xf32>
  tile.store %w, %y[%o] strides [1] : tensor<4xf32>, memref<64xf32>
  tile.return
}"""


def test_main_launches_kernels_with_threads() -> None:
    y = np.zeros(64, np.float32)
    run_main(parse_module(MAIN.replace("{0}", "64")), [], [y], races=True)
    assert (y == 1).all()
    with pytest.raises(InvalidProgram, match="misaligned: byte 4 is no multiple of 16"):  # of the arena
        run_main(parse_module(MAIN.replace("{0}", "4")), [], [y])
    shared = MAIN.replace("@move(%b, %y)", "@move(%b, %b)").replace("{0}", "0")
    with pytest.raises(InvalidProgram, match="arguments 0 and 1 share memory, which is written"):
        run_main(parse_module(shared), [], [y])
    store = "tile.store %w, %y[%o] strides [1] : tensor<4xf32>, memref<64xf32>"
    atomic = '%one = arith.constant 1.0 : f32  %old = simt.atomic "add" %one, %y[%o] : f32, memref<64xf32> -> f32'
    with pytest.raises(InvalidProgram, match="arguments 0 and 1 share memory, which is written"):
        run_main(parse_module(shared.replace(store, atomic)), [], [y])
    unfilled = MAIN.replace("  tile.launch @fill(%b) : memref<64xf32>\n", "").replace("{0}", "0")
    with pytest.raises(InvalidProgram, match="reads element 0, which nothing has written"):
        run_main(parse_module(unfilled), [], [y])


def test_a_write_clashes_with_the_first_warp_whose_read_is_unknown() -> None:
    """Warps 1 and 2 have read a unit; warp 0 knows of warp 1 alone."""
    clocks = Clocks(4, 8)
    units, write = np.array([5]), np.array([0])
    for reader in (1, 2, 3):
        assert clocks.clash(READ, units, np.array([reader])) is None
    clocks.now += 1
    clocks.meet(np.array([0, 1]))
    assert clocks.clash("writes", units, write) == ("reads", 0, 2)
    assert clocks.clash("writes", np.array([4, 5]), np.array([0, 0])) == ("reads", 1, 2)
    clocks.meet(np.array([0, 2, 3]))
    assert clocks.clash("writes", units, write) is None
