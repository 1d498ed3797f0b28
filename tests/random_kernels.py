"""Random kernels for tests: legal programs that use every operation of the dialect, from a seed.

The same seed gives the same kernel and the same buffers. No access leaves its view, every program writes only its own
part of each output, and everything is written before it is read, so that the interpreter runs them without complaint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    TensorType,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tilewright.dataclass import dataclass
from tilewright.kernel.dialect import (
    INDEX,
    PREDICATES,
    REDUCTIONS,
    AllocOp,
    BroadcastOp,
    BufferOp,
    CastOp,
    CompareOp,
    DotOp,
    FuncOp,
    GatherOp,
    IotaOp,
    LaunchOp,
    LoadOp,
    MainOp,
    NormalCdfOp,
    NormalCdfTanhOp,
    PrefetchOp,
    ProgramIdOp,
    ReduceOp,
    RemainderOp,
    ReshapeOp,
    ReturnOp,
    SelectOp,
    SigmoidOp,
    StoreOp,
    Tf32Op,
    element,
    shape,
    tile_type,
)
from tilewright.kernel.elements import Array, dtype_of
from tilewright.options import INPUT_PRECISIONS

FLOATS = (f16, f32, f64)
INTEGERS = (i8, i16, i32, i64)
STORED = (*FLOATS, bf16, *INTEGERS)
SHAPES = ((), (1,), (4,), (17,), (3, 5), (4, 1), (1, 5), (4, 16), (2, 3, 4))
INPUT_ELEMENTS = 96
PART_ELEMENTS = 80  # of an output, for each program

FLOAT_BINARY = (
    arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.DivfOp, arith.MaximumfOp, arith.MinimumfOp, RemainderOp,
)  # fmt: skip
FLOAT_UNARY = (arith.NegfOp, math.AbsFOp, math.SqrtOp, math.FloorOp, math.CeilOp, math.TruncOp, math.RoundEvenOp)
FLOAT_FUNCTIONS = (
    math.ExpOp, math.LogOp, math.TanhOp, math.ErfOp, math.SinOp, math.CosOp, math.TanOp, math.AsinOp, math.AcosOp,
    math.AtanOp, math.SinhOp, math.CoshOp, math.AsinhOp, math.AcoshOp, math.AtanhOp, math.ExpM1Op, math.Log1pOp,
    SigmoidOp, NormalCdfOp, NormalCdfTanhOp,
)  # fmt: skip
INTEGER_BINARY = (
    arith.AddiOp, arith.SubiOp, arith.MuliOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.DivSIOp, arith.DivUIOp,
    arith.RemSIOp, arith.RemUIOp, arith.FloorDivSIOp, arith.ShLIOp, arith.ShRSIOp, arith.ShRUIOp, arith.MaxSIOp,
    arith.MinSIOp, arith.MaxUIOp, arith.MinUIOp,
)  # fmt: skip
DOTS = ((f16, f16, f32), (bf16, bf16, f32), (f32, f32, f32), (f64, f64, f64), (i8, i8, i32), (i16, i16, i32))


@dataclass(frozen=True)
class RandomKernel:
    """A module with one kernel, `@random`, and a `tile.main` that launches it on these inputs and outputs."""

    module: ModuleOp
    inputs: tuple[Array, ...]
    output_types: tuple[MemRefType[Attribute], ...]

    def outputs(self) -> list[Array]:
        """Fresh zeros for every output."""
        return [np.zeros(type_.get_shape(), dtype_of(type_)) for type_ in self.output_types]


def random_kernel(seed: int, size: int = 40, functions: bool = True) -> RandomKernel:
    """A kernel of about `size` operations; without `functions`, only of correctly rounded ones."""
    return Generator(random.Random(seed), functions).generate(size)


class Generator:
    """Builds one kernel step by step; `pool` holds the values that steps may use."""

    shapes: Sequence[tuple[int, ...]] = SHAPES
    uneven = True  # constant tiles of different elements

    def __init__(self, rng: random.Random, functions: bool) -> None:
        self.rng, self.functions = rng, functions
        self.grid = [rng.choice((1, 2, 3)) for _ in range(rng.choice((1, 2)))]
        self.elements = rng.sample(STORED, 4)
        self.inputs = [MemRefType(type_, [INPUT_ELEMENTS]) for type_ in self.elements]
        parts = prod(self.grid) * PART_ELEMENTS
        self.outputs = [MemRefType(type_, [parts]) for type_ in self.elements]
        self.kernel = FuncOp("random", [*self.inputs, *self.outputs], self.grid)
        self.block = self.kernel.body.block
        self.pool: list[SSAValue] = []
        self.depth = 0

    def generate(self, size: int) -> RandomKernel:
        self.linear = self.number_parts()
        self.start = self.add(arith.MuliOp(self.linear, self.index(PART_ELEMENTS)))
        for view, type_ in zip(self.output_views(), self.outputs, strict=True):
            zero = self.add(BroadcastOp(self.number(type_.element_type), [PART_ELEMENTS]))
            self.add(StoreOp(zero, view, self.start, [1]))
        self.steps(size)
        for value in self.rng.sample(self.pool, min(len(self.pool), size // 4)):
            self.store(value)
        self.block.add_op(ReturnOp())
        return RandomKernel(ModuleOp([self.kernel, self.main()]), self.data(), tuple(self.outputs))

    def number_parts(self) -> SSAValue:
        """The number of this program's parts of the outputs."""
        ids = [self.add(ProgramIdOp(axis)) for axis in range(len(self.grid))]
        self.pool.extend(ids)
        linear = ids[0]
        for axis, extent in enumerate(self.grid[1:], start=1):
            linear = self.add(arith.AddiOp(self.add(arith.MuliOp(linear, self.index(extent))), ids[axis]))
        return linear

    def main(self) -> MainOp:
        main = MainOp(0, 0)
        buffers = [BufferOp("input", number, type_) for number, type_ in enumerate(self.inputs)]
        buffers += [BufferOp("output", number, type_) for number, type_ in enumerate(self.outputs)]
        main.body.block.add_ops([*buffers, LaunchOp("random", [buffer.result for buffer in buffers])])
        return main

    def data(self) -> tuple[Array, ...]:
        """Random inputs, with zeros, infinities and NaN among them."""
        generator = np.random.default_rng(self.rng.getrandbits(32))
        arrays = []
        for type_ in self.elements:
            dtype = dtype_of(type_)
            if dtype.kind == "i":
                limits = np.iinfo(dtype)
                array = generator.integers(limits.min, limits.max, INPUT_ELEMENTS, dtype, endpoint=True)
                array[::3] = generator.integers(-4, 4, len(array[::3]))
            else:
                array = (generator.standard_normal(INPUT_ELEMENTS) * 4).astype(dtype)
                array[:6] = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]).astype(dtype)
                generator.shuffle(array)
            arrays.append(array)
        return tuple(arrays)

    # Building ---------------------------------------------------------------------------------------------------

    def add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0] if op.results else self.start

    def keep(self, op: Operation) -> None:
        self.pool.append(self.add(op))

    def index(self, value: int) -> SSAValue:
        return self.add(arith.ConstantOp(IntegerAttr(value, INDEX)))

    def number(self, type_: Attribute) -> SSAValue:
        """A scalar constant; small numbers and the neutral elements are frequent, for the passes."""
        if isinstance(type_, IndexType | IntegerType):
            width = type_.width.data if isinstance(type_, IntegerType) else 6
            value = self.rng.choice((0, 1, 2, -1, 5, self.rng.getrandbits(width) - (1 << (width - 1))))
            if width == 1:
                value &= 1
            return self.add(arith.ConstantOp(IntegerAttr(value, type_)))
        number = self.rng.choice((0.0, -0.0, 1.0, -1.0, 0.5, 3.0, self.rng.uniform(-8, 8), float("inf"), float("nan")))
        assert isinstance(type_, AnyFloat)
        return self.add(arith.ConstantOp(FloatAttr(number, type_)))

    def make(self, extents: tuple[int, ...], type_: Attribute) -> SSAValue:
        """A value of this type: one that exists, or a constant, or a cast of another."""
        wanted = tile_type(extents, type_)
        existing = [value for value in self.pool if value.type == wanted]
        if existing and self.rng.random() < 0.8:
            return self.rng.choice(existing)
        similar = [value for value in self.pool if shape(value) == extents and element(value) != INDEX]
        if similar and self.rng.random() < 0.7 and type_ != INDEX:
            return self.add(CastOp(self.rng.choice(similar), type_, unsigned=self.rng.random() < 0.3))
        if not extents:
            return self.number(type_)
        if self.rng.random() < 0.3 and not isinstance(type_, IndexType):
            count = self.rng.choice((1, prod(extents))) if self.uneven else 1
            if isinstance(type_, IntegerType):
                values: list[float] = [self.rng.choice((0, 1)) for _ in range(count)]
            else:
                values = [self.rng.choice((0.0, 1.0, -2.5)) for _ in range(count)]
            tile: Any = TensorType(type_, list(extents))
            return self.add(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(tile, values)))
        return self.add(BroadcastOp(self.number(type_), extents))

    def clamped(self, low: int, high: int) -> SSAValue:
        """An index between two numbers."""
        if self.rng.random() < 0.5:
            return self.index(self.rng.randint(low, high))
        value = self.make((), INDEX)
        return self.add(arith.MinSIOp(self.add(arith.MaxSIOp(value, self.index(low))), self.index(high)))

    def output_views(self) -> Sequence[SSAValue]:
        return self.kernel.body.block.args[len(self.inputs) :]

    # Steps ------------------------------------------------------------------------------------------------------

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.rng.choice(STEPS)(self)

    def shape_and(self, types: Sequence[Attribute]) -> tuple[tuple[int, ...], Attribute]:
        return self.rng.choice(self.shapes), self.rng.choice(types)

    def arithmetic(self) -> None:
        extents, type_ = self.shape_and((*FLOATS, *INTEGERS, i1, INDEX))
        if type_ == INDEX:
            extents = ()
        if isinstance(type_, IntegerType | IndexType):
            kind = self.rng.choice(INTEGER_BINARY)
            self.keep(kind(self.make(extents, type_), self.make(extents, type_)))
        elif self.rng.random() < 0.6:
            self.keep(self.rng.choice(FLOAT_BINARY)(self.make(extents, type_), self.make(extents, type_)))
        else:
            self.keep(self.rng.choice(FLOAT_UNARY)(self.make(extents, type_)))

    def function(self) -> None:
        extents, type_ = self.shape_and(FLOATS)
        if not self.functions:
            self.keep(math.AbsIOp(self.make(extents, i32)))
        elif self.rng.random() < 0.2:
            self.keep(math.PowFOp(self.make(extents, type_), self.make(extents, type_)))
        elif self.rng.random() < 0.2:
            self.keep(math.FmaOp(self.make(extents, type_), self.make(extents, type_), self.make(extents, type_)))
        else:
            self.keep(self.rng.choice(FLOAT_FUNCTIONS)(self.make(extents, type_)))

    def compare(self) -> None:
        extents, type_ = self.shape_and((*FLOATS, *INTEGERS, i1))
        lhs, rhs = self.make(extents, type_), self.make(extents, type_)
        self.keep(CompareOp(self.rng.choice(PREDICATES), lhs, rhs, unsigned=self.rng.random() < 0.3))

    def select(self) -> None:
        extents, type_ = self.shape_and((*STORED, i1))
        condition = self.make(self.rng.choice(((), extents)), i1)
        self.keep(SelectOp(condition, self.make(extents, type_), self.make(extents, type_)))

    def cast(self) -> None:
        extents, type_ = self.shape_and((*STORED, i1))
        value = self.make(extents, type_)
        for _ in range(self.rng.choice((1, 2))):  # chains
            value = self.add(CastOp(value, self.rng.choice((*STORED, i1)), unsigned=self.rng.random() < 0.3))
        self.pool.append(value)

    def bits(self) -> None:
        integer, real = self.rng.choice(((i16, f16), (i32, f32), (i64, f64), (i16, bf16)))
        extents = self.rng.choice(self.shapes)
        source, target = self.rng.choice(((integer, real), (real, integer)))
        self.keep(arith.BitcastOp(self.make(extents, source), tile_type(extents, target)))

    def tf32(self) -> None:
        """f32 in fewer bits; not high parts, which of NaN are any number."""
        self.keep(Tf32Op(self.rng.choice(("nearest", "low")), self.make(self.rng.choice(self.shapes), f32)))

    def indices(self) -> None:
        narrow = self.add(arith.IndexCastOp(self.make((), INDEX), self.rng.choice((i32, i64))))
        self.keep(arith.IndexCastOp(narrow, INDEX))

    def reshape(self) -> None:
        extents, type_ = self.rng.choice(((4,), (4, 1), (1,), (4, 16), (2, 3, 4))), self.rng.choice((*STORED, i1))
        count = prod(extents)
        target = self.rng.choice([(count,), (1, count), (count, 1), *([(8, 8)] if count == 64 else [])])
        value = self.add(ReshapeOp(self.make(extents, type_), target))
        self.keep(ReshapeOp(value, extents if count > 1 else self.rng.choice(((), (1,)))))

    def broadcast(self) -> None:
        source, target = self.rng.choice(
            (((1,), (4,)), ((4, 1), (4, 16)), ((1, 5), (3, 5)), ((), (4, 16)), ((), (17,)))
        )
        self.keep(BroadcastOp(self.make(source, self.rng.choice((*STORED, i1))), target))

    def iota(self) -> None:
        extents = self.rng.choice([candidate for candidate in self.shapes if candidate])
        self.keep(IotaOp(extents, self.rng.randrange(len(extents))))

    def reduce(self) -> None:
        extents = self.rng.choice([candidate for candidate in self.shapes if candidate])
        type_ = self.rng.choice((*FLOATS, *INTEGERS))
        value, axis = self.make(extents, type_), self.rng.randrange(len(extents))
        unsigned = isinstance(type_, IntegerType) and self.rng.random() < 0.3
        self.keep(ReduceOp(self.rng.choice(REDUCTIONS), value, axis, unsigned=unsigned))

    def dot(self) -> None:
        a_type, b_type, c_type = self.rng.choice(DOTS)
        group = self.rng.choice((1, 1, 2, 4))
        m, n, k = self.rng.choice(((3, 5, 8), (1, 1, 4), (4, 16, 4), (4, 1, 8)))
        b_shape = (k, n) if group == 1 else (k // group, n, group)
        unsigned = self.rng.choice(("", "a", "b", "ab")) if isinstance(a_type, IntegerType) else ""
        operands = (self.make((m, k), a_type), self.make(b_shape, b_type), self.make((m, n), c_type))
        self.keep(DotOp("", *operands, unsigned=unsigned, precision=self.precision(a_type)))

    def precision(self, type_: Attribute) -> str:
        """What multiply-adds of f32 may read it as, which changes nothing."""
        return self.rng.choice(("", *INPUT_PRECISIONS)) if type_ == f32 else ""

    def memory(self) -> None:
        """A load, with bounds and mask at times, of an input or of what was stored in scratch memory."""
        number = self.rng.randrange(len(self.inputs))
        view, type_ = self.kernel.body.block.args[number], self.elements[number]
        extents = self.rng.choice(self.shapes)
        strides = self.strides(extents, self.rng.random() < 0.3)
        if len(extents) == 1 and self.rng.random() < 0.3:  # a tail: the tile leaves the view, the bounds do not
            rest = self.rng.randint(1, extents[0])
            offset = self.index(INPUT_ELEMENTS - rest)
            bound = self.add(arith.SubiOp(self.index(INPUT_ELEMENTS), offset))
            mask = self.mask(extents) if rest == extents[0] else None  # else it might leave nothing to load
            self.keep(LoadOp(view, offset, extents, [1], [bound], mask))
            return
        span = sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True))
        if span >= INPUT_ELEMENTS:
            return
        offset = self.clamped(0, INPUT_ELEMENTS - 1 - span)
        self.keep(LoadOp(view, offset, extents, strides, self.bounds(extents), self.mask(extents)))
        if element(view) == type_ and self.rng.random() < 0.3:
            self.scratch()

    def prefetch(self) -> None:
        """A hint, also about places outside of the view."""
        number = self.rng.randrange(len(self.inputs))
        self.add(PrefetchOp(self.kernel.body.block.args[number], self.make((), INDEX), 64))

    def strides(self, extents: tuple[int, ...], spread: bool) -> list[int]:
        if spread:
            return [self.rng.choice((0, 1, 2, 7)) for _ in extents]
        return [prod(extents[axis + 1 :]) for axis in range(len(extents))]

    def bounds(self, extents: tuple[int, ...]) -> list[SSAValue]:
        return [self.clamped(-1, extent + 1) for extent in extents] if self.rng.random() < 0.4 else []

    def mask(self, extents: tuple[int, ...]) -> SSAValue | None:
        return self.make(extents, i1) if self.rng.random() < 0.3 else None

    def scratch(self) -> None:
        extents, type_ = self.shape_and(STORED)
        count = prod(extents)
        view = self.add(AllocOp(MemRefType(type_, [count + 3])))
        offset = self.clamped(0, 3)
        strides = self.strides(extents, False)
        self.add(StoreOp(self.make(extents, type_), view, offset, strides))
        if self.rng.random() < 0.5:
            self.add(StoreOp(self.make(extents, type_), view, offset, strides, self.bounds(extents)))
        self.keep(LoadOp(view, offset, extents, strides, self.bounds(extents)))

    def gather(self) -> None:
        number = self.rng.randrange(len(self.inputs))
        extents = self.rng.choice(self.shapes)
        limit = self.add(arith.ConstantOp(IntegerAttr(INPUT_ELEMENTS, i64)))
        limits = self.add(BroadcastOp(limit, extents)) if extents else limit
        places = self.add(arith.RemUIOp(self.make(extents, i64), limits))
        self.keep(GatherOp(self.kernel.body.block.args[number], places, self.mask(extents)))

    def store(self, value: SSAValue | None = None) -> None:
        """A store into this program's part of an output, of this value or any."""
        value = value or self.rng.choice(self.pool)
        number = self.rng.randrange(len(self.outputs))
        if element(value) == INDEX:
            value = self.add(arith.IndexCastOp(value, i64))
        if element(value) != self.elements[number]:
            value = self.add(CastOp(value, self.elements[number]))
        extents = shape(value)
        room = PART_ELEMENTS - prod(extents)
        offset = self.add(arith.AddiOp(self.start, self.clamped(0, room)))
        strides = self.strides(extents, False)
        bounds, mask = self.bounds(extents), self.mask(extents)
        plain = self.rng.random() < 0.2
        self.add(StoreOp(value, self.output_views()[number], offset, strides, bounds, mask, nontemporal=plain))

    def loop(self) -> None:
        if self.depth >= 2:
            return
        low, high, step = self.clamped(0, 2), self.clamped(0, 4), self.index(self.rng.choice((1, 2)))
        carried = self.rng.sample(self.pool, min(len(self.pool), self.rng.choice((0, 1, 2))))
        block = Block(arg_types=[INDEX, *(value.type for value in carried)])
        self.inside(block, block.args, carried)
        loop = scf.ForOp(low, high, step, carried, block)
        self.block.add_op(loop)
        self.pool.extend(loop.results)

    def branch(self) -> None:
        if self.depth >= 2:
            return
        condition = self.make((), i1)
        like = self.rng.sample(self.pool, min(len(self.pool), self.rng.choice((0, 1))))
        blocks = (Block(), Block())
        for block in blocks:
            self.inside(block, (), like)
        branch = scf.IfOp(condition, [value.type for value in like], Region(blocks[0]), Region(blocks[1]))
        self.block.add_op(branch)
        self.pool.extend(branch.results)

    def inside(self, block: Block, arguments: Sequence[SSAValue], like: Sequence[SSAValue]) -> None:
        """Fill a block with a few steps, and let it yield values of the types of `like`."""
        outer, pool = self.block, list(self.pool)
        self.block, self.depth = block, self.depth + 1
        self.pool = [*self.pool, *arguments]
        self.steps(self.rng.randint(0, 5))
        results = [self.rng.choice([value for value in self.pool if value.type == wanted.type]) for wanted in like]
        block.add_op(scf.YieldOp(*results))
        self.block, self.depth, self.pool = outer, self.depth - 1, pool


STEPS: list[Callable[[Generator], None]] = [
    Generator.arithmetic, Generator.arithmetic, Generator.arithmetic, Generator.function, Generator.compare,
    Generator.select, Generator.cast, Generator.bits, Generator.indices, Generator.reshape, Generator.broadcast,
    Generator.iota, Generator.reduce, Generator.dot, Generator.memory, Generator.memory, Generator.scratch,
    Generator.gather, Generator.prefetch, Generator.store, Generator.loop, Generator.branch, Generator.tf32,
]  # fmt: skip
