"""A small network built from the operator library: what `demo` shows and `doctor` tries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops.elementwise import relu
from tilewright.expr.ops.linalg import linear
from tilewright.expr.ops.norm import softmax

Array = np.ndarray[Any, Any]


def perceptron(rows: int, widths: Sequence[int]) -> Graph:
    """Linear layers from width to width with ReLU between them and a softmax at the end; weights from a fixed seed."""
    generator = np.random.default_rng(0)
    b = GraphBuilder("perceptron")
    x = b.input("x", (rows, widths[0]), "f32")
    for layer, (inner, outer) in enumerate(pairwise(widths)):
        weights = generator.standard_normal((outer, inner), np.float32) / np.float32(np.sqrt(inner))
        bias = generator.standard_normal(outer, np.float32)
        x = linear(relu(x) if layer else x, b.constant(weights, f"w{layer}"), b.constant(bias, f"b{layer}"))
    return b.finish([softmax(x, name="probabilities")])


def perceptron_in_numpy(graph: Graph, x: Array) -> Array:
    """The same network with the constants of `graph`, as one writes it in NumPy."""
    layers = len(graph.constants) // 2
    for layer in range(layers):
        if layer:
            x = np.maximum(x, 0)
        x = x @ graph.constants[f"w{layer}"].T + graph.constants[f"b{layer}"]
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))
