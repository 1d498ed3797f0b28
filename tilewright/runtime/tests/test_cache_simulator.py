"""The cache simulator: against lists that are kept by hand, against cachegrind, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.under_valgrind import cachegrind, needs_valgrind
from tilewright.errors import InvalidArgument
from tilewright.machine.description import Cache
from tilewright.runtime.cache_simulator import CacheSimulator, Counted, Pattern


def cache(name: str, lines: int, ways: int, line_bytes: int = 64) -> Cache:
    return Cache(name=name, bytes=lines * line_bytes, ways=ways, line_bytes=line_bytes, shared_by=1)


class Reference:
    """Sets as lists, the oldest line first, by the words of the module's docstring."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self.caches = caches
        self.sets: list[list[list[int]]] = [[[] for _ in range(each.sets)] for each in caches]
        self.dirty: list[set[int]] = [set() for _ in caches]
        self.fills, self.write_backs = [0] * len(caches), [0] * len(caches)

    def access(self, line: int, write: bool, level: int = 0) -> None:
        if level == len(self.caches):
            return
        lines = self.sets[level][line % self.caches[level].sets]
        if line in lines:
            lines.remove(line)
        else:
            self.fills[level] += 1
            if len(lines) == self.caches[level].ways:
                oldest = lines.pop(0)
                if oldest in self.dirty[level]:
                    self.dirty[level].remove(oldest)
                    self.write_back(oldest, level)
            self.access(line, False, level + 1)
        lines.append(line)
        if write:
            self.dirty[level].add(line)

    def write_back(self, line: int, level: int) -> None:
        self.write_backs[level] += 1
        for outer in range(level + 1, len(self.caches)):
            if line in self.sets[outer][line % self.caches[outer].sets]:
                self.dirty[outer].add(line)
                return
            self.write_backs[outer] += 1


HIERARCHIES = (
    (cache("L1", 8, 1),),
    (cache("L1", 16, 16),),
    (cache("L1", 12, 4),),  # three sets
    (cache("L1", 16, 2), cache("L2", 64, 4)),
    (cache("L1", 16, 4), cache("L2", 16, 1), cache("L3", 99, 11)),  # a second level that holds no more than the first
)


@pytest.mark.parametrize("caches", HIERARCHIES, ids=lambda caches: "-".join(str(c.bytes // 64) for c in caches))
def test_random_accesses_count_as_in_lists(caches: Sequence[Cache]) -> None:
    roll = random.Random(1)
    simulator, reference = CacheSimulator(caches), Reference(caches)
    for _ in range(40):
        reach = roll.choice((4, 20, 60, 200))
        lines = [roll.randrange(reach) for _ in range(200)]
        writes = [roll.randrange(2) for _ in lines]
        simulator.access(lines, writes)
        for line, write in zip(lines, writes, strict=True):
            reference.access(line, bool(write))
        assert [each.fills for each in simulator.counts] == reference.fills
        assert [each.write_backs for each in simulator.counts] == reference.write_backs
    dirty = set[int]().union(*reference.dirty)
    before = simulator.counts[-1].write_backs
    simulator.write_back()
    assert simulator.counts[-1].write_backs == before + len(dirty)
    simulator.write_back()
    assert simulator.counts[-1].write_backs == before + len(dirty)


def test_a_pattern_runs_once_for_each_row_of_bases() -> None:
    caches = (cache("L1", 16, 2), cache("L2", 64, 4))
    pattern = Pattern(*np.array([[0, 1, 0, 5, 1], [0, 0, 1, 1, 0], [0, 1, 0, 0, 0]]))
    bases = np.array([[0, 100], [2, 100], [0, 108]])
    patterned, listed = CacheSimulator(caches), CacheSimulator(caches)
    patterned.run(pattern, bases)
    for row in bases:
        listed.access(row[pattern.arrays] + pattern.offsets, pattern.writes)
    assert patterned.counts == listed.counts
    assert patterned.counts[0] != Counted("L1", 0, 0)


def test_an_empty_run_counts_nothing_and_clear_forgets() -> None:
    simulator = CacheSimulator((cache("L1", 16, 2),))
    simulator.access([])
    simulator.access([3, 3, 4], [1, 0, 0])
    assert simulator.counts == (Counted("L1", 2, 0),)
    simulator.clear()
    assert simulator.counts == (Counted("L1", 0, 0),)
    simulator.access([3])
    simulator.write_back()
    assert simulator.counts == (Counted("L1", 1, 0),)


@pytest.mark.parametrize(
    ("caches", "message"),
    [((), "no cache"), ((cache("L1", 8, 2), cache("L2", 64, 4, 128)), "lines of 64 and 128 bytes")],
)
def test_a_hierarchy_has_lines_of_one_size(caches: Sequence[Cache], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        CacheSimulator(caches)
    assert error.value.help


def test_lines_that_do_not_exist_are_refused() -> None:
    simulator = CacheSimulator((cache("L1", 8, 2),))
    with pytest.raises(InvalidArgument, match="negative"):
        simulator.access([-1])
    pattern = Pattern(*np.array([[0], [2], [0]]))
    with pytest.raises(InvalidArgument, match=r"\(1, 2\)") as error:
        simulator.run(pattern, np.zeros((1, 2), np.int64))
    assert error.value.help == "steps x 3 arrays"


# Cachegrind -----------------------------------------------------------------------------------------------------------

WALK = """
#include <stdint.h>
#include <stdlib.h>

__attribute__((noinline)) void counted(volatile char *base, long count, uint64_t near, uint64_t far) {
  uint64_t seed = 1;
  for (long i = 0; i < count; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    uint64_t line = (seed >> 40) % (seed >> 35 & 1 ? near : far);
    if (seed >> 36 & 1) base[64 * line] = 1; else (void)base[64 * line];
  }
}

int main(void) { counted(aligned_alloc(1 << 20, 1 << 20), COUNT, NEAR, FAR); }
"""


def walked(count: int, near: int, far: int) -> tuple[list[int], list[int]]:
    """Lines that the program above accesses, and whether it writes them."""
    lines, writes, seed = [], [], 1
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        lines.append((seed >> 40) % (near if seed >> 35 & 1 else far))
        writes.append(seed >> 36 & 1)
    return lines, writes


@needs_valgrind
@pytest.mark.parametrize(
    ("first", "last", "near", "far"),
    [
        (cache("D1", 512, 8), cache("LL", 4096, 16), 400, 6000),
        (cache("D1", 64, 2), cache("LL", 1024, 4), 90, 1500),
        (cache("D1", 32, 32), cache("LL", 128, 1), 40, 200),
    ],
)
def test_misses_are_those_of_cachegrind(first: Cache, last: Cache, near: int, far: int, tmp_path: Path) -> None:
    """A walk whose lines are computed in registers: it accesses nothing else."""
    count = 60_000
    misses = cachegrind(WALK, {"COUNT": count, "NEAR": near, "FAR": far}, (first, last), tmp_path)
    simulator = CacheSimulator((first, last))
    simulator.access(*walked(count, near, far))
    assert tuple(each.fills for each in simulator.counts) == misses
    assert min(misses) > 1000
