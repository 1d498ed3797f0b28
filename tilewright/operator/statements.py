"""The statements of one kernel and the loops that they share.

Every statement has the *outer* loops. The *inner* loops are those of the reductions: a reduction walks them, and so
does a statement that *covers* them, which has a value for every inner point. A pointwise kernel has no inner loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Cast, Const, Expr, Read, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.expr.rewrite import substitute, transform
from tilewright.tiles.kernel import Statement

Statements = tuple[Statement, ...]
MULTIPLY_ADDS = ("f32", "f64")  # types of multiply-adds; others are computed in a wider type


def inner_loops(statements: Sequence[Statement]) -> tuple[Axis, ...]:
    """The loops of the reductions; none in a pointwise kernel."""
    return next((each.reduce for each in statements if each.reduce), ())


def outer_loops(statements: Sequence[Statement]) -> tuple[Axis, ...]:
    """The loops that all statements have, outermost first."""
    inner = inner_loops(statements)
    return tuple(axis for axis in statements[0].axes if axis not in inner)


def covering(statements: Sequence[Statement]) -> dict[str, Statement]:
    """The statements that have a value for every inner point, by name."""
    inner = inner_loops(statements)
    return {each.name: each for each in statements if any(axis in inner for axis in each.axes)}


def point_count(statements: Sequence[Statement]) -> int:
    """Points of all loops together."""
    return prod(axis.size for axis in (*outer_loops(statements), *inner_loops(statements)))


def is_multiply_add(body: Expr, dtype: str) -> bool:
    """Whether a sum in `dtype` adds products of two floats that are computed in this type.

    Each step is then one multiply-add, unless vectors run along the sum.
    """
    if not isinstance(body, Apply) or body.function != "mul":
        return False
    return all(each.dtype == dtype in MULTIPLY_ADDS for each in (body, *body.args))


def places(loops: Iterable[tuple[int, int]]) -> set[int]:
    """The addresses that loops come to, each with its step and its points."""
    found = {0}
    for step, points in loops:
        found = {place + step * point for place in found for point in range(points)}
    return found


def over(outer: Sequence[Axis], inner: Sequence[Axis], statements: Sequence[Statement]) -> Statements:
    """The statements with these loops: a value covers the inner ones if its expressions, or values in them, do."""
    covers: set[str] = set()
    found = []
    for each in statements:
        if each.accum is not None:
            found.append(replace(each, axes=tuple(outer), reduce=tuple(inner)))
            continue
        parts = [*walk(each.body), *([] if each.address is None else walk(each.address))]
        if any(part in inner or value_read(part) in covers for part in parts):
            covers.add(each.name)
        found.append(replace(each, axes=(*outer, *(inner if each.name in covers else ())), reduce=()))
    return tuple(found)


def mapped(statements: Sequence[Statement], rule: Callable[[Expr], Expr]) -> Statements:
    """The statements with other bodies and addresses, over the same loops."""
    return tuple(
        replace(each, body=rule(each.body), address=None if each.address is None else rule(each.address))
        for each in statements
    )


def fuse_loops(statements: Statements) -> Statements:
    """Fuse neighbouring loops that are contiguous in every address: fewer loops, longer vectors."""
    for loops in (outer_loops, inner_loops):
        position = 0
        while position + 1 < len(loops(statements)):
            a, b = loops(statements)[position : position + 2]
            fused = _with_fused(statements, a, b)
            if fused is None:
                position += 1
            else:
                statements = fused
    return statements


def _with_fused(statements: Statements, a: Axis, b: Axis) -> Statements | None:
    """The statements with two neighbouring loops as one; None where these are not contiguous."""
    indices = [each.address for each in statements if each.address is not None]
    for each in statements:
        indices.extend(addresses(each.body))
    if not contiguous(a, b, indices) or any(outside_reads(each.body, (a, b)) for each in statements):
        return None
    taken = {axis.name for axis in (*outer_loops(statements), *inner_loops(statements))}
    fused = Axis(unique(f"{a.name}_{b.name}", taken), a.size * b.size)

    def loops(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(fused if axis == b else axis for axis in axes if axis != a)

    found = mapped(statements, lambda expr: substitute(expr, {a: Const(0, INDEX), b: fused}))
    return tuple(replace(each, axes=loops(each.axes), reduce=loops(each.reduce)) for each in found)


def drop_unit_loops(statements: Statements) -> Statements:
    """Remove loops of extent 1."""
    outer, inner = outer_loops(statements), inner_loops(statements)
    unit = {axis: Const(0, INDEX) for axis in (*outer, *inner) if axis.extent == 1}
    if not unit:
        return statements
    outer, inner = (tuple(axis for axis in axes if axis.extent != 1) for axes in (outer, inner))
    return over(outer, inner, mapped(statements, lambda expr: substitute(expr, unit)))


# Expressions ----------------------------------------------------------------------------------------------------------


def outside_reads(body: Expr, axes: Sequence[Axis]) -> bool:
    """Whether a loop occurs in a body outside the addresses of its reads."""
    if isinstance(body, Read):
        return False
    return body in axes or any(outside_reads(child, axes) for child in body.children())


def addresses(body: Expr) -> list[Expr]:
    """The linear addresses of the flat reads in a body."""
    return [index for read in walk(body) if isinstance(read, Read) for index in read.indices]


def contiguous(a: Axis, b: Axis, indices: Sequence[Expr]) -> bool:
    """Whether in every address a step of `a` is as long as all steps of `b`, so that one loop can take both.

    Other loops may be in an address in any form, such as the columns of a panel.
    """
    for index in indices:
        moved = [term for term in _addends(index) if any(x in (a, b) for x in walk(term))]
        forms = [affine(term) for term in moved]
        known = [form for form in forms if form is not None]
        if len(known) < len(forms):
            return False
        if sum(form.coefficient(a) for form in known) != sum(form.coefficient(b) for form in known) * b.size:
            return False
    return True


def _addends(index: Expr) -> Iterator[Expr]:
    """The terms whose sum an index is."""
    if isinstance(index, Apply) and index.function == "add":
        for arg in index.args:
            yield from _addends(arg)
    else:
        yield index


def value_read(expr: Expr) -> str:
    """The name of the value of the same kernel that an expression reads; empty if it is no such read."""
    return expr.tensor.name if isinstance(expr, Read) and not expr.indices else ""


def values_in(body: Expr) -> dict[str, None]:
    """Names of values of the same kernel that a body reads, in order."""
    return {value_read(part): None for part in walk(body) if value_read(part)}


def written_out(body: Expr, values: Mapping[str, Statement]) -> Expr:
    """A body with the named values that it reads written out."""

    def rule(expr: Expr) -> Expr | None:
        name = value_read(expr)
        return written_out(values[name].body, values) if name in values else None

    return transform(body, rule)


def without_conversions(expr: Expr) -> Expr:
    """A value without conversions to f32, which change nothing."""
    while isinstance(expr, Cast) and expr.dtype == "f32" and expr.arg.dtype in ("f16", "bf16", "f32"):
        expr = expr.arg
    return expr
