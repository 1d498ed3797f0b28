"""`tilewright search`: the best factors of named dataflows on a machine, by the analysis of tile trees."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.arguments import AsJson, machine_option
from tilewright.cli.console import INTERRUPTED, NEGATIVE, show_json, table
from tilewright.errors import InvalidArgument
from tilewright.files import require_writable, write_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tilewright.graph.dataflow_search import Searched
    from tilewright.graph.dataflows.table import Dataflow
    from tilewright.search.trace import Step

EPILOG = """\
\b
example: tilewright search --workload attention --shape bert-base \\
             --machine edge --dataflow all --seconds 20
         tilewright search --workload conv-chain --shape C1 \\
             --machine cloud --dataflow fused-layer \\
             --evaluations 2000 -o best.tile
exit status: 0 found, 1 no dataflow has legal factors, 2 bad usage or input,
             130 interrupted: what was found until then is shown
"""

BASELINE = "Layerwise"
_EVERY_SECONDS = 0.2  # a progress line


class Goal(StrEnum):
    """What is made small."""

    CYCLES = "cycles"
    ENERGY = "energy"


class MethodChoice(StrEnum):
    """How factors are searched."""

    DESCENT = "descent"
    TREE_SEARCH = "tree-search"


Workload = Annotated[str, typer.Option("--workload", metavar="KIND", help="attention, gemm-chain or conv-chain")]
Shape = Annotated[str, typer.Option("--shape", metavar="NAME", help="bert-base, …, G1 to G12; of conv-chain C1 to C8")]
MachineName = Annotated[str, machine_option("whose levels, rates and units")]
DataflowNames = Annotated[
    str, typer.Option("--dataflow", metavar="NAME,…|all", help="as layerwise, tileflow; another name lists them")
]
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="S", min=0, help="per dataflow (default: 60, or --evaluations)")
]
Evaluations = Annotated[
    int | None, typer.Option("--evaluations", metavar="N", min=1, help="per dataflow: same number, same result")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="of the random numbers")]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", metavar="FILE", help="keep every evaluation there and go on with those that it has; "
                 "of several dataflows FILE.NAME"),
]  # fmt: skip
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.tile", help="write the best tree there")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="draw how it converged: a .svg, .png, .pdf")]


def search(
    workload: Workload,
    shape: Shape,
    machine: MachineName,
    dataflow: DataflowNames = "all",
    seconds: Seconds = None,
    evaluations: Evaluations = None,
    seed: Seed = 0,
    objective: Annotated[Goal, typer.Option("--objective", help="what to make small")] = Goal.CYCLES,
    method: Annotated[
        MethodChoice, typer.Option("--method", help="descent from random factors, or Monte Carlo tree search")
    ] = MethodChoice.DESCENT,
    resume: Resume = None,
    output: Output = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Search the factors of dataflows, each in its own space, for few cycles or little energy.

    Costs are predicted, as `tilewright model` does; elements are f16.
    """
    from tilewright.expr.graph import Graph
    from tilewright.graph.chain.workloads import CONV_CHAINS, shaped, unpadded_convolutions
    from tilewright.graph.chain.workloads import workload as named
    from tilewright.graph.dataflow_search import search_dataflow
    from tilewright.machine.registry import resolve
    from tilewright.report import plot as plots
    from tilewright.search.cost import Budget
    from tilewright.tiles.file import TileFile, print_tile_file
    from tilewright.tiles.machines import resources
    from tilewright.tiles.problem import Problem

    require_writable(output, "--output")
    if plot is not None:
        plots.check(plot)
    name = shaped(workload, shape)
    chosen = _chosen(dataflow, workload)
    target = resolve(machine)
    convolutions = workload == "conv-chain"
    nodes = unpadded_convolutions(CONV_CHAINS[int(shape[1:]) - 1], "f16") if convolutions else named(name, "f16")
    problem, available = Problem.of(nodes), resources(target)
    budget = Budget(evaluations, 60.0 if seconds is None and evaluations is None else seconds)
    found: list[Searched] = []
    for each, make in chosen.items():
        trace = resume if resume is None or len(chosen) == 1 else resume.with_name(f"{resume.name}.{each}")
        line = _Progress(each)
        found.append(search_dataflow(
            each, make, problem, available, budget, objective=objective.value, method=method.value, seed=seed,
            trace=trace, notes={"machine": target.digest()}, progress=line,
        ))  # fmt: skip
        line.end()
        if found[-1].outcome.stopped == "interrupted":
            break
    best = min((each for each in found if each.analysis), key=lambda each: _value(each, objective), default=None)
    if output is not None and best is not None and best.tree is not None:
        computes = best.problem.computes
        produced = {compute.name for compute in computes}
        inputs = [tensor for name, tensor in best.problem.tensors().items() if name not in produced]
        graph = Graph(tuple(inputs), (computes[-1].output,), computes)
        write_file(output, print_tile_file(TileFile(graph, best.problem, best.tree)).encode(), where="--output")
    facts = [_facts(each, found) for each in found]
    if as_json:
        show_json({"workload": name, "machine": target.name, "objective": objective.value, "method": method.value,
                   "seed": seed, "best": None if best is None else best.name, "dataflows": facts})  # fmt: skip
    else:
        _show(facts)
    if plot is not None:
        from tilewright.report.convergence import convergence

        unit = "16-bit multiply-adds" if objective is Goal.ENERGY else "cycles"
        traces = {each.name: each.outcome.trace for each in found if each.analysis}
        if traces:
            plots.draw([convergence(traces, f"{name} on {target.name}", unit=unit)], plot)
    if found[-1].outcome.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if best is None:
        raise typer.Exit(NEGATIVE)


