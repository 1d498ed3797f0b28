"""The rules by which intrinsics add: rounding, wrapping, saturation and denormals, bit for bit.

A rule takes the destination and, for each point of the reduction in order, the factors of the body, widened exactly
to i64 or f64, and returns the new destination. `RULES` lists them by the names that `Numerics.rule` uses.
Bodies are computed for many points at once; sums take their terms in order, but for integers, whose sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.intrinsics.elements import Array, is_float, storage
from tilewright.intrinsics.intrinsic import Numerics
from tilewright.intrinsics.rounding import add_to_odd, flushed, fused_f64, round_to

Factors = tuple[Array, ...]
MOST_ELEMENTS = 1 << 18  # of terms that are computed at once, for the memory that they take


@dataclass(frozen=True)
class Points:
    """The factors at all points of the reduction: the first axis of each has the points in order."""

    factors: Factors
    count: int

    def __iter__(self) -> Iterator[Factors]:
        for number in range(self.count):
            yield tuple(factor[number] for factor in self.factors)

    def blocks(self, most: int) -> Iterator[tuple[Factors, int]]:
        """Runs of at most so many points, in order, each with how many it has."""
        for start in range(0, self.count, most):
            stop = min(start + most, self.count)
            yield tuple(factor[start:stop] for factor in self.factors), stop - start


@dataclass(frozen=True)
class Setting:
    """What a rule knows of its record: the accumulator's type, the body, the combiner, and the options."""

    dtype: str
    body: Callable[[Factors], Array]
    combine: Callable[[Array, Array], Array]
    numerics: Numerics

    def finish(self, wide: Array) -> Array:
        """Wide values in the accumulator's type, by rounding once, or by wrapping or saturating."""
        if is_float(self.dtype):
            rounded = round_to(wide, self.dtype)
            return flushed(rounded) if self.numerics.denormals == "zero" else rounded
        if self.numerics.saturate:
            limits = np.iinfo(storage(self.dtype))
            wide = np.clip(wide, limits.min, limits.max)
        return wide.astype(storage(self.dtype))


def exact(dst: Array, points: Points, at: Setting) -> Array:
    """The terms of a group are combined exactly (floats: in f64, in order), then rounded, wrapped or saturated once."""
    integer = not is_float(at.dtype)
    wide_type = np.int64 if integer else np.float64
    most = max(1, MOST_ELEMENTS // max(1, dst.size))
    for factors, count in points.blocks(at.numerics.group or points.count):
        wide = dst.astype(wide_type)
        for some, number in Points(factors, count).blocks(most):
            terms = _with_points(at.body(some), number)
            if integer and at.combine is np.add:
                wide = wide + np.add.reduce(terms, axis=0)
                continue
            for term in terms:
                wide = at.combine(wide, term)
        dst = at.finish(wide)
    return dst


def _with_points(terms: Array, count: int) -> Array:
    """Terms with an axis of points, also of a body that reads nothing."""
    return np.broadcast_to(terms, (count, *terms.shape[1:]))


def fma(dst: Array, points: Points, at: Setting) -> Array:
    """One fused multiply-add per point, in order: IEEE 754, rounded once to nearest-even."""
    for a, b in points:
        if at.dtype == "f64":
            dst = fused_f64(a, b, dst)
        else:
            dst = at.finish(add_to_odd(a * b, dst.astype(np.float64)))
    return dst


def multiply_add(dst: Array, points: Points, at: Setting) -> Array:
    """A product, rounded, and a sum, rounded, per point, in order."""
    for factors in points:
        product = at.finish(at.body(factors)).astype(np.float64)
        dst = at.finish(dst.astype(np.float64) + product)
    return dst


def bf16_pairs(dst: Array, points: Points, at: Setting) -> Array:
    """Pairs of bf16 products are added to f32, the odd one first, each by a fused multiply-add.

    Denormal factors and accumulators count as zero, denormal sums become zero.
    """
    for even, odd in _groups(points, 2):
        for factors in (odd, even):
            a, b = (np.where(np.abs(factor) < 2.0**-126, factor * 0.0, factor) for factor in factors)
            total = add_to_odd(a * b, flushed(dst).astype(np.float64))
            # A sum is tiny if it is so after rounding to 24 bits with an unbounded exponent.
            tiny = np.abs(total) < 2.0**-126 - 2.0**-151
            dst = np.where(tiny, np.copysign(0.0, total), total).astype(np.float32)
    return dst


def saturated_pairs_i16(dst: Array, points: Points, at: Setting) -> Array:
    """Pairs of products are added with saturation in 16 bits, then pairs of these sums to i32, which wraps."""
    for group in _groups(points, 4):
        first, second, third, fourth = (at.body(factors) for factors in group)
        halves = [np.clip(pair, -(1 << 15), (1 << 15) - 1) for pair in (first + second, third + fourth)]
        dst = (dst.astype(np.int64) + halves[0] + halves[1]).astype(np.int32)
    return dst


@dataclass(frozen=True)
class Rule:
    """A rule with what records may use it: `accumulators` (empty: all), reductions in multiples of `group`.

    `products` says that the body must be a product of two operands.
    """

    run: Callable[[Array, Points, Setting], Array]
    accumulators: tuple[str, ...] = ()
    group: int = 1
    products: bool = True


RULES: dict[str, Rule] = {
    "exact": Rule(exact, products=False),
    "fma": Rule(fma, ("f16", "bf16", "f32", "f64")),
    "multiply_add": Rule(multiply_add, ("f16", "bf16", "f32", "f64")),
    "bf16_pairs": Rule(bf16_pairs, ("f32",), 2),
    "saturated_pairs_i16": Rule(saturated_pairs_i16, ("i32",), 4),
}


def _groups(points: Iterable[Factors], size: int) -> Iterator[tuple[Factors, ...]]:
    points = iter(points)
    while group := tuple(islice(points, size)):
        yield group
