"""Reductions along a dimension of a tile: what a thread, a warp and a block combine, and the layout of the result."""

from __future__ import annotations

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.linear import LinearLayout, dims


@dataclass(frozen=True)
class Reduction:
    """The steps, in order: registers of a thread, butterfly shuffles of a warp, then partial results of warps.

    Bits are those whose base lies along the dimension; bits that only replicate take no part.
    """

    registers: tuple[tuple[int, ...], ...]  # registers of a thread that are combined, in this order, into one
    lane_bits: tuple[int, ...]  # from high to low: ``v = combine(v, shuffle_xor(v, 1 << bit))``
    warp_bits: tuple[int, ...]
    scratch: int  # partial results in shared memory: one row per result element, one column per warp along it
    result: LinearLayout

    @property
    def shuffles(self) -> int:
        """Per result register: within a warp, and again over what the warps left."""
        return len(self.lane_bits) + len(self.warp_bits)


def reduction(layout: LinearLayout, dim: int) -> Reduction:
    """How a tile is reduced along `dim`; the result's layout is that of the slice.

    Raises InvalidArgument where a base of the layout lies along `dim` and another dimension at once.
    """
    rank = len(layout.shape)
    if not 0 <= dim < rank:
        raise InvalidArgument(f"dimension {dim} of a tile of rank {rank}", help=f"0 to {rank - 1}")
    for name, vectors in layout.bases:
        for base in vectors:
            if base[dim] and any(c for d, c in enumerate(base) if d != dim):
                raise InvalidArgument(
                    f"base {base} of {name} lies along dimension {dim} and another one",
                    where=str(layout),
                    help="convert to a layout whose bases lie along one dimension each",
                )
    kept = [name for name in layout.out_names if name != layout.out_names[dim]]
    sliced = layout.sublayout(layout.in_names, kept)
    outs = tuple(zip(dims(rank - 1), sliced.shape, strict=True))
    result = LinearLayout(sliced.bases, outs).without_zeros("register")
    lanes, warps = (_bits_along(layout, name, dim) for name in ("lane", "warp"))
    elements = 1 << result.out_bits
    return Reduction(_combined(layout, dim), lanes[::-1], warps, elements << len(warps) if warps else 0, result)


def _bits_along(layout: LinearLayout, name: str, dim: int) -> tuple[int, ...]:
    return tuple(bit for bit, base in enumerate(layout.of(name)) if base[dim])


def _combined(layout: LinearLayout, dim: int) -> tuple[tuple[int, ...], ...]:
    """Registers by result register; of registers that hold the same element only the first."""
    groups: dict[tuple[int, ...], dict[int, int]] = {}
    for register in range(layout.in_size("register")):
        index = layout.apply(register=register)
        others = tuple(c for d, c in enumerate(index) if d != dim)
        groups.setdefault(others, {}).setdefault(index[dim], register)
    return tuple(tuple(group.values()) for group in groups.values())
