"""Discrete Fourier transforms as products with tables of roots of unity, and windows. Complex numbers are two tensors.

A length that is composite and above `_DIRECT` is transformed by factors (Cooley and Tukey, Math. Comp. 19, 1965): with
n = a b it takes n (a + b) products instead of n**2. A prime length takes n**2.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, Tensor, select, static_shape
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, emit, map_elements
from tilewright.expr.ops.nodes import contract, normal_axis, require_float
from tilewright.expr.ops.shape import move, narrow

Parts = tuple[Tensor, Tensor]
"""Real and imaginary parts, of one shape and dtype."""

_DIRECT = 64  # the longest transform that is one product
_LONGEST = 1 << 24  # elements of a transformed dimension; a table of a prime length has its square
_LONGEST_PRIME = 1 << 12


@operator
def dft(
    re: Tensor, im: Tensor | None = None, *, axis: int, inverse: bool = False, scale: float = 1.0,
    bins: int | None = None, name: str = "dft",
) -> Parts:  # fmt: skip
    """``X[k] = scale * sum_n x[n] * exp(-2 pi i n k / N)`` along `axis`; `inverse` changes the sign in the exponent.

    Without `im` the input is real. `bins` keeps the first of the N results. Element types are f32 and f64. Raises
    InvalidExpression for other types and for lengths whose tables would be too large, ExtentMismatch for other parts.
    """
    b = re.builder
    require_float(re, where=name)
    if im is not None and (im.shape, im.dtype) != (re.shape, re.dtype):
        raise ExtentMismatch(f"real part {re}, imaginary part {im}", where=name, help="equal shapes and dtypes")
    d = normal_axis(axis, re.rank, where=name)
    length = static_shape(re.shape)[d]
    bins = length if bins is None else bins
    if not 1 <= length <= _LONGEST or not 0 <= bins <= length:
        raise InvalidExpression(f"{bins} bins of {length} elements", where=name, help=f"1 to {_LONGEST} elements")
    first = _factor(length)
    if length <= _DIRECT or first == 1:
        if length > _LONGEST_PRIME:
            raise InvalidExpression(
                f"a transform of {length} elements, a prime number", where=name, help="pad it to a composite length"
            )
        return _direct(b, re, im, d, inverse, scale, bins, name)
    parts = _by_factors(b, re, im, d, (first, length // first), inverse, scale, name)
    if bins == length:
        return parts
    kept = [narrow(part, d, 0, bins, name=f"{name}.{label}") for part, label in zip(parts, "ri", strict=True)]
    return kept[0], kept[1]


@operator
def from_half(re: Tensor, im: Tensor, length: int, *, axis: int, name: str = "spectrum") -> Parts:
    """All `length` bins of a real signal from its first ``length // 2 + 1``: bin -k is the conjugate of bin k.

    Bins that are missing count as 0, more than that are left out. The imaginary part of bins 0 and length / 2 is 0.
    """
    b = re.builder
    d = normal_axis(axis, re.rank, where=name)
    have = static_shape(re.shape)[d]
    axes = axes_of([length if p == d else e for p, e in enumerate(re.shape)])
    k = axes[d]
    mirrored = k > length // 2
    bin_ = select(mirrored, length - k, k)
    index = (*axes[:d], bin_, *axes[d + 1 :])
    known: Expr = bin_ < have
    real = select(known, re[index], 0.0)
    lone = k.eq(0) | (k * 2).eq(length)
    value = select(known, im[index], 0.0)
    imaginary = select(lone, 0.0, select(mirrored, -value, value))
    return emit(b, axes, real, name=f"{name}.re"), emit(b, axes, imaginary, name=f"{name}.im")


def _factor(length: int) -> int:
    """The largest divisor that is not above the root; 1 for primes."""
    return next(divisor for divisor in range(isqrt(length), 0, -1) if length % divisor == 0)


def _roots(rows: int, columns: int, length: int, inverse: bool, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of ``-2 pi n k / length`` (plus, if `inverse`) for n below `rows`, k below `columns`."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    angles = (2 if inverse else -2) * np.pi / length * turns
    kind = dtypes.numpy_dtype(dtype)
    return np.cos(angles).astype(kind), np.sin(angles).astype(kind)


def _direct(
    b: GraphBuilder, re: Tensor, im: Tensor | None, d: int, inverse: bool, scale: float, bins: int, name: str
) -> Parts:
    length = static_shape(re.shape)[d]
    cosines, sines = _roots(length, bins, length, inverse, "f64")
    kind = dtypes.numpy_dtype(re.dtype)
    cos = b.constant((cosines * scale).astype(kind), f"{name}.cos")
    sin = b.constant((sines * scale).astype(kind), f"{name}.sin")

    def product(x: Tensor, table: Tensor, label: str) -> Tensor:
        axes = axes_of([bins if p == d else e for p, e in enumerate(x.shape)])
        n = Axis("r0", length)
        factors: list[Expr] = [x[(*axes[:d], n, *axes[d + 1 :])], table[n, axes[d]]]
        return contract(b, axes, factors, [n], accumulate=None, out_dtype=None, name=f"{name}.{label}")

    if im is None:
        return product(re, cos, "re"), product(re, sin, "im")
    real = [product(re, cos, "rc"), product(im, sin, "is")]
    imaginary = [product(re, sin, "rs"), product(im, cos, "ic")]
    return (
        map_elements(real, lambda v, w: v - w, name=f"{name}.re"),
        map_elements(imaginary, lambda v, w: v + w, name=f"{name}.im"),
    )


def _by_factors(
    b: GraphBuilder, re: Tensor, im: Tensor | None, d: int, factors: tuple[int, int], inverse: bool, scale: float,
    name: str,
) -> Parts:  # fmt: skip
    """With n = n1 * second + n2 and k = k1 + first * k2: over n1, times roots of n2 * k1, then over n2."""
    first, second = factors
    length = first * second
    shape = static_shape(re.shape)
    split = [*shape[:d], first, second, *shape[d + 1 :]]

    def folded(x: Tensor, label: str) -> Tensor:
        index = lambda axes: (*axes[:d], axes[d] * second + axes[d + 1], *axes[d + 2 :])  # noqa: E731
        return move(x, split, index, name=f"{name}.{label}")

    rows = (folded(re, "rows.re"), None if im is None else folded(im, "rows.im"))
    u, v = dft(*rows, axis=d, inverse=inverse, name=f"{name}.first")  # [k1, n2]
    cosines, sines = _roots(first, second, length, inverse, re.dtype)
    cos, sin = b.constant(cosines, f"{name}.cos"), b.constant(sines, f"{name}.sin")
    axes = axes_of(split)
    at = (axes[d], axes[d + 1])
    rotated = (
        emit(b, axes, u[axes] * cos[at] - v[axes] * sin[at], name=f"{name}.rotated.re"),
        emit(b, axes, u[axes] * sin[at] + v[axes] * cos[at], name=f"{name}.rotated.im"),
    )
    spectrum = dft(*rotated, axis=d + 1, inverse=inverse, scale=scale, name=f"{name}.second")  # [k1, k2]

    def unfolded(x: Tensor, label: str) -> Tensor:
        index = lambda axes: (*axes[:d], axes[d] % first, axes[d] // first, *axes[d + 1 :])  # noqa: E731
        return move(x, shape, index, name=f"{name}.{label}")

    return unfolded(spectrum[0], "re"), unfolded(spectrum[1], "im")
