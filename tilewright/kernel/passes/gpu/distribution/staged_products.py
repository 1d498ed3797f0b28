"""What threads do about products of four warps whose operands lie in circular buffers.

Instructions read operands in shared memory themselves. The first one, a of ``d = a * b + c``, they also take from
registers. Either threads hold it; or they read its fragments, those of the next steps of k while the products of
earlier ones are under way, and every step of k is a group of products of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.kernel import circular_buffer
from tilewright.kernel import dialect as tile
from tilewright.kernel.hopper.simt_warpgroup import (
    MOST_PENDING,
    WARPS,
    Matrix,
    WarpgroupCommitOp,
    WarpgroupFenceOp,
    WarpgroupMmaOp,
    WarpgroupWaitOp,
    WarpIdOp,
)
from tilewright.kernel.passes.gpu.distribution.expansion import Expansion
from tilewright.kernel.passes.gpu.distribution.layout import assigned_layout, canonical, shares
from tilewright.kernel.passes.gpu.distribution.matrix import fragments
from tilewright.kernel.passes.gpu.distribution.warpgroup import (
    Operand,
    fragments_along,
    fragments_in,
    one_fragment,
    operand_of,
)
from tilewright.kernel.records import extents_of_record, record_of
from tilewright.kernel.simt import element_bytes
from tilewright.layouts.linear import LinearLayout

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic

# Chosen, not measured: with 4 steps of k in a slot, 4 sets of fragments take turns.
STEPS_AHEAD = 2  # fragments are read so many steps of k before the products that take them
UNDER_WAY = 2  # steps of k whose products may be under way while fragments are read
VECTOR_BYTES = 16  # of a read of shared memory, at most

Corner = tuple[int, ...]


def staged_dot(at: Expansion, op: circular_buffer.StagedDotOp) -> SSAValue:
    """One product per part of the result and step of k; k outermost, so that neighbours are independent."""
    layout = assigned_layout(op.c)
    record = record_of(op)
    if op.by_registers:
        parts = fragments_along(record, layout, 2, op.by_registers)
        products = _by_registers
    else:
        parts = fragments(layout, canonical(one_fragment(record, 2)))
        products = _in_memory if not op.holds_a else _held
    held = {start: at.picked(at.values[op.c], registers) for start, registers in parts.items()}
    held = products(at, op, record, layout, held)
    joined = at.joined(list(held.values()))
    order = [register for registers in parts.values() for register in registers]
    return at.picked(joined, [order.index(register) for register in range(len(order))])


def finish(at: Expansion, op: circular_buffer.FinishOp) -> SSAValue:
    """Wait for all products of tiles but the latest; each is one group of products or several."""
    pending = min(op.pending.value.data * _groups(op.value), MOST_PENDING)
    return at.add(WarpgroupWaitOp(pending, [at.values[op.value]])).results[0]


def _groups(value: SSAValue) -> int:
    """Groups of products that a product of tiles is; one where that is not known."""
    op = value.owner
    if not isinstance(op, circular_buffer.StagedDotOp) or not op.by_registers:
        return 1
    return op.extents[2] // extents_of_record(record_of(op))[2]


def _in_memory(
    at: Expansion, op: circular_buffer.StagedDotOp, record: Intrinsic, layout: LinearLayout,
    held: dict[Corner, SSAValue],
) -> dict[Corner, SSAValue]:  # fmt: skip
    """Products whose operands instructions read."""
    a, b = (_InSlot.of(at, op, layout, dim) for dim in range(2))
    held = _fenced(at, held)
    for k in _steps(op, record):
        for (row, column), sums in held.items():
            product = WarpgroupMmaOp(
                op.intrinsic.data, a.view, a.start(row, k), a.matrix, b.view, b.start(column, k), b.matrix, sums
            )
            held[row, column] = at.add(product).results[0]
    at.add(WarpgroupCommitOp())
    return held


def _held(
    at: Expansion, op: circular_buffer.StagedDotOp, record: Intrinsic, layout: LinearLayout,
    held: dict[Corner, SSAValue],
) -> dict[Corner, SSAValue]:  # fmt: skip
    """Products whose first operand threads hold."""
    own = assigned_layout(op.a)
    a, b = fragments(own, canonical(one_fragment(record, 0))), _InSlot.of(at, op, layout, 1)
    pieces = {(0, *start): at.picked(at.values[op.a], registers) for start, registers in a.items()}
    ready = _fenced(at, {**pieces, **held})
    held = {start: ready[start] for start in held}
    for k in _steps(op, record):
        for (row, column), sums in held.items():
            first, second = ready[0, row, k], b.start(column, k)
            product = WarpgroupMmaOp(op.intrinsic.data, first, None, None, b.view, second, b.matrix, sums)
            held[row, column] = at.add(product).results[0]
    at.add(WarpgroupCommitOp())
    return held


def _by_registers(
    at: Expansion, op: circular_buffer.StagedDotOp, record: Intrinsic, layout: LinearLayout,
    held: dict[Corner, SSAValue],
) -> dict[Corner, SSAValue]:  # fmt: skip
    """Products whose first operand threads read.

    Registers of a step's fragments may be those of the same step in the trip before: its products are done by then.
    """
    outer = 1 if op.by_registers == "b" else 0  # the dimension of the tile that rows of instructions run along
    read, other = _Fragments(at, op, record, layout, outer), _InSlot.of(at, op, layout, 1 - outer)
    steps = _steps(op, record)
    ahead = min(STEPS_AHEAD, max(1, len(steps) // 2))
    under_way = min(UNDER_WAY, len(steps) - ahead)
    rows = sorted({start[outer] for start in held})
    found: dict[int, dict[int, SSAValue]] = {}
    for number, k in enumerate(steps):
        for later in steps[number + ahead - 1 if number else 0 : number + ahead]:
            found[later] = {row: read.of(row, later) for row in rows}
        ready = _fenced(at, {**held, **{(row,): value for row, value in found.pop(k).items()}})
        for start in held:
            first, second = ready[(start[outer],)], other.start(start[1 - outer], k)
            product = WarpgroupMmaOp(
                op.intrinsic.data, first, None, None, other.view, second, other.matrix, ready[start]
            )
            held[start] = at.add(product).results[0]
        at.add(WarpgroupCommitOp())
        done = at.add(WarpgroupWaitOp(under_way, list(held.values()))).results
        held = dict(zip(held, done, strict=True))
    return held


def _steps(op: circular_buffer.StagedDotOp, record: Intrinsic) -> range:
    return range(0, op.extents[2], extents_of_record(record)[2])


def _fenced(at: Expansion, values: Mapping[Corner, SSAValue]) -> dict[Corner, SSAValue]:
    return dict(zip(values, at.add(WarpgroupFenceOp(list(values.values()))).results, strict=True))


# Operands in a slot ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _InSlot:
    """An operand that instructions read: its part of this group of warps begins at element `first` of the buffer."""

    threads: Expansion
    view: SSAValue
    first: SSAValue
    operand: Operand

    @classmethod
    def of(cls, at: Expansion, op: circular_buffer.StagedDotOp, layout: LinearLayout, dim: int) -> _InSlot:
        """Of a (`dim` 0) or b: in the slot, at the rows of a or columns of b that are the group's in `layout`."""
        view, memory, number = op.staged[dim - 2]
        operand = operand_of(memory, op.extents[dim], op.extents[2], element_bytes(view), dim)
        first = _slot(at, view, number)
        for bit, bases in enumerate(layout.of("warp")[WARPS.bit_length() - 1 :]):
            if not bases[dim]:
                continue
            warp = at.add(WarpIdOp()).results[0]
            high = at.add(arith.ShRUIOp(warp, at.number(bit + WARPS.bit_length() - 1))).results[0]
            one = at.add(arith.AndIOp(high, at.number(1))).results[0]
            first = _add(at, first, at.add(arith.MuliOp(one, at.number(operand.place(bases[dim], 0)))).results[0])
        return cls(at, at.values[view], first, operand)

    @property
    def matrix(self) -> Matrix:
        return self.operand.matrix

    def start(self, outer: int, depth: int) -> SSAValue:
        """Where the part from (outer, depth) on begins."""
        return _add(self.threads, self.first, self.threads.number(self.operand.place(outer, depth)))


