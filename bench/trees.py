"""How long the model of tile trees takes on one core: `python -m bench.trees`.

The analysis of one tree, of a batch of trees, the solver of operator chains, and with `--search` the search of order,
mapping and factors. Times are CPU time, in turns; the bar stands beside each. What shares a core or its caches from
outside (another virtual machine) still makes CPU time longer. A loop that always does the same is therefore timed
before and after each subject: where it takes at most `AT_SPEED` times its least time of the run, the core ran at its
speed. The median of these turns decides.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tilewright.graph.chain.hierarchy import hierarchy_of
from tilewright.graph.chain.solve import solve
from tilewright.graph.chain.workloads import shaped, workload
from tilewright.graph.dataflows.table import ATTENTION
from tilewright.graph.genome_search import search_genomes
from tilewright.graph.search_options import SearchOptions
from tilewright.graph.tree_factors import TreeFactors
from tilewright.machine.registry import resolve
from tilewright.search.cost import Budget
from tilewright.tiles.analysis import analyse
from tilewright.tiles.machines import resources
from tilewright.tiles.problem import Problem

EXAMPLE = "example: python -m bench.trees --turns 50 --search"
ATTENTION_ON, SOLVED_ON = "edge", "x86-64-v4"  # machines
NETWORK, DATAFLOW = "bert-base", "TileFlow"
BATCH = 100  # trees
GENOMES, TREES_OF_A_GENOME = 1000, 100  # more genomes than 50 generations of 20 have
AT_SPEED = 1.25  # times the least time of the reference
REFERENCE_STEPS = 10_000
FEWEST = 3  # turns at speed; of fewer, all turns decide


@dataclass(frozen=True)
class Subject:
    """What is timed: a call that does something `count` times, and the seconds that one of them may take.

    Only every `every`-th turn has it.
    """

    name: str
    bar: float
    call: Callable[[], object]
    count: int = 1
    every: int = 1


@dataclass(frozen=True)
class Times:
    """Seconds of a subject in all turns, and those of the reference around it."""

    subject: Subject
    seconds: tuple[float, ...]
    references: tuple[float, ...]

    def at_speed(self, least: float) -> tuple[float, ...]:
        """The seconds of the turns in which the core ran at its speed, where the reference takes `least` there."""
        pairs = zip(self.seconds, self.references, strict=True)
        return tuple(each for each, reference in pairs if reference <= AT_SPEED * least)

    def deciding(self, least: float) -> float:
        """The median that the bar is compared with."""
        found = self.at_speed(least)
        return float(np.median(found if len(found) >= FEWEST else self.seconds))

    def row(self, least: float) -> str:
        low, middle, high = np.percentile(self.seconds, (10, 50, 90))
        figures = "".join(f"{1e3 * each:11.3f}" for each in (min(self.seconds), low, middle, high))
        counts = f"{len(self.seconds):7}{len(self.at_speed(least)):10}{1e3 * self.deciding(least):11.3f}"
        verdict = "met" if self.deciding(least) < self.subject.bar else "above"
        return f"{self.subject.name:44}{1e3 * self.subject.bar:11,.0f}{figures}{counts}  {verdict}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.trees",
        description="Times of the analysis of tile trees and of the chain solver on one core, with their bars.",
        epilog=f"{EXAMPLE}; exit status: 1 where a median is above its bar",
    )
    parser.add_argument("--turns", type=int, default=30, metavar="N", help="how often each is timed (%(default)s)")
    parser.add_argument("--search", action="store_true", help="time a whole search once too, which takes minutes")
    given = parser.parse_args(arguments)
    if given.turns < 1:
        parser.error("--turns is 1 or more")
    head = "".join(f"{each:>11}" for each in ("bar, ms", "least", "10 %", "median", "90 %"))
    print(f"{'one of':44}{head}{'turns':>7}{'at speed':>10}{'median':>11}")
    met = shown(timed(subjects(), given.turns))
    if given.search:
        met &= shown(timed([search()], 1, warm=False))
    return int(not met)


def shown(found: Sequence[Times]) -> bool:
    """Print a row for each; whether all bars are met."""
    least = min(reference for each in found for reference in each.references)
    for each in found:
        print(each.row(least), flush=True)
    return all(each.deciding(least) < each.subject.bar for each in found)


def timed(
    subjects: Sequence[Subject], turns: int, *, warm: bool = True, clock: Callable[[], float] = time.process_time
) -> list[Times]:
    """Times of all subjects in turns. If `warm`, a call that is not timed fills caches before each that is."""
    seconds: list[list[float]] = [[] for _ in subjects]
    references: list[list[float]] = [[] for _ in subjects]
    for turn in range(turns):
        for number, subject in enumerate(subjects):
            if turn % subject.every:
                continue
            if warm:
                subject.call()
            begin = clock()
            reference()
            start = clock()
            subject.call()
            end = clock()
            reference()
            seconds[number].append((end - start) / subject.count)
            references[number].append((start - begin + clock() - end) / 2)
    return [
        Times(subject, tuple(own), tuple(around))
        for subject, own, around in zip(subjects, seconds, references, strict=True)
    ]


def reference() -> None:
    """Some milliseconds of what always is the same work: entries of a dictionary, and records of two."""
    found: dict[int, tuple[int, object]] = {}
    for number in range(REFERENCE_STEPS):
        found[number & 255] = (number, found.get(number & 127))


def subjects() -> list[Subject]:
    """The analysis of self-attention, one tree and many, and the solver on chains of two products."""
    machine = resources(resolve(ATTENTION_ON))
    dataflow = ATTENTION[DATAFLOW]
    problem = dataflow.rewrite(attention())
    space = TreeFactors(dataflow.tree(problem, [level.name for level in machine.levels]), problem, machine)
    roll = np.random.default_rng(0)
    points = [space.sample(roll) for _ in range(BATCH)]
    tree, factors = space.filled(points[0]), np.array(points, np.int64)
    hierarchy = hierarchy_of(resolve(SOLVED_ON))
    products, convolutions = workload("gemm-chain-G2", "f32"), workload("conv-chain-C6", "f32")
    return [
        Subject("self-attention tree, of a new topology", 10e-3, partial(analyse, tree, problem, machine)),
        Subject(
            f"self-attention tree, in a batch of {BATCH}",
            1e-3,
            partial(analyse, space.open_tree, problem, machine, factors=factors),
            count=BATCH,
        ),
        Subject("chain of matrix products, solved (G2)", 0.1, partial(solve, products, hierarchy)),
        Subject("chain of convolutions, solved (C6)", 10.0, partial(solve, convolutions, hierarchy), every=10),
    ]


def search(genomes: int = GENOMES) -> Subject:
    """50 generations of trees for self-attention, or the first so many genomes: order, mapping and factors."""
    machine = resources(resolve(ATTENTION_ON))
    options = SearchOptions(Budget(genomes * TREES_OF_A_GENOME))
    return Subject(
        "search of self-attention, 50 generations", 300.0, partial(search_genomes, "any", attention(), machine, options)
    )


def attention() -> Problem:
    return Problem.of(workload(shaped("attention", NETWORK), "f16"))


if __name__ == "__main__":
    sys.exit(main())
