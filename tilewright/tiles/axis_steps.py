"""How many combinations of steps of the loops of an axis there are, of which some are counted."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tiles.resources import Number, greatest, least

#: One loop of an axis: how many steps, how many values a step covers, and which steps are counted: "all", the "first",
#: "later" ones, or "none".
Digit = tuple[Number, Number, str]


def count_up_to(last: Number, digits: Sequence[Digit]) -> Number:
    """How many combinations of steps reach a value of at most `last` (None: any)."""
    if last is None or not digits:
        return count_all(digits)
    factor, stride, steps = digits[0]
    reached = least(last // stride, factor)
    partial = (reached < factor) & is_counted(reached, steps)
    whole = counted_among(reached, steps) * count_all(digits[1:])
    return whole + partial * count_up_to(last - reached * stride, digits[1:])


def count_all(digits: Sequence[Digit]) -> Number:
    """How many combinations of steps there are."""
    total: Number = 1
    for factor, _, steps in digits:
        total = total * counted_among(factor, steps)
    return total


def counted_among(steps: Number, which: str) -> Number:
    """How many of the first `steps` steps are counted."""
    if which == "all":
        return steps
    if which == "later":
        return greatest(steps - 1, 0)
    return 0 if which == "none" else least(steps, 1)


def is_counted(step: Number, which: str) -> Number:
    """Whether a step is counted."""
    if which == "all":
        return True
    if which == "none":
        return False
    return step > 0 if which == "later" else step == 0


def steps_of(digits: Sequence[Digit], stride: Number, extent: Number) -> Number:
    """How many steps of this stride an axis has."""
    if stride is None:
        return 1
    total: Number = 1
    for factor, _, _ in digits:
        total = total * factor
    return least(total, -(-extent // stride))


def is_block_counted(block: Number, stride: Number, digits: Sequence[Digit]) -> Number:
    """Whether the steps that lead to a block are counted."""
    right: Number = True
    for factor, step, steps in digits:
        right = right & is_counted(block * stride // step % factor, steps)
    return right
