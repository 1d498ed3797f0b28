"""Random nodes of ONNX operators for reductions, orders and transforms."""

from __future__ import annotations

from math import prod

import numpy as np

from tests.onnx_recipes.draft import F16, F32, F64, I32, Draft, registry

recipe, RECIPES = registry()


@recipe(
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
def _reduce(d: Draft, operator: str) -> None:
    whole = operator in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
    dtype = d.one((F32, F32, F64, I32) if whole else (F32, F64))
    shape = tuple(max(e, 1) for e in d.shape(1, 4))
    low = 0.1 if operator == "ReduceLogSum" else -2
    name = d.given(d.array(dtype, shape, low, 2))
    axes = sorted(d.rng.permutation(len(shape))[: int(d.rng.integers(len(shape) + 1))].tolist())
    rest = [d.known(axes)] if axes or d.chance(0.5) else []
    d.node(operator, [name, *rest], keepdims=d.one((0, 1)), noop_with_empty_axes=d.one((0, 1)) if not axes else 0)


@recipe("ArgMax", "ArgMin")
def _arg(d: Draft, operator: str) -> None:
    shape = tuple(max(e, 1) for e in d.shape(1, 3))
    name = d.given(d.array(d.one((F32, F64, I32)), shape))
    axis = int(d.rng.integers(-len(shape), len(shape)))
    d.node(operator, [name], axis=axis, keepdims=d.one((0, 1)), select_last_index=d.one((0, 1)))


@recipe("CumSum")
def _cumsum(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one((F32, F64, I32)), 1, 3)
    axis = d.known(int(d.rng.integers(-len(shape), len(shape))))
    d.node(operator, [name, axis], exclusive=d.one((0, 1)), reverse=d.one((0, 1)))


@recipe("STFT")
def _stft(d: Draft, operator: str) -> None:
    length, step = d.one((1, 4, 6, 7)), d.one((1, 2, 3))
    dtype = d.one((F32, F64))
    signal = d.given(d.array(dtype, (d.one((1, 2)), length + d.one((0, 1, 5)), 1)))
    window = d.given(d.array(dtype, (length,))) if d.chance(0.6) else ""
    d.node(operator, [signal, d.known(step), window, d.known(length)], onesided=d.one((0, 1)))


@recipe("Det")
def _det(d: Draft, operator: str) -> None:
    rows = d.one((1, 2, 3))
    d.node(operator, [d.given(d.array(d.one((F32, F64)), (*d.shape(0, 2, 30), rows, rows)))])


@recipe("MaxUnpool")
def _unpool(d: Draft, operator: str) -> None:
    kernel = [d.one((1, 2, 3)) for _ in range(2)]
    image = d.given(d.array(F32, (2, 3, *(width * d.one((1, 2, 3)) for width in kernel))))
    values, places = d.node("MaxPool", [image], 2, kernel_shape=kernel, strides=kernel)
    d.node(operator, [values, places], kernel_shape=kernel, strides=kernel)


@recipe("DFT")
def _dft(d: Draft, operator: str) -> None:
    parts = d.one((1, 2))
    shape = (*(max(extent, 1) for extent in d.shape(1, 3)), parts)
    signal = d.given(d.rng.uniform(-4, 4, shape).astype(d.one((F32, F64))))
    length = d.known(np.int64(d.rng.integers(1, 9))) if d.rng.random() < 0.5 else ""
    axis = d.known(np.int64(d.rng.integers(len(shape) - 1)))
    inverse = d.one((0, 1))
    d.node(
        operator, [signal, length, axis], inverse=inverse, onesided=d.one((0, 1)) if parts == 1 and not inverse else 0
    )


@recipe("TopK")
def _topk(d: Draft, operator: str) -> None:
    shape = tuple(max(e, 1) for e in d.shape(1, 3))
    axis = int(d.rng.integers(len(shape)))
    values = d.rng.permutation(prod(shape)).reshape(shape).astype(d.one((F32, F64, I32)))
    count = d.known([int(d.rng.integers(1, shape[axis] + 1))])
    d.node(operator, [d.given(values), count], 2, axis=axis, largest=d.one((0, 1)))


@recipe("Softmax", "LogSoftmax", "Hardmax")
def _softmax(d: Draft, operator: str) -> None:
    name, shape = d.value(d.one((F32, F32, F64, F16)), 1, 3)
    if 0 in shape:
        raise LookupError("the maximum of nothing")
    d.node(operator, [name], axis=int(d.rng.integers(-len(shape), len(shape))))
