"""Ordered accumulations (scans, sorts, scatters) to kernels of a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.compiler.in_place import place_in_initial
from tilewright.compiler.planning import Planning, points
from tilewright.compiler.rows import fill_borders, write_rows
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr
from tilewright.expr.dtypes import INDEX
from tilewright.expr.ordered import SCATTER, Scatter
from tilewright.expr.rewrite import substitute
from tilewright.graph.groups import Group
from tilewright.machine.description import Cpu
from tilewright.operator.flatten import address
from tilewright.operator.ordered_cycles import ordered_cycles
from tilewright.operator.rules.cpu_ordered import ordered_kernel
from tilewright.tiles.kernel import Statement


def plan_ordered(planning: Planning, group: Group, machine: Cpu) -> None:
    """Place the result and add its kernels: of a scatter first the one that writes the initial values, if any."""
    node = group.main
    parts: tuple[Expr, ...] = (node.body,)
    name, updates = group.kernel, tuple[str, ...]()
    if isinstance(node.ordered, Scatter):
        assert isinstance(node.body, Apply)
        initial, parts = node.body.args[0], node.body.args[1:]
        name, updates = f"{group.kernel}.updates", (node.name,)
        if not place_in_initial(planning, node, initial, parts):
            _place(planning, group)
            _write_initial(planning, group, initial)
    else:
        _place(planning, group)
    if node.output.size == 0 or points(node) == 0:
        return
    kernel, decision = ordered_kernel(_statement(planning, node, parts), machine, planning.threads, name)
    planning.plan.decisions.append(decision)
    cycles = partial(ordered_cycles, machine=machine)
    planning.add_scheduled(planning.name_kernel(name), kernel, decision, group.stored, points(node), updates, cycles)


def _place(planning: Planning, group: Group) -> None:
    planning.place_result(group.main.output, list(range(group.main.output.rank)))
    fill_borders(planning, group.stored)


def _write_initial(planning: Planning, group: Group, initial: Expr) -> None:
    node = group.main
    if node.output.size:
        start = Compute(node.output, node.axes, initial, source=node.source)
        write_rows(planning, replace(group, kind="rows", nodes=(start,), inner=()))


def _statement(planning: Planning, node: Compute, parts: tuple[Expr, ...]) -> Statement:
    """The accumulation over storage; `parts` are its body, or the value and the places of a scatter."""
    accum = node.ordered
    assert accum is not None
    dims = accum.dims if isinstance(accum, Scatter) else (accum.dim,)
    own = [node.axes[dim] for dim in dims]
    index = address(planning.plan.stored[node.name].layout, node.axes)
    form = affine(index)
    assert form is not None, f"{node.name} is stored with one stride per dimension"
    first: dict[Axis, Expr] = {axis: Const(0, INDEX) for axis in own}
    value, *places = (planning.flat(part, {node.name}) for part in parts)
    return Statement(
        tensor=node.output,
        axes=tuple(axis for axis in node.axes if axis not in own),
        body=Apply(SCATTER, (value, *places), value.dtype) if places else value,
        reduce=node.reduce,
        accum=accum,
        address=substitute(index, first),
        dims=tuple((axis.size, form.coefficient(axis)) for axis in own),
    )
