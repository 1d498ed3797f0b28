"""Products in one kernel: which groups become one, their blocks, and whether that is predicted to pay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

from tilewright.compiler.planning import ChooseProduct, Planning, points
from tilewright.compiler.products import ProductPlan
from tilewright.compiler.rows import group_statements
from tilewright.compiler.trees import about
from tilewright.decision import ASKED, Cost, Decision, Refusal
from tilewright.expr.core import Axis, Compute, Const, Expr, Read, Tensor, static_shape
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Loop
from tilewright.expr.names import claim
from tilewright.expr.rewrite import substitute, transform
from tilewright.graph.groups import Group, joined, kernel_name
from tilewright.instruction.products import MappedProduct, all_products, is_proven
from tilewright.layouts import permuted
from tilewright.machine.description import Cpu
from tilewright.operator.products_tree import products_tree, require_fits
from tilewright.operator.registers import epilogue_in_loop
from tilewright.operator.rules.cpu_fused import (
    LEAST_GAIN,
    choose_fused,
    cycles_apart,
    cycles_fused,
    fused_cycles,
    fused_kernel,
    l2_bytes,
    point_of,
    rows_cycles,
)
from tilewright.operator.statements import drop_unit_loops
from tilewright.tiles.kernel import Kernel, Statement, expressions
from tilewright.tiles.legality import check
from tilewright.tiles.problem import Problem
from tilewright.tiles.product import Operand, Product, flat_product
from tilewright.tiles.tree import InvalidTree

APART, FUSED = "a kernel each", "one kernel"


def fusions(decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions of a plan that are about products in one kernel."""
    chosen = APART, FUSED
    return [each for each in decisions if each.subject.startswith("fusion of") and each.chosen.startswith(chosen)]


def join_products(planning: Planning, steps: Sequence[Group | Loop], machine: Cpu) -> list[Group | Loop]:
    """The steps of a plan, in which products that are one kernel are one group, where the last of them was.

    A search chooses how each product runs alone.
    """
    options = planning.options
    if options.fuse == "never" or options.search != "rules" or planning.choose != ChooseProduct():
        return list(steps)
    groups = {name: step for step in steps if isinstance(step, Group) for name in step.stored}
    left: dict[int, Group] = {}
    taken: set[str] = set()
    for place, step in enumerate(steps):
        if not isinstance(step, Group) or step.kind != "product":
            continue
        for parts in _lines(step, groups):
            if any(part.name in taken for part in parts):
                continue
            found, decision = _judged(planning, parts, machine)
            if not found:
                _require_not_given(planning, parts, decision)
                planning.plan.decisions.append(replace(decision, kernel=step.kernel))
                continue
            for part, mapped in zip((parts[0], parts[-1]), found, strict=True):
                _settle(planning, part.main, mapped, decision)
            left[place] = joined(parts, decision)
            taken |= {part.name for part in parts}
            break
    inside = {part.name for group in left.values() for part in group.parts}
    return [left.get(place, step) for place, step in enumerate(steps) if place in left or step.name not in inside]


def _require_not_given(planning: Planning, parts: Sequence[Group], decision: Decision) -> None:
    """Raises InvalidTree for the tree of a kernel that cannot be."""
    name = kernel_name([node for part in parts for node in part.nodes])
    for refusal in decision.refused:
        if planning.trees.tree(name) is not None:
            with about(name):
                raise InvalidTree(f"there is no such kernel: {refusal.rule}", help=APART)


def _lines(consumer: Group, groups: Mapping[str, Group]) -> Iterator[tuple[Group, ...]]:
    """A product that a product reads, or reads through one kernel of rows, with what is between."""
    for name in dict.fromkeys(tensor.name for tensor in consumer.main.inputs()):
        producer = groups.get(name)
        if producer is not None and producer.kind == "product":
            yield producer, consumer
        elif producer is not None and producer.kind == "rows" and producer.inner:
            for tensor in dict.fromkeys(tensor.name for node in producer.nodes for tensor in node.inputs()):
                first = groups.get(tensor)
                if first is not None and first.kind == "product":
                    yield first, producer, consumer


def _settle(planning: Planning, node: Compute, mapped: MappedProduct, fusion: Decision) -> None:
    """Let a product run with the mapping that goes with the other one."""
    own, why = planning.find_product(node)
    assert why is not None
    if mapped != own:
        why = Decision(why.subject, str(mapped), fusion.subject, why.chosen, why.reason, runner_up_cost=why.cost)
    planning.settle(node, mapped, why)


