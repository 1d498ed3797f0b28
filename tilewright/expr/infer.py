"""Loop inference (spec 1, section 1.2) and the check that reads stay inside their tensors.

`infer` turns a body whose loops and tensor shapes may still be unknown into a `Compute`; the text form uses it.
`check` and `check_bounds` verify finished computes and graphs; frontends call them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import prod

from tilewright.errors import ExtentMismatch, InvalidExpression
from tilewright.expr.affine import affine, bounds, simplify
from tilewright.expr.core import Apply, Axis, Compute, Const, Dim, Expr, Extent, Read, Tensor, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.graph import Graph
from tilewright.expr.ordered import Ordered, Sort
from tilewright.expr.rewrite import transform

#: Stands for an extent that is still to be inferred.
UNKNOWN = Dim("?", 0)

_ENUMERATED = 1 << 24  # points of a domain that are tried one by one where intervals do not settle a bound

Guard = tuple[Expr, ...]  # a conjunction


def guarded_reads(expr: Expr, guard: Guard = ()) -> Iterator[tuple[Read, Guard]]:
    """Every read with the conditions of the selects around it."""
    if isinstance(expr, Apply) and expr.function == "select":
        condition, yes, no = expr.args
        yield from guarded_reads(condition, guard)
        yield from guarded_reads(yes, (*guard, *_conjuncts(condition)))
        yield from guarded_reads(no, (*guard, *_conjuncts(_negated(condition))))
        return
    if isinstance(expr, Read):
        yield expr, guard
    for child in expr.children():
        yield from guarded_reads(child, guard)


def _conjuncts(condition: Expr) -> Guard:
    if isinstance(condition, Apply) and condition.function == "and" and condition.dtype == "bool":
        return (*_conjuncts(condition.args[0]), *_conjuncts(condition.args[1]))
    return (condition,)


def _negated(condition: Expr) -> Expr:
    if isinstance(condition, Apply) and condition.dtype == "bool":
        if condition.function == "not":
            return condition.args[0]
        if condition.function == "or":
            return Apply("and", (_negated(condition.args[0]), _negated(condition.args[1])), "bool")
    return ~condition


def infer(
    name: str,
    axes: Sequence[str],
    body: Expr,
    *,
    accum: str | Ordered | None = None,
    shape: Sequence[Extent] | None = None,
    sizes: Mapping[str, Extent] | None = None,
    over: Sequence[str] | None = None,
) -> Compute:
    """The compute ``name[axes] = accum of body``, with loop kinds, extents and missing shapes inferred.

    In `body`, an axis of extent UNKNOWN takes it from `sizes`, else from the output's `shape`, else from the
    dimensions it indexes alone; a tensor dimension that is UNKNOWN is as long as the indices need. `over`, if given,
    orders the reduction loops and must name exactly those; a loop that the body does not use needs a size.
    Raises InvalidExpression or ExtentMismatch for anything that breaks the rules, bounds included.
    """
    given = dict(sizes or {})
    if len(set(axes)) != len(axes):
        raise InvalidExpression(f"{name}[{', '.join(axes)}]: one loop indexes two dimensions", help="use two names")
    if shape is not None and len(shape) != len(axes):
        raise ExtentMismatch(f"{name} of rank {len(shape)} is written with {len(axes)} indices")
    used = list(dict.fromkeys(node.name for node in walk(body) if isinstance(node, Axis)))
    reduced = [loop for loop in used if loop not in axes]
    if over is not None:
        _check_over(name, over, reduced, axes, given)
        reduced = list(over)
    if accum is None and reduced:
        raise InvalidExpression(
            f"{name}: {', '.join(reduced)} occurs on the right only, and there is no accumulation",
            help=f"write += (or *=, max=, min=), or add {reduced[0]} to the indices of {name}",
        )
    if accum is not None and not reduced:
        raise InvalidExpression(f"{name}: an accumulation without a reduction loop", help="write =")
    for loop, extent in zip(axes, shape or (), strict=False):
        if given.setdefault(loop, extent) != extent:
            raise ExtentMismatch(f"{name}: {loop} has {given[loop]} values and indexes a dimension of {extent}")
    reads = list(guarded_reads(body))
    if any(read.tensor.name == name for read, _ in reads):
        raise InvalidExpression(f"{name} reads itself", help="write each tensor once, and read it afterwards")
    extents = {loop: _extent(name, loop, given, reads) for loop in (*axes, *reduced)}
    body = transform(body, lambda node: Axis(node.name, extents[node.name]) if isinstance(node, Axis) else None)
    shapes = _shapes(name, body)
    body = transform(
        body,
        lambda node: (
            Read(Tensor(node.tensor.name, shapes[node.tensor.name], node.tensor.dtype), node.indices)
            if isinstance(node, Read)
            else None
        ),
    )
    dtype = INDEX if isinstance(accum, Sort) else body.dtype
    output = Tensor(name, tuple(extents[loop] for loop in axes), dtype)
    spatial, summed = (tuple(Axis(loop, extents[loop]) for loop in group) for group in (axes, reduced))
    compute = Compute(output, spatial, body, summed, accum)
    check(compute)
    return compute


def _check_over(
    name: str, over: Sequence[str], reduced: Sequence[str], axes: Sequence[str], given: Mapping[str, Extent]
) -> None:
    missing = [loop for loop in reduced if loop not in over]
    extra = [loop for loop in over if loop not in reduced and (loop in axes or loop not in given)]
    if missing or extra or len(set(over)) != len(over):
        raise InvalidExpression(
            f"{name}: reduces over [{', '.join(over)}], but the reduction loops are [{', '.join(reduced)}]",
            help="leave the list out, or name exactly these",
        )


def _extent(name: str, loop: str, given: Mapping[str, Extent], reads: Sequence[tuple[Read, Guard]]) -> Extent:
    if loop in given:
        return given[loop]
    found: dict[Extent, str] = {}
    for read, guard in reads:
        for dimension, (index, extent) in enumerate(zip(read.indices, read.tensor.shape, strict=True)):
            alone = isinstance(index, Axis) and index.name == loop and extent != UNKNOWN
            if alone and not any(axis.name == loop for condition in guard for axis in _axes(condition)):
                found.setdefault(extent, f"dimension {dimension} of {read.tensor.name} ({extent})")
    if not found:
        raise InvalidExpression(
            f"{name}: loop {loop} stands alone in no unguarded index of known extent", help=f"give a size for {loop}"
        )
    if len(found) > 1:
        raise ExtentMismatch(
            f"{name}: {loop} indexes {' and '.join(found.values())}", help=f"give a size for {loop}, or two loops"
        )
    return next(iter(found))


def _shapes(name: str, body: Expr) -> dict[str, tuple[Extent, ...]]:
    """The shapes of the tensors that `body` reads; UNKNOWN dimensions are as long as indices need."""
    shapes: dict[str, list[Extent]] = {}
    reads = list(guarded_reads(body))
    for read, _ in reads:
        known = shapes.setdefault(read.tensor.name, list(read.tensor.shape))
        if tuple(known) != read.tensor.shape:
            raise ExtentMismatch(f"{name}: {read.tensor.name} is read with {len(known)} and {read.tensor.rank} indices")
    needed: dict[tuple[str, int], Extent] = {}
    for read, guard in reads:
        for dimension, (index, extent) in enumerate(zip(read.indices, read.tensor.shape, strict=True)):
            if extent == UNKNOWN and (isinstance(index, Axis) or not guard):
                key = (read.tensor.name, dimension)
                needed[key] = _longer(needed.get(key, 0), _needed_extent(name, read, index))
    for tensor, shape in shapes.items():
        for dimension, extent in enumerate(shape):
            if extent == UNKNOWN:
                if (tensor, dimension) not in needed:
                    raise InvalidExpression(
                        f"{name}: guarded arithmetic does not tell the extent of dimension {dimension} of {tensor}",
                        help=f"declare the shape of {tensor}",
                    )
                shape[dimension] = needed[tensor, dimension]
    return {tensor: tuple(shape) for tensor, shape in shapes.items()}


def _needed_extent(name: str, read: Read, index: Expr) -> Extent:
    if isinstance(index, Axis):
        return index.extent
    high = bounds(index)[1]
    if high == float("inf") or any(isinstance(node, Axis) and isinstance(node.extent, Dim) for node in walk(index)):
        raise InvalidExpression(
            f"{name}: an index of {read.tensor.name} has no known bound",
            help=f"declare the shape of {read.tensor.name}",
        )
    return max(0, int(high) + 1)


def _longer(left: Extent, right: Extent) -> Extent:
    if left == right or right == 0:
        return left
    if left == 0:
        return right
    if isinstance(left, Dim) or isinstance(right, Dim):
        raise ExtentMismatch(f"one dimension is indexed up to {left} and up to {right}", help="declare its shape")
    return max(left, right)


def check_bounds(graph: Graph) -> None:
    """`check` every node of a graph and of its loops."""
    for node in graph.nodes:
        check(node)
    for loop in graph.loops:
        check_bounds(loop.body)


def check(compute: Compute) -> None:
    """Raise InvalidExpression, with a counterexample, if a read of `compute` can leave its tensor.

    Reads under a `select` are checked where its condition holds. Indices that depend on data are left to the run.
    A named dimension is tried at its least value. Where intervals decide nothing, up to 2**24 points are tried one by
    one; a larger domain is accepted, since the evaluator checks every read anyway.
    """
    if any(axis.extent == 0 for axis in compute.loops):
        return
    for read, guard in dict.fromkeys(guarded_reads(compute.body)):
        for dimension, (index, extent) in enumerate(zip(read.indices, read.tensor.shape, strict=True)):
            if any(isinstance(node, Read) for node in walk(index)):
                continue
            if not _inside(index, extent):
                _try_points(compute, read, dimension, guard)


def stays_inside(read: Read) -> bool:
    """Whether intervals show that a read is of its tensor for all values of the loops."""
    return all(_inside(index, extent) for index, extent in zip(read.indices, read.tensor.shape, strict=True))


def _inside(index: Expr, extent: Extent) -> bool:
    """Whether intervals show that ``0 <= index < extent``."""
    if isinstance(index, Axis) and index.extent == extent:
        return True
    low, high = bounds(simplify(index))
    return low >= 0 and high < (extent.low if isinstance(extent, Dim) else extent)


def _try_points(compute: Compute, read: Read, dimension: int, guard: Guard) -> None:
    """Evaluate one index over the loops it depends on, where the guard holds, and raise for the first one outside."""
    index, extent = read.indices[dimension], read.tensor.shape[dimension]
    needed = _axes(index)
    tried = tuple(condition for condition in guard if not any(isinstance(node, Read) for node in walk(condition)))
    small = tuple(condition for condition in tried if _axes(condition) <= needed)
    point = _counterexample(index, extent, small)
    if point is None:
        return
    if len(small) < len(guard):
        # The conditions left out may exclude the point; those on data always may.
        if len(tried) < len(guard):
            return
        needed = needed.union(*map(_axes, tried))
        if prod(_least(axis.extent) for axis in needed) > _ENUMERATED:
            return
        point = _counterexample(index, extent, tried)
        if point is None:
            return
    where, value = point
    raise InvalidExpression(
        f"{compute.name} reads {read.tensor} with index {value} in dimension {dimension}"
        + (f" at {', '.join(f'{loop} = {number}' for loop, number in where.items())}" if where else ""),
        help=f"an index in [0, {extent}), or a select that guards the read",
    )


def _axes(expr: Expr) -> set[Axis]:
    return {node for node in walk(expr) if isinstance(node, Axis)}


def _least(extent: Extent) -> int:
    if isinstance(extent, Dim):
        return -(-max(1, extent.low) // extent.divisor) * extent.divisor
    return extent


def _counterexample(index: Expr, extent: Extent, guard: Guard) -> tuple[dict[str, int], int] | None:
    """Values of loops and dimensions where the guard holds and the index is outside, and the index there."""
    loops = sorted(set().union(_axes(index), *map(_axes, guard)), key=lambda axis: axis.name)
    fixed = {axis: Axis(axis.name, _least(axis.extent)) for axis in loops}

    def settle(expr: Expr) -> Expr:
        return transform(expr, lambda node: fixed.get(node) if isinstance(node, Axis) else None)

    axes = tuple(fixed[axis] for axis in loops)
    last = settle(index)
    outside = (last < 0) | (last >= _least(extent))
    form = affine(last)
    if not guard and form is not None:
        low = {axis: 0 if form.coefficient(axis) >= 0 else _least(axis.extent) - 1 for axis in axes}
        high = {axis: _least(axis.extent) - 1 - low[axis] for axis in axes}
        corners = [low, high]
    elif prod(_least(axis.extent) for axis in axes) > _ENUMERATED:
        return None
    else:
        corners = _enumerate(axes, reduce(lambda a, b: a & b, map(settle, guard), outside))
    for corner in corners:
        point = transform(last, lambda node: Const(corner[node], node.dtype) if isinstance(node, Axis) else None)  # noqa: B023
        value = int(evaluate_compute(Compute(Tensor("index", (), "i64"), (), point), {}))
        if not 0 <= value < _least(extent):
            dims = {axis.extent.name: _least(axis.extent) for axis in loops if isinstance(axis.extent, Dim)}
            if isinstance(extent, Dim):
                dims[extent.name] = _least(extent)
            return {**dims, **{axis.name: number for axis, number in corner.items()}}, value
    return None


def _enumerate(axes: tuple[Axis, ...], condition: Expr) -> list[dict[Axis, int]]:
    """The first point where the condition holds, if there is one."""
    holds = evaluate_compute(Compute(Tensor("holds", tuple(axis.extent for axis in axes), "bool"), axes, condition), {})
    if not holds.any():
        return []
    flat = int(holds.argmax())
    point: dict[Axis, int] = {}
    for axis in reversed(axes):
        flat, point[axis] = divmod(flat, _least(axis.extent))
    return [{axis: point[axis] for axis in axes}]