class _Fragments:
    """Reads the fragments of an operand that threads read, by vectors of what lies side by side."""

    def __init__(
        self, at: Expansion, op: circular_buffer.StagedDotOp, record: Intrinsic, layout: LinearLayout, dim: int
    ) -> None:
        """Of a (`dim` 0) or b, for the result in `layout`."""
        (m, n, depth), self.turn = op.extents, -1 if dim else 1
        (view, memory, number), extents = op.staged[dim], (depth, n) if dim else (m, depth)
        warps = tuple(1 << sum(base[each] > 0 for base in layout.of("warp")) for each in range(2))
        places, offsets = fragments_in(record, memory, extents, (warps[0], warps[1]), op.by_registers)
        self.at, self.view, self.first = at, at.values[view], _slot(at, view, number)
        self.registers = fragments_along(record, places, 0, op.by_registers)
        (self.share,) = shares(offsets)
        self.bytes = element_bytes(view)
        self.count = 1  # elements of a vector
        own = {base[0] for base in offsets.of("register")}
        while self.count in own and not self.share.mask & self.count and self.count * self.bytes < VECTOR_BYTES:
            self.count *= 2
        self.vectors: dict[int, SSAValue] = {}

    def of(self, outer: int, depth: int) -> SSAValue:
        """The fragment that begins at (outer, depth)."""
        at, pieces = self.at, []
        for register in self.registers[(outer, depth)[:: self.turn]]:
            place = self.share.registers[register]
            start = place & -self.count
            if start not in self.vectors:
                offset = _add(at, self.first, at.coordinate(self.share, self.share.registers.index(start)))
                vector = tile.LoadOp(self.view, offset, (self.count,), (1,), align=self.count * self.bytes)
                self.vectors[start] = at.add(vector).results[0]
            pieces.append(at.part(self.vectors[start], place - start))
        return at.joined(pieces)


def _slot(at: Expansion, view: SSAValue, number: SSAValue) -> SSAValue:
    """The element of a buffer at which the slot of a use begins."""
    circular = view.owner
    assert isinstance(circular, circular_buffer.CircularOp)
    slot = at.add(arith.RemUIOp(at.values[number], at.number(circular.slots.value.data))).results[0]
    return at.add(arith.MuliOp(slot, at.number(circular.slot_elements(view)))).results[0]


def _add(at: Expansion, a: SSAValue, b: SSAValue) -> SSAValue:
    return at.add(arith.AddiOp(a, b)).results[0]
