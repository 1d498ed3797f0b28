"""Data movement of two products: predicted by the chain solver's formulas, counted by simulated caches (E5, E10, E11).

E11: three nests of products of 2048 x 2048 matrices with tilings drawn by chance, lines that move into the first cache.
E10: the solver's plans of the batch GEMM chains G1 to G12 through three caches, fused and as two kernels. E5: what the
solver predicts to move off chip on a GPU. Published figures are measurements of processors and of PyTorch on them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr.core import Compute
from tilewright.fields import Readable, choice, count, rate, record, required, several, table, whole, word
from tilewright.graph.chain.candidates import candidates
from tilewright.graph.chain.closed_form import distinct_tiles
from tilewright.graph.chain.hierarchy import USABLE, hierarchy_of
from tilewright.graph.chain.loops import chain_of
from tilewright.graph.chain.movement import chain_dm
from tilewright.graph.chain.orders import legal_orders
from tilewright.graph.chain.solve import cost_apart, solve, solve_level
from tilewright.graph.chain.tilings import Memory
from tilewright.graph.chain.workloads import GEMM_CHAINS, two_products, workload
from tilewright.instruction.quanta import MachineQuanta
from tilewright.machine.description import Cache, Cpu
from tilewright.machine.registry import resolve
from tilewright.reproduce.chimera import replay
from tilewright.reproduce.chimera.plans import count as count_plan
from tilewright.reproduce.chimera.replay import ELEMENT_BYTES, LINE_BYTES, NESTS, PANEL, Nest
from tilewright.reproduce.claim import NOT_STATED, Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Bars, Picture, Scatter

MACHINE = "xeon-gold-6240"
GPU = "nvidia-a100-sxm4-40gb"
EXTENT = 2048
TILINGS = 100
LARGEST = 256  # of the tile sizes that are drawn
SHARES = (0.5, 0.6, 0.7, USABLE, 0.8, 0.9, 1.0)  # of the cache, for which the solver is asked
SEARCHED = (0.65, 0.9)  # the parts of the cache that tilings use among which the best counted is looked for
LINE_ELEMENTS = LINE_BYTES // ELEMENT_BYTES
CHAINS = tuple(f"G{number}" for number in range(1, len(GEMM_CHAINS) + 1))

R_SQUARED = 0.97
PUBLISHED_R_SQUARED = {"mlkn": "0.97", "mlnk": "0.98", "apart": NOT_STATED}
NEAR_THE_BEST = 1.05
WINDOWS_PERCENT = 1.0  # by which a count of some steps may differ from one of all
L1_MORE, L2_LESS, L3_LESS = 46.0, 59.75, 75.17  # percent, E10
GPU_LESS = (9.86, 59.54)  # percent, E5

_counted = whole(0, 62)


@dataclass(frozen=True, kw_only=True)
class Tiling(Readable):
    """Tile sizes of a nest, and the lines that move into the first cache: predicted, and counted."""

    nest: str = required(choice(*NESTS))
    tile: Mapping[str, int] = required(table(word, count))
    predicted: float = required(rate)
    counted: int = required(count)

    @property
    def shown(self) -> str:
        return " ".join(f"{loop}:{self.tile[loop]}" for loop in "mlkn")


@dataclass(frozen=True, kw_only=True)
class Check(Readable):
    """Lines by some steps of a nest, as everything here is counted, and by all of them."""

    tiling: Tiling = required(record(Tiling))
    every: int = required(count)

    @property
    def percent(self) -> float:
        return 100 * abs(self.tiling.counted / self.every - 1)


@dataclass(frozen=True, kw_only=True)
class Solved(Readable):
    """The solver's tiles for a share of the cache."""

    share: float = required(rate)
    tiling: Tiling = required(record(Tiling))


@dataclass(frozen=True, kw_only=True)
class Level(Readable):
    """Lines that move between one cache and the next one out: fused, and in two kernels."""

    name: str = required(word)
    fused_fills: int = required(_counted)
    fused_write_backs: int = required(_counted)
    apart_fills: int = required(_counted)
    apart_write_backs: int = required(_counted)

    @property
    def more(self) -> float:
        """Percent that fusion adds."""
        return 100 * ((self.fused_fills + self.fused_write_backs) / (self.apart_fills + self.apart_write_backs) - 1)


