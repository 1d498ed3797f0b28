"""One kernel of a tile program to LLVM IR: walks its operations and keeps the registers of every value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd

from llvmlite import ir
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, FloatAttr, IntegerAttr, MemRefType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tilewright.codegen.cpu import grid, memory
from tilewright.codegen.cpu.dot import body_of, emit_dot, product_of
from tilewright.codegen.cpu.interleaved import emit_registers
from tilewright.codegen.cpu.scan import identity, scan
from tilewright.codegen.cpu.target import Target
from tilewright.codegen.elementwise import ELEMENT, combination, emit_element, scalar_constant
from tilewright.codegen.loops import counted_loop, either
from tilewright.codegen.values import (
    I8,
    I32,
    I64,
    POINTER,
    Names,
    TileValue,
    bits_of,
    chunks_of,
    from_scalars,
    intrinsic,
    lane_pieces,
    lanes_of,
    llvm_type,
    mangle,
    row_count,
    row_width,
    scalar_type,
    splat,
    vector_type,
    with_lanes,
)
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel.indices import (
    constant_index,
    divisor,
    indices_from_outside,
    is_sum_of_counters,
    runs_at_least_once,
)

KERNEL_TYPE = ir.FunctionType(ir.VoidType(), [POINTER, I64, I64, I64])
SCRATCH_ALIGNMENT = 64


def argument_types(func: tile.FuncOp) -> list[ir.Type]:
    """What the arguments of a kernel are in LLVM IR: pointers of views, and numbers."""
    types = (argument.type for argument in func.body.block.args)
    return [POINTER if isinstance(type_, MemRefType) else llvm_type(type_) for type_ in types]


class KernelEmitter:
    """Emits the programs of one `tile.func`.

    `scratch_bytes` is what its allocations need per thread; `nontemporal` the alignment that stores around the caches
    may assume.
    """

    def __init__(self, module: ir.Module, target: Target, func: tile.FuncOp, name: str, nontemporal: int) -> None:
        self.target = target
        self.func = func
        self.nontemporal = nontemporal
        self.values: dict[SSAValue, TileValue] = {}
        self.pointers: dict[SSAValue, ir.Value] = {}
        self.scratch_bytes = 0
        types = [*argument_types(func), POINTER]
        type_ = ir.FunctionType(ir.VoidType(), [*types, I64, I64])
        self.function = ir.Function(module, type_, name)
        self.function.linkage = "internal"
        self.function.attributes.add("nounwind")
        self.function.attributes.add("noinline")
        # Kernels call nothing: no memset or memcpy in place of a loop. llvmlite's own `add` knows no quoted attributes.
        set.add(self.function.attributes, '"no-builtins"')
        for argument in self.function.args:
            if argument.type == POINTER:
                argument.add_attribute("noalias")
        self.function.scope = Names()
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    def emit(self) -> None:
        """The loop over the programs of this call and the body of one program."""
        *given, scratch, begin, end = self.function.args
        for argument, value in zip(self.func.body.block.args, given, strict=True):
            if isinstance(argument.type, MemRefType):
                self.pointers[argument] = value
            else:
                self.values[argument] = TileValue((), ((value,),))
        self.scratch = scratch
        self._programs(begin, end)
        if self.nontemporal and self.target.x86:
            fence = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse.sfence"
            function = self.builder.module.globals.get(name) or ir.Function(self.builder.module, fence, name)
            self.builder.call(function, [])
        self.builder.ret_void()

    def _programs(self, begin: ir.Value, end: ir.Value) -> None:
        """The loop over the programs of this call."""
        axes = [axis for axis, extent in enumerate(self.func.extents) if extent != 1]
        extents = [self.func.extents[axis] for axis in axes]

        def program(number: ir.Value, coordinates: list[ir.Value]) -> list[ir.Value]:
            self.coordinates: list[ir.Value] = [I64(0)] * len(self.func.extents)
            for axis, coordinate in zip(axes, coordinates, strict=True):
                self.coordinates[axis] = coordinate
            self._block(self.func.body.block)
            return grid.following(self.builder, extents, coordinates)

        first = grid.coordinates_of(self.builder, extents, begin)
        counted_loop(self.builder, (begin, end, I64(1)), first, program)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            handler = HANDLERS.get(type(op))
            if handler is not None:
                handler(self, op)
            elif op.name in ELEMENT:
                self._element(op)
            else:
                raise InvalidProgram(f"no machine code for operation {op.name} in kernel {self.func.sym_name.data}")

    # Values ---------------------------------------------------------------------------------------------------

    def scalar(self, value: SSAValue) -> ir.Value:
        return self.values[value].scalar

    def _element(self, op: Operation) -> None:
        operands = [self.values[operand] for operand in op.operands]
        extents = tile.shape(op.results[0])
        if isinstance(op, tile.SelectOp) and not tile.shape(op.condition) and extents:
            operands[0] = operands[1].like([operands[0].scalar] * len(operands[1].flat()))
        flat = [operand.flat() for operand in operands]
        registers = emit_registers(self.builder, self.target, op.name, op, flat)
        width = len(operands[-1].rows[0])
        rows = tuple(tuple(registers[r * width : (r + 1) * width]) for r in range(len(operands[-1].rows)))
        self.values[op.results[0]] = TileValue(extents, rows)

    def _constant(self, op: arith.ConstantOp) -> None:
        attribute = op.value
        if isinstance(attribute, IntegerAttr | FloatAttr):
            value = scalar_constant(tile.element(op.result), attribute.value.data)
            self.values[op.result] = TileValue((), ((value,),))
            return
        if isinstance(attribute, DenseIntOrFPElementsAttr) and attribute.is_splat():
            value = scalar_constant(tile.element(op.result), attribute.get_values()[0])
            self.values[op.result] = self._repeat(value, tile.shape(op.result))
            return
        if isinstance(attribute, DenseIntOrFPElementsAttr):
            extents, type_ = tile.shape(op.result), tile.element(op.result)
            numbers = [scalar_constant(type_, number) for number in attribute.get_values()]
            width = row_width(extents)
            rows = (numbers[start : start + width] for start in range(0, len(numbers), width))
            self.values[op.result] = TileValue(extents, tuple(self._constant_row(row) for row in rows))
            return
        raise InvalidProgram(f"constant {attribute} is not a number or a dense tile")

    def _constant_row(self, numbers: list[ir.Constant]) -> tuple[ir.Constant, ...]:
        row, start = [], 0
        for length in chunks_of(len(numbers), self.target.lanes):
            part = numbers[start : start + length]
            row.append(part[0] if length == 1 else ir.Constant(vector_type(part[0].type, length), part))
            start += length
        return tuple(row)

    def _repeat(self, value: ir.Value, extents: tuple[int, ...]) -> TileValue:
        row = tuple(splat(self.builder, value, length) for length in chunks_of(row_width(extents), self.target.lanes))
        return TileValue(extents, (row,) * row_count(extents))

    def _program_id(self, op: tile.ProgramIdOp) -> None:
        axis = op.axis.value.data
        if axis >= len(self.coordinates):
            raise InvalidProgram(f"axis {axis} of a grid of {len(self.coordinates)} axes")
        self.values[op.result] = TileValue((), ((self.coordinates[axis],),))

    def _iota(self, op: tile.IotaOp) -> None:
        extents, axis, lanes = tile.shape(op.result), op.axis.value.data, self.target.lanes
        if axis < len(extents) - 1:
            inner = 1
            for extent in extents[axis + 1 : -1]:
                inner *= extent
            numbers = [(row // inner) % extents[axis] for row in range(row_count(extents))]
            rows = tuple(
                tuple(splat(self.builder, I64(number), length) for length in chunks_of(row_width(extents), lanes))
                for number in numbers
            )
            self.values[op.result] = TileValue(extents, rows)
            return
        row, start = [], 0
        for length in chunks_of(row_width(extents), lanes):
            numbers = [I64(start + lane) for lane in range(length)]
            row.append(numbers[0] if length == 1 else ir.Constant(vector_type(I64, length), numbers))
            start += length
        self.values[op.result] = TileValue(extents, (tuple(row),) * row_count(extents))

    def _broadcast(self, op: tile.BroadcastOp) -> None:
        source, extents = tile.shape(op.value), tile.shape(op.result)
        value = self.values[op.value]
        if not source:
            self.values[op.result] = self._repeat(value.scalar, extents)
            return
        rows = value.rows
        if source[-1] != extents[-1]:
            lengths = chunks_of(extents[-1], self.target.lanes)
            rows = tuple(tuple(splat(self.builder, row[0], length) for length in lengths) for row in rows)
        for axis in reversed(range(len(extents) - 1)):
            if source[axis] != extents[axis]:
                inner = row_count((*extents[axis + 1 :],)) if axis + 1 < len(extents) else 1
                groups = [rows[i : i + inner] for i in range(0, len(rows), inner)]
                rows = tuple(row for group in groups for _ in range(extents[axis]) for row in group)
        self.values[op.result] = TileValue(extents, tuple(rows))

    def _reshape(self, op: tile.ReshapeOp) -> None:
        if op.value not in self.values:  # a load that products read element by element
            return
        extents, value = tile.shape(op.result), self.values[op.value]
        if row_width(extents) == row_width(value.shape):
            self.values[op.result] = TileValue(extents, value.rows)
            return
        scalars = [piece for row in value.rows for piece in lane_pieces(self.builder, row)]
        width = row_width(extents)
        rows = (
            from_scalars(self.builder, scalars[i : i + width], self.target.lanes) for i in range(0, len(scalars), width)
        )
        self.values[op.result] = TileValue(extents, tuple(rows))

    def _reduce(self, op: tile.ReduceOp) -> None:
        extents, axis, value = tile.shape(op.value), op.axis.value.data, self.values[op.value]
        combine = self._combiner(op.kind.data, tile.element(op.value), bool(op.unsigned), op)
        if axis == len(extents) - 1:
            adds = op.kind.data == "sum" and isinstance(llvm_type(tile.element(op.value)), ir.IntType)
            some = op.kind.data == "max" and bool(op.unsigned) and tile.element(op.value) == tile.I1
            whole = "add" if adds else "or" if some else ""  # of flags: one test of a mask register
            rows = tuple((self._horizontal(row, combine, whole),) for row in value.rows)
            self.values[op.result] = TileValue(tile.shape(op.result), rows)
            return
        inner = row_count(extents[axis + 1 :]) if axis + 1 < len(extents) - 1 else 1
        count, reduced = extents[axis], []
        for start in range(0, len(value.rows), inner * count):
            for lane in range(inner):
                group = [value.rows[start + step * inner + lane] for step in range(count)]
                reduced.append(tuple(self._tree(list(column), combine) for column in zip(*group, strict=True)))
        self.values[op.result] = TileValue(tile.shape(op.result), tuple(reduced))

    def _scan(self, op: tile.ScanOp) -> None:
        value = self.values[op.value]
        kind, unsigned = op.kind.data, bool(op.unsigned)
        combine = self._combiner(kind, tile.element(op.value), unsigned)
        row = value.rows[0]
        nothing = identity(kind, getattr(row[0].type, "element", row[0].type), unsigned)
        prefix, total = scan(self.builder, row, combine, nothing, bool(op.reverse))
        self.values[op.prefix] = value.like(prefix)
        self.values[op.total] = TileValue((), ((total,),))

    def _tree(self, values: list[ir.Value], combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        while len(values) > 1:
            pairs = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
            values = pairs + (values[-1:] if len(values) % 2 else [])
        return values[0]

    def _horizontal(
        self, row: tuple[ir.Value, ...], combine: Callable[[ir.Value, ir.Value], ir.Value], whole: str
    ) -> ir.Value:
        """Combine all elements of a row: vectors of one length first, then halves of the vector, then what is left.

        `whole` names LLVM's own reduction of a vector. Sums of integers want it: where LLVM 22 finds by itself that
        halves of a vector of products of bytes are added, it takes `vpdpbusd` for the products and forgets to add the
        four sums that this gives.
        """
        full = [register for register in row if lanes_of(register) == lanes_of(row[0])]
        rest = [piece for register in row[len(full) :] for piece in lane_pieces(self.builder, [register])]
        vector = self._tree(full, combine)
        if whole and lanes_of(vector) > 1:
            name = f"llvm.vector.reduce.{whole}.{mangle(vector.type)}"
            vector = intrinsic(self.builder, name, scalar_type(vector), [vector])
        while lanes_of(vector) > 1 and lanes_of(vector) % 2 == 0:
            half = lanes_of(vector) // 2
            halves = [
                self.builder.shuffle_vector(
                    vector, vector, ir.Constant(vector_type(I32, half), [I32(start + lane) for lane in range(half)])
                )
                for start in (0, half)
            ]
            low, high = (self.builder.extract_element(part, I32(0)) if half == 1 else part for part in halves)
            vector = combine(low, high)
        return self._tree([*lane_pieces(self.builder, [vector]), *rest], combine)

    def _combiner(
        self, kind: str, element_type: Attribute, unsigned: bool, op: tile.ReduceOp | None = None
    ) -> Callable[[ir.Value, ir.Value], ir.Value]:
        """What combines two elements; an `op` says whether a NaN may be passed over."""
        found = combination(kind, not isinstance(llvm_type(element_type), ir.IntType), unsigned)
        return lambda a, b: emit_element(self.builder, self.target, found, op, [a, b])

    # Memory ---------------------------------------------------------------------------------------------------

    def _empty_registers(self, op: tile.EmptyRegistersOp) -> None:
        """An assembly statement without instructions that overwrites every vector register."""
        clobbers = ",".join(f"~{{{name}}}" for name in self.target.vector_register_names)
        self.builder.asm(ir.FunctionType(ir.VoidType(), []), "", clobbers, [], True)

    def _alloc(self, op: tile.AllocOp) -> None:
        type_ = op.result.type
        assert isinstance(type_, MemRefType)
        size = type_.element_count() * max(1, bits_of(llvm_type(type_.element_type)) // 8)
        offset = -(-self.scratch_bytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        self.scratch_bytes = offset + size
        self.pointers[op.result] = self.builder.gep(self.scratch, [I64(offset)], source_etype=I8)

    def _access(self, op: tile.LoadOp | tile.StoreOp, extents: tuple[int, ...]) -> memory.Access:
        bounds = []
        for bound in op.bounds:
            known = constant_index(bound)
            bounds.append(I64(known) if known is not None else self.scalar(bound))
        return memory.Access(
            self.builder,
            self.target.lanes,
            self.pointers[op.view],
            memory.element_llvm(op.view),
            self.scalar(op.offset),
            extents,
            tile.strides_of(op),
            bounds,
            self.values[op.mask] if op.mask is not None else None,
        )

    def _load(self, op: tile.LoadOp) -> None:
        if not _read_by_products_only(op, self.target):
            self.values[op.result] = memory.load(self._access(op, tile.shape(op.result)))

    def _store(self, op: tile.StoreOp) -> None:
        aligned = 0
        if self.nontemporal and op.nontemporal is not None:
            size = bits_of(memory.element_llvm(op.view)) // 8
            step = gcd(divisor(op.offset), *tile.strides_of(op)[:-1]) * size
            aligned = next(
                (a for a in memory.NONTEMPORAL_ALIGNMENTS if a <= self.nontemporal and a and step % a == 0), 0
            )
        memory.store(self._access(op, tile.shape(op.value)), self.values[op.value], aligned)

    def _prefetch(self, op: tile.PrefetchOp) -> None:
        memory.prefetch(
            self.builder,
            self.pointers[op.view],
            memory.element_llvm(op.view),
            self.scalar(op.offset),
            op.bytes.value.data,
        )

    def _gather(self, op: tile.GatherOp) -> None:
        mask = self.values[op.mask] if op.mask is not None else None
        self.values[op.result] = memory.gather(
            self.builder,
            self.pointers[op.view],
            memory.element_llvm(op.view),
            self.values[op.offsets],
            mask,
        )

    # Products -------------------------------------------------------------------------------------------------

    def _dot(self, op: tile.DotOp) -> None:
        product = product_of(op, self.target)
        group = product.group
        a, b = self._broadcast_operand(op.a, group), self._vector_operand(op.b, group)
        c = self.values[op.c]
        kernel = body_of(op, self.target, c)
        self.values[op.result] = emit_dot(self.builder, self.target, product, op.unsigned.data, a, b, c, kernel)

    def _broadcast_operand(self, value: SSAValue, group: int) -> Callable[[int, int], ir.Value]:
        """a as scalars, or as i32 words of `group` neighbours: loaded one by one where a load made it."""
        rows, k = tile.shape(value)
        source = _through_reshapes(value)
        if isinstance(source, tile.LoadOp) and source.result not in self.values:
            access = self._access(source, tile.shape(source.result))
            offsets = memory.row_offsets(access)
            if group == 1:
                return lambda m, step: memory.load_element(access, offsets[m] + step * access.step)
            return lambda m, step: memory.load_word(access, offsets[m] + step * group)
        pieces = [lane_pieces(self.builder, row) for row in self.values[value].rows]
        assert len(pieces) == rows
        assert len(pieces[0]) == k
        if group == 1:
            return lambda m, step: pieces[m][step]
        words = [[self._word(row[i : i + group]) for i in range(0, k, group)] for row in pieces]
        return lambda m, step: words[m][step]

    def _word(self, pieces: list[ir.Value]) -> ir.Value:
        """Neighbouring narrow elements as one i32, the first in the lowest bits."""
        word: ir.Value = I32(0)
        for position, piece in enumerate(pieces):
            bits = self.builder.zext(piece, I32)
            shifted = self.builder.shl(bits, I32(position * scalar_type(piece).width)) if position else bits
            word = self.builder.or_(word, shifted)
        return word

    def _vector_operand(self, value: SSAValue, group: int) -> list[Callable[[], Sequence[ir.Value]]]:
        """b as registers per step of k: elements, or i32 words of `group` neighbours along k."""
        source, extents = _through_reshapes(value), tile.shape(value)
        if isinstance(source, tile.LoadOp) and source.result not in self.values:
            access = self._access(source, tile.shape(source.result))
            if group == 1:
                return [partial(memory.load_row, access, offset) for offset in memory.row_offsets(access)]
            steps, n, _ = extents
            offsets = [step * access.strides[0] for step in range(steps)]
            return [partial(memory.load_word_row, access, offset, n, group) for offset in offsets]
        return [partial(tuple, row) for row in self._vector_rows(value, group)]

    def _vector_rows(self, value: SSAValue, group: int) -> Sequence[Sequence[ir.Value]]:
        """The registers of b per step of k where it is in registers."""
        if len(tile.shape(value)) == 2:
            return self.values[value].rows
        steps, n, neighbours = tile.shape(value)
        if group == 1:  # no intrinsic: the neighbours are steps of their own
            rows = [lane_pieces(self.builder, row) for row in self.values[value].rows]
            return [
                from_scalars(self.builder, [rows[step * n + column][part] for column in range(n)], self.target.lanes)
                for step in range(steps)
                for part in range(neighbours)
            ]
        scalars = [piece for row in self.values[value].rows for piece in lane_pieces(self.builder, row)]
        words = [self._word(scalars[i : i + group]) for i in range(0, len(scalars), group)]
        return [from_scalars(self.builder, words[i * n : (i + 1) * n], self.target.lanes) for i in range(steps)]

    # Control --------------------------------------------------------------------------------------------------

    def _for(self, op: scf.ForOp) -> None:
        initial = [self.values[argument] for argument in op.iter_args]

        def body(index: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            variable, *arguments = op.body.block.args
            self.values[variable] = TileValue((), ((index,),))
            self._assign(arguments, initial, carried)
            self._block(op.body.block)
            return _flat(self._yielded(op.body.block))

        bounds = self.scalar(op.lb), self.scalar(op.ub), self.scalar(op.step)
        registers = _flat(initial)
        outside: dict[SSAValue, TileValue] = {}
        # NewGVN of LLVM 22 ends the process where a loop that may not run carries what was loaded and is stored again.
        if not runs_at_least_once(op):
            registers = [each if isinstance(each, ir.Constant) else self._frozen(each) for each in registers]
        # LLVM's loop strength reduction takes a register for each address of a loop whose first step is no sum of
        # counters, even where addresses differ by constants, if it can follow them to counters of outer loops.
        if initial and not is_sum_of_counters(op.lb):
            outside = {value: self.values[value] for value in indices_from_outside(op) if value in self.values}
            self.values |= {value: each.map(self._frozen) for value, each in outside.items()}
        self._assign(op.results, initial, counted_loop(self.builder, bounds, registers, body))
        self.values |= outside

    def _frozen(self, register: ir.Value) -> ir.Value:
        """The same number, of which LLVM does not know where it comes from."""
        frozen = ir.Instruction(self.builder.block, register.type, "freeze", (register,))
        self.builder.block.instructions.append(frozen)  # llvmlite's builder has no method for it
        self.builder.position_at_end(self.builder.block)
        return frozen

    def _assign(self, values: Sequence[SSAValue], like: Sequence[TileValue], registers: Sequence[ir.Value]) -> None:
        """Give values the registers, one value after the other, as tiles of the shapes of `like`."""
        start = 0
        for value, example in zip(values, like, strict=True):
            count = len(example.flat())
            self.values[value] = example.like(registers[start : start + count])
            start += count

    def _yielded(self, block: Block) -> list[TileValue]:
        """What the terminator of a block gives to the loop or branch around it."""
        last = block.last_op
        assert isinstance(last, scf.YieldOp), "verified loops and branches end with a yield"
        return [self.values[argument] for argument in last.arguments]

    def _if(self, op: scf.IfOp) -> None:
        like: list[TileValue] = []

        def emit(region: Region) -> list[ir.Value]:
            if not region.blocks:
                return []
            self._block(region.block)
            like[:] = self._yielded(region.block)
            return _flat(like)

        registers = either(
            self.builder, self.scalar(op.cond), lambda: emit(op.true_region), lambda: emit(op.false_region)
        )
        self._assign(op.results, like, registers)

    def _nothing(self, op: Operation) -> None:
        """Terminators: their operands are read by the loop or branch that they end."""


def _flat(values: Sequence[TileValue]) -> list[ir.Value]:
    """The registers of all values."""
    return [register for value in values for register in value.flat()]


def _through_reshapes(value: SSAValue) -> Operation | Block:
    """The operation that made a value, looking through reshapes."""
    while isinstance(value.owner, tile.ReshapeOp):
        value = value.owner.value
    return value.owner


def _read_by_products_only(op: tile.LoadOp, target: Target) -> bool:
    """Whether only products read a load: they load it piece by piece, each where it is multiplied.

    Legal when nothing can write between the load and the product: the product is in the same block, and no store lies
    between.
    """
    if op.bounds or op.mask is not None:
        return False
    frontier, users = [op.result], []
    while frontier:
        value = frontier.pop()
        for use in value.uses:
            if isinstance(use.operation, tile.ReshapeOp):
                frontier.append(use.operation.result)
            elif isinstance(use.operation, tile.DotOp) and _readable_in_parts(op, use.operation, use.index, target):
                users.append(use.operation)
            else:
                return False
    if not users or any(user.parent is not op.parent for user in users):
        return False
    last = max(users, key=lambda user: op.parent.get_operation_index(user) if op.parent else 0)
    following = op.next_op
    while following is not None and following is not last:
        if isinstance(following, tile.StoreOp | scf.ForOp | scf.IfOp):
            return False
        following = following.next_op
    return True


def _readable_in_parts(load: tile.LoadOp, dot: tile.DotOp, operand: int, target: Target) -> bool:
    """Whether a product can load an operand piece by piece.

    The neighbours that make a word must lie next to each other.
    """
    group = product_of(dot, target).group
    strides, extents = tile.strides_of(load), tile.shape(load.result)
    if operand == 0:
        return extents[-1:] == tile.shape(dot.a)[-1:] and (group == 1 or strides[-1] == 1)
    if operand != 1 or extents != tile.shape(dot.b):
        return False
    if group == 1:
        return len(extents) == 2 and strides[1] == 1 and load.result.has_one_use()
    return strides[2] == 1 and (strides[1] == group or extents[1] == 1)


HANDLERS: dict[type[Operation], Callable[..., None]] = {
    arith.ConstantOp: KernelEmitter._constant,
    tile.ProgramIdOp: KernelEmitter._program_id,
    tile.IotaOp: KernelEmitter._iota,
    tile.BroadcastOp: KernelEmitter._broadcast,
    tile.ReshapeOp: KernelEmitter._reshape,
    tile.ReduceOp: KernelEmitter._reduce,
    tile.ScanOp: KernelEmitter._scan,
    tile.AllocOp: KernelEmitter._alloc,
    tile.EmptyRegistersOp: KernelEmitter._empty_registers,
    tile.LoadOp: KernelEmitter._load,
    tile.StoreOp: KernelEmitter._store,
    tile.GatherOp: KernelEmitter._gather,
    tile.PrefetchOp: KernelEmitter._prefetch,
    tile.DotOp: KernelEmitter._dot,
    scf.ForOp: KernelEmitter._for,
    scf.IfOp: KernelEmitter._if,
    scf.YieldOp: KernelEmitter._nothing,
    tile.ReturnOp: KernelEmitter._nothing,
}

__all__ = ["KERNEL_TYPE", "KernelEmitter", "argument_types", "with_lanes"]