# Whether --------------------------------------------------------------------------------------------------------------


def _judged(planning: Planning, parts: tuple[Group, ...], machine: Cpu) -> tuple[tuple[MappedProduct, ...], Decision]:
    """The mappings with which groups run as one kernel, with the decision; none where they stay apart.

    They are one where blocks fit, and that is asked for or predicted to pay.
    """
    producer, *between, consumer = parts
    subject, options = f"fusion of {' + '.join(part.name for part in parts)}", planning.options
    name = kernel_name([node for part in parts for node in part.nodes])
    given = planning.trees.tree(name) is not None
    elsewhere = isinstance(options.fuse, Path) and not given
    if elsewhere or any(planning.trees.tree(group.kernel) is not None for group in parts):
        return (), Decision(subject, APART, ASKED)
    reason = _refusal(planning, parts)
    if reason:
        return (), Decision(subject, APART, "they cannot be one", refused=(Refusal(FUSED, reason),))
    pair = _mappings(planning, parts)
    if pair is None:
        why = Refusal(FUSED, f"rows of {producer.name} are stored as {parts[1].main.name} reads them")
        return (), Decision(subject, APART, "they cannot be one", refused=(why,))
    works, threads, rows = _sketches(parts, pair), planning.threads, bool(between)
    point = choose_fused(works, machine, threads, rows)
    if point is None:
        return (), Decision(subject, APART, "they cannot be one", refused=(Refusal(FUSED, "a block fits L2"),))
    alone = [planning.product_of(group.main) for group in (producer, consumer)]
    one = cycles_fused(works, point, machine, threads)
    several = cycles_apart(_sketches(parts, alone), machine, threads, rows)
    fused, asked = f"{FUSED}, {point}", given or options.fuse == "always"
    if asked or one * LEAST_GAIN <= several:
        reason = ASKED if asked else f"{one:.0f} predicted cycles, {several:.0f} as {APART}"
        return pair, Decision(
            subject, fused, reason, APART, f"{several:.0f} cycles", cost=Cost(cycles=one),
            runner_up_cost=Cost(cycles=several),
        )  # fmt: skip
    reason = f"{several:.0f} predicted cycles, {one:.0f} as {FUSED}, which is to be {LEAST_GAIN} times as fast"
    return (), Decision(
        subject, APART, reason, fused, f"{one:.0f} cycles", cost=Cost(cycles=several), runner_up_cost=Cost(cycles=one)
    )


def _refusal(planning: Planning, parts: tuple[Group, ...]) -> str:
    """Why groups cannot be one kernel, whatever the mappings of products are; empty where they can."""
    for producer, consumer in pairwise(parts):
        link = producer.nodes[-1].output
        reads = _reads(producer, consumer)
        users = {user.name for user in planning.users[link.name]}
        inside = {node.name for node in (consumer.nodes if consumer.kind == "rows" else consumer.nodes[:1])}
        if link.name in planning.outputs or not users <= inside or producer.stored != (link.name,):
            return f"{link.name} is read elsewhere too"
        places = [
            tuple(index for index, size in zip(read.indices, link.shape, strict=True) if size != 1) for read in reads
        ]
        loops = places[0]
        if len(set(places)) > 1 or (len(reads) > 1 and consumer.kind != "rows"):
            return f"{link.name} is read at several points"
        if not all(isinstance(index, Axis) for index in loops) or len(set(loops)) != len(loops):
            return f"{link.name} is read at other points than one block has"
        if link.name in planning.borders or link.name in planning.views:
            return f"{link.name} has a border or is seen as another tensor"
        summed = [axis for axis in _summed(consumer) if axis.extent != 1]
        if len(summed) != 1 or summed[0] not in loops:
            return f"{consumer.main.name} sums over other loops than one of {link.name}"
        if consumer.kind == "rows" and not set(summed) <= set(consumer.nodes[-1].axes):
            return f"{consumer.name} has no value for every element of {link.name}"
    followed = zip(parts[1:], _shared(parts)[1:], strict=True)
    along = {shared[axis] for part, shared in followed for axis in _summed(part) if axis.extent != 1}
    return "" if len(along) == 1 else f"{parts[-1].main.name} sums over another loop than {parts[1].name} runs along"


def _summed(group: Group) -> tuple[Axis, ...]:
    """The loops that a product sums over, or that rows run along."""
    return group.inner if group.kind == "rows" else group.main.reduce


