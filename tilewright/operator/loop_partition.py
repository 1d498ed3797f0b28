"""Outer loops cut where a condition on them changes (loop partitioning), so that each part takes one branch.

A concatenation, padding, slice or rotation chooses by its loops what it reads: by conditions of selects, or by `//`,
`%`, `min` and `max` in an index. Where such an expression has one value before and another behind some point of a
spatial loop, the loop is cut there. Each part is a kernel of its own over its share of the loop: the choice is made
when it is planned, what remains is read at affine addresses, and neighbouring loops may be fused. Spatial points do not
depend on each other, so that every cut is legal. It says nothing of schedules: each part gets its own.

A loop of which addresses take digits, as a reshape reads, becomes a loop for each digit where these divide it. The
digits may be those of a position in several loops: ``(21 * i + j) // 84`` with j below 21 takes ``i // 4``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from tilewright.decision import Decision, Refusal
from tilewright.expr.affine import Affine, affine, bounds, rejoined
from tilewright.expr.core import Apply, Axis, Const, Expr, Read, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.expr.rewrite import substitute, transform
from tilewright.operator.statements import Statements, addresses, inner_loops, mapped, outer_loops, over, point_count

MOST_PARTS = 16  # of one kernel: each is a kernel to generate and to launch
MOST_PERIODS = 8  # of one quotient or remainder
SMALLEST_POINTS = 1024  # of a kernel that is cut: below, a launch costs what its conditions do
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def parts_of(statements: Statements, subject: str, most: int = MOST_PARTS) -> tuple[list[Statements], Decision | None]:
    """The statements of each part, in the order of their loops, and why; one part where nothing is to be cut."""
    waiting, parts, cuts, kept = [statements], list[Statements](), list[str](), 0
    while waiting:
        part = waiting.pop(0)
        large = point_count(part) >= SMALLEST_POINTS
        found = _cut_between_digits(part) if large else None
        if found is None:
            part = _digits_apart(part)
            found = _cut(part, _signs) if large else None
        room = most - len(parts) - len(waiting)
        if found is None or room < 2:
            parts.append(part)
            kept += found is not None
            continue
        axis, places = found
        chosen = places if len(places) < room else [places[n * len(places) // (room - 1)] for n in range(room - 1)]
        cuts.append(f"{axis.name} at {', '.join(map(str, chosen))}")
        waiting = [share for share, _ in _shares(part, axis, chosen)] + waiting
    if not cuts:
        return parts, None
    refused = (Refusal("more parts", "limit", f"{most} parts of one kernel; {kept} of them choose at each point"),)
    return parts, Decision(
        f"loops of {subject}",
        f"{len(parts)} parts: {'; '.join(cuts)}",
        "conditions on these loops change there, and each part takes one branch",
        refused=refused if kept else (),
    )


def _shares(statements: Statements, axis: Axis, places: Sequence[int]) -> Iterator[tuple[Statements, Axis]]:
    """The statements over each share of a loop between `places`, and the loop over that share.

    By halves: each cut drops the branches of the other half, so that n branches are walked log n times, not n.
    """
    if not places:
        yield statements, axis
        return
    middle = len(places) // 2
    place = places[middle]
    low, high = Axis(axis.name, place), Axis(axis.name, axis.size - place)
    yield from _shares(_over(statements, axis, (low,), low), low, places[:middle])
    after = [each - place for each in places[middle + 1 :]]
    yield from _shares(_over(statements, axis, (high,), high + place), high, after)


def _over(statements: Statements, axis: Axis, loops: Sequence[Axis], place: Expr) -> Statements:
    """The statements over other loops instead of `axis`, which is at `place`."""

    def there(expr: Expr) -> Expr:
        return transform(substitute(expr, {axis: place}), _rejoined_address)

    outer, inner = (
        tuple(loop for each in axes for loop in (loops if each == axis else (each,)))
        for axes in (outer_loops(statements), inner_loops(statements))
    )
    return over(outer, inner, mapped(statements, there))


def _rejoined_address(expr: Expr) -> Expr | None:
    return Read(expr.tensor, tuple(map(rejoined, expr.indices))) if isinstance(expr, Read) and expr.indices else None


def _digits_apart(statements: Statements) -> Statements:
    """The statements with a loop for each digit that addresses take of one of its loops."""
    loops = (*outer_loops(statements), *inner_loops(statements))
    digits = max(((d, axis) for axis in loops for d in _divisors(statements, axis)), key=itemgetter(0), default=None)
    if digits is None:
        return statements
    inside, axis = digits
    taken = {loop.name for loop in loops}
    high, low = (
        Axis(unique(f"{axis.name}.0", taken), axis.size // inside),
        Axis(unique(f"{axis.name}.1", taken), inside),
    )
    return _digits_apart(_over(statements, axis, (high, low), high * inside + low))


def _divisors(statements: Statements, axis: Axis) -> Iterator[int]:
    """Divisors of the extent of a loop by which it is divided in an address."""
    for form, divisor in _quotients(statements, axis):
        digit = _digit(form, axis, divisor)
        if 1 < digit < axis.size and axis.size % digit == 0:
            yield digit


def _quotients(statements: Statements, axis: Axis) -> Iterator[tuple[Affine, int]]:
    """Every ``form // divisor`` or ``form % divisor`` of an address in which a loop occurs."""
    for statement in statements:
        for part in (each for index in addresses(statement.body) for each in walk(index)):
            if isinstance(part, Apply) and part.function in ("floordiv", "mod") and isinstance(part.args[1], Const):
                form, divisor = affine(part.args[0]), int(part.args[1].value)
                if form is not None and form.coefficient(axis):
                    yield form, divisor


