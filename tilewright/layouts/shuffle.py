"""Conversions within a warp as rounds of shuffles: what a lane sends, from which lane it reads, where it keeps it.

Register r of lane l of the destination reads some place of the source, by a linear map. In round k, lane l fills
register ``k ^ f(l)``, with an `f` by which no lane has to send two registers in one round. Where there is none, because
lanes that read the same lane want different registers of it, a round is sent once for each of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, product

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.layouts.bits import Span, independent, log2
from tilewright.layouts.linear import PLACE, Array, LinearLayout

Columns = tuple[int, ...]  # what each bit of a number contributes


@dataclass(frozen=True)
class Shuffles:
    """Rounds (k, e): k counts registers of the destination, e goes through `variants`.

    Lane p of warp w sends register ``send(k, p, w) ^ e``; lane l reads lane ``source(k, l, w)`` and keeps what it gets
    in register ``keep(k, l)`` if ``variant(l) == e``. Each is a linear map: columns of the bits of k, of the lane, and
    of the warp (in its block, whose bits follow).
    """

    registers: int
    lanes: int
    variants: tuple[int, ...]
    send: tuple[Columns, Columns, Columns]
    source: tuple[Columns, Columns, Columns]
    keep: tuple[Columns, Columns]
    variant: Columns

    @property
    def rounds(self) -> int:
        return self.registers * len(self.variants)

    def run(self, registers: Array) -> Array:
        """Run the rounds on values: arrays (…, warps, lanes, registers)."""
        lanes, outer = np.arange(self.lanes), registers.shape[:-2]
        values = registers.reshape(-1, *registers.shape[-2:])
        result = np.zeros((len(values), self.lanes, self.registers), registers.dtype)
        variant = _apply(self.variant, lanes)
        for warp, k, e in product(range(len(values)), range(self.registers), self.variants):
            send, source = (
                _apply(by_k, k) ^ _apply(by_lane, lanes) ^ _apply(by_warp, warp)
                for by_k, by_lane, by_warp in (self.send, self.source)
            )
            got = values[warp, lanes, send ^ e][source]
            keep = _apply(self.keep[0], k) ^ _apply(self.keep[1], lanes)
            mine = variant == e
            result[warp, lanes[mine], keep[mine]] = got[mine]
        return result.reshape(*outer, self.lanes, self.registers)


def shuffles_of(gather: LinearLayout) -> Shuffles:
    """The rounds by which lanes of a warp read as `gather` says: a map of places that stays within a warp."""
    places = gather.sublayout([name for name in PLACE if name in gather.in_names], ["register", "lane"])
    from_k, from_lane, *outer = ([(register, lane) for register, lane in vectors] for _, vectors in places.bases)
    from_warp = list(chain(*outer))
    moved, keep = _without_clashes(from_k, from_lane)
    lane_bits = log2(dict(gather.outs)["lane"])
    g = _register_by_lane(moved, lane_bits)
    variants = [register ^ _image(g, lane) for register, lane in moved]
    return Shuffles(
        registers=gather.in_size("register"),
        lanes=gather.in_size("lane"),
        variants=tuple(_sums(independent(variants))),
        send=(_sent(g, from_k), tuple(g), _sent(g, from_warp)),
        source=(_lanes(from_k), _lanes(moved), _lanes(from_warp)),
        keep=(tuple(1 << bit for bit in range(len(from_k))), tuple(keep)),
        variant=tuple(variants),
    )


Pair = tuple[int, int]  # register and lane of a place


def _without_clashes(from_k: Sequence[Pair], from_lane: Sequence[Pair]) -> tuple[list[Pair], list[int]]:
    """The places that lane bits read in a round, and `f`: the bit of k that a lane bit flips so that they do not clash.

    Two bits clash if they read the same lane, but different registers of it; a bit of k helps that reads another lane.
    """
    moved, keep = list(from_lane), [0] * len(from_lane)
    reached = Span(_lanes(from_lane))
    known = Span()
    for number, (register, lane) in enumerate(from_lane):
        left, numbers = known.express(lane)
        sent = _image([r for r, _ in moved], numbers)
        if not left and sent != register:
            for bit, (other_register, other_lane) in enumerate(from_k):
                if reached.add(other_lane):
                    moved[number], keep[number] = (register ^ other_register, lane ^ other_lane), 1 << bit
                    break
        known.add(moved[number][1])
    return moved, keep


def _register_by_lane(moved: Sequence[Pair], bits: int) -> list[int]:
    """Columns of the map from a lane to the register that it sends in round 0, from the places that are read."""
    span = Span([*_lanes(moved), *(1 << bit for bit in range(bits))])
    registers = [register for register, _ in moved]
    return [_image(registers, span.express(1 << bit)[1] & (1 << len(moved)) - 1) for bit in range(bits)]


def _sent(g: Sequence[int], places: Sequence[Pair]) -> Columns:
    return tuple(register ^ _image(g, lane) for register, lane in places)


def _lanes(places: Sequence[Pair]) -> Columns:
    return tuple(lane for _, lane in places)


def _image(columns: Sequence[int], value: int) -> int:
    """The image of one number."""
    total = 0
    for bit, column in enumerate(columns):
        total ^= column if value >> bit & 1 else 0
    return total


def _apply(columns: Sequence[int], values: Array | int) -> Array:
    """The images of numbers."""
    total = np.zeros_like(np.asarray(values))
    for bit, column in enumerate(columns):
        total = total ^ ((np.asarray(values) >> bit & 1) * column)
    return total


def _sums(vectors: Sequence[int]) -> list[int]:
    """All sums of some of the vectors."""
    sums = [0]
    for vector in vectors:
        sums += [total ^ vector for total in sums]
    return sums
