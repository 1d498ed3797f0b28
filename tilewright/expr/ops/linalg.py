"""Contractions: matrix-vector and matrix products, batched and bilinear forms, einsum.

A product is one node that sums in the accumulator type (`nodes.accumulator`), followed by one element-wise node for
scale and bias if there are any, and by one that rounds to the result type if it differs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.core import Axis, Expr, Extent, Tensor, const
from tilewright.expr.dtypes import DTypeLike
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, broadcast_shapes, element, emit, only
from tilewright.expr.ops.nodes import contract, normal_axis, require_equal, require_rank


@operator
def gemv(
    a: Tensor,
    x: Tensor,
    *,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "gemv",
) -> Tensor:
    """``O[i] = sum_k A[i,k] * x[k]``. With x of shape [k, 1] the result keeps the unit loop: [i, 1]."""
    b = a.builder
    require_rank(a, 2, "the matrix A[i, k]", where=name)
    require_rank(x, (1, 2), "the vector x[k] or x[k, 1]", where=name)
    if x.rank == 2:
        require_equal(x.shape[1], 1, f"{x} is not a vector", where=name, help="use gemm for more than one column")
        return gemm(a, x, accumulate=accumulate, out_dtype=out_dtype, name=name)
    _check_contracted(a, 1, x, 0, where=name)
    i, k = Axis("i", a.shape[0]), Axis("k", a.shape[1])
    return contract(b, [i], [a[i, k], x[k]], [k], accumulate=accumulate, out_dtype=out_dtype, name=name)


@operator
def gemm(
    a: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transpose_a: bool = False,
    transpose_b: bool = False,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "gemm",
) -> Tensor:
    """``O[i,j] = alpha * sum_k A[i,k] * B[k,j] + beta * bias[i,j]``; a transposed operand is read as A[k,i] or B[j,k].

    `bias` broadcasts to [i, j]. Scale and bias, where they change anything, are one node after the product.
    """
    b = a.builder
    require_rank(a, 2, "the matrix A", where=name)
    require_rank(w, 2, "the matrix B", where=name)
    a_contracted, b_contracted = (0 if transpose_a else 1), (1 if transpose_b else 0)
    _check_contracted(a, a_contracted, w, b_contracted, where=name)
    i, j = Axis("i", a.shape[1 - a_contracted]), Axis("j", w.shape[1 - b_contracted])
    k = Axis("k", a.shape[a_contracted])
    if bias is not None:
        check_broadcasts_to(bias, (i.extent, j.extent), where=name)

    def epilogue(total: Expr, axes: tuple[Axis, ...]) -> Expr:
        scaled = total if alpha == 1 else total * const(alpha, total.dtype)
        if bias is None:
            return scaled
        addend = element(bias, axes).cast(total.dtype)
        return scaled + (addend if beta == 1 else addend * const(beta, total.dtype))

    return contract(
        b,
        [i, j],
        [a[(k, i) if transpose_a else (i, k)], w[(j, k) if transpose_b else (k, j)]],
        [k],
        accumulate=accumulate,
        out_dtype=out_dtype,
        epilogue=epilogue if bias is not None or alpha != 1 else None,
        name=name,
    )


@operator
def matmul(
    a: Tensor,
    w: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "matmul",
) -> Tensor:
    """``O[…,i,j] = sum_k A[…,i,k] * B[…,k,j]`` with NumPy's rules.

    Leading dimensions broadcast. A one-dimensional A is a row, a one-dimensional B a column, and the
    dimension that this adds is not in the result. `transpose_a` and `transpose_b` exchange the last two dimensions.
    """
    b = a.builder
    require_rank(a, (1, 99), "rows, or batches of matrices", where=name)
    require_rank(w, (1, 99), "columns, or batches of matrices", where=name)
    a_contracted = a.rank - 2 if transpose_a and a.rank > 1 else a.rank - 1
    b_contracted = w.rank - 1 if transpose_b or w.rank == 1 else w.rank - 2
    _check_contracted(a, a_contracted, w, b_contracted, where=name)
    try:
        batch_shape = broadcast_shapes(a.shape[:-2], w.shape[:-2])
    except ExtentMismatch as error:
        raise ExtentMismatch(f"batches of {a} and {w}: {error.message}", where=name, help=error.help) from error
    batch = tuple(Axis(f"b{position}", extent) for position, extent in enumerate(batch_shape))
    k = Axis("k", a.shape[a_contracted])
    rows = [Axis("i", a.shape[-1] if transpose_a else a.shape[-2])] if a.rank > 1 else []
    columns = [Axis("j", w.shape[-2] if transpose_b else w.shape[-1])] if w.rank > 1 else []
    a_matrix = (*rows, k) if not transpose_a else (k, *rows)
    b_matrix = (k, *columns) if not transpose_b else (*columns, k)
    return contract(
        b,
        (*batch, *rows, *columns),
        [a[(*_batch_indices(a, batch), *a_matrix)], w[(*_batch_indices(w, batch), *b_matrix)]],
        [k],
        accumulate=accumulate,
        out_dtype=out_dtype,
        name=name,
    )


@operator
def linear(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "linear",
) -> Tensor:
    """``O[…,o] = sum_k x[…,k] * w[o,k] + bias[o]``: a fully connected layer with weights stored by output."""
    b = x.builder
    require_rank(x, (1, 99), "[…, k]", where=name)
    require_rank(w, 2, "[outputs, k]", where=name)
    _check_contracted(x, x.rank - 1, w, 1, where=name)
    rows = tuple(Axis(f"i{position}", extent) for position, extent in enumerate(x.shape[:-1]))
    o, k = Axis("o", w.shape[0]), Axis("k", w.shape[1])
    if bias is not None:
        check_broadcasts_to(bias, (*x.shape[:-1], w.shape[0]), where=name)
    return contract(
        b,
        (*rows, o),
        [x[(*rows, k)], w[o, k]],
        [k],
        accumulate=accumulate,
        out_dtype=out_dtype,
        epilogue=None if bias is None else lambda total, axes: total + element(bias, axes).cast(total.dtype),
        name=name,
    )


@operator
def matmul_integer(
    a: Tensor,
    w: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    *,
    name: str = "matmul_integer",
) -> Tensor:
    """``O[…,i,j] = sum_k (A[…,i,k] - a_zero[i]) * (B[…,k,j] - b_zero[j])`` in i32.

    A zero point is a scalar, [1], one per row of A ([i] or […,i,1]) or per column of B ([j] or […,1,j]).
    """
    require_rank(a, (2, 99), "[…, i, k]", where=name)
    require_rank(w, (2, 99), "[…, k, j]", where=name)
    left = centred(a, a_zero, -2, name=f"{name}.a")
    right = centred(w, b_zero, -1, name=f"{name}.b")
    return matmul(left, right, accumulate="i32", out_dtype="i32", name=name)


@operator
def centred(x: Tensor, zero: Tensor | None, own: int, *, source: str = "", name: str) -> Tensor:
    """``x - zero`` in i32; `x` itself where the zero points are known to be 0.

    There is one for all, one per slice of dimension `own`, or a shape that broadcasts to that of `x`.
    """
    b = x.builder
    known = None if zero is None else b.constants.get(zero.name)
    if zero is None or (known is not None and not known.any()):
        return x
    axes = axes_of(x.shape)
    point = _zero_point(zero, axes, axes[normal_axis(own, x.rank, where=name)], where=name)
    return emit(b, axes, x[axes].cast("i32") - point.cast("i32"), name=name, source=source)


@operator
def bilinear(
    a: Tensor,
    w: Tensor,
    c: Tensor,
    *,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "bilinear",
) -> Tensor:
    """``O[i,j] = sum_{k,l} A[i,k] * W[j,k,l] * C[i,l]`` (spec 1, section 1.3)."""
    return einsum("ik,jkl,il->ij", [a, w, c], accumulate=accumulate, out_dtype=out_dtype, name=name)


@operator
def outer(x: Tensor, y: Tensor, *, out_dtype: DTypeLike | None = None, name: str = "outer") -> Tensor:
    """``O[i,j] = x[i] * y[j]``."""
    return einsum("i,j->ij", [x, y], out_dtype=out_dtype, name=name)


@operator
def einsum(
    equation: str,
    operands: Sequence[Tensor],
    *,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "einsum",
) -> Tensor:
    """Sum of products by Einstein's convention, as `numpy.einsum` reads it, in one node.

    Letters are loops; a letter that is not in the output is summed, one that occurs twice in an operand reads its
    diagonal; `...` stands for dimensions that broadcast. Without ``->`` the output has the ellipsis and then the
    letters that occur once, in alphabetical order. A letter's dimensions of extent 1 broadcast.
    """
    terms, result = _parse_equation(equation, len(operands), where=name)
    subscripts = [_expand(term, x, where=name) for term, x in zip(terms, operands, strict=True)]
    extents = _letter_extents(subscripts, operands, where=name)
    ellipsis = sorted(label for label in extents if label.startswith("."))
    ellipsis.reverse()  # ".2", ".1", ".0": counted from the last dimension
    output = [part for label in _labels(result) for part in (ellipsis if label == "..." else [label])]
    for label in output:
        if label not in extents:
            raise InvalidExpression(f"output letter {label!r} of {equation!r} is in no operand", where=name)
    if len(set(output)) != len(output):
        raise InvalidExpression(f"the output of {equation!r} repeats a letter", where=name)
    loop = {label: Axis(f"e{label[1:]}" if label[0] == "." else label, extent) for label, extent in extents.items()}
    factors = [
        x[tuple(_broadcast_index(loop[label], e) for label, e in zip(labels, x.shape, strict=True))]
        for labels, x in zip(subscripts, operands, strict=True)
    ]
    axes = [loop[label] for label in output]
    reduce = [axis for label, axis in loop.items() if label not in output]
    return contract(operands[0].builder, axes, factors, reduce, accumulate=accumulate, out_dtype=out_dtype, name=name)


def check_broadcasts_to(x: Tensor, shape: tuple[Extent, ...], *, where: str) -> None:
    """Raise ExtentMismatch unless `x` broadcasts to `shape` without enlarging it."""
    aligned = shape[len(shape) - x.rank :] if x.rank <= len(shape) else None
    if aligned is None or any(e not in (1, s) for e, s in zip(x.shape, aligned, strict=True)):
        wanted = f"[{', '.join(map(str, shape))}]"
        raise ExtentMismatch(f"{x} does not broadcast to {wanted}", where=where, help=f"give shape {wanted} or ones")


def _check_contracted(a: Tensor, a_dimension: int, w: Tensor, w_dimension: int, *, where: str) -> None:
    left, right = a.shape[a_dimension], w.shape[w_dimension]
    require_equal(
        left,
        right,
        f"contracts {left} elements of {a} with {right} of {w}",
        where=where,
        help=f"give {w.name} extent {left} in dimension {w_dimension}, or {a.name} {right} in dimension {a_dimension}",
    )


def _batch_indices(x: Tensor, batch: tuple[Axis, ...]) -> list[Expr]:
    own = x.shape[:-2]
    return [_broadcast_index(axis, e) for e, axis in zip(own, batch[len(batch) - len(own) :], strict=True)]


def _broadcast_index(axis: Axis, extent: Extent) -> Expr:
    return const(0, "i64") if extent == 1 and axis.extent != 1 else axis


def _parse_equation(equation: str, count: int, *, where: str) -> tuple[list[str], str]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != count:
        raise InvalidExpression(f"{equation!r} has {len(terms)} operands, {count} were given", where=where)
    for term in (*terms, right):
        if not all(label == "..." or (label.isascii() and label.isalpha()) for label in _labels(term)):
            raise InvalidExpression(f"cannot read {term!r} in {equation!r}", where=where, help="letters and one '...'")
    if not arrow:
        letters = [label for term in terms for label in _labels(term) if label != "..."]
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return terms, right


def _labels(term: str) -> list[str]:
    before, dots, after = term.partition("...")
    return [*before, *(["..."] if dots else []), *after]


def _expand(term: str, x: Tensor, *, where: str) -> list[str]:
    """One label per dimension of `x`: letters, and `.0`, `.1`, … from the back for the ellipsis."""
    labels = _labels(term)
    hidden = x.rank - (len(labels) - ("..." in labels))
    if hidden < 0 or (hidden and "..." not in labels):
        raise ExtentMismatch(
            f"{x} has rank {x.rank}, its subscripts are {term!r}", where=where, help="one per dimension"
        )
    dots = [f".{position}" for position in reversed(range(hidden))]
    return [part for label in labels for part in (dots if label == "..." else [label])]


def _letter_extents(subscripts: list[list[str]], operands: Sequence[Tensor], *, where: str) -> dict[str, Extent]:
    extents: dict[str, Extent] = {}
    for labels, x in zip(subscripts, operands, strict=True):
        for label, extent in zip(labels, x.shape, strict=True):
            known = extents.setdefault(label, extent)
            if known == 1:
                extents[label] = extent
            elif extent not in (1, known):
                shown = "'...'" if label.startswith(".") else repr(label)
                raise ExtentMismatch(f"{shown} is {known} and, in {x}, {extent}", where=where, help="make them equal")
    return extents


def _zero_point(zero: Tensor, axes: Sequence[Axis], own: Axis, *, where: str) -> Expr:
    """A zero point at a position: one for all, one per row or column (`own`), or a shape that broadcasts."""
    if zero.rank <= 1 and zero.size == 1:
        return only(zero)
    if zero.rank == 1:
        require_equal(
            zero.shape[0],
            own.extent,
            f"{zero} for an extent of {own.extent}",
            where=where,
            help="one value each, or one",
        )
        return zero[own]
    check_broadcasts_to(zero, tuple(axis.extent for axis in axes), where=where)
    return element(zero, axes)
