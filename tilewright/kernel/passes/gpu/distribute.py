"""Every operation on tiles of a block becomes what each thread does with its registers, as the layouts say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import AnyFloat, DenseIntOrFPElementsAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import circular_buffer, simt
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import LIMITS, warps_of
from tilewright.kernel.axis_info import AxisAnalysis
from tilewright.kernel.bulk_stores import BulkStoreOp, FinishStoresOp
from tilewright.kernel.dialect import I1, INDEX, FuncOp, element, shape, strides_of
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.facts import NOTHING, facts_of
from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.passes.common.settings import one_of, power_of_two
from tilewright.kernel.passes.gpu.distribution.access import ACCESS_BYTES, Access
from tilewright.kernel.passes.gpu.distribution.bulk_stores import expand as bulk_store
from tilewright.kernel.passes.gpu.distribution.bulk_stores import finish as finish_stores
from tilewright.kernel.passes.gpu.distribution.circular_buffer import expand
from tilewright.kernel.passes.gpu.distribution.exchange import exchange
from tilewright.kernel.passes.gpu.distribution.gathers import wide
from tilewright.kernel.passes.gpu.distribution.layout import (
    Share,
    held,
    layout_of,
    owners,
    projected,
    registers,
    shares,
)
from tilewright.kernel.passes.gpu.distribution.matrix import fragments, is_transposed, one_warp, read_as
from tilewright.kernel.passes.gpu.distribution.multiply_add import rows_of
from tilewright.kernel.passes.gpu.distribution.opaque import elements_in, memory_between
from tilewright.kernel.passes.gpu.distribution.opaque_moves import load_tile, stage_in, stage_out, store_tile
from tilewright.kernel.passes.gpu.distribution.register_tiles import transposed_registers
from tilewright.kernel.passes.gpu.distribution.rows import MEMORIES, padded_rows, rows_between
from tilewright.kernel.passes.gpu.distribution.staging import memory_of, places, staging
from tilewright.kernel.passes.gpu.distribution.threads import Threads
from tilewright.kernel.records import fragments_record
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.access import matrix_load
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.opaque import Opaque
from tilewright.layouts.reduction import reduction
from tilewright.machine.units import MATRIX_LOADS

COMBINE_FLOATS = {"sum": arith.AddfOp, "prod": arith.MulfOp, "max": arith.MaximumfOp, "min": arith.MinimumfOp}
COMBINE_SIGNED = {"sum": arith.AddiOp, "prod": arith.MuliOp, "max": arith.MaxSIOp, "min": arith.MinSIOp}
COMBINE_UNSIGNED = {"sum": arith.AddiOp, "prod": arith.MuliOp, "max": arith.MaxUIOp, "min": arith.MinUIOp}
COMBINE_BITS = {"sum": arith.XOrIOp, "prod": arith.AndIOp, "max": arith.OrIOp, "min": arith.AndIOp}


@dataclass(frozen=True)
class DistributePass(ModulePass):
    """Expand every kernel whose tiles have layouts into what one thread of its block does.

    Before:  %y = arith.addf %x, %x : tensor<256xf32, "#linear<…>">
    After:   %y = arith.addf %x, %x : tensor<2xf32>, in a kernel with `threads`
    Legal where every tile has a layout: needs `assign-layouts` with the same number of warps. Afterwards no tile has
    one, and tiles have one dimension.
    """

    name = "distribute"
    warps: int = 4
    lanes: int = 32
    memory: str = "swizzled"  # of conversions; or "padded", "plain"
    matrix_loads: bool = True  # where the machine has them
    outer_product: bool = True  # of a step of k all products before those of the next; else one sum after the other

    def __post_init__(self) -> None:
        power_of_two(self, "warps", "lanes")
        one_of(MEMORIES, self, "memory")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts = facts_of(op)
        lanes_load = facts != NOTHING and MATRIX_LOADS not in facts.units
        matrix_loads = self.matrix_loads and not lanes_load
        at_once = facts.shared_bytes // 2 if lanes_load else 0  # the rest is for what else is in use
        for kernel in list(op.body.ops):
            if isinstance(kernel, FuncOp) and not kernel.block:
                warps = prod(warps_of(kernel) or (self.warps,))
                made = distribute(kernel, warps, self.lanes, self.memory, matrix_loads, self.outer_product, at_once)
                op.body.block.insert_op_before(made, kernel)
                op.body.block.erase_op(kernel)


def distribute(
    kernel: FuncOp, warps: int, lanes: int, memory: str = "swizzled", matrix_loads: bool = True,
    outer_product: bool = True, at_once: int = 0,
) -> FuncOp:  # fmt: skip
    """The kernel in distributed form; InvalidProgram where layouts are not of so many warps and lanes.

    Conversions that follow each other pass through memory together, up to `at_once` bytes of it: behind one barrier
    threads then read what they want first, and no fragment waits in registers for another operand to be written.
    """
    _check_layouts(kernel, warps, lanes)
    arguments = list(kernel.function_type.inputs.data)
    made = FuncOp(
        kernel.sym_name.data, arguments, kernel.extents, cost=kernel.cost, threads=(warps * lanes, 1, 1), warp=lanes,
        blocks=kernel.blocks,
    )  # fmt: skip
    made.location = kernel.location
    made.attributes = {key: value for key, value in kernel.attributes.items() if key in LIMITS}
    values: dict[SSAValue, SSAValue] = dict(zip(kernel.body.block.args, made.body.block.args, strict=True))
    for old, new in values.items():
        new.name_hint = old.name_hint
    expansion = _Expansion(made.body.block, values)
    expansion.memory, expansion.matrix_loads, expansion.outer_product = memory, matrix_loads, outer_product
    expansion.at_once = at_once
    loads = (tile.LoadOp, tile.GatherOp)
    expansion.read = {op.operands[0] for op in tile.operations(kernel.body) if isinstance(op, loads)}
    if any(isinstance(op, tile.GatherOp) for op in tile.operations(kernel.body)):
        expansion.facts = AxisAnalysis(kernel)
    expansion.block(kernel.body.block)
    return made


def _check_layouts(kernel: FuncOp, warps: int, lanes: int) -> None:
    layouts = {_layout(each) for op in tile.operations(kernel.body) for each in op.results if shape(each)}
    for layout in layouts:
        own = layout.in_size("warp"), layout.in_size("lane")
        if own != (warps, lanes):
            raise InvalidProgram(
                f"kernel {kernel.sym_name.data}: layouts of {own[0]} warps of {own[1]} lanes for {warps} of {lanes}",
                help="give assign-layouts and distribute the same warps and lanes",
            )


@dataclass(frozen=True)
class _Written:
    """A conversion that lies in memory, its bytes, and how to read it behind the next barrier."""

    bytes: int
    read: Callable[[], SSAValue]


class _Expansion(Threads):
    """One block on its way: `values` says what stands for a value, of a tile what the thread holds of it."""

    def __init__(self, block: Block, values: dict[SSAValue, SSAValue], outside: _Expansion | None = None) -> None:
        super().__init__(block, outside)
        self.values = values
        # Views that the kernel loads from: its stores to them are seen by all threads.
        self.read: set[SSAValue] = set() if outside is None else outside.read
        self.memory: str = "swizzled" if outside is None else outside.memory
        self.matrix_loads: bool = True if outside is None else outside.matrix_loads
        self.outer_product: bool = True if outside is None else outside.outer_product
        self.facts: AxisAnalysis | None = None if outside is None else outside.facts
        self.at_once: int = 0 if outside is None else outside.at_once
        self.waiting: dict[tile.ConvertOp, _Written] = {}

    def block(self, source: Block) -> None:
        for op in source.ops:
            if self.waiting and not self.may_wait(op):
                self.read_written()
            before = self.target.last_op
            self.operation(op)
            self.locate(op, before)

    def locate(self, op: Operation, before: Operation | None) -> None:
        """What was made for an operation has its place in the source, and its results their names."""
        for result in () if op in self.waiting else op.results:
            value = self.values[result]
            value.name_hint = value.name_hint or result.name_hint
        made = self.target.first_op if before is None else before.next_op
        while made is not None:
            made.location = op.location
            made = made.next_op

    def may_wait(self, op: Operation) -> bool:
        """Whether conversions that are written may be read behind an operation."""
        if any(operand.owner in self.waiting for operand in op.operands):
            return False
        scalar = op.name in PURE and not any(map(shape, (*op.operands, *op.results)))
        return scalar or isinstance(op, tile.ConvertOp | tile.LoadOp)

    def read_written(self) -> None:
        """Read what conversions have written, behind one barrier for all."""
        waiting, self.waiting = self.waiting, {}
        barrier = self.add(simt.BarrierOp())
        barrier.location = next(iter(waiting)).location
        for op, written in waiting.items():
            before = self.target.last_op
            self.values[op.result] = written.read()
            self.locate(op, before)

    def operation(self, op: Operation) -> None:
        match op:
            case tile.LoadOp() if shape(op.result):
                self.values[op.result] = self.load(op)
            case tile.StoreOp() if shape(op.value):
                self.store(op)
            case tile.StoreOp():
                self.once(lambda: self.copy(op))
            case tile.GatherOp() if shape(op.result):
                self.values[op.result] = self.gather(op)
            case tile.IotaOp():
                layout = _layout(op.result)
                self.values[op.result] = self.coordinates(shares(layout)[op.axis.value.data])
            case tile.BroadcastOp():
                value = self.values[op.value]
                wide = shape(op.value) or not shape(op.result)
                self.values[op.result] = value if wide else self.repeated(value, registers(op.result))
            case tile.ReshapeOp() if shape(op.value):
                value = self.values[op.value]
                self.values[op.result] = value if shape(op.result) else self.scalar(self.part(value, 0))
            case tile.ReshapeOp():
                self.values[op.result] = self.repeated(self.values[op.value], registers(op.result))
            case tile.ConvertOp():
                converted = self.convert(op)
                if converted is not None:
                    self.values[op.result] = converted
            case tile.StagingOp() | tile.AllocOp():
                count = int(op.result.type.get_shape()[0])
                self.values[op.result] = self.shared(count, element(op.result))
            case tile.StageOp():
                self.stage(op)
            case tile.CommitOp():
                self.add(simt.CommitOp())
            case tile.AwaitOp():
                self.add(simt.WaitOp(op.pending.value.data))
                self.add(simt.BarrierOp())
            case tile.BarrierOp():
                self.add(simt.BarrierOp())
            case tile.UnstageOp():
                self.values[op.result] = self.unstage(op)
            case tile.ReduceOp():
                self.values[op.result] = self.reduce(op)
            case tile.DotOp():
                self.values[op.result] = self.dot(op)
            case arith.ConstantOp() if shape(op.result):
                self.values[op.result] = self.constant(op)
            case _ if isinstance(op, circular_buffer.OPERATIONS):
                expand(self, op)
            case BulkStoreOp():
                bulk_store(self, self.values, op)
            case FinishStoresOp():
                finish_stores(self)
            case tile.ReturnOp() if self.kernel.blocks > 1:  # none of them ends while others may use its memory
                self.add(simt.ClusterBarrierOp())
                self.copy(op)
            case scf.ForOp():
                self.loop(op)
            case scf.YieldOp() if isinstance(op.parent_op(), scf.ForOp):
                self.add(scf.YieldOp(*map(self.once_each, op.operands)))
            case scf.IfOp():
                self.branch(op)
            case _:
                self.copy(op)

    # Memory

    def load(self, op: tile.LoadOp) -> SSAValue:
        layout = _layout(op.result)
        if isinstance(layout, Opaque):
            return load_tile(self, op, layout, self.values[op.view], self.values[op.offset])
        access = self.access(op, layout)
        mask = None if op.mask is None else self.values[op.mask]
        pieces = []
        for start in range(0, registers(op.result), access.width):
            offset, bounds, allowed = access.place(start)
            own = None if mask is None else self.part(mask, start, access.width)
            inside = self.together(allowed, own, access.width)
            extents, strides = (access.width,), (access.stride,)
            piece = tile.LoadOp(self.values[op.view], offset, extents, strides, bounds, inside, access.align)
            pieces.append(self.add(piece).results[0])
        return self.joined(pieces)

    def store(self, op: tile.StoreOp) -> None:
        layout = _layout(op.value)
        access = self.access(op, layout)
        mask = None if op.mask is None else self.values[op.mask]
        value = self.values[op.value]
        free, first = owners(layout)

        def write() -> None:
            for start in range(0, registers(op.value), access.width):
                if start not in first:
                    continue
                offset, bounds, allowed = access.place(start)
                own = None if mask is None else self.part(mask, start, access.width)
                inside = self.together(allowed, own, access.width)
                piece, view, strides = self.part(value, start, access.width), self.values[op.view], (access.stride,)
                streams = op.nontemporal is not None
                self.add(tile.StoreOp(piece, view, offset, strides, bounds, inside, streams, access.align))

        ordered = op.view in self.read
        if ordered:
            self.add(simt.BarrierOp())
        if isinstance(layout, Opaque):
            store_tile(self, op, layout, value, self.values[op.view], self.values[op.offset])
        else:
            self.where_free_is_zero(free, write)
        if ordered:
            self.add(simt.BarrierOp())

    def gather(self, op: tile.GatherOp) -> SSAValue:
        """Offsets that are known to lie side by side are read as a load reads them."""
        mask, offsets, view = None if op.mask is None else self.values[op.mask], self.values[op.offsets], op.view
        assert self.facts is not None, "made for kernels with gathers"
        found = wide(op, _layout(op.result), self.facts) if isinstance(view.owner, Block) else None
        if found is None:
            return self.add(tile.GatherOp(self.values[view], offsets, mask)).results[0]
        pieces = []
        for start in range(0, registers(op.result), found.width):
            first = self.add(arith.IndexCastOp(self.scalar(self.part(offsets, start)), INDEX)).results[0]
            own = None if mask is None else self.part(mask, start, 1 if found.together else found.width)
            inside = self.repeated(self.scalar(own), found.width) if own is not None and found.together else own
            piece = tile.LoadOp(self.values[view], first, (found.width,), (1,), (), inside, found.align)
            pieces.append(self.add(piece).results[0])
        return self.joined(pieces)

    def access(self, op: tile.LoadOp | tile.StoreOp, layout: LinearLayout) -> Access:
        return Access(self, layout, strides_of(op), self.values[op.offset], [self.values[b] for b in op.bounds],
                       1 if op.align is None else op.align.value.data, element_bytes(op.view))  # fmt: skip

    def together(self, allowed: SSAValue | None, mask: SSAValue | None, width: int) -> SSAValue | None:
        """Both conditions of an access: one of the thread, one of each element."""
        if allowed is None:
            return mask
        repeated = self.repeated(allowed, width)
        return repeated if mask is None else self.add(arith.AndIOp(repeated, mask)).results[0]

    # Products, reductions, conversions

    def dot(self, op: tile.DotOp) -> SSAValue:
        """One instruction per fragment of the result and step of k; k outermost if neighbours are to be independent."""
        record = fragments_record(op)
        if record is None:
            return self.multiply_add(op)
        layouts, precision = [_layout(operand) for operand in op.operands], read_as(op)
        transposed = is_transposed(record, layouts[2])
        ones = one_warp(record, transposed)
        places = [fragments(layout, one) for layout, one in zip(layouts, ones, strict=True)]
        held = [self.values[operand] for operand in op.operands]
        a, b, c = (
            {start: self.picked(value, registers) for start, registers in places.items()}
            for value, places in zip(held, places, strict=True)
        )
        steps, sums = sorted({start[1] for start in a}), list(c)
        order = product(steps, sums) if self.outer_product else ((k, sum_) for sum_, k in product(sums, steps))
        for k, (m, n) in order:
            left, right = (b[k, n], a[m, k]) if transposed else (a[m, k], b[k, n])
            c[m, n] = self.add(simt.MmaOp(op.intrinsic.data, left, right, c[m, n], precision)).results[0]
        joined = self.joined(list(c.values()))
        own = [register for registers in places[2].values() for register in registers]
        return self.picked(joined, [own.index(register) for register in range(len(own))])

    def multiply_add(self, op: tile.DotOp) -> SSAValue:
        """Row by row of the thread's tile of c, k outermost: an element of a times a row of b."""
        rows = rows_of((_layout(op.a), _layout(op.b), _layout(op.c)))
        a = self.widened(op.a, element(op.c), "a" in op.unsigned.data)
        b = self.widened(op.b, element(op.c), "b" in op.unsigned.data)
        sums = [self.picked(self.values[op.c], own) for own, _ in rows]
        for step in range(len(rows[0][1])):
            columns: dict[tuple[int, ...], SSAValue] = {}
            for number, (own, steps) in enumerate(rows):
                of_a, of_b = steps[step]
                if of_b not in columns:
                    columns[of_b] = self.picked(b, of_b)
                factor = self.repeated(self.scalar(self.part(a, of_a)), len(own))
                sums[number] = self.plus_product(sums[number], factor, columns[of_b])
        order = [register for own, _ in rows for register in own]
        return self.picked(self.joined(sums), [order.index(register) for register in range(len(order))])

    def widened(self, operand: SSAValue, type_: Attribute, unsigned: bool) -> SSAValue:
        """The registers of a factor in the type of the sums."""
        value = self.values[operand]
        return value if element(value) == type_ else self.add(tile.CastOp(value, type_, unsigned)).results[0]

    def plus_product(self, total: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        if isinstance(element(total), AnyFloat):
            return self.add(math.FmaOp(a, b, total)).results[0]
        return self.add(arith.AddiOp(total, self.add(arith.MuliOp(a, b)).results[0])).results[0]

    def reduce(self, op: tile.ReduceOp) -> SSAValue:
        """Registers, then lanes by butterflies, then warps through shared memory; every copy of a result gets it."""
        layout, dim = _layout(op.value), op.axis.value.data
        steps = reduction(layout, dim)
        value = self.values[op.value]
        combine = self.combining(op)
        results = []
        for group in steps.registers:
            terms = [self.part(value, register) for register in group]
            while len(terms) > 1:  # by pairs: in a chain every step would wait for the one before
                pairs = zip(terms[::2], terms[1::2], strict=False)
                terms = [*(combine(*pair) for pair in pairs), *terms[len(terms) // 2 * 2 :]]
            results += terms
        joined = self.joined(results)
        for bit in steps.lane_bits:
            other = self.add(simt.ShuffleOp("xor", joined, self.number(1 << bit))).results[0]
            joined = combine(joined, other)
        if steps.warp_bits:
            joined = self.across_warps(op, layout, joined, steps.registers, combine)
        # The result has as many registers as the operand: copies along the dimension that is gone.
        target = projected(layout, shape(op.result))
        places = {}
        parts = [share.registers for share in shares(target)]
        for number, group in enumerate(steps.registers):
            places[tuple(part[group[0]] for part in parts)] = number
        order = [places[tuple(part[r] for part in parts)] for r in range(target.in_size("register"))]
        return self.picked(joined, order)

    def across_warps(
        self, op: tile.ReduceOp, layout: LinearLayout, value: SSAValue, groups: Sequence[Sequence[int]],
        combine: Callable[[SSAValue, SSAValue], SSAValue],
    ) -> SSAValue:  # fmt: skip
        """Partial results of warps through shared memory, so many per result as there are warps along the dimension.

        Neighbouring lanes that hold different results write and read neighbouring places.
        """
        dim = op.axis.value.data
        target = projected(layout, shape(op.result))
        lanes = len(layout.of("lane"))
        along = [bit for bit, base in enumerate(layout.of("warp")) if base[dim]]
        columns = 1 << len(along)
        rows = prod(shape(op.result))
        memory = self.shared(rows * columns, element(op.value))
        column = self.thread_part(Share(tuple((lanes + bit, 1 << place) for place, bit in enumerate(along)), (0,)))
        assert column is not None
        free, _ = owners(target)
        silent = free & ((1 << lanes) - 1)  # of lanes with the same result one writes
        warps = free >> lanes
        silent |= (warps & ~sum(1 << bit for bit in along)) << lanes
        stride, places = self.places_of_results(target, [group[0] for group in groups], columns)
        if stride > 1:
            column = self.add(arith.MuliOp(column, self.number(stride))).results[0]

        def write() -> None:
            for number, place in enumerate(places):
                offset = self.add(arith.AddiOp(place, column)).results[0]
                self.put(self.part(value, number), memory, offset)

        self.add(simt.BarrierOp())  # a trip before may still be reading
        self.where_free_is_zero(silent, write)
        self.add(simt.BarrierOp())
        results = []
        for place in places:
            type_ = element(op.value)
            wide = min(columns, ACCESS_BYTES // element_bytes(memory)) if stride == 1 else 1
            total: SSAValue | None = None
            for other in range(0, columns, wide):
                offset = self.add(arith.AddiOp(place, self.number(other * stride))).results[0]
                loaded = self.get(memory, offset, wide, type_, wide * element_bytes(memory) if wide > 1 else None)
                for number in range(wide):
                    one = self.part(loaded, number)
                    total = one if total is None else combine(total, one)
            assert total is not None
            results.append(total)
        return self.joined(results)

    def places_of_results(
        self, target: LinearLayout, firsts: Sequence[int], columns: int
    ) -> tuple[int, list[SSAValue]]:
        """Distance of the partial results of one result, and where those of a thread's results begin."""
        bases = [*target.of("lane"), *target.of("warp")]
        free, _ = owners(target)
        if any(free >> bit & 1 and any(base) for bit, base in enumerate(bases)):  # copies that are sums of others
            return 1, [self.linear(target, first, columns) for first in firsts]
        own = [bit for bit in range(len(bases)) if not free >> bit & 1]
        stride = 1 << len(own)
        thread = self.thread_part(Share(tuple((bit, 1 << place) for place, bit in enumerate(own)), (0,)))
        places = []
        for number in range(len(firsts)):
            start = self.number(number * columns * stride)
            places.append(start if thread is None else self.add(arith.AddiOp(thread, start)).results[0])
        return stride, places

    def convert(self, op: tile.ConvertOp) -> SSAValue | None:
        """Other registers of the same thread where those hold what is wanted, or of lanes of the warp where it pays.

        Else through shared memory; None where it is `waiting` to be read there.
        """
        source, target = _layout(op.value), _layout(op.result)
        value = self.values[op.value]
        if isinstance(source, Opaque) or isinstance(target, Opaque):
            return self.convert_fragments(op, source, target)
        order = _same_thread(source, target)
        if order is not None:
            return self.picked(value, order)
        type_ = element(op.value)
        lanes = exchange(source, target, element_bytes(op.value)) if type_ != I1 else None
        if lanes is not None:
            return lanes.emit(self, value)
        bits = 8 if type_ == I1 else element_bytes(op.value) * 8
        matrix_loads = self.matrix_loads and type_ != I1  # conditions are bytes in memory, and no bytes again
        rows = rows_between(source, bits, self.memory)
        if rows is None:
            memory, loads = staging(source, target, bits)
            other = transposed_registers(source, target, bits) if loads is None or not matrix_loads else None
            if other is not None:
                source, places_of = other
                value = self.picked(value, places_of)
                memory, loads = staging(source, target, bits)
            buffer = self.shared(1 << memory.in_bits, type_)
            written, wanted = (self.staged(places(layout, memory), buffer) for layout in (source, target))
        else:
            buffer, loads = self.shared(rows.elements, type_), rows.matrix_load(target, bits)
            size, start = element_bytes(buffer), self.number(0)
            written, wanted = (Access(self, layout, rows.strides, start, (), ACCESS_BYTES, size)
                               for layout in (source, target))  # fmt: skip
        free, firsts = owners(source)

        def write() -> None:
            for start in range(0, registers(op.value), written.width):
                if start in firsts:
                    self.put(self.part(value, start, written.width), buffer, written.place(start)[0], written.align)

        def read() -> SSAValue:
            if loads is not None and matrix_loads:
                return self.load_matrices(loads, buffer, rows=rows)
            starts = range(0, registers(op.result), wanted.width)
            found = [self.get(buffer, wanted.place(start)[0], wanted.width, type_, wanted.align) for start in starts]
            return self.joined(found)

        assert isinstance(buffer.owner, simt.SharedOp)
        taken = buffer.owner.bytes
        if self.waiting and taken + sum(each.bytes for each in self.waiting.values()) > self.at_once:
            self.read_written()
        if not self.waiting:
            self.add(simt.BarrierOp())  # a trip before may still be reading
        self.where_free_is_zero(free, write)
        if taken <= self.at_once:
            self.waiting[op] = _Written(taken, read)
            return None
        self.add(simt.BarrierOp())
        return read()

    def convert_fragments(self, op: tile.ConvertOp, source: LinearLayout, target: LinearLayout) -> SSAValue:
        """To or from fragments of an unspecified layout: through shared memory, in rows."""
        value, type_, extents = self.values[op.value], element(op.value), shape(op.value)
        if source == target:
            return value
        memory = memory_between(source, target, element_bytes(op.value) * 8, self.memory)
        buffer, text = self.shared(elements_in(memory), type_), str(memory)
        self.add(simt.BarrierOp())  # a trip before may still be reading
        if isinstance(source, Opaque):
            stage_out(self, op, value, buffer, text)
        else:
            free, firsts = owners(source)
            written = self.in_memory(text, extents, source, buffer, self.number(0))

            def write() -> None:
                for start in range(0, registers(op.value), written.width):
                    if start in firsts:
                        self.put(self.part(value, start, written.width), buffer, written.place(start)[0], written.align)

            self.where_free_is_zero(free, write)
        self.add(simt.BarrierOp())
        if isinstance(target, Opaque):
            return stage_in(self, op, buffer, self.number(0), text)
        wanted = self.in_memory(text, extents, target, buffer, self.number(0))
        starts = range(0, registers(op.result), wanted.width)
        found = [self.get(buffer, wanted.place(start)[0], wanted.width, type_, wanted.align) for start in starts]
        return self.joined(found)

    def staged(self, layout: LinearLayout, buffer: SSAValue, place: SSAValue | None = None) -> Access:
        """Accesses to a tile in a buffer of the block; it begins at a multiple of 16 bytes."""
        start = self.number(0) if place is None else place
        return Access(self, layout, (1,), start, (), ACCESS_BYTES, element_bytes(buffer))

    def in_memory(
        self, memory: str, extents: Sequence[int], layout: LinearLayout, buffer: SSAValue, place: SSAValue
    ) -> Access:
        """Accesses to a tile that lies in a buffer of the block as the text of its memory says."""
        rows = padded_rows(memory, extents)
        if rows is None:
            return self.staged(places(layout, memory_of(memory, tuple(extents))), buffer, place)
        return Access(self, layout, rows.strides, place, (), ACCESS_BYTES, element_bytes(buffer))

    def stage(self, op: tile.StageOp) -> None:
        """Copies of 4, 8 or 16 bytes by the threads, as many registers at once as both memories have side by side."""
        layout = _layout(op.type)
        size = element_bytes(op.view)
        strides, bounds = [int(stride) for stride in op.strides.get_values()], [self.values[b] for b in op.bounds]
        source = Access(self, layout, strides, self.values[op.offset], bounds, op.align.value.data, size)
        target = self.in_memory(op.memory.data, shape(op.type), layout, self.values[op.buffer], self.values[op.place])
        width = min(source.width, target.width)
        free, firsts = owners(layout)

        def copy() -> None:
            for start in range(0, layout.in_size("register"), width):
                if start in firsts:
                    (here, left, allowed), (there, *_) = source.place(start), target.place(start)
                    valid = self.valid(left, allowed, width)
                    view, buffer, wide = self.values[op.view], self.values[op.buffer], width * size == ACCESS_BYTES
                    self.add(simt.AsyncCopyOp(view, here, buffer, there, width, valid, bypass=wide))

        self.conditional(self.values[op.when], lambda: self.where_free_is_zero(free, copy))

    def valid(self, left: Sequence[SSAValue], allowed: SSAValue | None, width: int) -> SSAValue | None:
        """How many of `width` elements a copy reads; None for all."""
        count: SSAValue | None = None
        if left:
            none, most = self.number(0), self.number(width)
            count = self.add(arith.MaxSIOp(self.add(arith.MinSIOp(left[0], most)).results[0], none)).results[0]
        if allowed is None:
            return count
        inside = self.number(width) if count is None else count
        return self.add(tile.SelectOp(allowed, inside, self.number(0))).results[0]

    def unstage(self, op: tile.UnstageOp) -> SSAValue:
        layout, buffer, place = _layout(op.result), self.values[op.buffer], self.values[op.place]
        if isinstance(layout, Opaque):
            return stage_in(self, op, buffer, place, op.memory.data)
        extents, bits = shape(op.result), element_bytes(buffer) * 8
        rows = padded_rows(op.memory.data, extents)
        if rows is None:
            loads = matrix_load(layout, memory_of(op.memory.data, extents), bits)
        else:
            loads = rows.matrix_load(layout, bits)
        if loads is not None and self.matrix_loads:
            return self.load_matrices(loads, buffer, place, rows)
        wanted = self.in_memory(op.memory.data, extents, layout, buffer, place)
        starts = range(0, registers(op.result), wanted.width)
        type_ = element(op.result)
        found = [self.get(buffer, wanted.place(start)[0], wanted.width, type_, wanted.align) for start in starts]
        return self.joined(found)

    def combining(self, op: tile.ReduceOp) -> Callable[[SSAValue, SSAValue], SSAValue]:
        kind, type_ = op.kind.data, element(op.value)
        table: Mapping[str, Callable[[SSAValue, SSAValue], Operation]]
        table = COMBINE_UNSIGNED if op.unsigned is not None else COMBINE_SIGNED
        if isinstance(type_, AnyFloat):
            table = COMBINE_FLOATS
        elif type_ == I1:
            table = COMBINE_BITS

        def combine(first: SSAValue, second: SSAValue) -> SSAValue:
            return self.add(table[kind](first, second)).results[0]

        return combine

    # Control flow

    def loop(self, op: scf.ForOp) -> None:
        """Of registers that hold copies of others, one goes round."""
        carried = [self.once_each(operand) for operand in op.iter_args]
        block = Block(arg_types=[INDEX, *(value.type for value in carried)])
        inner = _Expansion(block, {**self.values}, self)
        for old, new in zip(op.body.block.args, block.args, strict=True):
            new.name_hint = old.name_hint
            inner.values[old] = inner.with_copies(new, old.type)
        low, high, step = (self.values[bound] for bound in (op.lb, op.ub, op.step))
        # Before what is inside: accesses ask what the loop counts.
        made = scf.ForOp(low, high, step, carried, block)
        inner.block(op.body.block)
        self.add(made)
        for result, own in zip(op.results, made.results, strict=True):
            self.values[result] = self.with_copies(own, result.type)

    def once_each(self, value: SSAValue) -> SSAValue:
        """What the thread holds of a value, without registers that hold copies of others."""
        own = self.values[value]
        return self.picked(own, list(dict.fromkeys(_originals(value)))) if shape(value) else own

    def with_copies(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """All registers of a tile of `type_` from those that are `once_each`."""
        if not shape(type_):
            return value
        originals = _originals(type_)
        held_ = list(dict.fromkeys(originals))
        return self.picked(value, [held_.index(register) for register in originals])

    def branch(self, op: scf.IfOp) -> None:
        regions = []
        for region in op.regions:
            made = Region()
            for block in region.blocks:
                inside = Block()
                _Expansion(inside, {**self.values}, self).block(block)
                made.add_block(inside)
            regions.append(made)
        yes, no = regions
        branch = scf.IfOp(self.values[op.cond], [held(result.type) for result in op.results], yes, no)
        self.add(branch)
        self.values.update(zip(op.results, branch.results, strict=True))

    def copy(self, op: Operation) -> None:
        """The same operation on what the thread holds."""
        if not (type(op) in ELEMENT or isinstance(op, _KEPT) or not any(map(shape, (*op.operands, *op.results)))):
            raise InvalidProgram(f"{op.name} on tiles of a block", help="expand it to element operations and accesses")
        made = type(op).create(
            operands=[self.values[operand] for operand in op.operands],
            result_types=[held(result.type) for result in op.results],
            properties=op.properties,
            attributes=op.attributes,
        )
        self.add(made)
        self.values.update(zip(op.results, made.results, strict=True))

    def constant(self, op: arith.ConstantOp) -> SSAValue:
        dense = op.properties["value"]
        assert isinstance(dense, DenseIntOrFPElementsAttr)
        made = held(op.result.type)
        assert isinstance(made, TensorType)
        size = dense.get_element_type().compile_time_size
        content = dense.data.data
        if content != content[:size] * (len(content) // size):
            raise InvalidProgram("a constant tile of different elements in a block", help="load it from memory")
        type_ = dense.data.__class__
        count = made.get_shape()[0]
        return self.add(arith.ConstantOp(DenseIntOrFPElementsAttr(made, type_(content[:size] * count)))).results[0]


_KEPT = (scf.YieldOp, tile.ReturnOp)


def _layout(value: SSAValue | Attribute) -> LinearLayout:
    layout = layout_of(value)
    if layout is None:
        type_ = value.type if isinstance(value, SSAValue) else value
        raise InvalidProgram(f"{type_} has no layout", help="run assign-layouts before distribute")
    return layout


def _originals(value: SSAValue | Attribute) -> list[int]:
    """For each register of a tile the first one of the same thread that holds the same element."""
    layout = _layout(value)
    if isinstance(layout, Opaque):
        return list(range(registers(value)))
    first: dict[tuple[int, ...], int] = {}
    places = zip(*(share.registers for share in shares(layout)), strict=True)
    return [first.setdefault(place, register) for register, place in enumerate(places)]


def _same_thread(source: LinearLayout, target: LinearLayout) -> list[int] | None:
    """For each register of `target` the register of the same thread that holds its element in `source`, or None."""
    have, want = source.table(), target.table()
    found = []
    for register in range(want.shape[-1]):
        same = (have == want[..., register : register + 1]).all(axis=(0, 1))
        if not same.any():
            return None
        found.append(int(same.argmax()))
    return found
