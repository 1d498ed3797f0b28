"""Sums with few results and many terms: blocks share one, each with a part of an inner loop; a second nest adds up.

The first nest has one more outer loop, over the parts, and leaves a value per part; the second sums these and computes
what the nest made of its sums. Legal where nothing but sums walks the inner loops, and no sum needs another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Refusal
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Const, Expr, Read, Tensor, identity, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.expr.rewrite import substitute
from tilewright.machine.description import Gpu
from tilewright.operator.nest import Nest, NestNode, merge_loops
from tilewright.operator.rules.gpu_rows import predicted

MOST_PARTS = 4096  # tried: several for each multiprocessor of any machine
WORTH = 1.05  # times shorter than in one kernel, from which on there are two; less is not for the model to tell


@dataclass(frozen=True)
class SplitNest:
    """`first` writes `parts`, one tensor per sum, and `second` reads them."""

    first: Nest
    second: Nest
    parts: tuple[Tensor, ...]


def choose_split(
    nest: Nest, machine: Gpu, subject: str, taken: Collection[str] = ()
) -> tuple[SplitNest | None, Decision | None]:
    """The number of parts with the shortest predicted time; None where one kernel is not much slower.

    Parts have other names than those `taken`.
    """
    axis = _divided(nest)
    if axis is None:
        return None, None
    whole = predicted(nest, machine)
    if whole < 2 * machine.launch_seconds:
        return None, None
    ranked: list[tuple[float, int, SplitNest]] = []
    for count in _counts(axis.size):
        found = split(nest, axis, count, taken)
        seconds = predicted(found.first, machine) + machine.launch_seconds + predicted(found.second, machine)
        ranked.append((seconds, count, found))
    ranked.sort(key=lambda each: each[:2])
    if not ranked:
        return None, None
    seconds, count, best = ranked[0]
    in_one, in_parts = (each * machine.clock_hz for each in (whole, seconds))
    if whole < WORTH * seconds:
        rule = f"one kernel takes {WORTH} times as long"
        values = f"{in_parts:.0f} cycles with a second kernel"
        refused = (Refusal(f"{count} parts of {axis.name}", rule, values, Cost(cycles=in_parts)),)
        reason = f"{in_one:.0f} predicted cycles"
        return None, Decision(f"parts of {subject}", "one", reason, refused=refused, cost=Cost(cycles=in_one))
    two, second = ("", ""), None
    if len(ranked) > 1:
        second = Cost(cycles=ranked[1][0] * machine.clock_hz)
        two = f"{ranked[1][1]} parts", f"{second.cycles:.0f} cycles"
    reason = f"{in_parts:.0f} predicted cycles with the kernel that adds them up, {in_one:.0f} in one"
    chosen, cost = f"{count} of {axis.name}", Cost(cycles=in_parts)
    return best, Decision(f"parts of {subject}", chosen, reason, *two, cost=cost, runner_up_cost=second)


def split(nest: Nest, axis: Axis, count: int, taken: Collection[str] = ()) -> SplitNest:
    """Both nests, with an inner loop in `count` parts; the last one may have fewer points."""
    name = unique(f"{axis.name}.part", {loop.name for loop in (*nest.outer, *nest.inner)})
    part, share = Axis(name, count), -(-axis.size // count)
    inside = Axis(axis.name, share)
    place: Expr = part * share + inside
    inner = tuple(inside if each == axis else each for each in nest.inner)
    loops = (part, *nest.outer)
    results = prod(each.size for each in nest.outer)
    firsts, seconds, parts = [], [], []
    for node in nest.nodes:
        if node.accum is None:
            seconds.append(node)
            continue
        dtype = "f32" if node.tensor.dtype in ("f16", "bf16") else node.tensor.dtype
        tensor = Tensor(unique(f"{node.tensor.name}.parts", taken), (count * results,), dtype)
        body = substitute(node.body, {axis: place})
        if share * count != axis.size:
            neutral = identity(node.accum, body.dtype)
            body = Apply("select", (Apply("lt", (place, Const(axis.size, INDEX)), "bool"), body, neutral), body.dtype)
        index = _row_major(loops)
        firsts.append(NestNode(tensor, body, node.accum, index))
        seconds.append(replace(node, body=Read(tensor, (index,))))
        parts.append(tensor)
    first = merge_loops(Nest(loops, inner, tuple(firsts)))
    return SplitNest(first, Nest(nest.outer, (part,), tuple(seconds)), tuple(parts))


def _divided(nest: Nest) -> Axis | None:
    """The inner loop to divide, the one with the longest steps; None without one, and in a nest not of sums alone."""
    sums = {node.tensor.name for node in nest.nodes if node.accum is not None}
    if not sums or not nest.inner or any(nest.covers_inner(node) for node in nest.nodes):
        return None
    for node in nest.nodes:
        own = [read for read in walk(node.body) if isinstance(read, Read) and not read.indices]
        if node.accum is not None and (own or dtypes.is_float(node.tensor.dtype) != dtypes.is_float(node.body.dtype)):
            return None
    steps = dict.fromkeys(nest.inner, 0)
    for node in nest.nodes:
        for read in walk(node.body):
            form = affine(read.indices[0]) if isinstance(read, Read) and read.indices else None
            for axis in nest.inner if form is not None else ():
                assert form is not None
                steps[axis] = max(steps[axis], abs(form.coefficient(axis)) * axis.size)
    return max(nest.inner, key=lambda axis: steps[axis])


def _counts(extent: int) -> list[int]:
    """Numbers of parts to try: near every power of two one that divides the loop, if there is one."""
    found: list[int] = []
    power = 2
    while power <= min(extent // 2, MOST_PARTS):
        near = [count for count in range(power, min(2 * power, extent + 1)) if extent % count == 0]
        found.append(near[0] if near else power)
        power *= 2
    return found


def _row_major(axes: Sequence[Axis]) -> Expr:
    total: Expr = axes[0]
    for axis in axes[1:]:
        total = total * axis.size + axis
    return total
