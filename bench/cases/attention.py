"""Attention of 12 heads of width 64, as in BERT-base, over sequences of several lengths, of all keys or causal, in f32.

The model is the operator `Attention` of ONNX. A variant writes it as products around a softmax, for libraries that are
faster so. Useful work is that of all scores, or of those that a causal mask leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bench.arrays import Array
from bench.cases.definition import function_module, node, normal, onnx_model
from bench.problem import Case, Problem

if TYPE_CHECKING:
    import onnx
    import torch

HEADS, WIDTH = 12, 64
LENGTHS = (128, 256, 512, 1000, 1024, 2048, 4096)
OPSET = 23  # the first with Attention
PRODUCTS = "products around a softmax"


def cases() -> Iterator[Case]:
    for causal in (False, True):
        for length in LENGTHS:
            build = partial(attention, HEADS, length, WIDTH, causal)
            yield Case(f"attention-{length}{'-causal' if causal else ''}", "attention", "f32", build)


def attention(heads: int, length: int, width: int, causal: bool) -> Problem:
    """As many queries as keys; scores are scaled by 1/√width."""
    import torch

    inputs = {name: normal(seed, 1, heads, length, width) for seed, name in enumerate("qkv")}

    def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    scores = heads * (length * (length + 1) // 2 if causal else length**2)
    problem = partial(
        Problem,
        inputs=inputs,
        modules={"scaled_dot_product_attention": function_module(scaled)},
        flops=4 * scores * width,
        exponentials=scores,
    )
    return problem(_one_operator(inputs, causal), variants={PRODUCTS: problem(_products(inputs, causal))})


def _one_operator(inputs: dict[str, Array], causal: bool) -> onnx.ModelProto:
    nodes = [node("Attention", list(inputs), "y", is_causal=int(causal))]
    return onnx_model(nodes, inputs, ("y", inputs["q"].shape, np.float32), opset=OPSET)


def _products(inputs: dict[str, Array], causal: bool) -> onnx.ModelProto:
    *_, length, width = inputs["q"].shape
    constants = {"scale": np.array(width**-0.5, np.float32)}
    nodes = [
        node("Transpose", ["k"], "columns", perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "columns"], "products"),
        node("Mul", ["products", "scale"], "scores"),
    ]
    if causal:
        constants["mask"] = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        nodes.append(node("Add", ["scores", "mask"], "masked"))
    nodes.append(node("Softmax", [nodes[-1].output[0]], "weights", axis=-1))
    nodes.append(node("MatMul", ["weights", "v"], "y"))
    return onnx_model(nodes, inputs, ("y", inputs["q"].shape, np.float32), constants)
