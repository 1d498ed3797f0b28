"""Matrix products: square and skinny, f32, bf16 and u8·s8; weights are constants unless the name says variable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from bench.arrays import Array
from bench.cases.definition import function_module, node, normal, onnx_model
from bench.problem import BF16_TOLERANCE, F32_TOLERANCE, Case, Problem

SQUARES = (512, 1024, 2048)
SKINNY_ROWS = (1, 4, 16, 128)
SKINNY_EXTENTS = (1024, 2048, 4096)


def cases() -> Iterator[Case]:
    for n in SQUARES:
        yield Case(f"gemm-f32-square-{n}", "gemm-f32-square", "f32", partial(variable_f32, n, n, n))
    for n in SQUARES:
        yield Case(f"gemm-f32-constant-{n}", "gemm-f32-constant", "f32", partial(constant_f32, n, n, n))
    for n in SKINNY_EXTENTS:
        for m in SKINNY_ROWS:
            build = partial(constant_f32, m, n, n)
            yield Case(f"gemm-f32-skinny-m{m}-{n}", "gemm-f32-skinny", "f32", build)
    yield Case("gemm-bf16-1024", "gemm-bf16", "bf16", partial(constant_bf16, 1024, 1024, 1024))
    yield Case("gemm-u8s8-1024", "gemm-u8s8", "int8", partial(constant_u8s8, 1024, 1024, 1024))


def variable_f32(m: int, n: int, k: int) -> Problem:
    import torch

    inputs = {"a": normal(0, m, k), "b": normal(1, k, n)}
    model = onnx_model([node("MatMul", ["a", "b"], "c")], inputs, ("c", (m, n), np.float32))
    return Problem(model, inputs, {"mm": function_module(torch.mm)}, flops=2 * m * n * k)


def constant_f32(m: int, n: int, k: int) -> Problem:
    return _constant(normal(0, m, k), normal(1, k, n), F32_TOLERANCE)


def constant_bf16(m: int, n: int, k: int) -> Problem:
    a, b = (array.astype(ml_dtypes.bfloat16) for array in (normal(0, m, k), normal(1, k, n)))
    return _constant(a, b, BF16_TOLERANCE)


def constant_u8s8(m: int, n: int, k: int) -> Problem:
    """``MatMulInteger``: all values of both types but -128, exact sums in i32."""
    import torch

    random = np.random.default_rng(0)
    inputs = {"a": random.integers(0, 256, (m, k), np.uint8)}
    b = random.integers(-127, 128, (k, n), np.int8)
    model = onnx_model([node("MatMulInteger", ["a", "b"], "c")], inputs, ("c", (m, n), np.int32), {"b": b})

    def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.double() @ b.double()

    def columns(a: torch.Tensor, transposed: torch.Tensor) -> torch.Tensor:
        return torch._int_mm(a, transposed.t())

    modules = {"int_mm": function_module(torch._int_mm, b), "int_mm columns": function_module(columns, _transposed(b))}
    return Problem(model, inputs, modules, 2 * m * n * k, tolerance=0.0, reference=function_module(exact, b))


def _constant(a: Array, b: Array, tolerance: float) -> Problem:
    import torch

    (m, k), n = a.shape, b.shape[1]
    inputs = {"a": a}
    model = onnx_model([node("MatMul", ["a", "b"], "c")], inputs, ("c", (m, n), a.dtype), {"b": b})
    linear: Any = torch.nn.functional.linear
    modules = {"mm": function_module(torch.mm, b), "linear": function_module(linear, _transposed(b))}
    return Problem(model, inputs, modules, 2 * m * n * k, tolerance)


def _transposed(array: Array) -> Array:
    return np.ascontiguousarray(array.T)
