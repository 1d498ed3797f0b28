"""Chains of two products on this CPU, one kernel beside two, and beside today's libraries (claims E1 to E3, and E9).

The batch GEMM chains G1 to G12, plain and around a softmax, in f32 on one thread. Ours is what `compile` chooses by
itself: one kernel, or a kernel each. Processor time of one core: that of other programs does not count. What is
compared takes turns, once with its data in the caches and once after other memory was written; medians are reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from tilewright.compiler.compile import plan_graph, resolve_target
from tilewright.dataclass import dataclass
from tilewright.expr.graph import Graph
from tilewright.graph.chain.workloads import workload
from tilewright.machine.description import Cpu
from tilewright.options import Options
from tilewright.reproduce.chimera.contenders import TORCH, Contender, contenders, one_thread
from tilewright.reproduce.chimera.timed import CHAINS, Chain, Group, TimedChains, Timing, choice_of, known_chains
from tilewright.reproduce.experiment import pinned

TURNS = 10
CALLS = 3  # of a turn that count, after one that does not
MOST_FLUSHED = 2**28  # bytes written to make caches cold, or twice the last one


@dataclass(frozen=True, kw_only=True)
class Report(TimedChains):
    """All chains on one CPU."""

    GROUPS = (
        Group("spec1-E1", False, "batch GEMM chains", {TORCH: 2.62, "Relay": 4.78, "Ansor": 1.40, "oneDNN": 3.28}),
        Group("spec1-E2", True, "batch GEMM chains, softmax", {TORCH: 1.62, "Relay": 7.89, "Ansor": 2.29}),
    )
    CONVOLUTIONS = (
        "spec1-E3",
        {
            "convolution chains": {"Relay": 2.38, "Ansor": 1.94},
            "convolution chains, ReLU": {TORCH: 2.87, "Relay": 2.30, "Ansor": 1.71},
        },
    )
    HEADLINE = {TORCH: 2.87, "Ansor": 2.29}  # noqa: RUF012 - of the libraries and of the compilers
    NOTE = "processor time of one thread, f32"
    PUBLISHED_ON = "a Xeon Gold 6240"


def report(layers: Sequence[str] = CHAINS, turns: int = TURNS) -> Report:
    """Time chains on this machine; `layers` are names of chains, G1 to G12, in `turns` of `CALLS` calls.

    Raises InvalidArgument for another name.
    """
    known_chains(layers)
    machine = resolve_target("host")
    assert isinstance(machine, Cpu), "bug: this program runs on no CPU"
    with pinned(), one_thread():
        chains = [_timed(name, group.softmax, machine, turns) for group in Report.GROUPS for name in layers]
    return Report(machine=machine.llvm.cpu or machine.name, versions=_versions(), chains=tuple(chains))


def _timed(name: str, softmax: bool, machine: Cpu, turns: int) -> Chain:
    graph = Graph.of(workload(f"gemm-chain-{name}{'-softmax' if softmax else ''}", "f32"))
    fused, predicted, possible = choice_of(plan_graph(graph, machine, 1, Options()).decisions)
    found = contenders(graph, softmax, machine, fused=possible)
    timings = _in_turns(found, turns, min(MOST_FLUSHED, 2 * machine.caches[-1].bytes))
    return Chain(name=name, softmax=softmax, fused=fused, predicted=predicted, timings=timings)


def _in_turns(found: Sequence[Contender], turns: int, flushed_bytes: int) -> tuple[Timing, ...]:
    """Median processor times of contenders that take turns."""
    other = np.zeros(flushed_bytes, np.uint8)
    warm: dict[str, list[float]] = {each.name: [] for each in found}
    cold: dict[str, list[float]] = {each.name: [] for each in found}
    for _ in range(turns):
        for each in found:
            each.call()
            warm[each.name] += [_processor_seconds(each) for _ in range(CALLS)]
            other += 1  # what the caches had is gone
            cold[each.name].append(_processor_seconds(each))
    return tuple(
        Timing(name=each.name, seconds=median(warm[each.name]), cold_seconds=median(cold[each.name]))
        for each in found
    )  # fmt: skip


def _processor_seconds(contender: Contender) -> float:
    begin = time.process_time_ns()
    contender.call()
    return (time.process_time_ns() - begin) / 1e9


def _versions() -> str:
    from importlib import metadata

    found = []
    for name in ("torch", "onnxruntime"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)
