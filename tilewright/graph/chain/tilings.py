"""The tile sizes of one candidate: the exact optimum over trip counts, or a relaxed one with a search around it.

Traffic depends on a tile only through the trips of its loop, so that one size per number of trips is enough (spec 1,
section 3.8). Loops that traffic does not depend on have their smallest tile. All combinations are evaluated at once;
along one loop the largest tile that fits follows from the others. Where there are too many combinations, SLSQP solves
the relaxed problem from several starts, and a search of neighbours makes each result whole (section 3.15).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.graph.chain.candidates import Candidate
from tilewright.graph.chain.closed_form import distinct_tiles
from tilewright.graph.chain.index import Index
from tilewright.graph.chain.loops import Chain
from tilewright.graph.chain.movement import Moves

Array = np.ndarray[Any, Any]

MOST_POINTS = 200_000  #: combinations that are evaluated one by one; more take longer than the relaxed solution
STARTS = 8  #: of SLSQP
MOST_ELEMENTS = np.iinfo(np.int64).max  #: more than any tiling moves


@dataclass(frozen=True)
class Memory:
    """One memory level as the solver sees it, in elements, or in bytes with `weighted`.

    `seconds` are per element (byte) that moves into it or out of it, `seconds_per_flop` of the arithmetic that runs at
    the same time; with the default the volume is minimised alone. `smallest` are the least tiles by loop; with
    `aligned`, tiles are multiples of them where they are not whole. `largest` are the tiles of the level outside.
    """

    capacity: int
    seconds: float = 1.0
    seconds_per_flop: float = 0.0
    smallest: Mapping[str, int] | None = None
    largest: Mapping[str, int] | None = None
    aligned: bool = False
    weighted: bool = False


@dataclass(frozen=True)
class Tiling:
    """Tile sizes with what they cost: `seconds` in the unit of `Memory`, and the volume DV.

    `moves` are the formulas of the candidate; memory counts in bytes where it is `weighted`.
    """

    tile: Mapping[str, int]
    seconds: float
    volume: int
    moves: Moves
    weighted: bool

    @property
    def memory(self) -> int:
        """What it holds at most, MU."""
        return int(self.moves.memory(self.tile, self.weighted))


def best_tiling(candidate: Candidate, memory: Memory, *, most_points: int = MOST_POINTS) -> Tiling | None:
    """The best tiles of a candidate, or None where not even the smallest fit."""
    space = _Space(candidate, memory)
    if not space.possible:
        return None
    return space.enumerated() if space.points <= most_points else space.relaxed()


def lower_bound(candidate: Candidate, memory: Memory) -> float:
    """Seconds that no tiling of a candidate beats: every tile as large as it fits alone; infinite if none fits."""
    space = _Space(candidate, memory)
    if not space.possible:
        return float("inf")
    picks = {loop: space.most(loop) for loop in space.loops}
    if min(picks.values(), default=0) < 0:
        return float("inf")
    return float(space.evaluate({loop: np.array(pick) for loop, pick in picks.items()})[0])


@lru_cache(maxsize=4096)
def _tiles(extent: int, smallest: int, multiple: int, largest: int) -> Array:
    """The `distinct_tiles` of a loop up to the largest; read-only, since all spaces have the same array."""
    tiles = np.array([tile for tile in distinct_tiles(extent, smallest, multiple) if tile <= largest], dtype=np.int64)
    tiles.setflags(write=False)
    return tiles


class _Space:
    """All tilings of a candidate: a pick is the position of a tile in the list of its loop."""

    def __init__(self, candidate: Candidate, memory: Memory) -> None:
        self.moves, self.memory = candidate.moves, memory
        self.chain: Chain = candidate.moves.chain
        chain = self.chain
        smallest, largest = memory.smallest or {}, memory.largest or chain.extents
        self.fixed: dict[str, int] = {}
        self.sizes: dict[str, Array] = {}
        self.possible = True
        for loop, extent in chain.extents.items():
            least = min(smallest.get(loop, 1), extent)
            if loop in candidate.whole or loop in chain.windows:
                self.fixed[loop] = extent
                self.possible &= loop in chain.windows or largest[loop] >= extent
            elif loop not in self.moves.free:
                self.fixed[loop] = least
                self.possible &= largest[loop] >= least
            else:
                multiple = smallest.get(loop, 1) if memory.aligned else 1
                self.sizes[loop] = _tiles(extent, least, multiple, largest[loop])
                self.possible &= len(self.sizes[loop]) > 0
        self.loops = tuple(self.sizes)
        self._tables: dict[tuple[Index, bool], Array] = {}

    # Costs ------------------------------------------------------------------------------------------------------------

    def tile(self, picks: Mapping[str, Array]) -> dict[str, Any]:
        return {**self.fixed, **{loop: self.sizes[loop][pick] for loop, pick in picks.items()}}

    def evaluate(self, picks: Mapping[str, Array]) -> tuple[Array, Array]:
        """Seconds and volume at every point of broadcast picks."""
        tile = self.tile(picks)
        extents = self.chain.extents
        steps = {loop: -(-extents[loop] // tile[loop]) for loop in extents}
        volume: Any = 0
        for move in self.moves.moves:
            moved: Any = move.access.bytes if self.memory.weighted else 1
            for index in move.access.dims:
                moved = moved * self.covered(index, picks, exact=False)
            volume = volume + moved * prod((steps[loop] for loop in move.repeats), start=1)
        seconds = volume * self.memory.seconds
        if self.memory.seconds_per_flop:
            flops: Any = 0.0
            for number in range(len(self.chain.operators)):
                factor = self.recomputed(number, picks)
                factor = factor * prod((steps[loop] for loop in self.moves.again[number]), start=1)
                flops = flops + self.chain.flops(number) * factor
            flops = flops + self.chain.rescaling(steps)
            seconds = np.maximum(seconds, flops * self.memory.seconds_per_flop)
        return np.asarray(seconds, dtype=np.float64), np.asarray(volume)

    def recomputed(self, number: int, picks: Mapping[str, Array]) -> Any:
        factor: Any = 1.0
        for index in self.chain.operators[number].work:
            if index.plain is None:
                factor = factor * self.covered(index, picks, exact=True) / index.distinct(self.chain.extents)
        return factor

    def covered(self, index: Index, picks: Mapping[str, Array], *, exact: bool) -> Any:
        """Elements of one dimension over all blocks, from a table by pick of the loops that move it."""
        extents = self.chain.extents
        if index.plain is not None and index.extent == extents[index.plain]:
            return index.extent
        moving = [loop for loop in self.loops if loop in index.loops]
        table = self._tables.get((index, exact))
        if table is None:
            shape = tuple(len(self.sizes[loop]) for loop in moving)
            table = np.empty(shape, dtype=np.int64)
            for place in np.ndindex(shape):
                tiles = {loop: int(self.sizes[loop][pick]) for loop, pick in zip(moving, place, strict=True)}
                table[place] = index.covered({**self.fixed, **tiles}, extents, exact=exact)
            self._tables[index, exact] = table
        return table[tuple(picks[loop] for loop in moving)] if moving else int(table)

    def held(self, number: int, tile: Mapping[str, Any]) -> Any:
        return self.moves.held_of(number, tile, self.memory.weighted)

    def fits(self, tile: Mapping[str, Any]) -> Any:
        """Whether memory holds the blocks of every operator."""
        fits: Any = True
        for number in range(len(self.moves.held)):
            fits = fits & (self.held(number, tile) <= self.memory.capacity)
        return fits

    # Exact ------------------------------------------------------------------------------------------------------------

    @cached_property
    def solved(self) -> str | None:
        """The loop whose tile follows from the others: the longest list, of a loop that alone walks its dimensions."""
        plain = [loop for loop in self.loops if loop in self.moves.straight]
        return max(plain, key=lambda loop: len(self.sizes[loop]), default=None)

    @property
    def points(self) -> int:
        """Combinations that `enumerated` evaluates."""
        return prod(len(sizes) for loop, sizes in self.sizes.items() if loop != self.solved)

    def enumerated(self) -> Tiling | None:
        """The best of all combinations, or None where nothing fits."""
        grid = [loop for loop in self.loops if loop != self.solved]
        shape = [len(self.sizes[loop]) for loop in grid]
        picks: dict[str, Array] = {
            loop: np.arange(size).reshape([-1 if n == number else 1 for n in range(len(grid))])
            for number, (loop, size) in enumerate(zip(grid, shape, strict=True))
        }
        if self.solved is not None:
            picks[self.solved] = self.largest(self.solved, picks, tuple(shape))
            fits: Any = picks[self.solved] >= 0
        else:
            fits = np.broadcast_to(self.fits(self.tile(picks)), shape)
        seconds, volume = self.evaluate(picks)
        seconds = np.where(fits, seconds, np.inf)
        best = float(seconds.min())
        if best == np.inf:
            return None
        volume = np.where(seconds <= best * (1 + 1e-12), volume, MOST_ELEMENTS)
        place = np.unravel_index(int(volume.argmin()), seconds.shape)
        found = {loop: int(pick) for loop, pick in zip(grid, place, strict=True)}
        if self.solved is not None:
            found[self.solved] = int(picks[self.solved][place])
        return self.tiling(found, float(seconds[place]), int(volume[place]))

    def largest(self, loop: str, picks: Mapping[str, Array], shape: tuple[int, ...] = ()) -> Array:
        """The pick of the largest tile of `loop` that fits beside the others, -1 where none does.

        What an operator holds is ``a + b * T``.
        """
        most: Any = np.full(shape, self.sizes[loop][-1], dtype=np.int64)
        tile = {**self.tile(picks), loop: 1}
        for number in range(len(self.moves.held)):
            fixed, slope = self.moves.held_along(number, loop, tile, self.memory.weighted)
            rest = self.memory.capacity - fixed
            grows = isinstance(slope, np.ndarray) or slope > 0  # blocks have elements: then all slopes are positive
            bound = rest // slope if grows else np.where(rest >= 0, most, 0)
            most = np.minimum(most, bound)
        return np.asarray(np.searchsorted(self.sizes[loop], most, side="right") - 1)

    def most(self, loop: str) -> int:
        """The largest pick of a loop that fits while all others have their smallest tiles; -1 if none does."""
        others = {other: np.array(0) for other in self.loops if other != loop}
        sizes = np.arange(len(self.sizes[loop]))
        fits = np.broadcast_to(self.fits(self.tile({**others, loop: sizes})), sizes.shape)
        return int(fits.sum()) - 1

    def tiling(self, picks: Mapping[str, int], seconds: float, volume: int) -> Tiling:
        """One point as a value."""
        tile = {**self.fixed, **{loop: int(self.sizes[loop][pick]) for loop, pick in picks.items()}}
        return Tiling(tile, seconds, volume, self.moves, self.memory.weighted)

    # Relaxed ----------------------------------------------------------------------------------------------------------

    def relaxed(self) -> Tiling | None:
        """SLSQP over the logarithms of the tile sizes from several starts, then the best whole neighbours."""
        from scipy.optimize import minimize

        low = np.log([float(self.sizes[loop][0]) for loop in self.loops])
        high = np.log([float(self.sizes[loop][max(0, self.most(loop))]) for loop in self.loops])
        if not bool(np.all(self.fits(self.tile({loop: np.array(0) for loop in self.loops})))):
            return None
        scale = max(self._smooth(low), 1e-300)
        room = {"type": "ineq", "fun": lambda x: 1.0 - self._smooth_memory(x) / self.memory.capacity}
        best: tuple[float, float, dict[str, int]] | None = None
        generator = np.random.default_rng(0)
        for number in range(STARTS):
            share = np.full(len(low), 0.5) if number == 0 else generator.random(len(low))
            start = low + share * (high - low)
            while np.any(self._smooth_memory(start) > self.memory.capacity) and np.any(start > low + 1e-9):
                start = low + 0.8 * (start - low)
            solved = minimize(
                lambda x: np.log(self._smooth(x) / scale), start, method="SLSQP", constraints=[room],
                bounds=list(zip(low, high, strict=True)), options={"maxiter": 60, "ftol": 1e-7},
            )  # fmt: skip
            point = np.clip(np.where(np.isfinite(solved.x), solved.x, start), low, high)
            whole = self._descended(self._floor(point))
            if best is None or whole[:2] < best[:2]:
                best = whole
        assert best is not None, "there is at least one start"
        return self.tiling(best[2], best[0], int(best[1]))

    def _smooth(self, logs: Array) -> float:
        """Seconds with real trip counts: the extent over the tile."""
        tile, extents = self._real(logs), self.chain.extents
        steps = {loop: extents[loop] / tile[loop] for loop in extents}
        volume = 0.0
        for move in self.moves.moves:
            moved = float(move.access.bytes if self.memory.weighted else 1)
            for index in move.access.dims:
                moved *= self._smooth_covered(index, tile)
            volume += moved * prod(steps[loop] for loop in move.repeats)
        seconds = volume * self.memory.seconds
        if self.memory.seconds_per_flop:
            flops = 0.0
            for number, operator in enumerate(self.chain.operators):
                factor = prod(steps[loop] for loop in self.moves.again[number])
                for index in operator.work:
                    if index.plain is None:
                        factor *= self._smooth_covered(index, tile) / index.distinct(extents)
                flops += self.chain.flops(number) * factor
            flops += self.chain.rescaling(steps)
            seconds = max(seconds, flops * self.memory.seconds_per_flop)
        return float(seconds)

    def _smooth_covered(self, index: Index, tile: Mapping[str, float]) -> float:
        extents = self.chain.extents
        if index.plain is not None and index.extent == extents[index.plain]:
            return index.extent
        return float(index.width(tile)) * prod(extents[loop] / tile[loop] for loop in index.loops)

    def _smooth_memory(self, logs: Array) -> Array:
        tile = self._real(logs)
        return np.array([float(self.held(number, tile)) for number in range(len(self.moves.held))])

    def _real(self, logs: Array) -> dict[str, float]:
        return {**self.fixed, **{loop: np.exp(x) for loop, x in zip(self.loops, logs, strict=True)}}

    def _floor(self, logs: Array) -> dict[str, int]:
        """Picks at or below a point that fit together."""
        picks = {
            loop: max(0, int(np.searchsorted(self.sizes[loop], np.exp(x) * (1 + 1e-9), side="right")) - 1)
            for loop, x in zip(self.loops, logs, strict=True)
        }
        while not bool(np.all(self.fits(self.tile({loop: np.array(pick) for loop, pick in picks.items()})))):
            longest = max(
                (loop for loop in picks if picks[loop] > 0), key=lambda loop: int(self.sizes[loop][picks[loop]])
            )
            picks[longest] -= 1
        return picks

    def _descended(self, picks: dict[str, int]) -> tuple[float, float, dict[str, int]]:
        """The best neighbour again and again: every loop one tile smaller, the same, or one or two larger."""
        best = (float("inf"), float("inf"), picks)
        moves = np.array(np.meshgrid(*[[-1, 0, 1, 2]] * len(self.loops), indexing="ij")).reshape(len(self.loops), -1)
        while True:
            around = {
                loop: np.clip(best[2][loop] + moves[number], 0, len(self.sizes[loop]) - 1)
                for number, loop in enumerate(self.loops)
            }
            seconds, volume = self.evaluate(around)
            fits = np.broadcast_to(self.fits(self.tile(around)), seconds.shape)
            order = np.lexsort((volume, np.where(fits, seconds, np.inf)))
            place = int(order[0])
            found = float(seconds[place]), float(volume[place])
            if not found < best[:2]:
                return best
            best = (*found, {loop: int(pick[place]) for loop, pick in around.items()})
