"""Random inputs of a case as tensors of torch."""

from __future__ import annotations

import math
from typing import Any

from bench.gpu.cases import Case

DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "s32": "int32", "s8": "int8",
}  # fmt: skip


def inputs(case: Case, torch: Any, place: str, seed: int) -> list[Any]:
    """Normally distributed floats, weights of convolutions scaled by their fan-in; bytes of all values alike."""
    generator = torch.Generator(device=place).manual_seed(seed)
    dtype = getattr(torch, DTYPES[case.dtype])
    made = []
    for number, shape in enumerate(case.shapes):
        if not dtype.is_floating_point:
            made.append(torch.randint(-128, 128, shape, generator=generator, device=place, dtype=dtype))
            continue
        scale = 1 / math.sqrt(max(1, math.prod(shape[1:]))) if case.family == "convolution" and number else 1.0
        values = torch.randn(shape, generator=generator, device=place, dtype=torch.float32)
        made.append((values * scale).to(dtype))
    return made


def unwritten(case: Case, torch: Any, place: str) -> Any:
    """A tensor for the result, of values that no result has."""
    dtype = getattr(torch, DTYPES[case.result or case.dtype])
    nothing = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
    return torch.full(case.output, nothing, dtype=dtype, device=place)
