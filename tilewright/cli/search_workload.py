"""`tilewright search --workload`: the best factors of a published chain's named dataflows on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli.console import INTERRUPTED, NEGATIVE, show_json
from tilewright.cli.metric_files import ANALYSIS, require_files, write_analysis, write_tuning
from tilewright.cli.printing import table
from tilewright.cli.sweep import csv_text, swept
from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument
from tilewright.files import require_writable, write_file

if TYPE_CHECKING:
    from tilewright.cli.searching import Settings
    from tilewright.expr.core import Compute
    from tilewright.expr.dtypes import DType
    from tilewright.graph.dataflow_search import Searched
    from tilewright.graph.dataflows.table import Dataflow
    from tilewright.graph.search_options import SearchOptions
    from tilewright.graph.tree_cost import Objective
    from tilewright.machine import Machine
    from tilewright.tiles.problem import Problem
    from tilewright.tiles.resources import Resources

BASELINE = "Layerwise"
ANY = "any"  # order and mapping are searched too


@dataclass(frozen=True)
class _Chain:
    """A workload: its name, its expressions, and the dataflows that are asked for; None is `ANY`."""

    name: str
    nodes: tuple[Compute, ...]
    dataflows: Mapping[str, Dataflow | None]


def search_workload(kind: str, shape: str, dataflows: str, settings: Settings) -> None:
    """Search the dataflows of a workload and show them; with a sweep, a row of the best one's numbers per value."""
    from tilewright.report import plot as plots

    require_writable(settings.output, "--output")
    require_files(settings.csv_prefix, ANALYSIS)
    if settings.plot is not None:
        plots.check(settings.plot)
    chain = _chain(kind, shape, dataflows, settings.dtype)
    if settings.workers is not None and ANY not in chain.dataflows:
        raise InvalidArgument("the factors of a dataflow are searched in one process", where="--workers",
                              help=f"--dataflow {ANY}, or leave it out")  # fmt: skip
    if settings.sweep is not None:
        _sweep(chain, settings.sweep, settings)
        return
    found = _searched(chain, settings.target, settings)
    options = settings.options
    best = _best(found, options.objective)
    if best is not None:
        _write(best, chain, settings)
    if settings.csv_prefix is not None:
        for each in found:
            write_tuning(_named(settings.csv_prefix, each.name, chain), each.outcome.trace)
    facts = [_facts(each, found) for each in found]
    if settings.as_json:
        show_json({"workload": chain.name, "machine": settings.target.name, "objective": options.objective,
                   "method": options.method, "seed": options.seed, "best": None if best is None else best.name,
                   "dataflows": facts})  # fmt: skip
    else:
        _show(facts)
    if settings.plot is not None:
        from tilewright.report.convergence import convergence

        unit = "16-bit multiply-adds" if options.objective == "energy" else "cycles"
        traces = {each.name: each.outcome.trace for each in found if each.analysis}
        if traces:
            title = f"{chain.name} on {settings.target.name}"
            plots.draw([convergence(traces, title, unit=unit)], settings.plot)
    _leave(found, best)


def _chain(kind: str, shape: str, dataflows: str, dtype: DType) -> _Chain:
    from tilewright.graph.chain.workloads import CONV_CHAINS, shaped, unpadded_convolutions
    from tilewright.graph.chain.workloads import workload as named

    name, chosen = shaped(kind, shape), _chosen(dataflows, kind)
    convolutions = kind == "conv-chain"
    nodes = unpadded_convolutions(CONV_CHAINS[int(shape[1:]) - 1], dtype) if convolutions else named(name, dtype)
    return _Chain(name, nodes, chosen)


def _searched(chain: _Chain, machine: Machine, settings: Settings) -> list[Searched]:
    """What was found of each dataflow; after Ctrl-C of those that were begun."""
    from tilewright.cli.searching import Progress
    from tilewright.graph.dataflow_search import search_dataflow
    from tilewright.tiles.machines import resources
    from tilewright.tiles.problem import Problem

    found: list[Searched] = []
    problem, available, notes = Problem.of(chain.nodes), resources(machine), {"machine": machine.digest()}
    for each, make in chain.dataflows.items():
        line, trace = Progress(), settings.options.trace
        trace = None if trace is None else _named(Path(trace), each, chain)
        options = replace(settings.options, trace=trace, notes=notes, progress=line)
        genomes = partial(_genomes, workers=settings.workers)
        search = genomes if make is None else partial(search_dataflow, dataflow=make)
        found.append(search(each, problem=problem, resources=available, options=options))
        line.end()
        if found[-1].outcome.stopped == "interrupted":
            break
    return found


