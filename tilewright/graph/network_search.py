"""What a network costs on a machine: products as the best tile trees that searches find, chains fused where it pays.

Parts that compute the same are searched once. A product has a tree of all of its loops at every level. A chain is tried
with its results staged at every memory level between the outermost and the innermost one, in a scope of every kind that
makes a difference; a chain whose lower bound is not below its parts is not searched. Parts that are no products are
counted by their movement (`tiles.streamed`). Of the budget, `PRODUCTS_SHARE` is for products, in equal parts, what
follows up to `PAIRS_SHARE` for products with an epilogue, the rest for rows of products, each by what it could save.
What a search does not use, later ones get.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Literal, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.graph.network import Chain, Network, Part
from tilewright.graph.search_options import SearchOptions
from tilewright.graph.tree_cost import Objective, TreeCost
from tilewright.graph.tree_factors import TreeFactors
from tilewright.graph.tree_space import Genome, TreeSpace, spatial_levels
from tilewright.search.cost import Budget
from tilewright.search.space import NoLegalPoint
from tilewright.tiles.analysis import Analysis, analyse
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.streamed import streamed
from tilewright.tiles.tree import Kind, TileTree

How: TypeAlias = Literal["tree", "streamed"]
Value: TypeAlias = tuple[float, float]  #: what is to be small, and what decides between equals

PRODUCTS_SHARE, PAIRS_SHARE = 0.4, 0.8  #: of the budget, up to which products, and then their epilogues, are searched
_LEAST_SAVING = 1e-3  # of the cycles or the energy of its parts that fusing a chain could save, or it is not searched
_LEAST_WEIGHT = 0.1  # of a chain's search, beside the one that could save most
_LEAST_SECONDS = 0.2  # of a product's search


@dataclass(frozen=True)
class Found:
    """The cost of a part, with the tree that has it; without either where there is a `reason`.

    Tree and analysis name the tensors and loops of `like`, which computes the same, where that is not None.
    """

    part: Part
    how: How
    analysis: Analysis | None = None
    tree: TileTree | None = None
    evaluations: int = 0
    reason: str = ""
    like: Part | None = None

    def value(self, objective: Objective) -> Value:
        """What the objective says of it, then the other one; of a part with a cost."""
        assert self.analysis is not None, "only parts with a cost are compared"
        cycles, energy = round(float(self.analysis.cycles), 3), float(self.analysis.energy)
        return (cycles, energy) if objective == "cycles" else (energy, cycles)


@dataclass(frozen=True)
class FoundChain:
    """A chain fused, and whether that was chosen. `apart` is what its parts cost, the objective first."""

    chain: Chain
    fused: Found
    apart: Value | None
    chosen: bool = False


@dataclass(frozen=True)
class NetworkCost:
    """The cost of every part of a network and of every chain, in its order. `stopped` as of `search.minimise`."""

    parts: tuple[Found, ...]
    chains: tuple[FoundChain, ...]
    objective: Objective
    stopped: Literal["finished", "interrupted"]

    def apart(self) -> list[Found]:
        """What runs if nothing is fused."""
        return list(self.parts)

    def fused(self) -> list[Found]:
        """What runs if the chosen chains are fused: these, and the parts in none of them."""
        chosen = [each for each in self.chains if each.chosen]
        inside = {number for each in chosen for number in each.chain.parts}
        rest = [found for number, found in enumerate(self.parts) if number not in inside]
        return [*rest, *(each.fused for each in chosen)]


def search_network(
    network: Network, resources: Resources, options: SearchOptions, clock: Callable[[], float] = time.monotonic
) -> NetworkCost:
    """Search the trees of a network; the budget is that of all searches together.

    Each search keeps its evaluations in a file of its own, whose name begins with that of the trace. After Ctrl-C what
    was found is returned; parts that were not reached have no cost then.
    """
    return _Search(resources, options, clock).run(network)


@dataclass(frozen=True)
class _Job:
    """One search: the factors of a genome's tree. `weight` says how much of the budget it gets beside others."""

    part: Part
    genome: Genome
    weight: float


