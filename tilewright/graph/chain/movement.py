"""Data movement of one block order: Algorithm 1 of the Chimera paper, restated and corrected (spec 1, 3.2 to 3.5).

`plan_moves` reads an order once and gives `Moves`: which block loops repeat the traffic of which tensor, what each
operator holds in memory, and which loops run an operator again. `Moves` are formulas: they are evaluated for one
tiling (`chain_dm`), or for many at once (`candidates`).

Three facts drive the count. A loop that does not index a tensor does not replace its block. Once an inner loop has
replaced it, every loop outside repeats the traffic. A producer's private loop is over before its consumer runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, reduce
from math import prod
from typing import Literal

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.graph.chain.index import Size
from tilewright.graph.chain.loops import Access, Chain
from tilewright.graph.chain.orders import BlockNest, nest_of, reruns

Mode = Literal["nest", "own"]  #: every block loop still alive surrounds an operator, or only its own do (decision B2)
Edges = Literal["clip", "pad"]  #: the last block of a loop is shorter, or as large as the others (decision B4)
Memory = Literal["corrected", "thesis"]  #: survivors are charged, or not (section 3.5)


@dataclass(frozen=True)
class Move:
    """The traffic of one access: its elements, once for every combination of steps of the loops in `repeats`."""

    operator: int
    access: Access
    repeats: tuple[str, ...]


@dataclass(frozen=True)
class Moves:
    """What an order and a policy mean, as formulas over tile sizes.

    `moves` are of the tensors that are no links.
    `held` lists for each operator the accesses whose blocks are in memory
    while it runs, each with the loops along which it is whole (links of incomplete orders) and how many buffers it has.
    `again` has the loops that run an operator again. `stays` has the tensors whose blocks stay while other operators
    run, each with the outermost loop that they survive.
    """

    chain: Chain
    moves: tuple[Move, ...]
    held: tuple[tuple[tuple[Access, frozenset[str], int], ...], ...]
    again: tuple[tuple[str, ...], ...]
    stays: Mapping[str, str]

    def key(self) -> object:
        """Equal for orders with the same formulas."""
        moves = tuple((move.operator, move.access.tensor, frozenset(move.repeats)) for move in self.moves)
        held = tuple(frozenset((a.tensor, a.dims, whole, count) for a, whole, count in each) for each in self.held)
        return moves, held, tuple(map(frozenset, self.again))

    @cached_property
    def free(self) -> frozenset[str]:
        """The loops whose tile sizes traffic or recomputation depend on."""
        found = {loop for move in self.moves for loop in move.repeats} | {loop for each in self.again for loop in each}
        for move in self.moves:
            for index in move.access.dims:
                if index.plain is None:
                    found |= index.loops
        for number, operator in enumerate(self.chain.operators):
            if number < len(self.chain.operators) - 1:
                found |= {loop for index in operator.work if index.plain is None for loop in index.loops}
        found |= {loop for each in self.chain.rescaled for loop in each.loops}
        return frozenset(found - self.chain.windows)

    @cached_property
    def straight(self) -> frozenset[str]:
        """The loops that walk all dimensions that they move alone: blocks grow evenly with their tiles."""
        bent: set[str] = set()
        for held in self.held:
            for access, _, _ in held:
                for index in access.dims:
                    bent |= index.loops - {index.plain}
        return frozenset(self.chain.extents) - bent

    def held_of(self, number: int, tile: Mapping[str, Size], weighted: bool) -> Size:
        """Memory while one operator runs, in elements, or in bytes with `weighted`."""
        total: Size = 0
        for size in self._blocks(number, tile, weighted):
            total = total + size
        return total

    def held_along(self, number: int, loop: str, tile: Mapping[str, Size], weighted: bool) -> tuple[Size, Size]:
        """Memory while one operator runs as ``a + b * T``, where T is the tile of a `straight` loop: a and b.

        `tile` has a tile of 1 for this loop.
        """
        fixed: Size = 0
        growing: Size = 0
        sizes = self._blocks(number, tile, weighted)
        for (access, whole, _), size in zip(self.held[number], sizes, strict=True):
            if loop in access.loops and loop not in whole:
                growing = growing + size
            else:
                fixed = fixed + size
        return fixed, growing

    def _blocks(self, number: int, tile: Mapping[str, Size], weighted: bool) -> list[Size]:
        """Memory for each block that an operator holds."""
        found = []
        for access, whole, buffers in self.held[number]:
            sizes = {**tile, **{loop: self.chain.extents[loop] for loop in whole}} if whole else tile
            found.append(access.footprint(sizes) * (buffers * access.bytes if weighted else buffers))
        return found

    def memory(self, tile: Mapping[str, Size], weighted: bool = False) -> Size:
        """MU: the largest of all operators."""
        sizes = [self.held_of(number, tile, weighted) for number in range(len(self.held))]
        return max(sizes) if all(isinstance(size, int) for size in sizes) else reduce(np.maximum, sizes)


@dataclass(frozen=True)
class Traffic:
    """Elements of one tensor: its one-directional movement DM, and what of it is loaded and stored (decision B6).

    An output whose block is visited x times is stored x times and loaded x - 1 times; `moved` counts the visits.
    """

    moved: int
    loads: int
    stores: int


@dataclass(frozen=True)
class Movement:
    """The result of `chain_dm`: traffic by tensor, its sum DV, memory use MU, and recomputation factors by operator."""

    tensors: Mapping[str, Traffic]
    memory: int
    recomputed: tuple[float, ...]

    @property
    def dm(self) -> dict[str, int]:
        """Elements moved by tensor, in one direction."""
        return {name: traffic.moved for name, traffic in self.tensors.items()}

    @property
    def dv(self) -> int:
        """Elements moved in all."""
        return sum(traffic.moved for traffic in self.tensors.values())


def plan_moves(
    chain: Chain,
    order: Sequence[str],
    *,
    keep: Collection[str] = (),
    ones: Collection[str] = (),
    mode: Mode = "nest",
    memory: Memory = "corrected",
    double_buffer: bool = False,
) -> Moves:
    """The formulas of an order. `keep` are tensors that stay in memory while other operators run (policy KEEP).

    `ones` are loops of one trip. Rule D1: such a loop replaces no block of a tensor in `keep`; one of any other tensor
    it does replace, since another operator ran in between.
    """
    ones = frozenset(ones)
    nest = nest_of(chain, order, ones)
    moves: list[Move] = []
    held: list[list[tuple[Access, frozenset[str], int]]] = []
    survivors: list[tuple[int, Access]] = []
    stays: dict[str, str] = {}
    alive = list(order)
    for number, operator in enumerate(chain.operators):
        own: list[tuple[Access, frozenset[str], int]] = []
        shared = [(other, nest.around([number, other])) for other in range(len(chain.operators)) if other != number]
        enclosing = [loop for loop in alive if mode == "nest" or loop in operator.loops]
        for access in operator.accesses:
            link = access.tensor in chain.links
            repeats, survived = _scan(access, enclosing, access.tensor in keep, ones)
            whole = _whole(chain, nest, access, ones) if link and memory == "corrected" else frozenset[str]()
            streamed = double_buffer and not link
            streamed = streamed and any(loop not in ones for loop in (*repeats, *access.loops - chain.windows))
            own.append((access, whole, 2 if streamed else 1))
            if not link:
                moves.append(Move(number, access, repeats))
            if memory == "corrected":
                for other, around in shared if survived else ():
                    first = next((loop for loop in around if loop in survived), None)
                    if first is not None:
                        survivors.append((other, access))
                        stays[access.tensor] = min(stays.get(access.tensor, first), first, key=order.index)
        held.append(own)
        later = frozenset(loop for other in chain.operators[number + 1 :] for loop in other.loops)
        alive = [loop for loop in alive if loop in later]
    scratch = [
        (other, access) for operator in chain.operators for access in operator.scratch for other in range(len(held))
    ]
    for other, access in (*survivors, *scratch):
        if all(access.tensor != mine.tensor for mine, _, _ in held[other]):
            held[other].append((access, frozenset(), 1))
    again = reruns(chain, nest)
    kept = {tensor: loop for tensor, loop in stays.items() if tensor not in chain.links}
    return Moves(chain, tuple(moves), tuple(map(tuple, held)), again, kept)


def _scan(access: Access, loops: Sequence[str], kept: bool, ones: Collection[str]) -> tuple[tuple[str, ...], set[str]]:
    """The loops that repeat the traffic of a tensor without indexing it, and those that its block survives."""
    replaced = False
    repeats: list[str] = []
    survived: set[str] = set()
    for loop in reversed(loops):  # innermost to outermost
        if loop in ones and kept:
            continue
        if loop in access.loops:
            replaced = True
        elif loop not in ones:
            if replaced:
                repeats.append(loop)
            else:
                survived.add(loop)
    return tuple(reversed(repeats)), survived


def _whole(chain: Chain, nest: BlockNest, link: Access, ones: Collection[str]) -> frozenset[str]:
    """The loops along which a link is whole before its consumer runs: those inside a producer's private loop."""
    users = [n for n, operator in enumerate(chain.operators) if any(a.tensor == link.tensor for a in operator.accesses)]
    return link.loops - chain.windows - {*nest.around(users), *ones}


