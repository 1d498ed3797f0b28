"""Tiles of every memory level for one candidate (spec 1, section 3.11), and the traffic of the whole nest.

Operators are fused at one level: blocks of the links stay there. At levels outside of it the loops that all operators
share are tiled, and the others are whole in each step. At levels inside of it each operator walks its own block alone,
and its links move like any other tensor. Volumes of a level depend on its tiles alone, so that each level is solved by
itself, from the outside in, with tiles no larger than those outside; the time is that of the slowest level.

`nested_traffic` then counts the nest that results, level by level, by the rules of `movement`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from tilewright.dataclass import dataclass
from tilewright.graph.chain.candidates import Candidate
from tilewright.graph.chain.closed_form import distinct_tiles
from tilewright.graph.chain.hierarchy import Hierarchy
from tilewright.graph.chain.loops import Access, Chain
from tilewright.graph.chain.movement import Move, Moves, plan_moves, recomputation
from tilewright.graph.chain.orders import BlockNest, nest_of
from tilewright.graph.chain.tilings import Memory, Tiling, best_tiling

Tile = Mapping[str, int]
Known = dict[object, Tiling | None]  #: the best tiles of one chain, by what they follow from


@dataclass(frozen=True)
class Levels:
    """Tiles of a candidate at every level on chip, outermost first: ``tiles[i]`` lies in level ``i + 1``.

    `fused` is the number of the level in which links stay (1: the outermost on chip). `dv` are elements by tensor that
    move into or out of each level, `mu` elements that it holds, `seconds` the time of each level and of arithmetic.
    """

    candidate: Candidate
    fused: int
    tiles: tuple[Tile, ...]
    dv: tuple[Mapping[str, int], ...]
    mu: tuple[int, ...]
    seconds: tuple[float, ...]
    flops: float

    @property
    def recomputes(self) -> bool:
        """Whether an operator runs again for a loop of several steps that is none of its own."""
        steps = steps_between(self.candidate.moves.chain, self.tiles)[: self.fused]
        return any(step[loop] > 1 for step in steps for again in self.candidate.moves.again for loop in again)

    @property
    def slowest(self) -> float:
        """Seconds of the slowest level, or of arithmetic if that is slower."""
        return max(self.seconds)


def memory_of(hierarchy: Hierarchy, number: int, smallest: Mapping[str, int] | None, aligned: bool) -> Memory:
    """Level `number` with the rate at which the level outside fills it."""
    capacity = hierarchy.levels[number].capacity_bytes
    assert capacity is not None, "levels on chip have a capacity"
    return Memory(
        capacity,
        seconds=1.0 / hierarchy.levels[number - 1].bytes_per_second,
        seconds_per_flop=1.0 / hierarchy.flops_per_second,
        smallest=smallest,
        aligned=aligned,
        weighted=True,
    )


def solve_levels(
    candidate: Candidate, hierarchy: Hierarchy, fused: int, smallest: Mapping[str, int] | None = None,
    aligned: bool = False, double_buffer: bool = False, tiling: Tiling | None = None, known: Known | None = None,
) -> Levels | None:  # fmt: skip
    """Tiles at every level, or None where the level of fusion does not hold the smallest ones.

    `tiling` is the best one for the level of fusion alone, where it is known. `known` is filled with the tilings of
    other levels, for further candidates of the same chain.
    """
    chain = candidate.moves.chain
    known = {} if known is None else known
    outer = _outside(candidate, double_buffer)
    tiles: list[Tile] = []
    used: list[Moves] = []
    largest: Tile = chain.extents
    for number in range(1, fused):
        memory = replace(memory_of(hierarchy, number, smallest, aligned), largest=largest)
        found = _found(outer, number, memory, known)
        tiles.append({} if found is None else found.tile)
        largest = largest if found is None else found.tile
        used.append(outer.moves)
    memory = replace(memory_of(hierarchy, fused, smallest, aligned), largest=largest)
    found = tiling if tiling is not None and fused == 1 else best_tiling(candidate, memory)
    if found is None:
        return None
    tiles.append(_grown(candidate.moves, found.tile, memory))
    used.append(candidate.moves)
    inner = Candidate(candidate.order, frozenset(), frozenset(), _alone(chain, candidate.order))
    for number in range(fused + 1, len(hierarchy.levels)):
        memory = replace(memory_of(hierarchy, number, smallest, aligned), largest=tiles[-1])
        found = _found(inner, number, memory, known)
        tiles.append(tiles[-1] if found is None else _grown(inner.moves, found.tile, memory))
        used.append(inner.moves)
    for number in reversed(range(fused - 1)):  # a level that held no block of all operators does not tile
        if not tiles[number]:
            tiles[number], used[number] = tiles[number + 1], used[number + 1]
    return _counted(candidate, hierarchy, fused, tiles, used)


def _found(candidate: Candidate, number: int, memory: Memory, known: Known) -> Tiling | None:
    """The best tiles at a level; those of a candidate with the same formulas are looked up."""
    assert memory.largest is not None, "that of the level outside"
    key = (number, candidate.moves.key(), candidate.whole, candidate.halo, tuple(memory.largest.items()))
    if key not in known:
        known[key] = best_tiling(candidate, memory)
    return known[key]


def _outside(candidate: Candidate, double_buffer: bool) -> Candidate:
    """The candidate at levels outside of that of fusion: loops that not all operators share are whole.

    So is the loop whose steps keep a halo: they follow each other. Operators take turns further in, many times in one
    step here. So memory holds what all of them touch, but for links, and drops nothing of it in between.
    """
    chain = candidate.moves.chain
    shared = nest_of(chain, candidate.order, candidate.whole).loops
    whole = candidate.whole | {loop for loop in candidate.order if loop not in shared or loop == candidate.halo}
    kept = {access.tensor for _, access in chain.io}
    moves = plan_moves(chain, candidate.order, keep=kept, ones=whole, memory="thesis", double_buffer=double_buffer)
    touched = {access for _, access in chain.io}
    together = dict.fromkeys(one for each in moves.held for one in each if one[0] in touched)
    return replace(candidate, whole=whole, moves=replace(moves, held=(tuple(together),)))


def own_order(chain: Chain, order: Sequence[str], number: int) -> tuple[str, ...]:
    """The loops of one operator alone: as in the order, with its reductions inside, so that results stay."""
    operator = chain.operators[number]
    own = [loop for loop in order if loop in operator.loops]
    return tuple(sorted(own, key=lambda loop: loop in operator.reductions))


def _alone(chain: Chain, order: Sequence[str]) -> Moves:
    """The traffic inside the level of fusion: each operator on its block, links included."""
    moves: list[Move] = []
    for number, operator in enumerate(chain.operators):
        loops = own_order(chain, order, number)
        for access in operator.accesses:
            inside = max((place for place, loop in enumerate(loops) if loop in access.loops), default=0)
            moves.append(Move(number, access, tuple(loop for loop in loops[:inside] if loop not in access.loops)))
    held = tuple(
        tuple((access, frozenset[str](), 1) for access in (*operator.accesses, *operator.scratch))
        for operator in chain.operators
    )
    return Moves(chain, tuple(moves), held, tuple(() for _ in chain.operators), {})


def _grown(moves: Moves, tile: Tile, memory: Memory) -> dict[str, int]:
    """Memory that is left goes to the loops that traffic does not depend on (section 3.8, step 3), reductions first."""
    chain, grown = moves.chain, dict(tile)
    reductions = frozenset(loop for operator in chain.operators for loop in operator.reductions)
    idle = [loop for loop in chain.extents if loop not in moves.free and loop not in chain.windows]
    largest, smallest = memory.largest or chain.extents, memory.smallest or {}
    for loop in sorted(idle, key=lambda each: each not in reductions):
        multiple = smallest.get(loop, 1) if memory.aligned else 1
        sizes = [size for size in distinct_tiles(chain.extents[loop], grown[loop], multiple) if size <= largest[loop]]
        held = partial(_held, moves, memory, grown, loop)
        fitting = bisect_right(sizes, memory.capacity, key=held)  # what is held grows with the size
        if fitting:
            grown[loop] = max(sizes[fitting - 1], grown[loop])
    return grown


def _held(moves: Moves, memory: Memory, tile: Tile, loop: str, size: int) -> int:
    """What memory holds with another tile of one loop."""
    return int(moves.memory({**tile, loop: size}, memory.weighted))


# The nest as a whole --------------------------------------------------------------------------------------------------


def steps_between(chain: Chain, tiles: Sequence[Tile]) -> list[dict[str, int]]:
    """Trips of every loop at each level: the tile outside over the tile inside, rounded up."""
    outside: Tile = chain.extents
    found = []
    for tile in tiles:
        found.append({loop: -(-min(outside[loop], extent) // tile[loop]) for loop, extent in chain.extents.items()})
        outside = tile
    return found


def _counted(
    candidate: Candidate, hierarchy: Hierarchy, fused: int, tiles: Sequence[Tile], used: Sequence[Moves]
) -> Levels:
    chain = candidate.moves.chain
    steps = steps_between(chain, tiles)
    nest = nest_of(chain, candidate.order, candidate.whole)
    dv: list[dict[str, int]] = []
    seconds: list[float] = []
    for number in range(1, len(tiles) + 1):
        volume: dict[str, int] = {}
        moved_bytes = 0
        for position, operator in enumerate(chain.operators):
            around = loops_around(candidate, nest, fused, steps, position, number)
            for access in operator.accesses:
                if access.tensor in chain.links and number <= fused:
                    continue
                moved = nested_traffic(candidate, fused, tiles, around, access, number)
                volume[access.tensor] = volume.get(access.tensor, 0) + moved
                moved_bytes += moved * access.bytes
        dv.append(volume)
        seconds.append(moved_bytes / hierarchy.levels[number - 1].bytes_per_second)
    shared = range(fused)
    flops = 0.0
    for position in range(len(chain.operators)):
        again = prod(steps[level][loop] for level in shared for loop in candidate.moves.again[position])
        flops += chain.flops(position) * recomputation(chain, position, tiles[fused - 1]) * again
    flops += chain.rescaling({loop: prod(steps[level][loop] for level in shared) for loop in chain.extents})
    seconds.append(flops / hierarchy.flops_per_second)
    mu = tuple(int(moves.memory(tile)) for moves, tile in zip(used, tiles, strict=True))
    return Levels(candidate, fused, tuple(tiles), tuple(dv), mu, tuple(seconds), flops)


Around = Sequence[tuple[str, int, bool]]  #: loops of several trips, their trips, and whether other operators share them


def loops_around(
    candidate: Candidate, nest: BlockNest, fused: int, steps: Sequence[Mapping[str, int]], position: int, level: int
) -> Around:
    """The loops of several trips around operator `position` down to a level, outermost first."""
    path = nest.around([position])
    shared = {loop for loop in path for each in nest.walk() if loop in each.loops and len(each.operators) > 1}
    own = own_order(candidate.moves.chain, candidate.order, position)
    found = []
    for number in range(1, level + 1):
        loops = path if number == fused else nest.loops if number < fused else own
        trips = steps[number - 1]
        found += [(loop, trips[loop], number <= fused and loop in shared) for loop in loops if trips[loop] > 1]
    return found


def nested_traffic(
    candidate: Candidate, fused: int, tiles: Sequence[Tile], around: Around, access: Access, level: int
) -> int:
    """Elements of one access of an operator that move into or out of level `level`.

    The loops around the operator, scanned from the inside: those of its own nest replace a block only if they have
    several trips; at the first loop that other operators share, what does not stay is gone. Levels outside of that of
    fusion hold what all operators touch.
    """
    stays = level < fused or (level == fused and access.tensor in candidate.moves.stays)
    replaced = False
    repeats = 1
    for loop, trips, joint in reversed(around):
        if loop in access.loops:
            replaced = True
        elif replaced or (joint and not stays):
            replaced = True
            repeats *= trips
    extents = candidate.moves.chain.extents
    once = prod(index.covered(tiles[level - 1], extents) for index in access.dims)
    return once * repeats