class _Search:
    def __init__(self, resources: Resources, options: SearchOptions, clock: Callable[[], float]) -> None:
        self.resources, self.options, self.objective, self.clock = resources, options, options.objective, clock
        self.began, self.evaluations = clock(), 0
        self.known: dict[str, Found] = {}
        self.interrupted = False
        self.levels = tuple(level.name for level in resources.levels)

    def run(self, network: Network) -> NetworkCost:
        stopped: Literal["finished", "interrupted"] = "finished"
        chains: list[FoundChain] = []
        try:
            self._products(network)
            parts = [self._found(part) for part in network.parts]
            chains = self._chains(network, parts)
        except KeyboardInterrupt:
            stopped = "interrupted"
            parts = [self._found(part) for part in network.parts]
            chains = [self._compared(chain, parts) for chain in network.chains]
        return NetworkCost(tuple(parts), tuple(_chosen(chains, self.objective)), self.objective, stopped)

    def _found(self, part: Part) -> Found:
        """The cost of a part that needs no search, or whose search is over."""
        if not part.is_product:
            return Found(part, "streamed", streamed(part.computes, part.results, self.resources))
        return self._of(part)

    def _of(self, part: Part) -> Found:
        """What was found of a part, or of one that computes the same."""
        found = self.known.get(part.key)
        if found is None:
            return Found(part, "tree", reason="it was not searched")
        return replace(found, part=part, like=found.part)

    # Searching

    def _products(self, network: Network) -> None:
        wanted: dict[str, Part] = {}
        for part in network.parts:
            if part.is_product:
                wanted.setdefault(part.key, part)
        share = PRODUCTS_SHARE if network.chains else 1.0
        self._search([_Job(part, (), 1.0) for part in wanted.values()], share, _LEAST_SECONDS)

    def _chains(self, network: Network, parts: Sequence[Found]) -> list[FoundChain]:
        """Search the chains that could pay: products with an epilogue, then rows of products, shorter ones first."""
        wanted: dict[str, tuple[Part, float]] = {}
        for chain in network.chains:
            key = chain.part.key
            saving, reason = self._could_save(chain, parts)
            if reason:
                self.known.setdefault(key, Found(chain.part, "tree", reason=reason))
            else:
                first, before = wanted.get(key, (chain.part, 0.0))
                wanted[key] = first, before + saving * chain.part.runs
        pairs = [each for each in wanted.values() if _is_pair(each[0])]
        rows = [each for each in wanted.values() if not _is_pair(each[0])]
        self._search(self._jobs(pairs), PAIRS_SHARE if rows else 1.0, 0.0)
        self._search(self._jobs(rows), 1.0, 0.0)
        return [self._compared(chain, parts) for chain in network.chains]

    def _jobs(self, parts: Sequence[tuple[Part, float]]) -> list[_Job]:
        """A search for every genome of parts with what each could save at most."""
        most = max((saving for _, saving in parts), default=0.0)
        order = sorted(parts, key=lambda each: (len(each[0].computes), -each[1]))
        return [
            _Job(part, genome, max(saving, _LEAST_WEIGHT * most))
            for part, saving in order
            for genome in _genomes(part, self.levels)
        ]

    def _search(self, jobs: Sequence[_Job], share: float, least_seconds: float) -> None:
        """Run searches one after the other, each with its part, by weight, of what is left of a share of the budget."""
        weight = sum(job.weight for job in jobs)
        for job in jobs:
            budget = self._part_of_budget(share, job.weight / weight if weight else 0.0, least_seconds)
            weight -= job.weight
            found = self._searched(job, budget)
            before = self.known.get(job.part.key, found)
            best = min(found, before, key=self._rank)
            evaluations = found.evaluations + (before.evaluations if before is not found else 0)
            self.known[job.part.key] = replace(best, evaluations=evaluations)
            if self.interrupted:
                raise KeyboardInterrupt

    def _part_of_budget(self, share: float, part: float, least_seconds: float) -> Budget:
        evaluations, seconds = self.options.budget.evaluations, self.options.budget.seconds
        if evaluations is not None:
            evaluations = int(max(0, share * evaluations - self.evaluations) * part + 0.5)
        if seconds is not None:
            seconds = max(least_seconds, (share * seconds - (self.clock() - self.began)) * part)
        return Budget(evaluations, seconds)

    def _searched(self, job: _Job, budget: Budget) -> Found:
        """The best tree of a genome, or the reason why there is none."""
        part, options = job.part, replace(self.options, budget=budget)
        if budget.evaluations == 0 or budget.seconds == 0.0:
            return Found(part, "tree", reason="no budget was left for it")
        factors = self._factors(job)
        if isinstance(factors, str):
            return Found(part, "tree", reason=factors)
        place = "_".join(job.genome[0][::2]) if job.genome else "alone"
        if options.trace is not None:
            options = replace(options, trace=f"{os.fspath(options.trace)}.{part.key[:16]}.{place}")
        try:
            cost = TreeCost(factors, self.resources, self.objective, ties=True)
            outcome = options.minimise(part.name, cost, options.method_of(factors))
        except NoLegalPoint as error:
            return Found(part, "tree", reason=error.message)
        self.interrupted = outcome.stopped == "interrupted"
        count = len(outcome.trace.steps)
        self.evaluations += count
        if outcome.best is None:
            reason = next((step.evaluation.reason for step in outcome.trace.steps), "no budget was left for it")
            return Found(part, "tree", evaluations=count, reason=reason)
        tree = factors.filled(outcome.best)
        return Found(part, "tree", analyse(tree, factors.problem, self.resources), tree, count)

    def _factors(self, job: _Job) -> TreeFactors | str:
        """The factors of a genome's tree; why there are none where no tree is made of its expressions, or is legal."""
        try:
            problem = Problem.of(job.part.computes)
            space = TreeSpace(problem, self.levels, spatial_levels(self.resources), self.resources)
            genome = space.repaired(job.genome)
            factors = TreeFactors(space.tree(job.genome if genome is None else genome), problem, self.resources)
            if factors.start() is not None:
                return factors
        except CompileError as error:
            return error.message
        return factors.reason() or "no factors of it are legal on this machine"

    def _rank(self, found: Found) -> Value:
        return (inf, inf) if found.analysis is None else found.value(self.objective)

    # Comparing

    def _could_save(self, chain: Chain, parts: Sequence[Found]) -> tuple[float, str]:
        """What fusing a chain saves at most, and why it is not tried, or ""."""
        apart = _together([parts[number] for number in chain.parts], self.objective)
        if apart is None:
            return 0.0, "a part of it has no cost"
        least = Found(chain.part, "streamed", streamed(chain.part.computes, chain.part.results, self.resources))
        bound = least.value(self.objective)[0]
        if bound <= (1 - _LEAST_SAVING) * apart[0]:
            return apart[0] - bound, ""
        return 0.0, f"it takes {bound:,.0f} {self.objective} at least, its parts {apart[0]:,.0f}"

    def _compared(self, chain: Chain, parts: Sequence[Found]) -> FoundChain:
        return FoundChain(
            chain, self._of(chain.part), _together([parts[number] for number in chain.parts], self.objective)
        )