# One tiling -----------------------------------------------------------------------------------------------------------


def trips(tile: Mapping[str, int], extents: Mapping[str, int]) -> dict[str, int]:
    """Steps of every block loop: the extent over the tile, rounded up."""
    return {loop: -(-extent // tile[loop]) for loop, extent in extents.items()}


def chain_dm(
    chain: Chain,
    order: Sequence[str],
    tile: Mapping[str, int],
    *,
    mode: Mode = "nest",
    edges: Edges = "clip",
    keep: Collection[str] = (),
    memory: Memory = "corrected",
    double_buffer: bool = False,
    exact: bool = False,
) -> Movement:
    """Data movement and memory use of an order with these tiles, in elements (spec 1, section 3.2).

    `tile` has a size for every block loop; windows are whole. `exact` counts the elements of a tensor instead of
    bounding boxes, which differ where a stride exceeds a kernel.
    """
    tile = {**tile, **{loop: chain.extents[loop] for loop in chain.windows}}
    steps = trips(tile, chain.extents)
    ones = {loop for loop, count in steps.items() if count == 1}
    moves = plan_moves(chain, order, keep=keep, ones=ones, mode=mode, memory=memory, double_buffer=double_buffer)
    found: dict[str, Traffic] = {}
    for move in moves.moves:
        access = move.access
        if edges == "clip":
            once = prod(index.covered(tile, chain.extents, exact=exact) for index in access.dims)
        else:
            once = access.footprint(tile) * prod(steps[loop] for loop in access.loops)
        moved = once * prod(steps[loop] for loop in move.repeats)
        written = access.tensor in chain.outputs and access.tensor == chain.operators[move.operator].output
        traffic = Traffic(moved, moved - once if written else moved, moved if written else 0)
        before = found.get(access.tensor, Traffic(0, 0, 0))
        found[access.tensor] = Traffic(
            before.moved + traffic.moved, before.loads + traffic.loads, before.stores + traffic.stores
        )
    factors = tuple(
        recomputation(chain, number, tile) * prod(steps[loop] for loop in moves.again[number])
        for number in range(len(chain.operators))
    )
    return Movement(found, int(moves.memory(tile)), factors)


def recomputation(chain: Chain, number: int, tile: Mapping[str, int]) -> float:
    """The factor by which overlapping windows of later operators make one compute more points (rho, section 3.13)."""
    factor = 1.0
    for index in chain.operators[number].work:
        if index.plain is None:
            factor *= index.covered(tile, chain.extents, exact=True) / index.distinct(chain.extents)
    return factor
