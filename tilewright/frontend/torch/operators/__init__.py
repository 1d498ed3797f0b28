"""Operator importers by family; importing this package registers them all."""

from tilewright.frontend.torch.operators import (
    activations,
    arithmetic,
    comparisons,
    creation,
    indexing,
    linear,
    normalization,
    recurrent,
    reduce,
    sampling,
    shape,
    windows,
)

__all__ = [
    "activations",
    "arithmetic",
    "comparisons",
    "creation",
    "indexing",
    "linear",
    "normalization",
    "recurrent",
    "reduce",
    "sampling",
    "shape",
    "windows",
]
