"""Conversions of a tile from one layout to another: what they take, what they cost, and a plan that can be run.

Classes, the first that applies: ``none``, ``register`` (within a thread), ``shuffle`` (within a warp), ``shared``
(within a block, through shared memory), ``cluster``; ``load`` and ``store`` where one side lies in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.access import matrix_load, row_major_memory, shared_access, vector_width
from tilewright.layouts.bits import Span, log2
from tilewright.layouts.form import Distributed, InShared
from tilewright.layouts.linear import PLACE, SHORT, Array, Base, LinearLayout
from tilewright.layouts.shared import Padded, checked_bits
from tilewright.layouts.shuffle import Shuffles, shuffles_of
from tilewright.layouts.swizzle import shared_for_pair

Place = LinearLayout | Distributed | InShared
_BARRIER = 1.0  # counted as one access

# Class -> what of a place a value may change on its way.
_MOVES = {
    "none": (),
    "register": ("register",),
    "shuffle": ("register", "lane"),
    "shared": ("register", "lane", "warp"),
    "cluster": ("register", "lane", "warp", "block"),
}


@dataclass(frozen=True)
class Conversion:
    """What a conversion takes. `cost` is in accesses of 4 bytes per thread; a barrier counts as one."""

    kind: str
    bits: int
    bit_map: LinearLayout | None  # place in the source -> place in the destination; None beside shared memory
    gather: LinearLayout | None  # place in the destination -> place in the source that it reads
    bytes_per_thread: int
    cost: float
    shuffles: Shuffles | None = None  # the rounds, of class shuffle
    rounds: int = 0  # shuffles of 32 bits, per thread: neighbouring registers may travel together
    scratch: LinearLayout | None = None  # offset -> index of the tile in shared memory, of class shared
    sides: tuple[LinearLayout, LinearLayout] | None = None  # source and destination

    @property
    def scratch_bytes(self) -> int:
        return 0 if self.scratch is None else (1 << self.scratch.in_bits) * self.bits // 8

    def run(self, registers: Array) -> Array:
        """Convert values, step by step as hardware would: arrays (warps, lanes, registers) as `LinearLayout.table`."""
        if self.gather is None or self.sides is None:
            raise InvalidArgument(f"a conversion of class {self.kind} has no plan between registers")
        if self.shuffles is not None:
            return self.shuffles.run(registers)
        if self.scratch is not None:
            memory = np.zeros(1 << self.scratch.in_bits, registers.dtype)
            written, read = (side.invert_and_compose(self.scratch).table() for side in self.sides)
            memory[written] = registers
            return np.asarray(memory[read])
        return np.asarray(registers.reshape(-1)[self.gather.table()])

    def __str__(self) -> str:
        facts = [f"{self.bytes_per_thread} bytes per thread", f"cost {self.cost:g}"]
        if self.rounds:
            facts.append(f"{self.rounds} shuffles")
        if self.scratch is not None:
            facts.append(f"{self.scratch_bytes} bytes of shared memory")
        return f"{self.kind}: {', '.join(facts)}"


def convert(source: Place, destination: Place, shape: Sequence[int], bits: int) -> Conversion:
    """Classify and cost the conversion of a tile of `shape` with elements of `bits`.

    Raises InvalidArgument for layouts that do not hold the whole tile, or for different numbers of lanes or warps.

    >>> from tilewright.layouts.blocked import Blocked
    >>> wide, narrow = Blocked((4,), (32,), (4,), (0,)), Blocked((1,), (32,), (4,), (0,))
    >>> print(convert(wide, narrow, (512,), 32))
    shared: 16 bytes per thread, cost 17, 2048 bytes of shared memory
    """
    return _convert(source, destination, tuple(shape), bits)


@lru_cache(4096)
def _convert(source: Place, destination: Place, shape: tuple[int, ...], bits: int) -> Conversion:
    checked_bits(bits)
    if isinstance(source, InShared) and isinstance(destination, InShared):
        raise InvalidArgument(f"a conversion between {source} and {destination}", help="load into registers first")
    if isinstance(source, InShared):
        return _with_shared("load", destination, source, shape, bits)
    if isinstance(destination, InShared):
        return _with_shared("store", source, destination, shape, bits)
    first, second = source.to_linear(shape), destination.to_linear(shape)
    _comparable(first, second)
    opaque = any(isinstance(side, Distributed) and side.opaque for side in (source, destination))
    kinds = ("shared", "cluster") if opaque and source != destination else tuple(_MOVES)
    kind, gather = next(
        (kind, plan) for kind in kinds if (plan := gather_plan(first, second, _MOVES[kind], kind == "none")) is not None
    )
    size = _thread_bytes(second, bits)
    words = max(1.0, size / 4)
    found = Conversion(kind, bits, first.invert_and_compose(second), gather, size, 0.0, sides=(first, second))
    if kind == "shuffle":
        shuffles = shuffles_of(gather)
        rounds = _words(gather, bits) * len(shuffles.variants)
        return replace(found, cost=2.0 * rounds, shuffles=shuffles, rounds=rounds)
    if kind == "shared":
        return replace(found, cost=4.0 * words + _BARRIER, scratch=shared_for_pair(first, second, bits))
    return replace(found, cost=8.0 * words) if kind == "cluster" else found


def gather_plan(
    source: LinearLayout, destination: LinearLayout, moves: Sequence[str], exact: bool = False
) -> LinearLayout | None:
    """For every place in the destination a place in the source with its element, equal to it but for `moves`.

    None where there is none. `exact`: the destination has no bit that the source has not.
    """
    movable = [(name, bit) for name in moves for bit in range(len(source.of(name)))]
    span = Span(source.number(source.of(name)[bit]) for name, bit in movable)
    outs = tuple((name, source.in_size(name)) for name in reversed(source.in_names))
    position = {name: place for place, (name, _) in enumerate(outs)}
    bases = []
    for name, vectors in destination.bases:
        found = []
        for bit, base in enumerate(vectors):
            target, place = destination.number(base), [0] * len(outs)
            if name not in moves and bit < len(source.of(name)):
                target ^= source.number(source.of(name)[bit])
                place[position[name]] = 1 << bit
            elif exact:
                return None
            left, numbers = span.express(target)
            if left:
                return None
            for number, (moved, its_bit) in enumerate(movable):
                if numbers >> number & 1:
                    place[position[moved]] ^= 1 << its_bit
            found.append(tuple(place))
        bases.append((name, tuple(found)))
    return LinearLayout(tuple(bases), outs)


def arrows(bit_map: LinearLayout) -> str:
    """A map between places, bit by bit.

    >>> from tilewright.layouts.linear import named
    >>> arrows(named({"register": [(1, 0)], "lane": [(0, 2), (0, 0)]}, {"lane": 4, "register": 4}))
    'r0->l0, l0->r1, l1->0'
    """
    found = []
    for name, vectors in bit_map.bases:
        for bit, base in enumerate(vectors):
            ends = [
                f"{SHORT.get(out, out)}{place}"
                for out, value in zip(bit_map.out_names, base, strict=True)
                for place in range(value.bit_length())
                if value >> place & 1
            ]
            found.append(f"{SHORT.get(name, name)}{bit}->{'+'.join(ends) or '0'}")
    return ", ".join(found)


@dataclass(frozen=True)
class PaddedScratch:
    """Row-major shared memory that a conversion uses piece by piece: extents of a piece, padding per row."""

    shape: tuple[int, ...]
    pad: int
    bits: int

    @property
    def elements(self) -> int:
        """Elements of a piece, padding not counted."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return prod(self.shape[:-1]) * (self.shape[-1] + self.pad) * self.bits // 8