def _reads(producer: Group, consumer: Group) -> list[Read]:
    """What a group reads of the result of another."""
    nodes = consumer.nodes if consumer.kind == "rows" else consumer.nodes[:1]
    return [read for node in nodes for read in node.reads() if read.tensor.name == producer.nodes[-1].name]


def _mappings(planning: Planning, parts: tuple[Group, ...]) -> tuple[MappedProduct, ...] | None:
    """The best mappings of two products of which the second reads what the first stores, in rows along its vectors."""
    producer, *between, consumer = parts
    shared = _shared(parts)
    link = parts[-2].nodes[-1].name
    (along,) = (axis for axis in _summed(parts[1]) if axis.extent != 1)

    def fits(first: MappedProduct, second: MappedProduct) -> bool:
        if first.group > 1 or second.group > 1 or (between and first.columns != shared[1][along]):
            return False
        return second.a.tensor.name == link or shared[-1].get(second.columns) == first.columns

    target = planning.target
    found = [all_products(group.main, target) for group in (producer, consumer)]
    pairs = [pair for pair in product(*found) if fits(*pair)]
    pairs.sort(key=lambda pair: sum(_cycles(target.cost(each)) for each in pair))
    return next((pair for pair in pairs if all(map(is_proven, pair))), None)


def _shared(parts: Sequence[Group]) -> list[dict[Axis, Axis]]:
    """Which loops of each group are loops of the first product, through what each reads of the one before it."""
    found: list[dict[Axis, Axis]] = [{axis: axis for axis in parts[0].main.loops}]
    for producer, consumer in pairwise(parts):
        read, written = _reads(producer, consumer)[0], producer.nodes[-1] if producer.kind == "rows" else producer.main
        pairs = zip(read.indices, written.axes, strict=True)
        found.append({index: found[-1][axis] for index, axis in pairs if isinstance(index, Axis) and axis in found[-1]})
    return found


def _cycles(cost: Cost | None) -> float:
    return cost.cycles or 0.0 if cost is not None else 0.0


def _sketches(parts: Sequence[Group], mapped: Sequence[MappedProduct | None]) -> list[Product]:
    """Two products over the loops that they share, before their operands are placed."""
    groups = parts[0], parts[-1]
    sketches = [_sketch(group, each) for group, each in zip(groups, mapped, strict=True) if each is not None]
    return _over_shared_loops(sketches, parts)


def _sketch(group: Group, mapped: MappedProduct) -> Product:
    """A product whose operands are not placed yet: their addresses do not matter for its cycles."""
    total = Tensor(group.main.name, (), group.main.output.dtype)
    epilogue: Expr = Read(total, ())
    if len(group.nodes) > 1:
        renamed: dict[Axis, Expr] = dict(zip(group.nodes[-1].axes, group.main.axes, strict=True))
        epilogue = transform(substitute(group.nodes[-1].body, renamed), _nowhere)
    a, b = (Operand(replace(read.tensor, shape=(1,)), Const(0, INDEX)) for read in (mapped.a, mapped.b))
    loops = mapped.outer, mapped.rows, mapped.columns, mapped.depth
    output = group.nodes[-1].output
    work = flat_product(*loops, a, b, total, epilogue, output, Const(0, INDEX), lanes=mapped.lanes, group=mapped.group)
    return replace(work, shapes=mapped.shapes)


def _nowhere(node: Expr) -> Expr | None:
    """Reads of tensors at one place."""
    if not isinstance(node, Read) or not node.indices:
        return None
    return Read(replace(node.tensor, shape=(1,)), (Const(0, INDEX),))


# How ------------------------------------------------------------------------------------------------------------------


