"""Every operator of the specifications by its short name: spec 1, Table 1.1; spec 2, Table 4.2; spec 3, Table 5.3.

`build` makes the one-operator graph with given sizes. An operator has up to two forms: "schedule", as spec 2 (section
2.2) defines it for loop schedules, and "mapping", as spec 3 (section 2.2) defines it for mapping to intrinsics: groups
and multipliers are loops of their own, a matrix-vector product keeps a unit loop, and loops have the names of that
table. Both have a padding node (and an expand node, if transposed) even where there is nothing to pad.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Axis, Tensor
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import conv, linalg, special_ops
from tilewright.expr.rewrite import substitute

Form = Literal["schedule", "mapping"]

#: Adds an operator with given sizes to a builder.
Make = Callable[..., Tensor]


@dataclass(frozen=True)
class Operator:
    """One row of the tables: what it is called, its sizes with their defaults, and which forms exist.

    `loops` are those of the mapping form as spec 3 names them, spatial ones first.
    """

    short: str
    title: str
    make: Make
    sizes: Mapping[str, int]
    forms: tuple[Form, ...] = ("schedule", "mapping")
    mapping: Mapping[str, Any] = field(default_factory=dict)  # what the mapping form adds to the arguments
    loops: str = ""


def build(short: str, *, form: Form = "schedule", dtype: DType = "f32", **sizes: int) -> Graph:
    """The graph of operator `short` with its default sizes, changed by `sizes`.

    Raises InvalidArgument for an unknown operator, form or size.
    """
    operator = OPERATORS.get(short)
    if operator is None:
        raise InvalidArgument(f"unknown operator {short!r}", where="catalogue", help=f"one of {', '.join(OPERATORS)}")
    if form not in operator.forms:
        raise InvalidArgument(f"{short} has no {form} form", where="catalogue", help=f"use {operator.forms[0]}")
    unknown = sorted(set(sizes) - set(operator.sizes))
    if unknown:
        raise InvalidArgument(
            f"{short} has no size {unknown[0]!r}", where="catalogue", help=f"sizes: {', '.join(operator.sizes)}"
        )
    b = GraphBuilder(short)
    extra = operator.mapping if form == "mapping" else {}
    graph = b.finish([operator.make(b, dtype, **{**operator.sizes, **sizes}, **extra)])
    return graph if form == "schedule" else _named(graph, operator.loops.split())


def _named(graph: Graph, names: list[str]) -> Graph:
    """The graph, its main node with these loops."""
    main = next(node for node in reversed(graph.nodes) if node.accum is not None)
    loops = {axis: Axis(name, axis.extent) for axis, name in zip(main.loops, names, strict=True)}
    axes, reduce = (tuple(loops[axis] for axis in each) for each in (main.axes, main.reduce))
    renamed = replace(main, axes=axes, reduce=reduce, body=substitute(main.body, dict(loops)))
    return replace(graph, nodes=tuple(renamed if node is main else node for node in graph.nodes))


def _gemv(b: GraphBuilder, t: DType, rows: int, columns: int, unit: bool = False) -> Tensor:
    vector = b.input("B", (columns, 1) if unit else (columns,), t)
    return linalg.gemv(b.input("A", (rows, columns), t), vector, name="O")


def _gemm(b: GraphBuilder, t: DType, m: int, n: int, k: int) -> Tensor:
    return linalg.gemm(b.input("A", (m, k), t), b.input("B", (k, n), t), name="O")


def _bilinear(b: GraphBuilder, t: DType, n: int, m: int, k: int, l: int) -> Tensor:
    a, w, c = b.input("A", (n, k), t), b.input("B", (m, k, l), t), b.input("C", (n, l), t)
    return linalg.bilinear(a, w, c, name="O")


def _conv(rank: int) -> Make:
    def make(
        b: GraphBuilder, t: DType, batch: int, c: int, size: int, k: int, kernel: int, stride: int, pad: int,
        dilation: int, depth: int = 0, depth_kernel: int = 0, depth_stride: int = 1, depth_pad: int = 0,
    ) -> Tensor:  # fmt: skip
        front = int(rank == 3)  # the depth of a 3-D convolution has its own sizes
        rest = rank - front
        x = b.input("I", (batch, c, *[depth] * front, *[size] * rest), t)
        w = b.input("W", (k, c, *[depth_kernel] * front, *[kernel] * rest), t)
        return conv.conv(
            x, w, strides=[*[depth_stride] * front, *[stride] * rest], pads=[*[depth_pad] * front, *[pad] * rest],
            dilations=dilation, keep_nodes=True, name="O",
        )  # fmt: skip

    return make


def _conv_transpose(rank: int) -> Make:
    def make(
        b: GraphBuilder, t: DType, batch: int, c: int, size: int, k: int, kernel: int, stride: int, pad: int,
        dilation: int, output_padding: int, depth: int = 0, depth_kernel: int = 0, depth_stride: int = 1,
        depth_pad: int = 0,
    ) -> Tensor:  # fmt: skip
        front = int(rank == 3)
        rest = rank - front
        x = b.input("I", (batch, c, *[depth] * front, *[size] * rest), t)
        w = b.input("W", (c, k, *[depth_kernel] * front, *[kernel] * rest), t)
        return conv.conv_transpose(
            x, w, strides=[*[depth_stride] * front, *[stride] * rest], pads=[*[depth_pad] * front, *[pad] * rest],
            dilations=dilation, output_padding=[*[0] * front, *[output_padding] * rest], keep_nodes=True, name="O",
        )  # fmt: skip

    return make


def _grouped(
    b: GraphBuilder, t: DType, batch: int, c: int, size: int, k: int, kernel: int, stride: int, pad: int, dilation: int,
    groups: int, channels: conv.Channels = "flat",
) -> Tensor:  # fmt: skip
    conv.check_groups(Tensor("I", (batch, c, size, size), t), c, groups, where="GRP")
    conv.check_groups(Tensor("O", (batch, k, size, size), t), k, groups, where="GRP")
    input_shape: tuple[int, ...] = (batch, c, size, size)
    weight_shape: tuple[int, ...] = (k, c // groups, kernel, kernel)
    if channels == "split":
        input_shape = (batch, groups, c // groups, size, size)
        weight_shape = (groups, k // groups, c // groups, kernel, kernel)
    x, w = b.input("I", input_shape, t), b.input("W", weight_shape, t)
    return conv.conv(
        x, w, strides=stride, pads=pad, dilations=dilation, groups=groups, channels=channels, keep_nodes=True,
        name="O",
    )  # fmt: skip


def _depthwise(
    b: GraphBuilder, t: DType, batch: int, c: int, size: int, multiplier: int, kernel: int, stride: int, pad: int,
    dilation: int, channels: conv.Channels = "flat",
) -> Tensor:  # fmt: skip
    x, w = b.input("I", (batch, c, size, size), t), b.input("W", (c, multiplier, kernel, kernel), t)
    return conv.depthwise_conv(
        x, w, strides=stride, pads=pad, dilations=dilation, channels=channels, keep_nodes=True, name="O"
    )


def _capsule(
    b: GraphBuilder, t: DType, batch: int, c: int, size: int, k: int, kernel: int, stride: int, pad: int, capsules: int
) -> Tensor:
    x, w = b.input("X", (batch, c, size, size), t), b.input("W", (k, c, kernel, kernel, capsules), t)
    return special_ops.capsule_conv(x, w, strides=stride, pads=pad, keep_nodes=True, name="Y")


def _batched_weights(
    b: GraphBuilder, t: DType, batch: int, c: int, size: int, k: int, kernel: int, stride: int, pad: int
) -> Tensor:
    x, w = b.input("X", (batch, c, size, size), t), b.input("W", (batch, k, c, kernel, kernel), t)
    return special_ops.batched_weights_conv(x, w, strides=stride, pads=pad, keep_nodes=True, name="Y")


def _grouped_linear(b: GraphBuilder, t: DType, batch: int, c: int, k: int, groups: int) -> Tensor:
    conv.check_groups(Tensor("X", (batch, c), t), c, groups, where="GFC")
    conv.check_groups(Tensor("Y", (batch, k), t), k, groups, where="GFC")
    x = b.input("X", (batch, groups, c // groups), t)
    return special_ops.grouped_linear(x, b.input("W", (groups, k // groups, c // groups), t), name="Y")


def _block_circulant(b: GraphBuilder, t: DType, rows: int, columns: int, block: int) -> Tensor:
    return special_ops.block_circulant(b.input("I", (rows, columns), t), block=block, name="O")


def _shift(b: GraphBuilder, t: DType, batch: int, size: int, c: int, kernel: int, dilation: int) -> Tensor:
    positions = b.constant(np.arange(c, dtype=np.int64) % (kernel * kernel), "P")
    x = b.input("I", (batch, size, size, c), t)
    return special_ops.shift(x, positions, kernel=kernel, dilation=dilation, keep_nodes=True, name="O")


def _mean(b: GraphBuilder, t: DType, batch: int, c: int, size: int) -> Tensor:
    return special_ops.channel_mean(b.input("A", (batch, c, size, size), t), name="M")


def _variance(b: GraphBuilder, t: DType, batch: int, c: int, size: int) -> Tensor:
    return special_ops.channel_variance(b.input("A", (batch, c, size, size), t), name="V")


def _scan(b: GraphBuilder, t: DType, m: int, n: int, k: int) -> Tensor:
    return special_ops.scan(b.input("A", (m, k), t), columns=n, name="C")


_WINDOW = {"kernel": 3, "stride": 1, "pad": 1, "dilation": 1}
_DEPTH = {"depth": 8, "depth_kernel": 3, "depth_stride": 1, "depth_pad": 1}
_SPLIT = {"channels": "split"}
_ONLY_SCHEDULE: tuple[Form, ...] = ("schedule",)
_ONLY_MAPPING: tuple[Form, ...] = ("mapping",)

#: Default sizes are small members of the test configurations of spec 2, section 9.2, and spec 3, section 6.3.
OPERATORS: dict[str, Operator] = {
    operator.short: operator
    for operator in (
        Operator(
            "GMV", "matrix-vector product", _gemv, {"rows": 128, "columns": 128}, mapping={"unit": True},
            loops="i j x",
        ),
        Operator("GMM", "matrix product", _gemm, {"m": 128, "n": 128, "k": 128}, loops="i j x"),
        Operator("BIL", "bilinear form", _bilinear, {"n": 32, "m": 32, "k": 64, "l": 64}, _ONLY_SCHEDULE),
        Operator(
            "C1D", "1-D convolution", _conv(1), {"batch": 1, "c": 64, "size": 196, "k": 64, **_WINDOW},
            loops="n k q c s",
        ),
        Operator(
            "T1D", "transposed 1-D convolution", _conv_transpose(1),
            {"batch": 1, "c": 64, "size": 98, "k": 64, **_WINDOW, "stride": 2, "output_padding": 1}, _ONLY_SCHEDULE,
        ),
        Operator(
            "C2D", "2-D convolution", _conv(2), {"batch": 1, "c": 64, "size": 28, "k": 64, **_WINDOW},
            loops="n k p q c r s",
        ),
        Operator(
            "T2D", "transposed 2-D convolution", _conv_transpose(2),
            {"batch": 1, "c": 64, "size": 14, "k": 64, **_WINDOW, "stride": 2, "output_padding": 1},
            loops="n k p q c r s",
        ),
        Operator(
            "C3D", "3-D convolution", _conv(3), {"batch": 1, "c": 16, "size": 14, "k": 16, **_WINDOW, **_DEPTH},
            loops="n k d p q c t r s",
        ),
        Operator(
            "T3D", "transposed 3-D convolution", _conv_transpose(3),
            {"batch": 1, "c": 16, "size": 7, "k": 16, **_WINDOW, **_DEPTH, "stride": 2, "output_padding": 1},
            _ONLY_SCHEDULE,
        ),
        Operator(
            "GRP", "grouped convolution", _grouped,
            {"batch": 1, "c": 64, "size": 28, "k": 64, **_WINDOW, "groups": 4}, mapping=_SPLIT, loops="n g k p q c r s",
        ),
        Operator(
            "DEP", "depthwise convolution", _depthwise,
            {"batch": 1, "c": 32, "size": 28, "multiplier": 6, **_WINDOW}, mapping=_SPLIT, loops="n c m p q r s",
        ),
        Operator(
            "DIL", "dilated convolution", _conv(2),
            {"batch": 1, "c": 64, "size": 28, "k": 64, **_WINDOW, "dilation": 2}, loops="n k p q c r s",
        ),
        Operator(
            "CAP", "capsule convolution", _capsule,
            {"batch": 1, "c": 32, "size": 20, "k": 16, "kernel": 9, "stride": 2, "pad": 0, "capsules": 8},
            _ONLY_MAPPING, loops="n k p q u c r s",
        ),
        Operator(
            "BCV", "convolution with weights per sample", _batched_weights,
            {"batch": 8, "c": 16, "size": 14, "k": 16, "kernel": 3, "stride": 1, "pad": 1}, _ONLY_MAPPING,
            loops="n k p q c r s",
        ),
        Operator(
            "GFC", "grouped fully connected", _grouped_linear, {"batch": 1, "c": 24, "k": 216, "groups": 24},
            _ONLY_MAPPING, loops="n g k c",
        ),
        Operator(
            "BCM", "block-circulant projection", _block_circulant, {"rows": 128, "columns": 64, "block": 8},
            _ONLY_SCHEDULE,
        ),
        Operator(
            "SHO", "shift", _shift, {"batch": 1, "size": 28, "c": 32, "kernel": 3, "dilation": 1}, _ONLY_SCHEDULE
        ),
        Operator("MEN", "mean of channels", _mean, {"batch": 1, "c": 64, "size": 28}, _ONLY_MAPPING, loops="i j x"),
        Operator(
            "VAR", "variance of channels", _variance, {"batch": 1, "c": 64, "size": 28}, _ONLY_MAPPING, loops="i j x"
        ),
        Operator("SCN", "running sum", _scan, {"m": 16, "n": 64, "k": 64}, _ONLY_MAPPING, loops="i j x"),
    )
}  # fmt: skip
