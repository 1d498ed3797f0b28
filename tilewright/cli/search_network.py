"""`tilewright search MODEL`: what a whole network costs on a machine, layer by layer and fused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli.console import INTERRUPTED, NEGATIVE, show_json
from tilewright.cli.printing import say, table
from tilewright.cli.sweep import csv_text, swept
from tilewright.errors import InvalidArgument

if TYPE_CHECKING:
    from tilewright.cli.searching import Settings
    from tilewright.expr.dtypes import DType
    from tilewright.graph.network import Network
    from tilewright.graph.network_search import NetworkCost
    from tilewright.machine import Machine


def search_network(path: Path, shapes: Mapping[str, Sequence[int]], settings: Settings) -> None:
    """Search the trees of a model file's network and show them; with a sweep, one row of totals per value."""
    if settings.output is not None:
        require_folder(settings.output)
    network = _network(path, shapes, settings.dtype)
    if settings.sweep is not None:
        rows, stopped = [], "finished"
        for field, value, machine in swept(settings.sweep, settings.target):
            cost = _searched(network, machine, settings)
            rows.append({field: value, **_metrics(cost, machine)})
            stopped = cost.stopped
            if stopped == "interrupted":
                break
        print(csv_text(rows), end="")
        _leave(stopped, [])
        return
    cost = _searched(network, settings.target, settings)
    shown = {
        "model": str(path), "machine": settings.target.name, "dtype": settings.dtype,
        "objective": settings.options.objective, "method": settings.options.method, "seed": settings.options.seed,
        **_facts(cost, settings.target),
    }  # fmt: skip
    if settings.output is not None:
        _write(cost, settings.output)
    if settings.as_json:
        show_json(shown)
    else:
        _show(shown)
    _leave(cost.stopped, shown["missing"])


def require_folder(path: Path) -> None:
    """Raise InvalidArgument for an output that is no folder and cannot become one."""
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"{str(path)!r} is no folder", where="--output", help="a folder: a tree per layer")
    if not path.parent.is_dir():
        raise InvalidArgument(f"there is no folder {str(path.parent)!r}", where="--output", help="make it first")


def _leave(stopped: str, missing: Sequence[str]) -> None:
    if stopped == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if missing:
        raise typer.Exit(NEGATIVE)


# Searching


def _network(path: Path, shapes: Mapping[str, Sequence[int]], dtype: DType) -> Network:
    from tilewright.cli.models import import_graph
    from tilewright.compiler.make_plan import prepare
    from tilewright.graph.network import network_of
    from tilewright.instruction.products import product_factors

    graph = prepare(import_graph(path, shapes)).graph
    network = network_of(
        graph, lambda node: product_factors(node) is not None and len(node.inputs()) > 1, floats=dtype
    )  # fmt: skip
    if not network.parts:
        raise InvalidArgument("the model computes nothing", where=str(path), help="a model with operators")
    return network


def _searched(network: Network, machine: Machine, settings: Settings) -> NetworkCost:
    from tilewright.cli.searching import Progress
    from tilewright.graph.network_search import search_network as search
    from tilewright.tiles.machines import resources

    line = Progress()
    options = replace(settings.options, notes={"machine": machine.digest()}, progress=line)
    cost = search(network, resources(machine), options)
    line.end()
    return cost


def _facts(cost: NetworkCost, machine: Machine) -> dict[str, Any]:
    from tilewright.graph.network_facts import network_facts
    from tilewright.tiles.machines import resources

    return network_facts(cost, resources(machine), _clock(machine))


def _metrics(cost: NetworkCost, machine: Machine) -> dict[str, float]:
    from tilewright.graph.network_facts import metrics
    from tilewright.tiles.machines import resources

    return metrics(cost, resources(machine), _clock(machine))


def _clock(machine: Machine) -> float:
    from tilewright.machine.description import Cpu

    return machine.nominal_clock_hz if isinstance(machine, Cpu) else machine.clock_hz  # type: ignore[return-value]


