"""The joint search for whole graphs: mapping and schedule of every product, ranked by the model, timed on this machine.

In: a graph, and `Options` with ``search="joint"``. Out: for each product a choice, or that the rules' own stays, with
the reason, both as data. A product is searched in its *neighbourhood*, the nodes around it as far as the next products,
because these decide how its operands are stored. What counts is the time of all kernels there, each kernel of a
certain content timed once, so that a choice also pays for the copies and the slower neighbours that it causes. At the
end the whole graph is timed with the choices and without; choices that do not pay there are dropped. Then chains of
products that are predicted to pay as one kernel are timed both ways (`chain_search.py`).

Products in equal neighbourhoods share one search. Results are kept in the compile cache: neither they nor the whole
graph are searched again by the same version on the same machine.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from math import inf
from typing import Any, TypeVar

import numpy as np

from tilewright.compiler.chain_search import TimedChain, timed_chains
from tilewright.compiler.chains import fusions
from tilewright.compiler.digest import compiler_digest
from tilewright.compiler.joint import candidates, default_choice
from tilewright.compiler.make_plan import make_plan, prepare
from tilewright.compiler.neighbourhood import neighbourhood, shape_digest, structural_hash, tensor_names
from tilewright.compiler.plan import ChooseProduct, Kernel, Plan
from tilewright.compiler.timer import TURNS, Timer, content, own_kernels, own_of_each
from tilewright.dataclass import dataclass
from tilewright.decision import FUSED, Cost, Decision, Refusal
from tilewright.errors import CompileError, InvalidArgument
from tilewright.expr import serialize
from tilewright.expr.core import Compute
from tilewright.expr.graph import Graph
from tilewright.fields import Readable, count, optional, record, required, string
from tilewright.instruction.model import Hierarchy, hierarchy
from tilewright.instruction.products import MappedProduct, ProductKey
from tilewright.instruction.search import Candidate, Choice, search
from tilewright.machine import host
from tilewright.machine.description import Cpu, Machine
from tilewright.operator.product_point import ProductPoint
from tilewright.operator.product_space import ProductSpace
from tilewright.options import Options
from tilewright.runtime.cache import Cache, cache_key
from tilewright.runtime.loader import missing_features, same_platform
from tilewright.runtime.module import Module
from tilewright.tiles.product import product_of

DRAWN = 32  # points drawn for one that is measured: the one that is predicted to be best
SAMPLE = 8  # points by which mappings are ranked where there are more of them than trials
LEAST_GAIN = 0.02  # of a product's time: less is not told from noise, and the rules' choice stays
SEED = 0
RULES = "as the rules say"
VERSION = "2"  # of stored results

_log = logging.getLogger(__name__)
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Outcome(Readable):
    """What was found about one product: how it runs, None for the rules' own choice, and why; and whether it is one
    kernel with the product before it, where that was timed.
    """

    decision: Decision = required(record(Decision))
    choice: Choice | None = optional(record(Choice))
    chain: TimedChain | None = optional(record(TimedChain))


@dataclass(frozen=True, kw_only=True)
class StoredOutcome(Outcome):
    """An outcome as a plan notes it: for so many threads of the machine with that digest."""

    machine: str = required(string)
    threads: int = required(count)


@dataclass(frozen=True)
class Searched:
    """The outcomes of a graph by product, for so many threads of the machine with that digest."""

    outcomes: Mapping[str, Outcome]
    machine: str
    threads: int

    @property
    def choose(self) -> ChooseProduct:
        return preferring(self.outcomes)

    def note(self, plan: Plan) -> None:
        """Add the outcomes to a plan, as data of its products, and as decisions where the plan follows them.

        Options may decide otherwise, and a kernel of several products has mappings of its own.
        """
        fused = {each.subject for each in fusions(plan.decisions) if each.chosen.startswith(FUSED)}
        for name, outcome in self.outcomes.items():
            if name in plan.products:
                choice, chain = outcome.choice, outcome.chain
                follows = choice is None or _runs(plan, name, choice)
                noted = outcome if follows else _dropped(outcome, "the kernel that runs offers it", "")
                plan.decisions.append(noted.decision)
                if chain is not None and chain.fused == (chain.fusion in fused):
                    plan.decisions.append(chain.decision)
                made = StoredOutcome(
                    machine=self.machine, threads=self.threads, decision=outcome.decision, choice=outcome.choice,
                    chain=chain,
                )  # fmt: skip
                plan.products[name]["search"] = made.to_json()


def search_products(graph: Graph, machine: Cpu, threads: int, options: Options) -> Searched:
    """Choose mapping and schedule of every product of a graph, by measurements on this machine or from the cache.

    Raises InvalidArgument where code for `machine` does not run here.
    """
    _check_runs_here(machine)
    options = replace(options, trees={})  # they take the place of what is found, and name kernels that parts have not
    kept = _Kept(machine, threads, options)
    prepared = prepare(graph, options.disable).graph
    what = json.dumps([serialize.to_json(prepared), shape_digest(prepared)], sort_keys=True)

    def searched() -> dict[str, Any]:
        found = _Search(graph, machine, threads, options, kept).run()
        return {name: outcome.to_json() for name, outcome in found.items()}

    outcomes = kept.remembered(
        "graph", what, searched, lambda stored: {name: Outcome.from_json(value) for name, value in stored.items()}
    )
    return Searched(outcomes, machine.digest(), threads)


def searched_before(products: Mapping[str, Any], machine: Machine, threads: int, where: str) -> Searched | None:
    """The outcomes that are stored with the products of a compiled plan, if this machine and thread count had them.

    Raises InvalidFile, which names `where`, for an outcome that is malformed.
    """
    digest = machine.digest()
    outcomes = {
        name: StoredOutcome.from_json(product["search"], f"{where}, plan.json, search of {name}")
        for name, product in products.items()
        if "search" in product
    }
    if not outcomes or any((each.machine, each.threads) != (digest, threads) for each in outcomes.values()):
        return None
    return Searched(outcomes, digest, threads)


def preferring(outcomes: Mapping[str, Outcome]) -> ChooseProduct:
    """Products run as was found where that is offered, by the names of their nodes; others by the rules."""
    choices = {name: each.choice for name, each in outcomes.items() if each.choice is not None}
    chains = (each.chain for each in outcomes.values() if each.chain is not None)
    taken: set[str] = set()

    def mapping(node: Compute, found: Sequence[MappedProduct]) -> MappedProduct | None:
        choice = choices.get(node.name)
        chosen = next((each for each in found if choice is not None and each.key == choice.mapping), None)
        if chosen is not None:
            taken.add(node.name)
        return chosen

    def point(space: ProductSpace, node: str) -> ProductPoint | None:
        chosen = choices[node].point if node in taken else None
        return chosen if chosen in space.points else None

    return ChooseProduct(mapping, point, chains=frozenset(chain.fusion for chain in chains if chain.fused))


def _check_runs_here(machine: Cpu) -> None:
    lacking = missing_features(machine.features)
    if not same_platform(machine.llvm.triple) or lacking:
        what = f"lacks {', '.join(lacking)}" if lacking else f"is no {machine.llvm.triple}"
        raise InvalidArgument(f"code for {machine.name} cannot be timed here: this machine {what}", where="search",
                              help="search on a machine that runs it, or search=\"rules\"")  # fmt: skip


# What is kept ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    """Results of searches in the compile cache, under everything that they depend on, and for now in memory."""

    machine: Cpu
    threads: int
    options: Options
    _made: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _common(self) -> dict[str, str | bytes]:
        from tilewright.runtime.calibration_file import identity

        options = self.options
        return {
            "search": VERSION,
            "compiler": compiler_digest(),
            "machine": self.machine.digest(),
            "processor": identity(host().digest()),
            "threads": str(self.threads),
            "options": repr((options.disable, options.trials, options.fuse)),
            "intrinsics": "" if options.intrinsics is None else repr(list(options.intrinsics)),
        }

    def remembered(self, kind: str, what: str, make: Callable[[], Any], read: Callable[[Any], _Read]) -> _Read:
        """What `read` makes of the JSON value that was stored for `what`, or else is made now."""
        cache, key = Cache.from_options(self.options), cache_key({**self._common, "kind": kind, "what": what})
        if key not in self._made and (found := cache.get(key)) is not None:
            try:
                stored = json.loads(bytes(found["search.json"]))
                read(stored)
                self._made[key] = stored
            except (LookupError, TypeError, ValueError, AttributeError, RecursionError, CompileError) as error:
                _log.info("a result of a search that cannot be read is found again: %r", error)
                cache.drop(key)
        if key not in self._made:
            self._made[key] = make()
            cache.put(key, {"search.json": json.dumps(self._made[key]).encode()})
        return read(self._made[key])


# The search -----------------------------------------------------------------------------------------------------------


@dataclass
class _Search:
    """One graph on its way to its outcomes."""

    graph: Graph
    machine: Cpu
    threads: int
    options: Options
    kept: _Kept

    def run(self) -> dict[str, Outcome]:
        self.timer = Timer(self.machine, self.threads, self.options)
        rules = self._plan(self.graph)
        parts, found = list(rules.computed.explicit().parts()), dict[str, Outcome]()
        for number, node in enumerate(rules.products, 1):
            inside = next(each for each in parts if node in each.producers())
            part = neighbourhood(inside, node, rules.products)
            _log.info("search: product %d of %d, %s", number, len(rules.products), node)
            outcome = self.kept.remembered(
                "product",
                structural_hash(part, node),
                lambda: self._product(part, node),  # noqa: B023
                lambda stored: _of_alike(stored, part, node),  # noqa: B023
            )
            if outcome is not None:
                found[node] = outcome
        return self._with_chains(self._worth_it(rules, found))

    def _with_chains(self, outcomes: dict[str, Outcome]) -> dict[str, Outcome]:
        """The outcomes with what was found about chains that are predicted to pay as one kernel."""
        if self.options.fuse == "never":
            return outcomes
        by_rules = replace(self.options, search="rules", trials=Options.trials)
        predicted = make_plan(self.graph, self.machine, self.threads, by_rules)
        choose = preferring(outcomes)
        found = timed_chains(
            predicted, lambda chains: self._plan(self.graph, replace(choose, chains=chains)), self.timer
        )
        alone = {name: Outcome(Decision(f"search of {name}", RULES, "nothing else runs")) for name in found}
        return outcomes | {name: replace({**alone, **outcomes}[name], chain=chain) for name, chain in found.items()}

    @cached_property
    def model(self) -> Hierarchy:
        """Rates as measured where the machine is the host; measured now if they never were."""
        from tilewright.runtime.calibrate import BusyMachine, calibrated

        machine = self.machine
        if machine.name == host().name:
            try:
                machine = calibrated(self.options)
            except BusyMachine as error:
                _log.warning("predictions use the rates of the description: %s", error.message)
        return hierarchy(machine, cores=min(self.threads, self.machine.cores))

    def _plan(self, graph: Graph, choose: ChooseProduct | None = None) -> Plan:
        return make_plan(graph, self.machine, self.threads, self.options, choose)

    def _product(self, part: Graph, node: str) -> dict[str, Any]:
        """Search one product in its neighbourhood: the outcome, if there was a choice, and the names it is told in."""
        outcome = self._outcome(part, node)
        return {"outcome": None if outcome is None else outcome.to_json(), "names": tensor_names(part), "node": node}

    def _outcome(self, part: Graph, node: str) -> Outcome | None:
        """None where the product has no mapping to choose in this neighbourhood."""
        rules = self._plan(part)
        if node not in rules.products:
            return None
        refused: list[Refusal] = []
        among = candidates(part, node, self.machine, self.model, self.options, threads=self.threads, refused=refused)
        others = [kernel for kernel in rules.kernels if kernel not in own_kernels(rules, node)]
        among = self._fitting(among, self._moved(rules, others), refused)
        if not among:
            return None
        timed = _Timed(self, part, node, rules, others)
        first = default_choice(part, node, self.machine, among, self.options, self.threads)
        found = search(
            among, timed, subject=f"search of {node}", trials=DRAWN * self.options.trials, group=DRAWN, ratio=1 / DRAWN,
            first=first, seed=SEED,
        )  # fmt: skip
        decision = replace(found.decision, refused=(*found.decision.refused, *timed.refused, *refused))
        if found.best.seconds == inf:
            return Outcome(Decision(decision.subject, RULES, "nothing else runs", refused=decision.refused))
        by_rule, best = timed.in_turns(found.best.choice)
        compared = f"in turns {best:.3g} s, as the rules say {by_rule:.3g} s"
        if best > (1 - LEAST_GAIN) * by_rule:
            reason = f"no other is {LEAST_GAIN:.0%} faster; {compared}"
            rule = f"{LEAST_GAIN:.0%} faster than the rules' choice"
            slower = Refusal(decision.chosen, rule, decision.reason, Cost(seconds=best))
            refused = [slower, *decision.refused]
            kept = Decision(decision.subject, RULES, reason, refused=tuple(refused), cost=Cost(seconds=by_rule))
            return Outcome(kept)
        return Outcome(replace(decision, reason=f"{decision.reason}; {compared}"), found.best.choice)

    def _moved(self, plan: Plan, kernels: Sequence[Kernel]) -> float:
        """Seconds that the model adds to every point for copies of the neighbours."""
        copies = [each for each in kernels if product_of(each.scheduled) is None]
        sizes = (sum(plan.stored[name].bytes for name in each.arguments) for each in copies)
        return sum(map(self.model.copy_seconds, sizes))

    def _fitting(self, among: Sequence[Candidate], neighbours: float, refused: list[Refusal]) -> list[Candidate]:
        """The mappings, predictions without what they share; the best by prediction where there are too many."""

        def own(candidate: Candidate) -> Callable[[ProductPoint], float]:
            def predict(point: ProductPoint) -> float:
                try:
                    return max(candidate.predict(point) - neighbours, 0.0)
                except CompileError:
                    return inf

            return predict

        found = [replace(each, predict=own(each)) for each in among if each.points]
        found = [each for each in found if any(each.predict(point) < inf for point in each.points)]
        if len(found) <= self.options.trials:
            return found
        numbers = np.random.default_rng(SEED)
        best = {}
        for each in found:
            drawn = numbers.choice(len(each.points), min(SAMPLE, len(each.points)), replace=False)
            best[each.mapping] = min(each.predict(each.points[int(number)]) for number in drawn)
        found.sort(key=lambda each: best[each.mapping])
        most = self.options.trials
        rule = f"among the {most} best by prediction"
        refused += [Refusal(str(each.mapping), rule, f"{best[each.mapping]:.3g} s") for each in found[most:]]
        return found[:most]

    def _worth_it(self, rules: Plan, found: Mapping[str, Outcome]) -> dict[str, Outcome]:
        """The outcomes without the choices that make the whole graph slower, or that it does not offer."""
        outcomes = dict(found)
        by_rule: Module | None = None
        while chosen := {name: each.choice for name, each in outcomes.items() if each.choice is not None}:
            plan = self._plan(self.graph, preferring(outcomes))
            strange = [name for name in chosen if not _runs(plan, name, chosen[name])]
            if strange:
                outcomes |= {name: _dropped(outcomes[name], "the whole graph offers it", "") for name in strange}
                continue
            by_rule = by_rule or self.timer.module(rules, rules.kernels)
            modules = (by_rule, self.timer.module(plan, plan.kernels))
            turns = [[self.timer.times(module) for module in modules] for _ in range(TURNS)]
            slow, fast = ([min(each) for each in zip(*(turn[i] for turn in turns), strict=True)] for i in range(2))
            before, after = sum(slow), sum(fast)
            _log.info("search: the whole graph takes %.3g s, as the rules say %.3g s", after, before)
            if after <= before:
                break
            values = f"{after:.3g} s instead of {before:.3g} s"
            worse = [n for n in chosen if _seconds(plan, n, fast) > _seconds(rules, n, slow)] or list(chosen)
            outcomes |= {name: _dropped(outcomes[name], "the whole graph is not slower", values) for name in worse}
        return outcomes


@dataclass
class _Timed:
    """Seconds of a choice in the neighbourhood of its product: of all kernels but the neighbours' own by the rules."""

    search: _Search
    part: Graph
    node: str
    by_rule: Plan
    others: Sequence[Kernel]
    refused: list[Refusal] = field(default_factory=list)
    met: set[Choice] = field(default_factory=set)

    def __post_init__(self) -> None:
        timer = self.search.timer
        timer.total(self.by_rule)
        self._neighbours = timer.of(self.by_rule, self.others)
        self._unchanged = {content(self.by_rule, kernel) for kernel in self.by_rule.kernels}

    def __call__(self, choice: Choice) -> float:
        try:
            plan = self.search._plan(self.part, preferring({self.node: _chosen(choice)}))
        except CompileError as error:
            self.refused.append(Refusal(str(choice), error.code, error.message))
            return inf
        if choice in self.met:  # it is among the best: another timing is wanted
            self.search.timer.forget(plan, but=self._unchanged)
        self.met.add(choice)
        return self._seconds(plan, self.search.timer.total(plan))

    def in_turns(self, choice: Choice) -> tuple[float, float]:
        """Seconds of what the rules choose and of a choice, timed in turns: the kernels in which they differ."""
        timer, plan = self.search.timer, self.search._plan(self.part, preferring({self.node: _chosen(choice)}))
        plans = self.by_rule, plan
        shared = [timer.total(each) - timer.of(each, own) for each, own in zip(plans, own_of_each(plans), strict=True)]
        rules, other = timer.in_turns(*plans)
        return self._seconds(self.by_rule, shared[0] + rules), self._seconds(plan, shared[1] + other)

    def _seconds(self, plan: Plan, total: float) -> float:
        """Without the neighbours; where they become faster by a choice, that is not to its credit."""
        return max(total - self._neighbours, self.search.timer.of(plan, own_kernels(plan, self.node)))


