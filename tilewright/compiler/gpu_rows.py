"""Statements of row groups and pointwise groups to kernels of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilewright.compiler.planning import Planning, cycles_of_rule
from tilewright.compiler.rows import add_in_parts, lanes_of
from tilewright.decision import Decision
from tilewright.expr.core import identity
from tilewright.graph.groups import Group
from tilewright.machine.description import Gpu
from tilewright.operator.rules.gpu_rows import predicted, schedule_on_blocks
from tilewright.operator.statements import Statements, covering, inner_loops, outer_loops, over
from tilewright.tiles.kernel import Kernel


def add_rows(planning: Planning, group: Group, statements: Statements, flops: int, machine: Gpu) -> None:
    """Add the kernels of the statements of a group: one, or a reduction in parts and the reduction of these."""
    if any(axis.extent == 0 for axis in outer_loops(statements)):
        return  # no tile, no block
    statements = _without_empty_sums(statements)
    launch_cycles = machine.launch_seconds * machine.clock_hz
    cycles = partial(predicted, machine=machine)
    lanes = lanes_of(planning, group)
    add_in_parts(planning, group.kernel, statements, group.stored, flops, lanes, cycles, launch_cycles)


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
