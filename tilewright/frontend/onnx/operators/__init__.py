"""Operator importers by family; importing this package registers them all."""

from tilewright.frontend.onnx.operators import (
    constants,
    control,
    elementwise,
    indexing,
    linear,
    normalization,
    quantized,
    recurrent,
    reduce,
    sampling,
    sequences,
    shape,
    windows,
)

__all__ = [
    "constants",
    "control",
    "elementwise",
    "indexing",
    "linear",
    "normalization",
    "quantized",
    "recurrent",
    "reduce",
    "sampling",
    "sequences",
    "shape",
    "windows",
]
