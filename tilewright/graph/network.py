"""A whole network as parts that run one after the other, and as chains of parts that one tile tree may run.

In: a graph. Out: a `Network`, which knows no machine. Apart, every product of two tensors (matrix products,
convolutions, grouped ones too) is a part of its own; of the rest, what level 1 would put into one kernel is a part.
Maps that only move elements, as padding does, have no part: a product reads what they give, as if it were stored like
that, and other parts read their operand. A part in a loop runs as often as the loop has trips.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.affine import affine
from tilewright.expr.core import Apply, Cast, Compute, Const, Expr, Read, Tensor, walk
from tilewright.expr.dtypes import INDEX, DType
from tilewright.expr.graph import Graph
from tilewright.expr.intensity import is_compute_intensive
from tilewright.expr.names import claim
from tilewright.expr.rewrite import inline, substitute, transform, with_floats
from tilewright.expr.serialize import content_digest
from tilewright.graph.chain.loops import with_own_names
from tilewright.graph.chains import find_chains
from tilewright.graph.groups import Group, form_groups
from tilewright.graph.passes.inline_maps import reads_own_points

MOST_EXPRESSIONS = 10  #: of a chain; a tree of more takes long to analyse
_OPERANDS = 2  # that an operation of one unit takes


@dataclass(frozen=True)
class Part:
    """Expressions that run together, of which `results` leave them, `runs` times in a run of the network.

    `is_product`: one product of two tensors, for which a tile tree is to be found.
    """

    name: str
    computes: tuple[Compute, ...]
    results: tuple[str, ...]
    runs: int = 1
    is_product: bool = False

    @property
    def graph(self) -> Graph:
        """The expressions as a graph of their own, whose inputs are what they read from outside."""
        return Graph.of(self.computes, self.results)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the expressions read or write, by name."""
        return {tensor.name: tensor for compute in self.computes for tensor in (*compute.inputs(), compute.output)}

    @cached_property
    def key(self) -> str:
        """Equal for parts that compute the same, whatever their tensors and loops are called."""
        return content_digest(self.graph)


@dataclass(frozen=True)
class Chain:
    """Parts, by number, that may run as one: products in a row, what lies between them, and the last one's epilogue.

    `computes` are their expressions as a tile tree has them: no operation of a map takes more than two operands.
    """

    part: Part
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """Parts in an order in which they can run, and chains of them, which may overlap."""

    parts: tuple[Part, ...]
    chains: tuple[Chain, ...]


def network_of(graph: Graph, is_product: Callable[[Compute], bool], floats: DType | None = None) -> Network:
    """The parts and chains of a graph, its floating-point tensors of the type `floats` (None: as they are).

    `is_product` tells which computes multiply two tensors. Raises InvalidArgument where an extent is not known.
    """
    parts: list[Part] = []
    chains: list[Chain] = []
    for body, runs in _bodies(graph, 1):
        _check_extents(body)
        found = _Body(body, runs, is_product, floats)
        own = found.parts()
        chains += found.chains(own, len(parts))
        parts += own
    return Network(tuple(parts), tuple(chains))


def _bodies(graph: Graph, runs: int) -> Iterator[tuple[Graph, int]]:
    """The nodes of a graph and of the bodies of its loops, and how often they run."""
    yield graph.opened(), runs
    for loop in graph.loops:
        yield from _bodies(loop.body, runs * loop.trips)


def _check_extents(graph: Graph) -> None:
    for node in graph.nodes:
        for axis in node.loops:
            if not isinstance(axis.extent, int):
                raise InvalidArgument(f"{node.name}: the extent {axis.extent} of a loop is not known", where="graph",
                                      help=f"give a size: --shape {axis.extent}=…")  # fmt: skip


