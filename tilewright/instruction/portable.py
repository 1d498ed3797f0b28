"""Products that every CPU has: a multiply-add of one lane, after conversions where the operands are narrower."""

from tilewright.instruction.multiply import Multiply

_NARROW = ("i8", "u8", "i16", "u16", "i32")

RECORDS = (
    Multiply("fma_f32", (("f32", "f32"),), "f32", 1, "fma", (), "IEEE 754 fusedMultiplyAdd, or multiply and add"),
    Multiply("fma_f64", (("f64", "f64"),), "f64", 1, "fma", (), "IEEE 754 fusedMultiplyAdd, or multiply and add"),
    Multiply(
        "widen_f32",
        (
            ("bf16", "bf16"),
            ("f16", "f16"),
            ("f16", "f32"),
            ("f32", "f16"),
            ("bf16", "f32"),
            ("f32", "bf16"),
        ),
        "f32",
        1,
        "widen_f32",
        (),
        "exact conversion to f32, then a multiply-add",
    ),
    Multiply(
        "widen_i32",
        tuple((a, b) for a in _NARROW for b in _NARROW),
        "i32",
        1,
        "widen_i32",
        (),
        "extension to 32 bits, then integer multiply and add",
    ),
    Multiply(
        "widen_i64",
        tuple((a, b) for a in ("i64", "i32") for b in ("i64", "i32")),
        "i64",
        1,
        "widen_i32",
        (),
        "extension to 64 bits, then integer multiply and add",
    ),
)
