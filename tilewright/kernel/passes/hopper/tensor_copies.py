"""Operands of products by the copy engine, products by groups of four warps, on machines that have both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr, MemRefType, ModuleOp, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from tilewright.dataclass import dataclass
from tilewright.kernel import circular_buffer
from tilewright.kernel import dialect as tile
from tilewright.kernel.attributes import set_warps, warps_of
from tilewright.kernel.dialect import I1, INDEX, FuncOp, element, operations, shape
from tilewright.kernel.facts import Facts, facts_of
from tilewright.kernel.hopper.simt_warpgroup import ROWS, WARPS
from tilewright.kernel.indices import divisor
from tilewright.kernel.passes.common.trip import computed
from tilewright.kernel.passes.gpu.distribution.access import row_bytes
from tilewright.kernel.passes.gpu.distribution.matrix import check_signs
from tilewright.kernel.passes.hopper.linear_form import LinearForm, emitted, largest, linear_form
from tilewright.kernel.records import (
    alike,
    dtypes_of,
    extents_of_record,
    fragments_record,
    is_of_four_warps,
    is_opaque,
    registry_of,
)
from tilewright.kernel.rewrite import erase, insert_before, replace_by_values
from tilewright.kernel.simt import SHARED, element_bytes
from tilewright.kernel.tensor_map_box import TensorMapBox
from tilewright.layouts.copy_engine import (
    BOX_EXTENT,
    FRAGMENT_BYTES,
    ROW_MULTIPLE,
    TENSOR_RANK,
    TRANSPOSED_BYTES,
    is_distance,
    widest_span,
)
from tilewright.layouts.shared import NvmmaShared
from tilewright.machine.units import WARPGROUP_UNITS

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic

Add = Callable[[Operation], SSAValue]
ACCUMULATORS = 128  # of a thread: of 255 registers, with those of addresses
MOST_COLUMNS = 256  # of a product
WARPS_EACH_WAY = 8
_FACTORS = {"f32": {"f16", "bf16", "tf32"}, "i32": {"i8", "u8"}}  # of products of four warps, by the type of sums


@dataclass(frozen=True)
class TensorCopiesPass(ModulePass):
    """Copy the operands of a product in a loop by boxes into a circular buffer of shared memory, and multiply there.

    Before:  scf.for %k { %x = tile.load %a[…]  %y = tile.load %b[…]  %d = tile.dot %x, %y, %c }
    After:   %r, %s, %t = tile.circular_buffer 1
             scf.for %k { produce %r[%n] { bulk_load %a to %s  bulk_load %b to %t }  consumer_wait %r[%n]
                          %e = staged_dot %s, %t, %c  %d = finish 0 %e  consumer_release %r[%n] }
    Legal for 16-bit floats with sums in f32, for f32 read as tf32 where one operand lies along k at least, for bytes
    where both do, tiles of 64 rows at least (64 columns where b of f32 lies along n), whose loads have no other use and
    no mask, of memory that the kernel does not write, in rows of a multiple of 16 bytes from such a multiple on. Bounds
    are those of the tensor; a load without them must be seen not to run over the end of a row. A tile of several
    dimensions that a reshape makes a matrix is a box of as many, as is a load of a box. For machines with the units
    tma, mbarrier and wgmma. Of f32, threads read the fragments of the operand that does not lie along k (`registers`).
    The first factor need not be loaded in the trip, where it is of 16 bits and the instruction is one of four warps: a
    tile that is loaded before the loop is brought once, into a circular buffer of its own, which is released behind the
    loop; any other tile stays in the registers of the threads.
    Where a kernel says how its `warps` are distributed, an instruction of one warp is kept, and one of four is taken
    with these warps if they fit; else it is the widest, with warps distributed so that a thread has 128 sums at most.
    Comes before `assign-layouts`.
    """

    name = "tensor-copies"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        facts = facts_of(op)
        if not facts.units >= WARPGROUP_UNITS:
            return
        for kernel in op.body.ops:
            if isinstance(kernel, FuncOp) and not kernel.block:
                written = {each.view for each in operations(kernel.body) if isinstance(each, tile.StoreOp)}
                for dot in [each for each in operations(kernel.body) if isinstance(each, tile.DotOp)]:
                    found = _product(dot, kernel, facts, written)
                    if found is not None:
                        _stage(found, kernel)


@dataclass(frozen=True)
class Tensor:
    """Memory as a tensor whose last dimension runs along it, and where in it a tile begins.

    `sides` are those of the tile along each dimension, 1 where it is at one place. Its rows are the points of all
    dimensions but the last.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    coordinates: tuple[LinearForm, ...]
    sides: tuple[int, ...]

    @property
    def walked(self) -> list[int]:
        """The dimensions along which rows follow each other."""
        return [dim for dim, side in enumerate(self.sides[:-1]) if side > 1]

    def box(self, rows: int, columns: int, swizzle: int) -> TensorMapBox:
        """A box of `rows` rows: all of them, or some of a tile with rows along one dimension."""
        outer = list(self.sides[:-1])
        if len(self.walked) == 1:
            outer[self.walked[0]] = rows
        assert prod(outer) == rows, "boxes of whole tiles, or along one dimension"
        return TensorMapBox(self.extents, self.strides, (*outer, columns), swizzle)

    def from_element(self, row: int, column: int) -> tuple[LinearForm, ...]:
        """The coordinates of an element of the tile, in its first row or where rows are along one dimension."""
        found = list(self.coordinates)
        found[-1] = found[-1] + LinearForm((), column)
        if row:
            (dim,) = self.walked
            found[dim] = found[dim] + LinearForm((), row)
        return tuple(found)


