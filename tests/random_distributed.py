"""Random kernels in distributed form, for tests: legal programs, from a seed.

What threads do alone is that of `random`; between that, all of a block do things together: exchange tiles through
shared memory, shuffle, copy asynchronously, count with atomics, load and multiply fragments, and go through loops and
branches that are the same for all. There are no races and no divergence, and no result depends on the order of threads
or on how NumPy adds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerType, MemRefType, StringAttr, f16, f32, i16, i32
from xdsl.ir import Attribute, Block, Region, SSAValue

from tests.random_kernels import (
    FLOATS,
    INPUT_ELEMENTS,
    INTEGERS,
    PART_ELEMENTS,
    SHAPES,
    STEPS,
    STORED,
    Generator,
    RandomKernel,
)
from tilewright.kernel import simt
from tilewright.kernel.dialect import INDEX, REDUCTIONS, CompareOp, DotOp, FuncOp, LoadOp, ReduceOp, StoreOp

WARP = 32
BLOCKS = ((32, 1, 1), (64, 1, 1), (16, 4, 1), (8, 4, 2))
INTEGER_ATOMICS = ("add", "max", "min", "and", "or", "xor")  # the order of which cannot be seen
MMA, MMA_TF32 = "mma_m16n8k16_f16_f32", "mma_m16n8k8_tf32_f32"


def random_distributed(seed: int, size: int = 16) -> RandomKernel:
    """A kernel of about `size` steps; its operations are rounded correctly."""
    return _Distributed(random.Random(seed)).generate(size)


class _Distributed(Generator):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng, functions=False)
        self.threads = rng.choice(BLOCKS)
        self.count = prod(self.threads)
        parts = prod(self.grid) * self.count * PART_ELEMENTS
        self.outputs = [MemRefType(type_, [parts]) for type_ in self.elements]
        self.kernel = FuncOp("random", [*self.inputs, *self.outputs], self.grid, threads=self.threads, warp=WARP)
        self.block = self.kernel.body.block
        self.together = True  # all threads of the block are here

    def number_parts(self) -> SSAValue:
        program = super().number_parts()
        x, y, z = (self.add(simt.ThreadIdOp(axis)) for axis in range(3))
        self.pool.extend((x, y))
        row = self.plus(self.times(z, self.threads[1]), y)
        self.thread = self.plus(self.times(row, self.threads[0]), x)
        return self.plus(self.times(program, self.count), self.thread)

    def steps(self, count: int) -> None:
        for _ in range(count):
            if self.together and self.rng.random() < 0.4:
                self.rng.choice(_TOGETHER)(self)
            else:
                getattr(self, self.rng.choice(STEPS).__name__)()

    # Steps of threads alone that differ from those of programs -------------------------------------------------

    def reduce(self) -> None:
        extents = self.rng.choice([candidate for candidate in SHAPES if candidate])
        type_ = self.rng.choice((*FLOATS, *INTEGERS))
        kinds = REDUCTIONS if isinstance(type_, IntegerType) else ("max", "min")
        self.keep(ReduceOp(self.rng.choice(kinds), self.make(extents, type_), self.rng.randrange(len(extents))))

    def dot(self) -> None:
        m, n, k = self.rng.choice(((3, 5, 8), (4, 16, 4)))
        self.keep(DotOp("", self.make((m, k), i16), self.make((k, n), i16), self.make((m, n), i32)))

    def loop(self) -> None:
        self.apart(super().loop)

    def branch(self) -> None:
        self.apart(super().branch)

    def apart(self, step: Callable[[], None]) -> None:
        """A step within which some threads may be missing."""
        before, self.together = self.together, False
        step()
        self.together = before

    # Steps of all threads of a block ---------------------------------------------------------------------------

    def plus(self, a: SSAValue, b: SSAValue | int) -> SSAValue:
        return self.add(arith.AddiOp(a, self.index(b) if isinstance(b, int) else b))

    def times(self, a: SSAValue, b: int) -> SSAValue:
        return self.add(arith.MuliOp(a, self.index(b)))

    def modulo(self, a: SSAValue, b: int) -> SSAValue:
        return self.add(arith.RemUIOp(a, self.index(b)))

    def shared(self, type_: Attribute, elements: int) -> SSAValue:
        view = MemRefType(type_, [elements], memory_space=StringAttr("shared"))
        return self.add(simt.SharedOp(view))

    def barrier(self) -> None:
        self.block.add_op(simt.BarrierOp())

    def another(self) -> SSAValue:
        """The number of another thread, or the same; different for different threads."""
        if self.rng.random() < 0.5:
            mask = self.rng.randrange(self.count)
            return self.add(arith.XOrIOp(self.thread, self.index(mask)))
        return self.modulo(self.plus(self.thread, self.rng.randrange(self.count)), self.count)

    def somebody(self) -> SSAValue:
        """The number of any thread, perhaps the same for several."""
        return self.another() if self.rng.random() < 0.7 else self.clamped(0, self.count - 1)

    def exchange(self) -> None:
        """A tile of each thread goes to another one's registers; at times it comes back another way."""
        extents, type_ = self.shape_and(STORED)
        count, strides = prod(extents), self.strides(extents, False)
        view = self.shared(type_, self.count * count)
        value = self.make(extents, type_)
        self.block.add_op(StoreOp(value, view, self.times(self.another(), count), strides))
        self.barrier()
        place = self.times(self.somebody(), count)
        self.keep(LoadOp(view, place, extents, strides, self.bounds(extents), self.mask(extents)))
        self.barrier()

    def shuffle(self) -> None:
        extents, type_ = self.shape_and((*STORED, INDEX))
        value = self.make(() if type_ == INDEX else extents, type_)
        self.keep(simt.ShuffleOp(self.rng.choice(simt.SHUFFLES), value, self.clamped(0, WARP + 4)))

    def registers(self) -> None:
        """Parts of tiles of one dimension, in another order."""
        value, cut = self.make((17,), self.rng.choice(STORED)), self.rng.randint(1, 16)
        parts = [self.add(simt.PartOp(value, cut, 17 - cut)), self.add(simt.PartOp(value, 0, cut))]
        self.keep(simt.JoinOp(parts))

    def copies(self) -> None:
        """One to three groups of copies, waited for one after the other."""
        number = self.rng.randrange(len(self.inputs))
        view, type_ = self.kernel.body.block.args[number], self.elements[number]
        each = self.rng.choice(simt.COPY_BYTES) // simt.element_bytes(view)
        if not each:
            return
        groups = self.rng.randint(1, 3)
        targets = [self.shared(type_, self.count * each) for _ in range(groups)]
        for target in targets:
            source = self.times(
                self.modulo(self.plus(self.thread, self.rng.randrange(9)), INPUT_ELEMENTS // each), each
            )
            valid = self.clamped(-1, each + 1) if self.rng.random() < 0.4 else None
            start = simt.AsyncCopyOp(view, source, target, self.times(self.thread, each), each, valid)
            self.block.add_ops([start, simt.CommitOp()])
        for position, target in enumerate(targets):
            self.block.add_op(simt.WaitOp(groups - 1 - position))
            who = self.thread
            if self.rng.random() < 0.6:
                self.barrier()
                who = self.somebody()
            self.keep(LoadOp(target, self.times(who, each), (each,), (1,)))
        self.barrier()

    def atomic(self) -> None:
        """Threads update elements of shared memory, at times the same ones."""
        places = self.rng.choice((1, 3, self.count))
        view = self.shared(i32, self.count)
        self.block.add_op(StoreOp(self.make((), i32), view, self.thread))
        self.barrier()
        place = self.clamped(0, places - 1)
        kind, unsigned = self.rng.choice(INTEGER_ATOMICS), self.rng.random() < 0.3
        self.add(simt.AtomicOp(kind, self.make((), i32), view, place, self.mask(()), unsigned))
        self.barrier()
        self.keep(LoadOp(view, self.somebody()))
        self.barrier()

    def matrices(self) -> None:
        """A row of 16 bytes of each thread; matrices of 8 of them are loaded, and stored elsewhere."""
        type_ = self.rng.choice((f16, i16, f32, i32))
        width = 16 // simt.element_bytes(type_)
        view, other = self.shared(type_, self.count * width), self.shared(type_, self.count * width)
        self.block.add_op(StoreOp(self.make((width,), type_), view, self.times(self.thread, width), (1,), align=16))
        self.barrier()
        count = self.rng.choice((1, 2, 4))
        transpose = width == 8 and self.rng.random() < 0.5
        loaded = self.add(simt.LoadMatrixOp(view, self.times(self.somebody(), width), count, transpose))
        self.pool.append(loaded)
        place = self.times(self.another(), width)
        self.block.add_op(simt.StoreMatrixOp(loaded, other, place, count, width == 8 and self.rng.random() < 0.5))
        self.barrier()
        if count == 4:  # all of it is written
            self.keep(LoadOp(other, self.times(self.somebody(), width), (width,), (1,)))
            self.barrier()

    def product(self) -> None:
        """A product of fragments, of f32 at times; the sum is stored in shared memory and loaded from there."""
        view = self.shared(f32, self.count // WARP * 128)
        block = self.times(self.add(arith.DivUIOp(self.thread, self.index(WARP))), 128)
        total = self.make((4,), f32)
        precision = self.rng.choice(("", simt.THREE_PRODUCTS))
        halves = self.make((8,), f16), self.make((4,), f16)
        floats = self.make((4,), f32), self.make((2,), f32)
        for _ in range(self.rng.randint(1, 2)):
            if self.rng.random() < 0.5:
                total = self.add(simt.MmaOp(MMA, *halves, total))
            else:
                total = self.add(simt.MmaOp(MMA_TF32, *floats, total, precision))
        self.pool.append(total)
        stride, columns = self.rng.choice(((8, False), (16, True)))
        self.block.add_op(simt.StoreFragmentOp(MMA, total, view, block, self.index(stride), columns))
        self.barrier()
        stride, columns = self.rng.choice(((8, False), (16, True)))
        self.keep(simt.LoadFragmentOp(MMA, "c", view, block, self.index(stride), 4, columns))
        self.barrier()

    def common_loop(self) -> None:
        """A loop of as many trips for all threads."""
        if self.depth >= 2:
            return
        low, high = self.rng.randint(0, 2), self.rng.randint(0, 4)
        carried = self.rng.sample(self.pool, min(len(self.pool), self.rng.choice((0, 1, 2))))
        bounds = [self.index(number) for number in (low, high, 1)]
        block = Block(arg_types=[INDEX, *(value.type for value in carried)])
        self.inside(block, block.args, carried)
        loop = scf.ForOp(bounds[0], bounds[1], bounds[2], carried, block)
        self.block.add_op(loop)
        self.pool.extend(loop.results)

    def common_branch(self) -> None:
        """A branch that all threads of a block, or of a grid, take alike."""
        if self.depth >= 2:
            return
        program = self.kernel.body.block.first_op
        assert program is not None
        condition = self.add(CompareOp("eq", program.results[0], self.index(self.rng.randint(0, 1))))
        like = self.rng.sample(self.pool, min(len(self.pool), self.rng.choice((0, 1))))
        blocks = (Block(), Block())
        for block in blocks:
            self.inside(block, (), like)
        branch = scf.IfOp(condition, [value.type for value in like], Region(blocks[0]), Region(blocks[1]))
        self.block.add_op(branch)
        self.pool.extend(branch.results)


_TOGETHER: list[Callable[[Any], None]] = [
    _Distributed.exchange, _Distributed.shuffle, _Distributed.copies, _Distributed.atomic, _Distributed.matrices,
    _Distributed.product, _Distributed.registers, _Distributed.common_loop, _Distributed.common_branch,
]  # fmt: skip
