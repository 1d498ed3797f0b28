"""Attention, and the layers around it that torch runs as one operator in evaluation mode."""

from __future__ import annotations

from math import sqrt

from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.expr.ops import attention as attentions
from tilewright.expr.ops import elementwise, linalg, norm
from tilewright.expr.ops import shape as shapes
from tilewright.frontend.torch.call import Call, refuse, shape_of
from tilewright.frontend.torch.registry import aten

#: What a mask of the fused layers is for: scores of all heads (query x key), or keys (batch x key).
_SCORES, _KEYS = 0, 1


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
    """``softmax(query @ key^T * scale + mask) @ value``; `is_causal` keeps keys up to the query's position."""
    refuse(dropout_p > 0, "random numbers (dropout)", help="module.eval()")
    refuse(not dtypes.is_float(call.dtype), f"attention of {call.dtype}")
    if not enable_gqa:  # batch dimensions broadcast; shared heads must be asked for
        batch = call.shape[:-2]
        query, key, value = (_with_batch(call, x, batch, label) for x, label in
                             ((query, "q"), (key, "k"), (value, "v")))  # fmt: skip
    width = shape_of(query)[-1]
    return attentions.attention(
        call.b,
        query,
        key,
        value,
        attn_mask,
        scale=1 / sqrt(max(width, 1)) if scale is None else scale,
        causal=is_causal,
        name=call.name,
    )


def _with_batch(call: Call, x: Tensor, batch: tuple[int, ...], label: str) -> Tensor:
    """`x` with the batch dimensions of the result."""
    wanted = (*batch, *shape_of(x)[-2:])
    return x if shape_of(x) == wanted else shapes.expand(call.b, x, wanted, name=f"{call.name}.{label}")


@aten("aten._native_multi_head_attention.default")
def multi_head_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, ...]:
    """Attention of heads over batch x position x width, between two linear maps; left out where a mask is not 0."""
    refuse(call.wants(1), "weights of a fused attention", help="need_weights=False")
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    kept = None if mask is None else _kept(call, mask, mask_type)
    return (_projected(call, (query, key, value), num_head, projections, kept, call.name),)


@aten("aten._transformer_encoder_layer_fwd.default")
def transformer_encoder_layer(
    call: Call,
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """``x += attention(x); x += feed_forward(x)``, with a norm before each of both, or after each sum."""
    b = call.b
    kept = None if mask is None else _kept(call, mask, mask_type)

    def normed(x: Tensor, weight: Tensor, bias: Tensor, label: str) -> Tensor:
        return norm.layer_norm(b, x, weight, bias, axis=2, epsilon=eps, name=f"{call.name}.{label}")

    def attended(x: Tensor) -> Tensor:
        projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _projected(call, (x, x, x), num_heads, projections, kept, f"{call.name}.attention")

    def fed_forward(x: Tensor) -> Tensor:
        hidden = linalg.linear(b, x, ffn_weight_1, ffn_bias_1, name=f"{call.name}.hidden")
        active = elementwise.gelu(b, hidden) if use_gelu else elementwise.relu(b, hidden)
        return linalg.linear(b, active, ffn_weight_2, ffn_bias_2, name=f"{call.name}.output")

    first, second = (norm_weight_1, norm_bias_1, "norm1"), (norm_weight_2, norm_bias_2, "norm2")
    if norm_first:
        x = elementwise.binary(b, src, attended(normed(src, *first)), "add", name=f"{call.name}.sum")
        return elementwise.binary(b, x, fed_forward(normed(x, *second)), "add", name=call.name)
    x = normed(elementwise.binary(b, src, attended(src), "add", name=f"{call.name}.sum1"), *first)
    return normed(elementwise.binary(b, x, fed_forward(x), "add", name=f"{call.name}.sum2"), *second)


def _projected(
    call: Call,
    inputs: tuple[Tensor, Tensor, Tensor],
    heads: int,
    projections: tuple[Tensor, Tensor, Tensor, Tensor],
    kept: Tensor | None,
    name: str,
) -> Tensor:
    """Linear maps of query, key and value (each batch x position x width), attention of heads, another linear map.

    `projections` are the weight of all three maps (3 * width x width) with its bias, and the last weight and bias.
    """
    weight, bias, last_weight, last_bias = projections
    batch, length, width = shape_of(inputs[0])
    weights = shapes.split(call.b, weight, [width] * 3, name=f"{name}.weight")
    biases = shapes.split(call.b, bias, [width] * 3, name=f"{name}.bias")
    mapped = [linalg.linear(call.b, *each, name=f"{name}.in") for each in zip(inputs, weights, biases, strict=True)]
    q, k, v = (_heads(call, x, heads, f"{name}.in") for x in mapped)
    mixed = attentions.attention(call.b, q, k, v, kept, scale=1 / sqrt(width // heads), name=f"{name}.heads")
    rows = shapes.transpose(call.b, mixed, [0, 2, 1, 3], name=f"{name}.rows")
    rows = shapes.reshape(call.b, rows, (batch, length, width), name=f"{name}.rows")
    return linalg.linear(call.b, rows, last_weight, last_bias, name=name)


def _heads(call: Call, x: Tensor, heads: int, name: str) -> Tensor:
    """batch x position x width to batch x head x position x width of a head."""
    batch, length, width = shape_of(x)
    parts = shapes.reshape(call.b, x, (batch, length, heads, width // heads), name=name)
    return shapes.transpose(call.b, parts, [0, 2, 1, 3], name=name)


def _kept(call: Call, mask: Tensor, mask_type: int | None) -> Tensor:
    """Where scores of batch x head x query x key are kept."""
    axes = {_SCORES: [0, 1], _KEYS: [1, 2]}.get(-1 if mask_type is None else mask_type)
    placed = mask if axes is None else shapes.unsqueeze(call.b, mask, axes, name=f"{call.name}.mask")
    left_out = elementwise.cast(call.b, placed, "bool", name=f"{call.name}.mask")
    return elementwise.unary(call.b, left_out, "not", name=f"{call.name}.kept")
