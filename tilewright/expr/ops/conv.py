"""Convolutions: any number of spatial dimensions, strides, dilations, padding, groups, transposed.

A convolution is a padding node with a guarded read, then a contraction that reads it unguarded. A transposed one is
three nodes: expand (zeros between the elements), pad, and a convolution with the kernel indexed backwards (spec 2,
section 2.2). Nodes that would copy their input unchanged are left out unless `keep_nodes` asks for the full form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Unpack

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.core import Axis, Expr, Extent, Tensor, select, static_shape
from tilewright.expr.dtypes import DTypeLike
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops.arguments import operator
from tilewright.expr.ops.elementwise import axes_of, emit
from tilewright.expr.ops.nodes import contract, require_equal, require_rank
from tilewright.expr.ops.window import (
    Pads,
    PerDimension,
    Sliding,
    Window,
    check_pad_rule,
    halves,
    per_dimension,
    read_pads,
)

#: Whether tensors keep group and channel as one dimension (the ONNX shape) or as two.
Channels = Literal["flat", "split"]


@operator
def conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    groups: int = 1,
    channels: Channels = "flat",
    pad_value: Expr | float = 0,
    keep_nodes: bool = False,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "conv",
    **sliding: Unpack[Sliding],
) -> Tensor:
    """Cross-correlation over the trailing dimensions of `x`, as networks mean "convolution".

    flat: x [b, C, …], w [K, C/groups, kernel…], result [b, K, …]; output channel k reads input channels
    ``(k//(K/groups))*(C/groups) + rc``. One input channel per group (depthwise) has no loop over rc.
    split: x [b, g, C/g, …], w [g, K/g, C/g, kernel…], result [b, g, K/g, …]; the tensors say how many groups.
    Extent of an output dimension: ``(n + begin + end - d*(k-1) - 1) // s + 1``.
    `bias` has one value per output channel ([K], or [g, K/g] if split).
    """
    b = x.builder
    lead = 2 if channels == "flat" else 3
    shape = "[b, C, …]" if channels == "flat" else "[b, g, C/g, …]"
    require_rank(x, (lead + 1, 99), shape, where=name)
    rank = x.rank - lead
    require_rank(w, lead + rank, _kernel_shape(channels), where=name)
    window = Window.read(x.shape[lead:], w.shape[lead:], where=name, **sliding)
    padded, places, spatial, kernel = window.slide(b, x, lead, value=pad_value, keep=keep_nodes, name=name)
    batch = Axis("b", x.shape[0])
    if channels == "split":
        _check_split_groups(x, w, groups, where=name)
        _check_channels(x, x.shape[2], w, w.shape[2], where=name)
        g, k, rc = Axis("g", w.shape[0]), Axis("k", w.shape[1]), Axis("rc", w.shape[2])
        outputs: tuple[Axis, ...] = (g, k)
        reduce: tuple[Axis, ...] = (rc, *kernel)
        factors = [padded[(batch, g, rc, *places)], w[(g, k, rc, *kernel)]]
    else:
        inputs, filters, per_group = static_shape((x.shape[1], w.shape[0], w.shape[1]))
        check_groups(x, inputs, groups, where=name)
        check_groups(w, filters, groups, where=name)
        _check_channels(x, inputs // groups, w, per_group, where=name)
        k, rc = Axis("k", filters), Axis("rc", per_group)
        outputs = (k,)
        if groups > 1 and per_group == 1:
            reduce = kernel
            factors = [padded[(batch, k // (filters // groups), *places)], w[(k, 0, *kernel)]]
        else:
            channel = rc if groups == 1 else (k // (filters // groups)) * per_group + rc
            reduce = (rc, *kernel)
            factors = [padded[(batch, channel, *places)], w[(k, rc, *kernel)]]
    return contract(
        b,
        (batch, *outputs, *spatial),
        factors,
        reduce,
        accumulate=accumulate,
        out_dtype=out_dtype,
        epilogue=_bias(bias, outputs, where=name),
        name=name,
    )


@operator
def depthwise_conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    channels: Channels = "flat",
    keep_nodes: bool = False,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "depthwise",
    **sliding: Unpack[Sliding],
) -> Tensor:
    """Every channel of x [b, C, …] with its own M kernels w [C, M, kernel…]; M is the channel multiplier.

    flat: the result is [b, C*M, …] and output channel q reads input channel ``q//M`` with kernel ``w[q//M, q%M]``.
    split: the result is [b, C, M, …] (Table 5.3's DEP). `bias` is [C*M], or [C, M] if split.
    """
    b = x.builder
    require_rank(x, (3, 99), "[b, C, …]", where=name)
    require_rank(w, x.rank, "[C, M, kernel…]", where=name)
    require_equal(
        x.shape[1], w.shape[0], f"{x} has {x.shape[1]} channels, {w} kernels for {w.shape[0]}", where=name,
        help="give kernels for each channel",
    )  # fmt: skip
    window = Window.read(x.shape[2:], w.shape[2:], where=name, **sliding)
    padded, places, spatial, kernel = window.slide(b, x, 2, keep=keep_nodes, name=name)
    batch = Axis("b", x.shape[0])
    c: Expr
    m: Expr
    if channels == "split":
        outputs: tuple[Axis, ...] = (Axis("c", w.shape[0]), Axis("m", w.shape[1]))
        c, m = outputs
    else:
        count, multiplier = static_shape(w.shape[:2])
        outputs = (Axis("q", count * multiplier),)
        c, m = outputs[0] // multiplier, outputs[0] % multiplier
    return contract(
        b,
        (batch, *outputs, *spatial),
        [padded[(batch, c, *places)], w[(c, m, *kernel)]],
        kernel,
        accumulate=accumulate,
        out_dtype=out_dtype,
        epilogue=_bias(bias, outputs, where=name),
        name=name,
    )


@operator
def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    strides: PerDimension = 1,
    dilations: PerDimension = 1,
    pads: Pads = 0,
    output_padding: PerDimension = 0,
    output_shape: Sequence[int] | None = None,
    groups: int = 1,
    channels: Channels = "flat",
    keep_nodes: bool = False,
    accumulate: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    name: str = "conv_transpose",
) -> Tensor:
    """The adjoint of `conv` with respect to its input.

    flat: x [b, C, …], w [C, K/groups, kernel…], result [b, K, …]. split: x [b, g, C/g, …], w [g, C/g, K/g, kernel…],
    result [b, g, K/g, …]. Extent of an output dimension: ``(n-1)*s - begin - end + d*(k-1) + 1 + output_padding``.
    With `output_shape` (spatial extents) or pads "same_upper"/"same_lower" the pads follow from it; "same" means n*s.
    """
    b = x.builder
    lead = 2 if channels == "flat" else 3
    require_rank(x, (lead + 1, 99), "[b, C, …]" if channels == "flat" else "[b, g, C/g, …]", where=name)
    rank = x.rank - lead
    kernel_shape = "[C, K/groups, kernel…]" if channels == "flat" else "[g, C/g, K/g, kernel…]"
    require_rank(w, lead + rank, kernel_shape, where=name)
    steps = per_dimension(strides, rank, "strides", where=name)
    spread = per_dimension(dilations, rank, "dilations", where=name)
    extra = per_dimension(output_padding, rank, "output_padding", where=name, low=0)
    sizes, kernel_sizes = static_shape(x.shape[lead:]), static_shape(w.shape[lead:])
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(sizes, steps, spread, kernel_sizes, extra, strict=True)
    ]
    begins, ends = _transposed_pads(pads, output_shape, sizes, steps, full, where=name)
    _check_transposed(
        x, w, sizes, kernel_sizes, [f - p - e for f, p, e in zip(full, begins, ends, strict=True)], where=name
    )
    expanded = _expand(b, x, lead, steps, keep=keep_nodes, name=name)
    left = [d * (k - 1) - p for d, k, p in zip(spread, kernel_sizes, begins, strict=True)]
    right = [d * (k - 1) - p + e for d, k, p, e in zip(spread, kernel_sizes, ends, extra, strict=True)]
    expanded_sizes = static_shape(expanded.shape[lead:])
    window = Window(expanded_sizes, kernel_sizes, (1,) * rank, spread, tuple(left), tuple(right))
    padded, places, spatial, kernel = window.slide(b, expanded, lead, keep=keep_nodes, name=name)
    flipped = tuple(size - 1 - axis for size, axis in zip(kernel_sizes, kernel, strict=True))
    batch = Axis("b", x.shape[0])
    if channels == "split":
        _check_split_groups(x, w, groups, where=name)
        _check_channels(x, x.shape[2], w, w.shape[1], where=name)
        g, rc, k = Axis("g", w.shape[0]), Axis("rc", w.shape[1]), Axis("k", w.shape[2])
        outputs: tuple[Axis, ...] = (g, k)
        reduce: tuple[Axis, ...] = (rc, *kernel)
        factors = [padded[(batch, g, rc, *places)], w[(g, rc, k, *flipped)]]
    else:
        inputs, weights, per_group = static_shape((x.shape[1], w.shape[0], w.shape[1]))
        check_groups(x, inputs, groups, where=name)
        _check_channels(x, inputs, w, weights, where=name)
        reduce = kernel
        k, rc = Axis("k", per_group * groups), Axis("rc", inputs // groups)
        outputs = (k,)
        channel = (k // per_group) * (inputs // groups)
        if groups == 1 or inputs > groups:
            channel, reduce = channel + rc, (rc, *kernel)
        factors = [padded[(batch, channel, *places)], w[(channel, k % per_group, *flipped)]]
    return contract(
        b,
        (batch, *outputs, *spatial),
        factors,
        reduce,
        accumulate=accumulate,
        out_dtype=out_dtype,
        epilogue=_bias(bias, outputs, where=name),
        name=name,
    )


def check_groups(x: Tensor, channels: int, groups: int, *, where: str) -> None:
    """Raise ExtentMismatch unless `groups` divides `channels`; the help names the nearest divisors."""
    if groups >= 1 and channels % groups == 0 and channels:
        return
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    below = [d for d in divisors if d < groups][-1:]
    above = [d for d in divisors if d > groups][:1]
    raise ExtentMismatch(
        f"{groups} groups do not divide {channels} channels of {x}",
        where=where,
        help=f"use {' or '.join(map(str, below + above))} groups" if divisors else "give 1 channel or more",
    )


def _check_channels(x: Tensor, have: Extent, w: Tensor, need: Extent, *, where: str) -> None:
    require_equal(
        have,
        need,
        f"{x} has {have} channels for each filter, {w} reads {need}",
        where=where,
        help=f"give kernels that read {have} channels, or change the number of groups",
    )


def _check_split_groups(x: Tensor, w: Tensor, groups: int, *, where: str) -> None:
    """Input and weights have one group dimension; an argument `groups` other than the default must agree with it."""
    have = x.shape[1]
    require_equal(have, w.shape[0], f"{x} has {have} groups, {w} has {w.shape[0]}", where=where, help="make them equal")
    if groups != 1:
        require_equal(have, groups, f"{x} has {have} groups, not {groups}", where=where, help="leave out `groups`")


def _kernel_shape(channels: Channels) -> str:
    return "[K, C/groups, kernel…]" if channels == "flat" else "[g, K/g, C/g, kernel…]"


def _bias(
    bias: Tensor | None, outputs: tuple[Axis, ...], *, where: str
) -> Callable[[Expr, tuple[Axis, ...]], Expr] | None:
    """Adds one value per output channel."""
    if bias is None:
        return None
    wanted = tuple(axis.extent for axis in outputs)
    if bias.shape != wanted:
        raise ExtentMismatch(
            f"bias {bias} for {' x '.join(map(str, wanted))} output channels",
            where=where,
            help=f"give shape [{', '.join(map(str, wanted))}]",
        )
    addend = bias
    return lambda total, axes: total + addend[outputs].cast(total.dtype)


def _check_transposed(
    x: Tensor, w: Tensor, sizes: Sequence[int], kernel: Sequence[int], outputs: Sequence[int], *, where: str
) -> None:
    for dimension, (size, extent, output) in enumerate(zip(sizes, kernel, outputs, strict=True)):
        place = f"in spatial dimension {dimension}"
        if size < 1 or extent < 1:
            raise ExtentMismatch(f"{x} or {w} is empty {place}", where=where, help="extents of 1 or more")
        if output < 1:
            raise ExtentMismatch(
                f"padding leaves an extent of {output} {place}", where=where, help=f"pad {1 - output} less"
            )


def _expand(b: GraphBuilder, x: Tensor, lead: int, strides: Sequence[int], *, keep: bool, name: str) -> Tensor:
    """`x` with ``s-1`` zeros between neighbours of every spatial dimension."""
    if all(s == 1 for s in strides) and not keep:
        return x
    shape = [(n - 1) * s + 1 for n, s in zip(static_shape(x.shape[lead:]), strides, strict=True)]
    axes = axes_of((*x.shape[:lead], *shape))
    spread = [(axis, s) for axis, s in zip(axes[lead:], strides, strict=True)]
    body: Expr = x[(*axes[:lead], *(axis // s for axis, s in spread))]
    for axis, s in reversed(spread):
        if s > 1 and axis.extent != 1:
            body = select((axis % s).eq(0), body, 0)
    return emit(b, axes, body, name=f"{name}.expand", source=name)


def _transposed_pads(
    pads: Pads,
    output_shape: Sequence[int] | None,
    sizes: Sequence[int],
    strides: Sequence[int],
    full: Sequence[int],
    *,
    where: str,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pads that cut `full` extents down to the wanted ones."""
    rank = len(sizes)
    rule = pads if isinstance(pads, str) else None
    if rule is not None:
        check_pad_rule(rule, where=where)
    if output_shape is None and (rule is None or rule == "valid"):
        return read_pads(pads, sizes, full, strides, (1,) * rank, where=where)
    if output_shape is not None and len(output_shape) != rank:
        raise InvalidExpression(
            f"output_shape {list(output_shape)} for {rank} spatial dimensions", where=where, help=f"give {rank} extents"
        )
    wanted = output_shape or [n * s for n, s in zip(sizes, strides, strict=True)]
    return halves([f - o for f, o in zip(full, wanted, strict=True)], smaller_first=rule == "same_upper")
