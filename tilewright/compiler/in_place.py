"""Updates in place: a result that begins as another tensor gets the memory of that tensor, where nothing else needs it.

Before:  a kernel copies the initial value to the memory of the result, another one updates it there
After:   the kernel that computes the initial value writes it to that memory, and the other one updates it
Legal when the initial value is what a kernel of the same graph, or of the same body of a loop, computes, nothing but
the initial value of this result reads it or a view of it, and it is stored as the result would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.compiler.plan import Stored
from tilewright.compiler.planning import Planning
from tilewright.decision import Decision
from tilewright.expr.core import Compute, Expr, Read, Tensor, static_shape, walk
from tilewright.instruction.products import is_plain
from tilewright.layouts import row_major


def place_in_initial(planning: Planning, node: Compute, initial: Expr, updates: Sequence[Expr]) -> bool:
    """Store the result of `node` where its initial value is, if that is legal. `updates` are the rest of its body."""
    source = _dying(planning, node, initial, updates)
    if source is None:
        return False
    plan, result = planning.plan, node.output
    stored = plan.stored[source.name]
    if result.name in planning.outputs:  # an output's memory is given: what is in that of the source moves there
        plan.stored[result.name] = planning.results[result.name]
        for name, other in list(plan.stored.items()):
            if other.memory == stored.memory:
                plan.stored[name] = replace(other, owner=result.name)
    else:
        plan.stored[result.name] = Stored(result, stored.layout, stored.space, stored.memory)
    plan.decisions.append(
        Decision(f"storage of {result.name}", f"that of {source.name}", "its initial value, which nothing else reads")
    )
    return True


def _dying(planning: Planning, node: Compute, initial: Expr, updates: Sequence[Expr]) -> Tensor | None:
    """The tensor that is the initial value and may be overwritten, or None."""
    result, rows = node.output, row_major(static_shape(node.output.shape))
    if not isinstance(initial, Read) or initial.indices != node.axes or not is_plain(initial):
        return None
    source = initial.tensor
    if source.dtype != result.dtype or any(
        isinstance(e, Read) and e.tensor == source for u in updates for e in walk(u)
    ):
        return None
    moved = result.name in planning.results and planning.results[result.name].space != "output"
    if planning.borders.get(result.name) is not None or moved:
        return None
    stored = planning.stored(source)
    if stored.layout != rows or stored.slack or stored.begin:
        return None
    return source if _all_die(planning, stored.memory, source) else None


def _all_die(planning: Planning, memory: str, source: Tensor) -> bool:
    """Whether all tensors in a memory are results of nodes, as large as `source`, and read by one node each."""
    computed = {each.name for each in planning.graph.nodes}
    for name, stored in planning.plan.stored.items():
        if stored.memory != memory:
            continue
        if name not in computed or name in planning.outputs or stored.space != "arena":
            return False
        if stored.layout.size != source.size or stored.slack or len(planning.users.get(name, ())) != 1:
            return False
    return True
