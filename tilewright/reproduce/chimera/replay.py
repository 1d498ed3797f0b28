"""Blocked nests of two products, access by access through simulated caches.

``C[m, l] += A[m, k] * B[k, l]; E[m, n] += C[m, l] * D[l, n]`` in f32, every tensor stored block after block. A block
is packed as a micro-kernel reads it: a left operand in panels of 16 rows, a right operand in panels of 16 columns, both
along the sum. A micro-kernel has 16 x 16 sums in registers: it loads them, reads a line of each panel for every step of
the sum, and stores them. So a trace has every load and store of such code, in order, with one access for loads of one
line that follow each other.

A whole nest of 2048 x 2048 matrices has 10^8 to 10^11 accesses. The steps of its outer loops are alike: each walks
blocks of the same sizes at other addresses, but for shorter blocks at the end. `windows` replays some steps of every
combination of block sizes, each behind the step before it, and counts as many times as the nest has such steps. What
that leaves out is what one step keeps for a later one than the next; tests and `whole` show that it is little.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import ceil, prod
from typing import Any, Literal

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.machine.description import Cache
from tilewright.runtime.cache_simulator import CacheSimulator, Counted, Lines, Pattern

ELEMENT_BYTES = 4
LINE_BYTES = 64
PANEL = 16  # rows of a left operand, columns of a right one, that a micro-kernel multiplies
PAGE_BYTES = 4096  # tensors begin at multiples of it
SAMPLES = 4  # steps of the outer loops that are counted for every combination of block sizes

Nest = Literal["mlkn", "mlnk", "apart"]
Sizes = Mapping[str, int]
Run = tuple[Pattern, Lines]  # a pattern of accesses, and where its arrays begin each time that it runs


@dataclass(frozen=True)
class Step:
    """All steps of the loop `inner` of one product, or one where it is empty."""

    operator: str
    inner: str


@dataclass(frozen=True)
class Phase:
    """Loops over blocks, outermost first, and what each of their steps does."""

    outer: str
    steps: tuple[Step, ...]


#: The nests of claim E11. The block of C stays in one place, but where the products run apart: C is a tensor there.
NESTS: Mapping[Nest, tuple[Phase, ...]] = {
    "mlkn": (Phase("ml", (Step("C", "k"), Step("E", "n"))),),
    "mlnk": (Phase("mln", (Step("C", "k"), Step("E", ""))),),
    "apart": (Phase("ml", (Step("C", "k"),)), Phase("ml", (Step("E", "n"),))),
}

#: A tensor with the loops of its rows and columns.
Operand = tuple[str, tuple[str, str]]

#: Left operand, right operand and result of each product.
OPERANDS: Mapping[str, tuple[Operand, Operand, Operand]] = {
    "C": (("A", ("m", "k")), ("B", ("k", "l")), ("C", ("m", "l"))),
    "E": (("C", ("m", "l")), ("D", ("l", "n")), ("E", ("m", "n"))),
}


def whole(nest: Nest, extents: Sizes, tile: Sizes, caches: Sequence[Cache]) -> tuple[Counted, ...]:
    """What a whole nest moves into every level, and out of it, from empty caches to none that is dirty."""
    simulator = CacheSimulator(caches)
    for pattern, bases in runs(nest, extents, tile):
        simulator.run(pattern, bases)
    simulator.write_back()
    return simulator.counts


def runs(nest: Nest, extents: Sizes, tile: Sizes) -> Iterator[Run]:
    """All accesses of a nest, in order."""
    blocks = _Blocks(nest, extents, tile)
    for phase in NESTS[nest]:
        for at in product(*(range(blocks.trips[loop]) for loop in phase.outer)):
            yield from blocks.runs(phase, at)


def windows(nest: Nest, extents: Sizes, tile: Sizes, caches: Sequence[Cache]) -> tuple[Counted, ...]:
    """What a nest moves, by some of its steps."""
    simulator, blocks = CacheSimulator(caches), _Blocks(nest, extents, tile)
    totals = np.zeros((len(caches), 2))
    for phase in NESTS[nest]:
        for count, places in blocks.alike(phase):
            for at in places:
                simulator.clear()
                for pattern, bases in blocks.runs_before(phase, at):
                    simulator.run(pattern, bases)
                start = _table(simulator.counts)
                for pattern, bases in blocks.runs(phase, at):
                    simulator.run(pattern, bases)
                totals += count / len(places) * (_table(simulator.counts) - start)
    rounded = np.rint(totals).astype(int).tolist()
    return tuple(Counted(cache.name, *row) for cache, row in zip(caches, rounded, strict=True))


def _table(counts: Sequence[Counted]) -> np.ndarray[Any, Any]:
    return np.array([(each.fills, each.write_backs) for each in counts], dtype=float)


class _Blocks:
    """Where the blocks of all tensors of a nest begin, and how a step walks them."""

    def __init__(self, nest: Nest, extents: Sizes, tile: Sizes) -> None:
        self.extents, self.tile = extents, {loop: min(tile[loop], extent) for loop, extent in extents.items()}
        self.trips = {loop: ceil(extent / self.tile[loop]) for loop, extent in extents.items()}
        self.fused = nest != "apart"
        self.starts: dict[str, int] = {}
        line = 0
        for tensor, loops in dict(each for operands in OPERANDS.values() for each in operands).items():
            self.starts[tensor] = line
            blocks = 1 if self._stays(tensor) else prod(self.trips[loop] for loop in loops)
            pages = ceil(blocks * self._block_lines(loops) * LINE_BYTES / PAGE_BYTES)
            line += pages * PAGE_BYTES // LINE_BYTES

    def runs(self, phase: Phase, at: Sequence[int]) -> Iterator[Run]:
        """What a phase accesses in one step of its outer loops."""
        outer = dict(zip(phase.outer, at, strict=True))
        for step in phase.steps:
            full = self.extents[step.inner] // self.tile[step.inner] if step.inner else 1
            for first, end in ((0, full), (full, self.trips[step.inner] if step.inner else 1)):
                if first < end:
                    places = {**outer, step.inner: first} if step.inner else outer
                    steps = np.arange(first, end)
                    bases = [self._bases(operand, outer, step.inner, steps) for operand in OPERANDS[step.operator]]
                    yield self._pattern(step.operator, places), np.stack(bases, axis=1)

    def runs_before(self, phase: Phase, at: Sequence[int]) -> Iterator[Run]:
        """What the step of the outer loops before this one accesses; nothing before the first."""
        trips = [self.trips[loop] for loop in phase.outer]
        number = int(np.ravel_multi_index(at, trips))
        if number:
            yield from self.runs(phase, tuple(map(int, np.unravel_index(number - 1, trips))))

    def alike(self, phase: Phase) -> Iterator[tuple[int, list[tuple[int, ...]]]]:
        """For every combination of block sizes of the outer loops: how many steps have it, and some of them.

        The steps are drawn by chance: where blocks begin in the sets of a cache repeats itself after some steps.
        """
        roll, ranges = random.Random(0), []
        for loop in phase.outer:
            full = self.extents[loop] // self.tile[loop]
            ranges.append([each for each in ((0, full), (full, self.trips[loop])) if each[0] < each[1]])
        for combination in product(*ranges):
            count = prod(end - first for first, end in combination)
            if count <= SAMPLES:
                yield count, list(product(*(range(first, end) for first, end in combination)))
            else:
                yield count, [tuple(roll.randrange(first, end) for first, end in combination) for _ in range(SAMPLES)]

    def _bases(self, operand: Operand, outer: Sizes, inner: str, steps: Lines) -> Lines:
        """The lines where an operand's blocks begin in some steps of the inner loop."""
        tensor, (rows, columns) = operand
        if self._stays(tensor):
            return np.full_like(steps, self.starts[tensor])
        row, column = (steps if loop == inner else outer[loop] for loop in (rows, columns))
        block = row * self.trips[columns] + column
        return np.broadcast_to(self.starts[tensor] + block * self._block_lines((rows, columns)), steps.shape)

    def _pattern(self, operator: str, at: Sizes) -> Pattern:
        (_, (rows, sums)), (_, (_, columns)), _ = OPERANDS[operator]
        return product_pattern(*(self._size(loop, at[loop]) for loop in (rows, sums, columns)))

    def _size(self, loop: str, place: int) -> int:
        return min(self.tile[loop], self.extents[loop] - place * self.tile[loop])

    def _block_lines(self, loops: tuple[str, str]) -> int:
        return ceil(prod(self.tile[loop] for loop in loops) * ELEMENT_BYTES / LINE_BYTES)

    def _stays(self, tensor: str) -> bool:
        return tensor == "C" and self.fused