def _is_pair(part: Part) -> bool:
    """Whether a chain is a product with an epilogue."""
    return sum(compute.accum is not None for compute in part.computes) == 1


def _genomes(part: Part, levels: Sequence[str]) -> list[Genome]:
    """All operators in one scope, whose results stay at one level on the chip: for every level, and kind of scope.

    An epilogue runs after its product, tile by tile; the two kinds of scope that differ for more are of no use to it.
    """
    names = [compute.name for compute in part.computes]
    kinds = (Kind.SHAR,) if _is_pair(part) else (Kind.SHAR, Kind.SEQ, Kind.PIPE)
    return [
        tuple((level, names[-1], kind.value) for _ in names[:-1]) for level in levels[1:-1] for kind in kinds
    ]  # fmt: skip


def _together(found: Sequence[Found], objective: Objective) -> Value | None:
    """The cost of parts that run one after the other; None where one has none."""
    if any(each.analysis is None for each in found):
        return None
    values = [each.value(objective) for each in found]
    return sum(first for first, _ in values), sum(second for _, second in values)


def _chosen(chains: Sequence[FoundChain], objective: Objective) -> list[FoundChain]:
    """The chains with those chosen that save most together and do not overlap."""
    savings: dict[int, Value] = {}
    for number, each in enumerate(chains):
        if each.apart is not None and each.fused.analysis is not None:
            value = each.fused.value(objective)
            saved = (round(each.apart[0] - value[0], 3), each.apart[1] - value[1])
            if saved > (0.0, 0.0):
                savings[number] = saved
    taken: set[int] = set()
    for group in _overlapping(chains, list(savings)):
        taken.update(_best_of(group, chains, savings)[1])
    return [replace(each, chosen=number in taken) for number, each in enumerate(chains)]


def _overlapping(chains: Sequence[FoundChain], numbers: Sequence[int]) -> list[list[int]]:
    """Chains that share parts, directly or through others, together."""
    groups: list[tuple[set[int], list[int]]] = []
    for number in numbers:
        parts, members = set(chains[number].chain.parts), [number]
        apart = []
        for other in groups:
            if other[0] & parts:
                parts, members = parts | other[0], [*other[1], *members]
            else:
                apart.append(other)
        groups = [*apart, (parts, members)]
    return [sorted(members) for _, members in groups]


def _best_of(
    numbers: Sequence[int], chains: Sequence[FoundChain], savings: Mapping[int, Value]
) -> tuple[Value, list[int]]:
    """What the best choice among chains saves, and that choice: with the first one, or without it."""
    if not numbers:
        return (0.0, 0.0), []
    first, *rest = numbers
    parts = set(chains[first].chain.parts)
    free = [number for number in rest if not parts & set(chains[number].chain.parts)]
    without = _best_of(rest, chains, savings)
    (a, b), chosen = _best_of(free, chains, savings)
    joined = (round(a + savings[first][0], 3), b + savings[first][1]), [first, *chosen]
    return joined if joined[0] > without[0] else without
