"""The operands of a product on a CPU: copies in the order of its loops, and panels of the vector operand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

from tilewright.compiler.packed import place_relayout
from tilewright.compiler.plan import Stored
from tilewright.compiler.planning import Planning
from tilewright.compiler.products import operand_of, unit_loops, work_of
from tilewright.compiler.rows import SHARED_COPY, order_of_result, plan_rows
from tilewright.decision import Decision
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.names import claim
from tilewright.expr.rewrite import inline, substitute, transform
from tilewright.graph.groups import Group
from tilewright.instruction.cpu_products import COPIED_LINE
from tilewright.instruction.order import Index, Order
from tilewright.instruction.panels import panels, vector_rows, with_last
from tilewright.instruction.products import MappedProduct, contiguous_dimension, is_plain, loops_of
from tilewright.instruction.relayout import named_by_content, packed
from tilewright.layouts import Packed, permuted, row_major
from tilewright.machine.description import Cpu
from tilewright.operator.depth_bounds import bounded_loops
from tilewright.operator.flatten import address
from tilewright.operator.product_loops import merge_product_loops
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.row_lines import slices_leave, waiting_cycles, walks_across_lines
from tilewright.operator.rules.cpu_product import (
    depth_block,
    depth_blocks,
    fewest_cycles,
    l2_bytes,
    streams_of_depth,
)
from tilewright.tiles.product import Operand, Product

# Rows up to which a contiguous b is read where it is, if L2 holds it and if not: then a panel has a page for each step.
ROWS_WORTH_PACKING = 64, 16
SMALLEST_DEPTH = 16  # points of a k loop that is cut in two


class Operands:
    """Both operands of a product on their way to its kernel, and the loops that walk them.

    `a` is the read of the broadcast operand, `depth` has the loops of the kernel that sum, outermost first; `fused`
    are sums that run as one loop; `linearised` says by which loops of the kernel addresses walk sums that were fused or
    cut. The vector operand is stored in panels if it `packs`. `relayouts` are the nodes that store operands in another
    order, `packed` what the node reads instead. `producers` are maps that relayouts compute.
    """

    def __init__(self, planning: Planning, group: Group, product: MappedProduct, machine: Cpu, joins: bool) -> None:
        """With `joins` the product runs in one kernel with others, whose loops are those of the graph."""
        self.planning, self.group, self.product, self.machine, self.joins = planning, group, product, machine, joins
        self.node = group.main
        self.target = group.nodes[-1].output  # until it is placed
        self.a, self.depth = product.a, product.depth
        self.fused: tuple[Axis, ...] = ()
        self.linearised: dict[Axis, Expr] = {}
        self.whole_groups = self.packs = False
        self.relayouts: list[Compute] = []
        self.packed: dict[Read, Expr] = {}
        self.tile: dict[str, int] = {}  # the register tile, once it is chosen
        self.single: Collection[str] | None = None  # depth loops that a given tree has as loops of their own
        self.producers: dict[str, Compute] = {}

    def take_producers(self) -> None:
        """Note which maps packing computes; other maps that were left for it get kernels."""
        for read, packs in ((self.product.a, self._wants_neighbours), (self.product.b, self._wants_panels)):
            producer = self.planning.fused.pop(read.tensor.name, None)
            if producer is not None and packs(self._own_layout(read, producer)):
                self.producers[producer.name] = producer.main
            elif producer is not None:
                plan_rows(self.planning, producer)

    def prepared(self, target: Tensor) -> Product:
        """The product that writes `target`, before its vector operand is packed."""
        self.target = target
        self._bring_neighbours()
        self.depth = self._ordered_depth()
        self._fuse()
        plain = self.planning.plan.stored.get(self.product.b.tensor.name)
        self.packs = plain is None or self._wants_panels(plain.layout)
        return self._work(self._in_vector_rows() if self.joins and self.packs else self._plain_operand())

    def finished(self, width: int) -> Product:
        """The product, prepared before, as a register tile of so many columns reads it."""
        return self.with_panels(width) if self.packs else self._work(self._plain_operand())

    def with_panels(self, width: int, block: int = 0) -> Product:
        """The product with its vector operand in panels of so many columns, its last sum cut in blocks of points."""
        b = self._packed_operand(width, block)
        self._cut(block)
        return self._work(b)

    def nodes(self) -> tuple[Compute, ...]:
        """The relayouts of operands, and the node as it reads these."""
        body = transform(self.node.body, lambda each: self.packed.get(each) if isinstance(each, Read) else None)
        return *self.relayouts, replace(self.node, body=body)

    def _work(self, b: Operand, a: Operand | None = None) -> Product:
        """The product that reads its vector operand at `b`, an address over the node's loops; the other where it is
        stored, or at `a`.
        """
        product = self.product
        ends = {product.columns.name: self.packs, self.depth[-1].name: self.packs and self.whole_groups}
        a = a or operand_of(self.planning, self.a)
        work = work_of(self.planning, self.group, self.target, product, self.depth, a, b)
        how = replace(
            work.mapping,
            intrinsic=product.instruction,
            lanes=product.lanes,
            group=product.group,
            padded=tuple(name for name, padded in ends.items() if padded),
        )
        work = replace(work, mapping=how)
        work = work.without_support_along(work.depth if self.joins else self.fused)
        work = replace(work.with_substituted_loops(self.linearised), shapes=product.shapes)
        if self.joins:
            return work
        single = bounded_loops(work, self.tile)
        if self.single is not None:
            single = frozenset(axis for axis in work.depth if axis.name in self.single)
        return merge_product_loops(work, product.mapping.sets[0] if product.fixed else None, single)

    def _own_layout(self, read: Read, producer: Group) -> Packed:
        """How an operand is stored that nothing is packed for: b as what it is computed from, a as it is."""
        shape = static_shape(read.tensor.shape)
        if read == self.product.a:
            return row_major(shape)
        return permuted(shape, order_of_result(self.planning, producer, producer.main))

    def _bring_neighbours(self) -> None:
        """For an instruction on groups, copy the broadcast operand so that neighbours of a group lie side by side.

        A tensor that is stored like this (all but graph inputs) stays.
        """
        source, product = self.a.tensor, self.product
        if source.name not in self.producers and not self._wants_neighbours(self.planning.layout(source)):
            return
        dim = self._contiguous_dimensions()[-1]
        reason = f"{product.instruction} takes {product.group} neighbours of dimension {dim} at once"
        self._store_again(*with_last(source, dim), reason)

    def _wants_neighbours(self, layout: Packed) -> bool:
        """Whether a, stored like this, is stored again, so that an instruction on groups finds neighbours in it."""
        product = self.product
        form = affine(address(layout, product.a.indices))
        assert form is not None
        if product.group == 1 or any(form.coefficient(axis) == 1 for axis in product.depth):
            return False
        bordered = any(front or back for front, back in layout.halo)
        constant = product.a.tensor.name in self.planning.constants
        return bool(self._contiguous_dimensions()) and not bordered and not constant

    def _contiguous_dimensions(self) -> list[int]:
        """The dimensions of a along which a reduction loop that indexes b takes neighbours."""
        found = [contiguous_dimension(self.product.a, axis) for axis in self.product.contiguous_sums]
        return sorted(dim for dim in found if dim is not None)

    def _store_again(
        self, read: Read, order: Order, reason: str, cycles: tuple[float, float] | None = None
    ) -> None:  # fmt: skip
        """Let the broadcast operand be a copy of its whole tensor, which `read` takes, in another order."""
        names = (index.name for index in order.indices)
        copy, _ = self._relaid(read, order, reason, cycles)
        self.a = copy.output[order.places(dict(zip(names, self.product.a.indices, strict=True)))]
        self.packed[self.product.a] = self.a

    def _ordered_depth(self) -> tuple[Axis, ...]:
        """The reduction loops, that which takes neighbours of a innermost; for an instruction on groups, one in b."""
        form = affine(address(self.planning.layout(self.a.tensor), self.a.indices))
        assert form is not None
        in_b = loops_of(self.product.b) if self.product.group > 1 else self.depth
        return tuple(sorted(self.depth, key=lambda axis: (axis in in_b, -(form.coefficient(axis) or 1 << 62))))

    def _fuse(self) -> None:
        """For an instruction on groups, the two innermost reduction loops as one, where that fills groups better and
        the mapping, if it is fixed, has both in r1.

        The broadcast operand must walk them as one loop; the vector operand is packed by what it decodes to.
        """
        planning, product, group = self.planning, self.product, self.product.group
        if group == 1 or len(self.depth) < 2:
            return
        *others, first, second = self.depth
        if product.fixed and not {first, second} <= set(product.mapping.sets[2]):
            return
        m, n = (int(axis.extent) for axis in (first, second))  # type: ignore[arg-type]
        form = affine(address(planning.layout(self.a.tensor), self.a.indices))
        assert form is not None
        if form.coefficient(second) != 1 or form.coefficient(first) != n or not {first, second} <= loops_of(product.b):
            return
        if -(-m * n // group) >= m * -(-n // group):
            return
        self.fused = (first, second)
        fused = Axis(Index.of(first, second).name, m * n)
        self.linearised = {first: Const(0, INDEX), second: fused}
        planning.plan.decisions.append(
            Decision(
                f"reductions of {self.node.name}",
                f"{first.name} and {second.name} as one",
                f"{-(-m * n // group)} groups of {group} instead of {m * -(-n // group)}",
            )
        )
        self.depth = (*others, fused)
        self._allow_whole_groups()

    def _allow_whole_groups(self) -> None:
        """Let the last group of a run reach behind the broadcast operand: there the panels of the other hold zeros.

        Only integers, for which zero times anything is zero, and only a tensor of the arena, which can be made longer.
        """
        planning, source = self.planning, self.a.tensor
        stored = planning.stored(source)
        if stored.space == "arena" and not stored.owner and not dtypes.is_float(source.dtype):
            planning.plan.stored[source.name] = replace(stored, slack=self.product.group - 1)
            self.whole_groups = True

    # Copies of the broadcast operand ------------------------------------------------------------------------------

    def along_lines(self, work: Product) -> Product:
        """The product with its broadcast operand copied so that a sum walks along lines.

        Only where each step of the sums reads other lines in place, and that takes more cycles than the copy.
        """
        source, machine, dims = self.a.tensor, self.machine, self._summed_dimensions()
        stored = self.planning.stored(source)
        movable = stored.space != "constant" and not any(map(any, stored.layout.halo)) and work.a.guard is None
        if self.a != self.product.a or not (movable and dims and walks_across_lines(work, machine)):
            return work
        read, order = with_last(source, dims[-1])
        names = (index.name for index in order.indices)
        places = order.places(dict(zip(names, self.a.indices, strict=True)))
        copied = Operand(stored.flat, address(row_major(order.shape), places))
        there = self._work(self._plain_operand(), copied)
        saved = fewest_cycles(work, machine) - fewest_cycles(there, machine)
        made = packed(read, order).name in self.planning.plan.stored  # for another product
        copying = 0.0 if made else self._copying_cycles(stored.bytes)
        if saved <= copying:
            return work
        self._store_again(
            read, order, f"each step of a sum is in another line: {copying:.0f} cycles of copying", (copying, saved)
        )
        self.depth = self._ordered_depth()
        return self._work(self._plain_operand())

    def _copying_cycles(self, size_bytes: int) -> float:
        """The part of a product in the cycles of a copy of its broadcast operand, which other products may read too."""
        users = self.planning.users.get(self.a.tensor.name, ())
        products = sum(1 for user in users if self.planning.product_of(user) is not None)
        threads = self.planning.threads if size_bytes < SHARED_COPY else 1
        lines = size_bytes / self.machine.caches[0].line_bytes
        return threads * COPIED_LINE * lines / max(1, products)

    def _summed_dimensions(self) -> list[int]:
        """The dimensions of a along which reduction loops take neighbours, that of the longest loop last."""
        found = [(axis.size, contiguous_dimension(self.product.a, axis)) for axis in self.depth]
        return [dim for _, dim in sorted((size, dim) for size, dim in found if dim is not None)]

    def spread_rows(self, work: Product, point: ProductPoint, blocks: Mapping[str, int]) -> Product:
        """The product with its broadcast operand copied to longer rows, where slices of its rows leave L1 and L2.

        Only where that saves more cycles than the copy takes, and the sum walks along the rows: then the same loops are
        one as before.
        """
        source, machine, tile = self.a.tensor, self.machine, point.tile(work)
        stored = self.planning.stored(source)
        k_block = replace(point, k_blocks=depth_blocks(work, tile, machine)).k_block(work)
        if self.a != self.product.a or any(map(any, stored.layout.halo)) or not self._walks_along_rows():
            return work
        if not slices_leave(work.a, work, tile, blocks, k_block, machine):
            return work
        waiting = waiting_cycles(work, tile, blocks, machine)
        copying = 2 * stored.bytes * machine.nominal_clock_hz / machine.dram.bytes_per_second
        read, order = with_last(source, len(source.shape) - 1)
        *others, last = order.digits
        line = machine.caches[0].line_bytes // dtypes.size_bytes(source.dtype)
        lines = -(-last.extent // line) | 1  # an odd number, so that rows walk through all sets
        order = replace(order, digits=(*others, replace(last, extent=lines * line)))
        spread = Operand(stored.flat, address(row_major(order.shape), self.a.indices))
        if waiting <= copying or slices_leave(spread, work, tile, blocks, k_block, machine):
            return work
        self._store_again(
            read, order, f"rows lie in few sets of L1 and L2: {copying:.0f} cycles of copying", (copying, waiting)
        )
        return self._work(self._plain_operand())

    def _walks_along_rows(self) -> bool:
        """Whether there is one sum, and it walks the last dimension of the broadcast operand."""
        last = affine(self.a.indices[-1]) if self.a.indices else None
        return last is not None and len(self.depth) == 1 and last.terms == {self.depth[0]: 1}

    # The vector operand -----------------------------------------------------------------------------------------

    def _wants_panels(self, layout: Packed) -> bool:
        """Whether b, stored like this, is packed into panels: not where few rows read it and n is contiguous."""
        b, (rows, _, _) = self.product.b, self.product.sizes
        if b.tensor.name in self.planning.buffers:
            return False
        constant = b.tensor.name in self.planning.constants
        near, far = ROWS_WORTH_PACKING
        few = near if b.tensor.size_bytes <= l2_bytes(self.machine) else far
        if constant or not is_plain(b) or self.product.group > 1 or rows > few:
            return True
        form = affine(address(layout, b.indices))
        return form is None or form.coefficient(self.product.columns) != 1

    def _plain_operand(self) -> Operand:
        """b before it is packed, row by row where the node does not read it like this."""
        planning, b = self.planning, self.product.b
        if (self.fused or not is_plain(b)) and b.tensor.name not in planning.buffers:
            return self._in_vector_rows()
        if b.tensor.name in planning.plan.stored:
            stored = planning.plan.stored[b.tensor.name]
        else:
            stored = Stored(b.tensor, row_major(static_shape(b.tensor.shape)), "arena")
        return Operand(stored.flat, address(stored.layout, b.indices))

    def _in_vector_rows(self) -> Operand:
        """b row by row, which its loops walk as they walk panels."""
        b, order = self.product.b, vector_rows(self.product, self._sums())
        rows = Tensor(f"{b.tensor.name}.for.{self.node.name}", (prod(order.shape),), b.dtype)
        return Operand(rows, order.address())

    def _sums(self) -> list[Index]:
        """The k loops as indices of b."""
        fused = [Index.of(*self.fused)] if self.fused else []
        return [*map(Index.of, self.depth[: len(self.depth) - len(fused)]), *fused]

    def block_of_depth(self, work: Product, point: ProductPoint) -> int:
        """Into blocks of how many points the innermost of several k loops is cut: where a panel of b would outgrow L2.

        The blocks are the outermost loop. Windows stay whole inside, so that each block reads one slice of the image.
        A single k loop is cut in `streams_of_depth`.
        """
        if len(self.depth) == 1:
            return streams_of_depth(work, point.tile(work), self.machine)
        last, group = self.depth[-1], self.product.group
        size = depth_block(work, self.depth, point, self.machine)
        if not size:
            return 0
        extent = int(last.extent)  # type: ignore[arg-type]
        block = max((d for d in range(group, size + 1, group) if extent % d == 0), default=0)
        return 0 if block < SMALLEST_DEPTH or block == extent else block

    def _cut(self, block: int) -> None:
        """Cut the innermost k loop into blocks of so many points, 0 for none.

        Blocks are the outermost loop; those of a single loop are the innermost one, which takes a point of each.
        """
        if not block:
            return
        last = self.depth[-1]
        taken = {axis.name for axis in (*self.product.outer, *self.product.rows, self.product.columns, *self.depth)}
        outside = Axis(claim(f"{last.name}.0", taken), last.size // block)
        inside = Axis(claim(f"{last.name}.1", taken), block)
        parts: dict[Axis, Expr] = {last: outside * block + inside}
        self.linearised = parts | {axis: substitute(value, parts) for axis, value in self.linearised.items()}
        self.depth = (outside, *self.depth[:-1], inside) if len(self.depth) > 1 else (inside, outside)

    def _packed_operand(self, width: int, block: int) -> Operand:
        """b in panels as wide as the register tile."""
        order = panels(self.product, self._sums(), width, block)
        read = substitute(self.product.b, unit_loops(self.node))
        assert isinstance(read, Read)
        relayout, stored = self._relaid(read, order, "panels of the register tile")
        self.packed[self.product.b] = relayout.output[order.places()]
        return Operand(stored.flat, order.address())

    def _relaid(
        self, read: Read, order: Order, reason: str, cycles: tuple[float, float] | None = None
    ) -> tuple[Compute, Stored]:  # fmt: skip
        """The relayout of what `read` takes of an operand, and where it is stored."""
        relayout = packed(read, order)
        producer = self.producers.get(read.tensor.name)
        if producer is not None:
            relayout = named_by_content(inline(relayout, producer))
        self.relayouts.append(relayout)
        return relayout, place_relayout(self.planning, relayout, order, read, reason, cycles)