@lru_cache(maxsize=256)
def product_pattern(rows: int, sums: int, columns: int) -> Pattern:
    """The accesses of ``result[i, j] += left[i, x] * right[x, j]`` on packed blocks; arrays are left, right, result.

    A result is packed as a left operand, which it is of the next product.
    """
    parts: list[Lines] = []
    for i in range(0, rows, PANEL):
        height = min(PANEL, rows - i)
        left = _lines(i * sums, height, sums)
        for j in range(0, columns, PANEL):
            width = min(PANEL, columns - j)
            operands = np.concatenate([left, _lines(j * sums, width, sums)], axis=1).reshape(-1)
            result = np.unique(_lines(i * columns + j * height, height, width))
            parts += [_accesses(result, 2, 0), _accesses(operands, [0, 0, 1, 1] * sums, 0), _accesses(result, 2, 1)]
    accesses = np.concatenate(parts, axis=1)
    same_line = np.all(accesses[:, 1:] == accesses[:, :-1], axis=0)  # as the access before
    return Pattern(*accesses[:, np.concatenate([[True], ~same_line])])


def _lines(start: int, length: int, count: int) -> Lines:
    """The first and the last line of runs of up to `PANEL` elements that follow each other."""
    first = start + length * np.arange(count)
    return np.stack([first, first + length - 1], axis=1) * ELEMENT_BYTES // LINE_BYTES


def _accesses(lines: Lines, arrays: int | list[int], write: int) -> Lines:
    return np.stack([lines, np.broadcast_to(arrays, lines.shape), np.full_like(lines, write)])
