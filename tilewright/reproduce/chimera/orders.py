"""Block orders of chains: which there are, which the formulas prefer, and what the solver chooses for published chains.

The chain of two products is that of the publication, ``C[m, l] += A[m, k] * B[k, l]; E[m, n] += C[m, l] * D[l, n]``.
Published times are of its code on three machines beside other compilers and libraries. Ours are predicted, of a fused
kernel beside the same solver's kernels apart: what is compared is the direction, and which chains gain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import exp, inf, log
from typing import Any, NamedTuple

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.expr.core import Compute
from tilewright.expr.dtypes import DType
from tilewright.expr.text import parse_graph
from tilewright.fields import Readable, choice, rate, record, required, several, string, word
from tilewright.graph.chain.candidates import Candidate
from tilewright.graph.chain.closed_form import TwoProducts
from tilewright.graph.chain.hierarchy import hierarchy_of
from tilewright.graph.chain.loops import Chain, chain_of
from tilewright.graph.chain.movement import chain_dm, plan_moves
from tilewright.graph.chain.orders import Order, all_orders, incomplete
from tilewright.graph.chain.solve import solve
from tilewright.graph.chain.tilings import Memory, Tiling, best_tiling
from tilewright.graph.chain.workloads import CONV_CHAINS, GEMM_CHAINS, two_products, workload
from tilewright.instruction.quanta import MachineQuanta
from tilewright.machine.registry import resolve
from tilewright.reproduce.claim import NOT_STATED, Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Bars, Curves, Picture

CHAINS = (
    *(f"G{number}" for number in range(1, len(GEMM_CHAINS) + 1)),
    *(f"C{number}" for number in range(1, len(CONV_CHAINS) + 1)),
)
EXTENT, CAPACITY, ALPHA = 2048, 2**19, 16  # of the publication's example: elements, and the smallest tile
CAPACITIES = tuple(2**power for power in range(12, 23))
TRIPS = {"m": 3, "n": 2, "k": 5, "l": 4}  # steps for which orders are listed
TENSORS = {"A": "mk", "B": "kl", "D": "ln", "E": "mn"}
NO_GAIN = 1.05  # predicted times that are as close are equal
GEMM_SECONDS, CONV_SECONDS = 1.0, 60.0  # bars of the solver's time


class Group(NamedTuple):
    """Chains of one kind on one machine, and what was published of them."""

    claim: str
    machine: str
    kind: str
    dtype: DType
    title: str
    published: str


GROUPS = (
    Group("spec1-E1", "xeon-gold-6240", "gemm", "f32", "batch GEMM chains", "1.40x Ansor, 2.62x PyTorch"),
    Group("spec1-E2", "xeon-gold-6240", "softmax", "f32", "batch GEMM chains, softmax", "2.29x Ansor, 1.62x PyTorch"),
    Group("spec1-E3", "xeon-gold-6240", "conv", "f32", "convolution chains", "1.94x Ansor, 2.38x Relay"),
    Group("spec1-E4", "nvidia-a100-sxm4-40gb", "gemm", "f16", "batch GEMM chains", "1.33x Ansor, 2.77x PyTorch"),
    Group("spec1-E6", "nvidia-a100-sxm4-40gb", "softmax", "f16", "batch GEMM chains, softmax",
          "1.64x Ansor, 2.74x PyTorch"),
    Group("spec1-E7", "nvidia-a100-sxm4-40gb", "conv", "f16", "convolution chains", "2.01x TensorRT, 5.79x PyTorch"),
    Group("spec1-E8", "ascend-910", "gemm, batch 1", "f16", "GEMM chains, batch 1", "1.14x AKG, 2.39x TBE"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Plan(Readable):
    """What the solver chooses for a chain on a machine: times are predicted, but for its own CPU time."""

    claim: str = required(choice(*(group.claim for group in GROUPS)))
    chain: str = required(choice(*CHAINS))
    order: str = required(string)
    policy: str = required(string)
    fused_in: str = required(word)
    bound: str = required(word)
    seconds: float = required(rate)
    apart_seconds: float = required(rate)
    solver_seconds: float = required(rate)

    @property
    def gain(self) -> float:
        """How many times longer the kernels apart take."""
        return self.apart_seconds / self.seconds


@dataclass(frozen=True, kw_only=True)
class Report(Readable):
    """The plans of all chains; figures of orders are computed when they are asked for."""

    plans: tuple[Plan, ...] = required(several(record(Plan), 1))

    @classmethod
    def prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Claims follow from the plans."""
        return {name: each for name, each in value.items() if name != "claims"}

    def to_json(self) -> dict[str, Any]:
        return {**Readable.to_json(self), "claims": [claim.to_json() for claim in self.claims]}

    def of(self, group: Group) -> tuple[Plan, ...]:
        return tuple(plan for plan in self.plans if plan.claim == group.claim)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Those that have plans here."""
        return tuple(group for group in GROUPS if self.of(group))

    def gain(self, group: Group) -> float:
        """The geometric mean of the gains of a group."""
        return exp(sum(log(plan.gain) for plan in self.of(group)) / len(self.of(group)))

    # Shown ------------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[Table, ...]:
        return _table_of_orders(), _table_of_best(), _table_of_sizes(), *map(self._table_of_plans, self.groups)

    def _table_of_plans(self, group: Group) -> Table:
        columns = {"chain": "left", "order": "left", "policy": "left", "links in": "left", "us": "right",
                   "apart, us": "right", "gain": "right", "bound by": "left", "solved in": "right"}  # fmt: skip
        rows = tuple(
            (plan.chain, plan.order, plan.policy, plan.fused_in, f"{plan.seconds * 1e6:.1f}",
             f"{plan.apart_seconds * 1e6:.1f}", f"{plan.gain:.2f}x", plan.bound, f"{plan.solver_seconds:.2f} s")
            for plan in self.of(group)
        )  # fmt: skip
        title = f"{group.claim.removeprefix('spec1-')}: {group.title} on {group.machine}, {group.dtype}"
        return Table(title, columns, rows, "times are predicted, those of the solver are CPU time")

    @property
    def pictures(self) -> tuple[Picture, ...]:
        found: list[Picture] = [_picture_of_sizes()]
        for kind in dict.fromkeys(group.kind.partition(",")[0] for group in self.groups):
            groups = [group for group in self.groups if group.kind.partition(",")[0] == kind]
            chains = tuple(plan.chain for plan in self.of(groups[0]))
            gains = {f"{group.claim.removeprefix('spec1-')}, {group.machine}":
                     tuple(plan.gain for plan in self.of(group)) for group in groups}  # fmt: skip
            found.append(Bars(f"Predicted gain of fusion: {groups[0].title}", "times", chains, gains, ratios=True))
        return tuple(found)

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (
            *_claims_of_orders(),
            *_claims_of_sizes(),
            *(
                Claim(group.claim, f"{group.title}: gain on {group.machine}", group.published, self.gain(group), 1.0,
                      ">=", _PREDICTED, "x", ".2f")
                for group in self.groups
            ),
            *self._claims_of_exceptions(),
            *self._claims_of_effort(),
        )  # fmt: skip

    def _claims_of_exceptions(self) -> Iterator[Claim]:
        """Chains that gain nothing."""
        for plan in self.plans:
            if (plan.claim, plan.chain) == ("spec1-E7", "C6"):
                yield Claim(plan.claim, "C6: gain", "none over Ansor", plan.gain, NO_GAIN, "<=",
                            f"{_PREDICTED}. What is gained is the start of a kernel", "x", ".2f")  # fmt: skip
        npu = [plan for plan in self.plans if plan.claim == "spec1-E8"]
        if npu:
            slower = float(sum(plan.gain < 1 for plan in npu))
            yield Claim("spec1-E8", "chains that are slower fused", "some large ones", slower, 1.0, ">=",
                        f"{_PREDICTED}. How far small tiles fill the unit is not in the model", "", ".0f")  # fmt: skip

    def _claims_of_effort(self) -> Iterator[Claim]:
        reason = "CPU time of the solver on one thread, without code generation, which the published time includes"
        convolutions = {group.claim for group in GROUPS if group.kind == "conv"}
        for title, wanted, bar in (("GEMM", False, GEMM_SECONDS), ("convolution", True, CONV_SECONDS)):
            taken = [plan.solver_seconds for plan in self.plans if (plan.claim in convolutions) is wanted]
            if taken:
                yield Claim("spec1-E12", f"slowest {title} chain to solve", "minutes", max(taken), bar, "<=", reason,
                            " s", ".2f")  # fmt: skip


_PREDICTED = (
    "predicted, of one fused kernel beside kernels apart that the same solver planned, at the machine's peak rates; "
    "published are measured gains over other programs, so that the bar is that chains gain"
)


def report(layers: Sequence[str] = CHAINS) -> Report:
    """Plan chains on the machines of the publication; `layers` are names of chains, G1 to G12 and C1 to C8.

    Raises InvalidArgument for another name.
    """
    for name in layers:
        if name not in CHAINS:
            raise InvalidArgument(f"there is no chain {name!r}", where="--layers", help="G1 to G12, C1 to C8")
    plans = [_plan(group, name) for group in GROUPS for name in layers if (name[0] == "C") is (group.kind == "conv")]
    return Report(plans=tuple(plans))


def _plan(group: Group, name: str) -> Plan:
    machine = resolve(group.machine)
    hierarchy, quanta = hierarchy_of(machine, group.dtype), MachineQuanta(machine)
    computes = _computes(group, name)
    begin = time.process_time()
    found = solve(computes, hierarchy, quanta)
    seconds = time.process_time() - begin
    best = found.best
    return Plan(
        claim=group.claim, chain=name, order=" ".join(best.order), policy=best.policy, fused_in=best.fused_in,
        bound=best.bound, seconds=best.time, apart_seconds=found.apart.time, solver_seconds=max(seconds, 1e-9),
    )  # fmt: skip


def _computes(group: Group, name: str) -> tuple[Compute, ...]:
    if group.kind == "gemm, batch 1":
        return two_products(*GEMM_CHAINS[int(name[1:]) - 1]._replace(batch=1), group.dtype)
    if group.kind == "conv":
        return workload(f"conv-chain-{name}", group.dtype)
    return workload(f"gemm-chain-{name}{'-softmax' if group.kind == 'softmax' else ''}", group.dtype)


# Orders ---------------------------------------------------------------------------------------------------------------


def _table_of_orders() -> Table:
    """All orders of two products (spec 1, section 3.3)."""
    chain = chain_of(two_products(1, TRIPS["m"], TRIPS["n"], TRIPS["k"], TRIPS["l"], "f32"))
    rows = []
    for order in sorted(all_orders(chain), key=lambda each: (bool(incomplete(chain, each)), each)):
        moves = plan_moves(chain, order)
        repeats = {move.access.tensor: " ".join(move.repeats) for move in moves.moves}
        dm = chain_dm(chain, order, dict.fromkeys(TRIPS, 1)).dm
        reason = incomplete(chain, order)
        rows.append((" ".join(order), *(repeats[name] or "-" for name in TENSORS),
                     "+".join(str(dm[name]) for name in TENSORS) + f" = {sum(dm.values())}",
                     " ".join(moves.again[0]) or "-", reason or "yes"))  # fmt: skip
    columns = {"order": "left", **dict.fromkeys(TENSORS, "left"), "moved": "right", "C again for": "left",
               "can run": "left"}  # fmt: skip
    steps = ", ".join(f"{loop} {trips}" for loop, trips in TRIPS.items())
    note = f"A, B, D, E: loops whose every step moves the tensor again. Moved: blocks, for steps {steps}"
    return Table("Orders of two products, and what they move", columns, tuple(rows), note)


@cache
def _ranking() -> tuple[tuple[Order, Tiling, str], ...]:
    """Every order with its best tiles as Algorithm 1 is printed, the least movement first, and why it cannot run."""
    chain = _example()
    memory = Memory(CAPACITY, smallest=dict.fromkeys(chain.extents, ALPHA))
    found = []
    for order in all_orders(chain):
        moves = plan_moves(chain, order, memory="thesis")
        tiling = best_tiling(Candidate(order, frozenset(), frozenset(), moves), memory)
        assert tiling is not None, "the smallest tiles fit"
        found.append((order, tiling, incomplete(chain, order)))
    return tuple(sorted(found, key=lambda each: (each[1].volume, each[0] != tuple("mlkn"), each[0])))


def _example() -> Chain:
    return chain_of(two_products(1, EXTENT, EXTENT, EXTENT, EXTENT, "f32"))


def _table_of_best() -> Table:
    rows = tuple(
        (" ".join(order), f"{tiling.volume:,}", " ".join(f"{loop}:{size}" for loop, size in tiling.tile.items()),
         reason or "yes")
        for order, tiling, reason in _ranking()
    )  # fmt: skip
    columns = {"order": "left", "moved": "right", "tile": "left", "can run": "left"}
    title = f"Orders by Algorithm 1: {EXTENT} x {EXTENT}, memory of {CAPACITY:,} elements, tiles of {ALPHA} or more"
    return Table(title, columns, rows, "elements, without what an unfinished C takes")


def _claims_of_orders() -> tuple[Claim, ...]:
    dm = {name: " ".join(repeats) or "once" for name, repeats in _repeats("mlkn").items()}
    ours = ", ".join(f"{name} {dm[name]}" for name in TENSORS)
    published = "A l, B m, D m, E l"
    printed = "".join(_ranking()[0][0])
    runs = next("".join(order) for order, _, reason in _ranking() if not reason)
    chains = _counted_chains()
    return (
        *(
            Claim("orders", f"orders of {name}", f"{number:,}", float(chain.orders), float(number), "=",
                  "loops that a link ties together are one", form=",.0f")
            for name, number, chain in chains
        ),
        Claim("Table 3.4", "loops that move a tensor again in mlkn", published, ours, published, "=", "by Algorithm 1"),
        Claim("Table 3.4", "best order of those that can run", "mlkn", runs, "mlkn", "=",
              "order lmkn moves as much"),
        Claim("Algorithm 1", "best order as printed", "mlkn", printed, "mlkn", "=",
              f"orders that sum over k outside of a loop of both products move less, since A is not moved again, but "
              f"the second product would read an unfinished C: {printed} moves {_ranking()[0][1].volume:,} elements"),
    )  # fmt: skip


def _repeats(order: str) -> Mapping[str, tuple[str, ...]]:
    return {move.access.tensor: move.repeats for move in plan_moves(_example(), tuple(order)).moves}


def _counted_chains() -> tuple[tuple[str, int, Chain], ...]:
    """Chains with the number of orders that was published for them."""
    three = parse_graph("""
        input A: f32[8, 9]
        input B: f32[9, 10]
        input D: f32[10, 11]
        input F: f32[11, 12]
        C: f32[m:8, l:10] += A[m, k] * B[k, l] over k:9
        E: f32[m:8, n:11] += C[m, l] * D[l, n] over l:10
        G: f32[m:8, p:12] += E[m, n] * F[n, p] over n:11
        output G""").nodes
    convolutions = parse_graph("""
        input X: f32[2, 3, 12, 13]
        input V: f32[4, 3, 3, 3]
        input W: f32[5, 4, 3, 3]
        T: f32[b:2, o:4, p:10, q:11] += X[b, c, p + r, q + s] * V[o, c, r, s] over c:3, r:3, s:3
        Y: f32[b:2, z:5, h:8, w:9] += T[b, o, h + u, w + v] * W[z, o, u, v] over o:4, u:3, v:3
        output Y""").nodes
    return (
        ("two products", 24, _example()),
        ("two products in a batch", 120, chain_of(two_products(2, 8, 9, 10, 11, "f32"))),
        ("three products", 120, chain_of(three)),
        ("two convolutions", 3_628_800, chain_of(convolutions)),
    )


# Tile sizes -----------------------------------------------------------------------------------------------------------


def _square(capacity: int) -> TwoProducts:
    return TwoProducts(EXTENT, EXTENT, EXTENT, EXTENT, capacity, ALPHA)


def _table_of_sizes() -> Table:
    rows = []
    for capacity in CAPACITIES:
        chain = _square(capacity)
        rounded, exact = chain.clamped(), chain.exact()
        rows.append((f"{capacity:,}", f"{chain.tile:.1f}", f"{chain.volume:,.0f}", str(rounded[0]),
                     f"{chain.moved(*rounded):,}", f"{chain.moved(*rounded) / chain.volume:.3f}",
                     f"{chain.bound():.3f}", "{} x {}".format(*exact), f"{chain.moved(*exact):,}",
                     f"{_solved(capacity).volume:,}"))  # fmt: skip
    columns = {"memory": "right", "T*": "right", "DV*": "right", "rounded": "right", "moved": "right",
               "over DV*": "right", "bound": "right", "best": "right", "moved by it": "right",
               "by the solver": "right"}  # fmt: skip
    title = f"Tile sizes of order mlkn by Eq. 3.18: {EXTENT} x {EXTENT}, tiles of {ALPHA} or more, elements"
    return Table(title, columns, tuple(rows), "bound: of what rounding costs, Eq. 3.19 in its first form")


@cache
def _solved(capacity: int) -> Tiling:
    chain = _example()
    moves = plan_moves(chain, tuple("mlkn"))
    memory = Memory(capacity, smallest=dict.fromkeys(chain.extents, ALPHA))
    found = best_tiling(Candidate(tuple("mlkn"), frozenset(), frozenset(), moves), memory)
    assert found is not None, "the smallest tiles fit"
    return found


def _claims_of_sizes() -> tuple[Claim, ...]:
    over, within = -inf, -inf
    for capacity in CAPACITIES:
        chain = _square(capacity)
        over = max(over, chain.moved(*chain.clamped()) / chain.volume)
        within = max(within, chain.moved(*chain.clamped()) / chain.volume / chain.bound())
    solved = max(_solved(each).volume / _square(each).moved(*_square(each).exact()) for each in CAPACITIES)
    return (
        Claim("Eq. 3.18", "the solver's movement over the best whole tiles", NOT_STATED, solved, 1.0, "=",
              f"memory of {CAPACITIES[0]:,} to {CAPACITIES[-1]:,} elements", "x", ".4f"),
        Claim("Eq. 3.19", "movement of rounded tiles over its bound", "1 at most", within, 1.0, "<=",
              "the largest of all memory sizes", "x", ".3f"),
        Claim("Eq. 3.19", "what rounding costs over DV*", "small", over, 1.1, "<=",
              "where the root of the memory comes near an extent, loops have one step or two: no whole tile is near "
              "T*, and the solver searches numbers of steps", "x", ".3f"),
    )  # fmt: skip


def _picture_of_sizes() -> Curves:
    lines: Mapping[str, Any] = {
        "Eq. 3.18": lambda chain: chain.volume,
        "Eq. 3.18, rounded": lambda chain: chain.moved(*chain.clamped()),
        "best whole tiles": lambda chain: chain.moved(*chain.exact()),
    }
    points = {
        name: tuple((log(capacity, 2), float(moved(_square(capacity)))) for capacity in CAPACITIES)
        for name, moved in lines.items()
    }
    return Curves(f"Order mlkn, {EXTENT} x {EXTENT}: movement over memory", "memory, elements: 2 to the power of",
                  "moved, elements", points, logarithmic=True)  # fmt: skip