def plan_fused(planning: Planning, group: Group, machine: Cpu) -> None:
    """Add the kernel of products that run in turn on blocks of what they share, with rows between them if there are."""
    plan, threads, parts = planning.plan, planning.threads, group.parts
    plans = [ProductPlan(planning, part, machine, joins=True) for part in (parts[0], parts[-1])]
    plans[0].keep_in_kernel()
    for part in parts[1:-1]:
        _keep_rows(planning, part)
    unpacked = _over_shared_loops([each.prepare() for each in plans], parts)
    between = {0: _row_statements(planning, parts)} if len(parts) > 2 else {}
    point = choose_fused(unpacked, machine, threads, bool(between))
    name = planning.name_kernel(group.kernel)
    subject = f"blocks of {group.kernel}"
    with about(name):
        given = planning.trees.of_products(name, unpacked)
        if given is not None:
            first, last = (work.statements for work in unpacked)
            kernel = Kernel((*first, *between.get(0, ()), *last), given)
            check(given, Problem.of(expressions(kernel)), imperfect=True)
            tree = products_tree(kernel)
            require_fits(tree, l2_bytes(machine))
            point = point_of(tree)
    why = "register tiles with the fewest cycles whose blocks stay in L2" if given is None else ASKED
    decision = Decision(subject, str(point), why)
    assert point is not None, "blocks were found before the groups became one"
    plan.decisions.append(decision)
    own = [each.finished(tiles) for each, tiles in zip(plans, point.points, strict=True)]
    works = _over_shared_loops(own, parts)
    loops = []
    for work, tiles, each in zip(works, point.points, plans, strict=True):
        in_loop, placed = epilogue_in_loop(work, tiles, machine, each.group.kernel)
        loops.append(in_loop)
        if work.has_epilogue:
            plan.decisions.append(placed)
    scheduled = fused_kernel(works, point, loops, between, machine)
    cycles = fused_cycles(works, point, machine) + sum(rows_cycles(products_tree(scheduled), machine))
    running = [each.proven(work, tiles.tile(work)) for each, work, tiles in zip(plans, own, point.points, strict=True)]
    plan.decisions += [replace(each.decision, chosen=str(on)) for each, on in zip(plans, running, strict=True)]
    flops = sum(2 * points(each.node) for each in plans)
    planning.add_scheduled(
        name, scheduled, decision, (plans[-1].target.name,), flops, cycles=lambda _: cycles,
        instruction=running[-1].instruction,
    )  # fmt: skip
    for each, work, tiles, on, in_loop in zip(plans, works, point.points, running, loops, strict=True):
        each.note(name, work, tiles, on, in_loop)
    for part in parts[:-1]:
        del plan.stored[part.nodes[-1].name]
        planning.buffers.discard(part.nodes[-1].name)


def _keep_rows(planning: Planning, group: Group) -> None:
    """Let the result of rows be a buffer of the kernel, each row one behind the other."""
    node = group.nodes[-1]
    (along,) = (dim for dim, axis in enumerate(node.axes) if axis in group.inner and axis.extent != 1)
    order = [*(dim for dim in range(len(node.axes)) if dim != along), along]
    planning.place(node.output, permuted(static_shape(node.output.shape), order), "buffer")
    planning.buffers.add(node.name)


def _row_statements(planning: Planning, parts: Sequence[Group]) -> tuple[Statement, ...]:
    """The statements of the rows between two products over the loops of the first; results of both are values."""
    loops = _shared(parts)[1]
    links = {part.nodes[-1].name: part.nodes[-1].output.dtype for part in parts[:2]}

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.tensor.name in links:
            return Read(Tensor(node.tensor.name, (), node.dtype), ())
        return None

    found = []
    for each in drop_unit_loops(group_statements(planning, parts[1])):
        body = substitute(transform(each.body, rule), dict(loops))
        axes, reduce = (tuple(loops[axis] for axis in group) for group in (each.axes, each.reduce))
        tensor = Tensor(each.name, (), each.tensor.dtype) if each.name in links else each.tensor
        found.append(replace(each, tensor=tensor, axes=axes, body=body, reduce=reduce, address=None))
    return tuple(found)


def _over_shared_loops(works: Sequence[Product], parts: Sequence[Group]) -> list[Product]:
    """Two products over loops with names of their own but for those that they share, links between them values."""
    first, second = works
    producer, link = parts[0].nodes[-1], parts[-2].nodes[-1]
    value = Tensor(producer.name, (), producer.output.dtype)
    *before, last = first.statements
    first = replace(first, statements=(*before, replace(last, tensor=value, address=None)))
    shared = _shared(parts)[-1]
    taken = {axis.name for axis in (*first.spatial, *first.depth)}
    loops: dict[Axis, Axis] = {}
    for axis in (*second.spatial, *second.depth):
        loops[axis] = shared[axis] if axis in shared else Axis(claim(axis.name, taken), axis.extent)
    second = second.renamed(loops)

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.tensor.name == link.name:
            return Read(Tensor(link.name, (), link.output.dtype), ())
        return None

    statements = tuple(replace(each, body=transform(each.body, rule)) for each in second.statements)
    return [first, replace(second, statements=statements)]
