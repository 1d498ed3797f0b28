"""The shared layout for a pair: a tile that is written in one layout and read in another, without bank conflicts.

A linear map from offsets to elements has three parts: low bits that both sides hold in consecutive registers (a vector
access), bits within a line of all banks, and the rest. An access is free of conflicts if no two lanes of a group differ
by a sum of the rest. So the rest spans a complement of what the lanes hold: of two spaces of equal size there is always
a common one, whose basis pairs what only the one has with what only the other has.
"""

from __future__ import annotations

from itertools import chain, takewhile

from tilewright.errors import InvalidArgument
from tilewright.layouts.access import (
    LINE_BYTES,
    WIDEST_BITS,
    WORD_BYTES,
    SharedAccess,
    contiguity,
    shared_access,
)
from tilewright.layouts.bits import Span, independent, intersection, log2
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.shared import checked_bits


def shared_for_pair(write: LinearLayout, read: LinearLayout, bits: int) -> LinearLayout:
    """Offset to index, such that both sides are free of bank conflicts, with the fewest accesses: of vectors that both
    sides have, or wider ones of one side, between the words of which lanes of the other choose.

    Raises InvalidArgument for layouts of different tiles, or that do not hold all of it.
    """
    checked_bits(bits)
    if write.shape != read.shape or not write.is_surjective or not read.is_surjective:
        raise InvalidArgument(f"no shared layout between {write} and {read}", help="layouts that hold one whole tile")
    limit = log2(WIDEST_BITS // bits)
    vector = _common_vector(write, read, limit)
    while True:
        memory = _with_vector(write, read, bits, vector)
        if all(contiguity(side, memory) >= 1 << len(vector) for side in (write, read)):
            break
        vector.pop()  # other bits of a side touch the vector too
    found = [memory]
    for side in (write, read):
        registers = list(side.columns_of("register"))
        for count in range(min(limit, len(registers)), len(vector), -1):
            if len(independent(registers[:count], [])) == count:
                memory = _with_vector(write, read, bits, registers[:count])
                if contiguity(side, memory) >= 1 << count and not any(_conflicts(write, read, memory, bits)):
                    found.append(memory)
                    break
    return min(found, key=lambda memory: sum(each.accesses for each in _accesses(write, read, memory, bits)))


def _accesses(write: LinearLayout, read: LinearLayout, memory: LinearLayout, bits: int) -> list[SharedAccess]:
    return [shared_access(side, memory, bits) for side in (write, read)]


def _conflicts(write: LinearLayout, read: LinearLayout, memory: LinearLayout, bits: int) -> list[int]:
    return [each.conflicts for each in _accesses(write, read, memory, bits)]


def _common_vector(write: LinearLayout, read: LinearLayout, limit: int) -> list[int]:
    """The low register bits that both sides have, in order, at most `limit`."""
    found: list[int] = []
    for a, b in zip(write.columns_of("register"), read.columns_of("register"), strict=False):
        if a != b or len(found) == limit or a in Span(found):
            break
        found.append(a)
    return found


def _with_vector(write: LinearLayout, read: LinearLayout, bits: int, vector: list[int]) -> LinearLayout:
    """The layout whose low bits are a vector."""
    units = [1 << bit for bit in range(write.out_bits)]
    filled = max(0, log2(max(1, WORD_BYTES * 8 // bits)) - len(vector))
    low = vector + independent(chain(write.columns_of("lane"), units), vector)[:filled]  # lanes may share a word
    line = min(log2(LINE_BYTES * 8 // bits), len(units)) - len(low)  # bits of a line beyond those
    first, second = (_lanes(side, low, line, units, _reach(side, vector, bits)) for side in (write, read))
    shared = independent(intersection([*low, *first], [*low, *second]), low)
    only_first = independent(first, [*low, *shared])
    only_second = independent(second, [*low, *shared])
    rest = [a ^ b for a, b in zip(only_first, only_second, strict=True)]
    rest += independent(units, [*low, *first, *only_second])
    return LinearLayout((("offset", tuple(write.index(column) for column in (*low, *first, *rest))),), write.outs)


def _reach(side: LinearLayout, vector: list[int], bits: int) -> int:
    """How many bits number the lanes of a group, whose accesses together are a line."""
    own = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(side.columns_of("register"), vector, strict=False))
    )
    return log2(LINE_BYTES // max(WORD_BYTES, (bits << own) // 8))


def _lanes(side: LinearLayout, low: list[int], line: int, units: list[int], reach: int) -> list[int]:
    """What the lanes of a group hold, beyond the low bits; filled up to a line with other elements."""
    lanes = side.columns_of("lane")[:reach]
    registers = side.columns_of("register")
    return independent(chain(lanes, registers, units), low)[:line]
