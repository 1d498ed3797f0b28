"""Random nodes of ONNX operators for quantised numbers."""

from __future__ import annotations

import numpy as np

from tests.onnx_recipes.draft import EXTENTS, F32, I8, U8, Draft, registry

recipe, RECIPES = registry()


@recipe("QuantizeLinear", "DequantizeLinear")
def _quantised(d: Draft, operator: str) -> None:
    kind, shape = d.one((I8, U8)), d.shape(1, 3)
    axis = int(d.rng.integers(len(shape)))
    per = d.one(((), (shape[axis],)))
    scale = d.given(d.array(F32, per, 0.05, 0.5))
    zero = d.given(d.array(kind, per, 0, 9))
    x = d.given(d.array(F32, shape, -9, 9) if operator == "QuantizeLinear" else d.array(kind, shape, 0, 99))
    d.node(operator, [x, scale, zero], axis=axis)


@recipe("DynamicQuantizeLinear")
def _dynamic(d: Draft, operator: str) -> None:
    d.node(operator, [d.given(d.array(F32, tuple(max(e, 1) for e in d.shape(1, 3))))], 3)


@recipe("MatMulInteger")
def _matmul_integer(d: Draft, operator: str) -> None:
    m, k, n = (d.one(EXTENTS) for _ in range(3))
    zeros = [d.given(np.asarray(3, U8)), d.given(np.asarray(2, I8))] if d.chance(0.5) else []
    d.node(operator, [d.given(d.array(U8, (m, k), 0, 99)), d.given(d.array(I8, (k, n), -50, 50)), *zeros])


@recipe("ConvInteger")
def _conv_integer(d: Draft, operator: str) -> None:
    zero = [d.given(np.asarray(3, U8))] if d.chance(0.5) else []
    d.node(operator, [d.given(d.array(U8, (1, 3, 7, 5), 0, 99)), d.given(d.array(U8, (4, 3, 3, 2), 0, 99)), *zero])


@recipe("QLinearMatMul")
def _qlinear(d: Draft, operator: str) -> None:
    m, k, n = (d.one(EXTENTS) for _ in range(3))
    scale = lambda: d.known(d.one((0.05, 0.125)), F32)  # noqa: E731
    zero = lambda: d.known(d.one((0, 5)), U8)  # noqa: E731
    a, b = d.given(d.array(U8, (m, k), 0, 20)), d.given(d.array(U8, (k, n), 0, 20))
    d.node(operator, [a, scale(), zero(), b, scale(), zero(), d.known(0.5, F32), zero()])
