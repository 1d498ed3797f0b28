"""Statements of row groups and pointwise groups to kernels of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.compiler.planning import Planning, cycles_of_rule
from tilewright.compiler.rows import add_kernel, lanes_of
from tilewright.decision import Decision
from tilewright.expr.core import identity, static_shape
from tilewright.graph.groups import Group
from tilewright.layouts import row_major
from tilewright.machine.description import Gpu
from tilewright.operator.rules.gpu_rows import schedule_on_blocks
from tilewright.operator.rules.split import choose_split
from tilewright.operator.statements import Statements, covering, inner_loops, outer_loops, over
from tilewright.tiles.kernel import Kernel


def add_rows(planning: Planning, group: Group, statements: Statements, flops: int, machine: Gpu) -> None:
    """Add the kernels of the statements of a group: one, or a reduction in parts and the reduction of these."""
    if any(axis.extent == 0 for axis in outer_loops(statements)):
        return  # no tile, no block
    statements = _without_empty_sums(statements)
    found, reason = choose_split(statements, machine, group.kernel, planning.taken())
    planning.plan.decisions += [] if reason is None else [reason]
    if found is not None:
        for tensor in found.parts:
            planning.place(tensor, row_major(static_shape(tensor.shape)), "arena")
        parts = [tensor.name for tensor in found.parts]
        add_kernel(planning, f"{group.kernel}.parts", found.first, parts, flops)
        statements, flops = found.second, sum(tensor.size for tensor in found.parts)
    add_kernel(planning, group.kernel, statements, group.stored, flops, lanes_of(planning, group))


def _without_empty_sums(statements: Statements) -> Statements:
    """The statements with known sums where an inner loop has no points: nothing has a value along such loops."""
    if all(axis.extent != 0 for axis in inner_loops(statements)):
        return statements
    found = []
    for each in statements:
        if isinstance(each.accum, str):
            found.append(replace(each, body=identity(each.accum, each.body.dtype), accum=None))
        elif each.name not in covering(statements):
            found.append(each)
    return over(outer_loops(statements), (), found)


def schedule_rows(
    statements: Statements, machine: Gpu, threads: int, subject: str, lanes: int = 0
) -> tuple[Kernel, Decision]:
    """The kernel of statements on thread blocks; threads of the host and lanes of vectors mean nothing there."""
    return schedule_on_blocks(statements, machine, subject)


def row_cycles(machine: Gpu, scheduled: Kernel, decision: Decision) -> Callable[[Kernel], float]:
    """What predicts the cycles of a kernel of rows: the rule for its own tree, nothing for another one."""
    return cycles_of_rule(scheduled, decision)
