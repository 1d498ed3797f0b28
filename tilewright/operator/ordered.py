"""Statements with ordered accumulations: their parts and addresses, and the loops around and inside of their updates.

A program walks outer loops, whose points are independent of each other. At each of them a scan carries its total
along the inner loop, a scatter takes its updates in order, and a sort orders a row in scratch memory.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Expr
from tilewright.expr.ordered import Scatter
from tilewright.operator.statements import drop_unit_loops, fuse_loops
from tilewright.tiles.kernel import Statement


def value_and_places(statement: Statement) -> tuple[Expr, tuple[Expr, ...]]:
    """What an update writes, and of a scatter where: a place in each of `dims`."""
    if not isinstance(statement.accum, Scatter):
        return statement.body, ()
    assert isinstance(statement.body, Apply), "the body of a scatter is a value with its places"
    value, *places = statement.body.args
    return value, tuple(places)


def base_address(statement: Statement) -> Expr:
    """The address of the first element of `dims` at a point of the outer loops."""
    assert statement.address is not None, "an ordered accumulation is stored"
    return statement.address


def stride(statement: Statement, axis: Axis) -> int:
    """Elements between neighbours along an outer loop in the result."""
    form = affine(base_address(statement))
    assert form is not None, "the address of a result is affine"
    return form.coefficient(axis)


def merged(statement: Statement) -> Statement:
    """With neighbouring loops fused that are contiguous in every address, and without those of extent 1."""
    (found,) = fuse_loops(drop_unit_loops((statement,)))
    return replace(found, reduce=found.reduce or (Axis("once", 1),))


def leading(statement: Statement) -> tuple[Axis, ...]:
    """The outer loops around the inner ones, largest steps first; of a scatter those with larger steps than its own."""
    axes = sorted(statement.axes, key=lambda axis: -stride(statement, axis))
    if not isinstance(statement.accum, Scatter):
        return tuple(axes)
    own = max(step for _, step in statement.dims)
    return tuple(axis for axis in axes if stride(statement, axis) > own)


def trailing(statement: Statement) -> tuple[Axis, ...]:
    """The outer loops inside of those over updates, so that an update writes along memory."""
    lead = leading(statement)
    axes = (axis for axis in statement.axes if axis not in lead)
    return tuple(sorted(axes, key=lambda axis: -stride(statement, axis)))
