"""Plans of loops: where the slices and states of a trip are, and the kernels of the body, which are planned once.

Slices and stacked rows are not copied; a result that no node of the body writes is. A slice is read and a stacked
result written where the whole tensor is; a state that is stacked too is read where the trip before wrote it; any other
alternates between two places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.compiler.plan import Kernel, PlannedLoop, Stored
from tilewright.compiler.planning import Planning
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.core import Tensor, static_shape
from tilewright.expr.graph import Carried, Loop
from tilewright.expr.names import unique
from tilewright.layouts import row_major
from tilewright.lower.steps import Moving

ALIGN = 256  # bytes between the two places of a state: what devices align buffers to


def plan_loop(planning: Planning, loop: Loop, plan_nodes: Callable[[Planning], None]) -> None:
    """Add the kernels of a loop to the plan, those that do the same in every trip before it."""
    plan, moving = planning.plan, dict[str, Moving]()
    for each in loop.sliced:
        moving[each.part.name] = _rows(planning.stored(each.whole).tensor, each.part, loop.trips, each.backwards)
    for row in loop.stacked:
        planning.place(row.whole, row_major(static_shape(row.whole.shape)), "arena")
        moving[row.part.name] = _rows(row.whole, row.part, loop.trips, row.backwards)
    for state in loop.carried:
        _carry(planning, state, loop.trips, moving)
    inside = (*loop.parameters(), *loop.body.outputs)
    slices = {t.name: Stored(t, row_major(static_shape(t.shape)), "slice") for t in inside}
    plan.stored.update((tensor.name, slices[tensor.name]) for tensor in loop.parameters())
    known, begin = set(plan.stored), len(plan.kernels)
    inner = planning.inside(loop.body, {tensor.name: slices[tensor.name] for tensor in loop.body.outputs})
    plan_nodes(inner)
    planning.constants.update(inner.constants)
    local = set(plan.stored) - known - set(slices)
    begin, constant = _run_before(planning, begin, set(moving))
    written = {name for kernel in constant for name in kernel.writes}
    planned = PlannedLoop(loop.name, loop.trips, begin, len(plan.kernels), moving, frozenset(local - written))
    plan.loops.append(planned)
    kernels = [kernel.name for kernel in plan.kernels[begin:]]
    reason = f"of {', '.join(kernels)}, compiled once"
    plan.decisions.append(Decision(f"loop {loop.name}", f"{loop.trips} trips", reason))
    if constant:
        names = ", ".join(kernel.name for kernel in constant)
        plan.decisions.append(Decision(f"loop {loop.name}", f"{names} before it", "what they read is always the same"))


def _rows(whole: Tensor, part: Tensor, trips: int, backwards: bool) -> Moving:
    """The rows of a tensor in the order of the trips."""
    size = part.size
    return Moving(whole.name, (trips - 1) * size, -size) if backwards else Moving(whole.name, 0, size)


def _carry(planning: Planning, state: Carried, trips: int, moving: dict[str, Moving]) -> None:
    """Say where a state is in each trip, what follows it, and the last one."""
    following, shape = state.following, static_shape(state.state.shape)
    planning.stored(state.initial)
    if following.name not in moving:
        step = -(-state.state.size_bytes // ALIGN) * ALIGN // dtypes.size_bytes(state.state.dtype)
        pair = Tensor(unique(f"{following.name}.pair", planning.taken()), (2 * step,), following.dtype)
        planning.place(pair, row_major((2 * step,)), "arena")
        moving[following.name] = Moving(pair.name, 0, step, 2)
    after = moving[following.name]
    before = replace(after, start=after.start - after.stride)
    if after.period:
        before = replace(after, start=after.stride, stride=-after.stride)
    moving[state.state.name] = replace(before, first=state.initial.name)
    last = (trips - 1) % after.period if after.period else trips - 1
    planning.plan.stored[state.final.name] = Stored(
        state.final, row_major(shape), "arena", owner=after.whole, begin=after.start + last * after.stride
    )


def _run_before(planning: Planning, begin: int, varying: set[str]) -> tuple[int, list[Kernel]]:
    """Move the kernels from `begin` on that do the same in every trip before the others.

    Returns where the others begin, and what moved. Kernels of inner loops stay in these, and so do those that write
    what a kernel of the loop updates, which changes it in every trip.
    """
    plan = planning.plan
    inner = [loop for loop in plan.loops if loop.begin >= begin and loop.end > loop.begin]
    updated = {plan.stored[name].memory for kernel in plan.kernels[begin:] for name in kernel.updates}
    before: list[Kernel] = []
    rest: list[Kernel] = []
    places: list[int] = []  # by old number: how many have moved so far
    for number, kernel in enumerate(plan.kernels[begin:], begin):
        places.append(len(before))
        reads = {plan.stored[name].memory for name in kernel.reads}
        writes = {plan.stored[name].memory for name in kernel.writes}
        stays = any(loop.begin <= number < loop.end for loop in inner) or reads & varying or writes & updated
        if stays or any(plan.stored[name].space == "slice" for name in kernel.writes):
            varying.update(writes)
            for loop in inner:
                varying.update(each.whole for each in loop.moving.values() if loop.begin <= number < loop.end)
            rest.append(kernel)
        else:
            before.append(kernel)
    places.append(len(before))
    plan.kernels[begin:] = [*before, *rest]
    for number, loop in enumerate(plan.loops):
        if loop in inner:
            moved = len(before) - places[loop.begin - begin]
            plan.loops[number] = replace(loop, begin=loop.begin + moved, end=loop.end + moved)
    return begin + len(before), before
