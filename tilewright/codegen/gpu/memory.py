"""Loads, stores and gathers of what a thread holds.

Elements that lie next to each other become vector accesses as wide as the alignment allows, 16 bytes at most. How one
of them is made is the target's: `Read` and `Write`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any, Protocol

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright.codegen.elementwise import constant
from tilewright.codegen.gpu.elements import known
from tilewright.codegen.gpu.emission import Emission, Place
from tilewright.codegen.loops import either, merged
from tilewright.codegen.values import I1
from tilewright.dataclass import dataclass
from tilewright.kernel import dialect as tile
from tilewright.kernel.indices import constant_index, divisor

VECTOR_BYTES = 16

Condition = frozenset[ir.Value]  # all must hold


class Read(Protocol):
    """`count` neighbours, `offset` elements after `base`; 0 where the condition does not hold."""

    def __call__(
        self, at: Any, place: Place, base: ir.Value, offset: int, count: int, align: int, condition: Condition | None
    ) -> list[ir.Value]: ...


class Write(Protocol):
    """Store neighbours, `offset` elements after `base`, where the condition holds."""

    def __call__(
        self, at: Any, place: Place, base: ir.Value, offset: int, values: Sequence[ir.Value], align: int,
        condition: Condition,
    ) -> None: ...  # fmt: skip


@dataclass(frozen=True)
class Chunk:
    """Elements, by their number in the tile, that one access may move: `offset` elements from its start on."""

    offset: int
    numbers: tuple[int, ...]
    align: int


def chunks_of(extents: Sequence[int], strides: Sequence[int], size: int, align: int) -> list[Chunk]:
    """Cut a tile whose start is a multiple of `align` bytes into aligned accesses of neighbours, by rising offset.

    Elements that share a place are accessed one by one.
    """
    offsets = [
        sum(t * stride for t, stride in zip(index, strides, strict=True)) for index in product(*map(range, extents))
    ]
    order = sorted(range(len(offsets)), key=lambda number: offsets[number])
    alone = len(set(offsets)) < len(offsets)
    chunks, start = [], 0
    while start < len(order):
        offset = offsets[order[start]]
        step = align if offset == 0 else min(align, (offset * size) & -(offset * size))
        run = 1
        while start + run < len(order) and offsets[order[start + run]] == offset + run:
            run += 1
        length = 1
        while not alone and 2 * length <= run and 2 * length * size <= min(step, VECTOR_BYTES):
            length *= 2
        chunks.append(Chunk(offset, tuple(order[start : start + length]), max(step, size)))
        start += length
    return chunks


def load(read: Read, at: Emission, op: tile.LoadOp) -> None:
    access = Access(at, op, tile.shape(op.result))
    place = access.place
    values: list[ir.Value] = [constant(place.element, 0)] * access.count
    for chunk in access.chunks:
        conditions = [access.condition(number) for number in chunk.numbers]
        for number, value in zip(chunk.numbers, _load_chunk(read, at, access, chunk, conditions), strict=True):
            values[number] = value
    at.set(op.result, values)


def store(write: Write, at: Emission, op: tile.StoreOp) -> None:
    access = Access(at, op, tile.shape(op.value))
    values = at.elements(op.value)
    for chunk in access.chunks:
        conditions = [access.condition(number) for number in chunk.numbers]
        _store_chunk(write, at, access, chunk, conditions, [values[number] for number in chunk.numbers])


def gather(read: Read, at: Emission, op: tile.GatherOp) -> None:
    place = at.places[op.view]
    masks: Sequence[ir.Value | None] = (
        at.elements(op.mask) if op.mask is not None else [None] * len(at.elements(op.offsets))
    )
    values = []
    for offset, mask in zip(at.elements(op.offsets), masks, strict=True):
        address = at.address(place, offset)
        values += read(at, place, address, 0, 1, place.bytes, None if mask is None else frozenset([mask]))
    at.set(op.result, values)


class Access:
    """The chunks of one access, its address, and the condition of every element."""

    def __init__(self, at: Emission, op: tile.LoadOp | tile.StoreOp, extents: tuple[int, ...]) -> None:
        self.at = at
        self.place = at.places[op.view]
        self.indices = list(product(*map(range, extents)))
        self.count = len(self.indices)
        self.bounds = [self._bound(bound) for bound in op.bounds]
        self.mask = at.elements(op.mask) if op.mask is not None else None
        self.inside: dict[tuple[int, int], ir.Value | None] = {}
        # Bounds that any element keeps the first one keeps too.
        touched = self.mask is None or len(set(self.mask)) == 1
        self.base = at.begin(op.view, op.offset, touched)
        promised = 1 if op.align is None else op.align.value.data
        align = min(self.place.align, max(promised, self._divides(op.offset)))
        self.chunks = chunks_of(extents, tile.strides_of(op), self.place.bytes, align)

    def _bound(self, bound: SSAValue) -> ir.Value:
        number = constant_index(bound)
        return self.at.scalar(bound) if number is None else self.at.index(number)

    def _divides(self, offset: SSAValue) -> int:
        """The largest power of two that divides the offset in bytes."""
        number = divisor(offset) * self.place.bytes
        return number & -number if number else 1 << 30

    def condition(self, number: int) -> Condition | None:
        """What must hold for an element to be touched; None for never."""
        found = set()
        for axis, bound in enumerate(self.bounds):
            position = self.indices[number][axis]
            if (axis, position) not in self.inside:
                self.inside[axis, position] = self._below(position, bound)
            flag = self.inside[axis, position]
            if flag is not None:
                found.add(flag)
        if self.mask is not None:
            found.add(self.mask[number])
        if any(known(flag) == 0 for flag in found):
            return None
        return frozenset(flag for flag in found if known(flag) is None)

    def _below(self, position: int, bound: ir.Value) -> ir.Value | None:
        number = known(bound)
        if number is not None:
            return None if position < number else I1(0)
        return self.at.builder.icmp_signed("<", bound.type(position), bound)


def all_of(at: Emission, conditions: Sequence[Condition]) -> ir.Value:
    """All conditions, in a fixed order."""
    flags = list(dict.fromkeys(flag for condition in conditions for flag in sorted(condition, key=_name)))
    return reduce(at.builder.and_, flags)


def _name(value: ir.Value) -> tuple[int, str]:
    text = str(value.name) if hasattr(value, "name") else str(value)
    return len(text), text


def _load_chunk(
    read: Read, at: Emission, access: Access, chunk: Chunk, conditions: Sequence[Condition | None]
) -> list[ir.Value]:
    place, count = access.place, len(chunk.numbers)
    if len(set(conditions)) == 1:
        if conditions[0] is None:
            return [constant(place.element, 0)] * count
        return read(at, place, access.base, chunk.offset, count, chunk.align, conditions[0])
    return _split(
        at,
        conditions,
        lambda condition: read(at, place, access.base, chunk.offset, count, chunk.align, condition),
        lambda position: (
            read(at, place, access.base, chunk.offset + position, 1, place.bytes, conditions[position] or frozenset())
            if conditions[position] is not None
            else [constant(place.element, 0)]
        ),
    )


def _store_chunk(
    write: Write,
    at: Emission,
    access: Access,
    chunk: Chunk,
    conditions: Sequence[Condition | None],
    values: Sequence[ir.Value],
) -> None:
    place = access.place
    if len(set(conditions)) == 1:
        if conditions[0] is not None:
            write(at, place, access.base, chunk.offset, values, chunk.align, conditions[0])
        return

    def whole(condition: Condition) -> list[ir.Value]:
        write(at, place, access.base, chunk.offset, values, chunk.align, condition)
        return []

    def single(position: int) -> list[ir.Value]:
        condition = conditions[position]
        if condition is not None:
            write(
                at, place, access.base, chunk.offset + position, values[position : position + 1], place.bytes, condition
            )
        return []

    _split(at, conditions, whole, single)


def _split(
    at: Emission,
    conditions: Sequence[Condition | None],
    whole: Callable[[Condition], list[ir.Value]],
    single: Callable[[int], list[ir.Value]],
) -> list[ir.Value]:
    """One access where all elements are touched, single ones otherwise; the values that it gives."""

    def each() -> list[ir.Value]:
        return [value for position in range(len(conditions)) for value in single(position)]

    if any(condition is None for condition in conditions):
        return each()
    every = all_of(at, [condition for condition in conditions if condition is not None])
    return either(at.builder, every, lambda: whole(frozenset()), each, ("whole", "single", "after"))


def read_where(at: Emission, condition: ir.Value, read: Callable[[], list[ir.Value]]) -> list[ir.Value]:
    """What `read` gives, in a branch of its own; 0 where the condition does not hold."""
    with at.branch(condition) as (before, _):
        values = read()
        inside = at.builder.block
    return [merged(at.builder, [(before, constant(value.type, 0)), (inside, value)]) for value in values]


def moved(at: Emission, place: Place, base: ir.Value, offset: int) -> ir.Value:
    """The address of the element `offset` after `base`."""
    if offset == 0:
        return base
    return at.builder.gep(base, [place.word(offset)], source_etype=place.element)
