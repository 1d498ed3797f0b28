"""Reductions, positions of extremes, scans and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from tilewright.expr.core import Expr, Tensor, apply
from tilewright.expr.dtypes import wide
from tilewright.expr.ops import reduce as ops
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.elementwise import fill, map_elements
from tilewright.expr.ops.nodes import cast_node
from tilewright.frontend.torch.call import Call, Number, normal_dims, shape_of
from tilewright.frontend.torch.registry import aten

Dims = int | Sequence[int] | None

_FOLDS: dict[str, Callable[..., Tensor]] = {
    "sum": ops.reduce_sum, "mean": ops.reduce_mean, "prod": ops.reduce_prod, "max": ops.reduce_max,
    "min": ops.reduce_min, "logsumexp": ops.reduce_log_sum_exp,
}  # fmt: skip


def _fold(call: Call, x: Tensor, dim: Dims = None, keepdim: bool = False, *, kind: str, **_: Any) -> Tensor:
    """Elements are converted to the dtype of the result before they are reduced."""
    over = normal_dims(dim, x.rank)
    x = call.cast(x)
    return _FOLDS[kind](x, over, keepdims=keepdim, name=call.name)


for _kind in ("sum", "mean", "prod"):
    aten(f"aten.{_kind}.default")(lambda call, x, dtype=None, kind=_kind: _fold(call, x, kind=kind))
aten("aten.sum.dim_IntList")(partial(_fold, kind="sum"))
aten("aten.mean.dim")(partial(_fold, kind="mean"))
aten("aten.prod.dim_int")(partial(_fold, kind="prod"))
aten("aten.amax.default", "aten.max.default")(partial(_fold, kind="max"))
aten("aten.amin.default", "aten.min.default")(partial(_fold, kind="min"))
aten("aten.logsumexp.default")(partial(_fold, kind="logsumexp"))
aten("aten.any.default", "aten.any.dim", "aten.any.dims")(partial(_fold, kind="max"))
aten("aten.all.default", "aten.all.dim", "aten.all.dims")(partial(_fold, kind="min"))


@aten("aten.max.dim", "aten.min.dim")
def extreme(call: Call, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor | None]:
    """The extreme value, and where it stands, if anything asks for that."""
    kind = "max" if ".max." in str(call.node.target) else "min"
    value = _fold(call, x, dim, keepdim, kind=kind)
    return value, _position(call, x, dim, keepdim, kind, call.hint(1)) if call.wants(1) else None


@aten("aten.argmax.default", "aten.argmin.default")
def position(call: Call, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    kind = "max" if ".argmax." in str(call.node.target) else "min"
    if dim is None:
        line = shapes.reshape(x, (x.size,), name=f"{call.name}.line")
        found = _position(call, line, 0, False, kind, f"{call.name}.index" if keepdim else call.name)
        return shapes.reshape(found, call.shape, name=call.name) if keepdim else found
    return _position(call, x, dim, keepdim, kind, call.name)


def _position(call: Call, x: Tensor, dim: int, keepdim: bool, kind: str, name: str) -> Tensor:
    if not x.rank:
        return fill(call.b, (), 0, "i64", name=name)
    find = ops.arg_max if kind == "max" else ops.arg_min
    return find(x, axis=dim % x.rank, keepdims=keepdim, name=name)


# Spread ---------------------------------------------------------------------------------------------------------


@aten("aten.var.correction")
def variance(
    call: Call, x: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Tensor:
    return _variance(call, x, dim, correction, keepdim, call.name)[0]


@aten("aten.var_mean.correction")
def variance_and_mean(
    call: Call, x: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _variance(call, x, dim, correction, keepdim, call.name)


@aten("aten.std.correction")
def deviation(
    call: Call, x: Tensor, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Tensor:
    return _variance(call, x, dim, correction, keepdim, call.name, root=True)[0]


def _variance(
    call: Call, x: Tensor, dim: Dims, correction: Number | None, keepdim: bool, name: str, *, root: bool = False
) -> tuple[Tensor, Tensor]:
    """``sum (x - mean)**2 / (count - correction)``, and the mean; in f32 for f16 and bf16."""
    over = normal_dims(dim, x.rank)
    count = prod(shape_of(x)[d] for d in over)
    degrees = max(count - (1 if correction is None else correction), 0)
    work, result = wide(x.dtype), call.dtype
    real = cast_node(call.b, x, work, name=f"{name}.in")
    mean = ops.reduce_mean(real, over, keepdims=True, name=f"{name}.mean")
    squares = map_elements([real, mean], lambda v, m: (v - m) * (v - m), name=f"{name}.squares")
    total = ops.reduce_sum(squares, over, keepdims=keepdim, name=f"{name}.total")

    def final(v: Expr) -> Expr:
        v = v / float(degrees)  # NaN or infinite where there are no degrees of freedom, as in torch
        return (apply("sqrt", v) if root else v).cast(result)

    spread = map_elements([total], final, name=name)
    centre = mean if keepdim or not over else shapes.squeeze(mean, over, name=f"{name}.centre")
    return spread, cast_node(call.b, centre, result, name=call.hint(1))


@aten("aten.linalg_vector_norm.default")
def vector_norm(
    call: Call, x: Tensor, ord: Number = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """``(sum |x|**ord) ** (1/ord)``; order 0 counts elements that are not 0, infinite orders take extremes."""
    over, work = normal_dims(dim, x.rank), wide(call.dtype)
    special: dict[float, tuple[Callable[[Expr], Expr], Callable[..., Tensor]]] = {
        0.0: (lambda v: v.ne(0.0).cast(work), ops.reduce_sum),
        1.0: (lambda v: apply("abs", v), ops.reduce_sum),
        2.0: (lambda v: v * v, ops.reduce_sum),
        float("inf"): (lambda v: apply("abs", v), ops.reduce_max),
        float("-inf"): (lambda v: apply("abs", v), ops.reduce_min),
    }
    before, fold = special.get(float(ord), (lambda v: apply("pow", apply("abs", v), float(ord)), ops.reduce_sum))
    powers = map_elements([x], lambda v: before(v.cast(work)), name=f"{call.name}.powers")
    total = fold(powers, over, keepdims=keepdim, name=f"{call.name}.total")

    def root(v: Expr) -> Expr:
        if float(ord) in special:
            return apply("sqrt", v) if ord == 2 else v
        return apply("pow", v, 1 / float(ord))

    return map_elements([total], lambda v: root(v).cast(call.dtype), name=call.name)


# Scans and sorting ----------------------------------------------------------------------------------------------


@aten("aten.cumsum.default", "aten.cumprod.default")
def cumulate(call: Call, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    if not x.rank:
        return call.cast(x)
    scan = ops.cum_sum if "cumsum" in str(call.node.target) else ops.cum_prod
    return scan(call.cast(x), axis=dim % x.rank, name=call.name)


@aten("aten.topk.default")
def topk(
    call: Call, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    return ops.top_k(x, k, axis=dim % x.rank, largest=largest, names=(call.name, call.hint(1)))


@aten("aten.sort.default")
def sort(call: Call, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sorted(call, x, dim, descending)


@aten("aten.sort.stable")
def sort_stable(
    call: Call, x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sorted(call, x, dim, descending)


def _sorted(call: Call, x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    d = dim % x.rank
    names = (call.name, call.hint(1))
    return ops.top_k(x, shape_of(x)[d], axis=d, largest=descending, names=names)
