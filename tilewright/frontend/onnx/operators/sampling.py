"""Resize and GridSample."""

from __future__ import annotations

from fractions import Fraction
from math import floor, inf

from tilewright.errors import InvalidModel
from tilewright.expr.core import Tensor
from tilewright.expr.ops import sampling as ops
from tilewright.expr.ops.shape import normal_axes
from tilewright.frontend.onnx.node import Node
from tilewright.frontend.onnx.registry import op


@op("Resize")
def resize(node: Node) -> Tensor:
    x, shape = node.input(), node.shape()
    axes = normal_axes(node.get_ints("axes", list(range(x.rank))), x.rank, where=node.name)
    position = node.get_string("coordinate_transformation_mode", "half_pixel")
    crop = position == "tf_crop_and_resize"
    roi = (
        [float(v) for v in node.array(1, "the region")]
        if crop and node.has(1)
        else [0.0] * len(axes) + [1.0] * len(axes)
    )
    scales, results = _targets(node, [shape[d] for d in axes], roi, len(axes))
    tables = {
        d: ops.resize_table(
            shape[d],
            results[i],
            scales[i],
            mode=node.get_string("mode", "nearest"),
            position=position,
            rounding=node.get_string("nearest_mode", "round_prefer_floor"),
            cubic_a=node.get_float("cubic_coeff_a", -0.75),
            antialias=bool(node.get_int("antialias", 0)),
            exclude_outside=bool(node.get_int("exclude_outside", 0)),
            roi=(roi[i], roi[i + len(axes)]),
        )
        for i, d in enumerate(axes)
        if crop or scales[i] != 1 or results[i] != shape[d]
    }
    value = node.get_float("extrapolation_value", 0.0) if crop else None
    return ops.resample(x, tables, extrapolation=value, name=node.name)


def _targets(node: Node, extents: list[int], roi: list[float], count: int) -> tuple[list[Fraction], list[int]]:
    """Scale and resulting extent of each resized dimension, from the scales or from the sizes, in exact arithmetic."""
    if node.has(2) and node.array(2, "the scales").size:
        given = [float(v) for v in node.array(2, "the scales")]
        if len(given) != count or not all(0 < scale < inf for scale in given):
            raise InvalidModel(f"scales {given} for {count} dimensions", help="one above 0 for each")
        scales = [ops.simplest(scale) for scale in given]
        crop = node.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
        spans = [ops.simplest(roi[i + count]) - ops.simplest(roi[i]) if crop else 1 for i in range(count)]
        return scales, [floor(e * span * s) for e, span, s in zip(extents, spans, scales, strict=True)]
    sizes = node.integers(3, "the sizes")
    if len(sizes) != count:
        raise InvalidModel(f"sizes {sizes} for {count} dimensions", help="one for each")
    ratios = [Fraction(size, extent) for size, extent in zip(sizes, extents, strict=True)]
    policy = node.get_string("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios, sizes
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [scale] * count, [floor(scale * extent + Fraction(1, 2)) for extent in extents]


@op("GridSample")
def grid_sample(node: Node) -> Tensor:
    mode = node.get_string("mode", "linear")
    return ops.grid_sample(
        node.input(0),
        node.input(1),
        mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
        padding=node.get_string("padding_mode", "zeros"),
        align_corners=bool(node.get_int("align_corners", 0)),
        name=node.name,
    )
