"""Chains of two products: the batch GEMM chains G1-G12, plain and around a softmax, and the convolution chains C1-C8.

Sizes are those of `graph.chain.workloads`. All operands of a GEMM chain are variable. A convolution chain has constant
weights, and nothing or a ReLU between its convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.arrays import BF16
from bench.cases.definition import function_module, node, normal, onnx_model
from bench.problem import BF16_TOLERANCE, F32_TOLERANCE, Case, Problem
from tilewright.graph.chain.workloads import CONV_CHAINS, GEMM_CHAINS, ConvChain, GemmChain

if TYPE_CHECKING:
    import onnx


F32 = np.dtype(np.float32)
TOLERANCES = {F32: F32_TOLERANCE, BF16: BF16_TOLERANCE}
SCORES_BF16_TOLERANCE = 2.0**-6  # scores between 4 and 8 are rounded by up to 2**-6, and with them their exponentials


def cases() -> Iterator[Case]:
    for number, chain in enumerate(GEMM_CHAINS, 1):
        yield Case(f"gemm-chain-G{number}", "gemm-chain", "f32", partial(gemm_chain, chain, softmax=False))
    for number, chain in enumerate(GEMM_CHAINS, 1):
        build = partial(gemm_chain, chain, softmax=True)
        yield Case(f"gemm-chain-G{number}-softmax", "gemm-chain-softmax", "f32", build)
    for number, chain in enumerate(GEMM_CHAINS, 1):
        build = partial(gemm_chain, chain, softmax=True, dtype=BF16)
        yield Case(f"gemm-chain-G{number}-softmax-bf16", "gemm-chain-softmax-bf16", "bf16", build)
    for number, convs in enumerate(CONV_CHAINS, 1):
        yield Case(f"conv-chain-C{number}", "conv-chain", "f32", partial(conv_chain, convs))
    for number, convs in enumerate(CONV_CHAINS, 1):
        yield Case(f"conv-chain-C{number}-relu", "conv-chain-relu", "f32", partial(conv_chain, convs, relu=True))


def gemm_chain(chain: GemmChain, softmax: bool, dtype: np.dtype[Any] = F32) -> Problem:
    """Values are scaled such that the intermediate has variance 1; of a softmax its exponentials are counted."""
    import torch

    batch, m, n, k, l = chain
    values = {
        "a": normal(0, batch, m, k),
        "b": normal(1, batch, k, l, scale=k**-0.5),
        "d": normal(2, batch, l, n, scale=l**-0.5),
    }
    inputs = {name: array.astype(dtype) for name, array in values.items()}
    middle = [node("Softmax", ["c"], "p", axis=-1)] if softmax else []
    last = node("MatMul", ["p" if softmax else "c", "d"], "e")
    nodes = [node("MatMul", ["a", "b"], "c"), *middle, last]
    model = onnx_model(nodes, inputs, ("e", (batch, m, n), dtype))

    def products(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        c = torch.bmm(a, b)
        return torch.bmm(c.softmax(-1) if softmax else c, d)

    def attention(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        query, key, value = a[None], b.transpose(1, 2)[None], d[None]
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=1.0)[0]

    modules = {"bmm": function_module(products)}
    if softmax:
        modules["scaled_dot_product_attention"] = function_module(attention)
    tolerance = SCORES_BF16_TOLERANCE if softmax and dtype == BF16 else TOLERANCES[dtype]
    scores = batch * m * l
    return Problem(model, inputs, modules, 2 * scores * (k + n), tolerance, exponentials=scores if softmax else 0)


def conv_chain(chain: ConvChain, relu: bool = False) -> Problem:
    """Both convolutions are padded by (kernel - 1) / 2; a result is cropped to ⌊extent / stride⌋ at its end.

    The model of C2 crops by padding less at the end, that of C5, where no padding is left, by a Slice.
    """
    import torch

    c = chain
    inputs = {"x": normal(0, 1, c.channels, c.height, c.width)}
    weights = {
        "w1": normal(1, c.middle, c.channels, c.kernel1, c.kernel1, scale=(c.channels * c.kernel1**2) ** -0.5),
        "w2": normal(2, c.filters, c.middle, c.kernel2, c.kernel2, scale=(c.middle * c.kernel2**2) ** -0.5),
    }
    assert c.height == c.width, "the chains of the table are square"
    size1 = c.height // c.stride1
    size2 = size1 // c.stride2
    constants = dict(weights)
    nodes = [_conv("x", "w1", "t", c.kernel1, c.stride1, c.height)]
    if _padded_extent(c.kernel1, c.stride1, c.height) > size1:
        constants |= {"starts": np.array([0, 0]), "ends": np.array([size1, size1]), "axes": np.array([2, 3])}
        nodes.append(node("Slice", ["t", "starts", "ends", "axes"], "h"))
    if relu:
        nodes.append(node("Relu", [nodes[-1].output[0]], "r"))
    nodes.append(_conv(nodes[-1].output[0], "w2", "y", c.kernel2, c.stride2, size1))
    model = onnx_model(nodes, inputs, ("y", (1, c.filters, size2, size2), np.float32), constants)

    def chained(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.conv2d(x, w1, stride=c.stride1, padding=(c.kernel1 - 1) // 2)
        h = h[:, :, :size1, :size1]
        if relu:
            h = torch.nn.functional.relu(h)
        return torch.nn.functional.conv2d(h, w2, stride=c.stride2, padding=(c.kernel2 - 1) // 2)

    first = c.middle * size1**2 * c.channels * c.kernel1**2
    second = c.filters * size2**2 * c.middle * c.kernel2**2
    return Problem(model, inputs, {"conv2d": function_module(chained, *weights.values())}, flops=2 * (first + second))


def _conv(x: str, weights: str, output: str, kernel: int, stride: int, extent: int) -> onnx.NodeProto:
    pads = [(kernel - 1) // 2] * 2 + [_end_padding(kernel, stride, extent)] * 2
    attributes = {"strides": [stride] * 2, "pads": pads, "kernel_shape": [kernel] * 2}
    return node("Conv", [x, weights], output, **attributes)


def _end_padding(kernel: int, stride: int, extent: int) -> int:
    """(kernel - 1) / 2, or less where that crops the result to ⌊extent / stride⌋."""
    begin = (kernel - 1) // 2
    last = (extent // stride - 1) * stride + kernel - begin  # one past what the last wanted result reads
    return begin if (extent + 2 * begin - kernel) // stride + 1 == extent // stride else max(0, last - extent)


def _padded_extent(kernel: int, stride: int, extent: int) -> int:
    return (extent + (kernel - 1) // 2 + _end_padding(kernel, stride, extent) - kernel) // stride + 1
