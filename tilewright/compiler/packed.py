"""Operands that kernels read in another order than their tensor's: stored as relayouts of level 3 make them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.compiler.plan import Stored
from tilewright.compiler.planning import Planning
from tilewright.compiler.rows import write_rows
from tilewright.decision import Cost, Decision
from tilewright.expr.core import Compute, Read
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.names import unique
from tilewright.graph.groups import Group
from tilewright.instruction.order import Order
from tilewright.layouts import row_major


def place_relayout(
    planning: Planning, relayout: Compute, order: Order, read: Read, reason: str,
    cycles: tuple[float, float] | None = None,
) -> Stored:  # fmt: skip
    """What `relayout` makes of `read` in `order`: constants when they are packed, others by a kernel of their own.

    It may compute a map before `read` as well. Equal relayouts are stored once. `cycles` are those of the copy, and
    those in which its readers wait without it, where these were compared.
    """
    plan, name, source = planning.plan, relayout.name, read.tensor.name
    if name in plan.stored:
        return plan.stored[name]
    sources = {tensor.name for tensor in relayout.inputs()}
    layout = order.layout(read) if sources == {source} else None
    if not sources <= planning.constants.keys():
        planning.place(relayout.output, row_major(order.shape), "arena")
        kernel = unique(f"{source}.packed", planning.kernel_names)
        with planning.about(kernel):
            write_rows(planning, Group("rows", (relayout,), relayout.axes, (), (name,), kernel=kernel))
        why = planning.unfused.get(source)
        before = f", after {source}: {why}" if why else ""
        how = f"one copy, read many times{before}" if source in sources else f"computed with {source}"
    elif layout is None:
        planning.constants[name] = evaluate_compute(relayout, planning.constants)
        planning.place(relayout.output, row_major(order.shape), "constant")
        how = "folded into the constant"
    else:  # the constant itself in another layout, from which it can be recovered
        plan.sources[name] = source
        planning.constants[name] = planning.constants[source]
        planning.place(replace(read.tensor, name=name), layout, "constant")
        how = "folded into the constant"
    decision = Decision(f"layout of {source}", f"{order} as {name}", f"{reason}; {how}")
    plan.decisions.append(decision if cycles is None else _compared(decision, source, *cycles))
    return plan.stored[name]


def _compared(decision: Decision, source: str, copying: float, waiting: float) -> Decision:
    return replace(
        decision,
        runner_up=f"{source} as it is",
        runner_up_reason=f"{waiting:.0f} cycles of waiting",
        cost=Cost(cycles=copying),
        runner_up_cost=Cost(cycles=waiting),
    )
