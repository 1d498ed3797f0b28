"""The largest value of a softmax without the elements that are NaN: the sum of exponentials has them anyway.

    m = max over i of x[i]     s = sum over i of exp(x[i] - m)     y[i] = exp(x[i] - m) / s

A NaN among the x is one of the exponentials, and so the sum is NaN, and every y. Whether m is NaN too makes no
difference. On a CPU an extreme of which a NaN wins takes three or four instructions for each vector, another one takes
one. Legal where every result that depends on m depends on such a sum, by functions of which a NaN gives a NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tilewright.expr import dtypes
from tilewright.expr.core import Apply, Cast, Expr, Read, walk
from tilewright.operator.statements import Statements, value_read, values_in, without_conversions, written_out
from tilewright.tiles.kernel import Statement

EXPONENTIALS = ("exp", "exp_nonpositive")
#: Functions that are NaN where one of their arguments is.
KEEP_NAN = frozenset({"add", "sub", "mul", "div", "neg", "abs", "exp", "exp_nonpositive", "log", "sqrt", "max", "min"})


def maxima_without_nan(statements: Statements) -> Statements:
    """The statements, in which largest values ignore NaN where every result has it all the same."""
    values = {each.name: each for each in statements}
    if any(read.tensor.name in values and read.indices for each in statements for read in _reads(each.body)):
        return statements  # values at other points, of which a NaN of this row says nothing
    return tuple(
        replace(each, ignores_nan=True) if each.accum == "max" and _is_in_results(each, statements) else each
        for each in statements
    )


def _is_in_results(largest: Statement, statements: Statements) -> bool:
    """Whether every result that depends on a largest value of floats is NaN where an element of it is."""
    if not dtypes.is_float(largest.tensor.dtype):
        return False
    maps = {each.name: each for each in statements if each.accum is None}
    depends, carries = {largest.name}, set[str]()
    for each in statements:
        if each is largest:
            continue
        if depends & values_in(each.body).keys():
            depends.add(each.name)
        if _sums_exponentials(each, largest, maps) or _keeps_nan(each, carries):
            carries.add(each.name)
    results = {each.name for each in statements if each.address is not None}
    return bool(carries) and depends & results <= carries


def _sums_exponentials(each: Statement, largest: Statement, maps: Mapping[str, Statement]) -> bool:
    """Whether a statement is the sum of the exponentials of all elements less the largest of them."""
    power = without_conversions(written_out(each.body, maps))
    if each.accum != "sum" or each.reduce != largest.reduce or each.axes != largest.axes:
        return False
    if not (isinstance(power, Apply) and power.function in EXPONENTIALS and dtypes.is_float(power.dtype)):
        return False
    difference = without_conversions(power.args[0])
    if not (isinstance(difference, Apply) and difference.function == "sub"):
        return False
    element, peak = (without_conversions(side) for side in difference.args)
    return value_read(peak) == largest.name and element == without_conversions(written_out(largest.body, maps))


def _keeps_nan(each: Statement, values: set[str]) -> bool:
    """Whether a statement is NaN where one of these values is."""
    return each.accum in (None, "sum", "max", "min") and not each.ignores_nan and _carries(each.body, values)


def _carries(expr: Expr, values: set[str]) -> bool:
    """Whether an expression is NaN where one of these values is."""
    if isinstance(expr, Cast):
        return dtypes.is_float(expr.dtype) and _carries(expr.arg, values)
    if isinstance(expr, Apply):
        return expr.function in KEEP_NAN and any(_carries(each, values) for each in expr.args)
    return value_read(expr) in values


def _reads(body: Expr) -> Iterator[Read]:
    yield from (each for each in walk(body) if isinstance(each, Read))
