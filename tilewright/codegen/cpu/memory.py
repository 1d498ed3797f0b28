"""Loads, stores and gathers of tiles.

Contiguous rows become vectors, other strides become transposes or single elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import product

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright.codegen.elementwise import constant
from tilewright.codegen.values import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    TileValue,
    chunks_of,
    from_scalars,
    intrinsic,
    lane_pieces,
    lanes_of,
    llvm_type,
    mangle,
    row_width,
    some_lanes,
    splat,
    vector_type,
    with_lanes,
)
from tilewright.kernel import dialect as tile

LINE_BYTES = 64
#: Vectors up to this size are stored in part by several stores: masked ones take longer without registers for masks.
NARROW_BYTES = 32
#: Bytes of alignment that a non-temporal store may assume; 0: store through the caches.
NONTEMPORAL_ALIGNMENTS = (64, 16, 0)


class Access:
    """The addresses and predicates of one tile access: rows and chunks of `extents` at `offset` with `strides`."""

    def __init__(
        self,
        builder: ir.IRBuilder,
        lanes: int,
        pointer: ir.Value,
        element_type: ir.Type,
        offset: ir.Value,
        extents: Sequence[int],
        strides: Sequence[int],
        bounds: Sequence[ir.Value],
        mask: TileValue | None,
    ) -> None:
        self.builder = builder
        self.lanes = lanes
        self.element_type = element_type
        self.extents = tuple(extents)
        self.strides = tuple(strides)
        self.bounds = [_useful_bound(bound, extent) for bound, extent in zip(bounds, extents, strict=False)]
        self.mask = mask
        self.base = builder.gep(pointer, [offset], source_etype=element_type)
        self.chunks = chunks_of(row_width(extents), lanes)

    def rows(self) -> Iterator[tuple[int, tuple[int, ...], int]]:
        """Number, leading indices and element offset of every row."""
        leading = self.extents[:-1]
        for number, index in enumerate(product(*(range(extent) for extent in leading))):
            yield number, index, sum(i * s for i, s in zip(index, self.strides, strict=False))

    def address(self, offset: int) -> ir.Value:
        if offset == 0:
            return self.base
        return self.builder.gep(self.base, [I64(offset)], source_etype=self.element_type)

    @property
    def step(self) -> int:
        """Stride of the last dimension."""
        return self.strides[-1] if self.strides else 1

    @property
    def predicated(self) -> bool:
        return self.mask is not None or any(bound is not None for bound in self.bounds)

    def predicate(self, row: int, index: Sequence[int], chunk: int, start: int) -> ir.Value | None:
        """The i1 (vector) that says which elements of one chunk to touch; None for all."""
        builder, length = self.builder, self.chunks[chunk]
        found: ir.Value | None = None
        for bound, position in zip(self.bounds, index, strict=False):
            if isinstance(bound, ir.Constant):
                if position >= bound.constant:
                    return constant(with_lanes(I1, length), 0)
            elif bound is not None:
                inside = builder.icmp_signed("<", I64(position), bound)
                found = inside if found is None else builder.and_(found, inside)
        if found is not None:
            found = splat(builder, found, length)
        last = self.bounds[-1] if self.bounds else None
        if last is not None:
            found = self._both(found, self._inside(last, start, length))
        if self.mask is not None:
            found = self._both(found, self.mask.rows[row][chunk])
        return found

    def _inside(self, bound: ir.Value, start: int, length: int) -> ir.Value:
        if isinstance(bound, ir.Constant):
            if length == 1:
                return I1(int(start < bound.constant))
            flags = [I1(1 if start + lane < bound.constant else 0) for lane in range(length)]
            return ir.Constant(vector_type(I1, length), flags)
        if length == 1:
            return self.builder.icmp_signed("<", I64(start), bound)
        # Comparing 32-bit lanes keeps the mask in one instruction; a tile row is far shorter than 2^31.
        left = self.builder.sub(bound, I64(start))
        clipped = self.builder.select(self.builder.icmp_signed(">", left, I64(length)), I64(length), left)
        numbers = ir.Constant(vector_type(I32, length), [I32(lane) for lane in range(length)])
        return self.builder.icmp_signed("<", numbers, splat(self.builder, self.builder.trunc(clipped, I32), length))

    def _both(self, a: ir.Value | None, b: ir.Value) -> ir.Value:
        return b if a is None else self.builder.and_(a, b)

    def pointers(self, offset: int, length: int) -> ir.Value:
        """A vector of the addresses of `length` elements from `offset` on, along the last dimension."""
        steps = [I64(offset + lane * self.step) for lane in range(length)]
        return addresses(self.builder, self.base, ir.Constant(vector_type(I64, length), steps), self.element_type)


def addresses(builder: ir.IRBuilder, pointer: ir.Value, offsets: ir.Value, element_type: ir.Type) -> ir.Value:
    """The address, or vector of addresses, `offsets` elements after `pointer`."""
    place = builder.gep(pointer, [offsets], source_etype=element_type)
    place.type = with_lanes(POINTER, lanes_of(offsets))  # llvmlite types a vector of addresses as one address
    return place


def _useful_bound(bound: ir.Value, extent: int) -> ir.Value | None:
    """None where the bound is known not to cut the tile."""
    return None if isinstance(bound, ir.Constant) and bound.constant >= extent else bound


def load(access: Access) -> TileValue:
    """Read a tile; elements outside the predicate are 0 and are not touched."""
    if _is_transposed(access):
        return _load_transposed(access)
    rows = []
    for number, index, offset in access.rows():
        registers, start = [], 0
        for chunk, length in enumerate(access.chunks):
            predicate = access.predicate(number, index, chunk, start)
            registers.append(_load_chunk(access, offset + start * access.step, length, predicate))
            start += length
        rows.append(tuple(registers))
    return TileValue(access.extents, tuple(rows))


def store(access: Access, value: TileValue, nontemporal: int) -> None:
    """Write a tile; `nontemporal` is the alignment in bytes that a store around the caches may assume, or 0."""
    if _is_transposed(access):
        turned = TileValue((access.extents[1], access.extents[0]), tuple(transpose(access.builder, value.rows)))
        flipped = Access.__new__(Access)
        flipped.__dict__.update(access.__dict__, extents=turned.shape, strides=(access.strides[1], 1))
        flipped.chunks = chunks_of(turned.shape[1], access.lanes)
        access, value = flipped, turned
    if _is_interleaved(access):
        _store_interleaved(access, value, nontemporal)
        return
    for number, index, offset in access.rows():
        start = 0
        for chunk, length in enumerate(access.chunks):
            predicate = access.predicate(number, index, chunk, start)
            register = value.rows[number][chunk]
            _store_chunk(access, offset + start * access.step, register, predicate, nontemporal)
            start += length


def gather(
    builder: ir.IRBuilder, pointer: ir.Value, element_type: ir.Type, offsets: TileValue, mask: TileValue | None
) -> TileValue:
    """Read single elements at 64-bit element offsets."""
    rows = []
    for r, row in enumerate(offsets.rows):
        registers = []
        for c, offset in enumerate(row):
            predicate = mask.rows[r][c] if mask is not None else None
            length = lanes_of(offset)
            places = addresses(builder, pointer, offset, element_type)
            registers.append(_read_places(builder, places, element_type, length, predicate))
        rows.append(tuple(registers))
    return TileValue(offsets.shape, tuple(rows))


def prefetch(builder: ir.IRBuilder, pointer: ir.Value, element_type: ir.Type, offset: ir.Value, size: int) -> None:
    """Ask for `size` bytes from an element on to be brought close.

    One hint per cache line, to read, into all levels.
    """
    base = builder.gep(pointer, [offset], source_etype=element_type)
    for start in range(0, size, LINE_BYTES):
        place = builder.gep(base, [I64(start)], source_etype=I8) if start else base
        intrinsic(builder, "llvm.prefetch.p0", ir.VoidType(), [place, I32(0), I32(3), I32(1)])


def row_offsets(access: Access) -> list[int]:
    """Where each row of a tile begins, in elements behind its first."""
    return [offset for _, _, offset in access.rows()]


def load_element(access: Access, offset: int) -> ir.Value:
    """The element `offset` elements behind the first of an unpredicated tile."""
    return _plain_load(access, offset, 1)


def load_word(access: Access, offset: int) -> ir.Value:
    """The i32 word that begins `offset` elements behind the first of an unpredicated tile."""
    return access.builder.load(access.address(offset), align=_bytes(access.element_type), typ=I32)


def load_row(access: Access, offset: int) -> tuple[ir.Value, ...]:
    """The registers of one contiguous row of an unpredicated tile."""
    registers, start = [], offset
    for length in access.chunks:
        registers.append(_plain_load(access, start, length))
        start += length
    return tuple(registers)


def load_word_row(access: Access, offset: int, n: int, group: int) -> tuple[ir.Value, ...]:
    """Registers of `n` i32 words of `group` neighbours each, which follow each other from `offset` on."""
    registers, start = [], offset
    for length in chunks_of(n, access.lanes):
        type_ = with_lanes(I32, length)
        registers.append(access.builder.load(access.address(start), align=_bytes(access.element_type), typ=type_))
        start += length * group
    return tuple(registers)


def transpose(builder: ir.IRBuilder, rows: Sequence[Sequence[ir.Value]]) -> list[tuple[ir.Value, ...]]:
    """Transpose a tile held as rows of whole vectors: square blocks by log2(lanes) rounds of shuffles."""
    lanes = lanes_of(rows[0][0])
    height, width = len(rows), len(rows[0])
    blocks: list[list[ir.Value]] = [[] for _ in range(width * lanes)]
    for top in range(0, height, lanes):
        for column in range(width):
            square = [rows[top + lane][column] for lane in range(lanes)]
            for lane, register in enumerate(_transpose_square(builder, square)):
                blocks[column * lanes + lane].append(register)
    return [tuple(block) for block in blocks]


def _transpose_square(builder: ir.IRBuilder, registers: list[ir.Value]) -> list[ir.Value]:
    lanes = len(registers)
    distance = lanes // 2
    while distance:
        low = [lane if not lane & distance else lanes + (lane ^ distance) for lane in range(lanes)]
        high = [(lane ^ distance) if not lane & distance else lanes + lane for lane in range(lanes)]
        exchanged = list(registers)
        for i in range(lanes):
            if not i & distance:
                a, b = registers[i], registers[i | distance]
                exchanged[i] = builder.shuffle_vector(a, b, ir.Constant(vector_type(I32, lanes), [I32(x) for x in low]))
                exchanged[i | distance] = builder.shuffle_vector(
                    a, b, ir.Constant(vector_type(I32, lanes), [I32(x) for x in high])
                )
        registers = exchanged
        distance //= 2
    return registers


def _is_transposed(access: Access) -> bool:
    """Rank 2, contiguous along the first dimension, both extents whole power-of-two vectors."""
    lanes = access.lanes
    return (
        len(access.extents) == 2
        and access.strides[0] == 1
        and access.strides[1] not in (0, 1)
        and access.extents[0] % lanes == 0
        and access.extents[1] % lanes == 0
        and not access.predicated
    )


def _is_interleaved(access: Access) -> bool:
    """Rank 2, two, four or eight rows whose elements lie between each other, so that all columns are one run."""
    return (
        len(access.extents) == 2
        and access.strides == (1, access.extents[0])
        and access.extents[0] in (2, 4, 8)
        and access.extents[0] < access.lanes
        and min(access.chunks) > 1
        and access.mask is None
        and all(bound is None for bound in access.bounds[:1])
        and all(bound is None or isinstance(bound, ir.Constant) for bound in access.bounds[1:])
    )


def _store_interleaved(access: Access, value: TileValue, nontemporal: int) -> None:
    """Write rows whose elements lie between each other as vectors that are shuffled from all rows."""
    count, start = len(value.rows), 0
    run = copy(access)
    run.bounds = [I64(bound.constant * count) for bound in access.bounds[1:] if bound is not None]
    run.strides = (1,)
    for chunk, length in enumerate(access.chunks):
        interleaved = _interleave(access.builder, [row[chunk] for row in value.rows])
        run.chunks = [length] * count
        for number in range(count):
            piece = some_lanes(access.builder, interleaved, range(number * length, (number + 1) * length))
            place = start + number * length
            predicate = run.predicate(0, (), number, place)
            _store_chunk(run, place, piece, predicate, nontemporal)
        start += length * count


def _interleave(builder: ir.IRBuilder, rows: Sequence[ir.Value]) -> ir.Value:
    """The first lanes of all vectors, then their second lanes, and so on, as one vector."""
    if len(rows) == 1:
        return rows[0]
    even, odd = _interleave(builder, rows[::2]), _interleave(builder, rows[1::2])
    lanes = lanes_of(even)
    order = [I32(lane + part) for lane in range(lanes) for part in (0, lanes)]
    return builder.shuffle_vector(even, odd, ir.Constant(vector_type(I32, 2 * lanes), order))


def _load_transposed(access: Access) -> TileValue:
    columns = []
    for column in range(access.extents[1]):
        start = column * access.strides[1]
        columns.append(
            [_plain_load(access, start + first, access.lanes) for first in range(0, access.extents[0], access.lanes)]
        )
    return TileValue(access.extents, tuple(transpose(access.builder, columns)))


def _load_chunk(access: Access, offset: int, length: int, predicate: ir.Value | None) -> ir.Value:
    builder = access.builder
    if length == 1 or access.step == 1:
        if predicate is None:
            return _plain_load(access, offset, length)
        if length == 1:
            return _read_places(builder, access.address(offset), access.element_type, 1, predicate)
        type_ = with_lanes(access.element_type, length)
        name = f"llvm.masked.load.{mangle(type_)}.p0"
        zero = constant(type_, 0)
        return intrinsic(builder, name, type_, [access.address(offset), predicate, zero])
    if access.step == 0 and predicate is None:
        return splat(builder, _plain_load(access, offset, 1), length)
    if predicate is None:
        scalars = [_plain_load(access, offset + lane * access.step, 1) for lane in range(length)]
        return from_scalars(builder, scalars, length)[0]
    return _read_places(builder, access.pointers(offset, length), access.element_type, length, predicate)


def _plain_load(access: Access, offset: int, length: int) -> ir.Value:
    return access.builder.load(
        access.address(offset), align=_bytes(access.element_type), typ=with_lanes(access.element_type, length)
    )


def _read_places(
    builder: ir.IRBuilder, places: ir.Value, element_type: ir.Type, length: int, predicate: ir.Value | None
) -> ir.Value:
    """Read the elements at a vector of addresses (or one address), 0 where the predicate is false."""
    if length == 1 and predicate is None:
        return builder.load(places, align=_bytes(element_type), typ=element_type)
    size = max(length, 1)
    type_ = vector_type(element_type, size)
    if length == 1:  # a one-lane masked load becomes a branch around the access
        assert predicate is not None
        flags = builder.bitcast(predicate, vector_type(I1, 1))
        name = f"llvm.masked.load.{mangle(type_)}.p0"
        read = intrinsic(builder, name, type_, [places, flags, constant(type_, 0)])
        return builder.extract_element(read, I32(0))
    flags = predicate if predicate is not None else constant(vector_type(I1, size), 1)
    name = f"llvm.masked.gather.{mangle(type_)}.v{size}p0"
    return intrinsic(builder, name, type_, [places, flags, constant(type_, 0)])


def _store_chunk(access: Access, offset: int, register: ir.Value, predicate: ir.Value | None, nontemporal: int) -> None:
    builder, length = access.builder, lanes_of(register)
    size = _bytes(access.element_type)
    if length == 1 and predicate is None:
        builder.store(register, access.address(offset), align=size)
        return
    flags = predicate.constant if isinstance(predicate, ir.Constant) and length > 1 else []
    if len(flags) > 1 and sum(flag.constant for flag in flags) <= 1:
        # LLVM stores the whole 32-bit lane where it merges the truncation of a 16-bit tile into a masked store of one
        # lane.
        for lane, flag in enumerate(flags):
            if flag.constant:
                piece = builder.extract_element(register, I32(lane))
                builder.store(piece, access.address(offset + lane * access.step), align=size)
        return
    if access.step == 1 or length == 1:
        if predicate is None:
            _store_contiguous(access, offset, register, nontemporal)
            return
        if _is_prefix(flags) and length * size <= NARROW_BYTES:
            _store_prefix(access, offset, register, sum(flag.constant for flag in flags))
            return
        stored = (
            register
            if length > 1
            else builder.insert_element(ir.Constant(vector_type(register.type, 1), ir.Undefined), register, I32(0))
        )
        flags = predicate if length > 1 else builder.bitcast(predicate, vector_type(I1, 1))
        name = f"llvm.masked.store.{mangle(stored.type)}.p0"
        intrinsic(builder, name, ir.VoidType(), [stored, access.address(offset), flags])
        return
    if predicate is None:
        for lane, scalar in enumerate(lane_pieces(builder, [register])):
            builder.store(scalar, access.address(offset + lane * access.step), align=size)
        return
    name = f"llvm.masked.scatter.{mangle(register.type)}.v{length}p0"
    intrinsic(builder, name, ir.VoidType(), [register, access.pointers(offset, length), predicate])


def _is_prefix(flags: Sequence[ir.Constant]) -> bool:
    """Whether a known predicate of several lanes holds for the first of them, and not for those behind these."""
    count = sum(flag.constant for flag in flags)
    return len(flags) > 1 and all(flag.constant == (lane < count) for lane, flag in enumerate(flags))


def _store_prefix(access: Access, offset: int, register: ir.Value, count: int) -> None:
    """Store the first `count` lanes, in pieces of a power of two."""
    builder, start = access.builder, 0
    while start < count:
        part = 1 << ((count - start).bit_length() - 1)
        piece = some_lanes(builder, register, range(start, start + part))
        builder.store(piece, access.address(offset + start), align=_bytes(access.element_type))
        start += part


def _store_contiguous(access: Access, offset: int, register: ir.Value, nontemporal: int) -> None:
    builder, length, size = access.builder, lanes_of(register), _bytes(access.element_type)
    if not nontemporal or (length * size) % nontemporal:
        builder.store(register, access.address(offset), align=size)
        return
    part = nontemporal // size
    metadata = builder.module.add_metadata([I32(1)])
    for start in range(0, length, part):
        piece = register
        if part != length:
            piece = some_lanes(builder, register, range(start, start + part))
        stored = builder.store(piece, access.address(offset + start), align=nontemporal)
        stored.set_metadata("nontemporal", metadata)


def _bytes(element_type: ir.Type) -> int:
    if isinstance(element_type, ir.IntType):
        return max(1, int(element_type.width) // 8)
    return {"half": 2, "float": 4, "double": 8}[str(element_type)]


def element_llvm(view: SSAValue) -> ir.Type:
    return llvm_type(tile.element(view))
