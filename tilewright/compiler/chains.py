"""Chains of products of which each reads the one before it, with rows between them: which groups may be one kernel.

What is here holds for every machine: loops that the groups share, and their statements over these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

from tilewright.compiler.planning import ChooseProduct, Planning
from tilewright.compiler.products import unit_loops
from tilewright.compiler.rows import group_statements
from tilewright.compiler.trees import about
from tilewright.decision import Decision
from tilewright.expr.core import Axis, Compute, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.graph import Loop
from tilewright.expr.names import claim
from tilewright.expr.rewrite import substitute, transform
from tilewright.graph.groups import Group, joined, kernel_name
from tilewright.instruction.products import MappedProduct, all_products, is_proven
from tilewright.layouts import permuted
from tilewright.operator.statements import drop_unit_loops
from tilewright.tiles.kernel import Statement
from tilewright.tiles.product import Product
from tilewright.tiles.tree import InvalidTree, TileTree, kernels

Judge = Callable[[tuple[Group, ...]], tuple[tuple[MappedProduct, ...], Decision]]

APART, FUSED = "a kernel each", "one kernel"


def fusions(decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions of a plan that are about products in one kernel."""
    chosen = APART, FUSED
    return [each for each in decisions if each.subject.startswith("fusion of") and each.chosen.startswith(chosen)]