def _write(cost: NetworkCost, folder: Path) -> None:
    """A tile file per layer and chosen chain that was searched; of equal ones the first."""
    from tilewright.expr.names import claim
    from tilewright.files import reason, write_file
    from tilewright.tiles.file import TileFile, print_tile_file
    from tilewright.tiles.problem import Problem

    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"cannot make {str(folder)!r}: {reason(error)}", where="--output",
                              help="a folder that can be made") from None  # fmt: skip
    taken: set[str] = set()
    found = [*cost.parts, *(each.fused for each in cost.chains if each.chosen)]
    written: set[str] = set()
    for each in found:
        part = each.like or each.part
        if each.tree is not None and part.key not in written:
            written.add(part.key)
            name = claim(re.sub(r"[^A-Za-z0-9_.+-]+", "_", part.name.replace(" + ", "+")), taken)
            file = TileFile(part.graph, Problem.of(part.computes), each.tree)
            write_file(folder / f"{name}.tile", print_tile_file(file).encode(), where="--output")


# Text


def _show(shown: Mapping[str, Any]) -> None:
    levels = list(shown["totals"]["apart"]["levels"])
    _show_layers(shown["layers"], levels)
    if shown["chains"]:
        print()
        _show_chains(shown["chains"])
    print()
    heads = {"total": "left", "cycles": "right", "ms": "right", "utilisation": "right", "energy": "right"}
    rows = []
    for name, total in shown["totals"].items():
        words = [f"{sum(total['levels'][level][kind] for kind in ('fill', 'read', 'update')):,.0f}" for level in levels]
        rows.append([name, f"{total['cycles']:,.0f}", f"{1e3 * total['seconds']:.3f}",
                     f"{100 * total['utilisation']:.1f} %", f"{total['energy']:.4g}", *words])  # fmt: skip
    table(heads | {f"{level} words": "right" for level in levels}, rows)
    say(f"\nenergy in {shown['energy_unit']}, elements are {shown['dtype']}")
    if shown["missing"]:
        say(f"not in the totals: {', '.join(shown['missing'])}")


def _show_layers(layers: Sequence[Mapping[str, Any]], levels: Sequence[str]) -> None:
    """A row for each layer that is not as an earlier one, with how often there are such."""
    heads = {"layer": "left", "times": "right", "operations": "right", "cycles": "right", "utilisation": "right",
             "energy": "right"}  # fmt: skip
    rows = []
    for layer in layers:
        if layer["same_as"] is not None:
            continue
        times = sum(each["runs"] for each in layers if layer["name"] in (each["name"], each["same_as"]))
        if layer["cycles"] is None:
            rows.append([layer["name"], str(times), "-", "-", "-", "-", *("-" for _ in levels), layer["reason"]])
            continue
        rows.append([
            layer["name"], str(times), f"{layer['operations']:,}", f"{layer['cycles']:,.0f}",
            f"{100 * layer['utilisation']:.1f} %", f"{layer['energy']:.4g}",
            *(f"{layer['levels'][level]['accesses']:,.0f}" for level in levels), _bound(layer),
        ])  # fmt: skip
    table(heads | {f"{level} words": "right" for level in levels} | {"bound by": "left"}, rows)


def _bound(found: Mapping[str, Any]) -> str:
    return str(found["bottleneck"]) + ("" if found["how"] == "tree" else ", by its movement")


def _show_chains(chains: Sequence[Mapping[str, Any]]) -> None:
    """A row for each chain with a cost, equal ones once; how many others there are."""
    heads = {"chain": "left", "times": "right", "cycles apart": "right", "fused": "right", "energy apart": "right",
             "fused ": "right", "bound by": "left", "": "left"}  # fmt: skip
    rows: dict[tuple[str, ...], list[str]] = {}
    times: dict[tuple[str, ...], int] = {}
    for each in chains:
        if each["cycles"] is None or each["apart"] is None:
            continue
        cells: tuple[str, ...] = (
            f"{each['apart']['cycles']:,.0f}", f"{each['cycles']:,.0f}", f"{each['apart']['energy']:.4g}",
            f"{each['energy']:.4g}", _bound(each), "fused" if each["chosen"] else "apart",
        )  # fmt: skip
        times[cells] = times.get(cells, 0) + each["runs"]
        rows.setdefault(cells, [each["name"], "", *cells])
    for cells, row in rows.items():
        row[1] = str(times[cells])
    table(heads, list(rows.values()))
    rest = sum(each["cycles"] is None for each in chains)
    if rest:
        say(f"{rest} more chains have no tree: --json says why")
