"""Attention in its plain forms; the others are imported through their ONNX definition."""

from __future__ import annotations

from math import sqrt

from tilewright.errors import InvalidModel
from tilewright.expr.core import Tensor
from tilewright.expr.ops import attention as ops
from tilewright.expr.ops.shape import concat
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import DEFINITION, Result, op

_ATTRIBUTES = {
    "is_causal",
    "kv_num_heads",
    "q_num_heads",
    "qk_matmul_output_mode",
    "scale",
    "softcap",
    "softmax_precision",
}


@op("Attention")
def attention(node: Node) -> Result:
    """Q [b, h, i, d] or [b, i, h*d], and so on; a cache of keys and values goes before those given.

    Masks that can hide all keys of a row, or are shorter than the keys, are left to the definition.
    """
    if set(node.attributes) - _ATTRIBUTES:
        return DEFINITION
    q, k, v = (_heads(node, position, role) for position, role in enumerate("qkv"))
    past = node.optional(4), node.optional(5)
    offset = 0
    if past[0] is not None and past[1] is not None:
        offset = int(str(past[0].shape[2]))
        k = concat([past[0], k], axis=2, name=node.hint(1))
        v = concat([past[1], v], axis=2, name=node.hint(2))
    mask = node.optional(3)
    double = node.get_int("softmax_precision", 1) == 11 and q.dtype != "f64"
    if (
        node.has(6)
        or node.wants(3)
        or double
        or (mask is not None and (mask.dtype == "bool" or mask.shape[-1] != k.shape[2]))
    ):
        return DEFINITION
    scale = node.get_float("scale") if "scale" in node.attributes else 1 / sqrt(max(int(str(q.shape[-1])), 1))
    merged = node.input().rank == 3
    y = ops.attention(
        q,
        k,
        v,
        mask,
        scale=scale,
        causal=bool(node.get_int("is_causal", 0)),
        causal_offset=offset,
        softcap=node.get_float("softcap", 0.0),
        name=f"{node.name}.heads" if merged else node.name,
    )
    if merged:
        y = ops.merge_heads(y, name=node.name)
    return y, k, v


def _heads(node: Node, position: int, role: str) -> Tensor:
    """Query, key or value as [b, heads, tokens, width]."""
    x = node.input(position)
    if x.rank == 4:
        return x
    if x.rank != 3:
        raise InvalidModel(f"{x} has rank {x.rank}", help="rank 3 or 4")
    heads = node.get_int("q_num_heads" if role == "q" else "kv_num_heads")
    return ops.split_heads(x, heads, name=f"{node.name}.{role}")
