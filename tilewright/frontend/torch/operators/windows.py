"""Convolutions and pooling. torch also takes inputs without a batch dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.expr.core import Tensor
from tilewright.expr.ops import conv as convs
from tilewright.expr.ops import pool
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.window import Pads
from tilewright.frontend.torch.call import Call, refuse
from tilewright.frontend.torch.registry import aten

Ints = int | Sequence[int]


def _list(value: Ints, rank: int) -> list[int]:
    """One value per dimension: torch lets one stand for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _pads(padding: str | Ints, rank: int) -> Pads:
    """torch pads both sides alike; "same" puts the odd one at the end."""
    if isinstance(padding, str):
        return "same_upper" if padding == "same" else "valid"
    return _list(padding, rank) * 2


def _batched(call: Call, x: Tensor, rank: int, build: Callable[[Tensor, str], Tensor]) -> Tensor:
    """``build(x, name)`` on x [b, C, …] with `rank` more dimensions; a batch of 1 is added for it where x has none."""
    if x.rank == rank + 2:
        return build(x, call.name)
    one = shapes.unsqueeze(x, [0], name=f"{call.name}.batch")
    return shapes.squeeze(build(one, f"{call.name}.batched"), [0], name=call.name)


# Convolutions ---------------------------------------------------------------------------------------------------


def _conv(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: str | Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    rank = weight.rank - 2
    return _batched(
        call,
        input,
        rank,
        lambda x, name: convs.conv(
            x,
            weight,
            bias,
            strides=_list(stride, rank),
            dilations=_list(dilation, rank),
            pads=_pads(padding, rank),
            groups=groups,
            out_dtype=call.dtype,
            name=name,
        ),
    )


def _conv_transpose(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    rank = weight.rank - 2
    return _batched(
        call,
        input,
        rank,
        lambda x, name: convs.conv_transpose(
            x,
            weight,
            bias,
            strides=_list(stride, rank),
            dilations=_list(dilation, rank),
            pads=_pads(padding, rank),
            output_padding=_list(output_padding, rank),
            groups=groups,
            out_dtype=call.dtype,
            name=name,
        ),
    )


for _rank in (1, 2, 3):
    aten(f"aten.conv{_rank}d.default", f"aten.conv{_rank}d.padding")(_conv)
    aten(f"aten.conv_transpose{_rank}d.{'default' if _rank == 1 else 'input'}")(_conv_transpose)


@aten("aten.convolution.default")
def convolution(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Tensor:
    if transposed:
        return _conv_transpose(call, input, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv(call, input, weight, bias, stride, padding, dilation, groups)


# Pooling --------------------------------------------------------------------------------------------------------


def _max_pool(
    call: Call,
    x: Tensor,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    rank: int,
) -> Tensor:
    """Without a stride, windows do not overlap."""
    kernel = _list(kernel_size, rank)
    return _batched(
        call,
        x,
        rank,
        lambda x, name: pool.max_pool(
            x,
            kernel,
            strides=_list(stride or kernel, rank),
            dilations=_list(dilation, rank),
            pads=_pads(padding, rank),
            ceil_mode=ceil_mode,
            name=name,
        ),
    )


def _max_pool_indices(
    call: Call,
    x: Tensor,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    rank: int,
) -> tuple[Tensor, ...]:
    """Positions count within the pooled dimensions."""
    if not call.wants(1):
        return (_max_pool(call, x, kernel_size, stride, padding, dilation, ceil_mode, rank=rank),)
    refuse(x.rank != rank + 2, "positions of maxima without a batch dimension", help="a batch of 1")
    kernel = _list(kernel_size, rank)
    return pool.max_pool_indices(
        x,
        kernel,
        strides=_list(stride or kernel, rank),
        dilations=_list(dilation, rank),
        pads=_pads(padding, rank),
        ceil_mode=ceil_mode,
        per_plane=True,
        name=call.name,
    )


def _avg_pool(
    call: Call,
    x: Tensor,
    kernel_size: Ints,
    stride: Ints = (),
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    rank: int,
) -> Tensor:
    refuse(divisor_override is not None, f"divisor_override={divisor_override}")
    kernel = _list(kernel_size, rank)
    return _batched(
        call,
        x,
        rank,
        lambda x, name: pool.average_pool(
            x,
            kernel,
            strides=_list(stride or kernel, rank),
            pads=_pads(padding, rank),
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad,
            name=name,
        ),
    )


def _adaptive_avg_pool(call: Call, x: Tensor, output_size: Ints, *, rank: int) -> Tensor:
    outputs = _list(output_size, rank)
    return _batched(
        call, x, rank, lambda x, name: pool.adaptive_average_pool(x, outputs, name=name)
    )  # fmt: skip


def _adaptive_max_pool(call: Call, x: Tensor, output_size: Ints, *, rank: int) -> tuple[Tensor]:
    refuse(call.wants(1), "positions of maxima")
    outputs = _list(output_size, rank)
    return (_batched(call, x, rank, lambda x, name: pool.adaptive_max_pool(x, outputs, name=name)),)


for _rank in (1, 2, 3):
    aten(f"aten.max_pool{_rank}d.default")(partial(_max_pool, rank=_rank))
    aten(f"aten.max_pool{_rank}d_with_indices.default")(partial(_max_pool_indices, rank=_rank))
    aten(f"aten.avg_pool{_rank}d.default")(partial(_avg_pool, rank=_rank))
    aten(f"aten.adaptive_avg_pool{_rank}d.default")(partial(_adaptive_avg_pool, rank=_rank))
    if _rank > 1:
        aten(f"aten._adaptive_avg_pool{_rank}d.default")(partial(_adaptive_avg_pool, rank=_rank))
    aten(f"aten.adaptive_max_pool{_rank}d.default")(partial(_adaptive_max_pool, rank=_rank))