@dataclass(frozen=True, kw_only=True)
class Chain(Readable):
    """A batch GEMM chain through the caches of a processor, innermost first."""

    name: str = required(word)
    fused_in: str = required(word)
    levels: tuple[Level, ...] = required(several(record(Level), 1))

    def hits_more(self, level: int) -> bool:
        """Whether a larger part of what a cache is asked for is in it when the products are fused."""
        inner, own = self.levels[level - 1], self.levels[level]
        return own.fused_fills / inner.fused_fills < own.apart_fills / inner.apart_fills


@dataclass(frozen=True, kw_only=True)
class OffChip(Readable):
    """Elements that a chain is predicted to move off chip on a GPU: fused, in two kernels, and if L2 keeps no C."""

    name: str = required(word)
    fused: int = required(count)
    apart: int = required(count)
    uncached: int = required(count)


@dataclass(frozen=True, kw_only=True)
class Report(Readable):
    """All counts."""

    extent: int = required(count)
    tilings: tuple[Tiling, ...] = required(several(record(Tiling), 1))
    solved: tuple[Solved, ...] = required(several(record(Solved), 1))
    searched: tuple[Tiling, ...] = required(several(record(Tiling), 1))
    checks: tuple[Check, ...] = required(several(record(Check), 1))
    chains: tuple[Chain, ...] = required(several(record(Chain), 1))
    off_chip: tuple[OffChip, ...] = required(several(record(OffChip), 1))

    @classmethod
    def prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Claims follow from the rest."""
        return {name: each for name, each in value.items() if name != "claims"}

    def check(self) -> None:
        if {each.nest for each in self.tilings} != set(NESTS):
            raise ValueError(f"tilings are not of {', '.join(NESTS)}")
        if all(each.share != USABLE for each in self.solved):
            raise ValueError(f"solved has no share of {USABLE}")

    def to_json(self) -> dict[str, Any]:
        return {**Readable.to_json(self), "claims": [claim.to_json() for claim in self.claims]}

    # Figures ----------------------------------------------------------------------------------------------------------

    def of(self, nest: str) -> tuple[Tiling, ...]:
        return tuple(each for each in self.tilings if each.nest == nest)

    def r_squared(self, nest: str) -> float:
        """The part of the variance of the counts that the predictions themselves explain, without a fitted line."""
        predicted, counted = self._pairs(nest)
        return float(1 - np.sum((counted - predicted) ** 2) / np.sum((counted - counted.mean()) ** 2))

    def ratio(self, nest: str) -> float:
        """The mean of counted over predicted lines."""
        predicted, counted = self._pairs(nest)
        return float(np.mean(counted / predicted))

    def slope(self, nest: str) -> float:
        predicted, counted = self._pairs(nest)
        return float(np.polyfit(predicted, counted, 1)[0])

    def _pairs(self, nest: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        found = self.of(nest)
        return np.array([each.predicted for each in found]), np.array([float(each.counted) for each in found])

    @property
    def point(self) -> Tiling:
        """The solver's tiles for the part of the cache that can be used."""
        return next(each.tiling for each in self.solved if each.share == USABLE)

    @property
    def best(self) -> Tiling:
        """The fewest counted lines of all tilings here."""
        solved = (each.tiling for each in self.solved)
        return min((*self.tilings, *self.searched, *solved), key=lambda each: each.counted)

    def moving_more(self, nest: str) -> int:
        """Drawn tilings with which a nest moves more than the nest mlkn with the same."""
        return sum(a.counted > b.counted for a, b in zip(self.of(nest), self.of("mlkn"), strict=True))

    def change(self, level: int) -> float:
        """Percent that fusion adds at a level, the mean of all chains."""
        return float(np.mean([chain.levels[level].more for chain in self.chains]))

    # Shown ------------------------------------------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[Table, ...]:
        return self._of_nests(), self._of_shares(), self._of_chains(), self._of_gpu()

    def _of_nests(self) -> Table:
        rows = []
        for nest in NESTS:
            checks = ", ".join(f"{each.percent:.3f} %" for each in self.checks if each.tiling.nest == nest)
            rows.append((nest, str(len(self.of(nest))), f"{self.r_squared(nest):.4f}", f"{self.ratio(nest):.3f}",
                         f"{self.slope(nest):.3f}", checks or "-"))  # fmt: skip
        columns = {"nest": "left", "tilings": "right", "R²": "right", "counted / predicted": "right", "slope": "right",
                   "some steps, off by": "right"}  # fmt: skip
        note = (
            f"lines into L1 of {MACHINE}; matrices of {self.extent} x {self.extent}, f32, blocks packed, tilings that "
            f"use {USABLE:g} of L1 at most; apart: mlk, then mln, with C in memory"
        )
        return Table("E11: predicted and counted movement between L2 and L1", columns, tuple(rows), note)

    def _of_shares(self) -> Table:
        rows = tuple(
            (f"{each.share:g}", each.tiling.shown, f"{each.tiling.predicted:,.0f}", f"{each.tiling.counted:,}",
             f"{each.tiling.counted / self.best.counted:.3f}")
            for each in self.solved
        )  # fmt: skip
        columns = {"share of L1": "right", "tile": "left", "predicted": "right", "counted": "right",
                   "over the best": "right"}  # fmt: skip
        note = (
            f"the best counted of {len(self.tilings) + len(self.searched)} tilings, {len(self.searched)} of them all "
            f"sizes of m and l that use {SEARCHED[0]:g} to {SEARCHED[1]:g} of L1: {self.best.nest}, {self.best.shown}, "
            f"{self.best.counted:,} lines"
        )
        return Table("E11: the solver's tiles for a share of L1, order mlkn", columns, rows, note)

    def _of_chains(self) -> Table:
        names = [level.name for level in self.chains[0].levels]
        rows = tuple(
            (chain.name, chain.fused_in, *(f"{level.more:+.1f} %" for level in chain.levels)) for chain in self.chains
        )
        columns = {"chain": "left", "C in": "left", **dict.fromkeys((f"beyond {name}" for name in names), "right")}
        note = "lines read and written back, fused over two kernels of the same blocks; caches begin empty"
        return Table(f"E10: batch GEMM chains through the caches of {MACHINE}, f32", columns, rows, note)

    def _of_gpu(self) -> Table:
        rows = tuple(
            (each.name, f"{each.fused:,}", f"{each.apart:,}", f"{_less(each.fused, each.apart):.1f} %",
             f"{each.uncached:,}", f"{_less(each.fused, each.uncached):.1f} %")
            for each in self.off_chip
        )  # fmt: skip
        columns = {"chain": "left", "fused": "right", "two kernels": "right", "less": "right",
                   "C not in L2": "right", "less than that": "right"}  # fmt: skip
        return Table(f"E5: elements predicted to move off chip on {GPU}, f16", columns, rows)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        panels = {nest: tuple((float(each.counted), each.predicted) for each in self.of(nest))
                  for nest in map(str, NESTS)}  # fmt: skip
        names = [level.name for level in self.chains[0].levels]
        more = {f"beyond {name}": tuple(chain.levels[number].more for chain in self.chains)
                for number, name in enumerate(names)}  # fmt: skip
        return (
            Scatter("E11: movement between L2 and L1", "counted, lines", "predicted, lines", panels),
            Bars("E10: what fusion adds to movement", "percent", tuple(chain.name for chain in self.chains), more),
        )

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (*self._claims_of_nests(), *self._claims_of_chains(), *self._claims_of_gpu())

    def _claims_of_nests(self) -> tuple[Claim, ...]:
        drawn = len(self.of("mlkn"))
        simulated = f"counted by simulated caches, not by a processor, with {drawn} tilings"
        over = self.point.counted / self.best.counted
        return (
            *(
                Claim("spec1-E11", f"R² of {nest}, predicted against counted", PUBLISHED_R_SQUARED[nest],
                      self.r_squared(nest), R_SQUARED, ">=", f"{simulated}; no line is fitted", form=".4f")
                for nest in NESTS
            ),
            Claim("spec1-E11", "the solver's tiles over the best counted", "near the best", over, NEAR_THE_BEST, "<=",
                  f"{simulated}; the solver is asked for {USABLE:g} of L1", "x", ".3f"),
            Claim("spec1-E11", "tilings that move more without reuse of C", "more", float(self.moving_more("apart")),
                  float(drawn), "=", simulated, f" of {drawn}", ".0f"),
            Claim("spec1-E11", "tilings that move more in mlnk than in mlkn", "more", float(self.moving_more("mlnk")),
                  float(drawn), "=", simulated, f" of {drawn}", ".0f"),
            Claim("spec1-E11", "some steps of a nest for all, off by at most", NOT_STATED,
                  max(each.percent for each in self.checks), WINDOWS_PERCENT, "<=",
                  "of the tiling of each nest that is predicted to move least, every access was counted too", " %",
                  ".3f"),
        )  # fmt: skip

    def _claims_of_chains(self) -> tuple[Claim, ...]:
        count = len(self.chains)
        reason = (
            f"the mean of {count} chains, whose kernels apart have the blocks of the fused one; published beside "
            "PyTorch, whose library has blocks of its own"
        )
        percent: dict[str, Any] = {"unit": " %", "form": ".1f"}
        dram = f"{reason}. L3 holds C of most chains, so that the second kernel does not read it from memory"
        hits = f"{reason}. What reaches L3 of a fused chain is read for the first time, so that it hits less"
        return (
            Claim("spec1-E10", "L1 to L2, more", f"{L1_MORE:g} %", self.change(0), L1_MORE, "<=", reason, **percent),
            Claim("spec1-E10", "L2 to L3, less", f"{L2_LESS:g} %", -self.change(1), L2_LESS, ">=", reason, **percent),
            Claim("spec1-E10", "DRAM, less", f"{L3_LESS:g} %", -self.change(2), L3_LESS, ">=", dram, **percent),
            *(
                Claim("spec1-E10", f"chains with more hits in {name}", "higher",
                      float(sum(chain.hits_more(level) for chain in self.chains)), float(count), "=", why,
                      f" of {count}", ".0f")
                for level, name, why in ((1, "L2", reason), (2, "L3", hits))
            ),
        )  # fmt: skip

    def _claims_of_gpu(self) -> tuple[Claim, ...]:
        cached, uncached = ([_less(each.fused, getattr(each, name)) for each in self.off_chip]
                            for name in ("apart", "uncached"))  # fmt: skip
        kept = "C of every chain fits in L2, and is then not counted"
        reason = (
            f"predicted for {GPU}. {kept}: {min(cached):.1f} to {max(cached):.1f} % less; with no L2 "
            f"{min(uncached):.1f} to {max(uncached):.1f} % less. The published range lies between, of PyTorch measured"
        )
        return (
            Claim("spec1-E5", "DRAM of a GPU, least reduction", f"{GPU_LESS[0]:g} %", min(cached), GPU_LESS[0], ">=",
                  reason, " %", ".1f"),
            Claim("spec1-E5", "the same where L2 keeps no C", f"{GPU_LESS[0]:g} %", min(uncached), GPU_LESS[0], ">=",
                  reason, " %", ".1f"),
            Claim("spec1-E5", "largest reduction where L2 keeps no C", f"{GPU_LESS[1]:g} %", max(uncached), GPU_LESS[1],
                  ">=", reason, " %", ".1f"),
        )  # fmt: skip


