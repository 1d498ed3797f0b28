"""Single accesses to memory in PTX.

Those of global and shared memory under a condition are predicated instructions, not branches, so that several can be
under way at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from tilewright.codegen.gpu.memory import Condition, all_of, moved, read_where
from tilewright.codegen.nvptx.emission import (
    GLOBAL,
    I8,
    I16,
    I32,
    I64,
    LOCAL,
    SHARED,
    Emission,
    Place,
    constraint_of,
    from_words,
    scalars_of,
    to_words,
    vector,
)
from tilewright.kernel import dialect as tile

LINE_BYTES = 128


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


def read(
    at: Emission, place: Place, base: ir.Value, offset: int, count: int, align: int, condition: Condition | None
) -> list[ir.Value]:
    """`count` neighbours, `offset` elements after `base`; 0 where the condition does not hold.

    Vectors are assembly, as LLVM would take a vector whose elements are used one by one apart, and so is what lies in
    shared memory: a load that a trip hands on to the next one LLVM would move there.
    """
    if place.space == LOCAL and condition:
        return read_where(at, all_of(at, [condition]), lambda: read(at, place, base, offset, count, align, None))
    if not condition and (place.space == LOCAL or (count == 1 and place.space != SHARED)):
        type_ = place.element if count == 1 else ir.VectorType(place.element, count)
        return scalars_of(at.builder, at.builder.load(moved(at, place, base, offset), align=align, typ=type_))
    word, letter, kind, number = _words(place, count)
    results = "{" + ", ".join(f"${i}" for i in range(number)) + "}" if number > 1 else "$0"
    form = f"v{number}.{kind}" if number > 1 else kind
    cached = ".nc" if place.constant else ""
    text = f"ld.{place.space}{cached}.{form} {results}, [${number}+{offset * place.bytes}];"
    given, inputs = [base], [constraint_of(place)]
    if condition:
        zeros = "".join(f"mov.{'b16' if kind == 'b8' else kind} ${i}, 0; " for i in range(number))
        text = f"{zeros}@${number + 1} {text}"
        given.append(all_of(at, [condition]))
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
            with at.branch(all_of(at, [condition])):
                write(at, place, base, offset, values, align, frozenset())
            return
        at.builder.store(vector(at.builder, values), moved(at, place, base, offset), align=align)
        return
    word, letter, kind, number = _words(place, len(values))
    if kind == "b8":
        words = [at.builder.zext(values[0], I16)]
    else:
        words = to_words(at.builder, values, word)
    operands = "{" + ", ".join(f"${i + 2}" for i in range(number)) + "}" if number > 1 else "$2"
    form = f"v{number}.{kind}" if number > 1 else kind
    text = f"@$1 st.{place.space}.{form} [$0+{offset * place.bytes}], {operands};"
    constraints = ",".join([constraint_of(place), "b"] + [letter] * number)
    at.asm(text, ir.VoidType(), constraints, [base, all_of(at, [condition]), *words])


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
