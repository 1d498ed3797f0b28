"""Arithmetic of complex numbers, and Fourier transforms. A complex number is a pair of real tensors (`Complex`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tilewright.expr.core import Expr, Tensor, apply
from tilewright.expr.ops import fourier, linalg
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.elementwise import fill
from tilewright.frontend.torch.call import Call, Number, shape_of
from tilewright.frontend.torch.complex_numbers import Complex
from tilewright.frontend.torch.operators.arithmetic import angle_of
from tilewright.frontend.torch.operators.functions import length_of
from tilewright.frontend.torch.registry import aten_complex

Operand = Complex | Tensor | Number | complex
Parts = tuple[Tensor | Number, Tensor | Number]


def _parts(value: Operand) -> Parts:
    if isinstance(value, Complex):
        return value.re, value.im
    if isinstance(value, complex):
        return value.real, value.imag
    return value, 0.0


def _pointwise(call: Call, values: Sequence[Operand], re: Callable[..., Expr], im: Callable[..., Expr]) -> Complex:
    """Both parts of the result from the parts of all values, one after another."""
    operands = [part for value in values for part in _parts(value)]
    return Complex(call.part("re").pointwise(operands, re), call.part("im").pointwise(operands, im))


# Parts ----------------------------------------------------------------------------------------------------------


@aten_complex("aten.view_as_real.default", "aten.view_as_real_copy.default")
def view_as_real(call: Call, x: Complex) -> Tensor:
    return shapes.stack([x.re, x.im], axis=x.re.rank, name=call.name)


@aten_complex("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def view_as_complex(call: Call, x: Tensor) -> Complex:
    def part(at: int, label: str) -> Tensor:
        return shapes.move(x, shape_of(x)[:-1], lambda axes: (*axes, at), name=f"{call.name}.{label}")

    return Complex(part(0, "re"), part(1, "im"))


@aten_complex("aten.complex.default")
def from_parts(call: Call, real: Tensor, imag: Tensor) -> Complex:
    return _pointwise(call, [real, imag], lambda v, _, w, __: v, lambda v, _, w, __: w)


@aten_complex("aten.polar.default")
def polar(call: Call, size: Tensor, angle: Tensor) -> Complex:
    return _pointwise(
        call, [size, angle], lambda v, _, w, __: v * apply("cos", w), lambda v, _, w, __: v * apply("sin", w)
    )


@aten_complex("aten._to_copy.default")
def convert(call: Call, x: Operand, **_: Any) -> Complex | Tensor:
    """A real result is the real part."""
    assert isinstance(x, (Complex, Tensor))
    if not call.promised().is_complex():
        return call.cast(x.re if isinstance(x, Complex) else x)
    if isinstance(x, Complex):
        return Complex(call.cast(x.re), call.cast(x.im))
    return Complex(call.cast(x), fill(call.b, call.shape, 0, call.dtype, name=f"{call.name}.im"))


@aten_complex("aten._conj.default", "aten._conj_physical.default", "aten._conj_copy.default")
def conjugate(call: Call, x: Complex) -> Complex:
    return Complex(x.re, call.part("im").pointwise([x.im], lambda v: -v))


@aten_complex("aten.abs.default")
def absolute(call: Call, x: Complex) -> Tensor:
    return call.pointwise([x.re, x.im], length_of)


@aten_complex("aten.angle.default")
def angle(call: Call, x: Complex) -> Tensor:
    return call.pointwise([x.im, x.re], angle_of)


# Arithmetic -----------------------------------------------------------------------------------------------------


@aten_complex("aten.add.Tensor", "aten.add.Scalar")
def add(call: Call, x: Operand, other: Operand, alpha: Number = 1) -> Complex:
    return _pointwise(call, [x, other], lambda a, b, c, d: a + c * alpha, lambda a, b, c, d: b + d * alpha)


@aten_complex("aten.sub.Tensor", "aten.sub.Scalar")
def sub(call: Call, x: Operand, other: Operand, alpha: Number = 1) -> Complex:
    return _pointwise(call, [x, other], lambda a, b, c, d: a - c * alpha, lambda a, b, c, d: b - d * alpha)


@aten_complex("aten.mul.Tensor", "aten.mul.Scalar")
def mul(call: Call, x: Operand, other: Operand) -> Complex:
    """A real factor multiplies both parts, so that an infinite one gives no NaN."""
    if not isinstance(other, (Complex, complex)):
        return _pointwise(call, [x, other], lambda a, b, c, d: a * c, lambda a, b, c, d: b * c)
    if not isinstance(x, Complex):
        return mul(call, other, x) if isinstance(other, Complex) else _product(call, x, other)
    return _product(call, x, other)


def _product(call: Call, x: Operand, other: Operand) -> Complex:
    return _pointwise(call, [x, other], lambda a, b, c, d: a * c - b * d, lambda a, b, c, d: a * d + b * c)


@aten_complex("aten.div.Tensor", "aten.div.Scalar")
def div(call: Call, x: Operand, other: Operand) -> Complex:
    """Parts of the divisor are scaled by the larger one, so that their squares do not overflow."""
    if not isinstance(other, (Complex, complex)):
        return _pointwise(call, [x, other], lambda a, b, c, d: a / c, lambda a, b, c, d: b / c)

    def quotient(numerator: Callable[..., Expr]) -> Callable[..., Expr]:
        def body(a: Expr, b: Expr, c: Expr, d: Expr) -> Expr:
            top = apply("max", apply("abs", c), apply("abs", d))
            p, q = c / top, d / top
            return numerator(a, b, p, q) / (p * c + q * d)

        return body

    return _pointwise(
        call, [x, other], quotient(lambda a, b, p, q: a * p + b * q), quotient(lambda a, b, p, q: b * p - a * q)
    )


@aten_complex("aten.exp.default")
def exponential(call: Call, x: Complex) -> Complex:
    return _pointwise(
        call, [x], lambda a, b: apply("exp", a) * apply("cos", b), lambda a, b: apply("exp", a) * apply("sin", b)
    )


@aten_complex("aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.matmul.default")
def matmul(call: Call, x: Complex, other: Complex) -> Complex:
    def product(left: Tensor, right: Tensor, label: str) -> Tensor:
        return linalg.matmul(left, right, name=f"{call.name}.{label}")

    re = [product(x.re, other.re, "rr"), product(x.im, other.im, "ii")]
    im = [product(x.re, other.im, "ri"), product(x.im, other.re, "ir")]
    return Complex(call.part("re").pointwise(re, lambda v, w: v - w), call.part("im").pointwise(im, lambda v, w: v + w))


# Fourier transforms ---------------------------------------------------------------------------------------------


def _scale(normalization: int, count: int) -> float:
    """torch's normalizations: none, by the root of the number of elements, by that number."""
    return (1.0, count**-0.5, 1 / max(count, 1))[normalization]


