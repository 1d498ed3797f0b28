"""Tiles of fragments of an unspecified layout, as warps load and store them: all go through memory."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue

from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import DotOp, element, shape
from tilewright.kernel.elements import ELEMENT
from tilewright.kernel.passes.gpu.distribution.layout import Share, layout_of
from tilewright.kernel.passes.gpu.distribution.matrix import fragments
from tilewright.kernel.passes.gpu.distribution.opaque import (
    ALIGNMENT_BYTES,
    Matrices,
    matrices_at,
    matrices_in,
    record_with_sums,
)
from tilewright.kernel.passes.gpu.distribution.threads import Threads
from tilewright.kernel.readers import readers
from tilewright.kernel.records import is_opaque, record_of, registry_of
from tilewright.layouts.opaque import Opaque


def load_fragments(
    at: Threads, layout: Opaque, intrinsic: str, view: SSAValue, start: SSAValue, matrices: Matrices
) -> SSAValue:
    """The fragments of a warp's part of a tile that begins at `start`, in the order of its registers."""
    _align(view)
    line, first = at.number(matrices.line), _first(at, layout, start, matrices)
    found: list[SSAValue] = []
    order: list[int] = []
    for corner, registers in fragments(layout, layout.one).items():
        offset = _plus(at, first, matrices.place(corner))
        load = simt.LoadFragmentOp(intrinsic, layout.operand, view, offset, line, len(registers), matrices.columns)
        found.append(at.add(load).results[0])
        order += registers
    return at.picked(at.joined(found), [order.index(register) for register in range(len(order))])


def store_fragments(
    at: Threads, layout: Opaque, intrinsic: str, value: SSAValue, view: SSAValue, start: SSAValue, matrices: Matrices
) -> None:
    """Store the fragments of a result; of warps that hold the same, one does.

    Raises InvalidProgram for a factor: hardware stores results only.
    """
    if layout.operand != "c":
        raise InvalidProgram(f"a tile in {layout} is stored", help="factors of a product only enter such fragments")
    _align(view)
    free = layout.free_bits()["warp"] << len(layout.of("lane"))

    def write() -> None:
        line, first = at.number(matrices.line), _first(at, layout, start, matrices)
        for corner, registers in fragments(layout, layout.one).items():
            offset, part = _plus(at, first, matrices.place(corner)), at.picked(value, registers)
            at.add(simt.StoreFragmentOp(intrinsic, part, view, offset, line, matrices.columns))

    at.where_free_is_zero(free, write)


def load_tile(at: Threads, op: tile.LoadOp, layout: Opaque, view: SSAValue, offset: SSAValue) -> SSAValue:
    """The fragments of a tile in global memory."""
    return load_fragments(at, layout, intrinsic_of(op.result, layout, op), view, offset, _whole(op, layout))


def store_tile(
    at: Threads, op: tile.StoreOp, layout: Opaque, value: SSAValue, view: SSAValue, offset: SSAValue
) -> None:
    """Store the fragments of a tile to global memory."""
    store_fragments(at, layout, intrinsic_of(op.value, layout, op), value, view, offset, _whole(op, layout))


def _whole(op: tile.LoadOp | tile.StoreOp, layout: Opaque) -> Matrices:
    found = matrices_at(op, layout)
    if found is None:
        raise InvalidProgram(f"{op.name} of a tile in {layout}", help="whole matrices, at multiples of 32 bytes")
    return found


def stage_in(
    at: Threads, op: tile.ConvertOp | tile.UnstageOp, buffer: SSAValue, start: SSAValue, memory: str
) -> SSAValue:
    """The fragments of a tile that lies in shared memory."""
    layout, (rows, columns) = _opaque(op.result), shape(op.result)
    found = matrices_in(memory, (rows, columns), layout.tile)
    return load_fragments(at, layout, intrinsic_of(op.result, layout, op), buffer, start, found)


def stage_out(at: Threads, op: tile.ConvertOp, value: SSAValue, buffer: SSAValue, memory: str) -> None:
    """Put the fragments of a tile into shared memory."""
    layout, (rows, columns) = _opaque(op.value), shape(op.value)
    found = matrices_in(memory, (rows, columns), layout.tile)
    store_fragments(at, layout, intrinsic_of(op.value, layout, op), value, buffer, at.number(0), found)


def intrinsic_of(value: SSAValue, layout: Opaque, at: Operation) -> str:
    """The record whose fragments a tile is in; `at` is an operation of its module.

    Of sums, shape and type say it; of factors, the product does.
    """
    if layout.operand == "c":
        return record_with_sums(registry_of(at), layout.instr, str(element(value)))
    for user in readers(value, lambda op: op.name in ELEMENT):
        if isinstance(user, DotOp) and is_opaque(record_of(user)):
            return str(user.intrinsic.data)
    raise InvalidProgram(f"a tile in {layout} that is no factor", help="use it in a product")


def _opaque(value: SSAValue) -> Opaque:
    layout = layout_of(value)
    assert isinstance(layout, Opaque)
    return layout


def _first(at: Threads, layout: Opaque, start: SSAValue, matrices: Matrices) -> SSAValue:
    """Where the first fragment of this warp begins."""
    lanes = len(layout.of("lane"))
    for dim, stride in enumerate(matrices.strides):
        bits = tuple((lanes + bit, base[dim]) for bit, base in enumerate(layout.of("warp")) if base[dim])
        part = at.thread_part(Share(bits, (0,)))
        if part is not None:
            step = part if stride == 1 else at.add(arith.MuliOp(part, at.number(stride))).results[0]
            start = at.add(arith.AddiOp(start, step)).results[0]
    return start


def _plus(at: Threads, value: SSAValue, distance: int) -> SSAValue:
    return value if not distance else at.add(arith.AddiOp(value, at.number(distance))).results[0]


def _align(view: SSAValue) -> None:
    """Let shared memory begin where fragments may."""
    owner = view.owner
    if isinstance(owner, simt.SharedOp) and owner.align.value.data < ALIGNMENT_BYTES:
        owner.align = IntegerAttr(ALIGNMENT_BYTES, 64)
