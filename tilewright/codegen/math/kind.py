"""The two floating-point types that functions are computed in."""

from __future__ import annotations

import struct
from typing import Final

from tilewright.codegen.math.coefficients import (
    ASIN_32,
    ASIN_64,
    ATAN_32,
    ATAN_64,
    COS_32,
    COS_64,
    ERF_SMALL_32,
    ERF_SMALL_64,
    EXP_32,
    EXP_64,
    LOG_32,
    LOG_64,
    SIN_32,
    SIN_64,
)
from tilewright.dataclass import dataclass


@dataclass(frozen=True)
class Kind:
    """A floating-point type: its format, the bounds of each function, and its coefficients by rising power."""

    bits: int
    mantissa: int
    bias: int
    smallest_normal: float
    ln2_high: float  # few bits, so that its product with an exponent is exact, and below log 2
    ln2_low: float
    exp_low: float  # below, exp is 0 to nearest
    exp_high: float  # above, exp is infinite
    expm1_low: float  # below, expm1 is -1 to nearest
    tanh_high: float  # above, tanh is 1 to nearest, and sinh is exp / 2
    erf_high: float  # above, erf is 1 to nearest
    normal_high: float  # of its negative, the distribution function of normal numbers is 0 to nearest
    tiny: float  # below, odd functions of slope 1 are their argument to nearest
    large: float  # above, 1 + x * x is x * x to nearest
    log_low: float  # mantissas are taken from [log_low, 2 log_low)
    half_pi: float
    half_pi_low: float
    exp: tuple[float, ...]
    log: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    asin: tuple[float, ...]
    atan: tuple[float, ...]
    erf_near: tuple[float, ...]

    @property
    def round_magic(self) -> float:
        """Added to a value below 2^(mantissa - 1), it rounds to an integer that stands in the lowest bits."""
        return 1.5 * 2.0**self.mantissa

    def bits_of(self, value: float) -> int:
        """The bits of a constant, as an integer."""
        form, integer = ("<f", "<I") if self.bits == 32 else ("<d", "<Q")
        return int(struct.unpack(integer, struct.pack(form, value))[0])


SINGLE: Final = Kind(
    bits=32, mantissa=23, bias=127, smallest_normal=2.0**-126,
    ln2_high=0.693145751953125, ln2_low=1.428606765330187e-06,
    exp_low=-104.0, exp_high=89.0, expm1_low=-18.0, tanh_high=10.0, erf_high=3.9375, normal_high=14.5, tiny=2.0**-14,
    large=2.0**13,
    log_low=0.66666668653488159, half_pi=1.57079637050628662, half_pi_low=-4.37113900018624283e-8,
    exp=EXP_32, log=LOG_32, sin=SIN_32, cos=COS_32, asin=ASIN_32, atan=ATAN_32, erf_near=ERF_SMALL_32,
)  # fmt: skip
DOUBLE: Final = Kind(
    bits=64, mantissa=52, bias=1023, smallest_normal=2.0**-1022,
    ln2_high=6.93147180369123816490e-01, ln2_low=1.90821492927058770002e-10,
    exp_low=-746.0, exp_high=710.0, expm1_low=-38.0, tanh_high=20.0, erf_high=6.0, normal_high=38.75, tiny=2.0**-28,
    large=2.0**28,
    log_low=0.7071067811865476, half_pi=1.5707963267948966, half_pi_low=6.123233995736766e-17,
    exp=EXP_64, log=LOG_64, sin=SIN_64, cos=COS_64, asin=ASIN_64, atan=ATAN_64, erf_near=ERF_SMALL_64,
)  # fmt: skip