class _Body:
    """The nodes of one graph without loops."""

    def __init__(self, graph: Graph, runs: int, is_product: Callable[[Compute], bool], floats: DType | None) -> None:
        self.graph, self.runs, self.is_product = graph, runs, is_product
        self.leaving = {tensor.name for tensor in graph.outputs}
        nodes = [_without_single(node if floats is None else with_floats(node, floats)) for node in graph.nodes]
        self.movers = _movers(nodes, self.leaving)
        self.computes = {node.name: node for node in nodes if node.name not in self.movers}
        self.readers: dict[str, set[str]] = {}
        for name, node in self.computes.items():
            for source in self.sources(node):
                self.readers.setdefault(source, set()).add(name)

    def sources(self, node: Compute) -> list[str]:
        """The names of the tensors that an expression reads, through maps that move their elements."""
        names = []
        for tensor in node.inputs():
            name = tensor.name
            while name in self.movers:
                name = self.movers[name].inputs()[0].name
            names.append(name)
        return names

    def parts(self) -> list[Part]:
        found = []
        for group in form_groups(self.graph, self.is_product):
            assert isinstance(group, Group), "an opened graph has no loops"
            names = [node.name for node in group.nodes if node.name in self.computes]
            if group.kind == "product":
                found.append(self._part(names[0], names[:1], is_product=True))
                names = names[1:]
            if names:
                found.append(self._part(names[-1] if len(names) == 1 else group.kernel, names))
        return found

    def _part(self, name: str, names: Sequence[str], *, is_product: bool = False) -> Part:
        inside = set(names)
        results = tuple(n for n in names if n in self.leaving or self.readers.get(n, set()) - inside)
        computes = [self.computes[n] for n in names]
        computes = computes if is_product else [self._moved(compute, None) for compute in computes]
        return Part(name, tuple(computes), results, self.runs, is_product)

    def _moved(self, compute: Compute, inside: Collection[str] | None) -> Compute:
        """An expression that reads the operands of maps which only move elements: of all, or of results `inside`."""
        again = True
        while again:
            again = False
            for tensor in compute.inputs():
                mover = self.movers.get(tensor.name)
                if mover is not None and (inside is None or set(self.sources(mover)) <= set(inside)):
                    compute, again = inline(compute, mover), True
        return compute

    def chains(self, parts: Sequence[Part], first: int) -> list[Chain]:
        """Products with their epilogues; of the graph's compute chains, every row of two products or more.

        A row has the last product's epilogue in it, or not: with it, loops of that product's sum surround no other one.
        """
        place = {compute.name: number for number, part in enumerate(parts) for compute in part.computes}
        found = []
        for part in parts:
            if part.is_product:
                found.append(self._chain([part.name, *self._epilogue(part.name, parts, place)], parts, place, first))
        for chain in find_chains(self.graph)[0]:
            products = [compute.name for compute in chain.computes if is_compute_intensive(compute)]
            members = [compute.name for compute in chain.computes if compute.name in self.computes]
            for begin in range(len(products)):
                for end in range(begin + 1, len(products)):
                    row = self._between(members, products[begin], products[end])
                    epilogue = self._epilogue(products[end], parts, place)
                    for names in (row, [*row, *epilogue]) if epilogue else (row,):
                        found.append(self._chain(names, parts, place, first))
        return [chain for chain in found if chain is not None]

    def _epilogue(self, product: str, parts: Sequence[Part], place: dict[str, int]) -> list[str]:
        """The map that is the only reader of a product, at its own points."""
        readers = self.readers.get(product, set())
        if len(readers) != 1 or product in self.leaving:
            return []
        (reader,) = readers
        alone = parts[place[reader]].computes == (self.computes[reader],)
        node = self.computes[reader]
        fits = node.accum is None and reads_own_points(node, self.computes[product].output)
        return [reader] if alone and fits and not parts[place[reader]].is_product else []

    def _between(self, members: Sequence[str], first: str, last: str) -> list[str]:
        """The members that need the first product and that the last one needs, these two included."""
        after, before = {first}, {last}
        for name in members:
            if after & set(self.sources(self.computes[name])):
                after.add(name)
        for name in reversed(members):
            if self.readers.get(name, set()) & before:
                before.add(name)
        return [name for name in members if name in after & before]

    def _chain(self, names: Sequence[str], parts: Sequence[Part], place: dict[str, int], first: int) -> Chain | None:
        """The chain of these expressions; None where they are one part, not whole parts, or too many."""
        numbers = sorted({place[name] for name in names})
        whole = [compute.name for number in numbers for compute in parts[number].computes]
        if len(numbers) < 2 or set(whole) != set(names) or any(self.computes[n].ordered for n in names):
            return None
        inside = set(names)
        own = [self._moved(self.computes[name], inside) for name in self.computes if name in inside]
        steps = _in_steps(own)
        if len(steps) > MOST_EXPRESSIONS:
            return None
        computes = with_own_names(steps)
        name = " + ".join(parts[number].name for number in numbers)
        part = Part(name, tuple(computes), (computes[-1].name,), self.runs)
        return Chain(part, tuple(first + number for number in numbers))


