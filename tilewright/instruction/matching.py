"""Where a record applies to a node: expression trees compared, tensors bound to operands, match points.

A `Match` is a canonical node, a record, and the read bound to every source operand. From it follow the boolean access
matrices X (tensors x software loops) and Z (operands x intrinsic loops), the signatures of loops (columns of both),
and the match points, of which mode `points` makes its mappings. Nothing here looks at a name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.affine import Affine, affine
from tilewright.expr.core import FUNCTIONS, Apply, Axis, Cast, Compute, Const, Expr, Read, Tensor
from tilewright.expr.dtypes import DType
from tilewright.expr.text import print_expr
from tilewright.instruction.canonical import (
    Canonical,
    Unit,
    canonicalise,
    keeps_value,
    widened,
    with_splits,
    with_units,
)
from tilewright.intrinsics.intrinsic import Intrinsic, Loop, LoopKind

Matrix = np.ndarray[Any, np.dtype[np.bool_]]
#: For every intrinsic loop, in the record's order, the software loop it is matched with.
Point = tuple[Axis, ...]

_COMMUTATIVE = frozenset({"add", "mul", "min", "max"})


@dataclass(frozen=True)
class Match:
    """A record that applies to a node: `reads` are what its source operands are bound to, in the record's order.

    `swapped` says that the operands of a commutative function were taken in another order than written.
    """

    canonical: Canonical
    record: Intrinsic
    reads: tuple[Read, ...]
    swapped: bool = False

    @property
    def compute(self) -> Compute:
        return self.canonical.core

    @property
    def loops(self) -> tuple[Axis, ...]:
        return self.compute.loops

    @cached_property
    def forms(self) -> tuple[tuple[Affine, ...], ...]:
        """The affine form of every index of every read."""
        found = tuple(tuple(affine(index) for index in read.indices) for read in self.reads)
        assert all(form is not None for forms in found for form in forms), "a match reads with affine indices"
        return found  # type: ignore[return-value]

    @cached_property
    def access(self) -> Matrix:
        """X: one row per source in the record's order, then the output; one column per software loop."""
        rows = [[any(form.coefficient(axis) for form in forms) for axis in self.loops] for forms in self.forms]
        spatial = set(self.compute.axes)
        return np.array([*rows, [axis in spatial for axis in self.loops]], np.bool_).reshape(-1, len(self.loops))

    @cached_property
    def intrinsic_access(self) -> Matrix:
        """Z: one row per operand, one column per intrinsic loop."""
        loops = self.record.loops
        rows = [[loop.name in operand.loops for loop in loops] for operand in self.record.operands]
        return np.array(rows, np.bool_).reshape(len(rows), len(loops))

    def kind(self, axis: Axis) -> LoopKind:
        return "S" if axis in self.compute.axes else "R"

    def signature(self, axis: Axis) -> tuple[bool, ...]:
        """The column of X of a software loop."""
        return self._signatures[axis]

    @cached_property
    def _signatures(self) -> dict[Axis, tuple[bool, ...]]:
        return dict(zip(self.loops, map(tuple, self.access.T.tolist()), strict=True))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The match points: injective, kinds kept, and every input separable along the operand's loops.

        A loop of a match point indexes the operands that its intrinsic loop does: no other loops need be tried.
        """
        return tuple(
            point
            for point in product(*map(self.candidates, self.record.loops))
            if len(set(point)) == len(point) and self.entangled(point) is None
        )

    def entangled(self, point: Point) -> int | None:
        """The first source whose dimensions do not separate the loops of `point`, or None.

        With all other loops at their lower bound, dimensions that still vary must be ``a * x + b`` with a > 0, one for
        each loop that the operand is indexed by.
        """
        matched = dict(zip((loop.name for loop in self.record.loops), point, strict=True))
        inside = set(point)
        for number, (operand, forms) in enumerate(zip(self.record.sources, self.forms, strict=True)):
            varying = []
            for form in forms:
                terms = [(axis, coefficient) for axis, coefficient in form.terms.items() if axis in inside]
                if len(terms) > 1 or (terms and terms[0][1] <= 0):
                    return number
                varying += [axis for axis, _ in terms]
            wanted = [matched[name] for name in operand.loops]
            if len(varying) != len(wanted) or set(varying) != set(wanted):
                return number
        return None

    def candidates(self, loop: Loop) -> tuple[Axis, ...]:
        """The software loops with the kind and signature of an intrinsic loop."""
        column = tuple(loop.name in operand.loops for operand in self.record.operands)
        return tuple(axis for axis in self.loops if self.kind(axis) == loop.kind and self.signature(axis) == column)


def match(
    node: Compute | Canonical,
    record: Intrinsic,
    *,
    commute: bool = False,
    complete: bool = False,
    flip: bool = False,
    taken: Collection[str] = (),
) -> tuple[Match, ...]:
    """Every way to bind the factors of `node` to the operands of `record`: as written, and reordered if `commute`.

    `complete` splits software loops, or adds some of extent 1, where intrinsic loops lack them; `flip` turns reversed
    windows around; new nodes get other names than those `taken`. Empty if the record does not apply; `mismatch` says
    why.
    """
    canonical = canonicalise(node, flip=flip, taken=taken) if isinstance(node, Compute) else node
    canonical = _with_accumulator(canonical, record)
    if _obstacle(canonical.core, record) is not None:
        return ()
    found: list[Match] = []
    for binding, swapped in _bind(record.body.value, canonical.core.body, commute):
        one = Match(canonical, record, tuple(binding[operand.role] for operand in record.sources), swapped)
        if _operand_types(one) is None:
            found.append(_completed(one) if complete else one)
    return tuple(dict.fromkeys(found))


def mismatch(node: Compute | Canonical, record: Intrinsic) -> str:
    """In words, the first reason why `record` does not apply to `node`; empty if it applies."""
    canonical = canonicalise(node) if isinstance(node, Compute) else node
    canonical = _with_accumulator(canonical, record)
    core = canonical.core
    obstacle = _obstacle(core, record)
    if obstacle is not None:
        return obstacle
    reason = (
        f"{record.name} computes {print_expr(record.body.value, record.body.value.dtype)}, and the body is "
        f"{print_expr(core.body, core.output.dtype)}"
    )
    for binding, swapped in _bind(record.body.value, core.body, False):
        one = Match(canonical, record, tuple(binding[operand.role] for operand in record.sources), swapped)
        types = _operand_types(one)
        if types is None:
            return ""
        reason = types
    return reason


def adapted(compute: Compute, record: Intrinsic) -> Compute:
    """`compute` with the element types of `record`: what its factors read, and what it accumulates in.

    A node that does not have the tree of the record is returned as it is.
    """
    result = record.destination.dtype
    try:
        canonical = canonicalise(retyped(compute, {}, result))
    except InvalidExpression:
        return compute
    made = {node.name: node.inputs() for node in canonical.before}
    for binding, _ in _bind(record.body.value, canonical.core.body, False):
        types: dict[str, DType] = {}
        table: DType | None = None
        for operand in record.sources:
            tensor, own = binding[operand.role].tensor, software_dtype(operand.dtype)
            read = made.get(tensor.name, (tensor,))
            types.update((each.name, own) for each in read)
            table = table if read else own
        return retyped(compute, types, result, table)
    return compute


def software_dtype(dtype: DType) -> DType:
    """The element type of expressions that holds elements of a record: narrow types have wider carriers."""
    if dtype.startswith("f8"):
        return "f16"
    return {"tf32": "f32", "b1": "bool", "i4": "i8", "u4": "u8"}.get(dtype, dtype)


def retyped(compute: Compute, types: Mapping[str, DType], result: DType, table: DType | None = None) -> Compute:
    """`compute` with these element types of the tensors it reads (by name) and of its result; casts are made anew.

    `table` is the type of choices between numbers, which read nothing. Raises InvalidExpression where a part of the
    body has a type that no tensor gives it.
    """

    def value(expr: Expr) -> Expr:
        if isinstance(expr, Cast) and expr.arg.dtype != "bool":
            return value(expr.arg)
        if isinstance(expr, Read):
            tensor = Tensor(expr.tensor.name, expr.tensor.shape, types.get(expr.tensor.name, result))
            return tensor[expr.indices].cast(result)
        if isinstance(expr, Const):
            return Const(expr.value, result)
        if isinstance(expr, Apply) and expr.function == "select":
            return _chosen(expr.args[0], value(expr.args[1]), value(expr.args[2]), table or result)
        if isinstance(expr, Apply) and FUNCTIONS[expr.function].result == "same":
            return Apply(expr.function, tuple(value(arg) for arg in expr.args), result)
        raise InvalidExpression(f"{print_expr(expr)} has a type of its own", help="give the dtypes with --dtype")

    output = Tensor(compute.name, compute.output.shape, result)
    found = replace(compute, output=output, body=value(compute.body))
    if len({tensor.name for tensor in found.inputs()}) < len(found.inputs()):
        raise InvalidExpression(f"{compute.name} reads a tensor in two types", help="give the dtypes with --dtype")
    return found


def _chosen(condition: Expr, yes: Expr, no: Expr, table: DType) -> Expr:
    """A select, in the type that the read was cast from where the other branch is a number: guarded padding."""
    if isinstance(yes, Const) and isinstance(no, Const) and table != yes.dtype:
        numbers = (Const(yes.value, table), Const(no.value, table))
        return Apply("select", (condition, *numbers), table).cast(yes.dtype)
    if isinstance(yes, Cast) and isinstance(no, Const):
        narrow = yes.arg.dtype
        return Apply("select", (condition, yes.arg, Const(no.value, narrow)), narrow).cast(yes.dtype)
    return Apply("select", (condition, yes, no), yes.dtype)


# Trees


def _obstacle(core: Compute, record: Intrinsic) -> str | None:
    """What, of everything but the tree, keeps a record from applying."""
    if not all(isinstance(axis.extent, int) for axis in core.loops):
        return "the extents of its loops are not known at compile time"
    if any(axis.extent == 0 for axis in core.loops):
        return f"it is empty: loop {next(axis.name for axis in core.loops if axis.extent == 0)} has extent 0"
    wanted = record.combine
    if core.accum != wanted:
        return f"{record.name} accumulates with {wanted}, the node with {core.accum or 'nothing'}"
    if core.output.dtype != record.destination.dtype:
        return f"{record.name} accumulates in {record.destination.dtype}, the node in {core.output.dtype}"
    return None


def _bind(wanted: Expr, found: Expr, commute: bool) -> Iterator[tuple[dict[str, Read], bool]]:
    """Bindings of roles to reads under which two trees are equal, each with whether operands changed places."""
    if isinstance(wanted, Read):
        inner = found
        while isinstance(inner, Cast) and keeps_value(inner.arg.dtype, inner.dtype):
            inner = inner.arg
        if isinstance(inner, Read) and all(affine(index) is not None for index in inner.indices):
            yield {wanted.tensor.name: inner}, False
        return
    if isinstance(wanted, Const):
        if isinstance(found, Const) and found.value == wanted.value:
            yield {}, False
        return
    if not (isinstance(wanted, Apply) and isinstance(found, Apply) and wanted.function == found.function):
        return
    yield from _bind_all(wanted.args, found.args, commute, False)
    if commute and wanted.function in _COMMUTATIVE and FUNCTIONS[wanted.function].arity == 2:
        yield from _bind_all(wanted.args, found.args[::-1], commute, True)


def _bind_all(
    wanted: Sequence[Expr], found: Sequence[Expr], commute: bool, swapped: bool
) -> Iterator[tuple[dict[str, Read], bool]]:
    if not wanted:
        yield {}, swapped
        return
    for first, turned in _bind(wanted[0], found[0], commute):
        for rest, later in _bind_all(wanted[1:], found[1:], commute, swapped):
            if all(first.get(role, read) == read for role, read in rest.items()):
                yield {**first, **rest}, turned or later


def _operand_types(match: Match) -> str | None:
    """The first operand whose element type is not that of its tensor, in words."""
    for operand, read in zip(match.record.sources, match.reads, strict=True):
        if software_dtype(operand.dtype) != read.dtype:
            return f"{operand.role} of {match.record.name} is {operand.dtype}, {read.tensor.name} is {read.dtype}"
    return None


def _with_accumulator(canonical: Canonical, record: Intrinsic) -> Canonical:
    """The node accumulating as the record does, where that is a wider float than its own."""
    own, wanted = canonical.core.output.dtype, record.destination.dtype
    wider = all(map(dtypes.is_float, (own, wanted))) and dtypes.bits(wanted) > dtypes.bits(own)
    return widened(canonical, wanted) if wider and canonical.core.accum == "sum" else canonical


def _completed(match: Match) -> Match:
    """The match with as many software loops of every signature as the record has intrinsic loops of it.

    A long loop is split by the extent of an intrinsic loop that divides it (the lanes of a tile, say); where there is
    none, a loop of extent 1 is added.
    """
    if len(set(match.reads)) != len(match.reads):
        return match
    classes: dict[tuple[LoopKind, tuple[bool, ...]], list[Loop]] = {}
    for number, loop in enumerate(match.record.loops):
        classes.setdefault((loop.kind, tuple(map(bool, match.intrinsic_access[:, number]))), []).append(loop)
    splits: dict[Axis, int] = {}
    for loops in classes.values():
        splits |= _splits(match.candidates(loops[0]), loops)
    cut = with_splits(match.canonical, splits) if splits else None
    if cut is not None:
        match = _rebound(match, cut)
    reads = list(dict.fromkeys(match.compute.reads()))
    units = []
    for (kind, column), loops in classes.items():
        touched = {read for read, indexed in zip(match.reads, column, strict=False) if indexed}
        lacking = len(loops) - len(match.candidates(loops[0]))
        units += [Unit(kind, tuple(read in touched for read in reads))] * lacking
    return _rebound(match, with_units(match.canonical, units)) if units else match


def _splits(axes: Sequence[Axis], loops: Sequence[Loop]) -> dict[Axis, int]:
    """Which of too few software loops are cut, and into pieces of what extent: the longest by the last loops first."""
    found: dict[Axis, int] = {}
    longest = sorted(axes, key=lambda axis: -int(axis.extent))  # type: ignore[arg-type]
    for loop in reversed(loops):
        if len(axes) + len(found) >= len(loops):
            break
        for axis in longest:
            size = int(axis.extent)  # type: ignore[arg-type]
            if axis not in found and 1 < loop.extent < size and size % loop.extent == 0:
                found[axis] = loop.extent
                break
    return found


def _rebound(match: Match, canonical: Canonical) -> Match:
    """The match of a core with other loops and the same tree."""
    for binding, swapped in _bind(match.record.body.value, canonical.core.body, match.swapped):
        if swapped == match.swapped:
            reads = tuple(binding[operand.role] for operand in match.record.sources)
            return replace(match, canonical=canonical, reads=reads)
    raise AssertionError("loops that are cut or added do not change the tree")
