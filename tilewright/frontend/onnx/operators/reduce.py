"""Reductions, arg-reductions, scans and sorting."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.errors import InvalidModel
from tilewright.expr.core import Tensor
from tilewright.expr.ops import elementwise
from tilewright.expr.ops import reduce as ops
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op

#: The builder, and the opset in which the axes became an input.
_REDUCTIONS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "ReduceSum": (ops.reduce_sum, 13),
    "ReduceMean": (ops.reduce_mean, 18),
    "ReduceMax": (ops.reduce_max, 18),
    "ReduceMin": (ops.reduce_min, 18),
    "ReduceProd": (ops.reduce_prod, 18),
    "ReduceL1": (ops.reduce_l1, 18),
    "ReduceL2": (ops.reduce_l2, 18),
    "ReduceLogSum": (ops.reduce_log_sum, 18),
    "ReduceLogSumExp": (ops.reduce_log_sum_exp, 18),
    "ReduceSumSquare": (ops.reduce_sum_square, 18),
}


@op(*_REDUCTIONS)
def reduction(node: Node) -> Tensor:
    """An empty or absent list of axes means all, or none with `noop_with_empty_axes`."""
    builder, since = _REDUCTIONS[node.operator]
    axes = node.axes(1, since=since)
    if not axes:
        axes = [] if node.get_int("noop_with_empty_axes", 0) else None
    x = node.input()
    if x.dtype == "bool" and node.operator in ("ReduceMax", "ReduceMin"):
        wide = elementwise.cast(x, "u8", name=f"{node.name}.u8")
        found = builder(wide, axes, keepdims=bool(node.get_int("keepdims", 1)), name=f"{node.name}.any")
        return elementwise.cast(found, "bool", name=node.name)
    return builder(x, axes, keepdims=bool(node.get_int("keepdims", 1)), name=node.name)


@op("ArgMax", "ArgMin")
def arg_reduction(node: Node) -> Tensor:
    builder = ops.arg_max if node.operator == "ArgMax" else ops.arg_min
    return builder(
        node.input(),
        axis=node.get_int("axis", 0),
        keepdims=bool(node.get_int("keepdims", 1)),
        select_last_index=bool(node.get_int("select_last_index", 0)),
        name=node.name,
    )


@op("Hardmax")
def hardmax(node: Node) -> Tensor:
    return ops.hardmax(node.input(), axis=node.get_int("axis", -1), name=node.name)


@op("CumSum", "CumProd")
def scan(node: Node) -> Tensor:
    builder = ops.cum_sum if node.operator == "CumSum" else ops.cum_prod
    return builder(
        node.input(),
        axis=node.integer(1, "the axis"),
        exclusive=bool(node.get_int("exclusive", 0)),
        reverse=bool(node.get_int("reverse", 0)),
        name=node.name,
    )


@op("TopK")
def top_k(node: Node) -> tuple[Tensor, Tensor]:
    k = node.integer(1, "k")
    if k < 0:
        raise InvalidModel(f"k is {k}", help="0 or more")
    return ops.top_k(
        node.input(),
        k,
        axis=node.get_int("axis", -1),
        largest=bool(node.get_int("largest", 1)),
        names=(node.hint(0), node.hint(1)),
    )
