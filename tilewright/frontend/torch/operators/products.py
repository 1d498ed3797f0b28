"""Distances between rows, and rarer products of matrices."""

from __future__ import annotations

import numpy as np

from tilewright.expr import dtypes
from tilewright.expr.core import Expr, Tensor, const, select
from tilewright.expr.ops import grouped as ops
from tilewright.expr.ops import linalg
from tilewright.expr.ops.elementwise import axes_of, broadcast_shapes, emit, map_elements, read
from tilewright.expr.ops.nodes import cast_node
from tilewright.frontend.torch.call import Call, Number, refuse, shape_of
from tilewright.frontend.torch.operators.reduce import vector_norm
from tilewright.frontend.torch.registry import aten


@aten("aten.dist.default")
def dist(call: Call, x: Tensor, other: Tensor, p: Number = 2) -> Tensor:
    apart = map_elements([x, other], lambda v, w: v.cast(call.dtype) - w.cast(call.dtype),
                         name=f"{call.name}.apart")  # fmt: skip
    return vector_norm(call, apart, p)


@aten("aten._cdist_forward.default")
def distances(call: Call, x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    """``out[…, i, j]`` is the p-norm of ``x[…, i, :] - y[…, j, :]``."""
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    axes = axes_of((*batch, x.shape[-2], y.shape[-2], x.shape[-1]))

    def side(tensor: Tensor, row: Expr) -> Expr:
        lead = axes[len(batch) - (tensor.rank - 2) : len(batch)]
        places = [const(0, dtypes.INDEX) if e == 1 else a for e, a in zip(tensor.shape[:-2], lead, strict=True)]
        return tensor[(*places, row, axes[-1])]

    body = side(x, axes[-3]).cast(dtypes.wide(x.dtype)) - side(y, axes[-2]).cast(dtypes.wide(y.dtype))
    apart = emit(call.b, axes, body, name=f"{call.name}.apart")
    return vector_norm(call, apart, p, [-1])


@aten("aten._pdist_forward.default")
def pair_distances(call: Call, x: Tensor, p: float = 2) -> Tensor:
    """The p-norms of the differences of rows i < j, in order of i, then j."""
    first, second = (call.b.constant(each.astype(np.int64), f"{call.name}.pair") for each in
                     np.triu_indices(shape_of(x)[0], 1))  # fmt: skip
    pair, column = axes_of((*call.shape, x.shape[1]))
    wide = dtypes.wide(x.dtype)
    body = x[first[pair], column].cast(wide) - x[second[pair], column].cast(wide)
    apart = emit(call.b, (pair, column), body, name=f"{call.name}.apart")
    return vector_norm(call, apart, p, [-1])


@aten("aten.addmv.default")
def addmv(call: Call, x: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    product = linalg.matmul(mat, vec, out_dtype=dtypes.wide(call.dtype), name=f"{call.name}.product")
    return _with_addend(call, x, product, beta, alpha)


@aten("aten.addbmm.default")
def addbmm(call: Call, x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1) -> Tensor:
    """The products of all batches added up."""
    product = linalg.einsum(
        "bik,bkj->ij", [batch1, batch2], out_dtype=dtypes.wide(call.dtype), name=f"{call.name}.product"
    )
    return _with_addend(call, x, product, beta, alpha)


def _with_addend(call: Call, x: Tensor, product: Tensor, beta: Number, alpha: Number) -> Tensor:
    """``beta * x + alpha * product``, rounded once; with beta 0 x is not read."""
    if not beta:
        return call.pointwise([product], lambda v: v * alpha)
    return call.pointwise([x, product], lambda v, w: v * beta + w * alpha)


@aten("aten._int_mm.default")
def integer_product(call: Call, x: Tensor, other: Tensor) -> Tensor:
    return linalg.matmul(x, other, out_dtype=call.dtype, name=call.name)


@aten("aten.mm.dtype", "aten.bmm.dtype")
def product_as(call: Call, x: Tensor, other: Tensor, out_dtype: object) -> Tensor:
    return linalg.matmul(x, other, out_dtype=call.dtype, name=call.name)


@aten("aten._weight_int8pack_mm.default")
def product_with_bytes(call: Call, x: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """``(x @ mat2^T) * scales`` with 8-bit rows of weights and one scale for each."""
    weight = cast_node(call.b, mat2, x.dtype, name=f"{call.name}.weight")
    total = linalg.linear(x, weight, out_dtype=dtypes.wide(call.dtype), name=f"{call.name}.product")
    return call.pointwise([total, scales], lambda v, s: v * s)


@aten("aten._grouped_mm.default")
def grouped_product(
    call: Call, x: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None,
    out_dtype: object = None,
) -> Tensor:  # fmt: skip
    """A product per group. `offs` are the ends of the groups along the dimension that only a matrix without groups has.

    That is the rows of x, the columns of mat2, or the contracted dimension of both. Without `offs` both have groups.
    """
    refuse(bias is not None, "a bias of grouped products", help="add it afterwards")
    if offs is None:
        return linalg.matmul(x, mat2, out_dtype=call.dtype, name=call.name)
    return ops.grouped_matmul(x, mat2, offs, out_dtype=call.dtype, name=call.name)


@aten("transformers.grouped_mm_fallback.default")
def grouped_product_of_transformers(call: Call, x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """What transformers registers for types that torch has no grouped product of; rows behind the groups are 0."""
    product = ops.grouped_matmul(x, weight, offs, out_dtype=call.dtype, name=f"{call.name}.product")
    i, j = axes_of(product.shape)
    inside = i < read(offs, [offs.size - 1]).cast(dtypes.INDEX)
    return emit(call.b, (i, j), select(inside, product[i, j], const(0, call.dtype)), name=call.name)
