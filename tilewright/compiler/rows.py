"""Row groups and pointwise groups to statements: how their results are stored, and the loops that write them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import prod

from tilewright.compiler.plan import Stored
from tilewright.compiler.planning import Planning, points
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Axis, Compute, Const, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import unique
from tilewright.expr.ordered import Ordered
from tilewright.expr.rewrite import copy_of, substitute
from tilewright.graph.groups import Group
from tilewright.instruction.products import contiguous_dimension, decide_lanes
from tilewright.layouts import Packed, permuted, row_major
from tilewright.operator.flatten import address, flatten, guarded, storage_loops
from tilewright.operator.loop_partition import SMALLEST_POINTS
from tilewright.operator.rules.split import choose_split
from tilewright.operator.statements import (
    Statements,
    drop_unit_loops,
    fuse_loops,
    inner_loops,
    outer_loops,
    over,
)
from tilewright.tiles.kernel import Kernel, Statement

SHARED_COPY = 1 << 18  # bytes from which on threads share a copy or a border; others wait for one that writes less


def plan_rows(planning: Planning, group: Group) -> None:
    """Place the results of a row group or map, and add its kernels; none for a view."""
    if len(group.nodes) == 1 and planning.place_view(group.main.output):
        return
    if _is_gathered(planning, group):
        _write_and_transpose(planning, group.main, group.kernel)
        return
    for node in group.nodes:
        if node.name in group.stored:
            planning.place_result(node.output, order_of_result(planning, group, node))
    fill_borders(planning, group.stored)
    for node in group.nodes:
        if node.name in group.stored:
            place_constants(planning, group, _innermost(planning, node))
    write_rows(planning, group)


def _innermost(planning: Planning, node: Compute) -> Axis | None:
    """The loop along which neighbours of a stored result lie; None for one element."""
    axes = [node.axes[dim] for dim in _by_strides(planning.plan.stored[node.name])]
    return next((axis for axis in reversed(axes) if axis.extent != 1), None)


def place_constants(planning: Planning, group: Group, along: Axis | None) -> None:
    """Store the constants that a group reads along a loop, that of its vectors, with neighbours along this loop.

    Constants that are stored already stay as they are.
    """
    for read in (read for node in group.nodes for read in node.reads()):
        dims = [dim for dim, index in enumerate(read.indices) if index == along]
        free = read.tensor.name in planning.constants and read.tensor.name not in planning.plan.stored
        if free and len(dims) == 1:
            order = [*(dim for dim in range(read.tensor.rank) if dim not in dims), *dims]
            planning.place(read.tensor, permuted(static_shape(read.tensor.shape), order), "constant")


def _is_gathered(planning: Planning, group: Group) -> bool:
    """Whether a map writes an output along one loop and reads neighbours along another, by digits of the former.

    Addresses in digits, as those of phases that a map puts together, are not transposed in registers.
    """
    node = group.main
    if not planning.rules.TRANSPOSED_COPIES or len(group.nodes) > 1 or node.accum is not None:
        return False
    if node.name not in planning.outputs or points(node) < SMALLEST_POINTS:
        return False
    order = _inherited_order(planning, node, group)
    innermost = max((dim for dim, axis in enumerate(node.axes) if axis.extent != 1), default=0)
    if order[-1] == innermost:
        return False
    written = node.axes[innermost]
    forms = [affine(address(planning.expected_layout(read.tensor), read.indices)) for read in node.reads()]
    return all(form is None or not form.coefficient(written) for form in forms)


def _write_and_transpose(planning: Planning, node: Compute, kernel: str) -> None:
    """Write a map in the order of what it reads, and copy that to the output."""
    target = Tensor(unique(f"{node.name}.packed", planning.taken()), node.output.shape, node.output.dtype)
    packed, copy = replace(node, output=target), copy_of(target, node.output)
    plan_rows(planning, Group("rows", (packed,), packed.axes, (), (packed.name,), kernel=kernel))
    name = unique(f"{node.name}.unpacked", planning.kernel_names)
    with planning.about(name):
        plan_rows(planning, Group("rows", (copy,), copy.axes, (), (copy.name,), kernel=name))
    planning.plan.mapped[node.name] = (packed, copy)


def write_rows(planning: Planning, group: Group) -> None:
    """Add the kernel of a group whose results are placed."""
    if len(group.nodes) == 1:
        statements = statements_of(planning, group.main, planning.plan.stored[group.main.name].layout)
    else:
        statements = by_stride(fuse_loops(drop_unit_loops(group_statements(planning, group))))
    flops = sum(_operations(node.body) * points(node) for node in group.nodes)
    planning.rules.add_rows(planning, group, statements, flops, planning.machine)


def add_kernel(
    planning: Planning, name: str, statements: Statements, writes: Sequence[str], flops: int, lanes: int = 0,
    threads: int = 0,
) -> None:  # fmt: skip
    """Schedule statements and add their kernel, for all threads unless `threads` says how many."""
    kernel, decision = schedule_statements(statements, planning, name, threads, lanes)
    cycles = planning.rules.row_cycles(planning.machine, kernel, decision)
    with planning.about(name):
        planning.plan.decisions.append(decision)
        planning.add_scheduled(planning.name_kernel(name), kernel, decision, writes, flops, cycles=cycles)


def add_in_parts(
    planning: Planning, name: str, statements: Statements, writes: Sequence[str], flops: int, lanes: int,
    cycles: Callable[[Statements], float], launch_cycles: float = 0.0,
) -> None:  # fmt: skip
    """Add the kernel of statements; of a reduction the kernel of its parts and that of their reduction, if faster.

    `cycles` predicts those of a kernel, and a second launch takes `launch_cycles` more.
    """
    found, reason = choose_split(statements, cycles, launch_cycles, name, planning.taken())
    planning.plan.decisions += [] if reason is None else [reason]
    if found is not None:
        for tensor in found.parts:
            planning.place(tensor, row_major(static_shape(tensor.shape)), "arena")
        parts = [tensor.name for tensor in found.parts]
        add_kernel(planning, f"{name}.parts", found.first, parts, flops, lanes)
        statements, flops = found.second, sum(tensor.size for tensor in found.parts)
    add_kernel(planning, name, statements, writes, flops, lanes)


def schedule_statements(
    statements: Statements, planning: Planning, subject: str, threads: int = 0, lanes: int = 0
) -> tuple[Kernel, Decision]:
    """The kernel of statements by the machine's rule; vectors have `lanes` lanes where an instruction was chosen."""
    return planning.rules.schedule_rows(statements, planning.machine, threads or planning.threads, subject, lanes)