def join(planning: Planning, steps: Sequence[Group | Loop], judged: Judge) -> list[Group | Loop]:
    """The steps of a plan, in which products that are one kernel are one group, where the last of them was.

    `judged` gives the mappings with which the products of some groups run as one kernel, none where they stay apart.
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
        for parts in chains_to(step, groups):
            if any(part.name in taken for part in parts):
                continue
            found, decision = judged(parts)
            if not found:
                _require_not_given(planning, parts, decision)
                planning.plan.decisions.append(replace(decision, kernel=step.kernel))
                continue
            for part, mapped in zip((parts[0], parts[-1]), found, strict=True):
                settle(planning, part.main, mapped, decision)
            left[place] = joined(parts, decision)
            taken |= {part.name for part in parts}
            break
    inside = {part.name for group in left.values() for part in group.parts}
    return [left.get(place, step) for place, step in enumerate(steps) if place in left or step.name not in inside]


def given_trees(planning: Planning, parts: Sequence[Group]) -> bool | None:
    """Whether trees were given for these groups as one kernel, or apart; None where none was given.

    One kernel may have the name of a part: a tree of several products is that of all.
    """
    if _tree_of_all(planning, parts) is not None:
        return True
    elsewhere = isinstance(planning.options.fuse, Path)
    return False if elsewhere or any(planning.trees.tree(part.kernel) is not None for part in parts) else None


def _tree_of_all(planning: Planning, parts: Sequence[Group]) -> TileTree | None:
    """The tree that was given for these groups as one kernel."""
    found = planning.trees.tree(kernel_name([node for part in parts for node in part.nodes]))
    return found if found is not None and len(kernels(found)) > 1 else None


def _require_not_given(planning: Planning, parts: Sequence[Group], decision: Decision) -> None:
    """Raises InvalidTree for the tree of a kernel that cannot be."""
    if decision.refused and _tree_of_all(planning, parts) is not None:
        with about(kernel_name([node for part in parts for node in part.nodes])):
            raise InvalidTree(f"there is no such kernel: {decision.refused[0].rule}", help=APART)


def chains_to(consumer: Group, groups: Mapping[str, Group]) -> Iterator[tuple[Group, ...]]:
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


def refusal(planning: Planning, parts: tuple[Group, ...]) -> str:
    """Why groups cannot be one kernel, whatever the mappings of products are; empty where they can."""
    for producer, consumer in pairwise(parts):
        link = producer.nodes[-1].output
        reads = reads_between(producer, consumer)
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
        sizes = tuple(size for size in link.shape if size != 1)
        if len(parts) > 2 and tuple(index.extent for index in loops if isinstance(index, Axis)) != sizes:
            return f"only a part of {link.name} is read"
        if link.name in planning.borders or link.name in planning.views:
            return f"{link.name} has a border or is seen as another tensor"
        along = [axis for axis in summed(consumer) if axis.extent != 1]
        if len(along) != 1 or along[0] not in loops:
            return f"{consumer.main.name} sums over other loops than one of {link.name}"
        if consumer.kind == "rows" and not set(along) <= set(consumer.nodes[-1].axes):
            return f"{consumer.name} has no value for every element of {link.name}"
    followed = zip(parts[1:], shared_loops(parts)[1:], strict=True)
    ends = {shared[axis] for part, shared in followed for axis in summed(part) if axis.extent != 1}
    return "" if len(ends) == 1 else f"{parts[-1].main.name} sums over another loop than {parts[1].name} runs along"


def settle(planning: Planning, node: Compute, mapped: MappedProduct, fusion: Decision) -> None:
    """Let a product run with the mapping that goes with the other one."""
    own, why = planning.find_product(node)
    assert why is not None
    if mapped != own:
        why = Decision(why.subject, str(mapped), fusion.subject, why.chosen, why.reason, runner_up_cost=why.cost)
    planning.settle(node, mapped, why)


def proven_pair(
    planning: Planning, parts: tuple[Group, ...], fits: Callable[[MappedProduct, MappedProduct], bool],
    cost: Callable[[MappedProduct], float],
) -> tuple[MappedProduct, ...] | None:  # fmt: skip
    """The mappings of two products that go together at the least cost and pass every check; None where none do."""
    found = [all_products(group.main, planning.target) for group in (parts[0], parts[-1])]
    pairs = [pair for pair in product(*found) if fits(*pair)]
    pairs.sort(key=lambda pair: sum(map(cost, pair)))
    return next((pair for pair in pairs if all(map(is_proven, pair))), None)


# Loops and statements -------------------------------------------------------------------------------------------------


def summed(group: Group) -> tuple[Axis, ...]:
    """The loops that a product sums over, or that rows run along."""
    return group.inner if group.kind == "rows" else group.main.reduce


def reads_between(producer: Group, consumer: Group) -> list[Read]:
    """What a group reads of the result of another, its loops of extent 1 at 0."""
    nodes = consumer.nodes if consumer.kind == "rows" else consumer.nodes[:1]
    link = producer.nodes[-1].name
    bodies = [
        substitute(node.body, unit_loops(node)) for node in nodes if link in {each.name for each in node.inputs()}
    ]
    return [each for body in bodies for each in walk(body) if isinstance(each, Read) and each.tensor.name == link]


def shared_loops(parts: Sequence[Group]) -> list[dict[Axis, Axis]]:
    """Which loops of each group are loops of the first product, through what each reads of the one before it."""
    found: list[dict[Axis, Axis]] = [{axis: axis for axis in parts[0].main.loops}]
    for producer, consumer in pairwise(parts):
        read, written = (
            reads_between(producer, consumer)[0],
            producer.nodes[-1] if producer.kind == "rows" else producer.main,
        )
        pairs = zip(read.indices, written.axes, strict=True)
        found.append({index: found[-1][axis] for index, axis in pairs if isinstance(index, Axis) and axis in found[-1]})
    return found


def kernel_loops(works: Sequence[Product], parts: Sequence[Group]) -> list[dict[Axis, Axis]]:
    """Which loops of one kernel the loops of two products are: those that they share have one name.

    Of the first product only those points are computed that the second one reads.
    """
    first, second = works
    shared = shared_loops(parts)[-1]
    parts_read = {own: Axis(own.name, axis.extent) for axis, own in shared.items()}
    taken = {axis.name for axis in (*first.spatial, *first.depth)}
    loops: dict[Axis, Axis] = {}
    for axis in (*second.spatial, *second.depth):
        loops[axis] = parts_read[shared[axis]] if axis in shared else Axis(claim(axis.name, taken), axis.extent)
    return [{axis: parts_read.get(axis, axis) for axis in (*first.spatial, *first.depth)}, loops]


def over_shared_loops(works: Sequence[Product], parts: Sequence[Group]) -> list[Product]:
    """Two products over the loops of one kernel (`kernel_loops`), links between them values."""
    first, second = (work.renamed(loops) for work, loops in zip(works, kernel_loops(works, parts), strict=True))
    producer, link = parts[0].nodes[-1], parts[-2].nodes[-1]
    value = Tensor(producer.name, (), producer.output.dtype)
    *before, last = first.statements
    first = replace(first, statements=(*before, replace(last, tensor=value, address=None)))

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.tensor.name == link.name:
            return Read(Tensor(link.name, (), link.output.dtype), ())
        return None

    statements = tuple(replace(each, body=transform(each.body, rule)) for each in second.statements)
    return [first, replace(second, statements=statements)]


def row_statements(planning: Planning, parts: Sequence[Group], anywhere: bool = False) -> tuple[Statement, ...]:
    """The statements of the rows between two products over the loops of the first; results of both are values.

    With `anywhere`, what they read may have no place yet (`group_statements`).
    """
    loops = shared_loops(parts)[1]
    links = [part.nodes[-1].name for part in parts[:2]]

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Read) and node.tensor.name in links:
            return Read(Tensor(node.tensor.name, (), node.dtype), ())
        return None

    found = []
    for each in drop_unit_loops(group_statements(planning, parts[1], links, anywhere)):
        axes, reduce = (tuple(loops[axis] for axis in group) for group in (each.axes, each.reduce))
        tensor = Tensor(each.name, (), each.tensor.dtype) if each.name in links else each.tensor
        body = substitute(transform(each.body, rule), dict(loops))
        found.append(replace(each, tensor=tensor, axes=axes, body=body, reduce=reduce))
    return tuple(found)


def keep_rows(planning: Planning, group: Group) -> None:
    """Let the result of rows be a buffer of the kernel, each row one behind the other."""
    node = group.nodes[-1]
    (along,) = (dim for dim, axis in enumerate(node.axes) if axis in group.inner and axis.extent != 1)
    order = [*(dim for dim in range(len(node.axes)) if dim != along), along]
    planning.place(node.output, permuted(static_shape(node.output.shape), order), "buffer")
    planning.buffers.add(node.name)
