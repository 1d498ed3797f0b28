"""The chain solver: which order, policy and tiles a chain of operators has at every memory level, and whether to fuse.

Spec 1, sections 3.14 and 3.15. Orders that R1 allows, with every policy and the loops that it needs whole, are solved
for tiles at the level at which they fuse; the best of them at all levels. The result is ranked by predicted time and
compared with the same operators apart, each with its own best plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Protocol

from tilewright.collection import paused_collection
from tilewright.dataclass import dataclass
from tilewright.decision import Cost, Decision, Refusal
from tilewright.errors import CompileError
from tilewright.expr.core import Compute
from tilewright.expr.intensity import is_compute_intensive
from tilewright.graph.chain.candidates import Candidate, candidates
from tilewright.graph.chain.halo import RECOMPUTE, Halo
from tilewright.graph.chain.hierarchy import Hierarchy
from tilewright.graph.chain.levels import Known, Levels, memory_of, solve_levels
from tilewright.graph.chain.loops import Chain, NotAChain, chain_of
from tilewright.graph.chain.orders import legal_orders
from tilewright.graph.chain.softmax import Rewrite, deferred, online
from tilewright.graph.chain.tilings import Memory, Tiling, best_tiling, lower_bound
from tilewright.graph.chain.trees import tree_of
from tilewright.tiles.tree import TileTree

BEST = 8  #: plans that are returned


class NoTiling(CompileError):
    """No memory level on chip holds even the smallest tiles of a chain."""

    code = "no-tiling"


class Quanta(Protocol):
    """The smallest tile per loop that an instruction runs; level 3 has an implementation."""

    def quanta(self, compute: Compute) -> Mapping[str, int]:
        """The smallest tile of each loop of a compute, by the name of its axis; 1 for a loop that is not listed."""
        ...


@dataclass(frozen=True)
class ChainPlan:
    """One way to run a chain as one kernel (spec 1, section 7).

    `nodes` are the expressions of `tree`, in order. `tiles`, `dv` and `mu` are by the name of a level on chip: tile
    sizes by loop, elements by tensor that move into or out of it (outputs count in one direction), elements held at
    once. `seconds` are of each level, with ``compute``; `time` is the slowest with the start of a kernel. `rewrite`
    says how a softmax inside is computed.
    """

    nodes: tuple[str, ...]
    tree: TileTree
    order: tuple[str, ...]
    tiles: Mapping[str, Mapping[str, int]]
    policy: str
    fused_in: str
    dv: Mapping[str, Mapping[str, int]]
    mu: Mapping[str, int]
    seconds: Mapping[str, float]
    time: float
    flops: float
    rewrite: Rewrite
    recomputes: bool
    chain: Chain
    fuse: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """Order, policy and level in words."""
        softmax = f", {self.rewrite} softmax" if self.rewrite else ""
        return f"order {' '.join(self.order)}, {self.policy}, links in {self.fused_in}{softmax}"

    @property
    def bound(self) -> str:
        """What takes the time: a level, or compute."""
        return max(self.seconds, key=lambda name: self.seconds[name])


@dataclass(frozen=True)
class Apart:
    """The operators of a chain as kernels of their own, with their predicted time."""

    kernels: tuple[tuple[str, float], ...]
    dv: Mapping[str, int]

    @property
    def time(self) -> float:
        """Seconds of all kernels."""
        return sum(seconds for _, seconds in self.kernels)


@dataclass(frozen=True)
class Solution:
    """The best plans, the operators apart, and the decision between them."""

    plans: tuple[ChainPlan, ...]
    apart: Apart
    decision: Decision

    @property
    def best(self) -> ChainPlan:
        """The plan with the least predicted time."""
        return self.plans[0]


@paused_collection()
def solve(
    computes: Sequence[Compute],
    hierarchy: Hierarchy,
    quanta: Quanta | None = None,
    *,
    best: int = BEST,
    softmax: Collection[Rewrite] = ("", "online"),
    halo: Collection[Halo] = RECOMPUTE,
    double_buffer: bool = False,
) -> Solution:
    """Plan a chain of computes in topological order for a machine.

    `softmax` are the ways in which one between two products may be computed, `halo` what may happen to rows of a first
    convolution that two blocks of the second one need. Raises NotAChain where the computes are no
    chain of two products or more, NoTiling where no level holds the smallest tiles.
    """
    chain = chain_of(computes)
    if len(chain.operators) < 2:
        raise NotAChain(
            f"{chain.operators[0].name} is the only product",
            where=chain.operators[0].name,
            help="a chain has two or more",
        )
    found: list[tuple[Rewrite, Levels]] = []
    refused: list[Refusal] = []
    for rewrite, each in _variants(computes, chain, softmax):
        solved = _solved(each, hierarchy, quanta, halo, double_buffer, best, refused)
        found += ((rewrite, levels) for levels in solved)
    if not found:
        raise _too_small(chain, hierarchy, quanta)
    found.sort(key=lambda each: (each[1].slowest, sum(each[1].seconds), bool(each[0])))
    apart = cost_apart(computes, hierarchy, quanta)
    plans = tuple(_judged(plan, apart) for plan in _distinct(found, hierarchy, best))
    refused = list(dict.fromkeys(refused))
    return Solution(plans, apart, _decision(plans, apart, refused))


def _distinct(found: Sequence[tuple[Rewrite, Levels]], hierarchy: Hierarchy, best: int) -> list[ChainPlan]:
    """The first plans with trees of their own: candidates whose loops have one trip may be the same program."""
    plans: dict[tuple[Rewrite, TileTree], ChainPlan] = {}
    for rewrite, levels in found:
        if len(plans) < best:
            plan = _plan(levels, rewrite, hierarchy)
            plans.setdefault((rewrite, plan.tree), plan)
    return list(plans.values())


def _variants(computes: Sequence[Compute], chain: Chain, softmax: Collection[Rewrite]) -> list[tuple[Rewrite, Chain]]:
    found: list[tuple[Rewrite, Chain]] = []
    other = deferred(computes) if set(softmax) - {""} else None
    if "" in softmax or other is None:
        found.append(("", chain))
    if other is not None:
        rewritten = chain_of(other)
        variants: tuple[tuple[Rewrite, Chain], ...] = (("deferred", rewritten), ("online", online(rewritten)))
        found += [variant for variant in variants if variant[0] in softmax]
    return found


def smallest_tiles(chain: Chain, quanta: Quanta | None) -> dict[str, int]:
    """The quantum of each loop: the largest that an operator asks for."""
    found: dict[str, int] = {}
    if quanta is None:
        return found
    for operator in chain.operators:
        compute = chain.problem.compute(operator.name)
        for axis, size in quanta.quanta(compute).items():
            name = chain.problem.names[operator.name, axis]
            if (operator.name, axis) not in chain.derived and name in chain.extents:
                found[name] = max(size, found.get(name, 1))
    return found


# Plans ----------------------------------------------------------------------------------------------------------------


def _solved(
    chain: Chain, hierarchy: Hierarchy, quanta: Quanta | None, halo: Collection[Halo], double_buffer: bool, best: int,
    refused: list[Refusal],
) -> list[Levels]:  # fmt: skip
    """The best candidates of one chain at every level at which it may fuse, with their tiles at all levels."""
    smallest = smallest_tiles(chain, quanta)
    orders, wrong = legal_orders(chain)
    if wrong:
        order, reason = wrong[0]
        shown = f"{reason}; {len(wrong)} orders in all"
        refused.append(Refusal(f"order {' '.join(order)}", "R1: a link is complete before it is read", shown))
    every = candidates(chain, orders, double_buffer=double_buffer, halo=halo)
    known: Known = {}
    found: list[Levels] = []
    for level, store in enumerate(hierarchy.levels):
        if level == 0 or not store.fuses or not store.capacity_bytes:
            continue
        few = solve_level(every, memory_of(hierarchy, level, smallest, bool(smallest)), best)
        if not few:
            values = f"{store.capacity_bytes} bytes do not hold the smallest tiles"
            refused.append(Refusal(f"links in {store.name}", "MU fits MC", values))
        solved = [
            solve_levels(each, hierarchy, level, smallest, bool(smallest), double_buffer, tiling, known)
            for each, tiling in few
        ]
        found += [each for each in solved if each is not None]
    return found


def solve_level(every: Sequence[Candidate], memory: Memory, best: int = BEST) -> list[tuple[Candidate, Tiling]]:
    """The best candidates for one memory level with their tiles, least time first, then least volume.

    What a bound excludes is not solved. Of candidates that are one program, since loops have one trip, the first stays.
    """
    ranked: dict[object, tuple[float, int, int, Candidate, Tiling]] = {}
    worst = inf  # of the best ones so far
    for number, candidate in enumerate(every):
        if worst < inf and len(candidate.moves.free) > 3 and lower_bound(candidate, memory) > worst:
            continue
        tiling = best_tiling(candidate, memory)
        if tiling is None or tiling.seconds > worst:
            continue
        ranked.setdefault(_program(candidate, tiling), (tiling.seconds, tiling.volume, number, candidate, tiling))
        if len(ranked) > best:
            del ranked[max(ranked, key=lambda key: ranked[key][:3])]
        if len(ranked) == best:
            worst = max(seconds for seconds, *_ in ranked.values())
    return [(candidate, tiling) for *_, candidate, tiling in sorted(ranked.values(), key=lambda each: each[:3])]


def _program(candidate: Candidate, tiling: Tiling) -> object:
    """Equal for candidates with the same loops of several trips, tiles, and tensors that stay over such loops."""
    extents = candidate.moves.chain.extents
    order = tuple(loop for loop in candidate.order if tiling.tile[loop] < extents[loop])
    stays = frozenset((tensor, loop) for tensor, loop in candidate.moves.stays.items() if loop in order)
    halo = candidate.halo if candidate.halo in order else ""
    return order, tuple(sorted(tiling.tile.items())), stays, halo


def _plan(levels: Levels, rewrite: Rewrite, hierarchy: Hierarchy) -> ChainPlan:
    chain = levels.candidate.moves.chain
    names = [store.name for store in hierarchy.levels[1:]]
    return ChainPlan(
        nodes=tuple(compute.name for compute in chain.problem.computes),
        tree=tree_of(levels, hierarchy),
        order=levels.candidate.order,
        tiles=dict(zip(names, levels.tiles, strict=True)),
        policy=levels.candidate.policy,
        fused_in=names[levels.fused - 1],
        dv=dict(zip(names, levels.dv, strict=True)),
        mu=dict(zip(names, levels.mu, strict=True)),
        seconds=dict(zip([*names, "compute"], levels.seconds, strict=True)),
        time=levels.slowest + hierarchy.start_seconds,
        flops=levels.flops,
        rewrite=rewrite,
        recomputes=levels.recomputes,
        chain=chain,
    )


def _too_small(chain: Chain, hierarchy: Hierarchy, quanta: Quanta | None) -> NoTiling:
    smallest = smallest_tiles(chain, quanta)
    largest = max(store.capacity_bytes or 0 for store in hierarchy.levels if store.fuses)
    tiles = ", ".join(f"{loop} {min(size, chain.extents[loop])}" for loop, size in smallest.items()) or "1 everywhere"
    return NoTiling(
        f"{hierarchy.machine} holds {largest} bytes, which is less than the smallest tiles take: {tiles}",
        where=" + ".join(operator.name for operator in chain.operators),
        help="a machine with a larger memory on chip, or smaller quanta",
    )


# Apart ----------------------------------------------------------------------------------------------------------------


def cost_apart(computes: Sequence[Compute], hierarchy: Hierarchy, quanta: Quanta | None = None) -> Apart:
    """Every product as a kernel of its own with the maps behind it; reductions between products are one kernel more.

    A link that the outermost level on chip holds whole does not move off chip.
    """
    kernels: list[tuple[str, float]] = []
    moved: dict[str, int] = {}
    cached = hierarchy.levels[1].cached_bytes
    groups = _kernels(computes)
    written = {compute.name: compute.output.size_bytes for group in groups for compute in group}
    for group in groups:
        if is_compute_intensive(group[0]):
            plan = solve_product(group, hierarchy, quanta)
            traffic, seconds = plan.dv[0], list(plan.seconds)
            sizes = {access.tensor: access.bytes for o in plan.candidate.moves.chain.operators for access in o.accesses}
        else:
            traffic, sizes = _streamed(group)
            seconds = [0.0] * (len(hierarchy.levels) - 1) + [0.0]
        away = {
            name: count for name, count in traffic.items() if written.get(name, inf) > cached or _leaves(name, groups)
        }
        seconds[0] = sum(count * sizes[name] for name, count in away.items()) / hierarchy.levels[0].bytes_per_second
        for name, count in away.items():
            moved[name] = moved.get(name, 0) + count
        kernels.append((group[0].name, max(seconds) + hierarchy.start_seconds))
    return Apart(tuple(kernels), moved)


def _leaves(name: str, groups: Sequence[Sequence[Compute]]) -> bool:
    """Whether a tensor is read by no kernel here."""
    return not any(tensor.name == name for group in groups for compute in group for tensor in compute.inputs())


def _kernels(computes: Sequence[Compute]) -> list[list[Compute]]:
    """Products with the maps behind them, and rows: reductions with what follows them."""
    groups: list[list[Compute]] = []
    for compute in computes:
        product = is_compute_intensive(compute)
        if product or not groups or (compute.reduce and is_compute_intensive(groups[-1][0])):
            groups.append([])
        groups[-1].append(compute)
    return groups


def solve_product(group: Sequence[Compute], hierarchy: Hierarchy, quanta: Quanta | None = None) -> Levels:
    """The best tiles of one product, with the maps behind it, at all levels.

    Raises NoTiling where the outermost level on chip does not hold the smallest ones.
    """
    chain = chain_of(group)
    smallest = smallest_tiles(chain, quanta)
    orders, _ = legal_orders(chain)
    few = solve_level(candidates(chain, orders), memory_of(hierarchy, 1, smallest, bool(smallest)), 1)
    solved = solve_levels(few[0][0], hierarchy, 1, smallest, bool(smallest), tiling=few[0][1]) if few else None
    if solved is None:
        raise _too_small(chain, hierarchy, quanta)
    return solved


def _streamed(group: Sequence[Compute]) -> tuple[dict[str, int], dict[str, int]]:
    """Elements and their bytes of what a row kernel reads and writes: each tensor once."""
    inside = {compute.name for compute in group}
    tensors = {tensor.name: tensor for c in group for tensor in c.inputs() if tensor.name not in inside}
    tensors[group[-1].name] = group[-1].output
    sizes = {name: tensor.size_bytes // max(1, tensor.size) for name, tensor in tensors.items()}
    return {name: tensor.size for name, tensor in tensors.items()}, sizes


# Decision -------------------------------------------------------------------------------------------------------------


def _judged(plan: ChainPlan, apart: Apart) -> ChainPlan:
    fuse = plan.time < apart.time
    if fuse:
        reason = f"{_us(plan.time)} fused, {_us(apart.time)} apart; bound by {plan.bound}"
    elif plan.bound == "compute":
        reason = f"{_us(plan.time)} fused, {_us(apart.time)} apart: bound by compute, there is no traffic to save"
    else:
        reason = (
            f"{_us(plan.time)} fused, {_us(apart.time)} apart: its tiles move more into {plan.bound} than fusion saves"
        )
    return replace(plan, fuse=fuse, reason=reason)


def _decision(plans: Sequence[ChainPlan], apart: Apart, refused: Sequence[Refusal]) -> Decision:
    first = plans[0]
    subject = f"fusion of {' + '.join(operator.name for operator in first.chain.operators)}"
    if not first.fuse:
        return Decision(
            subject, "apart", first.reason, first.name, f"{_us(first.time)}", tuple(refused),
            Cost(seconds=apart.time), Cost(seconds=first.time),
        )  # fmt: skip
    fused = [plan for plan in plans[1:] if plan.time < apart.time]
    runner = (fused[0].name, fused[0].time) if fused else ("apart", apart.time)
    others = [] if not fused else [Refusal("apart", "predicted time", f"{_us(apart.time)}", Cost(seconds=apart.time))]
    return Decision(
        subject, first.name, first.reason, runner[0], f"{_us(runner[1])}", (*others, *refused),
        Cost(seconds=first.time), Cost(seconds=runner[1]),
    )  # fmt: skip


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