def _without_single(node: Compute) -> Compute:
    """The node without reduction loops of one step, so that a window of 1 x 1 ties the loops of two convolutions."""
    single = {axis for axis in node.reduce if axis.size == 1}
    rest = tuple(axis for axis in node.reduce if axis not in single)
    if not single or not rest or node.ordered is not None:
        return node
    zero = Const(0, INDEX)
    return replace(node, reduce=rest, body=substitute(node.body, dict.fromkeys(single, zero)))


def _movers(nodes: Sequence[Compute], leaving: Collection[str]) -> dict[str, Compute]:
    """The maps that only move elements by affine indices, and whose readers can read the operand instead."""
    readers: dict[str, list[Compute]] = {}
    for node in nodes:
        for tensor in node.inputs():
            readers.setdefault(tensor.name, []).append(node)
    return {
        node.name: node
        for node in nodes
        if node.name not in leaving and readers.get(node.name) and _moves_elements(node)
        and not any(each.ordered for each in readers[node.name])
    }  # fmt: skip


def _moves_elements(node: Compute) -> bool:
    """Whether a map gives elements of one tensor, and constants, at other points than it reads them."""
    if node.accum is not None or len(node.inputs()) != 1 or reads_own_points(node, node.inputs()[0]):
        return False
    if any(isinstance(each, Apply) and each.function != "select" and each.dtype == node.output.dtype
           for each in walk(node.body)):  # fmt: skip
        return False
    return all(affine(index) is not None for read in node.reads() for index in read.indices)


def _in_steps(computes: Sequence[Compute]) -> list[Compute]:
    """The expressions, with maps of more than two operands cut into several, as a unit with two operands runs them.

    Before:  y[i] = max(c[i] + b[i] + r[i], 0)
    After:   y.1[i] = c[i] + b[i];  y[i] = max(y.1[i] + r[i], 0)
    """
    found = []
    taken = {compute.name for compute in computes}
    for compute in computes:
        while compute.accum is None and (part := _innermost(compute.body)) is not None:
            tensor = Tensor(claim(compute.name, taken), compute.output.shape, part.dtype)
            found.append(Compute(tensor, compute.axes, part))
            step = tensor[compute.axes]
            body = transform(compute.body, lambda node, old=part, new=step: new if node == old else None)  # type: ignore[misc]
            compute = replace(compute, body=body)
        found.append(compute)
    return found


def _innermost(body: Expr) -> Expr | None:
    """Of a body of more operands than a unit takes, an innermost part that has as many; None where there is none."""
    if len(_operands(body)) <= _OPERANDS:
        return None
    part, inside = body, True
    while inside:
        inside = False
        for child in part.children():
            if isinstance(part, Read):
                break
            if len(_operands(child)) >= _OPERANDS:
                part, inside = child, True
                break
    return part if part is not body and isinstance(part, Apply | Cast) else None


def _operands(expr: Expr) -> set[Read]:
    return {node for node in walk(expr) if isinstance(node, Read)}
