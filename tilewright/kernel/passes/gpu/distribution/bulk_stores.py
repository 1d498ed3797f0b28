"""What threads do to store a tile by bulk copies: they write their part to shared memory, and one starts copies."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram
from tilewright.kernel import bulk_stores, simt
from tilewright.kernel.dialect import element, shape
from tilewright.kernel.hopper.simt_async import FenceOp, TensorCommitOp, TensorStoreOp, TensorWaitOp
from tilewright.kernel.passes.gpu.distribution.circular_buffer import SLOT_ALIGN
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion
from tilewright.kernel.passes.gpu.distribution.layout import Share, assigned_layout, canonical, owners
from tilewright.kernel.passes.gpu.distribution.shared_tiles import access_to, write_registers
from tilewright.kernel.passes.gpu.distribution.threads import Threads
from tilewright.kernel.simt import SHARED, element_bytes
from tilewright.layouts.access import matrix_load
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.shared import NvmmaShared


@dataclass(frozen=True)
class _Turn:
    """One part of a tile: the registers that hold it, and for each of its boxes row and column of the tile."""

    registers: tuple[int, ...]
    starts: tuple[tuple[int, int], ...]


def expand(at: Expansion, op: bulk_stores.BulkStoreOp) -> None:
    """Emit what threads do: wait until a buffer has left, write a part to it, have one thread send its boxes."""
    layout = assigned_layout(op.value)
    form, size = op.form, element_bytes(op.view)
    own, turns = _turns(layout, op.turns.value.data, form.sides[-2:])
    memory = NvmmaShared(form.swizzle, 8 * size).to_linear(own.shape)
    buffers, elements = op.buffers, op.buffer_elements
    shared = simt.SharedOp(MemRefType(element(op.value), [buffers * elements], memory_space=SHARED), SLOT_ALIGN)
    at.first.at_entry(shared)
    buffer, view = shared.result, at.values[op.view]
    first = [at.values[coordinate] for coordinate in op.coordinates]
    for number, turn in enumerate(turns):
        start = number % buffers * elements
        at.once(lambda: _emit(at, TensorWaitOp(buffers - 1)))
        at.add(simt.BarrierOp())
        part = at.picked(at.values[op.value], turn.registers)
        _write(at, part, own, memory, buffer, at.number(start), size)
        at.add(FenceOp("async"))
        at.add(simt.BarrierOp())
        at.once(_sending(at, turn, view, buffer, start, first, op))


def finish(at: Threads) -> None:
    """Emit the wait of the thread that has started copies."""
    at.once(lambda: _emit(at, TensorWaitOp(0)))


def _emit(at: Threads, op: TensorWaitOp) -> None:
    at.add(op)


def _turns(layout: LinearLayout, turns: int, sides: tuple[int, ...]) -> tuple[LinearLayout, list[_Turn]]:
    """The layout of a part of a tile, and the parts: those bits of the columns that tell them apart are of registers.

    Raises InvalidProgram where the registers of a thread have not as many of them.
    """
    (rows, columns), (height, width) = layout.shape, sides
    bits = [(number, base) for number, base in enumerate(layout.of("register"))]
    apart = [(number, base[1]) for number, base in bits if base[1] >= width and not base[0]]
    apart = apart[len(apart) - turns.bit_length() + 1 :]
    if 1 << len(apart) != turns:
        raise InvalidProgram(f"{layout} in {turns} turns", help="fewer turns: columns of registers tell them apart")
    gone = sum(column for _, column in apart)
    numbers = {number for number, _ in apart}
    names = ("register", "lane", "warp")
    bases = tuple(
        (name, tuple(
            (base[0], _squeezed(base[1], gone))
            for number, base in enumerate(layout.of(name)) if name != "register" or number not in numbers
        )) for name in names
    )  # fmt: skip
    (row, _), (column, _) = layout.outs
    part = canonical(LinearLayout(bases, ((row, rows), (column, columns // turns))))
    kept = [number for number, _ in bits if number not in numbers]
    found = []
    for turn in range(turns):
        chosen = sum(1 << number for place, (number, _) in enumerate(apart) if turn >> place & 1)
        at = sum(step for place, (_, step) in enumerate(apart) if turn >> place & 1)
        registers = tuple(
            chosen | sum(1 << number for place, number in enumerate(kept) if r >> place & 1)
            for r in range(1 << len(kept))
        )
        starts = tuple(
            (down, at + _spread(across, gone))
            for across in range(0, columns // turns, width) for down in range(0, rows, height)
        )  # fmt: skip
        found.append(_Turn(registers, starts))
    return part, found


def _squeezed(number: int, gone: int) -> int:
    """A number without the bits of `gone`.

    >>> _squeezed(0b1010, 0b0100)
    6
    """
    result, place = 0, 0
    for bit in range(max(number, gone).bit_length()):
        if not gone >> bit & 1:
            result |= (number >> bit & 1) << place
            place += 1
    return result


def _spread(number: int, gone: int) -> int:
    """The inverse of `_squeezed`: zeros where `gone` has bits.

    >>> _spread(6, 0b0100)
    10
    """
    result, bit = 0, 0
    while number:
        if not gone >> bit & 1:
            result |= (number & 1) << bit
            number >>= 1
        bit += 1
    return result


def _write(
    at: Threads, part: SSAValue, layout: LinearLayout, memory: LinearLayout, buffer: SSAValue, start: SSAValue,
    size: int,
) -> None:  # fmt: skip
    """Registers to memory: by matrices of 8 rows where lanes hold such, else each thread its own."""
    free, firsts = owners(layout)
    stores = matrix_load(layout, memory, 8 * size)
    if stores is not None and not stores.access.conflicts and not free and len(firsts) == shape(part)[0]:
        lanes = [(bit, offset) for bit, offset in enumerate(stores.lane_offsets) if offset]
        warps = [(5 + bit, offset) for bit, offset in enumerate(stores.warp_offsets) if offset]
        own = [0]
        for offset in stores.instruction_offsets:
            own += [before ^ offset for before in own]
        share, count = Share((*lanes, *warps), tuple(own)), shape(part)[0] // stores.instructions
        for number in range(stores.instructions):
            place = at.add(arith.AddiOp(start, at.coordinate(share, number))).results[0]
            piece = at.part(part, number * count, count)
            at.add(simt.StoreMatrixOp(piece, buffer, place, stores.count, stores.transposed))
        return
    write_registers(at, part, layout, access_to(at, layout, memory, buffer, start), buffer)


def _sending(
    at: Threads, turn: _Turn, view: SSAValue, buffer: SSAValue, start: int, first: list[SSAValue],
    op: bulk_stores.BulkStoreOp,
) -> Callable[[], None]:  # fmt: skip
    def send() -> None:
        for number, offsets in enumerate(turn.starts):
            where = [
                value if not offset else at.add(arith.AddiOp(value, at.number(offset))).results[0]
                for value, offset in zip(first, [0] * (len(first) - 2) + list(offsets), strict=True)
            ]
            place = at.number(start + number * prod(op.form.sides))
            at.add(TensorStoreOp(buffer, place, view, where, op.form))
        at.add(TensorCommitOp())

    return send