def _digit(form: Affine, axis: Axis, divisor: int) -> int:
    """The number by which ``form // divisor`` divides a loop, or 0: other loops stay below one step of it.

    Where no other loop is in the form, a constant may move it: ``(i + 1) // 2`` is ``i // 2`` plus a carry of i % 2.
    """
    step = form.coefficient(axis)
    if step <= 0 or divisor % step:
        return 0
    others = {loop: c for loop, c in form.terms.items() if loop != axis and c % divisor}
    low, high = Affine(form.constant % divisor, others).bounds()
    return divisor // step if not others or (low >= 0 and high < step) else 0


def _cut_between_digits(statements: Statements) -> tuple[Axis, list[int]] | None:
    """The loop to cut where a condition on it alone changes, if every part has whole digits of it."""
    found = _cut(statements, _comparisons)
    if found is None:
        return None
    axis, places = found
    for part, share in _shares(statements, axis, places):
        for form, divisor in _quotients(part, share):
            digit = _digit(form, share, divisor)
            if not digit or share.size % digit:
                return None
    return found


def _cut(statements: Statements, signs_of: Callable[[Expr], Iterator[Affine]]) -> tuple[Axis, list[int]] | None:
    """The outermost loop to cut, and the points that parts begin with."""
    signs = [sign for each in statements for sign in signs_of(each.body)]
    for axis in outer_loops(statements):
        places = {place for sign in signs for place in _changes(sign, axis)}
        inside = sorted(place for place in places if 0 < place < axis.size)
        if inside:
            return axis, inside
    return None


# Where choices change -------------------------------------------------------------------------------------------------


def _signs(body: Expr) -> Iterator[Affine]:
    """Affine forms that choose, by whether they are negative, what a body reads."""
    yield from _comparisons(body)
    for condition in _conditions(body):
        for comparison in _index_comparisons(condition):
            if _difference(comparison) is None:
                yield from _of_quotients(comparison)
    for node in walk(body):
        if isinstance(node, Read):
            for index in node.indices:
                for part in walk(index):
                    yield from _of_index(part)


def _comparisons(body: Expr) -> Iterator[Affine]:
    """Those of them that are comparisons of affine forms."""
    for condition in _conditions(body):
        for comparison in _index_comparisons(condition):
            difference = _difference(comparison)
            if difference is not None and comparison.function in ("lt", "ge", "eq", "ne"):
                yield difference
            if difference is not None and comparison.function in ("le", "gt", "eq", "ne"):
                yield difference + Affine(-1)


def _conditions(body: Expr) -> Iterator[Expr]:
    """Conditions of the selects that choose what a body reads."""
    for node in walk(body):
        if not isinstance(node, Apply) or node.function != "select":
            continue
        if node.dtype == INDEX or any(isinstance(each, Read) for arm in node.args[1:] for each in walk(arm)):
            yield node.args[0]


def _index_comparisons(condition: Expr) -> Iterator[Apply]:
    for node in walk(condition):
        if isinstance(node, Apply) and node.function in COMPARISONS and node.args[0].dtype == INDEX:
            yield node


def _difference(comparison: Apply) -> Affine | None:
    left, right = comparison.args
    return affine(left - right)


def _of_index(part: Expr) -> Iterator[Affine]:
    if not isinstance(part, Apply) or part.dtype != INDEX:
        return
    if part.function in ("min", "max"):
        difference = affine(part.args[0] - part.args[1])
        yield from () if difference is None else (difference,)
    elif part.function == "abs":
        form = affine(part.args[0])
        yield from () if form is None else (form,)
    elif part.function in ("floordiv", "mod"):
        yield from _of_quotient(part)


def _of_quotients(comparison: Apply) -> Iterator[Affine]:
    quotient, number = comparison.args
    if isinstance(quotient, Apply) and quotient.function == "floordiv" and isinstance(number, Const):
        form, divisor = affine(quotient.args[0]), quotient.args[1]
        if form is not None and isinstance(divisor, Const) and int(divisor.value) > 0:
            for value in (int(number.value), int(number.value) + 1):
                yield form + Affine(-value * int(divisor.value))
            return
    for part in walk(comparison):
        if isinstance(part, Apply) and part.function in ("floordiv", "mod"):
            yield from _of_quotient(part)


def _of_quotient(part: Apply) -> Iterator[Affine]:
    """``form // d`` and ``form % d`` are affine between multiples of d: few multiples, of a form in one loop."""
    dividend, divisor = part.args
    form = affine(dividend)
    if form is None or len(form.terms) != 1 or not isinstance(divisor, Const) or int(divisor.value) <= 0:
        return
    d = int(divisor.value)
    low, high = bounds(dividend)
    first, last = int(low // d) + 1, int(high // d)
    if last - first < MOST_PERIODS - 1:
        for period in range(first, last + 1):
            yield form + Affine(-period * d)


def _changes(sign: Affine, axis: Axis) -> list[int]:
    """The points of a loop from which on ``sign < 0`` is decided, or is not; none where most of the loop is open."""
    step = sign.coefficient(axis)
    if not step:
        return []
    rest = Affine(sign.constant, {each: c for each, c in sign.terms.items() if each != axis})
    low, high = (int(bound) for bound in bounds(rest.expression()))
    # Negative wherever step * x + high < 0, nowhere where step * x + low >= 0.
    ends = (-(high // step), -(low // step)) if step > 0 else (low // -step + 1, high // -step + 1)
    undecided = min(ends[1], axis.size) - max(ends[0], 0)
    return list(ends) if 2 * undecided <= axis.size else []