def _chosen(text: str, workload: str) -> Mapping[str, Dataflow]:
    """The dataflows that are named; raises InvalidArgument for a name that the workload does not have."""
    from tilewright.graph.dataflows.table import ATTENTION, CONVOLUTIONS

    known = CONVOLUTIONS if workload == "conv-chain" else ATTENTION
    if text == "all":
        return known
    by_name = {name.lower(): name for name in known}
    chosen = {}
    for each in text.split(","):
        name = by_name.get(each.strip().lower())
        if name is None:
            raise InvalidArgument(f"{workload} has no dataflow {each!r}", where="--dataflow",
                                  help=f"all, or some of {', '.join(known)}")  # fmt: skip
        chosen[name] = known[name]
    return chosen


def _value(searched: Searched, objective: Goal) -> float:
    value = searched.value(objective.value)
    assert value is not None, "only dataflows with legal factors are compared"
    return value


def _facts(searched: Searched, found: Sequence[Searched]) -> dict[str, Any]:
    """What was found of one dataflow, as plain values; None where no factors are legal."""
    from tilewright.graph.dataflow_search import dram_words
    from tilewright.tiles.notation import print_tree

    outcome, analysis = searched.outcome, searched.analysis
    facts: dict[str, Any] = {"dataflow": searched.name, "evaluations": len(outcome.trace.steps),
                             "stopped": outcome.stopped}  # fmt: skip
    names = ("cycles", "speedup", "dram_words", "energy", "utilisation", "bottleneck", "tree")
    if analysis is None or searched.tree is None:
        return facts | dict.fromkeys(names)
    base = next((each.analysis for each in found if each.name == BASELINE), None)
    values = (
        float(analysis.cycles), None if base is None else float(base.cycles / analysis.cycles), dram_words(analysis),
        float(analysis.energy), float(analysis.utilisation), str(analysis.bottleneck), print_tree(searched.tree),
    )  # fmt: skip
    return facts | dict(zip(names, values, strict=True))


def _show(facts: Sequence[Mapping[str, Any]]) -> None:
    heads = {"dataflow": "left", "cycles": "right", "speed-up": "right", "DRAM words": "right", "energy": "right",
             "utilisation": "right", "bound by": "left", "evaluations": "right"}  # fmt: skip
    rows = []
    for each in facts:
        count = f"{each['evaluations']:,}"
        if each["cycles"] is None:
            rows.append([each["dataflow"], "-", "-", "-", "-", "-", "no factors are legal", count])
            continue
        speedup = "-" if each["speedup"] is None else f"{each['speedup']:.2f}"
        rows.append([
            each["dataflow"], f"{each['cycles']:,.0f}", speedup, f"{each['dram_words']:,.0f}", f"{each['energy']:.4g}",
            f"{100 * each['utilisation']:.1f} %", each["bottleneck"], count,
        ])  # fmt: skip
    table(heads, rows)


class _Progress:
    """A line on a terminal that says how far a search is."""

    def __init__(self, name: str) -> None:
        self._name, self._shown, self._count, self._next = name, False, 0, time.monotonic() + _EVERY_SECONDS

    def __call__(self, step: Step) -> None:
        self._count += 1
        if sys.stderr.isatty() and time.monotonic() >= self._next:
            best = "none yet" if step.best is None else f"{step.best:,.0f}"
            print(
                f"\r{self._name}: {self._count:,} evaluations, best {best}\033[K", end="", file=sys.stderr, flush=True
            )
            self._shown, self._next = True, time.monotonic() + _EVERY_SECONDS

    def end(self) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
