"""torch's fused layers of transformers: attention with its projections, and whole encoder layers."""

from __future__ import annotations

from math import sqrt

from tilewright.expr.core import Tensor, apply
from tilewright.expr.ops import attention as attentions
from tilewright.expr.ops import elementwise, linalg, norm
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.elementwise import map_elements
from tilewright.frontend.torch.call import Call, refuse, shape_of
from tilewright.frontend.torch.registry import aten

Weights = tuple[Tensor, Tensor]


@aten("aten._transformer_encoder_layer_fwd.default")
def encoder_layer(
    call: Call, src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor,
    norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor,
    ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Attention and a network of two layers, each with an addition around it and a norm in front or behind."""
    activation = elementwise.gelu if use_gelu else elementwise.relu

    def normed(x: Tensor, weights: Weights, name: str) -> Tensor:
        return norm.layer_norm(x, *weights, axis=-1, epsilon=eps, name=name)

    def attended(x: Tensor) -> Tensor:
        inputs = (x, x, x)
        return _attended(call, inputs, num_heads, (qkv_weight, qkv_bias), (proj_weight, proj_bias), mask, mask_type,
                         f"{call.name}.attention")  # fmt: skip

    def network(x: Tensor) -> Tensor:
        hidden = linalg.linear(x, ffn_weight_1, ffn_bias_1, name=f"{call.name}.hidden")
        active = activation(hidden, name=f"{call.name}.active")
        return linalg.linear(active, ffn_weight_2, ffn_bias_2, name=f"{call.name}.network")

    def added(x: Tensor, y: Tensor, name: str) -> Tensor:
        return map_elements([x, y], lambda v, w: v + w, name=name)

    first, second = (norm_weight_1, norm_bias_1), (norm_weight_2, norm_bias_2)
    if norm_first:
        middle = added(src, attended(normed(src, first, f"{call.name}.norm1")), f"{call.name}.middle")
        return added(middle, network(normed(middle, second, f"{call.name}.norm2")), call.name)
    middle = normed(added(src, attended(src), f"{call.name}.added"), first, f"{call.name}.norm1")
    return normed(added(middle, network(middle), f"{call.name}.sum"), second, call.name)


@aten("aten._native_multi_head_attention.default")
def multi_head_attention(
    call: Call, query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    refuse(call.wants(1), "the weights of attention", help="need_weights=False")
    inputs = (query, key, value)
    return (
        _attended(call, inputs, num_head, (qkv_weight, qkv_bias), (proj_weight, proj_bias), mask, mask_type, call.name),
        None,
    )


def _attended(
    call: Call, inputs: tuple[Tensor, Tensor, Tensor], heads: int, qkv: Weights, output: Weights, mask: Tensor | None,
    mask_type: int | None, name: str,
) -> Tensor:  # fmt: skip
    """Attention of query, key and value [batch, length, width], each projected by a third of the rows of `qkv`."""
    refuse(inputs[0].rank != 3, f"an input of rank {inputs[0].rank}", help="[batch, length, width]")
    width = shape_of(inputs[0])[-1]
    projected = [
        _heads(call, _projected(call, x, qkv, width, third, f"{name}.{label}"), heads, f"{name}.{label}.heads")
        for third, (x, label) in enumerate(zip(inputs, "qkv", strict=True))
    ]
    q, k, v = projected
    kept = None if mask is None else _kept(call, mask, mask_type, f"{name}.kept")
    found = attentions.attention(q, k, v, kept, scale=1 / sqrt(width // heads), name=f"{name}.heads")
    joined = shapes.transpose(found, [0, 2, 1, 3], name=f"{name}.rows")
    joined = shapes.reshape(joined, shape_of(inputs[0]), name=f"{name}.joined")
    return linalg.linear(joined, *output, name=name)


def _projected(call: Call, x: Tensor, qkv: Weights, width: int, third: int, name: str) -> Tensor:
    weight, bias = (shapes.narrow(each, 0, third * width, width, name=f"{name}.part") for each in qkv)
    return linalg.linear(x, weight, bias, name=name)


def _heads(call: Call, x: Tensor, heads: int, name: str) -> Tensor:
    """[batch, length, width] as [batch, heads, length, width of a head]."""
    batch, length, width = shape_of(x)
    split = shapes.reshape(x, (batch, length, heads, width // heads), name=f"{name}.split")
    return shapes.transpose(split, [0, 2, 1, 3], name=name)


def _kept(call: Call, mask: Tensor, mask_type: int | None, name: str) -> Tensor:
    """What a mask keeps, in a shape that broadcasts to the scores. True, or a number that is not 0, leaves out.

    A mask of type 0 is [query, key], of type 1 [batch, key]; of type 2 it has all dimensions of the scores.
    """
    kept = map_elements([mask], lambda v: apply("not", v.cast("bool")), name=name)
    if mask_type == 1:
        batch, keys = shape_of(mask)
        return shapes.reshape(kept, (batch, 1, 1, keys), name=f"{name}.all")
    refuse(mask_type not in (0, 2), f"a mask of type {mask_type}", help="0 ([query, key]), 1 ([batch, key]) or 2")
    return kept
