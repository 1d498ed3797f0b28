"""Two products of a graph as one kernel on the blocks of a GPU: which, with which tile, and whether that pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.compiler.chains import (
    TIMED,
    fusion_of,
    given_trees,
    join,
    over_shared_loops,
    proven_mappings,
    refusal,
    row_statements,
    shared_loops,
)
from tilewright.compiler.planning import Planning, points
from tilewright.compiler.products import operand_of, work_of
from tilewright.compiler.rows import fill_borders
from tilewright.dataclass import dataclass
from tilewright.decision import APART, ASKED, FUSED, Cost, Decision, Refusal, keep
from tilewright.expr import dtypes
from tilewright.expr.core import Const, Tensor, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Loop
from tilewright.expr.hidden import hidden_part
from tilewright.graph.groups import Group
from tilewright.instruction.fused_tiles import (
    LEAST_GAIN,
    MOST_COLUMNS,
    FusedProblem,
    FusedTile,
    choose_tile,
    moving_cycles,
)
from tilewright.instruction.gpu_products import block_shape, matrix_records
from tilewright.instruction.products import MappedProduct, iterations
from tilewright.layouts import row_major
from tilewright.machine.description import Gpu
from tilewright.operator.rewrites.deferred_normalisation import deferred_normalisation
from tilewright.operator.rewrites.powers_of_two import powers_of_two
from tilewright.operator.rules.gpu_fused import fused_tree
from tilewright.operator.statements import Statements
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.product import Operand, Product

FACTOR_BYTES = 2  # of an element: sums of the first product become fragments of the second without leaving a lane


def join_products(planning: Planning, steps: Sequence[Group | Loop], machine: Gpu) -> list[Group | Loop]:
    """The steps of a plan, in which products that are one kernel are one group."""
    return join(planning, steps, lambda parts: _judged(planning, parts, machine))


# Whether --------------------------------------------------------------------------------------------------------------


def _judged(planning: Planning, parts: tuple[Group, ...], machine: Gpu) -> tuple[tuple[MappedProduct, ...], Decision]:
    """The mappings with which groups run as one kernel, with the decision; none where they stay apart."""
    subject, options = fusion_of(parts), planning.options
    given = given_trees(planning, parts)
    if given is False:
        return (), Decision(subject, APART, ASKED)
    pair, tile, why = _fitting(planning, parts, machine)
    if tile is None:
        return (), Decision(subject, APART, "they cannot be one", refused=why)
    several = _cycles_apart(planning, parts, machine)
    fused, asked = f"{FUSED}, {tile.tile}", given or options.fuse == "always"
    costs, timed = (Cost(cycles=tile.cycles), Cost(cycles=several)), subject in planning.choose.chains
    if asked or timed or tile.cycles * LEAST_GAIN <= several:
        reason = ASKED if asked else TIMED if timed else f"{tile.cycles:.0f} predicted cycles, {several:.0f} as {APART}"
        decision = Decision(
            subject, fused, reason, APART, f"{several:.0f} cycles", why, cost=costs[0], runner_up_cost=costs[1]
        )
        return pair, decision
    return (), keep(subject, APART, several, fused, tile.cycles, LEAST_GAIN, why)


@dataclass(frozen=True)
class _Chosen:
    """The tile of a block, and the predicted cycles of the kernel."""

    tile: FusedTile
    cycles: float


def _fitting(
    planning: Planning, parts: tuple[Group, ...], machine: Gpu
) -> tuple[tuple[MappedProduct, ...], _Chosen | None, tuple[Refusal, ...]]:
    """The mappings and the tile of one kernel; or no tile, and why there is none."""

    def refused(rule: str, values: str = "") -> tuple[tuple[MappedProduct, ...], None, tuple[Refusal, ...]]:
        return (), None, (Refusal(FUSED, rule, values),)

    reason = refusal(planning, parts) if parts[0].kind == "product" else f"{parts[0].name} is a product"
    if reason:
        return refused(reason)
    pair = _mappings(planning, parts)
    if pair is None:
        return refused(f"rows of {parts[-2].main.name} are rows of a factor of {parts[-1].main.name}")
    first, second = pair
    sizes = {each.dtype: dtypes.size_bytes(each.dtype) for each in (first.a, first.b, second.a, second.b)}
    if set(sizes.values()) != {FACTOR_BYTES}:
        return refused(f"factors have elements of {FACTOR_BYTES} bytes", ", ".join(sizes))
    if len(first.depth) != 1 or second.columns.size > MOST_COLUMNS:
        values = f"{len(first.depth)} and {second.columns.size}"
        return refused(f"the first product sums over one loop, the second has {MOST_COLUMNS} columns at most", values)
    if len(parts) > 2 and deferred_normalisation(row_statements(planning, parts, anywhere=True)[0]) is None:
        return refused(f"{parts[1].name} is a softmax")
    problem = _problem(pair, parts)
    records = [matrix_records(each, machine, planning.options.intrinsics, planning.options.mma) for each in pair]
    both = [record for record in records[0] if record in records[1]]
    tile, cycles, why = choose_tile(problem, both, machine)
    if tile is None:
        return (), None, why or (Refusal(FUSED, "a matrix instruction takes these types"),)
    return pair, _Chosen(tile, cycles), why


def _mappings(planning: Planning, parts: tuple[Group, ...]) -> tuple[MappedProduct, ...] | None:
    """The mappings of two products of which the second reads what the first gives as factor a, in the same rows."""
    shared, link = shared_loops(parts)[-1], parts[-2].nodes[-1].name

    def fits(first: MappedProduct, second: MappedProduct) -> bool:
        if second.a.tensor.name != link or [shared.get(axis) for axis in second.depth] != [first.columns]:
            return False
        if any(axis.extent != other.extent for axis, other in shared.items()):
            return False  # a part of what the first one gives
        return all(
            {shared.get(axis) for axis in own} == set(other)
            for own, other in ((second.rows, first.rows), (second.outer, first.outer))
        )

    return proven_mappings(planning, parts, fits, lambda each: 0.0)


def _problem(pair: Sequence[MappedProduct], parts: Sequence[Group]) -> FusedProblem:
    """The sizes of both products, and what the epilogue of the first one hides from a softmax."""
    (first, second), node, softmax = pair, parts[0].nodes[-1], len(parts) > 2
    hidden = hidden_part(node.body, node.axes[parts[0].main.axes.index(first.columns)]) if softmax else 0.0
    m, link, k = first.sizes
    size, batches = dtypes.size_bytes(first.a.dtype), iterations(first.outer)
    reads = any(read.tensor != parts[0].main.output for read in node.reads()) and node != parts[0].main
    return FusedProblem(batches, m, link, second.columns.size, k, size, softmax, hidden, reads)


def _cycles_apart(planning: Planning, parts: Sequence[Group], machine: Gpu) -> float:
    """Predicted cycles of a kernel each: of both products, and of what passes through memory between rows and these."""
    options, total = planning.options, 0.0
    for group in (parts[0], parts[-1]):
        product = planning.product_of(group.main)
        assert product is not None, "a group of a product"
        _, decision = block_shape(
            product, machine, input_precision=options.input_precision, intrinsics=options.intrinsics,
            off=options.disable, result=group.nodes[-1].output.dtype, route=options.mma, cluster=options.cluster,
            known=planning.rankings,
        )  # fmt: skip
        total += (decision.cost.cycles or 0.0) if decision.cost is not None else 0.0
    for _ in parts[1:]:
        total += machine.launch_seconds * machine.clock_hz
    between = [part.nodes[-1].output for part in parts[:-1]] if len(parts) > 2 else []
    return total + moving_cycles(sum(tensor.size * dtypes.size_bytes(tensor.dtype) for tensor in between), machine)


# How ------------------------------------------------------------------------------------------------------------------


def plan_fused(planning: Planning, group: Group, machine: Gpu) -> None:
    """Add the kernel of two products, with the rows between them if there are."""
    plan, parts = planning.plan, group.parts
    producer, consumer = parts[0], parts[-1]
    pair, chosen, _ = _fitting(planning, parts, machine)
    assert chosen is not None, "a tile was found before the groups became one"
    tile, output = chosen.tile, consumer.nodes[-1].output
    n_dim = consumer.main.axes.index(pair[1].columns)
    planning.place_result(output, [d for d in range(len(consumer.main.axes)) if d != n_dim] + [n_dim])
    fill_borders(planning, consumer.stored)
    works = _works(planning, parts, pair)
    first, second = over_shared_loops(works, parts)
    rows: Statements = ()
    if len(parts) > 2:
        deferred = deferred_normalisation(row_statements(planning, parts)[0])
        assert deferred is not None, "it was asked for before the groups became one"
        link, deferred = powers_of_two(first.statements[-1], deferred)
        first = replace(first, statements=(*first.statements[:-1], link))
        rows, second = deferred.rows, replace(second, statements=deferred.product(second.statements))
    first, second = (
        replace(work, mapping=replace(work.mapping, intrinsic=record.name))
        for work, record in zip((first, second), tile.records, strict=True)
    )
    tree = fused_tree(first, second, rows, tile.shape)
    running = [each.on(record) for each, record in zip(pair, tile.records, strict=True)]
    for each, mapped in zip((producer, consumer), running, strict=True):
        _, decision = planning.find_product(each.main)
        assert decision is not None, "a product was settled"
        plan.decisions.append(replace(decision, chosen=str(mapped)))
    decision = Decision(
        f"blocks of {group.kernel}", str(tile), f"{chosen.cycles:.0f} predicted cycles, the fewest of all that fit",
        cost=Cost(cycles=chosen.cycles),
    )  # fmt: skip
    plan.decisions.append(decision)
    kernel = Kernel((*first.statements, *rows, *second.statements), tree.tree())
    name = planning.name_kernel(group.kernel)
    flops = 2 * (points(producer.main) + points(consumer.main))
    planning.add_scheduled(
        name, kernel, decision, (output.name,), flops, instruction=tile.records[1].name,
        cycles=lambda scheduled: chosen.cycles if scheduled is kernel else 0.0,
    )  # fmt: skip
    shape = tile.shape
    blocks = (shape.rows, shape.link, shape.depth), (shape.rows, shape.columns, shape.link)  # m, n, k of the products
    for each, mapped, record, block in zip((producer, consumer), running, tile.records, blocks, strict=True):
        plan.products[each.main.name] = {
            "kernel": name, **mapped.to_json(), "instruction": record.name, "block": list(block),
            "warps": list(tree.warps), "stages": tree.stages, "splits": 1, "schedule": {"tile": dict(tree.points)},
        }  # fmt: skip


def _works(planning: Planning, parts: Sequence[Group], pair: Sequence[MappedProduct]) -> list[Product]:
    """Both products over storage; what is between them is stored nowhere, and its addresses are dropped later."""
    (first, second), (producer, consumer) = pair, (parts[0], parts[-1])
    link, target = parts[-2].nodes[-1].output, producer.nodes[-1].output
    stored = planning.plan.stored
    planning.place(target, row_major(static_shape(target.shape)), "buffer")
    a, b = operand_of(planning, first.a), operand_of(planning, first.b)
    works = [work_of(planning, producer, target, first, first.depth, a, b)]
    del stored[target.name]
    value = Operand(Tensor(link.name, (), link.dtype), Const(0, INDEX))
    b = operand_of(planning, second.b)
    works.append(work_of(planning, consumer, consumer.nodes[-1].output, second, second.depth, value, b))
    return works
