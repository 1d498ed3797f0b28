"""Products of matrices, and attention. Sums of f16 and bf16 are formed in f32."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any

from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, const, select
from tilewright.expr.ops import attention as attentions
from tilewright.expr.ops import linalg as ops
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.elementwise import map_elements
from tilewright.expr.ops.reduce import reduce_max
from tilewright.frontend.torch.call import Call, Number, refuse, shape_of
from tilewright.frontend.torch.registry import aten


@aten("aten.linear.default")
def linear(call: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return ops.linear(x, weight, bias, out_dtype=call.dtype, name=call.name)


@aten("aten.mm.default", "aten.bmm.default", "aten.matmul.default", "aten.mv.default", "aten.dot.default")
def matmul(call: Call, x: Tensor, other: Tensor) -> Tensor:
    return ops.matmul(x, other, out_dtype=call.dtype, name=call.name)


@aten("aten.addmm.default")
def addmm(call: Call, x: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """``beta * x + alpha * mat1 @ mat2``; with beta 0 x is not read."""
    return ops.gemm(
        mat1, mat2, x if beta else None, alpha=float(alpha), beta=float(beta), out_dtype=call.dtype,
        name=call.name,
    )  # fmt: skip


@aten("aten.baddbmm.default")
def baddbmm(call: Call, x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    product = ops.matmul(batch1, batch2, out_dtype=_sum_type(call), name=f"{call.name}.product")
    if not beta:
        return call.pointwise([product], lambda p: p * alpha)
    return call.pointwise([x, product], lambda v, p: v * beta + p * alpha)


@aten("aten.einsum.default")
def einsum(call: Call, equation: str, tensors: Sequence[Tensor], *, path: Any = None) -> Tensor:
    operands = [call.cast(x) for x in tensors]
    return ops.einsum(equation, operands, out_dtype=call.dtype, name=call.name)


@aten("aten.bilinear.default")
def bilinear(call: Call, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``out[…,o] = sum_{i,j} x[…,i] * weight[o,i,j] * y[…,j] + bias[o]``."""
    rounds = bias is None
    product = ops.einsum(
        "...i,oij,...j->...o", [x, weight, y], out_dtype=call.dtype if rounds else _sum_type(call),
        name=call.name if rounds else f"{call.name}.product",
    )  # fmt: skip
    return product if bias is None else call.pointwise([product, bias], lambda p, v: p + v)


def _sum_type(call: Call) -> str:
    return "f32" if call.dtype in ("f16", "bf16") else call.dtype


@aten("aten.scaled_dot_product_attention.default")
def attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(query @ key^T * scale + mask) @ value``; `is_causal` keeps keys up to the query's position.

    Rows of which a mask keeps no key are 0, as torch has them.
    """
    refuse(dropout_p > 0, "random numbers (dropout)", help="module.eval()")
    refuse(not dtypes.is_float(call.dtype), f"attention of {call.dtype}")
    if not enable_gqa:  # batch dimensions broadcast; shared heads must be asked for
        batch = call.shape[:-2]
        query, key, value = (_with_batch(call, x, batch, label) for x, label in
                             ((query, "q"), (key, "k"), (value, "v")))  # fmt: skip
    width = shape_of(query)[-1]
    found = attentions.attention(
        query,
        key,
        value,
        attn_mask,
        scale=1 / sqrt(max(width, 1)) if scale is None else scale,
        causal=is_causal,
        name=call.name if attn_mask is None else f"{call.name}.rows",
    )
    if attn_mask is None:
        return found
    shown = attn_mask
    if attn_mask.dtype != "bool":
        shown = map_elements([attn_mask], lambda m: m > const(-inf, m.dtype), name=f"{call.name}.shown")
    kept = reduce_max(shown, axes=(-1,), name=f"{call.name}.kept")
    return map_elements([kept, found], lambda keeps, row: select(keeps, row, const(0, row.dtype)), name=call.name)


def _with_batch(call: Call, x: Tensor, batch: tuple[int, ...], label: str) -> Tensor:
    """`x` with the batch dimensions of the result."""
    wanted = (*batch, *shape_of(x)[-2:])
    return x if shape_of(x) == wanted else shapes.expand(x, wanted, name=f"{call.name}.{label}")
