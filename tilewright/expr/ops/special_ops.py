"""Less common operators: capsule, per-sample and grouped products, block-circulant, shift, mean, scan, depth-to-space.

Definitions: spec 2, section 2.2 (BCM, SHO) and spec 3, section 2.2 (CAP, BCV, GFC, MEN, VAR, SCN).
"""

from __future__ import annotations

from typing import Literal, Unpack

import numpy as np

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, Tensor, const, static_shape
from tilewright.expr.dtypes import INDEX, DType, DTypeLike
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, emit
from tilewright.expr.ops.nodes import accumulator, contract, pad_node, require_equal, require_float, require_rank
from tilewright.expr.ops.shape import reshape_indices
from tilewright.expr.ops.window import Sliding, Window

#: Whether the channels of a block lie outside (DCR) or inside (CRD) those of depth.
BlockOrder = Literal["DCR", "CRD"]


@operator
def capsule_conv(
    x: Tensor,
    w: Tensor,
    *,
    keep_nodes: bool = False,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "capsule_conv",
    **sliding: Unpack[Sliding],
) -> Tensor:
    """``Y[n,k,…,u] = sum X[n,c,…] W[k,c,kernel…,u]``: a convolution with a vector of u values per output element."""
    b = x.builder
    require_rank(x, (3, 99), "[n, c, …]", where=name)
    require_rank(w, x.rank + 1, "[k, c, kernel…, u]", where=name)
    _check_channels(x, 1, w, 1, where=name)
    window = Window.read(x.shape[2:], w.shape[2:-1], where=name, **sliding)
    padded, places, spatial, kernel = window.slide(b, x, 2, keep=keep_nodes, name=name)
    n, k, c, u = Axis("n", x.shape[0]), Axis("k", w.shape[0]), Axis("c", x.shape[1]), Axis("u", w.shape[-1])
    factors = [padded[(n, c, *places)], w[(k, c, *kernel, u)]]
    return contract(
        b, (n, k, *spatial, u), factors, (c, *kernel), accumulate=accumulate, out_dtype=out_dtype, name=name
    )


@operator
def batched_weights_conv(
    x: Tensor,
    w: Tensor,
    *,
    keep_nodes: bool = False,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "batched_weights_conv",
    **sliding: Unpack[Sliding],
) -> Tensor:
    """``Y[n,k,…] = sum X[n,c,…] W[n,k,c,kernel…]``: every element of the batch has its own kernels."""
    b = x.builder
    require_rank(x, (3, 99), "[n, c, …]", where=name)
    require_rank(w, x.rank + 1, "[n, k, c, kernel…]", where=name)
    require_equal(
        x.shape[0],
        w.shape[0],
        f"a batch of {x.shape[0]} in {x}, {w.shape[0]} in {w}",
        where=name,
        help="make them equal",
    )
    _check_channels(x, 1, w, 2, where=name)
    window = Window.read(x.shape[2:], w.shape[3:], where=name, **sliding)
    padded, places, spatial, kernel = window.slide(b, x, 2, keep=keep_nodes, name=name)
    n, k, c = Axis("n", x.shape[0]), Axis("k", w.shape[1]), Axis("c", x.shape[1])
    factors = [padded[(n, c, *places)], w[(n, k, c, *kernel)]]
    return contract(b, (n, k, *spatial), factors, (c, *kernel), accumulate=accumulate, out_dtype=out_dtype, name=name)


@operator
def grouped_linear(
    x: Tensor,
    w: Tensor,
    *,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "grouped_linear",
) -> Tensor:
    """``Y[n,g,k] = sum_c X[n,g,c] W[g,k,c]``: a fully connected layer per group."""
    b = x.builder
    require_rank(x, 3, "[n, g, c]", where=name)
    require_rank(w, 3, "[g, k, c]", where=name)
    _check_channels(x, 1, w, 0, where=name)
    _check_channels(x, 2, w, 2, where=name)
    n, g, k, c = Axis("n", x.shape[0]), Axis("g", x.shape[1]), Axis("k", w.shape[1]), Axis("c", x.shape[2])
    return contract(b, (n, g, k), [x[n, g, c], w[g, k, c]], [c], accumulate=accumulate, out_dtype=out_dtype, name=name)


