"""Products in one kernel: which groups become one, their blocks, and whether that is predicted to pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.compiler.planning import Planning, points
from tilewright.compiler.products import ProductPlan
from tilewright.decision import Decision
from tilewright.expr.core import Axis, Const, Expr, Read, Tensor
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Loop
from tilewright.expr.names import claim
from tilewright.expr.rewrite import substitute, transform
from tilewright.graph.groups import Group, joined
from tilewright.machine.description import Cpu
from tilewright.operator.registers import epilogue_in_loop
from tilewright.operator.rules.cpu_fused import choose_fused, fused_cycles, fused_kernel
from tilewright.tiles.product import Operand, Product, flat_product


def refusal(planning: Planning, producer: Group, consumer: Group) -> str:
    """Why two groups of products cannot be one kernel, whatever that would take; empty where they can."""
    link = producer.nodes[-1].output
    first, second = planning.product_of(producer.main), planning.product_of(consumer.main)
    if first is None or second is None:
        return "one of them is no product of an instruction"
    if link.name in planning.outputs or [user.name for user in planning.users[link.name]] != [consumer.main.name]:
        return f"{link.name} is read elsewhere too"
    reads = [read for node in consumer.nodes for read in node.reads() if read.tensor.name == link.name]
    if len(reads) != 1 or first.group > 1 or second.group > 1:
        return f"{link.name} is read at several points" if len(reads) != 1 else "an instruction takes groups of a sum"
    (read,) = reads
    loops = [index for index, extent in zip(read.indices, link.shape, strict=True) if extent != 1]
    if not all(isinstance(index, Axis) for index in loops) or len(set(loops)) != len(loops):
        return f"{link.name} is read at other points than one block has"
    if link.name in planning.borders or link.name in planning.views:
        return f"{link.name} has a border or is seen as another tensor"
    axes = dict(zip(read.indices, producer.nodes[-1].axes, strict=True))
    summed = [axes[axis] for axis in second.depth if axis in axes]
    if len(second.depth) != 1 or len(summed) != 1:
        return f"{consumer.main.name} sums over other loops than one of {link.name}"
    own = dict(zip(producer.nodes[-1].axes, producer.main.axes, strict=True))
    vector = own[axes[second.columns]] if second.columns in axes else None
    if read.tensor == second.b.tensor and vector != first.columns:
        return f"{consumer.main.name} reads vectors along another loop than {producer.main.name} writes"
    if any(axis.extent == 0 for node in (producer.main, consumer.main) for axis in node.loops):
        return "a loop has no points"
    return ""


def join_products(planning: Planning, steps: Sequence[Group | Loop], machine: Cpu) -> list[Group | Loop]:
    """The steps of a plan, in which products that are one kernel are one group, where the second of them was."""
    if planning.options.fuse == "never":
        return list(steps)
    producers = {step.name: step for step in steps if isinstance(step, Group) and step.kind == "product"}
    left: dict[int, Group] = {}
    taken: set[str] = set()
    for place, step in enumerate(steps):
        if not isinstance(step, Group) or step.name not in producers:
            continue
        read = dict.fromkeys(tensor.name for tensor in step.main.inputs())
        for producer in (producers[name] for name in read if name in producers and name not in taken):
            if refusal(planning, producer, step):
                continue
            decision = _judged(planning, producer, step, machine)
            if decision is None:
                continue
            left[place] = joined(producer, step, decision)
            taken |= {producer.name, step.name}
            break
    inside = {part.name for group in left.values() for part in group.parts}
    return [
        left.get(place, step) for place, step in enumerate(steps) if place in left or step.name not in inside
    ]


def _judged(planning: Planning, producer: Group, consumer: Group, machine: Cpu) -> Decision | None:
    works = _over_shared_loops([_sketch(planning, part) for part in (producer, consumer)], (producer, consumer))
    point = choose_fused(works, machine, planning.threads)
    if point is None:
        return None
    return Decision(f"fusion of {producer.name} + {consumer.name}", f"one kernel, {point}", "")


def _sketch(planning: Planning, group: Group) -> Product:
    """A product whose operands are not placed yet: their addresses do not matter for its cycles."""
    product = planning.product_of(group.main)
    assert product is not None
    total = Tensor(group.main.name, (), group.main.output.dtype)
    epilogue: Expr = Read(total, ())
    if len(group.nodes) > 1:
        renamed: dict[Axis, Expr] = dict(zip(group.nodes[-1].axes, group.main.axes, strict=True))
        epilogue = transform(substitute(group.nodes[-1].body, renamed), _nowhere)
    factors = (Operand(replace(read.tensor, shape=(1,)), Const(0, INDEX)) for read in (product.a, product.b))
    loops = product.outer, product.rows, product.columns, product.depth
    output = group.nodes[-1].output
    work = flat_product(
        *loops, *factors, total, epilogue, output, Const(0, INDEX), lanes=product.lanes, group=product.group
    )
    return replace(work, shapes=product.shapes)


def _nowhere(node: Expr) -> Expr | None:
    """Reads of tensors at one place."""
    if not isinstance(node, Read) or not node.indices:
        return None
    return Read(replace(node.tensor, shape=(1,)), (Const(0, INDEX),))


def plan_fused(planning: Planning, group: Group, machine: Cpu) -> None:
    """Add the kernel of products that run in turn on blocks of what they share."""
    plan, threads = planning.plan, planning.threads
    plans = [ProductPlan(planning, part, machine, joins=True) for part in group.parts]
    for each in plans[:-1]:
        each.keep_in_kernel()
    sizes = _over_shared_loops([each.prepare() for each in plans], group.parts)
    point = choose_fused(sizes, machine, threads)
    assert point is not None, "blocks were found before the groups became one"
    name = planning.name_kernel(group.kernel)
    decision = Decision(
        f"blocks of {group.kernel}", str(point), "register tiles with the fewest cycles whose blocks stay in L2"
    )
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
    planning.add_scheduled(
        name, fused_kernel(works, point, loops), decision, (group.name,), sum(2 * points(each.node) for each in plans),
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
