"""Operators that move elements: views, joins, pads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright.expr import dtypes
from tilewright.expr.core import Axis, Expr, Tensor, const
from tilewright.expr.core import select as choose
from tilewright.expr.ops import shape as ops
from tilewright.expr.ops.elementwise import axes_of, emit
from tilewright.expr.ops.special_ops import depth_to_space, space_to_depth
from tilewright.frontend.torch.call import Call, Number, refuse, shape_of
from tilewright.frontend.torch.registry import aten


@aten("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten._reshape_copy.default")
@aten("aten.view_copy.default")
def view(call: Call, x: Tensor, size: Sequence[int]) -> Tensor:
    return _reshaped(call, x)


@aten("aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
@aten("aten.flatten.using_ints", "aten.unflatten.int")
def change_rank(call: Call, x: Tensor, *_: object) -> Tensor:
    return _reshaped(call, x)


def _reshaped(call: Call, x: Tensor) -> Tensor:
    """Row-major into the shape that torch promises, whatever view led to it."""
    return x if shape_of(x) == call.shape else ops.reshape(x, call.shape, name=call.name)


@aten("aten.permute.default")
def permute(call: Call, x: Tensor, dims: Sequence[int]) -> Tensor:
    return ops.transpose(x, [d % x.rank for d in dims], name=call.name) if x.rank else x


@aten("aten.transpose.int")
def transpose(call: Call, x: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(x.rank))
    if x.rank:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(call, x, order)


@aten("aten.t.default")
def t(call: Call, x: Tensor) -> Tensor:
    return permute(call, x, list(reversed(range(x.rank))))


@aten("aten.expand.default")
def expand(call: Call, x: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    return x if shape_of(x) == call.shape else ops.expand(x, call.shape, name=call.name)


@aten("aten.repeat.default")
def repeat(call: Call, x: Tensor, repeats: Sequence[int]) -> Tensor:
    lead = (1,) * (len(repeats) - x.rank)
    if lead:
        x = ops.reshape(x, (*lead, *shape_of(x)), name=f"{call.name}.in")
    return ops.tile(x, repeats, name=call.name)


@aten("aten.slice.Tensor")
def slice_(
    call: Call, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    starts, steps, extents = [0] * x.rank, [1] * x.rank, list(shape_of(x))
    d = dim % x.rank
    starts[d], extents[d] = ops.slice_bounds(extents[d], start or 0, extents[d] if end is None else end, step)
    steps[d] = step
    if tuple(extents) == shape_of(x) and step == 1:
        return x
    return ops.slice_(x, starts, extents, steps, name=call.name)


@aten("aten.select.int")
def select(call: Call, x: Tensor, dim: int, index: int) -> Tensor:
    d = dim % x.rank
    at = index % shape_of(x)[d]
    return ops.move(x, call.shape, lambda axes: (*axes[:d], at, *axes[d:]), name=call.name)


@aten("aten.unbind.int")
def unbind(call: Call, x: Tensor, dim: int = 0) -> list[Tensor]:
    d = dim % x.rank
    rest = [e for position, e in enumerate(shape_of(x)) if position != d]

    def part(at: int) -> Tensor:
        return ops.move(x, rest, lambda axes: (*axes[:d], at, *axes[d:]), name=call.hint(at))

    return [part(at) for at in range(shape_of(x)[d])]


@aten("aten.cat.default")
def cat(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Empty vectors among the tensors are left out, whatever the others' rank."""
    parts = [x for x in tensors if shape_of(x) != (0,) or len(call.shape) == 1]
    parts = [call.cast(x) for x in parts]
    return ops.concat(parts, axis=dim % len(call.shape), name=call.name)


