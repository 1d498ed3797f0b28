"""Atomic operations: one instruction where the type has one, else a loop around compare-and-swap."""

from __future__ import annotations

from llvmlite import ir
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float32Type, Float64Type
from xdsl.ir import Attribute

from tilewright.codegen.elementwise import constant
from tilewright.codegen.gpu.elements import combine
from tilewright.codegen.gpu.memory import read_where
from tilewright.codegen.nvptx.emission import GLOBAL, I8, I32, Emission, Place, constraint_of
from tilewright.codegen.values import bits_of
from tilewright.errors import InvalidProgram
from tilewright.kernel import dialect as tile
from tilewright.kernel import simt

_LETTERS = {16: "h", 32: "r", 64: "l"}
_FLOATS = {Float16Type: "noftz.f16", BFloat16Type: "noftz.bf16", Float32Type: "f32", Float64Type: "f64"}
_REDUCTION = {"add": "sum", "max": "max", "min": "min"}


def atomic(at: Emission, op: simt.AtomicOp) -> None:
    """Relaxed, for all threads of the device in global memory and for those of the block in its own."""
    place = at.places[op.view]
    if place.space not in (GLOBAL, "shared"):
        raise InvalidProgram(f"kernel {at.name}: an atomic operation on memory of one thread")
    address, value = at.address(place, at.scalar(op.offset)), at.scalar(op.value)
    mask = at.scalar(op.mask) if op.mask is not None else None
    form = _instruction(at, op.kind.data, tile.element(op.value), value, bool(op.unsigned))
    if form is not None:
        at.set(op.result, [_direct(at, op, place, form, address, value, mask)])
        return

    def loop() -> list[ir.Value]:
        return [_loop(at, op, place, address, value)]

    at.set(op.result, loop() if mask is None else read_where(at, mask, loop))


def _instruction(at: Emission, kind: str, type_: Attribute, value: ir.Value, unsigned: bool) -> str | None:
    """Operation and type of the instruction, such as "add.noftz.f16"; None where there is none."""
    bits = bits_of(value.type)
    name = next((name for known, name in _FLOATS.items() if isinstance(type_, known)), None)
    if kind in ("and", "or", "xor", "exchange"):
        return f"{'exch' if kind == 'exchange' else kind}.b{bits}" if bits in (32, 64) else None
    if name is not None:
        if kind != "add" or (name == "noftz.bf16" and at.target.capability < 90):
            return None
        if name == "noftz.bf16":
            at.require("atomic addition of bf16", 90, 78)
        return f"add.{name}"
    if bits not in (32, 64):
        return None
    return f"{kind}.u{bits}" if kind == "add" or unsigned else f"{kind}.s{bits}"


def _scope(place: Place) -> str:
    return f"{'gpu' if place.space == GLOBAL else 'cta'}.{place.space}"


def _direct(
    at: Emission, op: simt.AtomicOp, place: Place, form: str, address: ir.Value, value: ir.Value, mask: ir.Value | None
) -> ir.Value:
    bits = bits_of(value.type)
    word = ir.IntType(bits)
    letter = _LETTERS[bits]
    given = value if value.type == word else at.builder.bitcast(value, word)
    operands = [address, given, *([mask] if mask is not None else [])]
    inputs = [constraint_of(place), letter, *(["b"] if mask is not None else [])]
    if not op.result.uses:
        guard = "@$2 " if mask is not None else ""
        text = f"{guard}red.relaxed.{_scope(place)}.{form} [$0], $1;"
        if not form.startswith("exch"):
            at.asm(text, ir.VoidType(), ",".join(inputs), operands)
            return constant(value.type, 0)
    guard = f"mov.b{bits} $0, 0; @$3 " if mask is not None else ""
    text = f"{guard}atom.relaxed.{_scope(place)}.{form} $0, [$1], $2;"
    old = at.asm(text, word, ",".join([f"=&{letter}", *inputs]), operands)
    return old if value.type == word else at.builder.bitcast(old, value.type)


def _loop(at: Emission, op: simt.AtomicOp, place: Place, address: ir.Value, value: ir.Value) -> ir.Value:
    """Compute and swap until nobody was in between; bytes within their word of 32 bits."""
    builder, bits = at.builder, bits_of(value.type)
    word = ir.IntType(max(bits, 16)) if bits > 8 else I32
    shift: ir.Value | None = None
    if bits == 8:
        base = builder.ptrtoint(address, place.word)
        aligned = builder.and_(base, place.word(-4))
        low = builder.trunc(builder.and_(base, place.word(3)), I32) if place.word != I32 else builder.and_(base, I32(3))
        shift = builder.shl(low, I32(3))
        address = builder.inttoptr(aligned, address.type)
    first = at.asm(
        f"ld.relaxed.{_scope(place)}.b{word.width} $0, [$1];", word,
        f"={_LETTERS[word.width]},{constraint_of(place)}", [address],
    )  # fmt: skip
    before = builder.block
    loop, after = (builder.function.append_basic_block(name) for name in ("swap", "swapped"))
    builder.branch(loop)
    builder.position_at_end(loop)
    seen = builder.phi(word)
    seen.add_incoming(first, before)
    old = _part(at, seen, value.type, shift)
    updated = _updated(at, op, old, value)
    wanted = _whole(at, seen, updated, shift)
    letter = _LETTERS[word.width]
    found = at.asm(
        f"atom.relaxed.{_scope(place)}.cas.b{word.width} $0, [$1], $2, $3;", word,
        f"=&{letter},{constraint_of(place)},{letter},{letter}", [address, seen, wanted],
    )  # fmt: skip
    seen.add_incoming(found, builder.block)
    builder.cbranch(builder.icmp_unsigned("==", found, seen), after, loop)
    builder.position_at_end(after)
    return old


def _part(at: Emission, word: ir.Value, type_: ir.Type, shift: ir.Value | None) -> ir.Value:
    if shift is not None:
        return at.builder.trunc(at.builder.lshr(word, shift), I8)
    return word if word.type == type_ else at.builder.bitcast(word, type_)


def _whole(at: Emission, word: ir.Value, part: ir.Value, shift: ir.Value | None) -> ir.Value:
    builder = at.builder
    if shift is None:
        return part if part.type == word.type else builder.bitcast(part, word.type)
    hole = builder.not_(builder.shl(I32(0xFF), shift))
    return builder.or_(builder.and_(word, hole), builder.shl(builder.zext(part, I32), shift))


def _updated(at: Emission, op: simt.AtomicOp, old: ir.Value, value: ir.Value) -> ir.Value:
    kind = op.kind.data
    if kind == "exchange":
        return value
    if kind in _REDUCTION:
        return combine(at, _REDUCTION[kind], tile.element(op.value), bool(op.unsigned), old, value)
    return {"and": at.builder.and_, "or": at.builder.or_, "xor": at.builder.xor}[kind](old, value)
