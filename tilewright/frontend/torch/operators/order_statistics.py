"""Running extremes, and elements by their rank. A scalar is a row of one element."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.expr.ops import order_statistics as ops
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.elementwise import fill
from tilewright.frontend.torch.call import Call
from tilewright.frontend.torch.registry import aten

Names = tuple[str, str]
Build = Callable[[Tensor, int, Names], tuple[Tensor, Tensor]]


def _along(call: Call, x: Tensor, dim: int, build: Build) -> tuple[Tensor, Tensor]:
    """``build(row, dimension, names)``, with the shapes that torch promises."""
    names = (call.name, call.hint(1))
    if x.rank:
        return build(x, dim % x.rank, names)
    row = shapes.reshape(x, (1,), name=f"{call.name}.row")
    values, index = build(row, 0, (f"{names[0]}.row", f"{names[1]}.row"))
    return (
        shapes.reshape(values, (), name=names[0]),
        shapes.reshape(index, (), name=names[1]),
    )


def _cumulative(call: Call, x: Tensor, dim: int, *, largest: bool) -> tuple[Tensor, Tensor]:
    return _along(
        call, x, dim, lambda v, d, names: ops.cum_extreme(v, axis=d, largest=largest, names=names)
    )  # fmt: skip


for _name, _largest in (("cummax", True), ("cummin", False)):
    aten(f"aten.{_name}.default")(partial(_cumulative, largest=_largest))


@aten("aten.logcumsumexp.default", "aten._logcumsumexp.default")
def log_cum_sum_exp(call: Call, x: Tensor, dim: int) -> Tensor:
    return ops.log_cum_sum_exp(x, axis=dim % x.rank, name=call.name) if x.rank else x


@aten("aten.kthvalue.default")
def kth_value(call: Call, x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _along(call, x, dim, lambda v, d, names: ops.kth_value(v, k, axis=d, keepdims=keepdim, names=names))


@aten("aten.mode.default")
def mode(call: Call, x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _along(call, x, dim, lambda v, d, names: ops.mode(v, axis=d, keepdims=keepdim, names=names))


def _median_of(call: Call, x: Tensor, dim: int = -1, keepdim: bool = False, *, skip_nan: bool) -> tuple[Tensor, Tensor]:
    return _along(
        call, x, dim,
        lambda v, d, names: ops.median(v, axis=d, keepdims=keepdim, skip_nan=skip_nan, names=names),
    )  # fmt: skip


def _median(call: Call, x: Tensor, *, skip_nan: bool) -> Tensor:
    """The median of all elements; of none it is NaN, or 0 for integers."""
    if not x.size:
        return fill(call.b, (), float("nan") if dtypes.is_float(x.dtype) else 0, x.dtype, name=call.name)
    line = shapes.reshape(x, (x.size,), name=f"{call.name}.line")
    return ops.median(line, axis=0, skip_nan=skip_nan, names=(call.name, f"{call.name}.index"))[0]


for _name, _skip in (("median", False), ("nanmedian", True)):
    aten(f"aten.{_name}.dim")(partial(_median_of, skip_nan=_skip))
    aten(f"aten.{_name}.default")(partial(_median, skip_nan=_skip))
