"""Products in one kernel: which groups become one, their blocks, and whether that is predicted to pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from tilewright.compiler.planning import ChooseProduct, Planning, points
from tilewright.compiler.products import ProductPlan
from tilewright.compiler.trees import about
from tilewright.decision import ASKED, Cost, Decision, Refusal
from tilewright.expr.core import Axis, Const, Expr, Read, Tensor
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Loop
from tilewright.expr.names import claim
from tilewright.expr.rewrite import substitute, transform
from tilewright.graph.groups import Group, joined, kernel_name
from tilewright.instruction.products import MappedProduct, all_products, is_proven
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
)
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.product import Operand, Product, flat_product

APART, FUSED = "a kernel each", "one kernel"


def join_products(planning: Planning, steps: Sequence[Group | Loop], machine: Cpu) -> list[Group | Loop]:
    """The steps of a plan, in which products that are one kernel are one group, where the second of them was.

    A search chooses how each product runs alone.
    """
    options = planning.options
    if options.fuse == "never" or options.search != "rules" or planning.choose != ChooseProduct():
        return list(steps)
    producers = {step.name: step for step in steps if isinstance(step, Group) and step.kind == "product"}
    left: dict[int, Group] = {}
    taken: set[str] = set()
    for place, step in enumerate(steps):
        if not isinstance(step, Group) or step.name not in producers:
            continue
        read = dict.fromkeys(tensor.name for tensor in step.main.inputs())
        for producer in (producers[name] for name in read if name in producers and name not in taken):
            found, decision = _judged(planning, producer, step, machine)
            if not found:
                planning.plan.decisions.append(replace(decision, kernel=step.kernel))
                continue
            for node, mapped in zip((producer.main, step.main), found, strict=True):
                _, why = planning.find_product(node)
                assert why is not None
                planning.settle(node, mapped, why)
            left[place] = joined(producer, step, decision)
            taken |= {producer.name, step.name}
            break
    inside = {part.name for group in left.values() for part in group.parts}
    return [left.get(place, step) for place, step in enumerate(steps) if place in left or step.name not in inside]


# Whether --------------------------------------------------------------------------------------------------------------


def _judged(
    planning: Planning, producer: Group, consumer: Group, machine: Cpu
) -> tuple[tuple[MappedProduct, ...], Decision]:
    """The mappings with which two groups of products run as one kernel, where blocks fit, and that is asked for or
    predicted to pay; else none. With the decision.
    """
    subject, options = f"fusion of {producer.name} + {consumer.name}", planning.options
    reason = _refusal(planning, producer, consumer)
    if any(planning.trees.tree(group.kernel) is not None for group in (producer, consumer)):
        return (), Decision(subject, APART, ASKED)
    if reason:
        return (), Decision(subject, APART, "they cannot be one", refused=(Refusal(FUSED, reason),))
    pair = _mappings(planning, producer, consumer)
    if pair is None:
        why = Refusal(FUSED, f"rows of {producer.name} are stored as {consumer.main.name} reads them")
        return (), Decision(subject, APART, "they cannot be one", refused=(why,))
    works = _sketches(producer, consumer, pair)
    point = choose_fused(works, machine, planning.threads)
    if point is None:
        return (), Decision(subject, APART, "they cannot be one", refused=(Refusal(FUSED, "a block fits L2"),))
    alone = [planning.product_of(group.main) for group in (producer, consumer)]
    one = cycles_fused(works, point, machine, planning.threads)
    several = cycles_apart(_sketches(producer, consumer, alone), machine, planning.threads)
    given = planning.trees.tree(kernel_name((*producer.nodes, *consumer.nodes))) is not None
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


def _refusal(planning: Planning, producer: Group, consumer: Group) -> str:
    """Why two groups of products cannot be one kernel, whatever their mappings are; empty where they can."""
    link, reader = producer.nodes[-1].output, consumer.main.name
    if link.name in planning.outputs or [user.name for user in planning.users[link.name]] != [reader]:
        return f"{link.name} is read elsewhere too"
    reads = [read for read in consumer.main.reads() if read.tensor.name == link.name]
    loops = [index for read in reads for index, size in zip(read.indices, link.shape, strict=True) if size != 1]
    if len(reads) != 1 or not all(isinstance(index, Axis) for index in loops) or len(set(loops)) != len(loops):
        return f"{link.name} is read at other points than one block has"
    if link.name in planning.borders or link.name in planning.views:
        return f"{link.name} has a border or is seen as another tensor"
    summed = [axis for axis in consumer.main.reduce if axis.extent != 1]
    if len(summed) != 1 or summed[0] not in loops:
        return f"{reader} sums over other loops than one of {link.name}"
    return ""


def _mappings(planning: Planning, producer: Group, consumer: Group) -> tuple[MappedProduct, ...] | None:
    """The best mappings of two products of which the second reads what the first stores, in rows along its vectors."""
    link = producer.nodes[-1].output
    (read,) = (read for read in consumer.main.reads() if read.tensor.name == link.name)
    axes = dict(zip(read.indices, producer.main.axes, strict=True))

    def fits(first: MappedProduct, second: MappedProduct) -> bool:
        if first.group > 1 or second.group > 1:
            return False
        return second.a.tensor.name == link.name or axes.get(second.columns) == first.columns

    target = planning.target
    found = [all_products(group.main, target) for group in (producer, consumer)]
    pairs = [pair for pair in product(*found) if fits(*pair)]
    pairs.sort(key=lambda pair: sum(_cycles(target.cost(each)) for each in pair))
    return next((pair for pair in pairs if all(map(is_proven, pair))), None)


def _cycles(cost: Cost | None) -> float:
    return cost.cycles or 0.0 if cost is not None else 0.0


def _sketches(producer: Group, consumer: Group, mapped: Sequence[MappedProduct | None]) -> list[Product]:
    """Two products over the loops that they share, before their operands are placed."""
    groups = producer, consumer
    sketches = [_sketch(group, each) for group, each in zip(groups, mapped, strict=True) if each is not None]
    return _over_shared_loops(sketches, groups)


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
    """Add the kernel of products that run in turn on blocks of what they share."""
    plan, threads = planning.plan, planning.threads
    plans = [ProductPlan(planning, part, machine, joins=True) for part in group.parts]
    for each in plans[:-1]:
        each.keep_in_kernel()
    unpacked = _over_shared_loops([each.prepare() for each in plans], group.parts)
    point = choose_fused(unpacked, machine, threads)
    name = planning.name_kernel(group.kernel)
    subject, given = f"blocks of {group.kernel}", planning.trees.tree(name)
    if given is not None:
        with about(name):
            statements = tuple(statement for work in unpacked for statement in work.statements)
            tree = products_tree(Kernel(statements, given))
            require_fits(tree, l2_bytes(machine))
            point = point_of(tree)
        decision = Decision(subject, str(point), ASKED)
    else:
        decision = Decision(subject, str(point), "register tiles with the fewest cycles whose blocks stay in L2")
    assert point is not None, "blocks were found before the groups became one"
    plan.decisions.append(decision)
    own = [each.finished(tiles) for each, tiles in zip(plans, point.points, strict=True)]
    works = _over_shared_loops(own, group.parts)
    loops = []
    for work, tiles, each in zip(works, point.points, plans, strict=True):
        in_loop, placed = epilogue_in_loop(work, tiles, machine, each.group.kernel)
        loops.append(in_loop)
        if work.has_epilogue:
            plan.decisions.append(placed)
    cycles = fused_cycles(works, point, machine)
    running = [each.proven(work, tiles.tile(work)) for each, work, tiles in zip(plans, own, point.points, strict=True)]
    plan.decisions += [replace(each.decision, chosen=str(on)) for each, on in zip(plans, running, strict=True)]
    flops = sum(2 * points(each.node) for each in plans)
    planning.add_scheduled(
        name, fused_kernel(works, point, loops), decision, (plans[-1].target.name,), flops,
        cycles=lambda _: cycles, instruction=running[-1].instruction,
    )  # fmt: skip
    for each, work, tiles, on, in_loop in zip(plans, works, point.points, running, loops, strict=True):
        each.note(name, work, tiles, on, in_loop)
    for each in plans[:-1]:
        del plan.stored[each.result.name]
        planning.buffers.discard(each.result.name)


def _over_shared_loops(works: Sequence[Product], groups: Sequence[Group]) -> list[Product]:
    """Two products over loops with names of their own but for those that they share, the first one's result a value."""
    first, second = works
    producer, consumer = groups
    link = producer.nodes[-1]
    value = Tensor(link.name, (), link.output.dtype)
    *before, last = first.statements
    first = replace(first, statements=(*before, replace(last, tensor=value, address=None)))
    (read,) = (read for read in consumer.main.reads() if read.tensor.name == link.name)
    shared = dict(zip(read.indices, producer.main.axes, strict=True))
    taken = {axis.name for axis in (*first.spatial, *first.depth)}
    loops: dict[Axis, Axis] = {}
    for axis in (*second.spatial, *second.depth):
        loops[axis] = shared[axis] if axis in shared else Axis(claim(axis.name, taken), axis.extent)
    second = second.renamed(loops)

    def rule(node: Expr) -> Expr | None:
        return Read(value, ()) if isinstance(node, Read) and node.tensor.name == link.name else None

    statements = tuple(replace(each, body=transform(each.body, rule)) for each in second.statements)
    return [first, replace(second, statements=statements)]