def padded_scratch(source: Distributed, destination: Distributed, shape: Sequence[int], bits: int) -> PaddedScratch:
    """Scratch for pieces: per dimension the larger of one source and one destination repetition.

    Rows are padded by the larger vector width of the two, in elements.
    """
    pieces = [side.repetition(tuple(shape)).shape for side in (source, destination)]
    piece = tuple(min(extent, max(sizes)) for extent, *sizes in zip(shape, *pieces, strict=True))
    memory = row_major_memory(piece)
    pad = max(vector_width(side.to_linear(piece), memory, bits) for side in (source, destination))
    return PaddedScratch(piece, pad, bits)


def _with_shared(kind: str, side: Place, memory: InShared, shape: tuple[int, ...], bits: int) -> Conversion:
    """Vector accesses or ``ldmatrix``: one per 4 bytes; two where they are narrow or conflict."""
    assert not isinstance(side, InShared)
    registers = side.to_linear(shape)
    access = shared_access(registers, memory, bits)
    size = _thread_bytes(registers, bits)
    smooth = access.conflicts == 0 and size // max(1, access.accesses // registers.in_size("warp")) >= 4
    if kind == "load" and not smooth and not isinstance(memory, Padded):
        matrices = matrix_load(registers, memory.to_linear(shape), bits)
        smooth = matrices is not None and matrices.access.conflicts == 0
    cost = max(1, size / 4) * (1.0 if smooth else 2.0)
    return Conversion(kind, bits, None, None, size, cost)


def _comparable(first: LinearLayout, second: LinearLayout) -> None:
    for side in (first, second):
        if not side.is_surjective:
            raise InvalidArgument(f"{side} does not hold every element of its tile", help="add register bases")
    for name in PLACE[1:]:
        if first.in_size(name) != second.in_size(name):
            raise InvalidArgument(
                f"a conversion from {first.in_size(name)} to {second.in_size(name)} {name}s",
                where=str(second),
                help=f"give both {max(first.in_size(name), second.in_size(name))} {name}s",
            )


def _thread_bytes(layout: LinearLayout, bits: int) -> int:
    return max(1, layout.in_size("register") * bits // 8)


def _words(gather: LinearLayout, bits: int) -> int:
    """Registers of 32 bits to shuffle: neighbouring elements travel together where they stay neighbours."""
    together = min(paired(gather), log2(32 // bits)) if bits <= 32 else 0
    return (gather.in_size("register") >> together) * max(1, bits // 32)


def paired(gather: LinearLayout) -> int:
    """Low register bits that keep their place and that no other bit touches."""
    place = gather.out_names.index("register")
    own: list[Base] = list(gather.of("register"))
    bits = 0
    while bits < len(own) and own[bits] == tuple(1 << bits if i == place else 0 for i in range(len(gather.outs))):
        bits += 1
    others = [base for name, vectors in gather.bases for base in (vectors[bits:] if name == "register" else vectors)]
    while bits and any(base[place] % (1 << bits) for base in others):
        bits -= 1
    return bits
