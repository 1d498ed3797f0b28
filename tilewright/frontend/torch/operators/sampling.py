"""Interpolation, and sampling at given positions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

from tilewright.errors import Unsupported
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.expr.ops import sampling as ops
from tilewright.frontend.torch.call import Call, refuse, shape_of
from tilewright.frontend.torch.registry import aten


def _nearest(call: Call, x: Tensor, *sizes: object, exact: bool = False) -> Tensor:
    """Element ``floor(o / scale)``, or of the nearest centre if `exact`."""
    position = "half_pixel" if exact else "asymmetric"
    return _resized(call, x, _scales(x, sizes), "nearest", position, "round_prefer_ceil" if exact else "floor")


def _interpolated(call: Call, x: Tensor, size: object, align_corners: bool, *scales: object, mode: str) -> Tensor:
    position = "align_corners" if align_corners else "half_pixel"
    return _resized(call, x, _scales(x, scales), mode, position, "floor")


def _scales(x: Tensor, arguments: Sequence[object]) -> list[float]:
    """The scales among the arguments: a list of floats, or one after another; none where they are left out."""
    flat = [part for argument in arguments for part in (argument if isinstance(argument, list) else [argument])]
    found = [part for part in flat if isinstance(part, float)]
    return found if len(found) == x.rank - 2 else []


def _resized(call: Call, x: Tensor, scales: Sequence[float], mode: str, position: str, rounding: str) -> Tensor:
    tables = {}
    for d in range(2, x.rank):
        extent, result = shape_of(x)[d], call.shape[d]
        scale = ops.simplest(scales[d - 2]) if scales and position != "align_corners" else Fraction(result, extent)
        if extent != result or scale != 1:
            tables[d] = ops.resize_table(extent, result, scale, mode=mode, position=position, rounding=rounding)
    return ops.resample(x, tables, name=call.name)


for _rank, _linear in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    for _overload in ("default", "vec"):
        aten(f"aten.upsample_nearest{_rank}d.{_overload}")(_nearest)
        aten(f"aten._upsample_nearest_exact{_rank}d.{_overload}")(partial(_nearest, exact=True))
        aten(f"aten.upsample_{_linear}{_rank}d.{_overload}")(partial(_interpolated, mode="linear"))
for _overload in ("default", "vec"):
    aten(f"aten.upsample_bicubic2d.{_overload}")(partial(_interpolated, mode="cubic"))


def _antialiased(call: Call, x: Tensor, size: object, align_corners: bool, *scales: object, mode: str) -> Tensor:
    """Weights spread with the step where the result is smaller, and those outside of the input are left out."""
    refuse(not dtypes.is_float(x.dtype), f"antialiasing of {x.dtype}", help="floats")
    tables, given = {}, _scales(x, scales)
    for d in range(2, x.rank):
        extent, result = shape_of(x)[d], call.shape[d]
        refuse(align_corners and result == 1 < extent, "align_corners with a result of one element")
        scale = ops.simplest(given[d - 2]) if given else Fraction(result, extent)
        if align_corners and extent > 1:
            scale = Fraction(result - 1, extent - 1)
        if extent != result or scale != 1:
            tables[d] = ops.resize_table(
                extent, result, scale, mode=mode, cubic_a=-0.5, antialias=True, exclude_outside=True
            )
    return ops.resample(x, tables, name=call.name)


for _overload in ("default", "vec"):
    aten(f"aten._upsample_bilinear2d_aa.{_overload}")(partial(_antialiased, mode="linear"))
    aten(f"aten._upsample_bicubic2d_aa.{_overload}")(partial(_antialiased, mode="cubic"))


@aten("aten.grid_sampler_2d.default", "aten.grid_sampler.default", "aten.grid_sampler_3d.default")
def grid_sampler(
    call: Call, x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    if x.dtype != grid.dtype:
        raise Unsupported(f"a grid of {grid.dtype} for {x.dtype}")
    return ops.grid_sample(
        x,
        grid,
        mode=modes[interpolation_mode],
        padding=paddings[padding_mode],
        align_corners=align_corners,
        name=call.name,
    )
