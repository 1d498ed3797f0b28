"""Element-wise work moves into its consumers: transposes and slices become indices, chains of maps one body."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.expr import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.core import COSTLY, JOINED, Apply, Cast, Compute, Const, Expr, Read, Tensor, static_shape, walk
from tilewright.expr.dtypes import INDEX
from tilewright.expr.graph import Graph
from tilewright.expr.rewrite import inline
from tilewright.expr.rewrites.flat_to_split import find_split, split_sums
from tilewright.graph.passes.fold_padding import padding_of
from tilewright.graph.passes.rewritten import Rewritten


@dataclass(frozen=True)
class InlineMaps:
    """Inline every map that is free to recompute, or has one consumer that reads each element about once.

    Before:  t[i, j] = x[j, i]    a[i, j] = t[i, j] * 2.0    y[i, j] = max(a[i, j], 0.0)
    After:   y[i, j] = max(x[j, i] * 2.0, 0.0)
    Always legal for nodes that do not reduce. Movement goes first, so that a product reads through it and the
    arithmetic before it stays where it can be the product's epilogue. A product takes permuted channels that nothing
    else reads too: split-channels splits its sums. Refused: what would take from a product its form (`is_product`:
    level 3 maps those to intrinsics; or a split of loops makes it one) or its epilogue, what would have a product
    stored as its sums although its epilogue rounds them to a narrower type, what merges dimensions of a product, which
    may be stored like that, and bodies of over `body_nodes` nodes. Needs constant parts folded, which else count as
    costly. Afterwards a node that only moves elements occurs where its reader could not take it, or should not.
    """

    is_product: Callable[[Compute], bool]
    body_nodes: int = 200
    name: ClassVar[str] = "inline-maps"

    def apply(self, state: Rewritten) -> Rewritten:
        graph = _Inlining(state.graph, self, _moves).run()
        return replace(state, graph=_Inlining(graph, self, _may_inline).run())


Rule = Callable[[Compute, Compute, bool], bool]
"""Whether a producer is worth inlining into a consumer; the last argument: it is the only one, and no output."""


@dataclass(frozen=True)
class _Size:
    """Nodes of a body: all, floats (which simplification keeps where no condition is on indices), reads by tensor."""

    nodes: int
    floats: int
    conditional: bool
    reads: Mapping[str, int]

    @classmethod
    def of(cls, node: Compute) -> _Size:
        nodes, floats, conditional = 0, 0, False
        reads: dict[str, int] = {}
        for each in walk(node.body):
            nodes += 1
            floats += dtypes.is_float(each.dtype)
            if isinstance(each, Read):
                reads[each.tensor.name] = reads.get(each.tensor.name, 0) + 1
            elif each.dtype == "bool":
                conditional |= isinstance(each, Const) or any(child.dtype == INDEX for child in each.children())
        return cls(nodes, floats, conditional, reads)


class _Inlining:
    """The nodes of a graph while maps move into their consumers."""

    def __init__(self, graph: Graph, options: InlineMaps, wanted: Rule) -> None:
        self.graph = graph
        self.options = options
        self.wanted = wanted
        self.outputs = {tensor.name for tensor in graph.outputs}
        self.joining = {node.name for node in graph.nodes if _joins(node, graph)}
        self.nodes = {node.name: node for node in graph.nodes}
        self.users: dict[str, set[str]] = {name: set() for name in self.nodes}
        self._sizes: dict[str, _Size] = {}
        for node in graph.nodes:
            self._count(node, node.inputs())

    def run(self) -> Graph:
        waiting = deque((node.name, user) for node in self.graph.nodes for user in sorted(self.users[node.name]))
        while waiting:
            name, user = waiting.popleft()
            producer, consumer = self.nodes.get(name), self.nodes.get(user)
            if producer is None or consumer is None or producer.accum is not None or user not in self.users[name]:
                continue
            alone = len(self.users[name]) == 1 and name not in self.outputs
            merged = self._merged(producer, consumer, alone)
            if merged is None:
                continue
            self.nodes[user] = merged
            self._sizes.pop(user, None)
            read = merged.inputs()  # without what was under a condition that holds nowhere
            self._count(merged, [each for each in producer.inputs() if each in read])
            waiting.extend((each.name, user) for each in producer.inputs() if user in self.users.get(each.name, ()))
            waiting.extend(self._discount(merged, [each for each in consumer.inputs() if each not in read]))
            if not self.users[name] and name not in self.outputs:
                del self.nodes[name]
                waiting.extend(self._discount(producer, producer.inputs()))  # each has one consumer fewer
        return replace(self.graph, nodes=tuple(self.nodes.values()))

    def _count(self, user: Compute, tensors: Sequence[Tensor]) -> None:
        """Note `user` as a consumer of those tensors that nodes write."""
        for tensor in tensors:
            if tensor.name in self.users:
                self.users[tensor.name].add(user.name)

    def _discount(self, user: Compute, tensors: Sequence[Tensor]) -> list[tuple[str, str]]:
        """Note that `user` is no longer a consumer; gives the tensors that have one consumer left, and that one."""
        left: list[tuple[str, str]] = []
        for tensor in tensors:
            users = self.users.get(tensor.name)
            if users is not None:
                users.discard(user.name)
                left += [(tensor.name, last) for last in users if len(users) == 1]
        return left

    def _merged(self, producer: Compute, consumer: Compute, alone: bool) -> Compute | None:
        """The consumer with the producer in it, or None where that is refused."""
        if not self.wanted(producer, consumer, alone) or self._may_be_view(producer):
            return None
        if self._is_too_large(producer, consumer):
            return None
        merged = replace(inline(consumer, producer), source=self._source(producer, consumer))
        if sum(1 for _ in walk(merged.body)) > self.options.body_nodes:
            return None
        if self._form(merged) < self._form(consumer):
            return None
        if not alone and split_sums(merged) is not merged:  # others need the producer in memory all the same
            return None
        if padding_of(consumer) is not None and padding_of(merged) is None:
            return None
        if not _only_moves(producer.body) and self._is_epilogue(producer) and not self._is_epilogue(merged):
            return None
        return None if self._widens(producer, merged) else merged

    def _widens(self, producer: Compute, merged: Compute) -> bool:
        """Whether a product would be stored as its sums, where the producer, as its epilogue, stores fewer bytes."""
        narrowed = self._sums(producer, _width(producer))
        return bool(narrowed) and narrowed.keys() != self._sums(merged, _width(producer)).keys()

    def _sums(self, node: Compute, least: int) -> dict[str, int]:
        """Products whose epilogue a map could be, by name, with the bytes of a sum: those of more than `least` bytes.

        The map reads the sums point by point, itself or through maps that are no narrower.
        """
        found: dict[str, int] = {}
        for tensor in node.inputs() if node.accum is None else ():
            source = self.nodes.get(tensor.name)
            if source is None or source.name in self.outputs or len(self.users[source.name]) != 1:
                continue
            if _width(source) <= least or not reads_own_points(node, source.output):
                continue
            sums = {source.name: _width(source)} if self._form(source) else self._sums(source, least)
            found |= {name: width for name, width in sums.items() if width <= _width(source)}
        return found

    def _source(self, producer: Compute, consumer: Compute) -> str:
        """`Compute.source` of the consumer with the producer in it."""
        *joined, operator = (producer.source or producer.name).split(JOINED)
        joined += [operator] if producer.name in self.joining else []
        return JOINED.join(dict.fromkeys((*joined, *(consumer.source or consumer.name).split(JOINED))))

    def _is_too_large(self, producer: Compute, consumer: Compute) -> bool:
        """Whether both bodies together would be over the limit whatever simplification does, judged by their sizes."""
        here, there = self._size(consumer), self._size(producer)
        if here.nodes > 2 * self.options.body_nodes:
            return True
        if here.conditional or there.conditional:
            return False
        reads = here.reads.get(producer.name, 0)
        return here.floats + reads * (there.floats - 1) > self.options.body_nodes

    def _size(self, node: Compute) -> _Size:
        if node.name not in self._sizes:
            self._sizes[node.name] = _Size.of(node)
        return self._sizes[node.name]

    def _may_be_view(self, node: Compute) -> bool:
        """Whether a node only merges dimensions of what a product writes, which may be stored like that."""
        if not isinstance(node.body, Read) or all(affine(index) is not None for index in node.body.indices):
            return False
        source = self.nodes.get(node.body.tensor.name)
        return (
            source is not None
            and self.users[source.name] == {node.name}
            and bool(self._form(source) or self._is_epilogue(source))
        )

    def _form(self, node: Compute) -> int:
        """2 for a product, perhaps when its sums are split, 1 for what becomes one when its loops are, else 0."""
        if self.options.is_product(node) or self.options.is_product(split_sums(node)):
            return 2
        split = find_split(node)
        return int(split is not None and self.options.is_product(split.apply(node, node.name)[0]))

    def _is_epilogue(self, node: Compute) -> bool:
        """Whether a map reads some product point by point, and could be computed where the product is."""
        if node.accum is not None:
            return False
        for read in node.reads():
            source = self.nodes.get(read.tensor.name)
            if source is None or source.name in self.outputs or not self._form(source):
                continue
            if len(self.users[source.name]) == 1 and reads_own_points(node, source.output):
                return True
        return False


def _width(node: Compute) -> int:
    """Bytes of an element that a node writes."""
    return dtypes.size_bytes(node.output.dtype)


def _joins(node: Compute, graph: Graph) -> bool:
    """Whether a map reads several tensors that are no constants."""
    return node.accum is None and sum(tensor.name not in graph.constants for tensor in node.inputs()) > 1


def reads_own_points(node: Compute, tensor: Tensor) -> bool:
    """Whether a map writes as many points as `tensor` has and reads it only at those, dimensions of extent 1 aside."""
    mine = [axis for axis in node.axes if axis.extent != 1]
    if [axis.extent for axis in mine] != [extent for extent in tensor.shape if extent != 1]:
        return False
    for read in node.reads():
        if read.tensor == tensor:
            indices = [i for i, extent in zip(read.indices, tensor.shape, strict=True) if extent != 1]
            if indices != mine:
                return False
    return True


# What is worth inlining -----------------------------------------------------------------------------------------------


def _moves(producer: Compute, consumer: Compute, alone: bool) -> bool:
    return _only_moves(producer.body)


def _only_moves(body: Expr) -> bool:
    """Whether a body is one element of a tensor, or a constant, perhaps cast."""
    return isinstance(body, Read | Const) or (isinstance(body, Cast) and _only_moves(body.arg))


def _may_inline(producer: Compute, consumer: Compute, alone: bool) -> bool:
    if _only_moves(producer.body):
        return True
    if not alone or (consumer.accum is not None and padding_of(producer) is not None):  # a border is better than guards
        return False
    points = prod(static_shape(tuple(axis.extent for axis in consumer.body_loops)))
    elements = prod(static_shape(producer.output.shape))
    if points > elements and any(isinstance(node, Apply) and node.function in COSTLY for node in walk(producer.body)):
        return False
    return points <= 2 * elements or consumer.accum is None
