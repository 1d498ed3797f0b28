"""Single accesses to memory: vectors of words, up to 16 bytes.

Views that are only read or only written are accessed by buffer instructions, whose offsets are the sum of a scalar and
a vector register, and which leave out what lies outside. Under a condition, other accesses are in a branch, which masks
lanes; a load in a branch is waited for where its value is used, so several can be under way at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.amdgpu.emission import OUTSIDE, Emission, Start
from tilewright.codegen.gpu.emission import Place, from_words, scalars_of, to_words, vector
from tilewright.codegen.gpu.memory import Condition, all_of, moved, read_where
from tilewright.codegen.values import I8, I16, I32, mangle
from tilewright.kernel import dialect as tile

STORES_TOGETHER = 8  # under a condition: each has its own offset of the wave, in a scalar register of about a hundred


def read(
    at: Emission, place: Place, base: ir.Value, offset: int, count: int, align: int, condition: Condition | None
) -> list[ir.Value]:
    """`count` neighbours, `offset` elements after `base`; 0 where the condition does not hold."""
    start = at.starts.get(base)
    word, number = _words(place, count)
    type_ = word if number == 1 else ir.VectorType(word, number)
    if start is not None:
        name = f"llvm.amdgcn.raw.ptr.buffer.load.{mangle(type_)}"
        loaded = at.call(name, type_, _of_buffer(at, place, start, offset * place.bytes, condition))
        return from_words(at.builder, scalars_of(at.builder, loaded), place.element, count)
    if condition:
        return read_where(at, all_of(at, [condition]), lambda: read(at, place, base, offset, count, align, None))
    address = moved(at, place, base, offset)
    if count == 1:
        return [at.builder.load(address, align=align, typ=place.element)]
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
    start = at.starts.get(base)
    if start is not None:
        word, _ = _words(place, len(values))
        stored = vector(at.builder, to_words(at.builder, values, word))
        name = f"llvm.amdgcn.raw.ptr.buffer.store.{mangle(stored.type)}"
        at.call(name, ir.VoidType(), [stored, *_of_buffer(at, place, start, offset * place.bytes, condition)])
        if condition:
            at.masked_stores += 1
            if at.masked_stores % STORES_TOGETHER == 0:  # else LLVM computes the offsets of all stores before the first
                at.call("llvm.amdgcn.sched.barrier", ir.VoidType(), [I32(0)])
        return
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


def _of_buffer(
    at: Emission, place: Place, start: Start, further: int, condition: Condition | None
) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Resource, offsets of the thread and of the wave, and no hints for caches, of an access `further` bytes on.

    Where the condition does not hold, the thread's offset is one that no view has.
    """
    wave, lane, constant = start.wave, start.lane, start.constant + further
    if constant < 0:  # the thread's offset alone might be less than what is taken away
        lane, wave = at.builder.add(at.builder.add(lane, wave), I32(constant)), I32(0)
    else:
        wave = at.builder.add(wave, I32(constant))
    if condition:
        lane = at.builder.select(all_of(at, [condition]), lane, I32(-OUTSIDE))
        wave = at.call("llvm.umin.i32", I32, [wave, I32(place.count * place.bytes)])  # which the size is reduced by
    return start.resource, lane, wave, I32(0)


def prefetch(at: Emission, op: tile.PrefetchOp) -> None:
    """A hint, for which these processors have no instruction."""


def _words(place: Place, count: int) -> tuple[ir.IntType, int]:
    """The words that an access of several elements moves: LLVM keeps vectors of them whole."""
    size = place.bytes * count
    word = I32 if size % 4 == 0 else I16 if size % 2 == 0 else I8
    return word, size * 8 // word.width