def _less(fused: int, apart: int) -> float:
    return 100 * (1 - fused / apart)


# Measured -------------------------------------------------------------------------------------------------------------


def report(trials: int = TILINGS, extent: int = EXTENT, chains: Sequence[str] = CHAINS) -> Report:
    """Count `trials` tilings of each nest of products of `extent` x `extent` matrices, and some chains.

    Raises InvalidArgument for a chain that is none of G1 to G12.
    """
    cpu = resolve(MACHINE)
    assert isinstance(cpu, Cpu), "the machine of the publication is a processor"
    nests = _Nests(extent, cpu.caches[0])
    tilings = nests.drawn(trials)
    return Report(
        extent=extent,
        tilings=tilings,
        solved=tuple(Solved(share=share, tiling=nests.solved(share)) for share in SHARES),
        searched=nests.searched(),
        checks=tuple(nests.checked(tilings, nest) for nest in NESTS),
        chains=tuple(_through_caches(name, cpu) for name in chains),
        off_chip=tuple(_off_chip(name) for name in chains),
    )


class _Nests:
    """Nests of products of square matrices beside one cache."""

    def __init__(self, extent: int, cache: Cache) -> None:
        computes = two_products(1, extent, extent, extent, extent, "f32")
        self.extents, self.cache = dict.fromkeys("mnkl", extent), cache
        self.chain, self.products = chain_of(computes), tuple(chain_of((each,)) for each in computes)
        self.capacity = cache.bytes // ELEMENT_BYTES

    def drawn(self, trials: int) -> tuple[Tiling, ...]:
        """Every nest with the same tilings; sizes are drawn evenly by their logarithm."""
        roll, tiles = random.Random(0), list[dict[str, int]]()
        low, high = np.log2([PANEL, min(LARGEST, *self.extents.values())])
        while len(tiles) < trials:
            tile = {loop: round(2 ** roll.uniform(low, high)) for loop in "mnkl"}
            if chain_dm(self.chain, tuple("mlkn"), tile).memory <= USABLE * self.capacity:
                tiles.append(tile)
        return tuple(self.counted(nest, tile) for nest in NESTS for tile in tiles)

    def solved(self, share: float) -> Tiling:
        """The solver's tiles for a share of the cache, none smaller than a micro-kernel's."""
        orders = [order for order in legal_orders(self.chain)[0] if order == tuple("mlkn")]
        memory = Memory(int(share * self.capacity), smallest=dict.fromkeys("mnkl", PANEL))
        ((_, found),) = solve_level(candidates(self.chain, orders), memory, best=1)
        return self.counted("mlkn", found.tile)

    def searched(self) -> tuple[Tiling, ...]:
        """Order mlkn with the smallest k and n, and all tiles of m and l that use much of the cache."""
        tiles = distinct_tiles(self.extents["m"], PANEL)
        found = []
        for m, l in product(tiles, tiles):
            tile = {"m": m, "l": l, "k": PANEL, "n": PANEL}
            used = chain_dm(self.chain, tuple("mlkn"), tile).memory / self.capacity
            if SEARCHED[0] <= used <= SEARCHED[1]:
                found.append(self.counted("mlkn", tile))
        return tuple(found)

    def checked(self, tilings: Sequence[Tiling], nest: Nest) -> Check:
        """All accesses of the tiling that is predicted to move least."""
        least = min((each for each in tilings if each.nest == nest), key=lambda each: each.predicted)
        (found,) = replay.whole(nest, self.extents, least.tile, (self.cache,))
        return Check(tiling=least, every=found.fills)

    def counted(self, nest: Nest, tile: Mapping[str, int]) -> Tiling:
        (found,) = replay.windows(nest, self.extents, tile, (self.cache,))
        return Tiling(nest=nest, tile=dict(tile), predicted=self.predicted(nest, tile), counted=found.fills)

    def predicted(self, nest: Nest, tile: Mapping[str, int]) -> float:
        """Lines by the formulas of an order: of one chain, or of two products."""
        if nest != "apart":
            return chain_dm(self.chain, tuple(nest), tile).dv / LINE_ELEMENTS
        nests = (("C", "mlk"), ("E", "mln"))
        return sum(
            chain_dm(each, tuple(order), {loop: tile[loop] for loop in order}).dv / LINE_ELEMENTS
            for each, (_, order) in zip(self.products, nests, strict=True)
        )


