"""Where the coefficients of `codegen/cpu/math/coefficients.py` come from: minimax fits of polynomials.

Run as a script, prints every table with the largest weighted error of the fit. Needs mpmath and SciPy. Float64
tables come from the Remez exchange in 50 digits. Float32 tables are rounded one coefficient at a time, from the
most important on, and the rest is fitted again after each as a linear program, so that the printed values are exact
in float32 and the error is that of the rounded polynomial.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np
import scipy.optimize

mp.mp.dps = 50

Real = Callable[[Any], Any]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fit:
    """`function` on [low, high] by a polynomial of `degree`, in the metric |error| * weight."""

    name: str
    function: Real
    low: Any
    high: Any
    degree: int
    weight: Real
    single: bool


def minimax_single(fit: Fit, fixed: dict[int, float]) -> tuple[dict[int, float], float]:
    """The free coefficients, by power, and the largest weighted error. `fixed` powers keep their value."""
    powers = [power for power in range(fit.degree + 1) if power not in fixed]
    x = np.linspace(float(fit.low), float(fit.high), 1500)
    scale = np.abs(x).max()
    weight = np.array([float(fit.weight(mp.mpf(v))) for v in x]) * 2.0**20
    wanted = np.array([float(fit.function(mp.mpf(v)) - sum(mp.mpf(c) * v**p for p, c in fixed.items())) for v in x])
    basis = np.array([(x / scale) ** power for power in powers]).T * weight[:, None]
    bound = -np.ones((len(x), 1))
    matrix = np.block([[basis, bound], [-basis, bound]])
    right = np.concatenate([wanted * weight, -wanted * weight])
    cost = np.append(np.zeros(len(powers)), 1.0)
    bounds = [(None, None)] * len(cost)
    solution = scipy.optimize.linprog(cost, matrix, right, bounds=bounds, method="highs-ds").x
    free = {power: float(c) / scale**power for power, c in zip(powers, solution[:-1], strict=True)}
    return free, float(solution[-1]) / 2.0**20


@dataclass(frozen=True)
class Quotient:
    """`function` on [0, high] by u(x) / (slope x u(x) + r(x)) with least relative error.

    `ends` are u and r at 0: rounding errors of sums weigh most just above a power of two, and least below one.
    """

    upper: str  # the names of the tables of u and r
    rest: str
    function: Real
    high: float
    slope: float
    ends: tuple[float, float]
    degree: int  # of both


def quotient_tables(fit: Quotient) -> tuple[list[float], list[float]]:
    """Coefficients by rising power, exact in f32, rounded in turns from the most important on."""
    upper, rest = ({0: end} for end in fit.ends)
    x, wanted = _samples(fit)
    for power in range(1, fit.degree + 1):
        for table, side in ((upper, 0), (rest, 1)):
            table[power] = float(np.float32(_free_quotient(fit, x, wanted, upper, rest)[side][power]))
    return list(upper.values()), list(rest.values())


def quotient_error(fit: Quotient, upper: Sequence[float], rest: Sequence[float]) -> float:
    """The largest relative error of two tables."""
    x, wanted = _samples(fit)
    u, r = np.polyval(upper[::-1], x), np.polyval(rest[::-1], x)
    return float(abs(u / (fit.slope * x * u + r) / wanted - 1).max())


def _samples(fit: Quotient) -> tuple[Array, Array]:
    """Places, denser at both ends, and the function there."""
    x = (1 - np.cos(np.linspace(0, np.pi, 3001))) / 2 * fit.high
    return x, np.array([float(fit.function(mp.mpf(v))) for v in x])


def _free_quotient(
    fit: Quotient, x: Array, wanted: Array, upper: dict[int, float], rest: dict[int, float]
) -> tuple[dict[int, float], dict[int, float]]:
    """Both tables with the powers that are not fixed: linear programs, each with the denominator of the one before."""
    free = [[power for power in range(fit.degree + 1) if power not in table] for table in (upper, rest)]
    factors = 1 - fit.slope * wanted * x, -wanted  # of u and r in an error that is linear in their coefficients
    below = (1 + x / 4) ** (fit.degree + 1)
    for _ in range(6):
        weight = 2.0**20 / (wanted * below)
        columns = [
            weight * f * (x / fit.high) ** power for f, powers in zip(factors, free, strict=True) for power in powers
        ]
        fixed = weight * (factors[0] * _values(upper, x) + factors[1] * _values(rest, x))
        basis, bound = np.array(columns).T, -np.ones((len(x), 1))
        matrix = np.block([[basis, bound], [-basis, bound]])
        cost = np.append(np.zeros(len(columns)), 1.0)
        limits = [(None, None)] * len(cost)
        found = scipy.optimize.linprog(cost, matrix, np.append(-fixed, fixed), bounds=limits, method="highs").x
        count = len(free[0])
        u = upper | {power: float(c) / fit.high**power for power, c in zip(free[0], found[:count], strict=True)}
        r = rest | {power: float(c) / fit.high**power for power, c in zip(free[1], found[count:-1], strict=True)}
        below = fit.slope * x * _values(u, x) + _values(r, x)
    return u, r


def _values(table: dict[int, float], x: Array) -> Array:
    """A polynomial at all places."""
    return np.asarray(sum(c * x**power for power, c in table.items()))


def remez(fit: Fit) -> tuple[dict[int, Any], Any]:
    """The coefficients, by power, and the largest weighted error."""
    powers = list(range(fit.degree + 1))
    count = len(powers) + 1
    low, high = mp.mpf(fit.low), mp.mpf(fit.high)
    points = [low + (high - low) * (1 - mp.cos(mp.pi * i / 900)) / 2 for i in range(901)]
    heaviest = max(fit.weight(x) for x in points)
    grid = [x for x in points if fit.weight(x) > heaviest / 10000]  # elsewhere any error is allowed
    wanted = [fit.function(x) for x in grid]
    weights = [fit.weight(x) for x in grid]
    last = len(grid) - 1
    nodes = [round(last * (i + 0.4) / count) for i in range(count)]  # not symmetric: odd powers must not cancel
    best: tuple[dict[int, Any], Any] = ({}, mp.inf)
    for _ in range(25):
        matrix, right = mp.matrix(count, count), mp.matrix(count, 1)
        for row, node in enumerate(nodes):
            for column, power in enumerate(powers):
                matrix[row, column] = grid[node] ** power
            matrix[row, count - 1] = (-1) ** row / weights[node]
            right[row] = wanted[node]
        solution = mp.lu_solve(matrix, right)
        coefficients = dict(zip(powers, list(solution)[:-1], strict=True))
        errors = [
            (w - sum(c * x**p for p, c in coefficients.items())) * k
            for x, w, k in zip(grid, wanted, weights, strict=True)
        ]
        largest = max(abs(error) for error in errors)
        if largest < best[1]:
            best = (coefficients, largest)
        peaks: list[int] = []
        for i, error in enumerate(errors):
            if peaks and (error > 0) == (errors[peaks[-1]] > 0):
                if abs(error) > abs(errors[peaks[-1]]):
                    peaks[-1] = i
            else:
                peaks.append(i)
        while len(peaks) > count:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        if len(peaks) < count or peaks == nodes:
            break
        nodes = peaks
    return best


def coefficients(fit: Fit) -> tuple[list[float], float]:
    """Coefficients by rising power, exact in the type of the table, and the error of the unrounded rest."""
    if not fit.single:
        free, error = remez(fit)
        return [float(free[power]) for power in range(fit.degree + 1)], float(error)
    fixed: dict[int, float] = {}
    for power in range(fit.degree + 1):
        free, error = minimax_single(fit, fixed)
        fixed[power] = float(np.float32(free[power]))
    table = list(fixed.values())
    return table, error_of(fit, table)


def error_of(fit: Fit, table: Sequence[float]) -> float:
    """The largest weighted error of a table, at 400 places."""
    low, high = mp.mpf(fit.low), mp.mpf(fit.high)
    places = [low + (high - low) * i / 399 for i in range(400)]
    errors = [fit.weight(x) * (fit.function(x) - mp.polyval([mp.mpf(c) for c in table[::-1]], x)) for x in places]
    return float(max(abs(error) for error in errors))


def _taylor(near: Real, series: Real, limit: float) -> Real:
    """`near`, or `series` where |x| is below `limit` and `near` would cancel."""
    return lambda x: series(x) if abs(x) < limit else near(x)


EXP = _taylor(lambda r: (mp.expm1(r) - r) / r**2, lambda r: mp.mpf(1) / 2 + r / 6 + r**2 / 24 + r**3 / 120, 1e-9)
EXP2 = _taylor(  # 2^r = 1 + r f(r)
    lambda r: (mp.power(2, r) - 1) / r,
    lambda r: mp.log(2) + mp.log(2) ** 2 * r / 2 + mp.log(2) ** 3 * r**2 / 6, 1e-9,
)  # fmt: skip
LOG = _taylor(
    lambda f: (mp.log1p(f) - f + f * f / 2) / f**3,
    lambda f: mp.mpf(1) / 3 - f / 4 + f**2 / 5 - f**3 / 6, 1e-9,
)  # fmt: skip
LOG_S = _taylor(  # log((1 + s) / (1 - s)) = 2 s + s^3 g(s^2)
    lambda z: (mp.log((1 + mp.sqrt(z)) / (1 - mp.sqrt(z))) - 2 * mp.sqrt(z)) / mp.sqrt(z) ** 3,
    lambda z: mp.mpf(2) / 3 + 2 * z / 5 + 2 * z**2 / 7, 1e-9,
)  # fmt: skip
LOG_S5 = _taylor(  # log((1 + s) / (1 - s)) = 2 s + 2/3 s^3 + s^5 g(s^2)
    lambda z: (mp.log((1 + mp.sqrt(z)) / (1 - mp.sqrt(z))) - 2 * mp.sqrt(z) - 2 * mp.sqrt(z) ** 3 / 3)
    / mp.sqrt(z) ** 5,
    lambda z: mp.mpf(2) / 5 + 2 * z / 7 + 2 * z**2 / 9, 1e-6,
)  # fmt: skip
SIN = _taylor(
    lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, lambda z: -mp.mpf(1) / 6 + z / 120 - z**2 / 5040, 1e-9
)
COS = _taylor(
    lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2,
    lambda z: mp.mpf(1) / 24 - z / 720 + z**2 / 40320, 1e-9,
)  # fmt: skip
ASIN = _taylor(
    lambda z: (mp.asin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, lambda z: mp.mpf(1) / 6 + 3 * z / 40 + 15 * z**2 / 336, 1e-9
)
ATAN = _taylor(lambda z: (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, lambda z: -mp.mpf(1) / 3 + z / 5 - z**2 / 7, 1e-9)
ERF = _taylor(  # erf(x) = x + x f(x^2)
    lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
    lambda z: 2 / mp.sqrt(mp.pi) * (1 - z / 3 + z**2 / 10) - 1, 1e-12,
)  # fmt: skip

TANH = _taylor(  # tanh(x) = x + x^3 f(x^2)
    lambda z: (mp.tanh(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
    lambda z: -mp.mpf(1) / 3 + 2 * z / 15 - 17 * z**2 / 315, 1e-9,
)  # fmt: skip
LOG_ERFC = _taylor(  # erfc(x) = 2^(x f(x))
    lambda x: mp.log(mp.erfc(x)) / mp.log(2) / x, lambda x: -2 / mp.sqrt(mp.pi) / mp.log(2), 1e-12,
)  # fmt: skip
LOG_NORMAL = _taylor(  # 2 Phi(-x) = 2^(x f(x))
    lambda x: mp.log(mp.erfc(x / mp.sqrt(2))) / mp.log(2) / x, lambda x: -mp.sqrt(2 / mp.pi) / mp.log(2), 1e-12,
)  # fmt: skip


def _one(_: Any) -> Any:
    return mp.mpf(1)


HALF = mp.mpf("0.5005")
HALF_LN2 = mp.log(2) / 2 * mp.mpf("1.001")
ROOT = mp.sqrt(2)
PI4 = mp.pi**2 / 16 * mp.mpf("1.001")
S_MAX = ((ROOT - 1) / (ROOT + 1)) ** 2 * mp.mpf("1.001")
TAN8 = mp.tan(mp.pi / 8) ** 2 * mp.mpf("1.001")

ERF_SPLIT = mp.mpf("1.125")  # float32: x + x p(x^2) below, 1 - p(x)^8 above
ERF_END = mp.mpf("3.9375")  # erf is 1 in float32 from 3.92 on
ERF_SHIFT = mp.mpf("0.22")  # float64: 1 - exp(-x^2) p(1 / (x + 2) - ERF_SHIFT) from 1 on


def _erfcx(t: Any) -> Any:
    x = 1 / (t + ERF_SHIFT) - 2
    return mp.erfc(x) * mp.exp(x * x)


def _gauss(t: Any) -> Any:
    """What an error of `_erfcx` weighs in 1 - exp(-x^2) erfcx(x)."""
    return mp.exp(-((1 / (t + ERF_SHIFT) - 2) ** 2))


NORMAL_SLOPE, NORMAL_SHIFT = (
    mp.mpf("0.25"),
    mp.mpf("0.5"),
)  # Phi(-x) = exp(-x^2 / 2) t p(t - shift), t = 1 / (1 + slope x)


def _normal_tail(t: Any) -> Any:
    """``Phi(-x) exp(x^2 / 2) / t``, by `t` less the shift."""
    t = t + NORMAL_SHIFT
    x = (1 / t - 1) / NORMAL_SLOPE
    return mp.erfc(x / ROOT) * mp.exp(x * x / 2) / 2 / t


#: A little below the root of 2 pi, where the fit is close.
NORMAL_GROWTH = 2.50661


def _normal_quotient(a: Any) -> Any:
    """``Phi(-a) exp(a^2 / 2)``; times a, it comes near 1 over the root of 2 pi."""
    return mp.erfc(a / ROOT) / 2 * mp.exp(a * a / 2)


def _normal_weight(x: Any) -> Any:
    """What an error of `LOG_NORMAL` weighs in ``2 Phi(-x)``; where that is below 2e-3 it is a relative error."""
    return x * max(mp.erfc(x / ROOT), mp.mpf("2e-3")) * mp.log(2)


def _normal_range(end: float) -> tuple[Any, Any]:
    return 1 / (1 + NORMAL_SLOPE * end) - NORMAL_SHIFT, 1 - NORMAL_SHIFT


FITS = [
    Fit("EXP_32", EXP, -HALF_LN2, HALF_LN2, 4, lambda r: r * r / mp.exp(r), True),
    Fit("EXP2_32", EXP2, -HALF, HALF, 4, lambda r: abs(r) / mp.power(2, r), True),
    Fit("EXP_64", EXP, -HALF_LN2, HALF_LN2, 9, lambda r: r * r / mp.exp(r), False),
    Fit("LOG_32", LOG, mp.mpf(2) / 3 - 1, mp.mpf(4) / 3 - 1, 7, lambda f: f * f, True),
    Fit("LOG_64", LOG_S, 0, S_MAX, 6, lambda z: z, False),
    Fit("LOG_PAIR_64", LOG_S5, 0, S_MAX, 8, lambda z: z, False),
    Fit("SIN_32", SIN, 0, PI4, 2, lambda z: z, True),
    Fit("COS_32", COS, 0, PI4, 2, lambda z: z * z, True),
    Fit("SIN_64", SIN, 0, PI4, 5, lambda z: z, False),
    Fit("COS_64", COS, 0, PI4, 5, lambda z: z * z, False),
    Fit("ASIN_32", ASIN, 0, mp.mpf("0.2501"), 4, lambda z: z, True),
    Fit("ASIN_64", ASIN, 0, mp.mpf("0.2501"), 12, lambda z: z, False),
    Fit("ATAN_32", ATAN, 0, TAN8, 4, lambda z: z, True),
    Fit("ATAN_64", ATAN, 0, TAN8, 10, lambda z: z, False),
    Fit("ERF_SMALL_32", ERF, 0, ERF_SPLIT**2, 6, _one, True),
    Fit(
        "ERF_LARGE_32", lambda x: mp.erfc(x) ** (mp.mpf(1) / 8), ERF_SPLIT, ERF_END, 6,
        lambda x: 8 * mp.erfc(x) ** (mp.mpf(7) / 8), True,
    ),
    Fit("TANH_NEAR_32", TANH, 0, mp.mpf("0.55") ** 2, 3, lambda z: z * (1 + z / 3), True),
    Fit("ERFC_32", LOG_ERFC, 0, 4, 7, lambda x: x * mp.erfc(x) * mp.log(2), True),
    Fit("LOG_NORMAL_32", LOG_NORMAL, 0, mp.mpf("14.2"), 11, _normal_weight, True),
    Fit("ERF_SMALL_64", ERF, 0, 1, 11, _one, False),
    Fit("NORMAL_TAIL_64", _normal_tail, *_normal_range(38.75), 23, lambda t: 1 / _normal_tail(t), False),
    Fit("ERF_LARGE_64", _erfcx, mp.mpf(1) / 8 - ERF_SHIFT, mp.mpf(1) / 3 - ERF_SHIFT, 12, _gauss, False),
]  # fmt: skip


QUOTIENTS = [
    Quotient(
        "NORMAL_UPPER_32",
        "NORMAL_REST_32",
        _normal_quotient,
        14.5,
        float(np.float32(NORMAL_GROWTH)),
        (0.8125, 1.625),
        4,
    )
]


def _print(name: str, table: Sequence[float], error: float) -> None:
    print(f"{name}: Final = (  # error {error:.2g}")
    for value in table:
        print(f"    {value!r},")
    print(")")


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for fit in FITS:
        if fit.name.startswith(wanted):
            _print(fit.name, *coefficients(fit))
    for quotient in QUOTIENTS:
        if quotient.upper.startswith(wanted):
            upper, rest = quotient_tables(quotient)
            error = quotient_error(quotient, upper, rest)
            _print(quotient.upper, upper, error)
            _print(quotient.rest, rest, error)
