"""Matrix products."""

from __future__ import annotations

from tilewright.expr.core import Tensor
from tilewright.expr.ops import linalg as ops
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


@op("MatMul")
def matmul(node: Node) -> Tensor:
    a, w = node.input(0), node.input(1)
    return ops.matmul(a, w, out_dtype=a.dtype, name=node.name)


@op("Gemm")
def gemm(node: Node) -> Tensor:
    a = node.input(0)
    return ops.gemm(
        a,
        node.input(1),
        node.optional(2),
        alpha=node.get_float("alpha", 1.0),
        beta=node.get_float("beta", 1.0),
        transpose_a=bool(node.get_int("transA", 0)),
        transpose_b=bool(node.get_int("transB", 0)),
        out_dtype=a.dtype,
        name=node.name,
    )


@op("Einsum")
def einsum(node: Node) -> Tensor:
    operands = node.tensors()
    return ops.einsum(node.get_string("equation"), operands, out_dtype=operands[0].dtype, name=node.name)


@op("MatMulInteger")
def matmul_integer(node: Node) -> Tensor:
    return ops.matmul_integer(node.input(0), node.input(1), node.optional(2), node.optional(3), name=node.name)
