"""Index arithmetic: affine forms, value ranges, and simplification of floor division and modulo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import reduce
from math import inf
from operator import add, is_

from tilewright.dataclass import dataclass
from tilewright.expr.core import UNKNOWN, Apply, Axis, Cast, Const, Dim, Expr, Read
from tilewright.expr.dtypes import INDEX, limits


@dataclass(frozen=True)
class Affine:
    """``constant + sum of coefficient * axis``; coefficients are never 0."""

    constant: int = 0
    terms: Mapping[Axis, int] = field(default_factory=dict)

    def coefficient(self, axis: Axis) -> int:
        return self.terms.get(axis, 0)

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for axis, coefficient in other.terms.items():
            terms[axis] = terms.get(axis, 0) + coefficient
        return Affine(self.constant + other.constant, {a: c for a, c in terms.items() if c})

    def scaled(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(self.constant * factor, {a: c * factor for a, c in self.terms.items()})

    def expression(self) -> Expr:
        """The expression with this value, terms in the order they were found."""
        total: Expr | None = None
        for axis, coefficient in self.terms.items():
            term = axis if coefficient == 1 else Apply("mul", (axis, Const(coefficient, INDEX)), INDEX)
            total = term if total is None else Apply("add", (total, term), INDEX)
        if total is None:
            return Const(self.constant, INDEX)
        return Apply("add", (total, Const(self.constant, INDEX)), INDEX) if self.constant else total

    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value, over all values of the axes."""
        low = high = float(self.constant)
        for axis, coefficient in self.terms.items():
            last = (axis.extent.high if isinstance(axis.extent, Dim) else axis.extent) - 1
            low += min(0, coefficient * last)
            high += max(0, coefficient * last)
        return low, high


_LIMIT = 1 << 63
_LINEAR = ("add", "sub", "mul", "neg")


def affine(expr: Expr) -> Affine | None:
    """The affine form of an index expression, or None where it has none or its numbers leave i64."""
    if type(expr) is Axis:
        return Affine(0, {expr: 1})
    if type(expr) is not Apply:
        return _affine(expr)
    if expr.form is UNKNOWN:
        object.__setattr__(expr, "form", _affine(expr))
    return expr.form  # type: ignore[no-any-return]


def _affine(expr: Expr) -> Affine | None:
    terms: dict[Axis, int] = {}
    constant = _collected(expr, 1, terms)
    if constant is None:
        return None
    terms = {axis: coefficient for axis, coefficient in terms.items() if coefficient}
    if max(map(abs, (constant, *terms.values()))) >= _LIMIT:
        return None
    return Affine(constant, terms)


def _collected(expr: Expr, factor: int, terms: dict[Axis, int]) -> int | None:
    """Add the terms of ``factor * expr`` to `terms`; returns its constant, or None where `expr` is not affine."""
    if isinstance(expr, Axis):
        terms[expr] = terms.get(expr, 0) + factor
        return 0
    if isinstance(expr, Const):
        return factor * int(expr.value)
    if not isinstance(expr, Apply):
        return None
    if expr.function in ("add", "sub"):
        left = _collected(expr.args[0], factor, terms)
        if left is None:
            return None
        right = _collected(expr.args[1], factor if expr.function == "add" else -factor, terms)
        return None if right is None else left + right
    if expr.function == "neg":
        return _collected(expr.args[0], -factor, terms)
    if expr.function == "mul":
        return _collected_product(expr.args[0], expr.args[1], factor, terms)
    return None


def _collected_product(left: Expr, right: Expr, factor: int, terms: dict[Axis, int]) -> int | None:
    """The same for ``factor * left * right``, which is affine where one of both is a number."""
    for number, variable in ((right, left), (left, right)):
        if isinstance(number, Const):
            return _collected(variable, factor * int(number.value), terms)
    one, other = affine(left), affine(right)
    if one is None or other is None or (one.terms and other.terms):
        return None
    scale, form = (factor * one.constant, other) if other.terms else (factor * other.constant, one)
    for axis, coefficient in form.terms.items():
        terms[axis] = terms.get(axis, 0) + scale * coefficient
    return scale * form.constant