def _through_caches(name: str, cpu: Cpu) -> Chain:
    computes = workload(f"gemm-chain-{name}", "f32")
    plan = solve(computes, hierarchy_of(cpu), MachineQuanta(cpu)).best
    fused, apart = (count_plan(plan, cpu.caches, fused=each) for each in (True, False))
    levels = tuple(
        Level(name=a.name, fused_fills=a.fills, fused_write_backs=a.write_backs, apart_fills=b.fills,
              apart_write_backs=b.write_backs)
        for a, b in zip(fused, apart, strict=True)
    )  # fmt: skip
    return Chain(name=name, fused_in=plan.fused_in, levels=levels)


def _off_chip(name: str) -> OffChip:
    gpu = resolve(GPU)
    hierarchy, quanta = hierarchy_of(gpu, "f16"), MachineQuanta(gpu)
    computes: Sequence[Compute] = workload(f"gemm-chain-{name}", "f16")
    found = solve(computes, hierarchy, quanta)
    outer, inner, *rest = hierarchy.levels
    without = replace(hierarchy, levels=(outer, replace(inner, cached_bytes=0), *rest))
    return OffChip(
        name=name,
        fused=sum(found.best.dv[inner.name].values()),
        apart=sum(found.apart.dv.values()),
        uncached=sum(cost_apart(computes, without, quanta).dv.values()),
    )
