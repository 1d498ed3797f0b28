"""Dimensions for tensors that a kernel reads by linear addresses.

A slice of the analysis is an interval along each dimension of a tensor. By a linear address a tensor has one dimension,
and an interval of it is more than what a tile of columns takes. Loops whose strides do not overlap are dimensions of
their own: ``A[b * 210 + m * 10 + k]`` is ``A[b, m, k]``, an image ``X[c * 56 + h * 8 + r * 8 + w + s]`` is
``X[c, h + r, w + s]``, and groups of 4 ``X[k // 4 * 128 + j * 4 + k % 4]`` are ``X[k, j]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.dataclass import dataclass
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import Apply, Axis, Const, Expr, Read, Tensor
from tilewright.expr.rewrite import transform
from tilewright.tiles.problem import Problem


def with_dimensions(problem: Problem) -> Problem:
    """The problem over tensors with dimensions, where their addresses have some.

    Tensors without are left as they are: addresses that come from data, or windows that reach into the next row.
    """
    inputs = {tensor.name: tensor for compute in problem.computes for tensor in compute.inputs() if tensor.rank == 1}
    own = {compute.name for compute in problem.computes}
    found: dict[Read, Read] = {}
    for tensor in inputs.values():
        reads = [read for compute in problem.computes for read in compute.reads() if read.tensor == tensor]
        if tensor.name not in own:
            found |= _shaped(tensor, dict.fromkeys(reads))

    def rule(node: Expr) -> Expr | None:
        return found.get(node) if isinstance(node, Read) else None

    return replace(problem, computes=tuple(replace(each, body=transform(each.body, rule)) for each in problem.computes))


@dataclass(frozen=True)
class _Group:
    """A loop in groups of `size` points: ``axis // size`` is `number`, ``axis % size`` is `place`."""

    axis: Axis
    size: int
    number: Axis
    place: Axis


def _shaped(tensor: Tensor, reads: Iterable[Read]) -> dict[Read, Read]:
    """The reads of one tensor, by several indices instead of one; nothing where one of them is no address of loops."""
    forms: dict[Read, Affine] = {}
    groups: dict[Axis, _Group] = {}
    for read in reads:
        index = transform(read.indices[0], lambda node: _grouped(node, groups))
        form = affine(index)
        if form is None or form.constant < 0 or any(factor < 0 for factor in form.terms.values()):
            return {}
        forms[read] = form
    strides = _strides(list(forms.values()))
    if len(strides) < 2:
        return {}
    extents = [-(-end // stride) for stride, end in zip(strides, [*strides[1:], tensor.size], strict=True)]
    indices = {read: _indices(form, strides) for read, form in forms.items()}
    of_groups = _joined(groups.values(), list(indices.values()), extents)
    if of_groups is None:
        return {}
    shape, shaped = of_groups
    named = replace(tensor, shape=tuple(shape))
    return {
        read: Read(named, tuple(each.expression() for each in dims)) for read, dims in zip(forms, shaped, strict=True)
    }


def _grouped(node: Expr, groups: dict[Axis, _Group]) -> Expr | None:
    """An axis instead of the number of a group, or of the place in it."""
    if not (isinstance(node, Apply) and node.function in ("floordiv", "mod")):
        return None
    axis, size = node.args
    if not isinstance(axis, Axis) or not isinstance(size, Const):
        return None
    points = int(size.value)
    if axis not in groups:
        number = Axis(f"{axis.name} // {points}", -(-axis.size // points))
        groups[axis] = _Group(axis, points, number, Axis(f"{axis.name} % {points}", points))
    group = groups[axis]
    if group.size != points:
        return None
    return group.number if node.function == "floordiv" else group.place


def _strides(forms: Sequence[Affine]) -> list[int]:
    """The strides of the dimensions, innermost first: each is a multiple of the one before that no index reaches."""
    known = sorted({factor for form in forms for factor in form.terms.values()} - {1})
    found = [1]
    for stride in known:
        if any(other % stride for other in known if other > stride):
            continue
        reach = max(_reach(form, found[-1], stride) for form in forms)
        if stride % found[-1] == 0 and reach < stride // found[-1]:
            found.append(stride)
    return found


def _reach(form: Affine, stride: int, end: int) -> int:
    """The largest index along the dimension of a stride, of which strides from `end` on are no part."""
    loops = sum(factor // stride * (axis.size - 1) for axis, factor in form.terms.items() if stride <= factor < end)
    return loops + form.constant % end // stride


def _indices(form: Affine, strides: Sequence[int]) -> list[Affine]:
    """The index along each dimension, innermost first."""
    found, constant = [], form.constant
    ends = [*strides[1:], None]
    for stride, end in zip(reversed(strides), reversed(ends), strict=True):
        terms = {a: f // stride for a, f in form.terms.items() if f >= stride and (end is None or f < end)}
        found.append(Affine(constant // stride, terms))
        constant %= stride
    return list(reversed(found))


def _joined(
    groups: Iterable[_Group], reads: Sequence[list[Affine]], extents: list[int]
) -> tuple[list[int], list[list[Affine]]] | None:
    """Dimensions, outermost first, with one for each loop in groups; None where a group is not two dimensions."""
    alone: dict[Axis, Affine] = {}
    shape, gone = list(extents), set[int]()
    for group in groups:
        numbers, places = Affine(0, {group.number: 1}), Affine(0, {group.place: 1})
        outer = {dim for dims in reads for dim, form in enumerate(dims) if group.number in form.terms}
        inner = {dim for dims in reads for dim, form in enumerate(dims) if group.place in form.terms}
        if len(outer) != 1 or len(inner) != 1:
            return None
        (at,), (of) = outer, inner.pop()
        if any(dims[at] != numbers or dims[of] != places for dims in reads) or extents[of] != group.size:
            return None
        shape[at], alone[group.number] = extents[at] * group.size, Affine(0, {group.axis: 1})
        gone.add(of)
    kept = [dim for dim in reversed(range(len(extents))) if dim not in gone]
    indices = [[_of_group(dims[dim], alone) for dim in kept] for dims in reads]
    return [shape[dim] for dim in kept], indices


def _of_group(form: Affine, alone: Mapping[Axis, Affine]) -> Affine:
    """The index by a loop instead of the number of a group."""
    return next((alone[axis] for axis in form.terms if axis in alone), form)
