"""The convolutions of ResNet-18 at batch 1, constant weights, no bias, in f32, bf16 and u8·s8 (spec 3, table 5.4).

An integer layer is exact: sums of u8·s8 products in s32. Not every library has such a convolution, or a fast one, so
the same sums also come in the forms in which quantised networks hand them on: as f32, and requantised to u8 (rounded
to a scale and offset by a zero point). Which form a peer computes is part of its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.arrays import BF16, Array, to_torch
from bench.cases.convolutions import Layer, convolution
from bench.cases.definition import function_module, node, onnx_model
from bench.problem import Case, Problem
from tilewright.machine import host

if TYPE_CHECKING:
    import onnx
    import torch

    Exact = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LAYERS = (
    Layer(3, 64, 224, 7, 2),
    Layer(64, 64, 56, 3, 1),
    Layer(64, 64, 56, 1, 1),
    Layer(64, 128, 56, 3, 2),
    Layer(64, 128, 56, 1, 2),
    Layer(128, 128, 28, 3, 1),
    Layer(128, 256, 28, 3, 2),
    Layer(128, 256, 28, 1, 2),
    Layer(256, 256, 14, 3, 1),
    Layer(256, 512, 14, 3, 2),
    Layer(256, 512, 14, 1, 2),
    Layer(512, 512, 7, 3, 1),
)

F32_SUMS = "sums as f32"
REQUANTISED = "requantised to u8"
ZERO_POINT = 128  # of requantised results
DEVIATIONS = 3.0  # standard deviations of the sums to either side of it


def cases() -> Iterator[Case]:
    for number, layer in enumerate(LAYERS):
        yield Case(f"resnet18-C{number}-f32", "resnet18-f32", "f32", partial(convolution, layer))
    for number, layer in enumerate(LAYERS):
        yield Case(f"resnet18-C{number}-bf16", "resnet18-bf16", "bf16", partial(convolution, layer, BF16))
    for number, layer in enumerate(LAYERS):
        yield Case(f"resnet18-C{number}-u8s8", "resnet18-u8s8", "int8", partial(integer_convolution, layer))


def integer_convolution(layer: Layer) -> Problem:
    """``ConvInteger``: all values of both types but -128; padding is zero, as are the zero points of both operands."""
    import torch

    random = np.random.default_rng(0)
    inputs = {"x": random.integers(0, 256, (1, layer.channels, layer.size, layer.size), np.uint8)}
    weights = random.integers(-127, 128, layer.weight_shape, np.int8)
    conv = node("ConvInteger", ["x", "w"], "y", **layer.attributes)
    model = onnx_model([conv], inputs, ("y", layer.output_shape, np.int32), {"w": weights})

    def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x.double(), w.double(), stride=layer.stride, padding=layer.padding)

    variants = {
        F32_SUMS: _f32_sums(layer, inputs, weights, exact),
        REQUANTISED: _requantised(layer, inputs, weights, exact),
    }
    reference = function_module(exact, weights)
    return Problem(model, inputs, {}, layer.flops, tolerance=0.0, reference=reference, variants=variants)


def _f32_sums(layer: Layer, inputs: Mapping[str, Array], weights: Array, exact: Exact) -> Problem:
    """Dequantised operands with scales of 1: libraries multiply the integers. A sum rounds to the nearest f32."""
    conv = node("Conv", ["xf", "wf"], "y", **layer.attributes)
    output = ("y", layer.output_shape, np.float32)
    model = onnx_model([*_dequantised(), conv], inputs, output, {"w": weights, **_scales()})
    modules = _torch_modules(layer, weights, 1.0, 0, "float32")
    return Problem(model, inputs, modules, layer.flops, 2.0**-23, reference=function_module(exact, weights))


def _requantised(layer: Layer, inputs: Mapping[str, Array], weights: Array, exact: Exact) -> Problem:
    """As a quantised network between its layers: dequantised operands, convolution, quantised result.

    Results may be off by one, where a sum lies half way between two: the order of rounding and scaling is open.
    """
    mean_square = np.square(weights, dtype=np.float64).mean() * np.square(inputs["x"], dtype=np.float64).mean()
    deviation = math.sqrt(layer.channels * layer.kernel**2 * mean_square)
    scale = np.float32(2 * DEVIATIONS * deviation / 255)
    nodes = [
        *_dequantised(),
        node("Conv", ["xf", "wf"], "yf", **layer.attributes),
        node("QuantizeLinear", ["yf", "y_scale", "y_zero"], "y"),
    ]
    constants = {"w": weights, **_scales(), "y_scale": np.array(scale), "y_zero": np.array(ZERO_POINT, np.uint8)}
    model = onnx_model(nodes, inputs, ("y", layer.output_shape, np.uint8), constants)

    def rounded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (exact(x, w) / float(scale)).round().add(ZERO_POINT).clamp(0, 255)

    modules = _torch_modules(layer, weights, float(scale), ZERO_POINT, "uint8")
    one_unit = 2.0**-7  # of results up to 255; two would exceed it
    return Problem(model, inputs, modules, layer.flops, one_unit, reference=function_module(rounded, weights))


def _dequantised() -> list[onnx.NodeProto]:
    return [node("DequantizeLinear", [name, "scale", f"{name}_zero"], f"{name}f") for name in ("x", "w")]


def _scales() -> dict[str, Array]:
    return {"scale": np.array(1, np.float32), "x_zero": np.array(0, np.uint8), "w_zero": np.array(0, np.int8)}


def _torch_modules(
    layer: Layer, weights: Array, scale: float, zero_point: int, dtype: str
) -> dict[str, torch.nn.Module]:
    """oneDNN's quantised convolution, which PyTorch's own quantisation ends in, with weights packed once.

    Not on x86 without VNNI: oneDNN adds pairs of products as i16 there, which saturates for weights of more than 7 bits
    ("Nuances of int8 Computations" in its documentation), so that its sums are wrong.
    """
    import torch

    if not hasattr(torch.ops.onednn, "qconv2d_pointwise"):
        return {}
    machine = host()
    if machine.architecture == "x86_64" and not {"avx512vnni", "avxvnni"} & machine.features:
        return {}
    geometry = ([layer.stride] * 2, [layer.padding] * 2, [1, 1], 1)
    scales, zeros = torch.ones(layer.filters), torch.zeros(layer.filters, dtype=torch.int32)
    x_shape = [1, layer.channels, layer.size, layer.size]
    packed = torch.ops.onednn.qconv_prepack(to_torch(weights), scales, 1.0, 0, *geometry, x_shape)
    result: tuple[Any, ...] = (scale, zero_point, getattr(torch, dtype), "none", [], "")

    def qconv2d(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.onednn.qconv2d_pointwise(x, 1.0, 0, packed, scales, zeros, None, *geometry, *result)
        return y

    return {f"onednn.qconv2d to {dtype}": function_module(qconv2d)}
