"""The arena never overlaps what is live together, and is not much larger than it has to be."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.runtime.memory import ALIGNMENT, HUGE_PAGE, LiveBuffer, align, aligned, allocate, plan_arena


@st.composite
def buffer_lists(draw: st.DrawFn) -> list[LiveBuffer]:
    count = draw(st.integers(0, 20))
    buffers = []
    for index in range(count):
        first = draw(st.integers(0, 15))
        last = first + draw(st.integers(0, 6))
        buffers.append(LiveBuffer(f"b{index}", draw(st.integers(0, 5000)), first, last))
    return buffers


def largest_live_sum(buffers: list[LiveBuffer]) -> int:
    steps = range(max((b.last_use for b in buffers), default=0) + 1)
    return max(sum(align(b.bytes) for b in buffers if b.first_use <= step <= b.last_use) for step in steps)


@given(buffer_lists())
@settings(max_examples=tries(30, full=150), deadline=None)
def test_live_buffers_do_not_overlap(buffers: list[LiveBuffer]) -> None:
    offsets, total = plan_arena(buffers)
    assert set(offsets) == {buffer.name for buffer in buffers}
    for index, a in enumerate(buffers):
        assert offsets[a.name] % ALIGNMENT == 0
        assert 0 <= offsets[a.name] <= total - a.bytes
        for b in buffers[:index]:
            if a.first_use <= b.last_use and b.first_use <= a.last_use and a.bytes and b.bytes:
                a_begin, b_begin = offsets[a.name], offsets[b.name]
                assert a_begin + a.bytes <= b_begin or b_begin + b.bytes <= a_begin
    assert largest_live_sum(buffers) <= total <= sum(align(b.bytes) for b in buffers)


def test_a_chain_needs_two_buffers() -> None:
    chain = [LiveBuffer(f"layer{i}", 1 << 20, i, i + 1) for i in range(50)]
    assert plan_arena(chain)[1] == 2 << 20


def test_a_network_with_skips_needs_no_more_than_is_live() -> None:
    buffers = []
    for block in range(10):
        buffers.append(LiveBuffer(f"skip{block}", 4096 << (block % 3), 4 * block, 4 * block + 4))
        buffers += [LiveBuffer(f"x{block}.{i}", 1000 * (i + 1), 4 * block + i, 4 * block + i + 1) for i in range(3)]
    assert plan_arena(buffers)[1] == largest_live_sum(buffers)  # largest first alone needs 1.12 of it


def test_bad_buffers() -> None:
    with pytest.raises(ValueError, match="not a buffer"):
        LiveBuffer("x", -1, 0, 0)
    with pytest.raises(ValueError, match="not a buffer"):
        LiveBuffer("x", 1, 2, 1)
    with pytest.raises(ValueError, match="same name"):
        plan_arena([LiveBuffer("x", 1, 0, 0), LiveBuffer("x", 1, 1, 1)])


@pytest.mark.parametrize("size", [1, 64, 1000, HUGE_PAGE, HUGE_PAGE + 1])
def test_allocated_memory_is_aligned_and_zero(size: int) -> None:
    memory = allocate(size)
    assert memory.shape == (size,)
    assert allocate(0).shape == (0,)
    assert memory.ctypes.data % (HUGE_PAGE if size >= HUGE_PAGE else ALIGNMENT) == 0
    assert not memory.any()
    memory[:] = 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("size", "advised"),
    [
        (HUGE_PAGE, HUGE_PAGE),
        (HUGE_PAGE + 1, HUGE_PAGE),
        (6 * HUGE_PAGE - 1000, 6 * HUGE_PAGE),
        (9 * HUGE_PAGE + 1, 10 * HUGE_PAGE),
    ],
)
def test_the_last_bytes_are_in_a_huge_page_where_that_costs_little_memory(size: int, advised: int) -> None:
    memory = allocate(size)
    start = memory.ctypes.data
    assert _advised_bytes(start, start + align(size, HUGE_PAGE)) == advised


def _advised_bytes(start: int, stop: int) -> int:
    """Bytes between two addresses that the system was told to keep in huge pages."""
    begin = end = total = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            begin, end = (int(place, 16) for place in match.groups())
        elif line.startswith("VmFlags:") and " hg" in line:
            total += max(0, min(end, stop) - max(begin, start))
    return total


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_write_into_the_parents_memory() -> None:
    memory = allocate(2 * HUGE_PAGE)
    child = os.fork()
    if child == 0:
        memory[:] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert not memory.any()


def test_aligned_copies_only_what_is_not() -> None:
    memory = allocate(256)
    memory[:] = np.arange(256, dtype=np.uint8)
    assert aligned(memory) is memory
    shifted = memory[1:]
    assert aligned(shifted).ctypes.data % ALIGNMENT == 0
    assert np.array_equal(aligned(shifted), shifted)
