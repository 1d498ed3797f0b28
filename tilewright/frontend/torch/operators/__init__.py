"""Operator importers by family; importing this package registers them all."""

from tilewright.frontend.torch.operators import (
    activations,
    arithmetic,
    comparisons,
    counting,
    creation,
    functions,
    indexing,
    linear,
    normalization,
    order_statistics,
    products,
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
    "counting",
    "creation",
    "functions",
    "indexing",
    "linear",
    "normalization",
    "order_statistics",
    "products",
    "recurrent",
    "reduce",
    "sampling",
    "shape",
    "windows",
]
