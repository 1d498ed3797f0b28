"""Reads and writes at positions that are data."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.expr.core import Expr, Tensor, select, static_shape
from tilewright.expr.ops import indexing as ops
from tilewright.expr.ops import shape as shapes
from tilewright.expr.ops.elementwise import axes_of, broadcast_shapes, element, emit, fill, map_elements
from tilewright.expr.ops.nodes import cast_node
from tilewright.frontend.torch.call import Call, Number, refuse, shape_of
from tilewright.frontend.torch.registry import aten


@aten("aten.embedding.default")
def embedding(
    call: Call,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    return ops.gather(weight, indices, axis=0, name=call.name)


@aten("aten.index_select.default")
def index_select(call: Call, x: Tensor, dim: int, index: Tensor) -> Tensor:
    """A scalar index picks one slice and keeps the dimension."""
    line = index if index.rank else shapes.reshape(index, (1,), name=f"{call.name}.index")
    if not x.rank:
        return x
    return ops.gather(x, line, axis=dim % x.rank, name=call.name)


@aten("aten.gather.default")
def gather(call: Call, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """``out[p] = x[p with p[dim] = index[p]]``; the index may be smaller than x in the other dimensions."""
    if not x.rank:
        return shapes.expand(x, call.shape, name=call.name)
    d = dim % x.rank
    extents = [e if p == d else min(e, i) for p, (e, i) in enumerate(zip(shape_of(x), shape_of(index), strict=True))]
    if tuple(extents) != shape_of(x):
        x = shapes.slice_(x, [0] * x.rank, extents, name=f"{call.name}.in")
    return ops.gather_elements(x, index, axis=d, name=call.name)


@aten("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(call: Call, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """NumPy's advanced indexing: picked dimensions stand at the first of them if neighbours, else in front."""
    picked = {d: i for d, i in enumerate(indices) if i is not None}
    refuse(any(i.dtype == "bool" for i in picked.values()), "a mask as index: the shape of the result is data")
    shape = broadcast_shapes(*(i.shape for i in picked.values()))
    first = min(picked)
    together = max(picked) - first + 1 == len(picked)
    start = first if together else 0
    axes = axes_of(call.shape)
    chosen, rest = axes[start : start + len(shape)], iter((*axes[:start], *axes[start + len(shape) :]))
    place: list[Expr] = [
        ops.wrapped(element(picked[d], chosen), extent) if d in picked else next(rest)
        for d, extent in enumerate(shape_of(x))
    ]
    return emit(call.b, axes, x[tuple(place)], name=call.name)


@aten("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    call: Call, x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """`x` with elements replaced: at a mask by one value, or at positions along the dimensions that have an index.

    Those dimensions are brought to the front for the scatter, and back afterwards.
    """
    picked = {d: i for d, i in enumerate(indices) if i is not None}
    values = cast_node(call.b, values, x.dtype, name=f"{call.name}.values")
    if len(picked) == 1 and next(iter(picked.values())).dtype == "bool":
        ((lead, mask),) = picked.items()
        return _put_mask(call, x, lead, mask, values, accumulate)
    refuse(any(i.dtype == "bool" for i in picked.values()), "a mask among several indices")
    shape = static_shape(broadcast_shapes(*(i.shape for i in picked.values())))
    kept = [d for d in range(x.rank) if d not in picked]
    start = min(picked) if max(picked) - min(picked) + 1 == len(picked) else 0  # where `index` puts the picked shape
    kept_shape = [shape_of(x)[d] for d in kept]
    values = shapes.expand(values, (*kept_shape[:start], *shape, *kept_shape[start:]), name=f"{call.name}.updates")
    line = list(range(values.rank))
    moved = line[start : start + len(shape)]
    updates = _ordered(call, values, [*moved, *(d for d in line if d not in moved)], f"{call.name}.moved")
    positions = [
        shapes.expand(cast_node(call.b, i, "i64", name=f"{call.name}.cast"), shape, name=f"{call.name}.at")
        for i in picked.values()
    ]
    places = shapes.stack(positions, axis=len(shape), name=f"{call.name}.places")
    order = [*picked, *kept]
    front = _ordered(call, x, order, f"{call.name}.front")
    reduction = "add" if accumulate else "none"
    written = ops.scatter_nd(front, places, updates, reduction=reduction, name=f"{call.name}.written")
    return _ordered(call, written, [order.index(d) for d in range(x.rank)], call.name)


def _ordered(call: Call, x: Tensor, order: Sequence[int], name: str) -> Tensor:
    return x if list(order) == sorted(order) else shapes.transpose(x, order, name=name)


def _put_mask(call: Call, x: Tensor, lead: int, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """`mask` covers the dimensions from `lead` on."""
    shape = (*(1,) * lead, *shape_of(mask), *(1,) * (x.rank - lead - mask.rank))
    refuse(values.size != 1 or accumulate, "several values written through a mask: which goes where is data")
    mask = shapes.reshape(mask, shape, name=f"{call.name}.mask")
    value = shapes.reshape(values, (), name=f"{call.name}.value")
    return map_elements([mask, value, x], select, name=call.name)


# Scatters -------------------------------------------------------------------------------------------------------


@aten("aten.scatter.src")
def scatter(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(call, x, dim, index, src, "none")


@aten("aten.scatter.value")
def scatter_value(call: Call, x: Tensor, dim: int, index: Tensor, value: Number) -> Tensor:
    src = fill(call.b, shape_of(index), value, x.dtype, name=f"{call.name}.src")
    return _scattered(call, x, dim, index, src, "none")


@aten("aten.scatter_add.default")
def scatter_add(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(call, x, dim, index, src, "add")


@aten("aten.scatter_reduce.two")
def scatter_reduce(
    call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    names = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    refuse(reduce not in names or not include_self, f"scatter_reduce with {reduce}, include_self={include_self}")
    return _scattered(call, x, dim, index, src, names[reduce])


@aten("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_combined(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor | Number, *, reduce: str) -> Tensor:
    if not isinstance(src, Tensor):
        src = fill(call.b, shape_of(index), src, x.dtype, name=f"{call.name}.src")
    return _scattered(call, x, dim, index, src, {"add": "add", "multiply": "mul"}[reduce])


def _scattered(call: Call, x: Tensor, dim: int, index: Tensor, src: Tensor, reduction: str) -> Tensor:
    refuse(not x.rank, "a scatter into a scalar")
    if shape_of(src) != shape_of(index):
        src = shapes.slice_(src, [0] * src.rank, shape_of(index), name=f"{call.name}.src")
    return ops.scatter_elements(x, index, src, axis=dim % x.rank, reduction=reduction, name=call.name)


@aten("aten.one_hot.default")
def one_hot(call: Call, x: Tensor, num_classes: int = -1) -> Tensor:
    refuse(num_classes < 0, "the number of classes is data", help="give num_classes")
    axes = axes_of(call.shape)
    return emit(call.b, axes, x[axes[:-1]].cast("i64").eq(axes[-1]).cast(call.dtype), name=call.name)
