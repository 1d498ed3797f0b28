"""Random kernels of blocks for tests: legal tile programs for all passes of GPUs, from a seed.

The same seed gives the same kernel and the same buffers. Beside the steps of `random` there are products on matrix
instructions with loops over slices of k, and loops that stream tiles. Every result is the same in any order of
additions: what is summed, multiplied over or contracted are small whole numbers. No two stores meet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import (
    AnyFloat,
    FloatAttr,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
)
from xdsl.ir import Attribute, Block, SSAValue

from tests.random_kernels import FLOATS, INPUT_ELEMENTS, INTEGERS, STEPS, STORED, Generator, RandomKernel
from tilewright.dataclass import dataclass
from tilewright.intrinsics.registry import standard
from tilewright.kernel.dialect import (
    INDEX,
    REDUCTIONS,
    BroadcastOp,
    BufferOp,
    CastOp,
    DotOp,
    FuncOp,
    LaunchOp,
    LoadOp,
    MainOp,
    ProgramIdOp,
    ReduceOp,
    ReshapeOp,
    ReturnOp,
    StoreOp,
    Tf32Op,
    element,
    shape,
)
from tilewright.kernel.elements import Array, dtype_of
from tilewright.kernel.records import FMA
from tilewright.kernel.simt import THREE_PRODUCTS

SHAPES = ((), (1,), (8,), (17,), (3, 5), (4, 1), (1, 5), (4, 16), (2, 3, 4), (8, 8), (64,))
PART_ELEMENTS = 512  # of an output, for each program; an eighth of that where there are few
OUTPUTS = 4
FEW = 8  # steps: fewer are for quick tests
DOTS = ((f16, f16, f32), (bf16, bf16, f32), (f32, f32, f32), (f64, f64, f64), (i8, i8, i32), (i16, i16, i32))

# Instructions for products whose sums are exact: those that add in bf16 are not.
PRODUCTS = (
    "mma_m16n8k8_f16_f32", "mma_m16n8k8_f16_f16", "mma_m8n8k16_s8_s32", "mma_m16n8k16_f16_f32", "mma_m16n8k16_f16_f16",
    "mma_m16n8k16_bf16_f32", "mma_m16n8k32_s8_s32", "mma_m8n8k4_f64_f64", "mma_m16n8k4_tf32_f32",
    "mma_m16n8k4_f64_f64", "mma_m16n8k8_f64_f64", "mma_m16n8k16_f64_f64", "mma_m16n8k8_tf32_f32",
    "wmma_16x16x8_tf32_f32",
    "wmma_16x16x16_f16_f32", "wmma_16x16x16_f16_f16", "wmma_16x16x16_bf16_f32",
    "wmmar3_16x16x16_f16_f32", "wmmar3_16x16x16_f16_f16", "wmmar3_16x16x16_bf16_f32", "wmmar3_16x16x16_s8_s32",
    "wmmar4_16x16x16_f16_f32", "wmmar4_16x16x16_f16_f16", "wmmar4_16x16x16_bf16_f32", "wmmar4_16x16x16_s8_s32",
    "mfma_16x16x16_f16_f32", "mfma_16x16x16_bf16_f32", "mfma_32x32x8_f16_f32", "mfma_32x32x8_bf16_f32",
    "vmfma_16x16x32_f16_f32", "vmfma_32x32x16_f16_f32", "mfma_16x16x32_s8_s32", "mfma_32x32x16_s8_s32",
    "mfma_16x16x4_f32_f32", "mfma_16x16x4_f64_f64",
)  # fmt: skip
_ELEMENTS = {"f16": f16, "bf16": bf16, "f32": f32, "tf32": f32, "f64": f64, "i8": i8, "i32": i32}
LARGEST = 5000  # of the numbers in a factor that is split: 13 bits, and sums of them below 2^24


@dataclass(frozen=True)
class Product:
    """c[m, n] = a[m, k] b[k, n] in tiles of `block`, of which a program has one of c; operands perhaps by columns.

    On what reads tf32, `reading` says how f32 becomes that: it is, it is rounded in the program, or it is split.
    """

    intrinsic: str
    sizes: tuple[int, int, int]
    block: tuple[int, int, int]
    by_columns: tuple[bool, bool]
    in_memory: bool  # the sum, from trip to trip
    reading: str = ""  # "nearest" or "tf32x3"


def random_blocks(seed: int, size: int = 24, intrinsics: Sequence[str] = (), large: bool = False) -> RandomKernel:
    """A kernel of about `size` steps, with products on these intrinsics; with `large`, also on wide tiles.

    The module has `@zeros`, which clears the outputs, `@random`, and a main that launches both.
    """
    programs = (1, 2, 3) if size >= FEW else (1, 2)  # along each axis of the grid
    return Blocks(random.Random(seed), intrinsics, large, programs).generate(size)


class Blocks(Generator):
    """Builds one kernel; the elements of its inputs are four random types, then those of its products."""

    shapes = SHAPES
    uneven = False

    def __init__(self, rng: random.Random, intrinsics: Sequence[str], large: bool, programs: Sequence[int]) -> None:
        super().__init__(rng, False)
        self.grid = [rng.choice(programs) for _ in range(2)]
        few = len(programs) < 3
        self.part = PART_ELEMENTS // 8 if few else PART_ELEMENTS
        counts = (0, 1) if few else (0, 1, 1, 2)
        self.products = [self.product(rng, intrinsics, large, programs) for _ in range(rng.choice(counts))]
        self.inputs = [_memory(type_, INPUT_ELEMENTS) for type_ in self.elements]
        self.outputs = [_memory(type_, prod(self.grid) * self.part) for type_ in self.elements]
        for each in self.products:
            (m, n, k), (type_, total) = each.sizes, _elements(each.intrinsic)
            self.inputs += [MemRefType(type_, [max(m * k, INPUT_ELEMENTS)])]
            self.inputs += [MemRefType(type_, [max(n * k, INPUT_ELEMENTS)])]
            self.outputs.append(MemRefType(total, [m * n]))
            self.elements += [type_, type_]
        self.kernel = FuncOp("random", [*self.inputs, *self.outputs], self.grid)
        self.block = self.kernel.body.block
        self.used = [0] * OUTPUTS

    def product(self, rng: random.Random, intrinsics: Sequence[str], large: bool, programs: Sequence[int]) -> Product:
        """A product whose tiles of c are as many as there are programs, the last ones perhaps cut off."""
        intrinsic = rng.choice([name for name in intrinsics if name in PRODUCTS] or [FMA])
        if rng.random() < 0.15:
            intrinsic = FMA
        large &= _elements(intrinsic)[0] != f64  # tiles of as many bytes as others
        extents = (16, 32, 64, 128) if large else (16, 32)
        own = _extents(intrinsic)
        rows, columns, depths = (
            [extent for extent in choice if extent >= least]
            for choice, least in zip((extents, extents[:-1], extents[:3]), own, strict=True)
        )
        block = (rng.choice(rows), rng.choice(columns or [own[1]]), rng.choice(depths))
        if intrinsic == FMA:
            block = (rng.choice((4, 16)), rng.choice((8, 16)), rng.choice((4, 8)))
        step = rng.choice((1, 2, 8))
        trips = rng.choice((1, 2, 3, 5) if len(programs) > 2 else (1, 2, 3))
        whole = (self.grid[0] * block[0], self.grid[1] * block[1], trips * block[2])
        ragged = rng.random() < 0.5
        cut = [rng.randrange(0, extent, step) if ragged else 0 for extent in block]
        m, n, k = (extent - rest for extent, rest in zip(whole, cut, strict=True))
        by_columns = (rng.random() < 0.3, rng.random() < 0.3)
        reads_tf32 = intrinsic != FMA and standard().find(intrinsic).sources[0].dtype == "tf32"
        reading = rng.choice(("", "nearest", THREE_PRODUCTS)) if reads_tf32 else ""
        return Product(intrinsic, (m, n, k), block, by_columns, rng.random() < 0.25, reading)

    def generate(self, size: int) -> RandomKernel:
        self.linear = self.number_parts()
        self.start = self.add(arith.MuliOp(self.linear, self.index(self.part)))
        if self.rng.random() < 0.7:
            self.steps(self.rng.randrange(size))
        for number in range(len(self.products)):
            self.multiply(number)
        if not self.products or self.rng.random() < 0.7:
            self.steps(self.rng.randrange(size) + (not self.products) * size)
        for value in self.rng.sample(self.pool, min(len(self.pool), size // 3)):
            self.store(value)
        self.block.add_op(ReturnOp())
        return RandomKernel(ModuleOp([self.zeros(), self.kernel, self.main()]), self.data(), tuple(self.outputs))

    def zeros(self) -> FuncOp:
        """A kernel that clears the outputs, a part of each in a program."""
        kernel = FuncOp("zeros", list(self.outputs), self.grid)
        outer, self.block = self.block, kernel.body.block
        ids = [self.add(ProgramIdOp(axis)) for axis in range(2)]
        program = self.add(arith.AddiOp(self.add(arith.MuliOp(ids[0], self.index(self.grid[1]))), ids[1]))
        for view, type_ in zip(kernel.body.block.args, self.outputs, strict=True):
            elements = type_.get_shape()[0]
            count = -(-elements // prod(self.grid))
            offset = self.add(arith.MuliOp(program, self.index(count)))
            left = self.add(arith.SubiOp(self.index(elements), offset))
            scalar: Any = self.add(arith.ConstantOp(_zero(type_.element_type)))
            self.block.add_op(StoreOp(self.add(BroadcastOp(scalar, [count])), view, offset, [1], [left]))
        self.block.add_op(ReturnOp())
        self.block = outer
        return kernel

    def main(self) -> MainOp:
        main = MainOp(0, 0)
        buffers = [BufferOp("input", number, type_) for number, type_ in enumerate(self.inputs)]
        buffers += [BufferOp("output", number, type_) for number, type_ in enumerate(self.outputs)]
        results = [buffer.result for buffer in buffers]
        zeros = LaunchOp("zeros", results[len(self.inputs) :])
        main.body.block.add_ops([*buffers, zeros, LaunchOp("random", results)])
        return main

    def data(self) -> tuple[Array, ...]:
        found = list(super().data())
        generator = np.random.default_rng(self.rng.getrandbits(32))
        for number in range(OUTPUTS, len(self.inputs)):
            type_, reading = self.inputs[number], self.products[(number - OUTPUTS) // 2].reading
            most = LARGEST if reading == THREE_PRODUCTS and number % 2 else 3
            numbers = generator.integers(-most, most + 1, type_.get_shape()[0])
            if reading == "nearest":
                numbers = numbers * (1 + generator.integers(-1, 2, numbers.shape) * 2.0**-13)
            found[number] = numbers.astype(dtype_of(type_))
        return tuple(found)

    def small(self, extents: tuple[int, ...], type_: Attribute, limit: float = 3.0) -> SSAValue:
        """Whole numbers whose sums and products are exact, or NaN; integers are so anyway."""
        if not isinstance(type_, AnyFloat):
            return self.make(extents, type_)
        wide = type_ if type_ in (f32, f64) else f32
        value = self.add(math.RoundEvenOp(self.make(extents, wide)))
        for kind, number in ((arith.MaximumfOp, -limit), (arith.MinimumfOp, limit), (arith.AddfOp, 0.0)):
            scalar: SSAValue = self.add(arith.ConstantOp(FloatAttr(number, wide)))
            value = self.add(kind(value, self.add(BroadcastOp(scalar, extents)) if extents else scalar))
        return value if wide == type_ else self.add(CastOp(value, type_))

    # Steps ------------------------------------------------------------------------------------------------------

    def steps(self, count: int) -> None:
        for _ in range(count):
            getattr(self, self.rng.choice(_STEPS))()

    def shape_and(self, types: Sequence[Attribute]) -> tuple[tuple[int, ...], Attribute]:
        """At times the shape of a value that there is, which may be that of a product."""
        extents, type_ = super().shape_and(types)
        if self.rng.random() < 0.3 and self.pool:
            extents = shape(self.rng.choice(self.pool))
        return extents, type_

    def reshape(self) -> None:
        extents, type_ = self.shape_and(STORED)
        count = prod(extents)
        targets = [(1, *extents), (*extents, 1)]
        if count & (count - 1) == 0:
            targets += [(count,), (1, count), *([(8, count // 8)] if count % 8 == 0 else [])]
        value = self.add(ReshapeOp(self.make(extents, type_), self.rng.choice(targets)))
        self.pool.append(value)
        self.keep(ReshapeOp(value, extents))

    def broadcast(self) -> None:
        extents, type_ = self.shape_and(STORED)
        source = tuple(self.rng.choice((1, extent)) for extent in extents)
        if self.rng.random() < 0.2:
            source = ()
        if source != extents:
            self.keep(BroadcastOp(self.make(source, type_), extents))

    def reduce(self) -> None:
        extents, type_ = self.shape_and((*FLOATS, *INTEGERS))
        if not extents:
            return
        kind, axis = self.rng.choice(REDUCTIONS), self.rng.randrange(len(extents))
        if not isinstance(type_, AnyFloat):
            self.keep(ReduceOp(kind, self.make(extents, type_), axis, unsigned=self.rng.random() < 0.3))
        elif kind in ("max", "min"):
            self.keep(ReduceOp(kind, self.make(extents, type_), axis))
        else:
            self.keep(ReduceOp(kind, self.small(extents, type_, 1.0 if kind == "prod" else 3.0), axis))

    def dot(self) -> None:
        """A product of tiles by multiply-adds."""
        a_type, b_type, c_type = self.rng.choice(DOTS)
        m, n, k = self.rng.choice(((3, 5, 8), (1, 1, 4), (4, 16, 4), (4, 1, 8), (8, 8, 8)))
        operands = (self.small((m, k), a_type), self.small((k, n), b_type), self.small((m, n), c_type))
        unsigned = self.rng.choice(("", "a", "b", "ab")) if not isinstance(a_type, AnyFloat) else ""
        self.keep(DotOp(FMA, *operands, unsigned=unsigned, precision=self.precision(a_type)))

    def scratch(self) -> None:
        """Nothing: tiles of a block have no memory of their own (`memory` asks for some)."""

    def stream(self) -> None:
        """A loop that reads a tile after the other at places on a line, and keeps what is largest or the sum."""
        number = self.rng.randrange(len(self.inputs))
        view, type_ = self.kernel.body.block.args[number], self.elements[number]
        extents = self.rng.choice(((8,), (16,), (4, 4), (2, 8)))
        count, trips = prod(extents), self.rng.choice((1, 2, 4))
        sum_type = f32 if type_ == bf16 else type_
        start = self.make(extents, sum_type)
        offset = self.rng.randrange(0, INPUT_ELEMENTS - trips * count + 1, self.rng.choice((1, 4)))
        bounds = [self.clamped(0, extent) for extent in extents] if self.rng.random() < 0.3 else []
        low, high, step = (self.index(number) for number in (offset, offset + trips * count, count))
        block = Block(arg_types=[INDEX, start.type])
        outer, self.block = self.block, block
        align = 4 if offset % 4 == 0 and self.rng.random() < 0.5 else None
        value = self.add(LoadOp(view, block.args[0], extents, self.strides(extents, False), bounds, None, align))
        value = value if type_ == sum_type else self.add(CastOp(value, sum_type))
        kind: Any = self.rng.choice((arith.MaximumfOp, arith.MinimumfOp, arith.MulfOp))
        if not isinstance(type_, AnyFloat):
            kind = self.rng.choice((arith.AddiOp, arith.MaxSIOp, arith.XOrIOp))
        block.add_op(scf.YieldOp(self.add(kind(block.args[1], value))))
        self.block = outer
        loop = scf.ForOp(low, high, step, [start], block)
        self.block.add_op(loop)
        self.pool.extend(loop.results)

    def multiply(self, number: int) -> None:
        """The loop over slices of k of a product, and a store of its result."""
        each = self.products[number]
        (m, n, k), (bm, bn, bk), views = each.sizes, each.block, self.kernel.body.block.args
        a, b = (views[OUTPUTS + 2 * number + operand] for operand in range(2))
        c = self.output_views()[OUTPUTS + number]
        total = _elements(each.intrinsic)[1]
        i, j = (self.times(views_id, extent) for views_id, extent in zip(self.ids(), (bm, bn), strict=True))
        ragged = any(extent % tile for extent, tile in zip(each.sizes, each.block, strict=True))
        ragged |= self.rng.random() < 0.2
        down, right = (self.add(arith.SubiOp(self.index(size), at)) for size, at in ((m, i), (n, j)))
        place = self.add(arith.AddiOp(self.times(i, n), j))
        bounds = [down, right] if ragged else []
        strides = ((1, m) if each.by_columns[0] else (k, 1), (1, k) if each.by_columns[1] else (n, 1))
        start = self.add(BroadcastOp(self.add(arith.ConstantOp(_zero(total))), [bm, bn]))
        carried = [] if each.in_memory else [start]
        block = Block(arg_types=[INDEX, *(value.type for value in carried)])
        low, high, step = (self.index(value) for value in (0, k, bk))
        outer, self.block = self.block, block
        at = block.args[0]
        left = self.add(arith.SubiOp(self.index(k), at))
        tiles = []
        for view, (rows, columns), own, places, limits in (
            (a, (bm, bk), strides[0], (i, at), (down, left)),
            (b, (bk, bn), strides[1], (at, j), (left, right)),
        ):
            offset = self.add(arith.AddiOp(self.times(places[0], own[0]), self.times(places[1], own[1])))
            align = _align(view.type, max(own), (bm, bn, bk))
            tiles.append(self.add(LoadOp(view, offset, (rows, columns), own, limits if ragged else (), None, align)))
        if each.reading == "nearest":
            tiles = [self.add(Tf32Op("nearest", tile)) for tile in tiles]
        precision = each.reading if each.reading == THREE_PRODUCTS else ""
        if each.in_memory:
            before = self.add(LoadOp(c, place, (bm, bn), (n, 1), bounds))
            after = self.add(DotOp(each.intrinsic, tiles[0], tiles[1], before, precision=precision))
            block.add_ops([StoreOp(after, c, place, (n, 1), bounds), scf.YieldOp()])
        else:
            after = self.add(DotOp(each.intrinsic, tiles[0], tiles[1], block.args[1], precision=precision))
            block.add_op(scf.YieldOp(after))
        self.block = outer
        loop = scf.ForOp(low, high, step, carried, block)
        self.block.add_op(loop)
        if not each.in_memory:
            self.block.add_op(StoreOp(loop.results[0], c, place, (n, 1), bounds))
            self.pool.append(loop.results[0])

    def store(self, value: SSAValue | None = None) -> None:
        """A store to where no other one does, of this value or any."""
        value = value or self.rng.choice(self.pool)
        number = self.rng.randrange(OUTPUTS)
        if element(value) == INDEX:
            return
        extents = shape(value)
        if prod(extents) > self.part - self.used[number]:
            return
        if element(value) != self.elements[number]:
            value = self.add(CastOp(value, self.elements[number]))
        offset = self.add(arith.AddiOp(self.start, self.index(self.used[number])))
        self.used[number] += prod(extents)
        strides, bounds, mask = self.strides(extents, False), self.bounds(extents), self.mask(extents)
        self.block.add_op(StoreOp(value, self.output_views()[number], offset, strides, bounds, mask))

    # Building ---------------------------------------------------------------------------------------------------

    def ids(self) -> list[SSAValue]:
        return [self.add(ProgramIdOp(axis)) for axis in range(2)]

    def times(self, value: SSAValue, number: int) -> SSAValue:
        return value if number == 1 else self.add(arith.MuliOp(value, self.index(number)))


def _elements(intrinsic: str) -> tuple[Any, Any]:
    """What a product on an instruction multiplies, and adds up."""
    if intrinsic == FMA:
        return f32, f32
    a, _, c = standard().find(intrinsic).operands
    return _ELEMENTS[a.dtype], _ELEMENTS[c.dtype]


def _extents(intrinsic: str) -> tuple[int, ...]:
    """The smallest tile of a product on an instruction: rows, columns, terms."""
    return (1, 1, 1) if intrinsic == FMA else tuple(standard().find(intrinsic).extents.values())


def _memory(type_: Any, elements: int) -> MemRefType[Any]:
    return MemRefType(type_, [elements])


def _zero(type_: Any) -> FloatAttr[Any] | IntegerAttr[Any]:
    return FloatAttr(0.0, type_) if isinstance(type_, AnyFloat) else IntegerAttr(0, type_)


def _align(type_: Attribute, stride: int, block: tuple[int, int, int]) -> int | None:
    """16 where every tile begins at a multiple of so many bytes."""
    each = dtype_of(type_).itemsize
    return 16 if all(extent * each % 16 == 0 for extent in (stride, *block)) else None


_STEPS = (*(step.__name__ for step in STEPS if step.__name__ not in ("scratch", "prefetch")), "reduce", "stream")