def fill_borders(planning: Planning, names: Sequence[str]) -> None:
    """Add kernels that fill the borders of stored results, to run before these are written.

    A border of zeros needs none (`Stored.zero_border`).
    """
    for name in names:
        stored = planning.plan.stored.get(name)
        if stored is None or stored.zero_border or not any(before or after for before, after in stored.layout.halo):
            continue
        for number, (loops, index) in enumerate(_border_loops(stored)):
            fill = Statement(stored.tensor, loops, planning.borders[name].value, address=index)
            statements = fuse_loops(drop_unit_loops((fill,)))
            size_bytes = prod(axis.size for axis in loops) * dtypes.size_bytes(stored.tensor.dtype)
            threads = 0 if size_bytes >= SHARED_COPY else 1
            add_kernel(planning, f"{name}.border{number}", statements, (name,), 0, threads=threads)


# Statements -----------------------------------------------------------------------------------------------------------


def statements_of(planning: Planning, node: Compute, layout: Packed) -> Statements:
    """A compute that is stored in a layout."""
    return by_stride(fuse_loops(drop_unit_loops(_single_statement(planning, node, layout))))


def _single_statement(planning: Planning, node: Compute, layout: Packed) -> Statements:
    """One compute over the digits of its storage, so that panels too are written in the order of memory."""
    replaced, outer, condition = storage_loops(node, layout)
    body = planning.flat(guarded(node.body, condition, replaced), {node.name})
    index = address(layout, tuple(substitute(axis, replaced) for axis in node.axes))
    return over(outer, node.reduce, [Statement(node.output, (), body, (), _combining(node), index)])


