"""Products of matrices in distributed form, written by hand: ``c = a b`` in blocks, slices of k in several buffers.

A block of 64 x 64 results belongs to 4 warps of 32 x 32; slices of 32 of k travel by asynchronous copies, two ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

BLOCK, SLICE, STAGES, THREADS = 64, 32, 3, 128
ROW_A, ROW_B = SLICE + 8, BLOCK + 8  # padded: the rows of an 8 x 8 matrix lie in different banks


class Body:
    """Lines of a kernel; every method emits an operation and gives the name of its result."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def add(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"%v{self.count} = {text}")
        return f"%v{self.count}"

    def do(self, text: str) -> None:
        self.lines.append(text)

    def number(self, value: int) -> str:
        return self.add(f"arith.constant {value} : index")

    def _binary(self, name: str, a: str, b: str | int) -> str:
        right = self.number(b) if isinstance(b, int) else b
        return self.add(f"arith.{name} {a}, {right} : index")

    def plus(self, a: str, b: str | int) -> str:
        return self._binary("addi", a, b)

    def times(self, a: str, b: str | int) -> str:
        return self._binary("muli", a, b)

    def over(self, a: str, b: int) -> str:
        return self._binary("divui", a, b)

    def modulo(self, a: str, b: int) -> str:
        return self._binary("remui", a, b)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        self.do(f"scf.if {condition} {{")
        yield
        self.do("}")