@dataclass(frozen=True)
class _Tensor(Tensor):
    """What a load reads; `reshape` makes a matrix of a tile of more dimensions."""

    load: tile.LoadOp | tile.LoadBoxOp
    reshape: tile.ReshapeOp | None
    rows: int  # of the tile
    columns: int
    transposed: bool  # its rows are the second dimension of the tile

    @property
    def size(self) -> int:
        return element_bytes(self.load.view)

    @property
    def swizzle(self) -> int:
        span = widest_span(self.columns * self.size)
        assert span is not None, "rows of boxes are no shorter"
        return span

    @property
    def memory(self) -> str:
        return str(NvmmaShared(self.swizzle, 8 * self.size, self.transposed))


@dataclass(frozen=True)
class _Product:
    dot: tile.DotOp
    loop: scf.ForOp | None  # around it; None for a product that is computed once
    intrinsic: str
    warps: tuple[int, int]
    a: _Tensor | None  # None: threads hold it
    b: _Tensor
    registers: str  # the operand whose fragments threads read, "" for none

    @property
    def stays(self) -> bool:
        """Whether a is loaded before the loop, and brought once."""
        return self.a is not None and self.a.load.parent is not self.dot.parent


def _product(dot: tile.DotOp, kernel: FuncOp, facts: Facts, written: set[SSAValue]) -> _Product | None:
    record, loop = fragments_record(dot), dot.parent_op()
    if (
        record is None
        or not _is_wide(record)
        or len(shape(dot.b)) != 2
        or (dot.precision is not None and dot.precision.data != "tf32")
    ):
        return None
    if isinstance(loop, FuncOp):
        loop = None
    elif not isinstance(loop, scf.ForOp) or _numbered(loop) is None:
        return None
    (m, k), (_, n) = shape(dot.a), shape(dot.b)
    a, b = (_tensor(operand, dot, dot.parent, written) for operand in (dot.a, dot.b))
    given = warps_of(kernel)
    if b is None or (given is not None and not is_of_four_warps(record)):
        return None
    if a is None:
        if given is None or b.size != TRANSPOSED_BYTES:
            return None
        a = None if loop is None else _before(dot, loop, written)
    registers = "" if a is None else _by_registers(a, b)
    if registers is None:
        return None
    rows, columns = _turned((m, n), registers)
    asked = None if given is None else _asked(record, rows, columns, _turned(given, registers))
    warps = asked or _warps(rows, columns, WARPS if given is None else given[0] * given[1])
    if warps is None or (asked is None and (a is None or a.load.parent is not dot.parent)):
        return None
    check_signs(dot)
    own = 32 // b.size
    bytes_ = (m * k * (a is not None) + k * n) * b.size
    odd = any(extent & (extent - 1) for extent in (m, n, k))
    if odd or k < own or bytes_ > facts.shared_bytes:
        return None
    found = alike(record, registry_of(dot), "warpgroup128", (ROWS, min(columns // warps[1], MOST_COLUMNS), own))
    return None if found is None else _Product(dot, loop, found.name, _turned(warps, registers), a, b, registers)


def _by_registers(a: _Tensor, b: _Tensor) -> str | None:
    """The operand whose fragments threads read, as `StagedDotOp` has it; None where instructions cannot multiply.

    They read operands in shared memory along k, elements of 2 bytes along m and n too, and their first operand from
    registers: of elements of 4 bytes a thread holds neighbours along k in registers apart, which it can read one by
    one.
    """
    if a.size == TRANSPOSED_BYTES or (b.transposed and not a.transposed):
        return ""
    if a.size != FRAGMENT_BYTES or (a.transposed and not b.transposed):
        return None
    return "a" if a.transposed else "b"


def _turned(pair: tuple[int, int], registers: str) -> tuple[int, int]:
    """What there is along m and n, along the rows and columns of instructions, and the other way round."""
    return (pair[1], pair[0]) if registers == "b" else pair


def _is_wide(record: Intrinsic) -> bool:
    """Whether four warps may compute a record: its fragments are documented, shared memory holds its types."""
    *factors, sums = dtypes_of(record)
    if record.group not in ("warp32", "warpgroup128") or is_opaque(record) or record.numerics.saturate:
        return False
    return set(factors) <= _FACTORS.get(sums, set())


def _asked(record: Intrinsic, m: int, n: int, warps: tuple[int, int]) -> tuple[int, int] | None:
    """The warps of the kernel, where its instruction is one of four warps that they can share the tile with.

    m and n are rows and columns of instructions, as in `_warps`.
    """
    if not is_of_four_warps(record):
        return None
    _, own, _ = extents_of_record(record)
    if warps[0] % WARPS or m % (ROWS * warps[0] // WARPS) or n != own * warps[1]:
        return None
    return warps if m * n <= warps[0] * warps[1] * 32 * ACCUMULATORS else None


def _warps(m: int, n: int, count: int) -> tuple[int, int] | None:
    """Warps along m and n, `count` of them or more, so that no thread has too many sums; None where that fails."""
    groups = max(1, count // WARPS)
    while m * n > groups * WARPS * 32 * ACCUMULATORS and groups < WARPS_EACH_WAY:
        groups *= 2
    along_m = min(groups, m // ROWS)
    if along_m < 1 or n // (groups // along_m) < 8:
        return None
    return along_m * WARPS, groups // along_m


def _before(dot: tile.DotOp, loop: scf.ForOp, written: set[SSAValue]) -> _Tensor | None:
    """What a first factor is that is loaded before the loop, where boxes of it can be copied once for all trips."""
    holder = loop.parent_op()
    if isinstance(holder, scf.ForOp) and _numbered(holder) is None:
        return None
    found = _tensor(dot.a, dot, loop.parent, written)
    return None if found is None or found.transposed else found


def _tensor(operand: SSAValue, dot: tile.DotOp, body: Block | None, written: set[SSAValue]) -> _Tensor | None:
    """What an operand is of which boxes can be copied where it is loaded, in `body`; else None."""
    made = operand.owner
    assert body is not None
    reshape = made if isinstance(made, tile.ReshapeOp) else None
    load = made if reshape is None else reshape.value.owner
    if not isinstance(load, tile.LoadOp | tile.LoadBoxOp) or load.parent is not body or load.view in written:
        return None
    users = [(load.result, dot)] if reshape is None else [(load.result, reshape), (reshape.result, dot)]
    if any({use.operation for use in value.uses} != {user} for value, user in users):
        return None
    if not isinstance(load.view.owner, Block) or load.view.owner.parent_op() is None:
        return None
    places = load.coordinates if isinstance(load, tile.LoadBoxOp) else [load.offset, *load.bounds]
    if body.args and isinstance(body.parent_op(), scf.ForOp) and computed([*places], body) is None:
        return None
    if isinstance(load, tile.LoadBoxOp):
        return _tensor_of_box(load, reshape, shape(operand))
    if load.mask is not None:
        return None
    strides, extents, size = tile.strides_of(load), shape(load.result), element_bytes(load.view)
    if 1 not in strides or not widest_span(extents[strides.index(1)] * size):
        return None
    column = list(strides).index(1)
    rows = prod(extents) // extents[column]
    transposed = column == 0
    matrix = (extents[0], rows) if transposed else (rows, extents[-1])
    if column not in (0, len(extents) - 1) or shape(operand) != matrix:
        return None
    found = tensor_of(load.view, load.offset, load.bounds, extents, strides)
    if found is None or (len(found.walked) > 1 and max(found.sides[:-1]) > BOX_EXTENT):
        return None
    return _Tensor(
        found.extents, found.strides, found.coordinates, found.sides, load, reshape, rows, extents[column], transposed
    )


def _tensor_of_box(load: tile.LoadBoxOp, reshape: tile.ReshapeOp | None, matrix: tuple[int, ...]) -> _Tensor | None:
    """What a load of a box reads, where its rows are those of the matrix."""
    (extents, strides), sides, size = load.tensor, shape(load.result), element_bytes(load.view)
    rows, columns = prod(sides[:-1]), sides[-1]
    if strides[-1] != 1 or not all(is_distance(each * size) for each in strides[:-1]) or len(strides) > TENSOR_RANK:
        return None
    if matrix != (rows, columns) or max(sides[:-1]) > BOX_EXTENT or not widest_span(columns * size):
        return None
    forms = tuple(linear_form(each) for each in load.coordinates)
    if not _begins_whole(forms[-1], size):
        return None
    return _Tensor(extents, strides, forms, sides, load, reshape, rows, columns, False)


def tensor_of(
    view: SSAValue, offset: SSAValue, bounds: Sequence[SSAValue], extents: Sequence[int], strides: Sequence[int]
) -> Tensor | None:
    """The tensor that an access to a tile is to, if boxes of it can be copied; None where that is not known.

    One of the strides is 1. All others are multiples of 16 bytes, and so are what a batch steps by and the place in a
    row where the tile begins.
    """
    assert isinstance(view.type, MemRefType)
    size, elements = element_bytes(view), int(view.type.get_shape()[0])
    column = list(strides).index(1)
    rows = [dim for dim in range(len(strides)) if dim != column]
    if not rows or not all(is_distance(strides[dim] * size) for dim in rows):
        return None
    rest = linear_form(offset)
    known: dict[int, tuple[LinearForm, int]] = {}
    for dim in (*rows, column):
        if bounds:
            form = linear_form(bounds[dim])
            start = form.without_constant().times(-1)
            if not start.factors and form.constant >= extents[dim]:
                continue  # a bound that binds nothing: as without
            known[dim] = start, form.constant
            rest = rest + start.times(-strides[dim])
    pitch = min(strides[dim] for dim in rows)
    if column not in known:
        whole, start = rest.split(pitch)
        within, apart = _within_row(start, pitch - extents[column], size)
        if within is None:
            return None
        known[column], rest = (within, pitch), whole.times(pitch) + apart
    if not _begins_whole(known[column][0], size):
        return None
    for dim in sorted(rows, key=lambda each: -strides[each]):
        if dim not in known:
            whole, rest = rest.split(strides[dim])
            most = largest(whole)
            if len(rows) == 1:
                known[dim] = whole, (elements - known[column][1]) // pitch + 1
            elif most is None:
                return None
            else:
                known[dim] = whole, most + extents[dim]
    batches = _batches(rest, size)
    if batches is None or len(batches) + len(strides) > TENSOR_RANK or not 0 < known[column][1] <= pitch:
        return None
    dims = [(form, extent, stride, 1) for form, extent, stride in batches]
    dims += [(*known[dim], strides[dim], extents[dim]) for dim in (*rows, column)]
    last = sum((extent - 1) * stride for _, extent, stride, _ in dims)
    if any(extent <= 0 for _, extent, _, _ in dims) or last >= elements:
        return None
    forms, extents_, strides_, sides = (tuple(each) for each in zip(*dims, strict=True))
    return Tensor(extents_, strides_, forms, sides)


def _begins_whole(column: LinearForm, size: int) -> bool:
    """Whether a place in a row is a multiple of 16 bytes, whatever the program and the trip are."""
    step = gcd(column.constant, *(factor * divisor(value) for value, factor in column.factors))
    return step * size % ROW_MULTIPLE == 0


def _within_row(start: LinearForm, most: int, size: int) -> tuple[LinearForm | None, LinearForm]:
    """The part of a place that is seen to be no more than `most`, and what is left: dimensions of their own.

    None where no part is.
    """
    apart = LinearForm()
    for value, step in sorted(start.factors, key=lambda each: -each[1]):
        reached = largest(start)
        if reached is not None and reached <= most:
            break
        if not is_distance(step * size):
            return None, apart
        term = LinearForm(((value, step),))
        start, apart = start + term.times(-1), apart + term
    reached = largest(start)
    return (start if reached is not None and reached <= most else None), apart


def _batches(rest: LinearForm, size: int) -> list[tuple[LinearForm, int, int]] | None:
    """What is left of an offset as dimensions further outside: each a number, its extent and its stride."""
    if rest.constant:
        return None
    steps: dict[int, LinearForm] = {}
    for value, stride in rest.factors:
        steps[stride] = steps.get(stride, LinearForm()) + LinearForm(((value, 1),))
    found = []
    for stride, form in sorted(steps.items(), key=lambda each: -each[0]):
        most = largest(form)
        if most is None or not is_distance(stride * size):
            return None
        found.append((form, most + 1, stride))
    return found


# Building -------------------------------------------------------------------------------------------------------------


def _stage(product: _Product, kernel: FuncOp) -> None:
    dot, loop, a, b = product.dot, product.loop, product.a, product.b

    def add(op: Operation) -> SSAValue:
        insert_before(dot, op)
        return op.results[0]

    a_number = None
    if a is None:
        first, (second,), number, circular = dot.a, *_brought([b], kernel, dot, loop)
    elif product.stays:
        assert loop is not None, "of a product in a loop"
        behind, holder = loop.next_op, loop.parent_op()
        assert behind is not None, "blocks end with another operation"
        (first,), a_number, whole = _brought([a], kernel, loop, holder if isinstance(holder, scf.ForOp) else None)
        insert_before(behind, circular_buffer.ConsumerReleaseOp(whole.state, a_number))
        (second,), number, circular = _brought([b], kernel, dot, loop)
    else:
        (first, second), number, circular = _brought([a, b], kernel, dot, loop)
    memory, depth = "" if a is None else a.memory, shape(dot.a)[1]
    made = add(
        circular_buffer.StagedDotOp(
            product.intrinsic, first, memory, second, b.memory, number, depth, dot.c, product.registers, a_number
        )
    )
    done = circular_buffer.FinishOp(0, made)
    insert_before(dot, done, circular_buffer.ConsumerReleaseOp(circular.state, number))
    reads = [op for each in (a, b) if each is not None for op in (each.reshape, each.load) if op is not None]
    replace_by_values(dot, done.results)
    for read in reads:
        erase(read)
    set_warps(kernel, product.warps)
    for op in operations(kernel.body):
        if isinstance(op, tile.StoreOp) and op.align is None:
            # Of all rows, not of the first: who comes later sees what need not go through the memory that circular
            # buffers want.
            known = row_bytes(op, shape(op.value))
            op.align = IntegerAttr(known, 64) if known > element_bytes(op.view) else None


def _brought(
    tensors: Sequence[_Tensor], kernel: FuncOp, place: Operation, loop: scf.ForOp | None
) -> tuple[Sequence[SSAValue], SSAValue, circular_buffer.CircularOp]:
    """Copy tiles into a new circular buffer before `place`, in every trip of `loop`, and wait for them.

    Its buffers, the number of the use, and the operation that makes it.
    """
    types = [MemRefType(element(each.load.view), [each.rows * each.columns], memory_space=SHARED) for each in tensors]
    circular = circular_buffer.CircularOp(1, MemRefType(i64, [2], memory_space=SHARED), types)
    first = kernel.body.block.first_op
    assert first is not None
    insert_before(first, circular)

    def add(op: Operation) -> SSAValue:
        insert_before(place, op)
        return op.results[0]

    number = add(arith.ConstantOp(IntegerAttr(0, INDEX))) if loop is None else _number(loop, add)
    always = add(arith.ConstantOp(IntegerAttr(1, I1)))
    inside = Block()
    for tensor, buffer in zip(tensors, circular.buffers, strict=True):
        for box in _boxes(tensor, buffer, add):
            inside.add_op(box)
    insert_before(
        place,
        circular_buffer.ProduceOp(circular.state, number, always, inside),
        circular_buffer.ConsumerWaitOp(circular.state, number),
    )
    return circular.buffers, number, circular


def _boxes(tensor: _Tensor, buffer: SSAValue, add: Add) -> list[circular_buffer.BulkLoadOp]:
    """Columns of rows as wide as the swizzle, in boxes of 256 rows at most along a dimension."""
    width = tensor.swizzle // tensor.size
    height = tensor.rows if len(tensor.walked) > 1 else min(tensor.rows, BOX_EXTENT)
    box, found = tensor.box(height, width, tensor.swizzle), []
    for column in range(0, tensor.columns, width):
        for row in range(0, tensor.rows, height):
            where = [emitted(start, add) for start in tensor.from_element(row, column)]
            place = column * tensor.rows + row * width
            found.append(circular_buffer.BulkLoadOp(tensor.load.view, where, buffer, place, box))
    return found


def _numbered(loop: scf.ForOp) -> list[scf.ForOp] | None:
    """The loop and those around it, where the trips of each are as many in every trip around; else None."""
    found, op = [loop], loop.parent_op()
    while op is not None and not isinstance(op, FuncOp):
        if not isinstance(op, scf.ForOp):
            return None
        inside = set(operations(op.body))
        for inner in found:
            for bound in (inner.lb, inner.ub, inner.step):
                owner = bound.owner
                changes = owner in inside and not isinstance(owner, arith.ConstantOp)
                if changes or (isinstance(owner, Block) and owner.parent_op() in (op, *inside)):
                    return None
        found.append(op)
        op = op.parent_op()
    return found


def _number(loop: scf.ForOp, add: Add) -> SSAValue:
    """The number of this trip among all of the kernel."""
    loops = _numbered(loop)
    assert loops is not None, "only such loops are staged"
    total: SSAValue | None = None
    for each in reversed(loops):
        own = add(arith.DivUIOp(add(arith.SubiOp(each.body.block.args[0], each.lb)), each.step))
        total = own if total is None else add(arith.AddiOp(add(arith.MuliOp(total, trips_of(each, add))), own))
    assert total is not None
    return total


def trips_of(loop: scf.ForOp, add: Add) -> SSAValue:
    """How many trips a loop has that has any."""
    return trips_between(loop.lb, loop.ub, loop.step, add)


def trips_between(low: SSAValue, high: SSAValue, step: SSAValue, add: Add) -> SSAValue:
    """How many steps it takes from `low` to `high`, one at least."""
    distance = add(arith.SubiOp(high, low))
    almost = add(arith.SubiOp(step, add(arith.ConstantOp(IntegerAttr(1, INDEX)))))
    return add(arith.DivUIOp(add(arith.AddiOp(distance, almost)), step))
