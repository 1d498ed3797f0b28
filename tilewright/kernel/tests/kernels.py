"""Hand-written kernels in distributed form, for tests here and of whoever compiles or runs such kernels.

Each function gives a module with one kernel of the function's name; its docstring says what the arguments are. They
use one operation of the dialect after the other as it is meant, and are free of races.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, MemRefType, ModuleOp, StringAttr, f16, f32, i1, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tilewright.kernel import simt
from tilewright.kernel.dialect import (
    INDEX,
    BroadcastOp,
    CompareOp,
    FuncOp,
    LoadOp,
    ProgramIdOp,
    ReduceOp,
    ReshapeOp,
    ReturnOp,
    SelectOp,
    StoreOp,
)

WARP = 32


def memory(element: Attribute, *extents: int, shared: bool = False) -> MemRefType[Attribute]:
    """The type of a flat view."""
    if shared:
        return MemRefType(element, [prod(extents)], memory_space=StringAttr("shared"))
    return MemRefType(element, [prod(extents)])


class KernelBuilder:
    """Appends operations to a kernel; indices are values or numbers."""

    def __init__(self, name: str, arguments: Sequence[Attribute], grid: Sequence[int], threads: Sequence[int]) -> None:
        self.kernel = FuncOp(name, arguments, grid, threads=[*threads, 1, 1][:3], warp=WARP)
        self.block = self.kernel.body.block
        self.arguments = self.block.args

    def module(self) -> ModuleOp:
        self.block.add_op(ReturnOp())
        return ModuleOp([self.kernel])

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def do(self, *ops: Operation) -> None:
        self.block.add_ops(ops)

    def index(self, value: SSAValue | int) -> SSAValue:
        return self.add(arith.ConstantOp(IntegerAttr(value, INDEX))) if isinstance(value, int) else value

    def number(self, value: float, type_: Attribute, *extents: int) -> SSAValue:
        """A float, or a tile full of it."""
        assert isinstance(type_, AnyFloat)
        scalar = self.add(arith.ConstantOp(FloatAttr(value, type_)))
        return self.add(BroadcastOp(scalar, extents)) if extents else scalar

    def sum(self, first: SSAValue | int, *others: SSAValue | int) -> SSAValue:
        total = self.index(first)
        for other in others:
            total = self.add(arith.AddiOp(total, self.index(other)))
        return total

    def minus(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        return self.add(arith.SubiOp(self.index(a), self.index(b)))

    def times(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        return self.add(arith.MuliOp(self.index(a), self.index(b)))

    def over(self, a: SSAValue | int, b: int) -> SSAValue:
        return self.add(arith.DivUIOp(self.index(a), self.index(b)))

    def modulo(self, a: SSAValue | int, b: int) -> SSAValue:
        return self.add(arith.RemUIOp(self.index(a), self.index(b)))

    def clamp(self, a: SSAValue | int, low: int, high: int) -> SSAValue:
        return self.add(arith.MinSIOp(self.add(arith.MaxSIOp(self.index(a), self.index(low))), self.index(high)))

    def less(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        return self.add(CompareOp("lt", self.index(a), self.index(b)))

    def shared(self, element: Attribute, *extents: int) -> SSAValue:
        return self.add(simt.SharedOp(memory(element, *extents, shared=True)))

    @contextmanager
    def when(self, condition: SSAValue) -> Iterator[None]:
        """Operations under a condition."""
        outer, self.block = self.block, Block()
        yield
        self.block.add_op(scf.YieldOp())
        inner, self.block = self.block, outer
        self.block.add_op(scf.IfOp(condition, [], Region(inner), Region(Block([scf.YieldOp()]))))

    def loop(
        self,
        trips: SSAValue | int,
        carried: Sequence[SSAValue],
        body: Callable[[SSAValue, Sequence[SSAValue]], Sequence[SSAValue]],
    ) -> Sequence[SSAValue]:
        """A loop of so many trips; `body` gets the number of the trip and the carried values, and gives the next."""
        low, high, step = (self.index(bound) for bound in (0, trips, 1))
        outer, self.block = self.block, Block(arg_types=[INDEX, *(value.type for value in carried)])
        inner = self.block
        inner.add_op(scf.YieldOp(*body(inner.args[0], inner.args[1:])))
        self.block = outer
        loop = scf.ForOp(low, high, step, carried, inner)
        self.block.add_op(loop)
        return loop.results


def staged_gemm(
    m: int,
    n: int,
    k: int,
    block: tuple[int, int, int] = (64, 64, 32),
    warp: tuple[int, int] = (32, 32),
    stages: int = 3,
    pad: int = 8,
) -> ModuleOp:
    """``C = A @ B`` on matrix units: a: f16[m, k], b: f16[k, n], c: f32[m, n], row-major; n and k in multiples of 8.

    Slices of A and B come to shared memory by asynchronous copies, `stages` of them at a time (at least 2); rows there
    are padded. Warps take them from there by `load_matrix`. Any m; edges are copied as zeros and not stored.
    """
    (bm, bn, bk), (wm, wn) = block, warp
    warps = (bm // wm) * (bn // wn)
    threads, trips = WARP * warps, -(-k // bk)
    grid = [-(-n // bn), -(-m // bm)]
    on = KernelBuilder("staged_gemm", [memory(f16, m, k), memory(f16, k, n), memory(f32, m, n)], grid, [threads])
    a, b, c = on.arguments
    lines = (bk + pad, bn + pad)  # of a row in shared memory
    tiles = (on.shared(f16, stages, bm, lines[0]), on.shared(f16, stages, bk, lines[1]))
    thread = on.add(simt.ThreadIdOp(0))
    column0 = on.times(on.add(ProgramIdOp(0)), bn)
    row0 = on.times(on.add(ProgramIdOp(1)), bm)
    lane, number = on.modulo(thread, WARP), on.over(thread, WARP)
    warp_row, warp_column = on.times(on.over(number, bn // wn), wm), on.times(on.modulo(number, bn // wn), wn)

    def copy(view: int, slot: SSAValue, row: SSAValue | int, column: SSAValue | int) -> None:
        """A tile of a (0) or b (1) whose first element is [row, column], into a slot."""
        rows, columns = ((bm, bk), (bk, bn))[view]
        limits = ((m, k), (k, n))[view]
        chunks = columns // 8
        base = on.times(slot, rows * lines[view])
        for turn in range(-(-rows * chunks // threads)):
            chunk = on.sum(thread, turn * threads)
            in_row, in_column = on.over(chunk, chunks), on.times(on.modulo(chunk, chunks), 8)
            from_row, from_column = on.sum(row, in_row), on.sum(column, in_column)
            valid = None
            if limits[0] % rows or limits[1] % columns:
                inside = on.clamp(on.minus(limits[1], from_column), 0, 8)
                valid = on.add(SelectOp(on.less(from_row, limits[0]), inside, on.index(0)))
            source = on.sum(on.times(from_row, limits[1]), from_column)
            target = on.sum(base, on.times(in_row, lines[view]), in_column)
            start = simt.AsyncCopyOp((a, b)[view], source, tiles[view], target, 8, valid, bypass=True)
            if (turn + 1) * threads > rows * chunks:
                with on.when(on.less(chunk, rows * chunks)):
                    on.do(start)
            else:
                on.do(start)

    def stage(trip: SSAValue | int) -> None:
        slot, deep = on.modulo(trip, stages), on.times(trip, bk)
        copy(0, slot, row0, deep)
        copy(1, slot, deep, column0)

    def step(trip: SSAValue, sums: Sequence[SSAValue]) -> Sequence[SSAValue]:
        on.do(simt.WaitOp(stages - 2), simt.BarrierOp())
        ahead = on.sum(trip, stages - 1)
        with on.when(on.less(ahead, trips)):
            stage(ahead)
        on.do(simt.CommitOp())
        slot, found = on.modulo(trip, stages), list(sums)
        for inner in range(0, bk, 16):
            in_a = on.sum(on.times(slot, bm * lines[0]), on.times(warp_row, lines[0]), inner)
            in_b = on.sum(on.times(slot, bk * lines[1]), warp_column, inner * lines[1])
            half = on.modulo(lane, 16)
            row_a = on.sum(in_a, on.times(half, lines[0]), on.times(on.over(lane, 16), 8))
            row_b = on.sum(in_b, on.times(half, lines[1]))
            left = [
                on.add(simt.LoadMatrixOp(tiles[0], on.sum(row_a, i * lines[0]), 4)) for i in range(0, wm, 16)
            ]  # fmt: skip
            right = [on.add(simt.LoadMatrixOp(tiles[1], on.sum(row_b, j), 2, True)) for j in range(0, wn, 8)]
            for i, one in enumerate(left):
                for j, other in enumerate(right):
                    place = i * len(right) + j
                    found[place] = on.add(simt.MmaOp("mma_m16n8k16_f16_f32", one, other, found[place]))
        return found

    for trip in range(stages - 1):
        if trip < trips:
            stage(trip)
        on.do(simt.CommitOp())
    zero = on.number(0.0, f32, 4)
    sums = on.loop(trips, [zero] * (wm // 16 * (wn // 8)), step)
    first_row = on.sum(row0, warp_row, on.over(lane, 4))
    first_column = on.sum(column0, warp_column, on.times(on.modulo(lane, 4), 2))
    for place, total in enumerate(sums):
        row = on.sum(first_row, place // (wn // 8) * 16)
        column = on.sum(first_column, place % (wn // 8) * 8)
        tile = on.add(ReshapeOp(total, [2, 2]))
        bounds = []
        if m % bm or n % bn:
            bounds = [on.clamp(on.over(on.clamp(on.minus(m + 7, row), 0, m + 7), 8), 0, 2), on.minus(n, column)]
        on.do(StoreOp(tile, c, on.sum(on.times(row, n), column), [8 * n, 1], bounds, align=8))
    return on.module()


def fragment_gemm(m: int, n: int, k: int, block: tuple[int, int] = (32, 32), depth: int = 16) -> ModuleOp:
    """``C += A @ B`` with fragments whose layout is unspecified: a: f16[m, k], b: f16[k, n], c: f32[m, n], row-major.

    Sizes are multiples of the block's; slices are staged through registers, two barriers to a slice.
    """
    bm, bn = block
    warps = (bm // 16, bn // 16)
    threads = WARP * prod(warps)
    on = KernelBuilder("fragment_gemm", [memory(f16, m, k), memory(f16, k, n), memory(f32, m, n)],
                       [n // bn, m // bm], [WARP * warps[1], warps[0]])  # fmt: skip
    a, b, c = on.arguments
    record, line_a, line_b = "wmma_16x16x16_f16_f32", depth + 8, bn + 8
    shared_a, shared_b = on.shared(f16, bm, line_a), on.shared(f16, depth, line_b)
    x, y = on.add(simt.ThreadIdOp(0)), on.add(simt.ThreadIdOp(1))
    thread = on.sum(on.times(y, WARP * warps[1]), x)
    row0, column0 = on.times(on.add(ProgramIdOp(1)), bm), on.times(on.add(ProgramIdOp(0)), bn)
    row, column = on.times(y, 16), on.times(on.over(x, WARP), 16)
    place_c = on.sum(on.times(on.sum(row0, row), n), column0, column)
    line_c = on.index(n)

    def move(view: SSAValue, shared: SSAValue, start: SSAValue, columns: int, rows: int, line: int, wide: int) -> None:
        for turn in range(0, rows * columns // 2, threads):
            chunk = on.sum(thread, turn)
            i, j = on.over(chunk, columns // 2), on.times(on.modulo(chunk, columns // 2), 2)
            pair = on.add(LoadOp(view, on.sum(start, on.times(i, wide), j), [2], [1], align=4))
            on.do(StoreOp(pair, shared, on.sum(on.times(i, line), j), [1], align=4))

    def step(trip: SSAValue, sums: Sequence[SSAValue]) -> Sequence[SSAValue]:
        deep = on.times(trip, depth)
        move(a, shared_a, on.sum(on.times(row0, k), deep), depth, bm, line_a, k)
        move(b, shared_b, on.sum(on.times(deep, n), column0), bn, depth, line_b, n)
        on.do(simt.BarrierOp())
        total = sums[0]
        for inner in range(0, depth, 16):
            at_a, at_b = on.sum(on.times(row, line_a), inner), on.sum(column, inner * line_b)
            left = on.add(simt.LoadFragmentOp(record, "a", shared_a, at_a, on.index(line_a), 16))
            right = on.add(simt.LoadFragmentOp(record, "b", shared_b, at_b, on.index(line_b), 16))
            total = on.add(simt.MmaOp(record, left, right, total))
        on.do(simt.BarrierOp())
        return [total]

    first = on.add(simt.LoadFragmentOp(record, "c", c, place_c, line_c, 8))
    (total,) = on.loop(k // depth, [first], step)
    on.do(simt.StoreFragmentOp(record, total, c, place_c, line_c))
    return on.module()


def transpose(rows: int, columns: int, tile: int = 16) -> ModuleOp:
    """``y = x.T`` through shared memory: x: f32[rows, columns], y: f32[columns, rows]; any sizes."""
    grid = [-(-columns // tile), -(-rows // tile)]
    arguments = [memory(f32, rows, columns), memory(f32, columns, rows)]
    on = KernelBuilder("transpose", arguments, grid, [tile, tile])
    x, y = on.arguments
    shared = on.shared(f32, tile, tile + 1)
    i, j = on.add(simt.ThreadIdOp(1)), on.add(simt.ThreadIdOp(0))
    corner = [on.times(on.add(ProgramIdOp(axis)), tile) for axis in (1, 0)]

    def place(first: SSAValue, second: SSAValue, extents: tuple[int, int]) -> tuple[SSAValue, SSAValue]:
        """Where an element lies, and whether it is one."""
        inside = on.add(arith.AndIOp(on.less(first, extents[0]), on.less(second, extents[1]), i1))
        return on.sum(on.times(first, extents[1]), second), inside

    offset, inside = place(on.sum(corner[0], i), on.sum(corner[1], j), (rows, columns))
    number = on.add(LoadOp(x, offset, mask=inside))
    on.do(StoreOp(number, shared, on.sum(on.times(i, tile + 1), j)), simt.BarrierOp())
    number = on.add(LoadOp(shared, on.sum(on.times(j, tile + 1), i)))
    offset, inside = place(on.sum(corner[1], i), on.sum(corner[0], j), (columns, rows))
    on.do(StoreOp(number, y, offset, mask=inside))
    return on.module()


def row_sums(rows: int, columns: int, warps: int = 2) -> ModuleOp:
    """``y[i] = sum_j x[i, j]``, a block per row: x: f32[rows, columns], y: f32[rows]; any sizes.

    Threads add every so many elements, warps add by shuffles, one thread adds what the warps have.
    """
    threads = WARP * warps
    on = KernelBuilder("row_sums", [memory(f32, rows, columns), memory(f32, rows)], [rows], [threads])
    x, y = on.arguments
    shared = on.shared(f32, warps)
    thread, row = on.add(simt.ThreadIdOp(0)), on.add(ProgramIdOp(0))

    def step(trip: SSAValue, sums: Sequence[SSAValue]) -> Sequence[SSAValue]:
        column = on.sum(on.times(trip, threads), thread)
        number = on.add(LoadOp(x, on.sum(on.times(row, columns), column), mask=on.less(column, columns)))
        return [on.add(arith.AddfOp(sums[0], number))]

    (total,) = on.loop(-(-columns // threads), [on.number(0.0, f32)], step)
    distance = WARP // 2
    while distance:
        other = on.add(simt.ShuffleOp("xor", total, on.index(distance)))
        total = on.add(arith.AddfOp(total, other))
        distance //= 2
    first_lane = on.less(on.modulo(thread, WARP), 1)
    with on.when(first_lane):
        on.do(StoreOp(total, shared, on.over(thread, WARP)))
    on.do(simt.BarrierOp())
    with on.when(on.less(thread, 1)):
        sums = on.add(LoadOp(shared, on.index(0), [warps], [1]))
        total = on.add(ReshapeOp(on.add(ReduceOp("sum", sums, 0)), []))
        on.do(StoreOp(total, y, row))
    return on.module()


def histogram(elements: int, bins: int, blocks: int = 2, threads: int = 64) -> ModuleOp:
    """``y[x[i]] += 1``: x: i32[elements] in 0..bins-1, y: i32[bins]; counts in shared memory, then in global memory."""
    on = KernelBuilder("histogram", [memory(i32, elements), memory(i32, bins)], [blocks], [threads])
    x, y = on.arguments
    shared = on.shared(i32, bins)
    thread = on.add(simt.ThreadIdOp(0))
    zero, one = (on.add(arith.ConstantOp(IntegerAttr(value, i32))) for value in (0, 1))

    def clear(trip: SSAValue, _: Sequence[SSAValue]) -> Sequence[SSAValue]:
        place = on.sum(on.times(trip, threads), thread)
        on.do(StoreOp(zero, shared, place, mask=on.less(place, bins)))
        return []

    def count(trip: SSAValue, _: Sequence[SSAValue]) -> Sequence[SSAValue]:
        place = on.sum(on.times(on.sum(on.times(trip, blocks), on.add(ProgramIdOp(0))), threads), thread)
        inside = on.less(place, elements)
        bin_ = on.add(arith.IndexCastOp(on.add(LoadOp(x, place, mask=inside)), INDEX))
        on.do(simt.AtomicOp("add", one, shared, bin_, inside))
        return []

    def flush(trip: SSAValue, _: Sequence[SSAValue]) -> Sequence[SSAValue]:
        place = on.sum(on.times(trip, threads), thread)
        inside = on.less(place, bins)
        on.do(simt.AtomicOp("add", on.add(LoadOp(shared, place, mask=inside)), y, place, inside))
        return []

    on.loop(-(-bins // threads), [], clear)
    on.do(simt.BarrierOp())
    on.loop(-(-elements // (blocks * threads)), [], count)
    on.do(simt.BarrierOp())
    on.loop(-(-bins // threads), [], flush)
    return on.module()