def _copies(
    body: Body, thread: str, stage: str, step: str, row_of_block: str, column_of_block: str, k: int, n: int
) -> None:
    """Two chunks of 16 bytes of each operand per thread."""
    for part in range(BLOCK * SLICE // 8 // THREADS):
        chunk = body.plus(thread, part * THREADS)
        row, column = body.over(chunk, SLICE // 8), body.times(body.modulo(chunk, SLICE // 8), 8)
        there = body.plus(body.times(body.plus(row_of_block, row), k), body.plus(body.times(step, SLICE), column))
        here = body.plus(body.times(stage, BLOCK * ROW_A), body.plus(body.times(row, ROW_A), column))
        body.do(f"simt.async_copy %a[{there}] to %as[{here}] 8 bypass : %A, %As")
        row, column = body.over(chunk, BLOCK // 8), body.times(body.modulo(chunk, BLOCK // 8), 8)
        there = body.plus(body.times(body.plus(body.times(step, SLICE), row), n), body.plus(column_of_block, column))
        here = body.plus(body.times(stage, SLICE * ROW_B), body.plus(body.times(row, ROW_B), column))
        body.do(f"simt.async_copy %b[{there}] to %bs[{here}] 8 bypass : %B, %Bs")


def gemm(m: int, n: int, k: int, wmma: bool = False, drop: str = "") -> str:
    """The text of a module with kernel @k on a (m x k), b (k x n), both f16, and c (m x n, f32), all row-major.

    `drop` leaves out an operation, so that a test can see it missed.
    """
    assert m % BLOCK == 0, "whole blocks"
    assert n % BLOCK == 0, "whole blocks"
    assert k % SLICE == 0, "whole slices"
    body, steps = Body(), k // SLICE
    body.do("%as = simt.shared align 128 : %As")
    body.do("%bs = simt.shared align 128 : %Bs")
    thread = body.add("simt.thread_id 0")
    top = body.times(body.add("tile.program_id 0"), BLOCK)
    left = body.times(body.add("tile.program_id 1"), BLOCK)
    warp, lane = body.over(thread, 32), body.modulo(thread, 32)
    warp_top, warp_left = body.times(body.over(warp, 2), 32), body.times(body.modulo(warp, 2), 32)
    for stage in range(STAGES - 1):
        if stage < steps:
            _copies(body, thread, body.number(stage), body.number(stage), top, left, k, n)
        body.do("simt.commit")
    type_ = "tensor<8xf32>" if wmma else "tensor<4xf32>"
    count = 4 if wmma else 8
    zeros = [body.add(f"arith.constant dense<0.0> : {type_}") for _ in range(count)]
    low, high, one = body.number(0), body.number(steps), body.number(1)
    carried = [f"%acc{i}" for i in range(count)]
    names = ", ".join(f"{a} = {b}" for a, b in zip(carried, zeros, strict=True))
    types = ", ".join([type_] * count)
    body.do(f"%res:{count} = scf.for %step = {low} to {high} step {one} iter_args({names}) -> ({types}) {{")
    body.do(f"simt.wait {STAGES - 2}" if drop != "wait" else f"simt.wait {STAGES - 1}")
    if drop != "barrier":
        body.do("simt.barrier")
    ahead = body.plus("%step", STAGES - 1)
    with body.when(body.add(f'tile.compare "lt" {ahead}, {high} : index -> i1')):
        _copies(body, thread, body.modulo(ahead, STAGES), ahead, top, left, k, n)
    body.do("simt.commit")
    stage = body.modulo("%step", STAGES)
    base_a, base_b = body.times(stage, BLOCK * ROW_A), body.times(stage, SLICE * ROW_B)
    multiply = _wmma_slice if wmma else _mma_slice
    results = multiply(body, base_a, base_b, warp_top, warp_left, lane, carried)
    body.do(f"scf.yield {', '.join(results)} : {types}")
    body.do("}")
    (_wmma_store if wmma else _mma_store)(body, body.plus(top, warp_top), body.plus(left, warp_left), lane, n)
    text = "\n".join(f"    {line}" for line in body.lines)
    kernel = f"""builtin.module {{
  tile.func @k(%a: %A, %b: %B, %c: %C) grid [{m // BLOCK}, {n // BLOCK}] threads [{THREADS}, 1, 1] warp 32 {{
{text}
    tile.return
  }}
}}"""
    views = {
        "%As": f'memref<{STAGES * BLOCK * ROW_A}xf16, "shared">',
        "%Bs": f'memref<{STAGES * SLICE * ROW_B}xf16, "shared">',
        "%A": f"memref<{m * k}xf16>", "%B": f"memref<{k * n}xf16>", "%C": f"memref<{m * n}xf32>",
    }  # fmt: skip
    for name, view in views.items():
        kernel = (
            kernel.replace(f"{name},", f"{view},").replace(f"{name}\n", f"{view}\n").replace(f"{name})", f"{view})")
        )
        kernel = kernel.replace(f"{name} ->", f"{view} ->")
    return kernel


def _mma_slice(
    body: Body, base_a: str, base_b: str, warp_top: str, warp_left: str, lane: str, carried: list[str]
) -> list[str]:
    results = list(carried)
    low, high = body.modulo(lane, 16), body.times(body.over(lane, 16), 8)
    for inner in range(0, SLICE, 16):
        a, b = [], []
        for tile in range(2):
            row = body.plus(body.plus(warp_top, 16 * tile), low)
            at = body.plus(base_a, body.plus(body.times(row, ROW_A), body.plus(high, inner)))
            a.append(body.add(f"simt.load_matrix %as[{at}] 4 : %As -> tensor<8xf16>"))
        for pair in range(2):
            row = body.plus(low, inner)
            column = body.plus(body.plus(warp_left, 16 * pair), high)
            at = body.plus(base_b, body.plus(body.times(row, ROW_B), column))
            both = body.add(f"simt.load_matrix %bs[{at}] 4 transpose : %Bs -> tensor<8xf16>")
            b += [body.add(f"simt.part {both}[{start}] : tensor<8xf16> -> tensor<4xf16>") for start in (0, 4)]
        for tile in range(2):
            for column_tile in range(4):
                place = 4 * tile + column_tile
                results[place] = body.add(
                    f'simt.mma "mma_m16n8k16_f16_f32" {a[tile]}, {b[column_tile]}, {results[place]} : '
                    "tensor<8xf16>, tensor<4xf16>, tensor<4xf32>"
                )
    return results


def _mma_store(body: Body, top: str, left: str, lane: str, n: int) -> None:
    row, column = body.over(lane, 4), body.times(body.modulo(lane, 4), 2)
    for tile in range(2):
        for column_tile in range(4):
            at = body.plus(
                body.times(body.plus(body.plus(top, 16 * tile), row), n),
                body.plus(body.plus(left, 8 * column_tile), column),
            )
            shaped = body.add(f"tile.reshape %res#{4 * tile + column_tile} : tensor<4xf32> -> tensor<2x2xf32>")
            body.do(f"tile.store {shaped}, %c[{at}] strides [{8 * n}, 1] : tensor<2x2xf32>, %C")


def _wmma_slice(
    body: Body, base_a: str, base_b: str, warp_top: str, warp_left: str, lane: str, carried: list[str]
) -> list[str]:
    results = list(carried)
    row_a, row_b = body.number(ROW_A), body.number(ROW_B)
    name = '"wmma_16x16x16_f16_f32"'
    for inner in range(0, SLICE, 16):
        a, b = [], []
        for tile in range(2):
            at = body.plus(base_a, body.plus(body.times(body.plus(warp_top, 16 * tile), ROW_A), inner))
            a.append(body.add(f'simt.load_fragment {name} "a" %as[{at}, {row_a}] : %As -> tensor<16xf16>'))
            at = body.plus(base_b, body.plus(body.plus(warp_left, 16 * tile), inner * ROW_B))
            b.append(body.add(f'simt.load_fragment {name} "b" %bs[{at}, {row_b}] : %Bs -> tensor<16xf16>'))
        for tile in range(2):
            for column_tile in range(2):
                place = 2 * tile + column_tile
                results[place] = body.add(
                    f"simt.mma {name} {a[tile]}, {b[column_tile]}, {results[place]} : "
                    "tensor<16xf16>, tensor<16xf16>, tensor<8xf32>"
                )
    return results


def _wmma_store(body: Body, top: str, left: str, lane: str, n: int) -> None:
    stride = body.number(n)
    for tile in range(2):
        for column_tile in range(2):
            at = body.plus(body.times(body.plus(top, 16 * tile), n), body.plus(left, 16 * column_tile))
            body.do(
                f'simt.store_fragment "wmma_16x16x16_f16_f32" %res#{2 * tile + column_tile}, %c[{at}, {stride}] '
                ": tensor<8xf32>, %C"
            )