def _genomes(
    name: str, problem: Problem, resources: Resources, options: SearchOptions, workers: int | None
) -> Searched:  # fmt: skip
    """Orders and mappings, in so many processes; in this one where none are asked for."""
    from tilewright.graph.genome_search import search_genomes
    from tilewright.search.workers import processes

    if workers is None or workers == 1:
        return search_genomes(name, problem, resources, options)
    with processes(workers) as executor:
        return search_genomes(name, problem, resources, options, executor)


def _sweep(chain: _Chain, text: str, settings: Settings) -> None:
    rows: list[dict[str, Any]] = []
    for field, value, machine in swept(text, settings.target):
        found = _searched(chain, machine, settings)
        best = _best(found, settings.options.objective)
        numbers = {} if best is None or best.analysis is None else best.analysis.metrics()
        rows.append({field: value, "dataflow": "" if best is None else best.name, **numbers})
        if found[-1].outcome.stopped == "interrupted":
            break
    print(csv_text(rows), end="")
    _leave(found, best)


def _leave(found: Sequence[Searched], best: Searched | None) -> None:
    if found[-1].outcome.stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if best is None:
        raise typer.Exit(NEGATIVE)


def _best(found: Sequence[Searched], objective: Objective) -> Searched | None:
    return min((each for each in found if each.analysis), key=lambda each: _value(each, objective), default=None)


def _write(best: Searched, chain: _Chain, settings: Settings) -> None:
    """The files of the best tree that were asked for."""
    from tilewright.expr.graph import Graph
    from tilewright.report.tree_shapes import TreePicture, level_lines
    from tilewright.tiles.file import TileFile, print_tile_file
    from tilewright.tiles.summary import facts

    assert best.tree is not None, "the best dataflow has a tree"
    assert best.analysis is not None, "and its analysis"
    if settings.output is not None:
        file = TileFile(Graph.of(best.problem.computes), best.problem, best.tree)
        write_file(settings.output, print_tile_file(file).encode(), where="--output")
    if settings.csv_prefix is not None:
        title = f"{chain.name} on {settings.target.name}, {best.name}: {float(best.analysis.cycles):,.0f} cycles"
        levels = level_lines(facts(best.analysis, best.problem.tensors()))
        write_analysis(settings.csv_prefix, best.analysis, TreePicture(title, best.tree, best.problem, levels))


def _named(path: Path, dataflow: str, chain: _Chain) -> Path:
    """Where a file of one search of several is."""
    return path if len(chain.dataflows) == 1 else Path(f"{path}.{dataflow}")


def _chosen(text: str, workload: str) -> Mapping[str, Dataflow | None]:
    """The dataflows that are named; raises InvalidArgument for a name that the workload does not have."""
    from tilewright.graph.dataflows.table import ATTENTION, CONVOLUTIONS

    known = CONVOLUTIONS if workload == "conv-chain" else ATTENTION
    if text == "all":
        return known
    by_name = {name.lower(): name for name in (*known, ANY)}
    chosen: dict[str, Dataflow | None] = {}
    for each in text.split(","):
        name = by_name.get(each.strip().lower())
        if name is None:
            raise InvalidArgument(f"{workload} has no dataflow {each!r}", where="--dataflow",
                                  help=f"all, or some of {', '.join((*known, ANY))}")  # fmt: skip
        chosen[name] = known.get(name)
    return chosen


def _value(searched: Searched, objective: Objective) -> float:
    value = searched.value(objective)
    assert value is not None, "only dataflows with legal factors are compared"
    return value


def _facts(searched: Searched, found: Sequence[Searched]) -> dict[str, Any]:
    """What was found of one dataflow, as plain values; None where no factors are legal."""
    from tilewright.graph.dataflow_search import dram_words
    from tilewright.tiles.notation import print_tree

    outcome, analysis = searched.outcome, searched.analysis
    facts: dict[str, Any] = {"dataflow": searched.name, "evaluations": searched.evaluations,
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
    heads = {"dataflow": "left", "cycles": "right", "speed up": "right", "DRAM words": "right", "energy": "right",
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
