"""Works and schedules from scheduled kernels, for the parts of `lower` that do not walk trees themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.expr.ordered import Ordered
from tilewright.operator.nest import Nest, NestNode, NestSchedule, Prefetch, nest_loops
from tilewright.operator.tree import PassNumbers
from tilewright.tiles.kernel import Kernel, Statement
from tilewright.tiles.parts import Parts
from tilewright.tiles.tree import Binding, Kind, Leaf, walk


def schedule_of(kernel: Kernel) -> tuple[Nest, NestSchedule]:
    """What a kernel computes and how, as `operator.tree.kernel_of` took it."""
    tree = Parts(kernel)
    nest = _nest(kernel, tree)
    return nest, _nest_schedule(nest, tree)


# Nests ----------------------------------------------------------------------------------------------------------------


def _nest(kernel: Kernel, tree: Parts) -> Nest:
    outside = tree.loops("L2")
    axes = dict.fromkeys(axis for each in kernel.statements for axis in (*each.axes, *each.reduce))
    outer = tuple(axis for axis in axes if axis.name in outside)
    inner = tuple(axis for axis in axes if axis.name not in outside)
    return Nest(outer, inner, tuple(map(_node, kernel.statements)))


def _node(statement: Statement) -> NestNode:
    assert not isinstance(statement.accum, Ordered), "ordered accumulations are kernels of their own"
    return NestNode(statement.tensor, statement.body, statement.accum, statement.address)


def _nest_schedule(nest: Nest, tree: Parts) -> NestSchedule:
    vector, extent, lanes = tree.vector()
    rows = {name: size for name, size in tree.loops("REG", Binding.UNROLL).items() if name != vector}
    unroll, unroll_extent = next(iter(rows.items()), ("", 1))
    moments = tuple(node.op for node, _ in tree.hints("one_pass") if isinstance(node, Leaf))
    joined = (moments[0], moments[1]) if moments else None
    schedule = NestSchedule(
        vector,
        extent,
        unroll,
        unroll_extent,
        tree.blocks,
        tuple(node.op for node, _ in tree.hints("stream") if isinstance(node, Leaf)),
        tuple(_prefetches(nest, tree, joined)),
        _stages(nest, tree),
        joined,
        lanes,
    )
    order = tuple(tree.loops("L2"))
    usual = tuple(loop.axis.name for loop in nest_loops(nest, schedule))
    return schedule if order == usual else replace(schedule, order=order)


def _prefetches(nest: Nest, tree: Parts, moments: tuple[str, str] | None) -> Iterator[Prefetch]:
    numbers = PassNumbers(nest, moments)
    nodes = {node.tensor.name: node for node in nest.nodes}
    for name, leaf in tree.leaves.items():
        number = numbers.next(nodes[name])
        for hint in leaf.hints:
            if hint.name == "prefetch" and number is not None:
                tensor, distance, elements = hint.arguments
                yield Prefetch(str(tensor), int(distance), int(elements), number)


def _stages(nest: Nest, tree: Parts) -> tuple[int, ...]:
    """The passes with which the stages of a pipeline begin."""
    pipe = next((scope for scope in tree.scopes if scope.kind is Kind.PIPE), None)
    if pipe is None:
        return ()
    numbers = PassNumbers(nest, None)
    nodes = {node.tensor.name: node for node in nest.nodes}
    starts = []
    for child in pipe.children:
        starts.append(numbers.swept)
        for _, leaf in walk(child):
            if isinstance(leaf, Leaf):
                numbers.next(nodes[leaf.op])
    return tuple(starts)
