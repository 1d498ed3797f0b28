"""What threads do about tiles in shared memory: copies to it, and writes and reads of their registers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import arith
from xdsl.ir import Attribute, SSAValue

from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import element, shape
from tilewright.kernel.passes.gpu.distribution.access import ACCESS_BYTES, Access
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion
from tilewright.kernel.passes.gpu.distribution.layout import assigned_layout, owners
from tilewright.kernel.passes.gpu.distribution.opaque_moves import stage_in
from tilewright.kernel.passes.gpu.distribution.rows import Rows, padded_rows
from tilewright.kernel.passes.gpu.distribution.staging import memory_of, places
from tilewright.kernel.passes.gpu.distribution.threads import Threads
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.access import matrix_load
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.opaque import Opaque

Memory = LinearLayout | Rows
"""Where the elements of a tile lie in a buffer: offset to element, or rows with padding."""


def stage(at: Expansion, op: tile.StageOp) -> None:
    """Copies of 4, 8 or 16 bytes by the threads, as many registers at once as both memories have side by side."""
    layout = assigned_layout(op.type)
    size = element_bytes(op.view)
    strides, bounds = [int(stride) for stride in op.strides.get_values()], [at.values[b] for b in op.bounds]
    source = Access(at, layout, strides, at.values[op.offset], bounds, op.align.value.data, size)
    memory = memory_in(op.memory.data, shape(op.type))
    target = access_to(at, layout, memory, at.values[op.buffer], at.values[op.place])
    width = min(source.width, target.width)
    free, firsts = owners(layout)

    def copy() -> None:
        for start in range(0, layout.in_size("register"), width):
            if start in firsts:
                (here, left, allowed), (there, *_) = source.place(start), target.place(start)
                valid = _valid(at, left, allowed, width)
                view, buffer, wide = at.values[op.view], at.values[op.buffer], width * size == ACCESS_BYTES
                at.add(simt.AsyncCopyOp(view, here, buffer, there, width, valid, bypass=wide))

    at.conditional(at.values[op.when], lambda: at.where_free_is_zero(free, copy))


def _valid(at: Expansion, left: Sequence[SSAValue], allowed: SSAValue | None, width: int) -> SSAValue | None:
    """How many of `width` elements a copy reads; None for all."""
    count: SSAValue | None = None
    if left:
        none, most = at.number(0), at.number(width)
        count = at.add(arith.MaxSIOp(at.add(arith.MinSIOp(left[0], most)).results[0], none)).results[0]
    if allowed is None:
        return count
    inside = at.number(width) if count is None else count
    return at.add(tile.SelectOp(allowed, inside, at.number(0))).results[0]


def unstage(at: Expansion, op: tile.UnstageOp) -> SSAValue:
    """By matrix loads where the layout and the machine allow them, else each thread its registers."""
    layout, buffer, place = assigned_layout(op.result), at.values[op.buffer], at.values[op.place]
    if isinstance(layout, Opaque):
        return stage_in(at, op, buffer, place, op.memory.data)
    memory, bits = memory_in(op.memory.data, shape(op.result)), element_bytes(buffer) * 8
    rows = memory if isinstance(memory, Rows) else None
    loads = matrix_load(layout, memory, bits) if isinstance(memory, LinearLayout) else memory.matrix_load(layout, bits)
    if loads is not None and at.settings.matrix_loads:
        return at.load_matrices(loads, buffer, place, rows)
    return read_registers(at, layout, access_to(at, layout, memory, buffer, place), buffer, element(op.result))


def memory_in(text: str, extents: Sequence[int]) -> Memory:
    """Where the elements of a tile lie as the text of its memory says."""
    rows = padded_rows(text, extents)
    return memory_of(text, tuple(extents)) if rows is None else rows


def access_to(at: Threads, layout: LinearLayout, memory: Memory, buffer: SSAValue, place: SSAValue) -> Access:
    """Accesses to a tile that begins at a place of a buffer of the block, a multiple of 16 bytes."""
    if isinstance(memory, Rows):
        return Access(at, layout, memory.strides, place, (), ACCESS_BYTES, element_bytes(buffer))
    return Access(at, places(layout, memory), (1,), place, (), ACCESS_BYTES, element_bytes(buffer))


def write_registers(at: Threads, value: SSAValue, layout: LinearLayout, access: Access, buffer: SSAValue) -> None:
    """Every element by the first of the threads and registers that hold it."""
    free, firsts = owners(layout)

    def write() -> None:
        for start in range(0, layout.in_size("register"), access.width):
            if start in firsts:
                at.put(at.part(value, start, access.width), buffer, access.place(start)[0], access.align)

    at.where_free_is_zero(free, write)


def read_registers(at: Threads, layout: LinearLayout, access: Access, buffer: SSAValue, type_: Attribute) -> SSAValue:
    starts = range(0, layout.in_size("register"), access.width)
    return at.joined([at.get(buffer, access.place(start)[0], access.width, type_, access.align) for start in starts])