def group_statements(
    planning: Planning, group: Group, values: Collection[str] = (), expected: Callable[[Tensor], Packed] | None = None
) -> Statements:
    """Several computes over shared loops; those that nothing else reads stay in the kernel.

    `values` have no place in memory: reads of them are as if they were stored row by row. Before tensors are placed,
    `expected` says how they will be stored.
    """
    own = {node.name for node in group.nodes}

    def layout_of(tensor: Tensor) -> Packed:
        if tensor.name in values:
            return row_major(static_shape(tensor.shape))
        return planning.layout(tensor) if expected is None else expected(tensor)

    unit = {axis: Const(0, INDEX) for node in group.nodes for axis in node.loops if axis.extent == 1}
    found = []
    for node in group.nodes:
        index = None
        if node.name in group.stored and node.name not in values:
            index = substitute(address(layout_of(node.output), node.axes), unit)
        body = substitute(flatten(node.body, layout_of, own), unit)
        found.append(Statement(node.output, (), body, (), _combining(node), index))
    return over(group.outer, group.inner, found)


def _combining(node: Compute) -> str | None:
    assert not isinstance(node.accum, Ordered), "ordered accumulations are groups of their own"
    return node.accum


def by_stride(statements: Statements) -> Statements:
    """Outer loops in the order of the strides of the last stored statement, largest first."""
    form = next((affine(each.address) for each in reversed(statements) if each.address is not None), None)
    if form is None:
        return statements
    order = sorted(outer_loops(statements), key=lambda axis: -(form.coefficient(axis) or 1 << 62))
    return over(order, inner_loops(statements), statements)


def _border_loops(stored: Stored) -> list[tuple[tuple[Axis, ...], Expr]]:
    """Parts of the border: for each dimension what lies before and after, one part where widths agree."""
    layout = stored.layout
    border_parts = []
    for dim, (before, after) in enumerate(layout.halo):
        distance = before + layout.shape[dim]
        sides = [(0, before, 2)] if before == after else [(0, before, 1), (distance, after, 1)]
        for start, count, repeats in sides:
            if not count:
                continue
            side = Axis("side", repeats)
            total: Expr = Const(0, INDEX)
            loops = [side]
            for (d, extent), stride in zip(layout.digits, layout.strides, strict=True):
                axis = Axis(f"z{d}", count if d == dim else extent)
                loops.append(axis)
                total = total + (axis + side * distance + start if d == dim else axis) * stride
            border_parts.append((tuple(loops), substitute(total, {})))
    return border_parts


def _operations(body: Expr) -> int:
    """Arithmetic on values; choices among them are none."""
    applied = [node for node in walk(body) if isinstance(node, Apply) and node.function != "select"]
    return sum(1 for node in applied if node.dtype not in (INDEX, "bool"))


# Products lane by lane ------------------------------------------------------------------------------------------------


def _order_of_lanes(planning: Planning, group: Group, node: Compute, order: list[int]) -> list[int]:
    """The order of a result whose main node multiplies lane by lane: the loop of the lanes innermost."""
    lanes = [each.columns for each in planning.lane_by_lane(group.main)[0] if each.lane_by_lane]
    if not lanes or len(node.axes) != len(group.main.axes) or node.name in planning.outputs:
        return order
    dims = [dim for dim in order if group.main.axes[dim].extent != 1]
    if not dims or group.main.axes[dims[-1]] in lanes:
        return order
    last = group.main.axes.index(lanes[0])
    return [dim for dim in order if dim != last] + [last]


