"""Compute chains of a graph of any topology, and what fusing each is predicted to gain (spec 1, sections 1.6 and 3.14).

A chain is a path of compute-intensive expressions; the tensors between them pass only through memory-intensive ones and
have no reader outside. Nothing is compiled differently: every chain is costed fused and apart, and the decision kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.dataclass import dataclass
from tilewright.decision import Decision, Refusal
from tilewright.errors import CompileError
from tilewright.expr.core import Compute
from tilewright.expr.graph import Graph
from tilewright.expr.intensity import is_compute_intensive
from tilewright.graph.chain.halo import RECOMPUTE, Halo
from tilewright.graph.chain.hierarchy import Hierarchy
from tilewright.graph.chain.loops import NotAChain, chain_of
from tilewright.graph.chain.solve import Quanta, Solution, solve

MOST_PRODUCTS = 3  #: of a chain that is found in a graph; longer paths are cut


@dataclass(frozen=True)
class FoundChain:
    """A chain of a graph: its expressions in order, those that prepare operands included."""

    computes: tuple[Compute, ...]

    @property
    def name(self) -> str:
        """Its products."""
        return " + ".join(compute.name for compute in self.computes if is_compute_intensive(compute))


@dataclass(frozen=True)
class Costed:
    """A chain with its plans; without them where none could be made, and `decision` says why."""

    chain: FoundChain
    decision: Decision
    solution: Solution | None = None


def find_chains(graph: Graph, most: int = MOST_PRODUCTS) -> tuple[tuple[FoundChain, ...], tuple[Refusal, ...]]:
    """The chains of a graph and of the bodies of its loops, each product in one of them at most.

    The refusals say which product could not be continued, and why. A chain has `most` products or fewer.
    """
    found: list[FoundChain] = []
    refused: list[Refusal] = []
    for part in graph.parts():
        finder = _Finder(part, most)
        found += finder.chains()
        refused += finder.refused
    return tuple(found), tuple(refused)


def cost_chains(
    graph: Graph, hierarchy: Hierarchy, quanta: Quanta | None = None, most: int = MOST_PRODUCTS,
    halo: Collection[Halo] = RECOMPUTE,
) -> tuple[tuple[Costed, ...], tuple[Refusal, ...]]:  # fmt: skip
    """Every chain of a graph with its plans and its decision, and why other products are in none."""
    chains, refused = find_chains(graph, most)
    costed: list[Costed] = []
    for chain in chains:
        try:
            solution = solve(chain.computes, hierarchy, quanta, halo=halo)
        except CompileError as error:
            why = Refusal(f"fused {chain.name}", error.code, error.message)
            decision = Decision(f"fusion of {chain.name}", "apart", "no plan could be made", refused=(why,))
            costed.append(Costed(chain, decision))
        else:
            costed.append(Costed(chain, solution.decision, solution))
    return tuple(costed), refused


class _Finder:
    """Chains of the nodes of one graph without loops."""

    def __init__(self, graph: Graph, most: int) -> None:
        self.graph, self.most = graph, most
        self.readers: Mapping[str, Sequence[Compute]] = graph.consumers()
        self.outputs = {tensor.name for tensor in graph.outputs}
        self.place = {node.name: number for number, node in enumerate(graph.nodes)}
        self.refused: list[Refusal] = []

    def chains(self) -> list[FoundChain]:
        found: list[FoundChain] = []
        taken: set[str] = set()
        for node in self.graph.nodes:
            if node.name in taken or not is_compute_intensive(node):
                continue
            members, products = [node], [node]
            while len(products) < self.most:
                step = self._continued(products[-1], taken)
                if step is None:
                    break
                between, product = step
                longer = [*members, *between, product]
                reason = self._refusal(longer)
                if reason:
                    self.refused.append(Refusal(f"{products[-1].name} + {product.name}", "is a linear chain", reason))
                    break
                members, products = longer, [*products, product]
            taken |= {member.name for member in members}
            if len(products) > 1:
                found.append(FoundChain(tuple(self._with_operands(members))))
        return found

    def _continued(self, product: Compute, taken: set[str]) -> tuple[list[Compute], Compute] | None:
        """What lies between a product and the next one, and that one; None, with the reason kept, where it ends."""
        between: dict[str, Compute] = {}
        after: dict[str, Compute] = {}
        waiting = [product]
        while waiting:
            node = waiting.pop()
            if node.name in self.outputs:
                if between or after:
                    self._ends(product, f"{node.name} is an output of the graph")
                return None
            for reader in self.readers.get(node.name, ()):
                if is_compute_intensive(reader):
                    after[reader.name] = reader
                elif reader.ordered is not None:
                    self._ends(product, f"{reader.name} is an ordered accumulation")
                    return None
                elif reader.name not in between:
                    between[reader.name] = reader
                    waiting.append(reader)
        if len(after) != 1:
            if after:
                self._ends(product, f"{len(after)} products read it: {', '.join(sorted(after))}")
            return None
        (following,) = after.values()
        if following.name in taken:
            self._ends(product, f"{following.name} is part of another chain")
            return None
        dead = [node for node in between.values() if not self.readers.get(node.name)]
        if dead:
            self._ends(product, f"nothing reads {dead[0].name}")
            return None
        return sorted(between.values(), key=lambda node: self.place[node.name]), following

    def _ends(self, product: Compute, why: str) -> None:
        self.refused.append(Refusal(f"{product.name} + …", "the connecting tensor has no other reader", why))

    def _refusal(self, members: Sequence[Compute]) -> str:
        """Why some expressions are no chain, or ""."""
        if any(not isinstance(axis.extent, int) for member in members for axis in member.loops):
            return "an extent is not known at compile time"
        try:
            chain_of(self._with_operands(members))
        except NotAChain as error:
            return error.message
        return ""

    def _with_operands(self, members: Sequence[Compute]) -> list[Compute]:
        """The members with the maps that prepare an operand for one of them alone, as padding does; in order."""
        inside = {member.name: member for member in members}
        producers = self.graph.producers()
        waiting = list(members)
        while waiting:
            for tensor in waiting.pop().inputs():
                node = producers.get(tensor.name)
                if node is None or node.name in inside or node.accum is not None or node.name in self.outputs:
                    continue
                if all(reader.name in inside for reader in self.readers[node.name]):
                    inside[node.name] = node
                    waiting.append(node)
        return sorted(inside.values(), key=lambda node: self.place[node.name])
