"""What threads do to convert tiles to other layouts: in registers, between lanes, or through shared memory.

Conversions that follow each other may pass through memory together. Each is then written where it stands and waits in
`Expansion.waiting`; the next operation that may not come before their barrier has all of them read.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import I1, element, shape
from tilewright.kernel.passes.common.effects import PURE
from tilewright.kernel.passes.gpu.distribution.exchange import exchange
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion, Written
from tilewright.kernel.passes.gpu.distribution.layout import assigned_layout
from tilewright.kernel.passes.gpu.distribution.opaque import elements_in, memory_between
from tilewright.kernel.passes.gpu.distribution.opaque_moves import stage_in, stage_out
from tilewright.kernel.passes.gpu.distribution.register_tiles import transposed_registers
from tilewright.kernel.passes.gpu.distribution.rows import rows_between
from tilewright.kernel.passes.gpu.distribution.shared_tiles import Memory, access_to, read_registers, write_registers
from tilewright.kernel.passes.gpu.distribution.staging import staging
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.opaque import Opaque


def convert(at: Expansion, op: tile.ConvertOp) -> SSAValue | None:
    """Other registers of the same thread where those hold what is wanted, or of lanes of the warp where it pays.

    Else through shared memory; None where it is `waiting` to be read there.
    """
    source, target = assigned_layout(op.value), assigned_layout(op.result)
    if isinstance(source, Opaque) or isinstance(target, Opaque):
        return _convert_fragments(at, op, source, target)
    order = _same_thread(source, target)
    if order is not None:
        return at.picked(at.values[op.value], order)
    lanes = exchange(source, target, element_bytes(op.value)) if element(op.value) != I1 else None
    if lanes is not None:
        return lanes.emit(at, at.values[op.value])
    return _through_memory(at, op, source, target)


def may_wait(at: Expansion, op: Operation) -> bool:
    """Whether conversions that are written may be read behind an operation."""
    if any(operand.owner in at.waiting for operand in op.operands):
        return False
    scalar = op.name in PURE and not any(map(shape, (*op.operands, *op.results)))
    return scalar or isinstance(op, tile.ConvertOp | tile.LoadOp)


def read_waiting(at: Expansion) -> None:
    """Read what conversions have written, behind one barrier for all."""
    waiting, at.waiting = at.waiting, {}
    barrier = at.add(simt.BarrierOp())
    barrier.location = next(iter(waiting)).location
    for op, written in waiting.items():
        before = at.target.last_op
        at.values[op.result] = written.read()
        at.locate(op, before)


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


def _through_memory(at: Expansion, op: tile.ConvertOp, source: LinearLayout, target: LinearLayout) -> SSAValue | None:
    """Written behind a barrier, or beside other conversions that wait; None where this one waits as well."""
    value, type_ = at.values[op.value], element(op.value)
    bits = 8 if type_ == I1 else element_bytes(op.value) * 8
    matrix_loads = at.settings.matrix_loads and type_ != I1  # conditions are bytes in memory, and no bytes again
    memory: Memory
    rows = rows_between(source, bits, at.settings.memory)
    if rows is None:
        memory, loads = staging(source, target, bits)
        other = transposed_registers(source, target, bits) if loads is None or not matrix_loads else None
        if other is not None:
            source, order = other
            value = at.picked(value, order)
            memory, loads = staging(source, target, bits)
        buffer = at.shared(1 << memory.in_bits, type_)
    else:
        memory, loads = rows, rows.matrix_load(target, bits)
        buffer = at.shared(rows.elements, type_)
    start = at.number(0)
    written, wanted = (access_to(at, layout, memory, buffer, start) for layout in (source, target))

    def read() -> SSAValue:
        if loads is not None and matrix_loads:
            return at.load_matrices(loads, buffer, rows=rows)
        return read_registers(at, target, wanted, buffer, type_)

    assert isinstance(buffer.owner, simt.SharedOp)
    taken = buffer.owner.bytes
    if at.waiting and taken + sum(each.bytes for each in at.waiting.values()) > at.settings.at_once:
        read_waiting(at)
    if not at.waiting:
        at.add(simt.BarrierOp())  # a trip before may still be reading
    write_registers(at, value, source, written, buffer)
    if taken <= at.settings.at_once:
        at.waiting[op] = Written(taken, read)
        return None
    at.add(simt.BarrierOp())
    return read()


def _convert_fragments(at: Expansion, op: tile.ConvertOp, source: LinearLayout, target: LinearLayout) -> SSAValue:
    """To or from fragments of an unspecified layout: through shared memory, in rows."""
    value, type_ = at.values[op.value], element(op.value)
    if source == target:
        return value
    memory = memory_between(source, target, element_bytes(op.value) * 8, at.settings.memory)
    buffer = at.shared(elements_in(memory), type_)
    at.add(simt.BarrierOp())  # a trip before may still be reading
    if isinstance(source, Opaque):
        stage_out(at, op, value, buffer, str(memory))
    else:
        write_registers(at, value, source, access_to(at, source, memory, buffer, at.number(0)), buffer)
    at.add(simt.BarrierOp())
    if isinstance(target, Opaque):
        return stage_in(at, op, buffer, at.number(0), str(memory))
    return read_registers(at, target, access_to(at, target, memory, buffer, at.number(0)), buffer, type_)