@aten("aten.stack.default")
def stack(call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return ops.stack([call.cast(x) for x in tensors], axis=dim % len(call.shape), name=call.name)


@aten("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default", "aten.split.sizes")
def split(call: Call, x: Tensor, sizes: object, dim: int = 0) -> list[Tensor]:
    """The sizes of the parts are those that torch promises."""
    d = dim % x.rank
    parts = [tuple(part.shape)[d] for part in call.node.meta["val"]]
    return ops.split(x, parts, axis=d, names=[call.hint(position) for position in range(len(parts))], name=call.name)


@aten("aten.flip.default")
def flip(call: Call, x: Tensor, dims: Sequence[int]) -> Tensor:
    return ops.flip(x, [d % x.rank for d in dims], name=call.name) if dims and x.rank else x


@aten("aten.roll.default")
def roll(call: Call, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Without dimensions the elements rotate in row-major order."""
    if dims:
        return ops.roll(x, list(shifts), [d % x.rank for d in dims], name=call.name)
    line = ops.reshape(x, (x.size,), name=f"{call.name}.line")
    rolled = ops.roll(line, list(shifts), [0], name=f"{call.name}.rolled")
    return ops.reshape(rolled, call.shape, name=call.name)


@aten("aten.diagonal.default")
def diagonal(call: Call, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonal becomes the last dimension."""
    first, second = dim1 % x.rank, dim2 % x.rank
    down, right = max(-offset, 0), max(offset, 0)

    def index(axes: tuple[Axis, ...]) -> list[Expr]:
        rest, along = iter(axes[:-1]), axes[-1]
        return [along + down if d == first else along + right if d == second else next(rest) for d in range(x.rank)]

    return ops.move(x, call.shape, index, name=call.name)


@aten("aten.tril.default", "aten.triu.default")
def trilu(call: Call, x: Tensor, diagonal: int = 0) -> Tensor:
    return ops.trilu(x, diagonal, upper="triu" in str(call.node.target), name=call.name)


# Padding --------------------------------------------------------------------------------------------------------


def _pad(call: Call, x: Tensor, pad: Sequence[int], value: Number = 0, *, mode: str) -> Tensor:
    """torch counts pads from the last dimension, two for each."""
    before, after = [0] * x.rank, [0] * x.rank
    for position in range(len(pad) // 2):
        before[x.rank - 1 - position], after[x.rank - 1 - position] = pad[2 * position], pad[2 * position + 1]
    return ops.pad(x, before, after, mode=mode, value=value, name=call.name)


@aten("aten.constant_pad_nd.default")
def constant_pad(call: Call, x: Tensor, pad: Sequence[int], value: Number = 0) -> Tensor:
    return _pad(call, x, pad, bool(value) if x.dtype == "bool" else value, mode="constant")


for _rank in (1, 2, 3):
    aten(f"aten.reflection_pad{_rank}d.default")(partial(_pad, mode="reflect"))
    aten(f"aten.replication_pad{_rank}d.default")(partial(_pad, mode="edge"))


@aten("aten.pixel_shuffle.default")
def pixel_shuffle(call: Call, x: Tensor, upscale_factor: int) -> Tensor:
    refuse(x.rank != 4, f"an input of rank {x.rank}", help="[batch, channels, height, width]")
    return depth_to_space(x, block=upscale_factor, order="CRD", name=call.name)


@aten("aten.pixel_unshuffle.default")
def pixel_unshuffle(call: Call, x: Tensor, downscale_factor: int) -> Tensor:
    refuse(x.rank != 4, f"an input of rank {x.rank}", help="[batch, channels, height, width]")
    return space_to_depth(x, block=downscale_factor, order="CRD", name=call.name)


@aten("aten.select_scatter.default")
def select_scatter(call: Call, x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """`x` with the slice at `index` replaced."""
    d = dim % x.rank
    at = index % shape_of(x)[d]
    part = ops.unsqueeze(call.cast(src), [d], name=f"{call.name}.src")
    return _replaced(call, x, part, d, at, 1)


@aten("aten.slice_scatter.default")
def slice_scatter(
    call: Call,
    x: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """`x` with a slice replaced by `src`."""
    d = dim % x.rank
    extent = shape_of(x)[d]
    first, count = ops.slice_bounds(extent, start or 0, extent if end is None else end, step)
    if not count:
        return x
    part = ops.expand(call.cast(src), [count if p == d else e for p, e in enumerate(shape_of(x))],
                      name=f"{call.name}.src")  # fmt: skip
    return _replaced(call, x, part, d, first, step)


def _replaced(call: Call, x: Tensor, part: Tensor, d: int, first: int, step: int) -> Tensor:
    """Positions ``first + step * i`` of dimension `d` from `part`, the others from `x`."""
    axes = axes_of(x.shape)
    count = shape_of(part)[d]
    offset = axes[d] - first
    inside = (offset >= 0) & (offset < count * step)
    if step != 1:
        inside = inside & (offset % step).eq(0)
    read = part[(*axes[:d], offset // step if step != 1 else offset, *axes[d + 1 :])]
    return emit(call.b, axes, choose(inside, read, x[axes]), name=call.name)


# Windows and memory ---------------------------------------------------------------------------------------------


@aten("aten.unfold.default")
def unfold(call: Call, x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` along a dimension; the place in the window becomes the last dimension."""
    if not x.rank:
        return ops.expand(x, call.shape, name=call.name)
    d = dimension % x.rank
    return ops.move(
        x, call.shape, lambda axes: (*axes[:d], axes[d] * step + axes[-1], *axes[d + 1 : -1]), name=call.name
    )


@aten("aten.as_strided.default", "aten.as_strided_copy.default")
def as_strided(call: Call, x: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None) -> Tensor:
    """Elements by their place in memory, which is known where x fills its storage from the begin, in any order."""
    source = call.node.args[0].meta["val"]
    order = _memory_order(source)
    refuse(
        order is None or bool(source.storage_offset()),
        f"as_strided of a view with strides {list(source.stride())}",
        help="x.contiguous().as_strided(…), or views by their names",
    )
    first = storage_offset or 0
    last = first + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    refuse(0 not in size and last >= x.size, f"as_strided reads element {last} of {x.size}")
    stored = ops.transpose(x, order, name=f"{call.name}.stored")
    line = ops.reshape(stored, (x.size,), name=f"{call.name}.line")

    def index(axes: tuple[Axis, ...]) -> list[Expr]:
        place: Expr = const(first, dtypes.INDEX)
        for axis, step in zip(axes, stride, strict=True):
            place = place + axis * step
        return [place]

    return ops.move(line, call.shape, index, name=call.name)


def _memory_order(source: Any) -> list[int] | None:
    """The dimensions of a torch tensor from the outermost in memory; None where its elements leave gaps or overlap."""
    shape, strides = tuple(source.shape), tuple(source.stride())
    order = sorted(range(len(shape)), key=lambda d: (shape[d] != 1, -strides[d]))
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and strides[d] != step:
            return None
        step *= shape[d]
    return order