def _chosen(choice: Choice) -> Outcome:
    """What has a product run by a choice, before anything is known about it."""
    return Outcome(Decision("search", str(choice), "tried"), choice)


def _of_alike(stored: Mapping[str, Any], part: Graph, node: str) -> Outcome | None:
    """The outcome of a product in a neighbourhood of the same structure, in its names."""
    if stored["outcome"] is None:
        return None
    outcome, other = Outcome.from_json(stored["outcome"]), stored["node"]
    if other == node and stored["names"] == tensor_names(part):
        return outcome
    choice = outcome.choice
    if choice is not None:
        names = dict(zip(stored["names"], tensor_names(part), strict=True))
        key = replace(choice.mapping, vector=names.get(choice.mapping.vector, choice.mapping.vector))
        choice = replace(choice, mapping=key)
    decision = replace(outcome.decision, subject=f"search of {node}", reason=f"{outcome.decision.reason}, for {other}")
    return Outcome(decision if choice is None else replace(decision, chosen=str(choice)), choice)


def _runs(plan: Plan, node: str, choice: Choice) -> bool:
    return node in plan.products and ProductKey.of(plan.products[node]).loops == choice.mapping.loops


def _seconds(plan: Plan, node: str, seconds: Sequence[float]) -> float:
    """The part of a plan's time that is a product's own."""
    own = {kernel.name for kernel in own_kernels(plan, node)}
    return sum(each for kernel, each in zip(plan.kernels, seconds, strict=True) if kernel.name in own)


def _dropped(outcome: Outcome, rule: str, values: str) -> Outcome:
    """The rules' choice stays after all."""
    old = outcome.decision
    refused = (Refusal(old.chosen, rule, values), *old.refused)
    return Outcome(Decision(old.subject, RULES, rule, old.chosen, old.reason, refused))
