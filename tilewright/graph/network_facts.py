"""What a search of a network found, as plain values: a table and JSON of layers, of chains, and of the whole.

Movement is in words of each level. Totals count every part as often as it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.graph.network_search import Found, FoundChain, NetworkCost
from tilewright.tiles.notation import print_tree
from tilewright.tiles.resources import Resources
from tilewright.tiles.summary import ENERGY_UNIT, facts

MOVED = ("fill", "read", "update")


def network_facts(cost: NetworkCost, resources: Resources, clock_hz: float) -> dict[str, Any]:
    """Layers, chains and totals, apart and fused.

    A layer that computes what an earlier one does is `same_as` that. A layer or chain without a cost has a `reason`;
    `missing` names the layers without one, which no total has in it.
    """
    first: dict[str, str] = {}
    layers = []
    for found in cost.parts:
        name = first.setdefault(found.part.key, found.part.name)
        layers.append({**_found(found), "same_as": None if name == found.part.name else name})
    return {
        "energy_unit": ENERGY_UNIT, "stopped": cost.stopped, "layers": layers,
        "chains": [_chain(each, cost) for each in cost.chains],
        "totals": {
            "apart": totals(cost.apart(), resources, clock_hz), "fused": totals(cost.fused(), resources, clock_hz),
        },
        "missing": [found.part.name for found in cost.parts if found.analysis is None],
    }  # fmt: skip


def totals(found: Iterable[Found], resources: Resources, clock_hz: float) -> dict[str, Any]:
    """Sums over all runs of parts: cycles, seconds, energy, operations, and words and energy of every level."""
    cycles = energy = operations = 0.0
    levels = {level.name: dict.fromkeys((*MOVED, "energy"), 0.0) for level in resources.levels}
    for each in found:
        if each.analysis is None:
            continue
        runs, shown = each.part.runs, facts(each.analysis, (each.like or each.part).tensors())
        cycles, energy = cycles + runs * shown["cycles"], energy + runs * shown["energy"]
        operations += runs * shown["operations"]
        for name, level in shown["levels"].items():
            levels[name]["energy"] += runs * level["energy"]
            for kind in MOVED:
                levels[name][kind] += runs * moved(level, kind)
    peak = sum(max(cycles, 1e-9) * (units.count or 1) * units.operations_per_cycle for units in resources.classes)
    return {
        "cycles": cycles, "seconds": cycles / clock_hz, "energy": energy, "operations": int(operations),
        "utilisation": operations / peak, "levels": levels,
    }  # fmt: skip


def metrics(cost: NetworkCost, resources: Resources, clock_hz: float) -> dict[str, float]:
    """The totals by names as `Analysis.metrics` has them: fused, and apart behind the prefix ``apart::``."""
    found: dict[str, float] = {}
    for prefix, parts in (("", cost.fused()), ("apart::", cost.apart())):
        total = totals(parts, resources, clock_hz)
        found |= {f"{prefix}Cycle": total["cycles"], f"{prefix}Energy": total["energy"]}
        found[f"{prefix}Utilisation"] = total["utilisation"]
        for name, level in total["levels"].items():
            found |= {f"{prefix}{name}::{kind.title()}": level[kind] for kind in (*MOVED, "energy")}
    return found


def moved(level: Mapping[str, Any], kind: str) -> float:
    """Words of one level that are filled, read or updated, all tensors together; `level` is of `summary.facts`."""
    return float(sum(tensor[kind] for tensor in level["tensors"].values()))


def _found(found: Found) -> dict[str, Any]:
    part = found.part
    head: dict[str, Any] = {
        "name": part.name, "runs": part.runs, "operators": [compute.name for compute in part.computes],
        "how": found.how, "evaluations": found.evaluations, "reason": found.reason or None,
    }  # fmt: skip
    if found.analysis is None:
        return {**head, "cycles": None, "tree": None}
    tree = None if found.tree is None else print_tree(found.tree)
    return {**head, **facts(found.analysis, (found.like or part).tensors()), "tree": tree}


def _chain(found: FoundChain, cost: NetworkCost) -> dict[str, Any]:
    apart: Sequence[float] | None = found.apart
    if apart is not None and cost.objective == "energy":
        apart = apart[::-1]
    return {
        "layers": [cost.parts[number].part.name for number in found.chain.parts], "chosen": found.chosen,
        "apart": None if apart is None else dict(zip(("cycles", "energy"), apart, strict=True)),
        **_found(found.fused),
    }  # fmt: skip
