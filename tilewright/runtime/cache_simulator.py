"""Counts what a sequence of accesses moves between the levels of a cache hierarchy.

Every level is set-associative, replaces the least recently used line of a set, and allocates a line for a write as for
a read. An access that misses is one of the next level out. These are the rules of cachegrind, which stops there; here
a line that was written is also written back when it is replaced. A write-back marks the line in the next level that
holds it: it is no access there, and changes no order. Misses are therefore those of cachegrind at every level.

Accesses are to whole lines, by number. The inner loop is LLVM IR that is made for the hierarchy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from string import Template
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.machine.description import Cache
from tilewright.runtime.loader import Code, load_ir

Lines = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Pattern:
    """Accesses that a step of a program makes, in order, relative to where its arrays begin.

    Access i is to line ``offsets[i]`` of array ``arrays[i]``, which it writes where ``writes[i]`` is 1.
    """

    offsets: Lines
    arrays: Lines
    writes: Lines


@dataclass(frozen=True)
class Counted:
    """Lines that one level took from outside, and lines that it wrote back."""

    name: str
    fills: int
    write_backs: int


class CacheSimulator:
    """Caches, innermost first, that begin empty and keep their contents from one run to the next."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        """Raises InvalidArgument for no cache, or lines of several sizes."""
        sizes = {cache.line_bytes for cache in caches}
        if len(sizes) != 1:
            fact = f"lines of {' and '.join(map(str, sorted(sizes)))} bytes" if sizes else "no cache"
            raise InvalidArgument(fact, where="caches", help="one cache or more, with lines of one size")
        self.caches = tuple(caches)
        self._state = np.full(sum(cache.sets * cache.lines_per_set for cache in caches), _EMPTY, np.int64)
        self._counts = np.zeros(2 * len(caches), np.int64)
        self._code = _compiled(tuple((cache.sets, cache.lines_per_set) for cache in caches))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        prototype = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer, number, pointer, number, number)
        self._replay = prototype(self._code.address("replay"))

    def run(self, pattern: Pattern, bases: Lines) -> None:
        """The accesses of a pattern once for each row of `bases`: the line where every array begins in that step.

        Lines have numbers of 0 or more. Raises InvalidArgument for others, or where a step lacks an array.
        """
        bases = np.ascontiguousarray(bases, np.int64)
        if not len(pattern.offsets) or not bases.size:
            return
        if bases.ndim != 2 or int(pattern.arrays.max()) >= bases.shape[1]:
            raise InvalidArgument(f"bases have the shape {bases.shape}", where="bases",
                                  help=f"steps x {int(pattern.arrays.max()) + 1} arrays")  # fmt: skip
        if int(pattern.offsets.min()) < 0 or int(bases.min()) < 0:
            raise InvalidArgument("a line has a negative number", where="bases", help="number lines from 0")
        accesses = np.ascontiguousarray(2 * pattern.offsets + pattern.writes, np.int64)
        arrays = np.ascontiguousarray(pattern.arrays, np.int64)
        self._replay(self._state.ctypes.data, self._counts.ctypes.data, accesses.ctypes.data, arrays.ctypes.data,
                     len(accesses), bases.ctypes.data, bases.shape[1], bases.shape[0])  # fmt: skip

    def access(self, lines: Sequence[int] | Lines, writes: Sequence[int] | Lines | None = None) -> None:
        """Accesses to lines by number, all reads without `writes`."""
        offsets = np.asarray(lines, np.int64)
        zeros = np.zeros_like(offsets)
        written = zeros if writes is None else np.asarray(writes, np.int64)
        self.run(Pattern(offsets, zeros, written), np.zeros((1, 1), np.int64))

    def clear(self) -> None:
        """Empty all caches and forget what was counted."""
        self._state.fill(_EMPTY)
        self._counts.fill(0)

    def write_back(self) -> None:
        """Write back every line that was written: each is written back from the level that holds it out to memory."""
        dirty: set[int] = set()
        start = 0
        for level, cache in enumerate(self.caches):
            entries = self._state[start : start + cache.sets * cache.lines_per_set]
            start += len(entries)
            dirty |= set((entries[(entries & 1) == 1] >> 1).tolist())
            entries &= ~1
            self._counts[2 * level + 1] += len(dirty)

    @property
    def counts(self) -> tuple[Counted, ...]:
        """What every level has moved so far, innermost first."""
        pairs = self._counts.reshape(-1, 2).tolist()
        return tuple(Counted(cache.name, *pair) for cache, pair in zip(self.caches, pairs, strict=True))


# The inner loop -------------------------------------------------------------------------------------------------------

_EMPTY = -2  # an entry is twice the line's number, and 1 more where it was written; entries of a set: newest first


@lru_cache(maxsize=8)
def _compiled(shapes: tuple[tuple[int, int], ...]) -> Code:
    """`replay`, and for every level what an access to it and a write-back to it do; shapes are sets and ways."""
    parts, offset = [_REPLAY], 0
    for level, (sets, ways) in enumerate(shapes):
        parts.append(Template(_LEVEL).substitute(
            LEVEL=level, OUTER=level + 1, SETS=sets, WAYS=ways, OFFSET=offset, FILLS=2 * level,
            WRITE_BACKS=2 * level + 1,
        ))  # fmt: skip
        offset += sets * ways
    parts.append(Template(_MEMORY).substitute(LEVEL=len(shapes)))
    return load_ir("".join(parts), ["replay"])


_REPLAY = """
define void @replay(ptr %state, ptr %counts, ptr %accesses, ptr %arrays, i64 %length, ptr %bases, i64 %width,
                    i64 %steps) {
entry:
  br label %step
step:
  %s = phi i64 [ 0, %entry ], [ %next_s, %latch ]
  %row_at = mul i64 %s, %width
  %row = getelementptr i64, ptr %bases, i64 %row_at
  br label %one
one:
  %i = phi i64 [ 0, %step ], [ %next_i, %one ]
  %access_at = getelementptr i64, ptr %accesses, i64 %i
  %access = load i64, ptr %access_at
  %array_at = getelementptr i64, ptr %arrays, i64 %i
  %array = load i64, ptr %array_at
  %base_at = getelementptr i64, ptr %row, i64 %array
  %base = load i64, ptr %base_at
  %offset = ashr i64 %access, 1
  %write = and i64 %access, 1
  %line = add i64 %base, %offset
  call void @access0(ptr %state, ptr %counts, i64 %line, i64 %write)
  %next_i = add i64 %i, 1
  %more_i = icmp slt i64 %next_i, %length
  br i1 %more_i, label %one, label %latch
latch:
  %next_s = add i64 %s, 1
  %more_s = icmp slt i64 %next_s, %steps
  br i1 %more_s, label %step, label %done
done:
  ret void
}
"""

# An access looks for its line from the newest entry on, and moves every entry that it passes back by one place.
_LEVEL = """
define internal void @access$LEVEL(ptr %state, ptr %counts, i64 %line, i64 %write) {
entry:
  %set = urem i64 %line, $SETS
  %first = mul i64 %set, $WAYS
  %start = add i64 %first, $OFFSET
  %newest_at = getelementptr i64, ptr %state, i64 %start
  %newest = load i64, ptr %newest_at
  %newest_line = ashr i64 %newest, 1
  %is_newest = icmp eq i64 %newest_line, %line
  br i1 %is_newest, label %again, label %search
again:
  %marked = or i64 %newest, %write
  store i64 %marked, ptr %newest_at
  ret void
search:
  %way = phi i64 [ 1, %entry ], [ %next_way, %look ]
  %passed = phi i64 [ %newest, %entry ], [ %here, %look ]
  %more = icmp ult i64 %way, $WAYS
  br i1 %more, label %look, label %miss
look:
  %at = getelementptr i64, ptr %newest_at, i64 %way
  %here = load i64, ptr %at
  store i64 %passed, ptr %at
  %here_line = ashr i64 %here, 1
  %is_here = icmp eq i64 %here_line, %line
  %next_way = add i64 %way, 1
  br i1 %is_here, label %hit, label %search
hit:
  %moved = or i64 %here, %write
  store i64 %moved, ptr %newest_at
  ret void
miss:
  %twice = shl i64 %line, 1
  %filled = or i64 %twice, %write
  store i64 %filled, ptr %newest_at
  %fills_at = getelementptr i64, ptr %counts, i64 $FILLS
  %fills = load i64, ptr %fills_at
  %more_fills = add i64 %fills, 1
  store i64 %more_fills, ptr %fills_at
  %dirty = trunc i64 %passed to i1
  br i1 %dirty, label %replaced, label %fetch
replaced:
  %replaced_line = ashr i64 %passed, 1
  call void @count$LEVEL(ptr %counts)
  call void @write_back$OUTER(ptr %state, ptr %counts, i64 %replaced_line)
  br label %fetch
fetch:
  call void @access$OUTER(ptr %state, ptr %counts, i64 %line, i64 0)
  ret void
}
define internal void @count$LEVEL(ptr %counts) {
  %at = getelementptr i64, ptr %counts, i64 $WRITE_BACKS
  %before = load i64, ptr %at
  %after = add i64 %before, 1
  store i64 %after, ptr %at
  ret void
}
define internal void @write_back$LEVEL(ptr %state, ptr %counts, i64 %line) {
entry:
  %set = urem i64 %line, $SETS
  %first = mul i64 %set, $WAYS
  %start = add i64 %first, $OFFSET
  %newest_at = getelementptr i64, ptr %state, i64 %start
  br label %search
search:
  %way = phi i64 [ 0, %entry ], [ %next_way, %look ]
  %more = icmp ult i64 %way, $WAYS
  br i1 %more, label %look, label %absent
look:
  %at = getelementptr i64, ptr %newest_at, i64 %way
  %here = load i64, ptr %at
  %here_line = ashr i64 %here, 1
  %is_here = icmp eq i64 %here_line, %line
  %next_way = add i64 %way, 1
  br i1 %is_here, label %hit, label %search
hit:
  %marked = or i64 %here, 1
  store i64 %marked, ptr %at
  ret void
absent:
  call void @count$LEVEL(ptr %counts)
  call void @write_back$OUTER(ptr %state, ptr %counts, i64 %line)
  ret void
}
"""

_MEMORY = """
define internal void @access$LEVEL(ptr %state, ptr %counts, i64 %line, i64 %write) {
  ret void
}
define internal void @write_back$LEVEL(ptr %state, ptr %counts, i64 %line) {
  ret void
}
"""
