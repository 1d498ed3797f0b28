"""Loads, stores and gathers of what a thread holds.

Elements that lie next to each other become vector accesses as wide as the alignment allows, 16 bytes at most. Accesses
to global and shared memory under a condition are predicated instructions, not branches, so that several can be under
way at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

from llvmlite import ir
from xdsl.ir import SSAValue

from tilewright.codegen.elementwise import constant
from tilewright.codegen.indices import constant_index, divisor
from tilewright.codegen.nvptx.elements import known
from tilewright.codegen.nvptx.emission import (
    GLOBAL,
    I1,
    I8,
    I16,
    I32,
    I64,
    LOCAL,
    Emission,
    Place,
    from_words,
    scalars_of,
    to_words,
    vector,
)
from tilewright.kernel import dialect as tile

VECTOR_BYTES = 16
LINE_BYTES = 128

Condition = frozenset[ir.Value]  # all must hold


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


def load(at: Emission, op: tile.LoadOp) -> None:
    access = _Access(at, op, tile.shape(op.result))
    place = access.place
    values: list[ir.Value] = [constant(place.element, 0)] * access.count
    for chunk in access.chunks:
        conditions = [access.condition(number) for number in chunk.numbers]
        for number, value in zip(chunk.numbers, _load_chunk(at, access, chunk, conditions), strict=True):
            values[number] = value
    at.set(op.result, values)


def store(at: Emission, op: tile.StoreOp) -> None:
    access = _Access(at, op, tile.shape(op.value))
    values = at.elements(op.value)
    for chunk in access.chunks:
        conditions = [access.condition(number) for number in chunk.numbers]
        _store_chunk(at, access, chunk, conditions, [values[number] for number in chunk.numbers])


def gather(at: Emission, op: tile.GatherOp) -> None:
    place = at.places[op.view]
    masks: Sequence[ir.Value | None] = (
        at.elements(op.mask) if op.mask is not None else [None] * len(at.elements(op.offsets))
    )
    values = []
    for offset, mask in zip(at.elements(op.offsets), masks, strict=True):
        address = at.address(place, offset)
        values += read(at, place, address, 0, 1, place.bytes, None if mask is None else frozenset([mask]))
    at.set(op.result, values)


def prefetch(at: Emission, op: tile.PrefetchOp) -> None:
    """One hint per cache line, where the line begins inside the view."""
    place = at.places[op.view]
    if place.space != GLOBAL:
        return
    offset = at.scalar(op.offset)
    base = at.address(place, offset)
    for start in range(0, op.bytes.value.data, LINE_BYTES):
        first = at.builder.add(offset, offset.type(start // place.bytes))
        inside = at.builder.icmp_unsigned("<", first, offset.type(place.count))
        at.asm(f"@$1 prefetch.global.L2 [$0+{start}];", ir.VoidType(), "l,b", [base, inside])


class _Access:
    """The chunks of one access, its address, and the condition of every element."""

    def __init__(self, at: Emission, op: tile.LoadOp | tile.StoreOp, extents: tuple[int, ...]) -> None:
        self.at = at
        self.place = at.places[op.view]
        self.indices = list(product(*map(range, extents)))
        self.count = len(self.indices)
        self.bounds = [self._bound(bound) for bound in op.bounds]
        self.mask = at.elements(op.mask) if op.mask is not None else None
        self.inside: dict[tuple[int, int], ir.Value | None] = {}
        self.base = at.address(self.place, at.scalar(op.offset))
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


def _all(at: Emission, conditions: Sequence[Condition]) -> ir.Value:
    """All conditions, in a fixed order."""
    flags = list(dict.fromkeys(flag for condition in conditions for flag in sorted(condition, key=_name)))
    return reduce(at.builder.and_, flags)


def _name(value: ir.Value) -> tuple[int, str]:
    text = str(value.name) if hasattr(value, "name") else str(value)
    return len(text), text


def _load_chunk(at: Emission, access: _Access, chunk: Chunk, conditions: Sequence[Condition | None]) -> list[ir.Value]:
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
    at: Emission,
    access: _Access,
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
    builder = at.builder
    every = _all(at, [condition for condition in conditions if condition is not None])
    together, apart, after = (builder.function.append_basic_block(name) for name in ("whole", "single", "after"))
    builder.cbranch(every, together, apart)
    ends = []
    for block in (together, apart):
        builder.position_at_end(block)
        values = whole(frozenset()) if block is together else each()
        ends.append((builder.block, values))
        builder.branch(after)
    builder.position_at_end(after)
    return [_merged(builder, [(block, values[number]) for block, values in ends]) for number in range(len(ends[0][1]))]


def _merged(builder: ir.IRBuilder, incoming: Sequence[tuple[ir.Block, ir.Value]]) -> ir.Value:
    phi = builder.phi(incoming[0][1].type)
    for block, value in incoming:
        phi.add_incoming(value, block)
    return phi


# Single accesses ------------------------------------------------------------------------------------------------------


def read(
    at: Emission, place: Place, base: ir.Value, offset: int, count: int, align: int, condition: Condition | None
) -> list[ir.Value]:
    """`count` neighbours, `offset` elements after `base`; 0 where the condition does not hold.

    Vectors are assembly, as LLVM would take a vector whose elements are used one by one apart.
    """
    if place.space == LOCAL and condition:
        with at.branch(_all(at, [condition])) as (before, _):
            values = read(at, place, base, offset, count, align, None)
            inside = at.builder.block
        zero = constant(place.element, 0)
        return [_merged(at.builder, [(before, zero), (inside, value)]) for value in values]
    if not condition and (count == 1 or place.space == LOCAL):
        type_ = place.element if count == 1 else ir.VectorType(place.element, count)
        return scalars_of(at.builder, at.builder.load(_moved(at, place, base, offset), align=align, typ=type_))
    word, letter, kind, number = _words(place, count)
    results = "{" + ", ".join(f"${i}" for i in range(number)) + "}" if number > 1 else "$0"
    form = f"v{number}.{kind}" if number > 1 else kind
    cached = ".nc" if place.constant else ""
    text = f"ld.{place.space}{cached}.{form} {results}, [${number}+{offset * place.bytes}];"
    given, inputs = [base], [place.constraint]
    if condition:
        zeros = "".join(f"mov.{'b16' if kind == 'b8' else kind} ${i}, 0; " for i in range(number))
        text = f"{zeros}@${number + 1} {text}"
        given.append(_all(at, [condition]))
        inputs.append("b")
    result = word if number == 1 else ir.LiteralStructType([word] * number)
    constraints = ",".join([f"=&{letter}"] * number + inputs)
    made = at.asm(text, result, constraints, given, "none" if place.constant else "read")
    words = [made] if number == 1 else [at.builder.extract_value(made, i) for i in range(number)]
    if kind == "b8":
        return [at.builder.trunc(words[0], I8)]
    return from_words(at.builder, words, place.element, count)


def write(
    at: Emission,
    place: Place,
    base: ir.Value,
    offset: int,
    values: Sequence[ir.Value],
    align: int,
    condition: Condition,
) -> None:
    """Store neighbours, `offset` elements after `base`, where the condition holds."""
    if not condition or place.space == LOCAL:
        if condition:
            with at.branch(_all(at, [condition])):
                write(at, place, base, offset, values, align, frozenset())
            return
        at.builder.store(vector(at.builder, values), _moved(at, place, base, offset), align=align)
        return
    word, letter, kind, number = _words(place, len(values))
    if kind == "b8":
        words = [at.builder.zext(values[0], I16)]
    else:
        words = to_words(at.builder, values, word)
    operands = "{" + ", ".join(f"${i + 2}" for i in range(number)) + "}" if number > 1 else "$2"
    form = f"v{number}.{kind}" if number > 1 else kind
    text = f"@$1 st.{place.space}.{form} [$0+{offset * place.bytes}], {operands};"
    constraints = ",".join([place.constraint, "b"] + [letter] * number)
    at.asm(text, ir.VoidType(), constraints, [base, _all(at, [condition]), *words])


def _words(place: Place, count: int) -> tuple[ir.IntType, str, str, int]:
    """The words that an access moves: type, constraint, PTX type, how many."""
    size = place.bytes * count
    if size == 1:
        return I16, "h", "b8", 1
    if size == 2:
        return I16, "h", "b16", 1
    if place.bytes == 8:
        return I64, "l", "b64", count
    return I32, "r", "b32", size // 4


def _moved(at: Emission, place: Place, base: ir.Value, offset: int) -> ir.Value:
    if offset == 0:
        return base
    return at.builder.gep(base, [place.word(offset)], source_etype=place.element)