@operator
def block_circulant(x: Tensor, *, block: int, name: str = "block_circulant") -> Tensor:
    """The block-circulant matrix nearest to x, for blocks of `block` by `block`: nodes compress and expand.

    ``Z[i,j] = 1/F sum_{k<F} x[i*F+k, (j//F)*F + (j%F+k)%F]``, ``O[i,j] = Z[i//F, (j//F)*F + (j%F+F-i%F)%F]``.
    """
    b = x.builder
    require_float(x, where=name)
    require_rank(x, 2, "a matrix", where=name)
    rows, columns = static_shape(x.shape)
    for extent, what in ((rows, "rows"), (columns, "columns")):
        if block < 1 or extent % block:
            near = max(extent // block, 1) * block if block > 0 else extent
            raise ExtentMismatch(
                f"{extent} {what} of {x} are not a multiple of the block {block}",
                where=name,
                help=f"give {near} {what}",
            )
    wide = accumulator(x.dtype)
    i, j, k = Axis("i", rows // block), Axis("j", columns), Axis("k", block)
    diagonal = (j // block) * block + (j % block + k) % block
    compressed = emit(
        b, [i, j], x[i * block + k, diagonal].cast(wide) * (1 / block), reduce=[k], accum="sum",
        name=f"{name}.compress", source=name,
    )  # fmt: skip
    i, j = Axis("i", rows), Axis("j", columns)
    value = compressed[i // block, (j // block) * block + (j % block + block - i % block) % block]
    return emit(b, [i, j], value.cast(x.dtype), name=name)


@operator
def shift(
    x: Tensor,
    positions: Tensor,
    *,
    kernel: int,
    dilation: int = 1,
    keep_nodes: bool = False,
    name: str = "shift",
) -> Tensor:
    """Move each channel of x [n, h, w, c] by one place of a kernel by kernel window: nodes pad and shift.

    ``O[n,h,w,c] = P[n, h + (I[c]//kernel)*dilation, w + (I[c]%kernel)*dilation, c]`` with I = `positions` [c],
    integers in [0, kernel*kernel), and P padded by ``dilation*(kernel-1)/2``.
    """
    b = x.builder
    require_rank(x, 4, "[n, h, w, c]", where=name)
    require_rank(positions, 1, "one position per channel", where=name)
    _check_channels(x, 3, positions, 0, where=name)
    if kernel < 1 or dilation * (kernel - 1) % 2:
        raise ExtentMismatch(
            f"a window of {kernel} at dilation {dilation} has no centre", where=name, help=f"a kernel of {kernel + 1}"
        )
    border = dilation * (kernel - 1) // 2
    n, h, w, c = axes_of(x.shape)
    padded = x
    if border or keep_nodes:
        height, width = static_shape(x.shape[1:3])
        shape = (x.shape[0], height + 2 * border, width + 2 * border, x.shape[3])
        padded = pad_node(b, x, (0, border, border, 0), shape, name=f"{name}.pad", source=name)
    place = positions[c].cast(INDEX)
    moved = padded[n, h + (place // kernel) * dilation, w + (place % kernel) * dilation, c]
    return emit(b, (n, h, w, c), moved, name=name)


@operator
def channel_mean(
    x: Tensor, *, accumulate: DTypeLike | None = None, out_dtype: DTypeLike | None = None, name: str = "mean"
) -> Tensor:
    """Mean of every channel of x [N, C, …] as a matrix product: nodes flatten and ``M[i,j] = sum_x A[i,x] U[x,j]``.

    A is x as C by N*…, U a constant column of ``1/(N*…)`` in the type of x; the result is [C, 1].
    """
    b = x.builder
    require_float(x, where=name)
    rows = _channel_rows(b, x, where=name)
    return _average(b, rows, accumulate=accumulate, out_dtype=out_dtype, name=name)


@operator
def channel_variance(
    x: Tensor,
    *,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "variance",
) -> Tensor:
    """Variance of every channel of x [N, C, …]: flatten, mean, squared deviation and its mean; result [C, 1]."""
    b = x.builder
    require_float(x, where=name)
    rows = _channel_rows(b, x, where=name)
    mean = _average(b, rows, accumulate=accumulate, out_dtype=out_dtype, name=f"{name}.mean")
    i, p = Axis("i", rows.shape[0]), Axis("x", rows.shape[1])
    difference = rows[i, p].cast(mean.dtype) - mean[i, 0]
    squared = emit(b, [i, p], (difference * difference).cast(x.dtype), name=f"{name}.deviation", source=name)
    return _average(b, squared, accumulate=accumulate, out_dtype=out_dtype, name=name)


@operator
def scan(
    a: Tensor,
    *,
    columns: int | None = None,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "scan",
) -> Tensor:
    """Running sums of rows as a matrix product: ``C[i,j] = sum_x A[i,x] T[x,j]``, ``T[x,j] = (x <= j)`` a constant."""
    b = a.builder
    require_rank(a, 2, "the matrix A[i, x]", where=name)
    (length,) = static_shape(a.shape[1:])
    triangle = np.arange(length)[:, None] <= np.arange(columns or length)
    table = b.constant(triangle.astype(dtypes.numpy_dtype(a.dtype)), f"{name}.triangle")
    i, j, x = Axis("i", a.shape[0]), Axis("j", columns or length), Axis("x", length)
    return contract(b, [i, j], [a[i, x], table[x, j]], [x], accumulate=accumulate, out_dtype=out_dtype, name=name)


@operator
def depth_to_space(x: Tensor, *, block: int, order: BlockOrder = "DCR", name: str = "depth_to_space") -> Tensor:
    """x [n, C*block**r, …] as [n, C, …*block] for r spatial dimensions: channels become places in blocks.

    Channel of place p in a block: ``p*C + c`` in order DCR, ``c*block**r + p`` in order CRD (pixel shuffle).
    """
    b = x.builder
    require_rank(x, (3, 99), "[n, c, …]", where=name)
    channels, *sizes = static_shape(x.shape[1:])
    places = _places_per_block(block, len(sizes), where=name)
    if channels % places:
        near = max(1, channels // places) * places
        raise ExtentMismatch(f"{channels} channels of {x} for blocks of {places}", where=name, help=f"give {near}")
    depth = channels // places
    n, c, *spatial = axes_of((x.shape[0], depth, *(size * block for size in sizes)))
    place: Expr = const(0, INDEX)
    for axis in spatial:
        place = place * block + axis % block
    channel = place * depth + c if order == "DCR" else c * places + place
    return emit(b, (n, c, *spatial), x[(n, channel, *(axis // block for axis in spatial))], name=name)


@operator
def space_to_depth(x: Tensor, *, block: int, order: BlockOrder = "DCR", name: str = "space_to_depth") -> Tensor:
    """The inverse of `depth_to_space`."""
    b = x.builder
    require_rank(x, (3, 99), "[n, c, …]", where=name)
    channels, *sizes = static_shape(x.shape[1:])
    places = _places_per_block(block, len(sizes), where=name)
    for size in sizes:
        if size % block:
            near = max(1, size // block) * block
            raise ExtentMismatch(f"extent {size} of {x} in blocks of {block}", where=name, help=f"give {near}")
    n, k, *spatial = axes_of((x.shape[0], channels * places, *(size // block for size in sizes)))
    place, c = (k // channels, k % channels) if order == "DCR" else (k % places, k // places)
    indices: list[Expr] = []
    for axis in reversed(spatial):
        indices.insert(0, axis * block + place % block)
        place = place // block
    return emit(b, (n, k, *spatial), x[(n, c, *indices)], name=name)


def _places_per_block(block: int, rank: int, *, where: str) -> int:
    if block < 1:
        raise InvalidExpression(f"blocks of extent {block}", where=where, help="1 or more")
    return int(block**rank)


def _channel_rows(b: GraphBuilder, x: Tensor, *, where: str) -> Tensor:
    """x [N, C, …] as C rows of N*… elements."""
    require_rank(x, (2, 99), "[N, C, …]", where=where)
    batch, channels, *sizes = static_shape(x.shape)
    if not x.size:
        raise ExtentMismatch(f"{x} has no elements to average", where=where, help="extents of 1 or more")
    i, p = Axis("i", channels), Axis("x", batch * int(np.prod(sizes, dtype=np.int64)))
    first, *rest = reshape_indices((batch, *sizes), [p])
    return emit(b, [i, p], x[(first, i, *rest)], name=f"{where}.rows", source=where)


def _average(b: GraphBuilder, rows: Tensor, *, accumulate: DType | None, out_dtype: DType | None, name: str) -> Tensor:
    channels, count = static_shape(rows.shape)
    if count < 1:
        raise ExtentMismatch(f"{rows} has no elements to average", where=name, help="extents of 1 or more")
    unit = np.full((count, 1), 1 / count).astype(dtypes.numpy_dtype(rows.dtype))
    column = b.constant(unit, f"{name}.unit")
    i, j, x = Axis("i", channels), Axis("j", 1), Axis("x", count)
    return contract(b, [i, j], [rows[i, x], column[x, j]], [x], accumulate=accumulate, out_dtype=out_dtype, name=name)


def _check_channels(x: Tensor, dimension: int, w: Tensor, w_dimension: int, *, where: str) -> None:
    have, need = x.shape[dimension], w.shape[w_dimension]
    require_equal(
        have,
        need,
        f"dimension {dimension} of {x} is {have}, dimension {w_dimension} of {w} is {need}",
        where=where,
        help=f"give {w.name} {have}, or {x.name} {need}",
    )
