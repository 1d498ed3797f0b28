"""Single accesses to memory: vectors of words, up to 16 bytes; under a condition in a branch, which masks lanes.

A load in a branch is waited for where its value is used, so several can be under way at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.amdgpu.emission import Emission
from tilewright.codegen.gpu.emission import Place, from_words, scalars_of, to_words, vector
from tilewright.codegen.gpu.memory import Condition, all_of, moved, read_where
from tilewright.codegen.values import I8, I16, I32
from tilewright.kernel import dialect as tile


def read(
    at: Emission, place: Place, base: ir.Value, offset: int, count: int, align: int, condition: Condition | None
) -> list[ir.Value]:
    """`count` neighbours, `offset` elements after `base`; 0 where the condition does not hold."""
    if condition:
        return read_where(at, all_of(at, [condition]), lambda: read(at, place, base, offset, count, align, None))
    address = moved(at, place, base, offset)
    if count == 1:
        return [at.builder.load(address, align=align, typ=place.element)]
    word, number = _words(place, count)
    type_ = word if number == 1 else ir.VectorType(word, number)
    words = scalars_of(at.builder, at.builder.load(address, align=align, typ=type_))
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
    if condition:
        with at.branch(all_of(at, [condition])):
            write(at, place, base, offset, values, align, frozenset())
        return
    address = moved(at, place, base, offset)
    stored = values[0]
    if len(values) > 1:
        word, _ = _words(place, len(values))
        stored = vector(at.builder, to_words(at.builder, values, word))
    at.builder.store(stored, address, align=align)


def prefetch(at: Emission, op: tile.PrefetchOp) -> None:
    """A hint, for which these processors have no instruction."""


def _words(place: Place, count: int) -> tuple[ir.IntType, int]:
    """The words that an access of several elements moves: LLVM keeps vectors of them whole."""
    size = place.bytes * count
    word = I32 if size % 4 == 0 else I16 if size % 2 == 0 else I8
    return word, size * 8 // word.width
