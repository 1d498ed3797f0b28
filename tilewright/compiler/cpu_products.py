"""Products to scheduled kernels of a CPU: register tiles and blocks, where the result goes, what the plan notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.compiler.cpu_operands import Operands
from tilewright.compiler.planning import Planning, points
from tilewright.compiler.rows import fill_borders, plan_rows
from tilewright.compiler.trees import cut_of_tree, depth_of_tree, point_of_tree
from tilewright.decision import ASKED, Decision
from tilewright.expr.core import Axis, Tensor, static_shape
from tilewright.expr.names import unique
from tilewright.expr.rewrite import copy_of
from tilewright.graph.groups import Group
from tilewright.instruction.products import MappedProduct
from tilewright.layouts import permuted
from tilewright.machine.description import Cpu
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_space import ProductSpace
from tilewright.operator.registers import epilogue_vectors
from tilewright.operator.rules.cpu_fused import kernel_cycles
from tilewright.operator.rules.cpu_product import (
    blocks_of,
    choose_point,
    decision_of_streams,
    decision_of_zeros,
    depth_blocks,
    scheduled_product,
)
from tilewright.tiles.product import Product
from tilewright.tiles.tree import about


def plan_product(planning: Planning, group: Group, machine: Cpu) -> None:
    """Place the result of a product with its epilogue, and add its kernels."""
    ProductPlan(planning, group, machine).run()


class ProductPlan:
    """One product on its way to a scheduled kernel, with its `operands`."""

    def __init__(self, planning: Planning, group: Group, machine: Cpu, *, joins: bool = False) -> None:
        """With `joins` the product runs in one kernel with others, whose loops are those of the graph."""
        self.planning, self.machine = planning, machine
        self.group = group
        self.node, self.result = group.main, group.nodes[-1]
        product, decision = planning.find_product(self.node)
        assert product is not None
        assert decision is not None
        self.product, self.decision = product, decision
        self.operands = Operands(planning, group, product, machine, joins)

    def prepare(self) -> Product:
        """Place the result, and operands where they are not packed yet; the product before panels are packed."""
        self.operands.take_producers()
        self.position = len(self.planning.plan.decisions)
        self.target = self._place_target()
        fill_borders(self.planning, self.group.stored)
        return self.operands.prepared(self.target)

    def run(self) -> None:
        planning, plan = self.planning, self.planning.plan
        product = self.product
        operands = self.operands
        work = operands.along_lines(self.prepare())
        a_bytes = planning.stored(operands.a.tensor).bytes
        threads, kernel = planning.threads, self.group.kernel
        name = planning.name_kernel(kernel)
        point, blocks, decision = choose_point(work, self.machine, threads, a_bytes, kernel)
        space = ProductSpace(work, frozenset(product.mapping.sets[0]) if product.fixed else None)
        asked, given = planning.choose.point(space, self.node.name), planning.trees.tree(name)
        if given is not None:
            with about(name):
                asked, blocks = point_of_tree(given, work)
                operands.single = depth_of_tree(given)
        elif asked is not None:
            blocks = blocks_of(asked, work, self.machine, threads, a_bytes)
        if asked is not None:
            point = asked
            decision = Decision(
                decision.subject, str(point), ASKED, decision.chosen, decision.reason, runner_up_cost=decision.cost
            )
        plan.decisions.append(decision)
        tile = operands.tile = point.tile(work)
        running = self.proven(work, tile)
        plan.decisions.insert(self.position, replace(self.decision, chosen=str(running)))
        work = operands.spread_rows(work, point, blocks)
        if operands.packs:
            block = 0
            if given is not None:
                with about(name):
                    block = cut_of_tree(given, operands.depth[-1].name, operands.depth[-1].size, product.group)
            elif asked is None or len(operands.depth) == 1:
                block = operands.block_of_depth(work, point)
            if block and len(operands.depth) == 1:
                plan.decisions.append(decision_of_streams(work, block, self.machine, kernel))
            work = operands.with_panels(tile[product.columns.name], block)
        if asked is None:
            point = replace(point, k_blocks=depth_blocks(work, tile, self.machine))
        zeros = decision_of_zeros(work, point, self.machine, kernel)
        plan.decisions += [] if zeros is None else [zeros]
        vectors, placed = epilogue_vectors(work, point, self.machine, kernel)
        if work.has_epilogue:
            plan.decisions.append(placed)
        scheduled = scheduled_product(work, point, blocks, self.machine, epilogue_vectors=vectors)
        planning.add_scheduled(
            name, scheduled, decision, (self.target.name,), 2 * points(self.node),
            cycles=lambda kernel: kernel_cycles(kernel, self.machine), instruction=running.instruction,
        )  # fmt: skip
        self.note(name, work, point, running, vectors)

    def keep_in_kernel(self) -> None:
        """Let the result be a buffer of the kernel that runs this product, rows along its columns."""
        planning, n_dim = self.planning, self.node.axes.index(self.product.columns)
        order = [*(dim for dim in range(len(self.node.axes)) if dim != n_dim), n_dim]
        output = self.result.output
        planning.place(output, permuted(static_shape(output.shape), order), "buffer")
        planning.buffers.add(output.name)

    def note(self, name: str, work: Product, point: ProductPoint, running: MappedProduct, vectors: int) -> None:
        """Add to the plan what was decided about this product, which runs in the kernel `name`."""
        plan, tile = self.planning.plan, point.tile(work)
        chosen = {
            "tile": tile,
            "order": [*(axis.name for axis in work.outer), *point.order],
            "k_block": point.k_block(work),
            "epilogue_vectors": vectors,
        }
        plan.products[self.node.name] = {"kernel": name, **running.to_json(), "schedule": chosen}
        self._note_body(work, tile)
        self._bring_back()

    def _note_body(self, work: Product, tile: Mapping[str, int]) -> None:
        """Add to the plan that a registered body computes whole register tiles, where one does."""
        known = self.planning.options.intrinsics
        if known is None:
            return
        from tilewright.codegen.cpu.dot import with_body

        rows, columns = prod(tile.get(axis.name, 1) for axis in work.rows), tile[work.columns.name]
        kernel = with_body(known, work.mapping.intrinsic, rows, columns)
        if kernel is not None:
            reason = f"{rows} rows by {columns} columns, whole register tiles of {self.node.name}"
            decision = Decision(f"micro-kernel of {self.node.name}", f"the registered body of {kernel.name}", reason)
            self.planning.plan.decisions.append(replace(decision, runner_up="the body that the mapping makes"))

    def proven(
        self, work: Product, tile: Mapping[str, int], own: Mapping[Axis, Axis] | None = None
    ) -> MappedProduct:  # fmt: skip
        """The mapping that this tile runs, which has passed every check.

        `own` has the loop of the node for each that has another name in a kernel of several products.
        """
        rows = [axis for axis in work.rows if tile.get(axis.name, 1) > 1]
        height = prod(tile[axis.name] for axis in rows)
        vectors = -(-tile[work.columns.name] // work.lanes)
        parts = [(own or {}).get(part, part) for axis in rows for part in work.stands_for(axis)]
        sums = self.node.reduce if self.product.group == 1 else self.operands.fused or work.stands_for(work.depth[-1])
        return self.product.running(parts, sums, (height, vectors))

    def _place_target(self) -> Tensor:
        """What the kernel writes, the vector loop innermost: the result, or a tensor that is copied to an output."""
        planning, output = self.planning, self.result.output
        if output.name in planning.plan.stored:  # a buffer of the kernel
            return output
        n_dim = self.node.axes.index(self.product.columns)
        order = [d for d in range(len(self.node.axes)) if d != n_dim] + [n_dim]
        if output.name not in planning.outputs or _keeps_order(order, output):
            planning.place_result(output, order)
            return output
        target = Tensor(unique(f"{output.name}.packed", planning.taken()), output.shape, output.dtype)
        planning.place(target, permuted(static_shape(target.shape), order), "arena")
        return target

    def _bring_back(self) -> None:
        """Copy a result that is stored otherwise to the output, and note which nodes this one runs as."""
        planning, node, result = self.planning, self.node, self.result
        mapped = planning.plan.mapped
        mapped[result.name] = (result,)  # in a group its dimensions of extent 1 may be others than in the graph
        mapped[node.name] = self.operands.nodes()
        if self.target == result.output:
            return
        copy = copy_of(self.target, result.output)
        kernel = unique(f"{copy.name}.unpacked", planning.kernel_names)
        with planning.about(kernel):
            plan_rows(planning, Group("rows", (copy,), copy.axes, (), (copy.name,), kernel=kernel))
        order = [dim for dim, _ in planning.layout(self.target).digits]
        stored = replace(self.target, shape=tuple(self.target.shape[dim] for dim in order))
        *before, last = mapped[result.name]
        kept = replace(last, output=stored, axes=tuple(last.axes[dim] for dim in order))
        inverse = replace(copy, body=stored[tuple(copy.axes[dim] for dim in order)])
        mapped[result.name] = (*before, kept, inverse)


def _keeps_order(order: Sequence[int], tensor: Tensor) -> bool:
    """Whether the order changes nothing in memory: dimensions it moves have extent 1."""
    shape = static_shape(tensor.shape)
    return [d for d in order if shape[d] != 1] == [d for d in range(len(shape)) if shape[d] != 1]
