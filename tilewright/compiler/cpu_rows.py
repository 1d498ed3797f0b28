"""Statements of row groups and pointwise groups to kernels of a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.compiler.planning import Planning
from tilewright.compiler.rows import add_in_parts, add_kernel, by_stride, lanes_of
from tilewright.decision import Decision
from tilewright.graph.groups import Group
from tilewright.machine.description import Cpu
from tilewright.operator.cycles import nest_cycles
from tilewright.operator.loop_partition import parts_of
from tilewright.operator.rules.cpu_rows import is_even, predicted
from tilewright.operator.statements import Statements, drop_unit_loops, fuse_loops, inner_loops, point_count
from tilewright.tiles.kernel import Kernel


def add_rows(planning: Planning, group: Group, statements: Statements, flops: int, machine: Cpu) -> None:
    """Add the kernels of the statements of a group: one for each part of the loops in which conditions are decided."""
    lanes = lanes_of(planning, group)
    pieces, cuts = parts_of(statements, group.kernel)
    planning.plan.decisions += [] if cuts is None else [cuts]
    total = sum(map(point_count, pieces))
    for number, part in enumerate(pieces):
        name = group.kernel if len(pieces) == 1 else f"{group.kernel}.part{number}"
        tidy = by_stride(fuse_loops(drop_unit_loops(part)))
        share = flops * point_count(part) // max(1, total)
        if planning.threads == 1 or not inner_loops(tidy) or is_even(tidy, machine, planning.threads):
            add_kernel(planning, name, tidy, group.stored, share, lanes)
        else:
            cycles = partial(predicted, machine=machine, threads=planning.threads, lanes=lanes)
            add_in_parts(planning, name, tidy, group.stored, share, lanes, cycles)


def row_cycles(machine: Cpu, scheduled: Kernel, decision: Decision) -> Callable[[Kernel], float]:
    """What predicts the cycles of a kernel of rows: those of its tree, whoever chose it."""
    return partial(nest_cycles, machine=machine)
