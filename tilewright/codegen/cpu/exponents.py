"""AVX-512's exponent instructions on registers of any length: scalef, getexp and getmant."""

from __future__ import annotations

from llvmlite import ir

from tilewright.codegen.math.value import Value
from tilewright.codegen.values import I32, intrinsic, vector_type


def exponent(value: Value, name: str, *others: Value) -> Value:
    """The instruction on whole registers; a scalar or a short vector is filled up with lanes of any value."""
    builder, bits = value.builder, value.kind.bits
    arguments = [value.value, *(other.value for other in others)]
    if not isinstance(value.value.type, ir.VectorType):
        undefined = ir.Constant(vector_type(value.float_scalar, 128 // bits), ir.Undefined)
        padded = [builder.insert_element(undefined, argument, I32(0)) for argument in arguments]
        return value.with_value(builder.extract_element(_register(value, name, padded), I32(0)))
    pieces: list[ir.Value] = []
    for start in range(0, value.lanes, 512 // bits):
        length = min(value.lanes - start, 512 // bits)
        width = next(size for size in (128, 256, 512) if length * bits <= size) // bits
        cut = [_cut(builder, argument, start, length, width) for argument in arguments]
        pieces.append(_cut(builder, _register(value, name, cut), 0, length, length))
    result, joined = pieces[0], pieces[0].type.count
    for piece in pieces[1:]:
        longer = _cut(builder, piece, 0, piece.type.count, joined)
        indices = [*range(joined), *range(joined, joined + piece.type.count)]
        result = builder.shuffle_vector(result, longer, _indices(indices))
        joined = len(indices)
    return value.with_value(result)


def _register(value: Value, name: str, arguments: list[ir.Value]) -> ir.Value:
    type_ = arguments[0].type
    bits = type_.count * value.kind.bits
    mask_type = ir.IntType(max(8, type_.count))
    full = list(arguments)
    if name == "getmant":
        full.append(I32(8))  # normalised to [1, 2), and NaN for negative numbers
    full += [ir.Constant(type_, ir.Undefined), ir.Constant(mask_type, -1)]
    if bits == 512:
        full.append(I32(4))  # round as the mode says
    form = "ps" if value.kind.bits == 32 else "pd"
    return intrinsic(value.builder, f"llvm.x86.avx512.mask.{name}.{form}.{bits}", type_, full)


def _cut(builder: ir.IRBuilder, vector: ir.Value, start: int, length: int, width: int) -> ir.Value:
    """`length` lanes from `start` on, filled up to `width` with lanes of any value."""
    if start == 0 and length == width == vector.type.count:
        return vector
    last = vector.type.count - 1
    indices = [min(start + lane, last) for lane in range(width)]
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), _indices(indices))


def _indices(lanes: list[int]) -> ir.Constant:
    return ir.Constant(vector_type(I32, len(lanes)), [ir.Constant(I32, lane) for lane in lanes])
