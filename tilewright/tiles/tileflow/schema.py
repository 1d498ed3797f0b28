"""What the YAML of TileFlow's artifact may say: records with kinds, by the names of the format (spec 1, section 5.12).

The format extends that of Timeloop: problems have several operators, mappings are trees. Its names are written with
hyphens or underscores alike; records have underscores. What decides nothing here is read all the same and dropped:
notes for people, and how the artifact's own search runs.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.fields import (
    Contradiction,
    Fault,
    Kind,
    Place,
    Readable,
    anything,
    chosen_by,
    count,
    flag,
    items,
    optional,
    rate,
    record,
    required,
    several,
    string,
    table,
    text,
    whole,
    word,
)

DEEPEST: Final = 50  # nodes of a mapping above each other
NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"

_FACTOR: Final = re.compile(r"\s*([A-Za-z_]+)\s*=\s*([0-9A-Za-z_?]+)(,[0-9]+)?")
_INSTANCES: Final = re.compile(r"([A-Za-z0-9_]+)(?:\[([0-9]{1,9})\.\.([0-9]{1,9})\])?")


def listed(value: Any, place: Place, faults: list[Fault]) -> Any:
    """Names in one text, with or without commas, or as a list."""
    names = re.split(r"[\s,]+", value.strip(" ,")) if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and re.fullmatch(NAME, name) for name in names):
        faults.append(Fault(place, f"is {str(value)[:60]!r}, no names", "as A, B"))
        return ()
    return tuple(names)


def factors(value: Any, place: Place, faults: list[Fault]) -> Any:
    """``M=4 N=?``: pairs of a dimension and a number, a macro, or anything else, which a search chooses."""
    found: dict[str, int | str] = {}
    rest = value if isinstance(value, str) else "?"
    while rest.strip():
        match = _FACTOR.match(rest)
        if match is None or match[1] in found:
            message = f"is {str(value)[:60]!r}, not a factor for each dimension"
            faults.append(Fault(place, message, "as M=4 N=?, each dimension once"))
            return {}
        if match[3]:
            faults.append(Fault(place, f"has the remainder {match[0].strip()[:40]!r}", "M=4 alone: edges are clipped"))
            return {}
        number = match[2].isdecimal() and len(match[2]) <= 18
        found[match[1]] = int(match[2]) if number else match[2]
        rest = rest[match.end() :]
    return found


def instances(value: Any, place: Place, faults: list[Fault]) -> Any:
    """``L1`` or ``L1[0..3]``: a name and how many there are."""
    match = _INSTANCES.fullmatch(value) if isinstance(value, str) else None
    number = 0 if match is None else int(match[3] or 0) - int(match[2] or 0) + 1
    if match is None or number < 1:
        faults.append(Fault(place, f"is {str(value)[:60]!r}, not a name with its instances", "as L1 or L1[0..3]"))
        return ("?", 1)
    return (match[1], number)


def size(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A number, or the name of a macro."""
    return value if isinstance(value, str) and re.fullmatch(NAME, value) else whole(1, 47)(value, place, faults)


