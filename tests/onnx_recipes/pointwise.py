"""Random nodes of ONNX operators for results of single elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx_recipes.draft import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, Draft, code_of, registry

recipe, RECIPES = registry()


@recipe(
    "Exp", "Log", "Sqrt", "Tanh", "Erf", "Sigmoid", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
    "Asinh", "Acosh", "Atanh", "Floor", "Ceil", "Round", "IsNaN", "Softplus", "Softsign", "Mish", "HardSwish",
    "Reciprocal", "Selu",
)  # fmt: skip
def _unary(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.floating())[0]])


@recipe("Abs", "Neg", "Sign", "Relu", "Identity")
def _signed(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.one((F32, F16, F64, I32, I8, BF16)))[0]])


@recipe("Not")
def _not(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(BOOL)[0]])


@recipe("BitwiseNot")
def _bits(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.one((I32, U8, I64)))[0]])


@recipe("LeakyRelu", "Elu", "Celu", "ThresholdedRelu")
def _alpha(d: Draft, operator: str) -> None:
    dtype = F32 if operator == "Celu" else d.floating()
    d.node(operator, [d.value(dtype)[0]], alpha=d.one((0.01, 0.5, 1.0, 2.0)))


@recipe("HardSigmoid")
def _hard_sigmoid(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.floating())[0]], alpha=d.one((0.2, 0.5)), beta=d.one((0.5, 0.25)))


@recipe("Shrink")
def _shrink(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.floating())[0]], bias=d.one((0.0, 0.75)), lambd=d.one((0.5, 1.0)))


@recipe("Gelu")
def _gelu(d: Draft, operator: str) -> None:
    d.node(operator, [d.value(d.floating())[0]], approximate=d.one(("none", "tanh")))


@recipe("IsInf")
def _is_inf(d: Draft, operator: str) -> None:
    x = d.array(F32, d.shape())
    x = np.where(x > 3, F32.type(np.inf), np.where(x < -3, F32.type(-np.inf), x)).astype(F32)
    d.node(operator, [d.given(x)], detect_positive=d.one((0, 1)), detect_negative=d.one((0, 1)))


def _pair(d: Draft, dtype: np.dtype[Any], low: float = -4, high: float = 4) -> list[str]:
    """Two tensors that broadcast to each other, in either order."""
    name, shape = d.value(dtype)
    other = d.given(d.array(dtype, d.broadcast(shape), low, high))
    return [name, other] if d.chance(0.5) else [other, name]


@recipe("Add", "Sub", "Mul")
def _arithmetic(d: Draft, operator: str) -> None:
    d.node(operator, _pair(d, d.one((F32, F32, F16, BF16, F64, I32, I64, U8))))


@recipe("Div")
def _quotient(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F16, F64, BF16, I32, I64))
    name, shape = d.value(dtype)
    divisor = d.array(dtype, d.broadcast(shape))
    divisor = np.where(divisor == 0, dtype.type(3), divisor).astype(dtype)
    d.node(operator, [name, d.given(divisor)])


@recipe("Mod")
def _mod(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, I32, I64))
    name, shape = d.value(dtype)
    divisor = d.array(dtype, d.broadcast(shape))
    divisor = np.where(divisor == 0, dtype.type(3), divisor).astype(dtype)
    d.node(operator, [name, d.given(divisor)], fmod=1 if dtype.kind == "f" else d.one((0, 1)))


@recipe("Pow")
def _pow(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64))
    shape = d.shape()
    base = d.given(d.array(dtype, shape, 0.1, 4))
    d.node(operator, [base, d.given(d.array(dtype, d.one(((), d.broadcast(shape)))))])


@recipe("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def _compare(d: Draft, operator: str) -> None:
    d.node(operator, _pair(d, d.one((F32, F64, I32, I64))))


@recipe("And", "Or", "Xor")
def _logic(d: Draft, operator: str) -> None:
    d.node(operator, _pair(d, BOOL))


@recipe("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bitwise(d: Draft, operator: str) -> None:
    d.node(operator, _pair(d, d.one((I32, U8, I64))))


@recipe("BitShift")
def _shift(d: Draft, operator: str) -> None:
    name, shape = d.value(U8)
    d.node(operator, [name, d.given(d.array(U8, d.broadcast(shape), 0, 7))], direction=d.one(("LEFT", "RIGHT")))


@recipe("Min", "Max", "Sum", "Mean")
def _variadic(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, F16) if operator in ("Sum", "Mean") else (F32, F64, F16, I32))
    name, shape = d.value(dtype)
    others = [d.given(d.array(dtype, d.broadcast(shape))) for _ in range(int(d.rng.integers(3)))]
    d.node(operator, [name, *others])


@recipe("PRelu")
def _prelu(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F64, F16))
    name, shape = d.value(dtype)
    d.node(operator, [name, d.given(d.array(dtype, d.broadcast(shape)))])


@recipe("Where")
def _where(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F16, F64, I32, I64))
    name, shape = d.value(dtype)
    condition, other = d.given(d.array(BOOL, d.broadcast(shape))), d.given(d.array(dtype, d.broadcast(shape)))
    d.node(operator, [condition, *([name, other] if d.chance(0.5) else [other, name])])


@recipe("Clip")
def _clip(d: Draft, operator: str) -> None:
    dtype = d.one((F32, F16, F64, I32))
    bounds = [d.given(np.asarray(v, dtype)) if d.chance(0.7) else "" for v in (-1, 2)]
    d.node(operator, [d.value(dtype)[0], *bounds])


@recipe("Cast")
def _cast(d: Draft, operator: str) -> None:
    source, to = d.one((F32, F16, F64, I32, I64, U8, BOOL, BF16)), d.one((F32, F16, F64, I32, I64, BOOL, BF16))
    low = 0 if to.kind == "u" else -4
    d.node(operator, [d.given(d.array(source, d.shape(), low))], to=code_of(to))
