"""The plan: every decision about a graph, in the order in which they depend on each other.

graph passes → groups → mappings → layouts → schedules. The result lists kernels to lower, with the
tensors they touch; `lower` needs nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Graph
from tilewright.expr.rewrite import substitute
from tilewright.graph.groups import Group, form_groups
from tilewright.graph.passes.rewritten import Rewritten
from tilewright.graph.passes.separate_outputs import copy_of
from tilewright.graph.passes.table import run_passes, simplifying, storing
from tilewright.instruction.mapping import Mapping, find_mapping, loops_of, product_factors
from tilewright.layouts import Packed, packed, permuted, row_major
from tilewright.machine.description import Cpu
from tilewright.operator.contraction import Contraction, ContractionSchedule, Operand, merge_product_loops
from tilewright.operator.flatten import address, flatten, guarded, storage_loops
from tilewright.operator.nest import Nest, NestNode, NestSchedule, drop_unit_loops, merge_loops
from tilewright.operator.rules import depth_block, k_block, k_unroll, schedule_contraction, schedule_nest
from tilewright.operator.tree import tree_of
from tilewright.tiles.notation import print_tree


@dataclass(frozen=True)
class Stored:
    """A tensor in memory: its layout and where it lives: an input, an output, a constant, or the arena."""

    tensor: Tensor
    layout: Packed
    space: str

    @property
    def bytes(self) -> int:
        return self.layout.size * dtypes.size_bytes(self.tensor.dtype)


@dataclass(frozen=True)
class Kernel:
    """One launch: what to lower, and the stored tensors it reads and writes, in the order of its arguments."""

    name: str
    work: Nest | Contraction
    schedule: NestSchedule | ContractionSchedule
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    flops: int

    @property
    def arguments(self) -> tuple[str, ...]:
        return (*self.reads, *self.writes)


@dataclass
class Plan:
    """All decisions about one graph for one machine."""

    graph: Graph
    stored: dict[str, Stored] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # packed constant -> the constant it holds


def make_plan(graph: Graph, machine: Cpu, threads: int, disable: Sequence[str] = ()) -> Plan:
    """Decide everything. `disable` names graph passes to leave out."""
    return _Planner(prepare(graph, disable), machine, threads, disable).run()


def prepare(graph: Graph, disable: Sequence[str] = ()) -> Rewritten:
    """The clean graph that is stored with a module: what no machine has a say in."""
    return run_passes(graph, simplifying(_is_product), disable)


class _Planner:
    def __init__(self, prepared: Rewritten, machine: Cpu, threads: int, disable: Sequence[str]) -> None:
        self.machine = machine
        self.threads = threads
        self.features = machine.features
        rewritten = run_passes(prepared, storing(), disable)
        self.graph = rewritten.graph
        self.borders = rewritten.borders
        self.gathers: dict[str, Compute] = {}  # operands that exist only as the panels they are packed into
        self.plan = Plan(prepared.graph, decisions=list(rewritten.decisions))

    def run(self) -> Plan:
        graph = self.graph
        self.constants = dict(graph.constants)
        self.outputs = {tensor.name for tensor in graph.outputs}
        self.users = graph.consumers()
        for tensor in graph.inputs:
            self._place(tensor, row_major(static_shape(tensor.shape)), "input")
        for group in form_groups(graph, self._will_map):
            if group.decision is not None:
                self.plan.decisions.append(group.decision)
            if group.kind == "product":
                self._product(group)
            else:
                self._rows(group)
        for tensor in graph.outputs:
            assert self.plan.stored[tensor.name].space == "output"
        self._keep_constants()
        return self.plan

    def _keep_constants(self) -> None:
        """Leave stored what kernels read, and what only the stored graph reads, so that it can be compiled again.

        Kernels do not read a constant where a condition that never holds guards it.
        """
        plan = self.plan
        kept = {name for kernel in plan.kernels for name in kernel.reads}
        held = {plan.sources.get(name, name) for name in kept}
        for name, array in plan.graph.constants.items():
            if name not in held:
                self.constants[name] = array
                tensor = Tensor(name, array.shape, dtypes.from_numpy(array.dtype))
                self._place(tensor, row_major(array.shape), "constant")
                kept.add(name)
        plan.stored = {n: stored for n, stored in plan.stored.items() if stored.space != "constant" or n in kept}
        plan.constants = {name: array for name, array in self.constants.items() if name in plan.stored}

    def _will_map(self, node: Compute) -> bool:
        if not _is_product(node) or any(axis.extent == 0 for axis in node.loops):
            return False
        mapping, _ = find_mapping(node, self.features, self.constants)
        return mapping is not None and bool(mapping.k_loops) and self._can_read_vectors(mapping)

    def _can_read_vectors(self, mapping: Mapping) -> bool:
        """Whether b can be packed into panels: as it is, or by a copy that gathers it and does not make it larger."""
        if _is_plain(mapping.b):
            return True
        gathered = prod(static_shape(tuple(axis.extent for axis in _loops_in_order(mapping))))
        return mapping.b.tensor.name not in self.constants and gathered <= mapping.b.tensor.size

    # Storage --------------------------------------------------------------------------------------------------

    def _place(self, tensor: Tensor, layout: Packed, space: str) -> Stored:
        stored = Stored(tensor, layout, space)
        self.plan.stored[tensor.name] = stored
        return stored

    def _layout(self, tensor: Tensor) -> Packed:
        """The layout of a tensor that is read; constants are placed when first met."""
        if tensor.name not in self.plan.stored:
            assert tensor.name in self.constants, f"{tensor.name} is read before it is written"
            self._place(tensor, row_major(static_shape(tensor.shape)), "constant")
        return self.plan.stored[tensor.name].layout

    def _place_result(self, tensor: Tensor, order: Sequence[int]) -> Stored:
        shape = static_shape(tensor.shape)
        if tensor.name in self.outputs:
            return self._place(tensor, row_major(shape), "output")
        border = self.borders.get(tensor.name)
        return self._place(tensor, permuted(shape, order, border.widths if border else None), "arena")

    # Row groups and maps --------------------------------------------------------------------------------------

    def _rows(self, group: Group) -> None:
        for node in group.nodes:
            if node.name in group.stored:
                wanted = self._wanted_order(node.output)
                self._place_result(node.output, self._follow(node, group) if wanted is None else wanted)
        self._clear_halos(group)
        own = {node.name for node in group.nodes}
        nodes = []
        outer = group.outer
        if len(group.nodes) == 1:
            node = group.nodes[0]
            layout = self.plan.stored[node.name].layout
            replaced, outer, condition = storage_loops(node, layout)
            body = guarded(node.body, condition, replaced)
            index = address(layout, tuple(substitute(axis, replaced) for axis in node.axes))
            nodes.append(NestNode(node.output, self._flat(body, own), node.accum, index))
        else:
            for node in group.nodes:
                index = None
                if node.name in group.stored:
                    index = address(self.plan.stored[node.name].layout, node.axes)
                nodes.append(NestNode(node.output, self._flat(node.body, own), node.accum, index))
            unit = {a: Const(0, INDEX) for n in group.nodes for a in n.loops if a.extent == 1}
            nodes = [
                replace(n, body=substitute(n.body, unit), index=None if n.index is None else substitute(n.index, unit))
                for n in nodes
            ]
        nest = merge_loops(drop_unit_loops(Nest(tuple(outer), group.inner, tuple(nodes))))
        nest = _by_stride(nest)
        schedule, decision = schedule_nest(nest, self.machine, self.threads, group.name)
        self.plan.decisions.append(decision)
        flops = sum(_operations(node.body) * _points(node) for node in group.nodes)
        self._add(group.name, nest, schedule, [n.body for n in nodes], group.stored, flops)

    def _wanted_order(self, tensor: Tensor) -> list[int] | None:
        """Storage order that a product wants of its broadcast operand.

        The dimension of its longest reduction loop innermost.
        """
        best: tuple[int, int] | None = None
        extents = static_shape(tensor.shape)
        for user in self.users.get(tensor.name, []):
            if not self._will_map(user):
                continue
            mapping, _ = find_mapping(user, self.features, self.constants)
            if mapping is None or mapping.a.tensor != tensor:
                continue
            for dim, index in enumerate(mapping.a.indices):
                form = affine(index)
                if form is not None and len(form.terms) == 1:
                    ((axis, coefficient),) = form.terms.items()
                    if axis in mapping.k_loops and coefficient == 1 and (best is None or extents[dim] > best[0]):
                        best = (extents[dim], dim)
        if best is None:
            return None
        return [d for d in range(len(tensor.shape)) if d != best[1]] + [best[1]]

    def _follow(self, node: Compute, group: Group) -> list[int]:
        """Storage order of a result: that of the largest tensor read with the same loops."""
        best: tuple[int, list[int]] | None = None
        for member in group.nodes:
            for read in member.reads():
                if read.tensor.name in {n.name for n in group.nodes}:
                    continue
                layout = self._layout(read.tensor)
                form = affine(address(layout, read.indices))
                if form is None:
                    continue
                strides = [form.coefficient(axis) for axis in node.axes]
                order = sorted(range(len(strides)), key=lambda d: -strides[d] if strides[d] else -(1 << 62))
                known = sum(1 for stride in strides if stride)
                rank = read.tensor.size if known > 1 else 0
                if best is None or rank > best[0]:
                    best = (rank, order)
        return best[1] if best is not None and best[0] else list(range(len(node.axes)))

    def _flat(self, body: Expr, own: set[str]) -> Expr:
        """Reads of this kernel's own values lose their indices; reads of stored tensors become flat."""
        return flatten(body, self._layout, own)

    # Products -------------------------------------------------------------------------------------------------

    def _product(self, group: Group) -> None:
        node = group.main
        mapping, refused = find_mapping(node, self.features, self.constants)
        assert mapping is not None
        mapping = self._with_plain_vector_operand(mapping)
        self.plan.decisions.append(
            Decision(
                f"instruction of {node.name}",
                str(mapping),
                "the first record whose types and features fit",
                refused=tuple(refused),
            )
        )
        result = group.nodes[-1]
        n_dim = node.axes.index(mapping.n_loop)
        order = [d for d in range(len(node.axes)) if d != n_dim] + [n_dim]
        direct = result.name not in self.outputs or order == list(range(len(order))) or _flat_order(order, result)
        target = (
            result.output
            if direct
            else Tensor(f"{result.name}.channels-last", result.output.shape, result.output.dtype)
        )
        if direct:
            self._place_result(target, order)
        else:
            self._place(target, permuted(static_shape(target.shape), order), "arena")
        self._clear_halos(group)
        k_loops = self._k_order(mapping)
        b_stored, whole = self._vector_operand(mapping, k_loops)
        work = self._contraction(group, mapping, k_loops, b_stored, target, whole)
        a_bytes = self.plan.stored[mapping.a.tensor.name].bytes
        schedule, decision = schedule_contraction(work, self.machine, self.threads, a_bytes, group.name)
        self.plan.decisions.append(decision)
        if whole:
            mapping, k_loops = self._split_depth(mapping, k_loops, work, schedule)
        work, b_stored = self._repack(work, schedule, mapping, k_loops, b_stored, group, target, whole)
        schedule = replace(schedule, k_unroll=k_unroll(work))
        schedule = replace(schedule, k_block=k_block(work, schedule, self.machine))
        flops = 2 * _points(node)
        reads = [Read(work.a.tensor, (work.a.index,)), Read(work.b.tensor, (work.b.index,)), work.epilogue]
        self._add(group.name, work, schedule, reads, (target.name,), flops)
        if not direct:
            copy = copy_of(target, result.output)
            self._rows(Group("rows", (copy,), copy.axes, (), (result.name,)))

    def _split_depth(
        self, mapping: Mapping, k_loops: tuple[Axis, ...], work: Contraction, schedule: ContractionSchedule
    ) -> tuple[Mapping, tuple[Axis, ...]]:
        """Cut the innermost of several k loops in two, the outer part outermost, where a panel of b would outgrow L2.

        Windows stay whole inside, so that each block of k reads one slice of the image.
        """
        last, group = k_loops[-1] if k_loops else None, mapping.intrinsic.group
        size = depth_block(replace(work, k_loops=k_loops), schedule, self.machine)
        if last is None or len(k_loops) < 2 or not size:
            return mapping, k_loops
        extent = int(last.extent)  # type: ignore[arg-type]
        block = max((d for d in range(group, size + 1, group) if extent % d == 0), default=0)
        if block < 16 or block == extent:
            return mapping, k_loops
        outside, inside = Axis(f"{last.name}.0", extent // block), Axis(f"{last.name}.1", block)
        parts: dict[Axis, Expr] = {last: outside * block + inside}
        a, b = (
            Read(read.tensor, tuple(substitute(index, parts) for index in read.indices))
            for read in (mapping.a, mapping.b)
        )
        loops = (outside, *k_loops[:-1], inside)
        return replace(mapping, a=a, b=b, k_loops=loops), loops

    def _k_order(self, mapping: Mapping) -> tuple[Axis, ...]:
        """Reduction loops with the one that walks neighbours of a innermost."""
        form = affine(address(self._layout(mapping.a.tensor), mapping.a.indices))
        assert form is not None
        return tuple(sorted(mapping.k_loops, key=lambda axis: -(form.coefficient(axis) or 1 << 62)))

    def _with_plain_vector_operand(self, mapping: Mapping) -> Mapping:
        """The mapping with b indexed by single loops: where it is not, of the tensor that packing it will gather."""
        if _is_plain(mapping.b):
            return mapping
        loops = _loops_in_order(mapping)
        name = f"{mapping.b.tensor.name}.for.{mapping.compute.name}"
        gathered = Tensor(name, tuple(axis.extent for axis in loops), mapping.b.dtype)
        unit = {axis: Const(0, INDEX) for axis in mapping.compute.loops if axis.extent == 1}
        self.gathers[name] = Compute(gathered, loops, substitute(mapping.b, unit))
        return replace(mapping, b=gathered[loops])

    def _vector_operand(self, mapping: Mapping, k_loops: tuple[Axis, ...]) -> tuple[Tensor, bool]:
        """Which tensor the product reads as b, and whether it will be packed in panels (their width comes later)."""
        if mapping.b.tensor.name in self.constants or mapping.b.tensor.name in self.gathers:
            return mapping.b.tensor, True
        layout = self._layout(mapping.b.tensor)
        form = affine(address(layout, mapping.b.indices))
        rows = 1
        for axis in mapping.m_loops:
            rows *= int(axis.extent)  # type: ignore[arg-type]
        contiguous = form is not None and form.coefficient(mapping.n_loop) == 1
        if contiguous and mapping.intrinsic.group == 1 and rows <= 64:
            return mapping.b.tensor, False
        return mapping.b.tensor, True

    def _layout_or_constant(self, tensor: Tensor) -> Packed:
        if tensor.name in self.gathers or (tensor.name in self.constants and tensor.name not in self.plan.stored):
            return row_major(static_shape(tensor.shape))
        return self._layout(tensor)

    def _contraction(
        self, group: Group, mapping: Mapping, k_loops: tuple[Axis, ...], b: Tensor, target: Tensor, whole: bool,
        b_index: Expr | None = None,
    ) -> Contraction:  # fmt: skip
        node, result = group.main, group.nodes[-1]
        epilogue: Expr = Read(Tensor(node.name, (), node.output.dtype), ())
        if result is not node:
            renamed: dict[Axis, Expr] = dict(zip(result.axes, node.axes, strict=True))
            epilogue = self._flat(substitute(result.body, renamed), {node.name})
        a_layout = self._layout(mapping.a.tensor)
        a_index = address(a_layout, mapping.a.indices)
        if b_index is None:
            b_index = address(self._layout_or_constant(mapping.b.tensor), mapping.b.indices)
        index = address(self.plan.stored[target.name].layout, node.axes)
        unit = {axis: Const(0, INDEX) for axis in node.loops if axis.extent == 1}
        k_left = k_loops or ()
        work = Contraction(
            outer=mapping.outer,
            m_loops=mapping.m_loops,
            n_loop=mapping.n_loop,
            k_loops=k_left,
            a=Operand(
                Tensor(mapping.a.tensor.name, (a_layout.size,), mapping.a.tensor.dtype), substitute(a_index, unit)
            ),
            b=Operand(Tensor(b.name, (1,), b.dtype), substitute(b_index, unit)),
            accumulator=Tensor(node.name, (), node.output.dtype),
            epilogue=substitute(epilogue, unit),
            output=target,
            index=substitute(index, unit),
            intrinsic=mapping.intrinsic.emitter,
            group=mapping.intrinsic.group,
            whole_panels=whole,
        )
        order = sorted(mapping.m_loops, key=lambda axis: -(affine(work.index).coefficient(axis) or 1 << 62))  # type: ignore[union-attr]
        work = replace(work, m_loops=tuple(order))
        return merge_product_loops(work) if b_index is not None and whole is not None else work

    def _repack(
        self, work: Contraction, schedule: ContractionSchedule, mapping: Mapping, k_loops: tuple[Axis, ...],
        b: Tensor, group: Group, target: Tensor, whole: bool,
    ) -> tuple[Contraction, Tensor]:  # fmt: skip
        """Store b in panels as wide as the register tile: a constant when it is packed, else by a relayout kernel."""
        if not whole:
            layout = self._layout(b)
            return replace(work, b=Operand(Tensor(b.name, (layout.size,), b.dtype), work.b.index)), b
        width = max(schedule.tile[mapping.n_loop.name], 1)
        layout = self._panels(mapping, k_loops, width)
        name = f"{b.name}.panels{_layout_tag(layout)}"
        source = mapping.b.tensor
        packed_tensor = Tensor(name, source.shape, source.dtype)
        if name not in self.plan.stored:
            if source.name in self.constants:
                self.constants[name] = self.constants[source.name]
                self.plan.sources[name] = source.name
                self._place(packed_tensor, layout, "constant")
            else:
                self._place(packed_tensor, layout, "arena")
                gather = self.gathers.get(source.name)
                copy = copy_of(source, packed_tensor) if gather is None else replace(gather, output=packed_tensor)
                self._pack_rows(copy, layout)
            reason = "folded into the constant" if source.name in self.constants else "one copy, read many times"
            self.plan.decisions.append(
                Decision(f"layout of {source.name}", str(layout), f"panels of the register tile; {reason}")
            )
        index = address(layout, mapping.b.indices)
        repacked = self._contraction(group, mapping, k_loops, packed_tensor, target, whole, index)
        flat = Operand(Tensor(name, (layout.size,), source.dtype), repacked.b.index)
        assert [a.name for a in repacked.m_loops] == [a.name for a in work.m_loops]
        return replace(repacked, b=flat), packed_tensor

    def _pack_rows(self, copy: Compute, layout: Packed) -> None:
        replaced, outer, condition = storage_loops(copy, layout)
        body = self._flat(guarded(copy.body, condition, replaced), set())
        index = address(layout, tuple(substitute(axis, replaced) for axis in copy.axes))
        nest = merge_loops(drop_unit_loops(Nest(outer, (), (NestNode(copy.output, body, None, index),))))
        schedule, decision = schedule_nest(nest, self.machine, self.threads, copy.name)
        self.plan.decisions.append(decision)
        self._add(copy.name, nest, schedule, [body], (copy.name,), 0)

    def _panels(self, mapping: Mapping, k_loops: tuple[Axis, ...], width: int) -> Packed:
        """``[outer…][n / width][k…][n % width]``, and the innermost k split by the group of the instruction."""
        shape = static_shape(mapping.b.tensor.shape)
        dims: dict[Axis, int] = {}
        for dim, index in enumerate(mapping.b.indices):
            for axis in affine(index).terms:  # type: ignore[union-attr]
                dims[axis] = dim
        group = mapping.intrinsic.group
        n_dim = dims[mapping.n_loop]
        digits = [(dim, 1) for dim in range(len(shape)) if dim not in dims.values()]
        digits += [(dims[axis], shape[dims[axis]]) for axis in mapping.outer if axis in dims]
        digits.append((n_dim, -(-shape[n_dim] // width)))
        for position, axis in enumerate(k_loops):
            if axis not in dims:
                continue
            extent = int(axis.extent)  # type: ignore[arg-type]
            last = position == len(k_loops) - 1
            digits.append((dims[axis], -(-extent // group) if last else extent))
        digits.append((n_dim, width))
        if group > 1:
            digits.append((dims[k_loops[-1]], group))
        return packed(shape, digits)

    # Kernels --------------------------------------------------------------------------------------------------

    def _clear_halos(self, group: Group) -> None:
        """Kernels that fill the border of every stored result that has one, before it is written."""
        for name in group.stored:
            stored = self.plan.stored.get(name)
            if stored is None or not any(before or after for before, after in stored.layout.halo):
                continue
            for number, (loops, index) in enumerate(_border_loops(stored)):
                fill = NestNode(stored.tensor, self.borders[name].value, None, index)
                nest = merge_loops(drop_unit_loops(Nest(loops, (), (fill,))))
                schedule, _ = schedule_nest(nest, self.machine, 1, name)
                self._add(f"{name}.border{number}", nest, schedule, [], (name,), 0)

    def _add(
        self,
        name: str,
        work: Nest | Contraction,
        schedule: Any,
        bodies: Sequence[Expr],
        writes: Sequence[str],
        flops: int,
    ) -> None:
        reads = dict.fromkeys(r.tensor.name for body in bodies for r in walk(body) if isinstance(r, Read) and r.indices)
        for read in reads:
            assert read in self.plan.stored, f"{name} reads {read}, which is not stored"
        kernel = Kernel(name, work, schedule, tuple(r for r in reads if r not in writes), tuple(writes), flops)
        self.plan.kernels.append(kernel)
        tree = print_tree(tree_of(work, schedule))
        self.plan.decisions.append(Decision(f"tile tree of {name}", tree, "its schedule makes these loops"))


def _is_product(node: Compute) -> bool:
    return product_factors(node) is not None


def _is_plain(read: Read) -> bool:
    """Whether every index is one loop over its whole dimension (0 where that has extent 1), each loop used once."""
    loops: list[Axis] = []
    for index, extent in zip(read.indices, static_shape(read.tensor.shape), strict=True):
        form = affine(index)
        if form is None or form.constant:
            return False
        if extent == 1 and not form.terms:
            continue
        if list(form.terms.values()) != [1] or any(axis.extent != extent for axis in form.terms):
            return False
        loops.extend(form.terms)
    return len(set(loops)) == len(loops)


def _loops_in_order(mapping: Mapping) -> tuple[Axis, ...]:
    """The loops that index b, as its panels want them."""
    loops = (*mapping.outer, *mapping.k_loops, mapping.n_loop)
    return tuple(axis for axis in loops if axis in loops_of(mapping.b))


def _flat_order(order: Sequence[int], node: Compute) -> bool:
    """Whether the order changes nothing because the dimensions it moves have extent 1."""
    shape = static_shape(node.output.shape)
    return [d for d in order if shape[d] != 1] == [d for d in range(len(shape)) if shape[d] != 1]


def _layout_tag(layout: Packed) -> str:
    return "-".join(f"{dim}.{extent}" for dim, extent in layout.digits)


def _by_stride(nest: Nest) -> Nest:
    """Outer loops in the order of the strides of the last stored node, largest first."""
    stored = [node for node in nest.nodes if node.index is not None]
    form = affine(stored[-1].index) if stored and stored[-1].index is not None else None
    if form is None:
        return nest
    order = sorted(nest.outer, key=lambda axis: -(form.coefficient(axis) or 1 << 62))
    return replace(nest, outer=tuple(order))


def _border_loops(stored: Stored) -> list[tuple[tuple[Axis, ...], Expr]]:
    """Boxes that together are the border: for each dimension what lies before and after, one box where widths agree."""
    layout = stored.layout
    boxes = []
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
            boxes.append((tuple(loops), substitute(total, {})))
    return boxes


def _points(node: Compute) -> int:
    count = 1
    for axis in node.loops:
        count *= int(axis.extent)  # type: ignore[arg-type]
    return count


def _operations(body: Expr) -> int:
    from tilewright.expr.core import Apply

    return sum(1 for node in walk(body) if isinstance(node, Apply) and node.dtype not in (INDEX, "bool"))