def target(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A memory level by its name, or by its number from the innermost one."""
    return value if isinstance(value, str) else whole(0, 8)(value, place, faults)


def node(value: Any, place: Place, faults: list[Fault]) -> Any:
    """A node of a mapping, by its `node_type`."""
    if place.count("subtree") > DEEPEST:
        faults.append(Fault(place, f"stands below {DEEPEST} others", "fewer nodes above each other"))
        return None
    return chosen_by("node_type", {"tile": record(Tile), "scope": record(Scope), "op": record(Op)})(
        value, place, faults
    )


def subtree(value: Any, place: Place, faults: list[Fault]) -> Any:
    """One node, or several in a list."""
    return (node(value, place, faults),) if isinstance(value, dict) else several(node, 1)(value, place, faults)


# Mapping --------------------------------------------------------------------------------------------------------------

_SCOPES: Final = {"sequential": "seq", "sharing": "shar", "parallel": "para", "pipeline": "pipe"}
_BINDINGS: Final = {"temporal": "for", "spatial": "par"}


def _type(names: dict[str, str]) -> Kind:
    """One of some words in any case, as the keyword of a tile tree."""

    def read(value: Any, place: Place, faults: list[Fault]) -> Any:
        found = names.get(value.lower()) if isinstance(value, str) else None
        if found is None:
            shown = ", ".join(name.capitalize() for name in names)
            faults.append(Fault(place, f"is {str(value)[:60]!r}", f"one of {shown}"))
        return found

    return read


@dataclass(frozen=True, kw_only=True)
class Tile(Readable):
    """Loops over data in the memory level `target`; `permutation` lists them innermost first, a letter each."""

    type: str = optional(_type(_BINDINGS), "for")
    factors: dict[str, int | str] = required(factors)
    permutation: str | None = optional(text(r"[A-Za-z_\s]+"))
    target: str | int = required(target)
    split: int | None = optional(whole(0, 8))
    multicast: bool | None = optional(flag)
    bypass: tuple[str, ...] = optional(listed, ())
    profile: bool | None = optional(flag)
    tag: str | None = optional(string)
    subtree: tuple[Node, ...] = required(subtree)


@dataclass(frozen=True, kw_only=True)
class Scope(Readable):
    """Siblings and how they share the chip."""

    type: str = optional(_type(_SCOPES), "seq")
    bypass: tuple[str, ...] = optional(listed, ())
    profile: bool | None = optional(flag)
    tag: str | None = optional(string)
    subtree: tuple[Node, ...] = required(subtree)


@dataclass(frozen=True, kw_only=True)
class Op(Readable):
    """A leaf: an operator of the problem by its name. `binding` repeats the dimensions, and is dropped."""

    name: str = required(string)
    binding: str | None = optional(anything)
    bypass: tuple[str, ...] = optional(listed, ())
    profile: bool | None = optional(flag)
    tag: str | None = optional(string)


Node: TypeAlias = Tile | Scope | Op


# Problem --------------------------------------------------------------------------------------------------------------


def term(value: Any, place: Place, faults: list[Fault]) -> Any:
    """``[H]`` or ``[H, stride]``: a dimension, and the coefficient that it is multiplied by."""
    if isinstance(value, list) and len(value) == 1:
        return (*items(word)(value, place, faults), None)
    return items(word, word)(value, place, faults)


@dataclass(frozen=True, kw_only=True)
class DataSpace(Readable):
    """A tensor of an operator: per dimension a sum of terms. `read_write` says that it is written."""

    name: str = required(text(NAME))
    projection: tuple[tuple[tuple[str, str | None], ...], ...] = required(several(several(term, 1), 1))
    read_write: bool | None = optional(flag)


@dataclass(frozen=True, kw_only=True)
class Coefficient(Readable):
    """A number that an index is multiplied by."""

    name: str = required(word)
    default: int = required(count)


@dataclass(frozen=True, kw_only=True)
class Operator(Readable):
    """One operator: its dimensions, its tensors, which of them it reads and which it writes."""

    name: str = required(string)
    dimensions: tuple[str, ...] = required(several(text(NAME), 1))
    type: str | None = optional(string)
    data_spaces: tuple[DataSpace, ...] = required(several(record(DataSpace), 1))
    coefficients: tuple[Coefficient, ...] = optional(several(record(Coefficient)), ())
    ins: tuple[str, ...] = required(listed)
    out: str = required(text(NAME))
    inplace: bool | None = optional(flag)


@dataclass(frozen=True, kw_only=True)
class Interface(Readable):
    """What the whole problem reads and writes."""

    ins: tuple[str, ...] = required(listed)
    outs: tuple[str, ...] = required(listed)


@dataclass(frozen=True, kw_only=True)
class Problem(Readable):
    """Operators, producers first, and the extents of their dimensions."""

    io: Interface = required(record(Interface))
    dimensions: tuple[str, ...] = required(several(text(NAME), 1))
    instance: dict[str, int | str] = required(table(word, size))
    ops: tuple[Operator, ...] = required(several(record(Operator), 1))


# Architecture ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StorageFacts(Readable):
    """Attributes of a memory level; its size is `sizeKB`, or `entries`, or `depth` times `block_size` words."""

    sizeKB: int | None = optional(count)  # noqa: N815
    entries: int | None = optional(count)
    depth: int | None = optional(count)
    block_size: int | None = optional(count)
    width: int | None = optional(count)
    word_bits: int | None = optional(count)
    datawidth: int | None = optional(count)
    meshX: int | None = optional(count)  # noqa: N815
    meshY: int | None = optional(count)  # noqa: N815
    read_bandwidth: float | None = optional(rate)
    write_bandwidth: float | None = optional(rate)
    technology: Any = optional(anything)

    def check(self) -> None:
        given = [name for name in ("sizeKB", "entries", "depth") if getattr(self, name) is not None]
        if len(given) > 1:
            raise Contradiction(given[1], f"stands beside {given[0]}", "one size")


@dataclass(frozen=True, kw_only=True)
class ArithmeticFacts(Readable):
    """Attributes of the arithmetic units."""

    word_bits: int | None = optional(count)
    datawidth: int | None = optional(count)
    meshX: int | None = optional(count)  # noqa: N815
    meshY: int | None = optional(count)  # noqa: N815
    technology: Any = optional(anything)


@dataclass(frozen=True, kw_only=True)
class Storage(Readable):
    """A memory level."""

    name: tuple[str, int] = required(instances)
    attributes: StorageFacts = optional(record(StorageFacts), StorageFacts())


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Readable):
    """The units inside the innermost level."""

    name: tuple[str, int] = required(instances)
    attributes: ArithmeticFacts = optional(record(ArithmeticFacts), ArithmeticFacts())


#: A component with what it is in a machine file: "dram", "sram", "regfile" or "arithmetic".
Component: TypeAlias = tuple[str, Storage | Arithmetic]

_CLASSES: Final = {
    "dram": "dram", "sram": "sram", "smartbuffer": "sram", "storage": "sram", "regfile": "regfile",
    "mac": "arithmetic", "intmac": "arithmetic", "fpmac": "arithmetic", "compute": "arithmetic",
}  # fmt: skip


def _component(technology: str) -> Kind:
    kind = record(Arithmetic if technology == "arithmetic" else Storage)
    return lambda value, place, faults: (technology, kind(value, place, faults))


component: Final = chosen_by("class", {name: _component(technology) for name, technology in _CLASSES.items()})


def inside(value: Any, place: Place, faults: list[Fault]) -> Any:
    """The one container inside another, which `subtree` lists."""
    if place.count("subtree") > DEEPEST:
        faults.append(Fault(place, f"stands in {DEEPEST} others", "fewer containers in each other"))
        return None
    if isinstance(value, list) and len(value) == 1:
        return record(Container)(value[0], (*place, 0), faults)
    faults.append(Fault(place, "is not one container", "a list of one"))
    return None


@dataclass(frozen=True, kw_only=True)
class Container(Readable):
    """Components beside each other, and the container inside; so many of it as its name says."""

    name: tuple[str, int] = required(instances)
    attributes: Any = optional(anything)
    local: tuple[Component, ...] = optional(several(component), ())
    subtree: Container | None = optional(inside)


@dataclass(frozen=True, kw_only=True)
class Architecture(Readable):
    """All memory levels in nested containers, the outermost first."""

    version: Any = optional(anything)
    subtree: Container = required(inside)
