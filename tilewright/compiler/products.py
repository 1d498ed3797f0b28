"""Products to contractions: operands, the panels that b is packed into, register tiles and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.compiler.planning import Planning, Stored, is_plain, points, vector_loops
from tilewright.compiler.rows import fill_borders, plan_rows, write_rows
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.evaluate import evaluate_compute
from tilewright.expr.rewrite import inline, substitute, transform
from tilewright.graph.groups import Group
from tilewright.graph.passes.separate_outputs import copy_of
from tilewright.instruction.block_product import BlockProduct
from tilewright.instruction.in_place import InPlace, loops_of, walked_dimension
from tilewright.instruction.relayout import named_by_content
from tilewright.instruction.validation import validate
from tilewright.layouts import Packed, packed, permuted, row_major
from tilewright.machine.description import Cpu
from tilewright.operator.contraction import Contraction, ContractionSchedule, Operand, merge_product_loops
from tilewright.operator.flatten import address, stored_form, stored_indices
from tilewright.operator.product_space import ProductSpace
from tilewright.operator.rules import dealt, depth_block, k_block, k_unroll, schedule_contraction

ROWS_WORTH_PACKING = 64  # a contiguous b is read where it is by a product with fewer rows, or as many
SMALLEST_DEPTH = 16  # points of a k loop that is cut in two


def plan_product(planning: Planning, group: Group) -> None:
    """Place the result of a product with its epilogue, and add its kernels."""
    _Product(planning, group).run()


class _Product:
    """One product on its way to a contraction.

    `gather` computes the vector operand where it exists only as the panels that it is packed into. `walked` says by
    which fused loop addresses of the broadcast operand walk loops that were fused, `unfused` what that loop stands for.
    `relayouts` are the nodes that pack operands, `packed` what the node reads instead of its operands.
    """

    def __init__(self, planning: Planning, group: Group) -> None:
        self.planning = planning
        assert isinstance(planning.machine, Cpu), "products of a GPU are nests so far"
        self.machine = planning.machine
        self.group = group
        self.node, self.result = group.main, group.nodes[-1]
        self.gather: Compute | None = None
        self.walked: dict[Axis, Expr] = {}
        self.unfused: dict[Axis, Expr] = {}
        self.whole_groups = False
        self.relayouts: list[Compute] = []
        self.packed: dict[Read, Expr] = {}

    def run(self) -> None:
        planning, plan = self.planning, self.planning.plan
        mapping = self._map()
        position = len(plan.decisions)
        self.target = self._place_target(mapping)
        fill_borders(planning, self.group.stored)
        mapping = self._near(mapping)
        mapping = self._fused(replace(mapping, k_loops=self._ordered_k_loops(mapping)))
        panels = self._wants_panels(mapping)
        work = self._contraction(mapping, self._plain_operand(mapping), panels)
        a_bytes = planning.stored(mapping.a.tensor).bytes
        schedule, decision = schedule_contraction(work, self.machine, planning.threads, a_bytes, self.group.name)
        space = ProductSpace(work, frozenset(mapping.mapping.sets[0]) if mapping.fixed else None)
        point = planning.choose.point(space, self.node.name)
        if point is not None:
            schedule = dealt(point.schedule(work), work, self.machine, planning.threads, a_bytes)
            decision = Decision(decision.subject, str(point), "it was asked for", decision.chosen, decision.reason)
        plan.decisions.append(decision)
        running = self._proven(work, schedule)
        plan.decisions.insert(position, replace(self.decision, chosen=str(running)))
        if panels:
            logical = tuple(substitute(index, self.unfused) for index in mapping.b.indices)
            if point is None:
                mapping = self._split_depth(mapping, work, schedule)
            b = self._packed_operand(mapping, schedule)
            self.packed[self.offered.b] = _from_storage(b, logical)
            work = self._contraction(mapping, b, panels)
        schedule = replace(schedule, k_unroll=k_unroll(work))
        block = point.k_block(work, schedule) if point else k_block(work, schedule, self.machine)
        line_bytes = self.machine.caches[0].line_bytes if block else 0
        schedule = replace(schedule, k_block=block, prefetch_line_bytes=line_bytes)
        reads = [Read(operand.tensor, (operand.index,)) for operand in (work.a, work.b)]
        flops = 2 * points(self.node)
        planning.add_kernel(self.group.name, work, schedule, [*reads, work.epilogue], (self.target.name,), flops)
        plan.products[self.node.name] = {"kernel": self.group.name, **running.to_json(), "schedule": _as_json(schedule)}
        self._bring_back()

    def _map(self) -> InPlace:
        """The mapping, with b indexed by single loops: where it is not, b is the tensor that packing it gathers."""
        planning, node = self.planning, self.node
        mapping, decision = planning.find_product(node)
        assert mapping is not None
        assert decision is not None
        self.offered, self.decision = mapping, decision
        producer = planning.fused.pop(mapping.b.tensor.name, None)
        if producer is not None and not self._always_packs():
            plan_rows(planning, producer)
            producer = None
        self.producer = None if producer is None else producer.main
        if not is_plain(mapping.b):
            loops = vector_loops(mapping)
            extents = tuple(axis.extent for axis in loops)
            gathered = Tensor(f"{mapping.b.tensor.name}.for.{node.name}", extents, mapping.b.dtype)
            self.gather = Compute(gathered, loops, substitute(mapping.b, _unit_loops(node)))
            mapping = replace(mapping, b=gathered[loops])
        return mapping

    def _proven(self, work: Contraction, schedule: ContractionSchedule) -> InPlace:
        """The mapping that this schedule runs, which has passed every check, the execution of a small instance too."""
        rows = [axis for axis in work.m_loops if schedule.tile.get(axis.name, 1) > 1]
        height = prod(schedule.tile[axis.name] for axis in rows)
        vectors = -(-schedule.tile[work.n_loop.name] // work.lanes)
        parts = [part for axis in rows for part in work.stands_for(axis)]
        fused = [axis for axis in self.node.reduce if axis in self.walked]
        sums = self.node.reduce if self.offered.group == 1 else fused or work.stands_for(work.k_loops[-1])
        running = self.offered.running(parts, sums, (height, vectors))
        validate(running.mapping, "signature")
        return running

    def _place_target(self, mapping: InPlace) -> Tensor:
        """What the kernel writes, the vector loop innermost: the result, or a tensor that is copied to an output."""
        planning, output = self.planning, self.result.output
        n_dim = self.node.axes.index(mapping.n_loop)
        order = [d for d in range(len(self.node.axes)) if d != n_dim] + [n_dim]
        if output.name not in planning.outputs or _keeps_order(order, output):
            planning.place_result(output, order)
            return output
        target = Tensor(f"{output.name}.packed", output.shape, output.dtype)
        planning.place(target, permuted(static_shape(target.shape), order), "arena")
        return target

    def _bring_back(self) -> None:
        """Copy a result that is stored otherwise to the output, and note which nodes this one runs as."""
        planning, node, result = self.planning, self.node, self.result
        mapped = planning.plan.mapped
        mapped[result.name] = (result,)  # in a group its dimensions of extent 1 may be others than in the graph
        body = transform(node.body, lambda each: self.packed.get(each) if isinstance(each, Read) else None)
        mapped[node.name] = (*self.relayouts, replace(node, body=body))
        if self.target == result.output:
            return
        copy = copy_of(self.target, result.output)
        plan_rows(planning, Group("rows", (copy,), copy.axes, (), (copy.name,)))
        stored = planning.stored(self.target)
        *before, last = mapped[result.name]
        packed = stored_form(replace(last, output=self.target), stored.layout)
        inverse = replace(copy, body=_from_storage(stored, copy.axes))
        mapped[result.name] = (*before, packed, inverse)

    def _ordered_k_loops(self, mapping: InPlace) -> tuple[Axis, ...]:
        """Reduction loops with the one that walks neighbours of a innermost; for an instruction on groups, one in b."""
        form = affine(address(self.planning.layout(mapping.a.tensor), mapping.a.indices))
        assert form is not None
        in_b = loops_of(mapping.b) if mapping.group > 1 else mapping.k_loops
        return tuple(sorted(mapping.k_loops, key=lambda axis: (axis in in_b, -(form.coefficient(axis) or 1 << 62))))

    def _near(self, mapping: InPlace) -> InPlace:
        """For an instruction on groups, the broadcast operand with neighbours of a group next to each other.

        Where it is stored otherwise (a graph input), it is copied first.
        """
        planning, source = self.planning, mapping.a.tensor
        layout = planning.layout(source)
        form = affine(address(layout, mapping.a.indices))
        assert form is not None
        if mapping.group == 1 or any(form.coefficient(axis) == 1 for axis in mapping.k_loops):
            return mapping
        walked = [walked_dimension(mapping.a, axis) for axis in mapping.k_loops if axis in loops_of(mapping.b)]
        dims = sorted(dim for dim in walked if dim is not None)
        if not dims or any(front or back for front, back in layout.halo) or source.name in planning.constants:
            return mapping
        order = [dim for dim in range(source.rank) if dim != dims[-1]] + [dims[-1]]
        layout = permuted(static_shape(source.shape), order)
        reason = f"{mapping.instruction} takes {mapping.group} neighbours of dimension {dims[-1]} at once"
        stored = self._relaid(copy_of(source, source), layout, reason)
        near = stored.tensor
        self.packed[self.offered.a] = _from_storage(stored, mapping.a.indices)
        return replace(mapping, a=near[mapping.a.indices])

    def _fused(self, mapping: InPlace) -> InPlace:
        """For an instruction on groups, the two innermost reduction loops as one, where that fills groups better and
        the mapping, if it is fixed, has both in r1.

        The broadcast operand must walk them as one loop. The vector operand is decoded, ``b[.., i // n, i % n]``: a
        constant one now, another when it is packed.
        """
        if mapping.group == 1 or len(mapping.k_loops) < 2:
            return mapping
        planning, group = self.planning, mapping.group
        *others, first, second = mapping.k_loops
        if mapping.fixed and not {first, second} <= set(mapping.mapping.sets[2]):
            return mapping
        m, n = (int(axis.extent) for axis in (first, second))  # type: ignore[arg-type]
        form = affine(address(planning.layout(mapping.a.tensor), mapping.a.indices))
        assert form is not None
        if form.coefficient(second) != 1 or form.coefficient(first) != n or not {first, second} <= loops_of(mapping.b):
            return mapping
        if -(-m * n // group) >= m * -(-n // group):
            return mapping
        fused = Axis(f"{first.name}_{second.name}", m * n)
        self.walked = {first: Const(0, INDEX), second: fused}
        decoded: dict[Axis, Expr] = {**_unit_loops(self.node), first: fused // n, second: fused % n}
        body = substitute(mapping.b if self.gather is None else self.gather.body, decoded)
        outside = [axis for axis in (*mapping.outer, *others) if axis in loops_of(mapping.b)]
        loops = (*outside, fused, mapping.n_loop)
        extents = tuple(axis.extent for axis in loops)
        gathered = Tensor(f"{mapping.b.tensor.name}.for.{self.node.name}", extents, mapping.b.dtype)
        self.gather = Compute(gathered, loops, body)
        self.unfused = {fused: first * n + second}
        planning.plan.decisions.append(
            Decision(
                f"reductions of {self.node.name}",
                f"{first.name} and {second.name} as one",
                f"{-(-m * n // group)} groups of {group} instead of {m * -(-n // group)}",
            )
        )
        self._allow_whole_groups(mapping)
        return replace(mapping, k_loops=(*others, fused), b=gathered[loops])

    def _allow_whole_groups(self, mapping: InPlace) -> None:
        """Let the last group of a run reach behind the broadcast operand: there the panels of the other hold zeros.

        Only integers, for which zero times anything is zero, and only a tensor of the arena, which can be made longer.
        """
        planning, source = self.planning, mapping.a.tensor
        stored = planning.stored(source)
        if stored.space == "arena" and not stored.owner and not dtypes.is_float(source.dtype):
            planning.plan.stored[source.name] = replace(stored, slack=mapping.group - 1)
            self.whole_groups = True

    def _contraction(self, mapping: InPlace, b: Stored, panels: bool) -> Contraction:
        """The contraction that reads its vector operand as `b` stores it."""
        work = contraction_of(self.planning, self.group, self.target, mapping, b, mapping.emitter)
        work = replace(
            work,
            a=Operand(work.a.tensor, substitute(work.a.index, self.walked)),
            shapes=mapping.shapes,
            lanes=mapping.lanes,
            group=mapping.group,
            whole_panels=panels,
            whole_groups=self.whole_groups and panels,
        )
        return merge_product_loops(work, mapping.mapping.sets[0] if mapping.fixed else None)

    # The vector operand -----------------------------------------------------------------------------------------

    def _wants_panels(self, mapping: InPlace) -> bool:
        """Whether b is packed into panels: not where it is contiguous along n and too few rows read it."""
        if self._always_packs():
            return True
        form = affine(address(self.planning.layout(mapping.b.tensor), mapping.b.indices))
        return form is None or form.coefficient(mapping.n_loop) != 1

    def _always_packs(self) -> bool:
        """Whether b is packed however it is stored."""
        b, rows = self.offered.b, prod(static_shape(tuple(axis.extent for axis in self.offered.m_loops)))
        constant = b.tensor.name in self.planning.constants
        return constant or not is_plain(b) or self.offered.group > 1 or rows > ROWS_WORTH_PACKING

    def _plain_operand(self, mapping: InPlace) -> Stored:
        """b as it is before it is packed; what no kernel reads like this is not stored like this."""
        tensor = mapping.b.tensor
        if tensor.name in self.planning.plan.stored:
            return self.planning.plan.stored[tensor.name]
        return Stored(tensor, row_major(static_shape(tensor.shape)), "arena")

    def _split_depth(self, mapping: InPlace, work: Contraction, schedule: ContractionSchedule) -> InPlace:
        """Cut the innermost of several k loops in two, the outer part outermost, where a panel of b would outgrow L2.

        Windows stay whole inside, so that each block of k reads one slice of the image.
        """
        last, group = mapping.k_loops[-1], mapping.group
        size = depth_block(replace(work, k_loops=mapping.k_loops), schedule, self.machine)
        if len(mapping.k_loops) < 2 or not size:
            return mapping
        extent = int(last.extent)  # type: ignore[arg-type]
        block = max((d for d in range(group, size + 1, group) if extent % d == 0), default=0)
        if block < SMALLEST_DEPTH or block == extent:
            return mapping
        outside, inside = Axis(f"{last.name}.0", extent // block), Axis(f"{last.name}.1", block)
        parts: dict[Axis, Expr] = {last: outside * block + inside}
        a, b = (
            Read(read.tensor, tuple(substitute(index, parts) for index in read.indices))
            for read in (mapping.a, mapping.b)
        )
        return replace(mapping, a=a, b=b, k_loops=(outside, *mapping.k_loops[:-1], inside))

    def _packed_operand(self, mapping: InPlace, schedule: ContractionSchedule) -> Stored:
        """b in panels as wide as the register tile."""
        source = mapping.b.tensor
        layout = _panels(mapping, max(schedule.tile[mapping.n_loop.name], 1))
        copy = copy_of(source, source) if self.gather is None else self.gather
        if self.producer is not None:
            merged = inline(copy, self.producer)
            assert merged is not None, "a map can be computed where it is read"
            copy = merged
        return self._relaid(copy, layout, "panels of the register tile")

    def _relaid(self, copy: Compute, layout: Packed, reason: str) -> Stored:
        """What `copy` computes, stored as `layout`: constants when they are packed, others by a kernel of its own."""
        planning, plan = self.planning, self.planning.plan
        relayout = named_by_content(stored_form(copy, layout))
        self.relayouts.append(relayout)
        tensor = replace(copy.output, name=relayout.name)
        if tensor.name in plan.stored:
            assert plan.stored[tensor.name].layout == layout, f"two relayouts are called {tensor.name}"
            return plan.stored[tensor.name]
        sources = {source.name: source for source in copy.inputs()}
        if all(name in planning.constants for name in sources):
            if copy.output.name in sources:
                (plan.sources[tensor.name],) = sources
                planning.constants[tensor.name] = planning.constants[copy.output.name]
            else:
                planning.constants[tensor.name] = evaluate_compute(copy, planning.constants)
            planning.place(tensor, layout, "constant")
            how = "folded into the constant"
        else:
            planning.place(tensor, layout, "arena")
            write_rows(planning, Group("rows", (replace(copy, output=tensor),), copy.axes, (), (tensor.name,)))
            how = "one copy, read many times" if self.producer is None else f"computed with {self.producer.name}"
        stored_as = f"{layout} as {tensor.name}"
        plan.decisions.append(Decision(f"layout of {copy.output.name}", stored_as, f"{reason}; {how}"))
        return plan.stored[tensor.name]


def contraction_of(
    planning: Planning, group: Group, target: Tensor, product: InPlace | BlockProduct, b: Stored, intrinsic: str
) -> Contraction:
    """The contraction of a product with its epilogue, over storage: `target` is written, the other factor is `b`."""
    node, result = group.main, group.nodes[-1]
    total = Tensor(node.name, (), node.output.dtype)
    epilogue: Expr = Read(total, ())
    if result is not node:
        renamed: dict[Axis, Expr] = dict(zip(result.axes, node.axes, strict=True))
        epilogue = planning.flat(substitute(result.body, renamed), {node.name})
    a = planning.stored(product.a.tensor)
    unit = _unit_loops(node)
    index = substitute(address(planning.layout(target), node.axes), unit)
    form = affine(index)
    assert form is not None
    return Contraction(
        outer=product.outer,
        m_loops=tuple(sorted(product.m_loops, key=lambda axis: -(form.coefficient(axis) or 1 << 62))),
        n_loop=product.n_loop,
        k_loops=product.k_loops,
        a=Operand(a.flat, substitute(address(a.layout, product.a.indices), unit)),
        b=Operand(b.flat, substitute(address(b.layout, product.b.indices), unit)),
        accumulator=total,
        epilogue=substitute(epilogue, unit),
        output=target,
        index=index,
        intrinsic=intrinsic,
        shapes=(),
        lanes=1,
    )


def _from_storage(stored: Stored, indices: tuple[Expr, ...]) -> Read:
    """A read of a tensor from its storage, seen with one dimension per digit."""
    extents = tuple(extent for _, extent in stored.layout.digits)
    return replace(stored.tensor, shape=extents)[stored_indices(stored.layout, indices)]


def _as_json(schedule: ContractionSchedule) -> dict[str, Any]:
    return {"tile": dict(schedule.tile), "order": list(schedule.order), "k_block": schedule.k_block}


def _panels(mapping: InPlace, width: int) -> Packed:
    """``[outer…][n / width][k…][n % width]``, and the innermost k split by the group of the instruction."""
    shape = static_shape(mapping.b.tensor.shape)
    dims: dict[Axis, int] = {}
    for dim, index in enumerate(mapping.b.indices):
        for axis in affine(index).terms:  # type: ignore[union-attr]
            dims[axis] = dim
    group = mapping.group
    n_dim = dims[mapping.n_loop]
    digits = [(dim, 1) for dim in range(len(shape)) if dim not in dims.values()]
    digits += [(dims[axis], shape[dims[axis]]) for axis in mapping.outer if axis in dims]
    digits.append((n_dim, -(-shape[n_dim] // width)))
    for position, axis in enumerate(mapping.k_loops):
        if axis not in dims:
            continue
        extent = int(axis.extent)  # type: ignore[arg-type]
        last = position == len(mapping.k_loops) - 1
        digits.append((dims[axis], -(-extent // group) if last else extent))
    digits.append((n_dim, width))
    if group > 1:
        digits.append((dims[mapping.k_loops[-1]], group))
    return packed(shape, digits)


def _keeps_order(order: Sequence[int], tensor: Tensor) -> bool:
    """Whether the order changes nothing in memory: dimensions it moves have extent 1."""
    shape = static_shape(tensor.shape)
    return [d for d in order if shape[d] != 1] == [d for d in range(len(shape)) if shape[d] != 1]


def _unit_loops(node: Compute) -> dict[Axis, Expr]:
    """Loops of extent 1 are index 0."""
    return {axis: Const(0, INDEX) for axis in node.loops if axis.extent == 1}