def _transformed(call: Call, x: Complex, dims: Sequence[int], inverse: bool, scale: float, name: str) -> Complex:
    for position, d in enumerate(dims):
        last = position == len(dims) - 1
        re, im = fourier.dft(
            x.re, x.im, axis=d, inverse=inverse, scale=scale if last else 1.0, name=f"{name}.{d % x.re.rank}"
        )
        x = Complex(re, im)
    return x


@aten_complex("aten._fft_c2c.default")
def fft(call: Call, x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    scale = _scale(normalization, prod(call.shape[d] for d in dim))
    return _transformed(call, x, dim, not forward, scale, call.name)


@aten_complex("aten._fft_r2c.default")
def fft_of_real(call: Call, x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    """The last dimension is transformed first: it is the one that is real, and of which half is kept."""
    scale = _scale(normalization, prod(shape_of(x)[d] for d in dim))
    *others, last = dim
    bins = shape_of(x)[last] // 2 + 1 if onesided else None
    parts = fourier.dft(x, axis=last, bins=bins, scale=1.0 if others else scale, name=f"{call.name}.{last % x.rank}")
    return _transformed(call, Complex(*parts), others, False, scale, call.name)


@aten_complex("aten._fft_c2r.default")
def fft_to_real(call: Call, x: Complex, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    scale = _scale(normalization, prod(call.shape[d] for d in dim))
    *others, last = dim
    x = _transformed(call, x, others, True, 1.0, call.name)
    parts = fourier.from_half(x.re, x.im, last_dim_size, axis=last, name=f"{call.name}.spectrum")
    return fourier.dft(*parts, axis=last, inverse=True, scale=scale, name=call.name)[0]
