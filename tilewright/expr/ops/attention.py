"""Scaled dot-product attention: two batched products with a softmax between them (spec 1, section 1.5).

Scores and softmax of f16 and bf16 are in f32; the weights round to the type of the values, whose product sums in f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tilewright.errors import ExtentMismatch
from tilewright.expr.core import Axis, Expr, Extent, Tensor, apply, const, select, static_shape
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import element, emit
from tilewright.expr.ops.linalg import check_broadcasts_to
from tilewright.expr.ops.nodes import accumulator, contract, require_equal, require_float, require_rank
from tilewright.expr.ops.norm import softmax

#: Whether a key or value is a row of its matrix (the usual form) or a column (the form of spec 1).
Storage = Literal["rows", "columns"]


@operator
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
    causal_offset: int = 0,
    softcap: float = 0.0,
    simplified_softmax: bool = False,
    keys: Storage = "rows",
    values: Storage = "rows",
    name: str = "attention",
) -> Tensor:
    """``softmax(scale * Q K^T, masked) V``: q […,i,d], k […,l,d] (or […,d,l]), v […,l,j] (or […,j,l]) to […,i,j].

    Without scale, mask, cap and causality it is 7 nodes: scores, max, sub, exp, sum, div, output; otherwise one node
    more changes the scores. `mask` broadcasts to the scores: bool keeps where true, numbers are added. `causal` keeps
    ``l <= i + causal_offset``; `softcap` c replaces a score s by ``c * tanh(s/c)`` before masks. A row without any key
    kept is NaN. Fewer heads (third dimension from the end) of k and v than of q are shared by equal numbers of its
    heads in turn. `simplified_softmax` leaves out max and sub.
    """
    b = q.builder
    for operand in (q, k, v):
        require_float(operand, where=name)
        require_rank(operand, q.rank, "q, k and v of one rank", where=name)
    require_rank(q, (2, 99), "[…, i, d]", where=name)
    key, d_key = (-2, -1) if keys == "rows" else (-1, -2)
    value, wide_value = (-2, -1) if values == "rows" else (-1, -2)
    require_equal(
        q.shape[-1], k.shape[d_key], f"{q} has heads of {q.shape[-1]}, {k} of {k.shape[d_key]}", where=name,
        help="make them equal",
    )  # fmt: skip
    require_equal(
        k.shape[key], v.shape[value], f"{k} has {k.shape[key]} keys, {v} {v.shape[value]} values", where=name,
        help="make them equal",
    )  # fmt: skip
    names = [f"b{position}" for position in range(q.rank - 3)] + ["h"] * (q.rank > 2)
    batch = tuple(Axis(label, extent) for label, extent in zip(names, q.shape[:-2], strict=True))
    i, l = Axis("i", q.shape[-2]), Axis("l", k.shape[key])
    d, j = Axis("k", q.shape[-1]), Axis("j", v.shape[wide_value])
    key_place = (*_shared(batch, k, where=name), *((l, d) if keys == "rows" else (d, l)))
    value_place = (*_shared(batch, v, where=name), *((l, j) if values == "rows" else (j, l)))
    scores = contract(
        b, (*batch, i, l), [q[(*batch, i, d)], k[key_place]], [d], accumulate=None,
        out_dtype=accumulator(q.dtype, k.dtype), name=f"{name}.scores",
    )  # fmt: skip
    if scale != 1 or softcap or mask is not None or causal:
        axes = (*batch, i, l)
        body = _changed(scores[axes], axes, mask, scale, causal_offset if causal else None, softcap, where=name)
        scores = emit(b, axes, body, name=f"{name}.masked", source=name)
    weights = softmax(scores, simplified=simplified_softmax, out_dtype=v.dtype, name=f"{name}.weights")
    factors = [weights[(*batch, i, l)], v[value_place]]
    return contract(b, (*batch, i, j), factors, [l], accumulate=None, out_dtype=q.dtype, name=name)


@operator
def split_heads(x: Tensor, heads: int, *, name: str = "split_heads") -> Tensor:
    """x [b, i, heads*d] as [b, heads, i, d]."""
    b = x.builder
    require_rank(x, 3, "[b, i, heads*d]", where=name)
    (width,) = static_shape(x.shape[-1:])
    if heads < 1 or width % heads:
        raise ExtentMismatch(
            f"{width} columns of {x} for {heads} heads", where=name, help=f"a multiple of {max(heads, 1)} columns"
        )
    axes = (Axis("b", x.shape[0]), Axis("h", heads), Axis("i", x.shape[1]), Axis("d", width // heads))
    return emit(b, axes, x[axes[0], axes[2], axes[1] * (width // heads) + axes[3]], name=name)


@operator
def merge_heads(x: Tensor, *, name: str = "merge_heads") -> Tensor:
    """x [b, h, i, d] as [b, i, h*d]."""
    b = x.builder
    require_rank(x, 4, "[b, h, i, d]", where=name)
    heads, width = static_shape((x.shape[1], x.shape[3]))
    axes = (Axis("b", x.shape[0]), Axis("i", x.shape[2]), Axis("e", heads * width))
    place = (axes[0], axes[2] // width, axes[1], axes[2] % width) if width else (axes[0], axes[2], axes[1], axes[2])
    return emit(b, axes, x[place], name=name)


def _shared(batch: tuple[Axis, ...], x: Tensor, *, where: str) -> list[Expr]:
    """Batch indices of k or v: equal extents, extent 1 for all, or fewer heads shared by those of q."""
    indices: list[Expr] = []
    for position, (axis, extent) in enumerate(zip(batch, x.shape[:-2], strict=True)):
        if extent == axis.extent:
            indices.append(axis)
        elif extent == 1:
            indices.append(const(0, "i64"))
        elif position == len(batch) - 1 and _divides(extent, axis.extent):
            indices.append(axis // (static_shape((axis.extent,))[0] // static_shape((extent,))[0]))
        else:
            raise ExtentMismatch(
                f"{x} has {extent} in dimension {position}, q has {axis.extent}",
                where=where,
                help=f"give {axis.extent}, 1, or for heads a divisor of {axis.extent}",
            )
    return indices


def _divides(part: Extent, whole: Extent) -> bool:
    return isinstance(part, int) and isinstance(whole, int) and part > 0 and whole % part == 0


def _changed(
    score: Expr,
    axes: Sequence[Axis],
    mask: Tensor | None,
    scale: float,
    offset: int | None,
    softcap: float,
    *,
    where: str,
) -> Expr:
    """Scale, cap, mask and causality of one score."""
    value = score if scale == 1 else score * scale
    if softcap:
        value = apply("tanh", value / softcap) * softcap
    if mask is not None:
        check_broadcasts_to(mask, tuple(axis.extent for axis in axes), where=where)
        read = element(mask, axes)
        value = select(read, value, float("-inf")) if mask.dtype == "bool" else value + read.cast(value.dtype)
    if offset is not None:
        value = select(axes[-1] <= axes[-2] + offset, value, float("-inf"))
    return value
