"""Histograms, places in sorted boundaries, bags of embeddings, and writes in the order of a mask."""

from __future__ import annotations

from tilewright.expr.core import Tensor
from tilewright.expr.ops import counting as ops
from tilewright.expr.ops import indexing
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.elementwise import fill
from tilewright.expr.ops.reduce import cum_sum
from tilewright.frontend.torch.call import Call, Number, refuse
from tilewright.frontend.torch.registry import aten


def _line(call: Call, x: Tensor, label: str) -> Tensor:
    return x if x.rank == 1 else shapes.reshape(x, (x.size,), name=f"{call.name}.{label}")


@aten("aten.histc.default")
def histogram(call: Call, x: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    return ops.histogram(_line(call, x, "line"), bins, float(min), float(max), name=call.name)


@aten("aten.searchsorted.Tensor")
def search_sorted(
    call: Call, boundaries: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if sorter is not None:
        boundaries = indexing.gather_elements(boundaries, sorter, axis=-1, name=f"{call.name}.sorted")
    right = right or side == "right"
    common = call.common_dtype()
    boundaries, x = call.cast(boundaries, common), call.cast(x, common)
    return ops.search_sorted(boundaries, x, right=right, dtype=call.dtype, name=call.name)


@aten("aten.searchsorted.Scalar")
def search_sorted_scalar(
    call: Call, boundaries: Tensor, x: Number, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    value = fill(call.b, (), x, call.common_dtype(), name=f"{call.name}.value")
    return search_sorted(call, boundaries, value, right=right, side=side, sorter=sorter)


@aten("aten.bucketize.Tensor")
def bucketize(call: Call, x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return search_sorted(call, boundaries, x, right=right)


@aten("aten.bucketize.Scalar")
def bucketize_scalar(
    call: Call, x: Number, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return search_sorted_scalar(call, boundaries, x, right=right)


@aten("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    call: Call, weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, None, None, None]:  # fmt: skip
    """The other three results serve the gradient."""
    refuse(any(call.wants(position) for position in (1, 2, 3)), "results that only the gradient needs")
    result = ops.embedding_bag(
        weight, indices, offsets, mode=("sum", "mean", "max")[mode], weights=per_sample_weights,
        include_last=include_last_offset, padding=None if padding_idx < 0 else padding_idx, name=call.name,
    )  # fmt: skip
    return result, None, None, None


@aten("aten.masked_scatter.default")
def masked_scatter(call: Call, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x = shapes.expand(x, call.shape, name=f"{call.name}.in")
    mask = shapes.expand(mask, call.shape, name=f"{call.name}.mask")
    return ops.masked_scatter(x, mask, _line(call, source, "source"), name=call.name)


@aten("aten.repeat_interleave.Tensor")
def repeat_interleave(call: Call, repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Position i ``repeats[i]`` times: the number of repetitions that end at or before each place."""
    refuse(output_size is None, "the shape of the result depends on data", help="give output_size")
    ends = cum_sum(repeats, axis=0, name=f"{call.name}.ends")
    places = shapes.iota(call.b, call.shape[0], dtype=ends.dtype, name=f"{call.name}.places")
    return ops.search_sorted(ends, places, right=True, dtype=call.dtype, name=call.name)


@aten("aten.put.default")
def put(call: Call, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Positions are row-major."""
    line, places, values = _line(call, x, "line"), _line(call, index, "index"), _line(call, source, "source")
    written = indexing.scatter_elements(
        line, places, values, axis=0, reduction="add" if accumulate else "none", name=f"{call.name}.written"
    )
    return shapes.reshape(written, call.shape, name=call.name)