def bounds(expr: Expr) -> tuple[float, float]:
    """An interval that contains every value of an integer expression; infinite where nothing is known."""
    form = affine(expr)
    if form is not None:
        return form.bounds()
    if isinstance(expr, Apply):
        ranges = [bounds(arg) for arg in expr.args]
        if expr.function in ("add", "sub", "mul"):
            (a, b), (c, d) = ranges
            if expr.function == "add":
                return a + c, b + d
            if expr.function == "sub":
                return a - d, b - c
            corners = [x * y if x and y else 0.0 for x in (a, b) for y in (c, d)]
            return min(corners), max(corners)
        if expr.function == "neg":
            return -ranges[0][1], -ranges[0][0]
        if expr.function in ("floordiv", "mod") and isinstance(expr.args[1], Const):
            (a, b), divisor = ranges[0], int(expr.args[1].value)
            if divisor > 0:
                if expr.function == "floordiv":
                    return (a // divisor if a > -inf else a), (b // divisor if b < inf else b)
                inside = a > -inf and b < inf and a // divisor == b // divisor
                return (a % divisor, b % divisor) if inside else (0, divisor - 1)
        if expr.function in ("min", "max"):
            pick = min if expr.function == "min" else max
            return pick(ranges[0][0], ranges[1][0]), pick(ranges[0][1], ranges[1][1])
        if expr.function == "select":
            return min(ranges[1][0], ranges[2][0]), max(ranges[1][1], ranges[2][1])
    if isinstance(expr, Cast) and expr.arg.dtype == "bool":
        return 0, 1
    return -inf, inf


def affine_part(expr: Expr) -> tuple[Affine, tuple[Expr, ...]]:
    """An index as a sum: its affine part, and the other terms."""
    form = affine(expr)
    if form is not None:
        return form, ()
    if isinstance(expr, Apply) and expr.function == "add":
        (a, rest), (b, more) = (affine_part(arg) for arg in expr.args)
        return a + b, (*rest, *more)
    return Affine(0, {}), (expr,)


def simplify(expr: Expr) -> Expr:
    """Fold constants in index arithmetic and normalise affine indices; remove what a range decides.

    That is divisions, remainders, comparisons, minima and selects. Index arithmetic is taken not to overflow.
    """
    if isinstance(expr, Read):
        indices = tuple(simplify(index) for index in expr.indices)
        return expr if all(map(is_, indices, expr.indices)) else Read(expr.tensor, indices)
    if isinstance(expr, Cast):
        arg = simplify(expr.arg)
        if arg.dtype == expr.dtype:
            return arg
        return expr if arg is expr.arg else Cast(arg, expr.dtype)
    if not isinstance(expr, Apply):
        return expr
    if expr.dtype == INDEX and expr.function in _LINEAR:
        form = affine(expr)  # before its parts, which it makes superfluous
        if form is not None:
            whole = form.expression()
            return expr if whole == expr else whole  # what is normal already stays itself
    args = tuple(simplify(arg) for arg in expr.args)
    node = expr if all(map(is_, args, expr.args)) else Apply(expr.function, args, expr.dtype)
    if node.dtype == INDEX and node.function in _LINEAR:
        form = None if node is expr else affine(node)
        return _with_one_constant(node) if form is None else form.expression()
    if node.function in ("floordiv", "mod") and node.dtype == INDEX:
        return _simplify_division(node)
    if node.function in ("lt", "le", "gt", "ge", "eq", "ne"):
        return _decide_comparison(node)
    if node.function in ("and", "or") and node.dtype == "bool":
        return _simplify_logic(node)
    if node.function == "not" and isinstance(args[0], Const) and node.dtype == "bool":
        return Const(not args[0].value, "bool")
    if node.function == "select":
        if isinstance(args[0], Const):
            return args[1] if args[0].value else args[2]
        if args[1] == args[2]:
            return args[1]
    if node.function in ("min", "max") and node.dtype == INDEX:
        (a, b), (c, d) = bounds(args[0]), bounds(args[1])
        if b <= c:
            return args[0] if node.function == "min" else args[1]
        if d <= a:
            return args[1] if node.function == "min" else args[0]
    return node


def _with_one_constant(node: Apply) -> Expr:
    """``(x + 3) + -5 = x + -2`` and ``(x + 3) - 3 = x``, where x is not affine."""
    if node.function not in ("add", "sub") or not all(map(_has_constant, node.args)):
        return node
    terms, constant = _linear(node)
    low, high = limits(INDEX)
    if len(terms) != 1 or set(terms.values()) != {1} or not low <= constant <= high:
        return node
    (term,) = terms
    return Apply("add", (term, Const(constant, INDEX)), INDEX) if constant else term


def _has_constant(expr: Expr) -> bool:
    if isinstance(expr, Apply) and expr.function in ("add", "sub"):
        return any(isinstance(arg, Const) for arg in expr.args)
    return isinstance(expr, Const)


def _simplify_division(node: Apply) -> Expr:
    """``(c*q + r) // c = q`` and ``(c*q + r) % c = r`` when 0 <= r < c, for the affine part that c divides."""
    value, divisor = node.args
    if not isinstance(divisor, Const) or int(divisor.value) <= 0:
        return node
    c = int(divisor.value)
    if c == 1:
        return value if node.function == "floordiv" else Const(0, INDEX)
    form = affine(value)
    if form is None:
        return _simplify_nested_division(node, c)
    whole = Affine(form.constant - form.constant % c, {a: k for a, k in form.terms.items() if k % c == 0})
    rest = form + whole.scaled(-1)
    low, high = rest.bounds()
    quotient = Affine(whole.constant // c, {a: k // c for a, k in whole.terms.items()})
    if low >= 0 and high < c:
        return quotient.expression() if node.function == "floordiv" else rest.expression()
    if not whole.terms and not whole.constant:
        return node
    if node.function == "mod":
        return Apply("mod", (rest.expression(), divisor), INDEX)
    return quotient.expression() + Apply("floordiv", (rest.expression(), divisor), INDEX)


def _simplify_nested_division(node: Apply, c: int) -> Expr:
    """``(x // a) // c = x // (a*c)``; ``(x % a) % c = x % c`` if c divides a; and divisions that the range decides."""
    value = node.args[0]
    low, high = bounds(value)
    if low >= 0 and high < c:
        return Const(0, INDEX) if node.function == "floordiv" else value
    if isinstance(value, Apply) and isinstance(value.args[-1], Const):
        inner = int(value.args[-1].value)
        if node.function == "floordiv" and value.function == "floordiv" and inner > 0:
            return simplify(Apply("floordiv", (value.args[0], Const(inner * c, INDEX)), INDEX))
        if node.function == "mod" and value.function == "mod" and inner > 0 and inner % c == 0:
            return simplify(Apply("mod", (value.args[0], Const(c, INDEX)), INDEX))
    return node


def _decide_comparison(node: Apply) -> Expr:
    left, right = node.args
    if left.dtype != INDEX:
        return node
    low, high = bounds(Apply("sub", (left, right), INDEX))
    always, never = {
        "lt": (high < 0, low >= 0), "le": (high <= 0, low > 0), "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0), "eq": (low == high == 0, high < 0 or low > 0),
        "ne": (high < 0 or low > 0, low == high == 0),
    }[node.function]  # fmt: skip
    return Const(True, "bool") if always else Const(False, "bool") if never else node


def _simplify_logic(node: Apply) -> Expr:
    for this, other in (node.args, reversed(node.args)):
        if isinstance(this, Const):
            if bool(this.value) == (node.function == "and"):
                return other
            return this
    return node


def rejoined(expr: Expr) -> Expr:
    """Sums of index expressions with the digits of a value put together: ``c * d * (e // d) + c * (e % d) = c * e``."""
    if affine(expr) is not None:
        return expr
    terms, constant = _linear(expr)
    while (found := _digits_of_one(terms)) is not None:
        quotient, digit, value = found
        factor = terms.pop(digit)
        del terms[quotient]
        whole, offset = _linear(value)
        constant += factor * offset
        for term, count in whole.items():
            terms[term] = terms.get(term, 0) + factor * count
    parts = [term if count == 1 else term * count for term, count in terms.items()]
    parts += [Const(constant, INDEX)] if constant or not parts else []
    return simplify(reduce(add, parts))


def _digits_of_one(terms: Mapping[Expr, int]) -> tuple[Expr, Expr, Expr] | None:
    """A quotient and the remainder that belongs to it, in a sum that makes their dividend of them, and the dividend."""
    for term, count in terms.items():
        if (
            not isinstance(term, Apply)
            or term.function not in ("floordiv", "mod")
            or not isinstance(term.args[1], Const)
        ):
            continue
        divisor = int(term.args[1].value)
        other = simplify(Apply("mod" if term.function == "floordiv" else "floordiv", term.args, INDEX))
        quotient, digit = (term, other) if term.function == "floordiv" else (other, term)
        if terms.get(digit, 0) * divisor == terms.get(quotient, 0) != 0 and count:
            return quotient, digit, term.args[0]
    return None


def _linear(expr: Expr) -> tuple[dict[Expr, int], int]:
    """An index expression as a sum of multiples of loops and other terms, and a constant."""
    if isinstance(expr, Const):
        return {}, int(expr.value)
    if isinstance(expr, Apply) and expr.function in ("add", "sub", "neg"):
        terms: dict[Expr, int] = {}
        constant = 0
        signs = {"add": (1, 1), "sub": (1, -1), "neg": (-1,)}[expr.function]
        for sign, arg in zip(signs, expr.args, strict=True):
            found, offset = _linear(arg)
            constant += sign * offset
            for term, count in found.items():
                terms[term] = terms.get(term, 0) + sign * count
        return {term: count for term, count in terms.items() if count}, constant
    if isinstance(expr, Apply) and expr.function == "mul":
        for factor, other in (expr.args, reversed(expr.args)):
            if isinstance(factor, Const):
                found, offset = _linear(other)
                scale = int(factor.value)
                return {term: count * scale for term, count in found.items() if scale}, offset * scale
    return {expr: 1}, 0
