"""Memory accesses of a tile in registers: vector width, sectors of global memory, bank conflicts of shared memory.

An *access* is what the lanes of one warp do at once: each reads or writes a vector of consecutive elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.layouts.bits import is_power_of_two, log2
from tilewright.layouts.form import InShared
from tilewright.layouts.linear import PLACE, Array, LinearLayout
from tilewright.layouts.shared import Padded, Shared, checked_bits

WIDEST_BITS = 128  # of one access by one lane
SECTOR_BYTES = 32  # what global memory moves at once
BANKS = 32  # of shared memory, each a word wide
WORD_BYTES = 4
LINE_BYTES = BANKS * WORD_BYTES  # what shared memory moves in one wavefront


@dataclass(frozen=True)
class SharedAccess:
    """Wavefronts that some accesses of shared memory take, and the fewest that accesses of their width take."""

    accesses: int
    wavefronts: int
    fewest: int
    degree: int  # wavefronts of the worst part that could have been one

    @property
    def conflicts(self) -> int:
        """Wavefronts too many: 0 for accesses free of bank conflicts."""
        return self.wavefronts - self.fewest


@dataclass(frozen=True)
class GlobalAccess:
    """Requests to global memory, sectors of 32 bytes that they move, and the fewest that hold their bytes."""

    requests: int
    sectors: int
    fewest: int


def row_major_memory(shape: Sequence[int], order: Sequence[int] | None = None) -> LinearLayout:
    """Memory that holds a tile without gaps: offset to index; `order` lists the dimensions, fastest first."""
    chosen = tuple(order) if order is not None else tuple(reversed(range(len(shape))))
    return Shared(1, 1, 1, chosen).to_linear(shape)


def contiguity(layout: LinearLayout, memory: LinearLayout) -> int:
    """Elements that consecutive registers of a lane hold, in the order of memory and aligned there.

    The number of low register bits that map to consecutive low bits of the offset, which no other bit touches.

    >>> from tilewright.layouts.blocked import Blocked
    >>> contiguity(Blocked((1, 8), (16, 2), (1, 1), (1, 0)).to_linear((16, 16)), row_major_memory((16, 16)))
    8
    """
    offsets = layout.invert_and_compose(memory)
    registers = offsets.columns_of("register")
    others = offsets.columns_of(*(name for name in offsets.in_names if name != "register"))
    bits = 0
    while bits < len(registers) and registers[bits] == 1 << bits:
        bits += 1
    while bits and any(column % (1 << bits) for column in (*registers[bits:], *others)):
        bits -= 1
    return 1 << bits


def vector_width(layout: LinearLayout, memory: LinearLayout | Padded, bits: int, alignment: int = 1 << 20) -> int:
    """Elements of `bits` that one access of a lane moves: contiguity, alignment (in elements) and 128 bits allow.

    Of padded rows, the length of a row and its padding limit it too. Of an `alignment` counts the largest power of two
    that divides it.
    """
    checked_bits(bits)
    if alignment < 1:
        raise InvalidArgument(f"an alignment of {alignment} elements", help="1 or more")
    if isinstance(memory, Padded):
        found = contiguity(layout, row_major_memory(layout.shape, memory.order))
        row = layout.shape[memory.order[0]]
        limit = min(row, memory.pad & -memory.pad) if memory.pad else found
    else:
        found, limit = contiguity(layout, memory), WIDEST_BITS
    return min(found, limit, alignment & -alignment, max(1, WIDEST_BITS // bits))


def shared_access(
    layout: LinearLayout, memory: InShared | LinearLayout, bits: int, vector: int | None = None, banks: int = BANKS
) -> SharedAccess:
    """All accesses with which the warps of a block read or write a tile in shared memory.

    `vector` elements per lane and access; by default, as many as `vector_width` says.
    """
    if isinstance(memory, InShared) and not isinstance(memory, Padded):
        memory = memory.to_linear(layout.shape)
    widest = vector_width(layout, memory, bits)
    vector = widest if vector is None else vector
    if not 1 <= vector <= widest or widest % vector:
        raise InvalidArgument(f"accesses of {vector} elements, where {widest} are consecutive", help=f"1 to {widest}")
    size = _bytes(vector, bits)
    if isinstance(memory, Padded):
        return wavefronts(_addresses(layout, memory.offsets(layout.shape), bits, vector), size, banks)
    # Linear: every access is the first one with all addresses XORed by one number, so banks change places and no more.
    offsets = layout.invert_and_compose(memory)
    first = wavefronts((offsets.sublayout(["lane"], offsets.out_names).table() * bits // 8)[None], size, banks)
    count = 1 << (layout.in_bits - len(layout.of("lane")) - log2(vector))
    return SharedAccess(count, count * first.wavefronts, count * first.fewest, first.degree)


def wavefronts(addresses: Array, size: int, banks: int = BANKS) -> SharedAccess:
    """Accesses of shared memory: byte addresses (accesses, lanes), `size` bytes each, multiples of their size.

    Neighbouring lanes are served in groups: of 32 banks, 32 lanes up to 4 bytes, 16 of 8 bytes, 8 of 16 bytes. A group
    takes as many wavefronts as there are different words in the worst bank; lanes that want the same word share it.
    """
    if size not in (1, 2, 4, 8, 16) or not is_power_of_two(banks):
        raise InvalidArgument(f"accesses of {size} bytes to {banks} banks", help="1, 2, 4, 8 or 16 bytes; 32 banks")
    count, lanes = addresses.shape
    group = min(lanes, banks * WORD_BYTES // max(WORD_BYTES, size))
    words = addresses.reshape(-1, group) // WORD_BYTES
    words = (words[:, :, None] + np.arange(max(1, size // WORD_BYTES))).reshape(len(words), -1)
    words.sort(axis=1)
    new = np.ones(words.shape, bool)
    new[:, 1:] = words[:, 1:] != words[:, :-1]
    cell = np.arange(len(words))[:, None] * banks + words % banks
    per_bank = np.bincount(cell[new], minlength=len(words) * banks).reshape(-1, banks)
    worst = per_bank.max(axis=1)
    return SharedAccess(count, int(worst.sum()), len(words), int(worst.max(initial=0)))


def global_access(
    layout: LinearLayout,
    bits: int,
    strides: Sequence[int] | None = None,
    vector: int | None = None,
    base_bytes: int = 0,
) -> GlobalAccess:
    """All accesses with which the warps of a block read or write a tile in global memory.

    `strides` in elements (default: row-major without gaps), the first element at `base_bytes`. `vector` elements per
    lane and request, which divide what contiguity in the fastest dimension, base and strides allow: by default as
    many. Raises InvalidArgument for other vectors, and for a base between elements.
    """
    checked_bits(bits)
    shape = layout.shape
    if strides is None:
        strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    if len(strides) != len(shape):
        raise InvalidArgument(f"{len(strides)} strides of a tile of {len(shape)} dimensions", help="one per dimension")
    if base_bytes % _bytes(1, max(8, bits)):
        raise InvalidArgument(f"elements of {bits} bits from byte {base_bytes} on", help=f"a multiple of {bits // 8}")
    widest = _strided_width(layout, strides, bits, base_bytes)
    vector = widest if vector is None else vector
    if not 1 <= vector <= widest or widest % vector:
        raise InvalidArgument(f"accesses of {vector} elements, where {widest} are consecutive", help=f"1 to {widest}")
    index = np.indices(shape) if shape else np.zeros((0,), np.int64)
    offsets = sum((index[d] * stride for d, stride in enumerate(strides)), np.zeros(shape, np.int64))
    size = _bytes(vector, bits)
    addresses = base_bytes + _addresses(layout, offsets, bits, vector)
    first, last = addresses // SECTOR_BYTES, (addresses + size - 1) // SECTOR_BYTES
    sectors = np.concatenate([first, last], axis=1)
    fewest = -(-_different(addresses) * size // SECTOR_BYTES)
    return GlobalAccess(len(addresses), int(_different(sectors).sum()), int(fewest.sum()))


def elements_per_thread(layout: LinearLayout) -> int:
    """Registers of a lane that hold an element, replicas included."""
    return layout.in_size("register")


def replication(layout: LinearLayout) -> int:
    """Places of every element."""
    return 1 << (layout.in_bits - layout.rank)


@dataclass(frozen=True)
class MatrixLoad:
    """How ``ldmatrix`` fills a layout from shared memory.

    Lane l gives the address of a row: the XOR of `lane_offsets` over the bits of l, in elements; `instruction_offsets`
    over the bits of the number of the instruction, and `warp_offsets` over those of the warp, go on top.
    """

    count: int  # matrices per instruction
    transposed: bool
    instructions: int  # of a warp
    lane_offsets: tuple[int, ...]
    instruction_offsets: tuple[int, ...]
    warp_offsets: tuple[int, ...]
    access: SharedAccess  # of one matrix: eight rows of 16 bytes

    def __str__(self) -> str:
        return f"ldmatrix.x{self.count}{'.trans' if self.transposed else ''}"


def matrix_load(layout: LinearLayout, memory: LinearLayout, bits: int) -> MatrixLoad | None:
    """Whether 8 x 8 matrices of 16-bit pieces, rows of 16 bytes, are what the lanes hold; None where they are not.

    A lane gets 32 bits of row ``lane // 4``, at ``lane % 4``; transposed (16-bit elements), two rows of column
    ``lane // 4``.
    """
    if bits not in (8, 16, 32):
        return None
    offsets = layout.invert_and_compose(memory)
    registers, lanes = offsets.columns_of("register"), offsets.columns_of("lane")
    warps = offsets.columns_of(*(n for n in offsets.in_names if n not in ("register", "lane")))
    packed, row = log2(32 // bits), log2(128 // bits)
    if len(lanes) != 5 or len(registers) < packed:
        return None
    inside = tuple(1 << bit for bit in range(row))
    for transposed in (False, True) if bits == 16 else (False,):
        pieces, eighths = (*registers[:packed], *lanes[:2]), lanes[2:]
        found, rows = (eighths, pieces) if transposed else (pieces, eighths)
        if found == inside and all(column % (1 << row) == 0 for column in (*rows, *registers[packed:], *warps)):
            addresses = np.zeros(1, np.int64)
            for column in rows:
                addresses = np.concatenate([addresses, addresses ^ column])
            matrices = 1 << (len(registers) - packed)
            count = min(4, matrices)
            access = wavefronts(addresses[None] * bits // 8, 16)
            further = registers[packed:]  # by which matrices differ: those of one instruction, then instructions
            own = (*rows, *further[: log2(count)])
            return MatrixLoad(count, transposed, matrices // count, own, further[log2(count) :], warps, access)
    return None


def _strided_width(layout: LinearLayout, strides: Sequence[int], bits: int, base_bytes: int) -> int:
    """Elements per access of memory with strides: the dimension of stride 1 first, its runs aligned everywhere.

    Dimensions come by the distance of neighbours, backwards or not; those without neighbours, and repeated ones, last.
    """
    order = sorted(range(len(strides)), key=lambda d: (layout.shape[d] == 1, abs(strides[d]) or 1 << 62, -d))
    if not order or strides[order[0]] != 1:
        return 1
    width = vector_width(layout, row_major_memory(layout.shape, order), bits)
    width = min(width, layout.shape[order[0]])
    bounds = [strides[d] * bits // 8 for d in order[1:] if layout.shape[d] > 1]
    while width > 1 and any(bound % _bytes(width, bits) for bound in (*bounds, base_bytes)):
        width //= 2
    return width


def _addresses(layout: LinearLayout, offsets: Array, bits: int, vector: int) -> Array:
    """Byte addresses (accesses, lanes) of the vectors."""
    ordered = layout.sublayout([name for name in PLACE if name in layout.in_names], layout.out_names)
    first = ordered.table()[..., ::vector]
    addresses = offsets.reshape(-1)[first] * bits // 8
    return np.moveaxis(addresses, -2, -1).reshape(-1, layout.in_size("lane"))


def _different(rows: Array) -> Array:
    """How many different numbers each row has: by a sort, which is faster than `np.unique` for as few as lanes."""
    ordered = np.sort(rows, axis=1)
    changes: Array = (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    return changes + 1


def _bytes(vector: int, bits: int) -> int:
    if vector * bits % 8:
        raise InvalidArgument(f"accesses of {vector * bits} bits", help=f"at least {8 // bits} elements, a byte")
    return vector * bits // 8
