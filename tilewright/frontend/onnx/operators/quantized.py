"""Quantisation, and products of quantised tensors."""

from __future__ import annotations

import numpy as np

from tilewright.errors import Unsupported
from tilewright.expr import dtypes
from tilewright.expr.core import Expr, Tensor, apply
from tilewright.expr.dtypes import DType
from tilewright.expr.ops import conv as convs
from tilewright.expr.ops import elementwise as ops
from tilewright.expr.ops.linalg import centred, matmul_integer
from tilewright.frontend.onnx.element_types import dtype_of
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.operators.windows import check_kernel, pads_of
from tilewright.frontend.onnx.registry import op


@op("QuantizeLinear")
def quantize(node: Node) -> Tensor:
    zero = node.optional(2)
    dtype: DType = "u8"
    if zero is not None:
        dtype = zero.dtype
    elif node.get_int("output_dtype", 0):
        dtype = dtype_of(node.get_int("output_dtype"))
    if not dtypes.is_integer(dtype):
        raise Unsupported(f"quantisation to {dtype}")
    return ops.quantize_linear(
        node.input(0),
        node.input(1),
        zero,
        axis=node.get_int("axis", 1),
        block=node.get_int("block_size", 0),
        dtype=dtype,
        name=node.name,
    )


@op("DequantizeLinear")
def dequantize(node: Node) -> Tensor:
    scale = node.input(1)
    target = dtype_of(node.get_int("output_dtype")) if node.get_int("output_dtype", 0) else scale.dtype
    return ops.dequantize_linear(
        node.input(0),
        scale,
        node.optional(2),
        axis=node.get_int("axis", 1),
        block=node.get_int("block_size", 0),
        dtype=target,
        name=node.name,
    )


@op("DynamicQuantizeLinear")
def dynamic_quantize(node: Node) -> tuple[Tensor, Tensor, Tensor]:
    return ops.dynamic_quantize_linear(node.input(), name=node.name)


@op("QLinearMatMul")
def quantized_matmul(node: Node) -> Tensor:
    a, a_scale, a_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    total = matmul_integer(a, w, a_zero, w_zero, name=f"{node.name}.sum")
    if any(scale.size != 1 for scale in (a_scale, w_scale, y_scale)):
        raise Unsupported("scales per row or column")
    return _requantized(node, total, [a_scale, w_scale], y_scale, y_zero, None)


@op("QLinearConv")
def quantized_conv(node: Node) -> Tensor:
    total = _integer_conv(node, node.input(0), node.input(3), node.input(2), node.input(5), node.optional(8), "sum")
    return _requantized(node, total, [node.input(1), node.input(4)], node.input(6), node.input(7), 1)


@op("ConvInteger")
def conv_integer(node: Node) -> Tensor:
    return _integer_conv(node, node.input(0), node.input(1), node.optional(2), node.optional(3), None, "")


def _integer_conv(
    node: Node, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, bias: Tensor | None, suffix: str
) -> Tensor:
    """Convolution of ``x - x_zero`` with ``w - w_zero`` in i32."""
    check_kernel(node, w)
    rank = x.rank - 2
    return convs.conv(
        centred(x, x_zero, 0, source=node.name, name=f"{node.name}.x"),
        centred(w, w_zero, 0, source=node.name, name=f"{node.name}.w"),
        bias,
        strides=node.get_ints("strides", [1] * rank),
        dilations=node.get_ints("dilations", [1] * rank),
        pads=pads_of(node, rank),
        groups=node.get_int("group", 1),
        accumulate="i32",
        out_dtype="i32",
        name=f"{node.name}.{suffix}" if suffix else node.name,
    )


def _requantized(
    node: Node, total: Tensor, scales: list[Tensor], y_scale: Tensor, y_zero: Tensor, channel: int | None
) -> Tensor:
    """``saturate(round(total * scales / y_scale) + y_zero)``; a scale may have one value per slice of `channel`."""
    axes = ops.axes_of(total.shape)

    def parameter(p: Tensor) -> Expr:
        if p.size == 1 or channel is None:
            return ops.only(p).cast("f32")
        return p[axes[channel]].cast("f32")

    factor = parameter(scales[0]) * parameter(scales[1]) / parameter(y_scale)
    shifted = apply("round", total[axes].cast("f32") * factor) + parameter(y_zero)
    limits = np.iinfo(dtypes.numpy_dtype(y_zero.dtype))
    body = ops.clamp(shifted, float(limits.min), float(limits.max)).cast(y_zero.dtype)
    return ops.emit(node.b, axes, body, name=node.name)
