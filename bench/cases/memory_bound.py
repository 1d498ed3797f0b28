"""Kernels that read and write each element once: softmax, layer norm, and bias + GELU + residual."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from bench.cases.definition import function_module, node, normal, onnx_model
from bench.problem import Case, Problem

ROWS = COLUMNS = 4096


def cases() -> Iterator[Case]:
    yield Case("softmax-4096", "memory-bound", "copy", partial(softmax, ROWS, COLUMNS))
    yield Case("layer-norm-4096", "memory-bound", "copy", partial(layer_norm, ROWS, COLUMNS))
    yield Case("gelu-residual-4096", "memory-bound", "copy", partial(gelu_residual, ROWS, COLUMNS))


def softmax(rows: int, columns: int) -> Problem:
    import torch

    inputs = {"x": normal(0, rows, columns)}
    model = onnx_model([node("Softmax", ["x"], "y", axis=-1)], inputs, ("y", (rows, columns), np.float32))
    function = partial(torch.softmax, dim=-1)
    return Problem(model, inputs, {"softmax": function_module(function)}, flops=5 * rows * columns)


def layer_norm(rows: int, columns: int) -> Problem:
    import torch

    inputs = {"x": normal(0, rows, columns)}
    constants = {"scale": 1 + normal(1, columns, scale=0.1), "bias": normal(2, columns)}
    norm = node("LayerNormalization", ["x", "scale", "bias"], "y", axis=-1, epsilon=1e-5)
    model = onnx_model([norm], inputs, ("y", (rows, columns), np.float32), constants)

    def function(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, [columns], scale, bias, 1e-5)

    modules = {"layer_norm": function_module(function, *constants.values())}
    return Problem(model, inputs, modules, flops=8 * rows * columns)


def gelu_residual(rows: int, columns: int) -> Problem:
    """``y = gelu(x + bias) + residual`` with the exact (erf) GELU."""
    import torch

    inputs = {"x": normal(0, rows, columns), "residual": normal(1, rows, columns)}
    constants = {"bias": normal(2, columns)}
    nodes = [node("Add", ["x", "bias"], "b"), node("Gelu", ["b"], "g"), node("Add", ["g", "residual"], "y")]
    model = onnx_model(nodes, inputs, ("y", (rows, columns), np.float32), constants)

    def function(x: torch.Tensor, residual: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x + bias) + residual

    modules = {"gelu": function_module(function, *constants.values())}
    return Problem(model, inputs, modules, flops=6 * rows * columns)
