"""Ordered accumulations (scans, sorts, scatters) to kernels of a CPU."""

from __future__ import annotations

from dataclasses import replace

from tilewright.compiler.in_place import place_in_initial
from tilewright.compiler.planning import Planning, points
from tilewright.compiler.rows import fill_borders, write_rows
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.ordered import Scatter
from tilewright.expr.rewrite import substitute
from tilewright.graph.groups import Group
from tilewright.machine.description import Cpu
from tilewright.operator.flatten import address
from tilewright.operator.ordered import OrderedWork, merged, schedule_ordered


def plan_ordered(planning: Planning, group: Group) -> None:
    """Place the result and add its kernels: of a scatter first the one that writes the initial values, if any."""
    node, machine = group.main, planning.machine
    assert isinstance(machine, Cpu), "GPUs run ordered accumulations as reductions"
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
    work = merged(_work(planning, node, parts))
    schedule, decision = schedule_ordered(work, machine, planning.threads, name)
    planning.plan.decisions.append(decision)
    planning.add_kernel(name, work, schedule, group.stored, points(node), updates)


def _place(planning: Planning, group: Group) -> None:
    planning.place_result(group.main.output, list(range(group.main.output.rank)))
    fill_borders(planning, group.stored)


def _write_initial(planning: Planning, group: Group, initial: Expr) -> None:
    node = group.main
    if node.output.size:
        start = Compute(node.output, node.axes, initial, source=node.source)
        write_rows(planning, replace(group, kind="rows", nodes=(start,), inner=()))


def _work(planning: Planning, node: Compute, parts: tuple[Expr, ...]) -> OrderedWork:
    accum = node.ordered
    assert accum is not None
    dims = accum.dims if isinstance(accum, Scatter) else (accum.dim,)
    own = [node.axes[dim] for dim in dims]
    index = address(planning.plan.stored[node.name].layout, node.axes)
    form = affine(index)
    assert form is not None, f"{node.name} is stored with one stride per dimension"
    first: dict[Axis, Expr] = {axis: Const(0, INDEX) for axis in own}
    return OrderedWork(
        tensor=node.output,
        accum=accum,
        outer=tuple(axis for axis in node.axes if axis not in own),
        inner=node.reduce,
        parts=tuple(planning.flat(part, {node.name}) for part in parts),
        base=substitute(index, first),
        strides=tuple(form.coefficient(axis) for axis in own),
        extents=static_shape(tuple(axis.extent for axis in own)),
    )
