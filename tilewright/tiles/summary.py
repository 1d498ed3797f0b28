"""What an analysis says, as plain values: for JSON, for tables, and one row per value of a swept field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.expr import dtypes
from tilewright.expr.core import Tensor
from tilewright.tiles.analysis import Analysis, LevelUse
from tilewright.tiles.resources import Level, Number

BYTE_BITS = 8
ENERGY_UNIT = "16-bit multiply-adds"


def facts(analysis: Analysis, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The analysis of one tree with these tensors: numbers of elements are in words of their level."""
    levels = {use.level.name: _level(use, tensors) for use in analysis.levels}
    return {
        "cycles": float(analysis.cycles), "energy": float(analysis.energy), "energy_unit": ENERGY_UNIT,
        "utilisation": float(analysis.utilisation), "operations": int(analysis.operations),
        "units": int(analysis.units), "bottleneck": str(analysis.bottleneck), "levels": levels,
        **({"classes": _classes(analysis)} if len(analysis.classes) > 1 else {}),
    }  # fmt: skip


def units_text(found: Mapping[str, Any]) -> str:
    """How many units are in use and which part of their peak they reach, by class where there are several.

    `found` is of `facts`.
    """
    classes = found.get("classes", {"units": {"used": found["units"], "utilisation": found["utilisation"]}})
    used = " and ".join(f"{each['used']:,} {name}" for name, each in classes.items())
    parts = " and ".join(f"{100 * each['utilisation']:.1f} %" for each in classes.values())
    return f"{used}, {parts} of their peak"


def _classes(analysis: Analysis) -> dict[str, Any]:
    return {
        each.units.name: {
            "used": int(each.used), "of": each.units.count, "operations": int(each.operations),
            "utilisation": float(each.utilisation),
        }
        for each in analysis.classes
    }  # fmt: skip


def _level(use: LevelUse, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    level = use.level
    capacity = level.capacity_bytes
    moved = {"fill": use.fill, "read": use.read, "update": use.update}
    names = dict.fromkeys(name for counts in moved.values() for name in counts)
    return {
        "footprint": _in_words(float(use.footprint_bytes), level),
        "capacity": None if capacity is None else _in_words(capacity, level),
        "word_bits": level.word_bits, "instances": int(use.instances), "of": level.instances,
        "accesses": float(use.accesses), "energy": float(use.energy), "energy_source": use.energy_source,
        "slowdown": float(use.slowdown), "demand_words_per_cycle": float(use.demand_words_per_cycle),
        "tensors": {
            name: {kind: _words(counts.get(name, 0), tensors[name], level) for kind, counts in moved.items()}
            for name in names
        },
    }  # fmt: skip


def _in_words(size: float, level: Level) -> float:
    return size * BYTE_BITS / level.word_bits


def _words(elements: Number, tensor: Tensor, level: Level) -> float:
    return _in_words(float(elements) * dtypes.size_bytes(tensor.dtype), level)


def rows(found: Mapping[str, Any]) -> list[list[str]]:
    """A row for each level: what it holds and moves, and what that costs. `found` is of `facts`."""
    return [
        [
            name, _count(level["footprint"]), "" if level["capacity"] is None else _count(level["capacity"]),
            *(_count(sum(moved[kind] for moved in level["tensors"].values())) for kind in ("fill", "read", "update")),
            _part(level["instances"], level["of"]), f"{level['slowdown']:.2f}", f"{level['energy']:.4g}",
        ]
        for name, level in found["levels"].items()
    ]  # fmt: skip


def _part(used: int, available: int | None) -> str:
    return str(used) if available is None else f"{used} of {available}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
