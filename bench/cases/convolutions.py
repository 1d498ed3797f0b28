"""The fifteen convolutions of YOLO-v1, batch 1, f32, constant weights, no bias (spec 2, table 4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from bench.cases.definition import function_module, node, normal, onnx_model
from bench.problem import Case, Problem


class Layer(NamedTuple):
    channels: int
    filters: int
    size: int  # height and width of the input
    kernel: int
    stride: int


YOLO = (
    Layer(3, 64, 448, 7, 2),
    Layer(64, 192, 112, 3, 1),
    Layer(192, 128, 56, 1, 1),
    Layer(128, 256, 56, 3, 1),
    Layer(256, 256, 56, 1, 1),
    Layer(256, 512, 56, 3, 1),
    Layer(512, 256, 28, 1, 1),
    Layer(256, 512, 28, 3, 1),
    Layer(512, 512, 28, 1, 1),
    Layer(512, 1024, 28, 3, 1),
    Layer(1024, 512, 14, 1, 1),
    Layer(512, 1024, 14, 3, 1),
    Layer(1024, 1024, 14, 3, 1),
    Layer(1024, 1024, 14, 3, 2),
    Layer(1024, 1024, 7, 3, 1),
)


def cases() -> Iterator[Case]:
    for number, layer in enumerate(YOLO, 1):
        yield Case(f"yolo-C{number}", "yolo", "f32", partial(convolution, layer))


def convolution(layer: Layer) -> Problem:
    """Padding (kernel - 1) / 2 on all sides. The useful work counts products with padding, as the thesis does."""
    import torch

    channels, filters, size, kernel, stride = layer
    padding = (kernel - 1) // 2
    inputs = {"x": normal(0, 1, channels, size, size)}
    weights = normal(1, filters, channels, kernel, kernel, scale=(channels * kernel**2) ** -0.5)
    extent = (size + 2 * padding - kernel) // stride + 1
    attributes = {"strides": [stride] * 2, "pads": [padding] * 4, "kernel_shape": [kernel] * 2}
    output = ("y", (1, filters, extent, extent), np.float32)
    model = onnx_model([node("Conv", ["x", "w"], "y", **attributes)], inputs, output, {"w": weights})

    def conv2d(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, stride=stride, padding=padding)

    flops = 2 * filters * extent**2 * channels * kernel**2
    return Problem(model, inputs, {"conv2d": function_module(conv2d, weights)}, flops)
