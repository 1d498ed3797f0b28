"""Convolutions of batch 1, f32, constant weights, no bias: the fifteen of YOLO-v1, and dilated ones of DeepLabV3.

YOLO-v1 as in spec 2, table 4.3. DeepLabV3 (Chen et al. 2017) samples a map of 1/16 or 1/8 of an image of 513 x 513 at
dilations of 12, 24 and 36; of an image of 224 x 224 that map has 14 x 14 places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.arrays import Array, to_torch
from bench.cases.definition import OPSET, function_module, node, normal, onnx_model
from bench.problem import BF16_TOLERANCE, F32_TOLERANCE, Case, Problem

if TYPE_CHECKING:
    import torch

F32 = np.dtype(np.float32)
BF16_CONV_OPSET = 22  # the first whose Conv takes bfloat16


class Layer(NamedTuple):
    channels: int
    filters: int
    size: int  # height and width of the input
    kernel: int
    stride: int
    dilation: int = 1

    @property
    def padding(self) -> int:
        """On all sides."""
        return self.dilation * (self.kernel - 1) // 2

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.filters, self.channels, self.kernel, self.kernel)

    @property
    def output_shape(self) -> tuple[int, ...]:
        reach = self.dilation * (self.kernel - 1)
        extent = (self.size + 2 * self.padding - reach - 1) // self.stride + 1
        return (1, self.filters, extent, extent)

    @property
    def attributes(self) -> dict[str, Any]:
        """Of an ONNX operator."""
        return {
            "strides": [self.stride] * 2,
            "dilations": [self.dilation] * 2,
            "pads": [self.padding] * 4,
            "kernel_shape": [self.kernel] * 2,
        }

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.output_shape) * math.prod(self.weight_shape[1:])


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

DILATED = {
    "14x14-by-12": Layer(960, 256, 14, 3, 1, 12),
    "33x33-by-12": Layer(960, 256, 33, 3, 1, 12),
    "33x33-by-24": Layer(960, 256, 33, 3, 1, 24),
    "65x65-by-12": Layer(256, 256, 65, 3, 1, 12),
    "65x65-by-36": Layer(256, 256, 65, 3, 1, 36),
    "16x16-by-4": Layer(512, 512, 16, 3, 1, 4),
}


def cases() -> Iterator[Case]:
    for number, layer in enumerate(YOLO, 1):
        yield Case(f"yolo-C{number}", "yolo", "f32", partial(convolution, layer))
    for name, layer in DILATED.items():
        yield Case(f"dilated-{name}", "dilated", "f32", partial(convolution, layer))


def convolution(layer: Layer, dtype: np.dtype[Any] = F32) -> Problem:
    """In f32, or in bf16 with a result of bf16. The useful work counts products with padding, as the thesis does."""
    import torch

    inputs = {"x": normal(0, 1, layer.channels, layer.size, layer.size).astype(dtype)}
    weights = normal(1, *layer.weight_shape, scale=(layer.channels * layer.kernel**2) ** -0.5).astype(dtype)
    opset = OPSET if dtype == F32 else BF16_CONV_OPSET
    conv = node("Conv", ["x", "w"], "y", **layer.attributes)
    model = onnx_model([conv], inputs, ("y", layer.output_shape, dtype), {"w": weights}, opset)

    def conv2d(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, stride=layer.stride, padding=layer.padding, dilation=layer.dilation)

    modules = {"conv2d": function_module(conv2d, weights), **_packed(layer, weights)}
    tolerance = F32_TOLERANCE if dtype == F32 else BF16_TOLERANCE
    return Problem(model, inputs, modules, layer.flops, tolerance)


def _packed(layer: Layer, weights: Array) -> dict[str, torch.nn.Module]:
    """oneDNN's convolution with weights packed once, as in frozen modules; plain conv2d packs them in each call."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return {}
    geometry = ([layer.padding] * 2, [layer.stride] * 2, [layer.dilation] * 2, 1)
    x_shape = [1, layer.channels, layer.size, layer.size]
    try:
        packed = torch.ops.mkldnn._reorder_convolution_weight(to_torch(weights), *geometry, x_shape)
    except RuntimeError:  # bf16 on a CPU without AVX-512
        return {}

    def conv2d(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(x, packed, None, *geometry, "none", [], "")
        return y

    return {"packed conv2d": function_module(conv2d)}
