"""Conversions between layouts within a warp: lanes exchange their registers by shuffles, nothing lies in shared memory.

The rounds are those of `layouts.shuffle`. Which register a lane sends in a round, and where it keeps what it gets, may
depend on the lane: registers are then exchanged in pairs, where one bit of that dependence says so, by selections.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt
from tilewright.kernel.dialect import shape
from tilewright.kernel.passes.gpu.distribution.layout import Share
from tilewright.kernel.passes.gpu.distribution.threads import Threads
from tilewright.layouts.bits import independent, log2
from tilewright.layouts.conversion import gather_plan, paired
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.opaque import Opaque
from tilewright.layouts.shuffle import Shuffles, shuffles_of

WORD_COST = 2.0  # of 4 bytes that a thread writes, reads, or gets by a shuffle; a selection of them costs 1
BARRIER_COST = 16.0  # of the two of a conversion through shared memory
Bits = tuple[tuple[int, int], ...]  # of the thread's number: which bit, and what it contributes


def price(source: LinearLayout, target: LinearLayout, size: int) -> float:
    """Of a conversion of elements of `size` bytes, in instructions of a thread: 0 where it has them all itself."""
    if source == target or gather_plan(source, target, ("register",)) is not None:
        return 0.0
    told = not isinstance(source, Opaque) and not isinstance(target, Opaque)
    plan = exchange(source, target, size) if told else None
    return _through_memory(source, target, size) if plan is None else plan.price(size)


@dataclass(frozen=True)
class Exchange:
    """Rounds of shuffles of words, each of ``1 << low`` neighbouring registers, which travel together."""

    rounds: Shuffles
    low: int

    def emit(self, at: Threads, value: SSAValue) -> SSAValue:
        """The registers of the target from those of the source."""
        plan, width = self.rounds, 1 << self.low
        words = [at.part(value, start, width) for start in range(0, shape(value)[0], width)]
        sent = _Exchanged(at, words, _by_thread(plan.send), width)
        source, variant = _by_thread(plan.source), _by_thread(((), plan.variant))
        got: list[SSAValue] = []
        for k in range(plan.registers):
            chosen: SSAValue | None = None
            for e in plan.variants:
                word = _shuffled(at, sent[_image(plan.send[0], k) ^ e], _image(plan.source[0], k), source, plan.lanes)
                if chosen is None:
                    chosen = word
                else:
                    mine = at.add(tile.CompareOp("eq", _part(at, variant), at.number(e))).results[0]
                    chosen = at.add(tile.SelectOp(at.repeated(mine, width), word, chosen)).results[0]
            assert chosen is not None
            got.append(chosen)
        kept = _Exchanged(at, got, _by_thread(plan.keep), width)
        return at.joined([kept[k] for k in range(plan.registers)])

    def price(self, size: int) -> float:
        """In instructions of a thread, for elements of `size` bytes."""
        plan, words = self.rounds, max(1, (size << self.low) // 4)
        selections = len(_basis(_by_thread(plan.send))) + len(_basis(_by_thread(plan.keep))) + len(plan.variants) - 1
        return words * (WORD_COST * plan.rounds + selections * plan.registers)


@lru_cache(maxsize=1024)
def exchange(source: LinearLayout, target: LinearLayout, size: int) -> Exchange | None:
    """The rounds for elements of `size` bytes; None where a warp has not all, or shared memory costs less."""
    gather = gather_plan(source, target, ("register", "lane"))
    if gather is None:
        return None
    low = min(paired(gather), log2(max(1, 4 // size)))
    found = Exchange(shuffles_of(_of_words(gather, low)), low)
    return found if found.price(size) < _through_memory(source, target, size) else None


def _of_words(gather: LinearLayout, low: int) -> LinearLayout:
    """The map for groups of ``1 << low`` registers, which it leaves together."""
    place = gather.out_names.index("register")
    bases = tuple(
        (name, tuple(tuple(value >> low if i == place else value for i, value in enumerate(base)) for base in vectors))
        for name, vectors in ((name, each[low:] if name == "register" else each) for name, each in gather.bases)
    )
    return LinearLayout(bases, tuple((name, size >> low if name == "register" else size) for name, size in gather.outs))


def _through_memory(source: LinearLayout, target: LinearLayout, size: int) -> float:
    return WORD_COST * (_accesses(source, size) + _accesses(target, size)) + BARRIER_COST


def _accesses(layout: LinearLayout, size: int) -> float:
    """Accesses of 4 bytes by which a thread writes or reads what it holds, more where neighbours are not together."""
    bases, run = layout.of("register"), 1
    for base in bases:
        if sum(base) != run or size * run >= 4:
            break
        run *= 2
    return max(1.0, (1 << len(bases)) * max(size / 4, 1 / run))


# Registers that depend on the lane ------------------------------------------------------------------------------------


class _Exchanged:
    """Words by number, which a map of the thread's bits is XORed to: selections, made as they are asked for."""

    def __init__(self, at: Threads, words: Sequence[SSAValue], bits: Bits, width: int) -> None:
        self.at, self.width = at, width
        self.found = {(0, number): word for number, word in enumerate(words)}
        self.steps: list[tuple[int, SSAValue]] = []
        basis = _basis(bits)
        if basis:
            total = _part(at, bits)
            for vector, pivot in basis:
                bit = at.add(arith.AndIOp(total, at.number(pivot))).results[0]
                holds = at.add(tile.CompareOp("ne", bit, at.number(0))).results[0]
                self.steps.append((vector, at.repeated(holds, width)))

    def __getitem__(self, number: int) -> SSAValue:
        return self._after(len(self.steps), number)

    def _after(self, step: int, number: int) -> SSAValue:
        if (step, number) not in self.found:
            vector, holds = self.steps[step - 1]
            other, own = self._after(step - 1, number ^ vector), self._after(step - 1, number)
            self.found[step, number] = self.at.add(tile.SelectOp(holds, other, own)).results[0]
        return self.found[step, number]


def _shuffled(at: Threads, word: SSAValue, number: int, bits: Bits, lanes: int) -> SSAValue:
    """A word of lane ``number ^ map``; of the lane itself without a shuffle."""
    if bits == tuple((bit, 1 << bit) for bit in range(log2(lanes))):
        return at.add(simt.ShuffleOp("xor", word, at.number(number))).results[0] if number else word
    lane = _part(at, bits)
    if number:
        lane = at.add(arith.XOrIOp(lane, at.number(number))).results[0]
    return at.add(simt.ShuffleOp("index", word, lane)).results[0]


def _by_thread(columns: Sequence[Sequence[int]]) -> Bits:
    """The columns of the thread's bits, lanes before warps, of columns whose first are of another number."""
    flat = [column for part in columns[1:] for column in part]
    return tuple((bit, column) for bit, column in enumerate(flat) if column)


def _part(at: Threads, bits: Bits) -> SSAValue:
    found = at.thread_part(Share(bits, (0,)))
    return at.number(0) if found is None else found


def _basis(bits: Bits) -> list[tuple[int, int]]:
    """Vectors that span the columns, each with a bit that no other vector has: it says whether a sum has the vector."""
    rows = independent(column for _, column in bits)
    pivots: list[int] = []
    for index in range(len(rows)):
        pivot = 1 << rows[index].bit_length() - 1
        rows = [row ^ rows[index] if other != index and row & pivot else row for other, row in enumerate(rows)]
        pivots.append(pivot)
    return list(zip(rows, pivots, strict=True))


def _image(columns: Sequence[int], value: int) -> int:
    total = 0
    for bit, column in enumerate(columns):
        total ^= column if value >> bit & 1 else 0
    return total