def lanes_of(planning: Planning, group: Group) -> int:
    """Lanes of the record that multiplies the main node's factors lane by lane, 0 if none does; says why."""
    found, refused = planning.lane_by_lane(group.main)
    stored = planning.plan.stored.get(group.nodes[-1].name)
    decided = None
    if stored is not None and len(group.nodes[-1].axes) == len(group.main.axes):
        decided = decide_lanes(found, _by_strides(stored), refused)
    unmapped = planning.find_product(group.main)[1]
    if decided is None:
        planning.plan.decisions += [replace(unmapped, refused=(*unmapped.refused, *refused))] if unmapped else []
        return 0
    lane_by_lane, decision = decided
    planning.plan.decisions.append(decision)
    return lane_by_lane.lanes


def _by_strides(stored: Stored) -> list[int]:
    """The dimensions of a stored tensor, those with the longest steps first."""
    steps = [min((step for _, _, step in stored.layout.digits_of(dim)), default=0) for dim in range(stored.tensor.rank)]
    return sorted(range(len(steps)), key=lambda dim: -steps[dim])


# Orders of storage ----------------------------------------------------------------------------------------------------


def order_of_result(planning: Planning, group: Group, node: Compute) -> list[int]:
    """The order in which a group stores the dimensions of a result: what readers want, or that of what it reads."""
    wanted = _wanted_order(planning, node.output)
    order = _inherited_order(planning, node, group) if wanted is None else wanted
    if node.name in planning.views:
        order = planning.views[node.name].grouped(order)
    return _order_of_lanes(planning, group, node, order)


def _wanted_order(planning: Planning, tensor: Tensor) -> list[int] | None:
    """The order that a product wants of its broadcast operand, read through views: its longest sum innermost."""
    view = planning.views.get(tensor.name)
    if view is not None and len(planning.users[tensor.name]) == 1:
        wanted = _wanted_order(planning, view.result)
        return None if wanted is None else view.order_of(wanted)
    best: tuple[int, int] | None = None
    extents = static_shape(tensor.shape)
    for user in planning.users.get(tensor.name, []):
        product = planning.product_of(user)
        if product is None or product.a.tensor != tensor:
            continue
        for dim in (contiguous_dimension(product.a, axis) for axis in product.depth):
            if dim is not None and (best is None or extents[dim] > best[0]):
                best = (extents[dim], dim)
    if best is None:
        return None
    return [d for d in range(len(tensor.shape)) if d != best[1]] + [best[1]]


def _inherited_order(planning: Planning, node: Compute, group: Group) -> list[int]:
    """The order of the largest stored tensor that the group reads along several loops of `node`."""
    own = {member.name for member in group.nodes}
    best: tuple[int, list[int]] | None = None
    for read in (read for member in group.nodes for read in member.reads() if read.tensor.name not in own):
        strides = _strides(planning, read, node.axes)
        if sum(1 for stride in strides if stride) > 1 and (best is None or read.tensor.size > best[0]):
            order = sorted(range(len(strides)), key=lambda d: -(strides[d] or 1 << 62))
            best = (read.tensor.size, order)
    return best[1] if best is not None else list(range(len(node.axes)))


def _strides(planning: Planning, read: Read, axes: Sequence[Axis]) -> list[int]:
    """How far neighbours along each loop are from each other in memory, 0 for a loop that a read does not have.

    Where the address is not affine: the least stride of a dimension in whose index the loop is, if one of the loops
    that are an index alone has stride 1; else nothing is known.
    """
    layout = planning.expected_layout(read.tensor)
    form = affine(address(layout, read.indices))
    if form is not None:
        return [form.coefficient(axis) for axis in axes]
    least = [min((stride for _, _, stride in layout.digits_of(dim)), default=0) for dim in range(read.tensor.rank)]
    indices = list(zip(read.indices, least, strict=True))
    if not any(index in axes and stride == 1 for index, stride in indices):
        return [0] * len(axes)
    return [min((stride for index, stride in indices if axis in set(walk(index))), default=0) for axis in axes]
