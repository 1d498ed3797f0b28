"""Borders of zeros that need not be in memory: what a copy engine brings from outside of a tensor is 0."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tilewright.compiler.gpu_prices import product_cycles
from tilewright.compiler.planning import Planning
from tilewright.decision import Cost, Decision, Refusal
from tilewright.expr.core import Compute, Tensor, static_shape
from tilewright.layouts import permuted
from tilewright.machine.description import Gpu
from tilewright.machine.units import WARPGROUP_UNITS
from tilewright.tiles.windows import inside


def leave_border(planning: Planning, tensor: Tensor, order: Sequence[int], machine: Gpu) -> bool:
    """Whether the products that read a border of zeros take fewer predicted cycles without the border in memory.

    Tensor-map boxes have zeros outside of the tensor. No kernel writes a border of zeros in memory
    (`Stored.zero_border`). A border that something else than a product reads stays in memory. The choice is added to
    the plan's decisions.
    """
    border = planning.borders[tensor.name]
    if border.value.value != 0 or not machine.features >= WARPGROUP_UNITS or tensor.name in planning.views:
        return False
    readers = [user for user in planning.users.get(tensor.name, ()) if _reads_outside(user, tensor)]
    products = [planning.product_of(user) for user in readers]
    if any(each is None or each.a.tensor != tensor or each.b.tensor == tensor for each in products):
        return False
    shape = static_shape(tensor.shape)
    bare, bordered = permuted(shape, order, None), permuted(shape, order, border.widths)
    planning.borders_left_out.add(tensor.name)
    without = sum(product_cycles(planning, each, bare, machine, boxes=True) for each in products if each is not None)
    planning.borders_left_out.discard(tensor.name)
    with_it = sum(product_cycles(planning, each, bordered, machine) for each in products if each is not None)
    subject, boxes, memory = f"border of {tensor.name}", "zeros outside of boxes", "in memory"
    texts = f"{without:.0f} predicted cycles of what reads it", f"{with_it:.0f} predicted cycles of what reads it"
    costs = Cost(cycles=without), Cost(cycles=with_it) if with_it < inf else None
    leaves = _pays(without, with_it)
    if leaves:
        decision = Decision(subject, boxes, texts[0], memory, texts[1], (), costs[0], costs[1])
    elif without < inf:
        decision = Decision(subject, memory, texts[1], boxes, texts[0], (), costs[1], costs[0])
    else:
        refused = (Refusal(boxes, "boxes", "no copy engine brings what reads it"),)
        decision = Decision(subject, memory, texts[1], refused=refused, cost=costs[1])
    planning.plan.decisions.append(decision)
    return leaves


def _pays(without: float, with_it: float) -> bool:
    """Whether products that take so many cycles `without` a border in memory should read tensor-map boxes."""
    return without < with_it


def _reads_outside(user: Compute, tensor: Tensor) -> bool:
    return any(inside(read) is not None for read in user.reads() if read.tensor == tensor)
