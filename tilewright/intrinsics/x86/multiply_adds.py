"""Multiply-adds of AVX and AVX-512 vectors, converted products included, and outer products of registers made of them.

Latencies and rates of the first: two units, 4 cycles (Zen 4, Zen 5, Ice Lake and later servers).
"""

from __future__ import annotations

from tilewright.intrinsics.composite import SCALARS, family
from tilewright.intrinsics.elements import bits
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.portable import WIDENED, multiply_add

X86 = "x86"
_VECTORS = ((512, ("avx512f",), 32), (256, ("avx2", "fma"), 16))  # bits, features, registers
_ALIASES = {(512, "f32"): ("fma_ps", "vfmadd231ps"), (512, "f64"): ("fma_pd", "vfmadd231pd")}


def _of_width(width: int, features: tuple[str, ...], registers: int) -> tuple[Intrinsic, ...]:
    plain = [
        multiply_add(width // bits(c), c, c, c, target=X86, features=features, fused=True,
                     aliases=_ALIASES.get((width, c), ()))
        for c in ("f32", "f64")
    ]  # fmt: skip
    widened = [
        multiply_add(width // bits(c), a, b, c, target=X86, features=features, fused=True) for a, b, c in WIDENED
    ]
    return (
        *(kernel for record in plain for kernel in family(record, registers, scalars=_scalars(registers))),
        *(kernel for record in widened for kernel in family(record, registers)),
        *plain,
        *(multiply_add(width // bits(c), c, c, c, full=True, target=X86, features=features, fused=True)
          for c in ("f32", "f64")),
        *widened,
        *(multiply_add(width // bits(c), a, b, c, full=True, target=X86, features=features, fused=True)
          for a, b, c in WIDENED),
    )  # fmt: skip


def _scalars(registers: int) -> int:
    """Scalars that a product of one type holds in registers at a time.

    A core renames registers, so that loads run ahead with one. Of 16 registers the second one would take the place of
    sums: on a Zen 3, 4 x 3 sums take 0.92 to 0.97 of the time of 3 x 3, 5 x 2 and 4 x 2. Of 32 registers that has not
    been measured.
    """
    return SCALARS if registers > 16 else 1


INTRINSICS = tuple(record for vectors in _VECTORS for record in _of_width(*vectors))
