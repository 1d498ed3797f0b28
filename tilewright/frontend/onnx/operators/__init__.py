"""Operator importers by family; importing this package registers them all."""

from tilewright.frontend.onnx.operators import (
    attention,
    constants,
    control,
    elementwise,
    fourier,
    indexing,
    linear,
    normalization,
    quantized,
    recurrent,
    reduce,
    sampling,
    sequences,
    shape,
    signal,
    windows,
)

__all__ = [
    "attention",
    "constants",
    "control",
    "elementwise",
    "fourier",
    "indexing",
    "linear",
    "normalization",
    "quantized",
    "recurrent",
    "reduce",
    "sampling",
    "sequences",
    "shape",
    "signal",
    "windows",
]
