"""Convolutions and pooling."""

from __future__ import annotations

from math import prod
from typing import TypedDict

from tilewright.errors import InvalidModel
from tilewright.expr.core import Tensor
from tilewright.expr.ops import conv as convs
from tilewright.expr.ops import elementwise, pool
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.indexing import scatter_elements
from tilewright.expr.ops.window import Pads
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


def pads_of(node: Node, rank: int) -> Pads:
    """`auto_pad` and `pads` as the builders take them."""
    rules: dict[str, Pads] = {"SAME_UPPER": "same_upper", "SAME_LOWER": "same_lower", "VALID": "valid"}
    rule = node.get_string("auto_pad", "NOTSET")
    if rule in rules:
        return rules[rule]
    if rule != "NOTSET":
        raise InvalidModel(f"auto_pad {rule!r}", help=f"NOTSET, {', '.join(rules)}")
    return node.get_ints("pads", [0] * (2 * rank))


def check_kernel(node: Node, weights: Tensor) -> None:
    """The optional attribute `kernel_shape` must say what the weights have."""
    given = node.get_ints("kernel_shape", [])
    if given and tuple(given) != weights.shape[2:]:
        raise InvalidModel(f"kernel_shape {given} for weights {weights}")


@op("Conv")
def conv(node: Node) -> Tensor:
    x, w = node.input(0), node.input(1)
    check_kernel(node, w)
    rank = x.rank - 2
    return convs.conv(
        x,
        w,
        node.optional(2),
        strides=node.get_ints("strides", [1] * rank),
        dilations=node.get_ints("dilations", [1] * rank),
        pads=pads_of(node, rank),
        groups=node.get_int("group", 1),
        out_dtype=x.dtype,
        name=node.name,
    )


@op("ConvTranspose")
def conv_transpose(node: Node) -> Tensor:
    x, w = node.input(0), node.input(1)
    check_kernel(node, w)
    rank = x.rank - 2
    shape = node.get_ints("output_shape", []) or None
    return convs.conv_transpose(
        x,
        w,
        node.optional(2),
        strides=node.get_ints("strides", [1] * rank),
        dilations=node.get_ints("dilations", [1] * rank),
        pads=pads_of(node, rank),
        output_padding=node.get_ints("output_padding", [0] * rank),
        output_shape=shape[-rank:] if shape else None,
        groups=node.get_int("group", 1),
        out_dtype=x.dtype,
        name=node.name,
    )


class _Window(TypedDict):
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: Pads
    ceil_mode: bool
    name: str


def _window(node: Node) -> _Window:
    """The attributes that all pooling operators share."""
    rank = node.input().rank - 2
    return {
        "kernel": node.get_ints("kernel_shape"),
        "strides": node.get_ints("strides", [1] * rank),
        "dilations": node.get_ints("dilations", [1] * rank),
        "pads": pads_of(node, rank),
        "ceil_mode": bool(node.get_int("ceil_mode", 0)),
        "name": node.name,
    }


@op("MaxPool")
def max_pool(node: Node) -> tuple[Tensor, ...]:
    if not node.wants(1):
        return (pool.max_pool(node.input(), **_window(node)),)
    column_major = bool(node.get_int("storage_order", 0))
    return pool.max_pool_indices(
        node.input(),
        **_window(node),
        column_major=column_major,
    )


@op("AveragePool")
def average_pool(node: Node) -> Tensor:
    include = bool(node.get_int("count_include_pad", 0))
    return pool.average_pool(node.input(), **_window(node), count_include_pad=include)


@op("LpPool")
def lp_pool(node: Node) -> Tensor:
    return pool.lp_pool(node.input(), p=node.get_int("p", 2), **_window(node))


@op("GlobalAveragePool")
def global_average_pool(node: Node) -> Tensor:
    return pool.global_average_pool(node.input(), name=node.name)


@op("GlobalMaxPool")
def global_max_pool(node: Node) -> Tensor:
    return pool.global_max_pool(node.input(), name=node.name)


@op("GlobalLpPool")
def global_lp_pool(node: Node) -> Tensor:
    return pool.global_lp_pool(node.input(), p=node.get_int("p", 2), name=node.name)


@op("MaxUnpool")
def max_unpool(node: Node) -> Tensor:
    """The inverse of MaxPool with positions: zeros elsewhere. A given output shape adds zeros at the ends."""
    x, places = node.input(0), node.input(1)
    rank = x.rank - 2
    kernel, strides = node.get_ints("kernel_shape"), node.get_ints("strides", [1] * rank)
    pads = node.get_ints("pads", [0] * (2 * rank))
    if rank < 1 or not len(kernel) == len(strides) == len(pads) // 2 == rank or places.shape != x.shape:
        fact = f"windows {kernel} of {x} with positions {places}"
        raise InvalidModel(fact, help="equal shapes, one extent per dimension")
    extents = [
        (extent - 1) * stride + width - pads[d] - pads[d + rank]
        for d, (extent, stride, width) in enumerate(zip(node.shape()[2:], strides, kernel, strict=True))
    ]
    shape = (*node.shape()[:2], *extents)
    if min(shape) < 0:
        raise InvalidModel(f"a result of shape {list(shape)}", help="smaller pads")
    line = elementwise.fill(node.b, (prod(shape),), 0, x.dtype, name=f"{node.name}.zeros")
    values, index = (shapes.reshape(each, (x.size,), name=f"{node.name}.line") for each in (x, places))
    written = scatter_elements(line, index, values, axis=0, name=f"{node.name}.written")
    if not node.has(2):
        return shapes.reshape(written, shape, name=node.name)
    whole = shapes.reshape(written, shape, name=f"{node.name}.whole")
    wanted = node.integers(2, "the shape of the result")
    if len(wanted) != len(shape):
        raise InvalidModel(f"a result of shape {wanted} from {x}", help=f"{len(shape)} extents")
    after = [target - extent for target, extent in zip(wanted, shape, strict=True)]
    return shapes.pad(whole, [0] * len(shape), after, name=node.name)
