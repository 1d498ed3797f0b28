"""How an intrinsic of a CPU is described: what it multiplies, how many neighbours along k it consumes, its needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Multiply:
    """One multiply-accumulate instruction: ``Dst[i2] += sum_r Src1[r] * Src2[i2, r]`` with Src1 broadcast to all lanes.

    `group` is the extent of r; `emitter` the name under which code generation finds it; `inputs` the accepted (Src1,
    Src2) dtypes; `source` the document that says what it computes.
    """

    name: str
    inputs: tuple[tuple[str, str], ...]
    accumulator: str
    group: int
    emitter: str
    features: tuple[str, ...]
    source: str
