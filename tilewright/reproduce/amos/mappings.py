"""Tables 5.1, 5.3 and 5.4 anew, and claims E1 to E4: how many mappings there are, and which of them are right.

Everything here is counted, not measured, and the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.expr.core import Compute
from tilewright.expr.graph import Graph
from tilewright.expr.ops import catalogue
from tilewright.instruction import algorithm4
from tilewright.instruction.canonical import Canonical, canonicalise
from tilewright.instruction.mapping import Mapping, Mode, mappings
from tilewright.instruction.matching import adapted, match
from tilewright.instruction.validation import judge
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.registry import standard
from tilewright.reproduce.amos.layers import BATCH, CHOSEN, place
from tilewright.reproduce.amos.networks import NETWORKS, STANDARD_MAPPED, operators
from tilewright.reproduce.claim import NOT_STATED, Claim
from tilewright.reproduce.experiment import Table
from tilewright.reproduce.pictures import Picture

WMMA = "wmma_16x16x16_f16_f32"

#: Table 5.3 (fact), in its order.
MAPPINGS = {
    "GMV": 1, "GMM": 1, "C1D": 6, "C2D": 35, "C3D": 180, "T2D": 7, "GRP": 35, "DIL": 35, "DEP": 11, "CAP": 105,
    "BCV": 11, "GFC": 1, "MEN": 1, "VAR": 1, "SCN": 1,
}  # fmt: skip

#: Mappings of C3D onto the invented accelerators (fact).
ACCELERATORS = {"AXPY": 15, "GEMV": 7, "CONV": 31}


@dataclass(frozen=True)
class Operator:
    """A row of Table 5.3: counts for WMMA 16x16x16, `thesis` as published."""

    operator: str
    match_points: int
    mappings: int
    signature: int
    thesis: int


@dataclass(frozen=True)
class Accelerator:
    """Mappings of C3D onto an invented accelerator; `points` is rule R, `compat` the rule of AMOS's code.

    `valid` of the compat mappings pass every check, the run in emulation included; `refused` are the others, by check.
    """

    record: str
    match_points: int
    points: int
    compat: int
    valid: int
    refused: dict[str, int]
    signature: int
    thesis: int
    points_c2d: int


@dataclass(frozen=True)
class Exhaustive:
    """All assignments of the seven loops of C2D to the three of a matrix intrinsic: how many a rule accepts."""

    rule: str
    assignments: int
    accepted: int


@dataclass(frozen=True)
class Layer:
    """A row of Table 5.4, with what follows from its mapping for a tile of 16x16x16."""

    name: str
    mapping: str
    fused: tuple[int, ...]
    calls: int
    utilisation: float
    valid: bool


@dataclass(frozen=True)
class Mapped:
    """A row of Table 5.1. `operators`, `xla` and `thesis` (mapped) are facts; the others count our graphs.

    `mapped` is of the network as AMOS's code has it, factors inside sums left where they are; `standard` of the
    standard network after clean-up; `kernels` what our own fusion leaves.
    """

    network: str
    operators: int
    xla: int
    xla_fails_on: str
    thesis: int
    mapped: int
    standard: int
    kernels: int
    derivation: str


@dataclass(frozen=True)
class Report:
    """Everything of this experiment; `to_json` has the tables by name."""

    operators: tuple[Operator, ...]
    exhaustive: tuple[Exhaustive, ...]
    accelerators: tuple[Accelerator, ...]
    layers: tuple[Layer, ...]
    networks: tuple[Mapped, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(_claims(self))

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(_tables(self))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """None: what is counted is equal to what was published or not, which tables show better."""
        return ()

    @property
    def kinds(self) -> int:
        """Distinct kinds of mapping in Table 5.4."""
        return len({row.mapping for row in self.layers})

    def to_json(self) -> dict[str, Any]:
        return {
            "table_5_1": [asdict(row) for row in self.networks],
            "table_5_3": [asdict(row) for row in self.operators],
            "table_5_4": [asdict(row) for row in self.layers],
            "kinds_in_table_5_4": self.kinds,
            "exhaustive_c2d": [asdict(row) for row in self.exhaustive],
            "accelerators_c3d": [asdict(row) for row in self.accelerators],
            "claims": [claim.to_json() for claim in self.claims],
        }


def report() -> Report:
    """Count everything anew; takes some seconds, most of them for running mappings in emulation."""
    record = standard().find(WMMA)
    return Report(
        tuple(_operator(short, record) for short in MAPPINGS),
        tuple(_exhaustive(record)),
        tuple(_accelerator(name) for name in ACCELERATORS),
        tuple(_layers(record)),
        tuple(_networks(record)),
    )


def core(short: str, record: Intrinsic) -> Compute:
    """The product of an operator of Table 5.3 at small sizes, with the element types of `record`."""
    graph = catalogue.build(short, form="mapping")
    return adapted([node for node in graph.nodes if node.accum == "sum"][-1], record)


# Table 5.3 and the exhaustive count -----------------------------------------------------------------------------------


def _operator(short: str, record: Intrinsic) -> Operator:
    node = core(short, record)
    (found,) = match(node, record)
    return Operator(short, len(found.points), _count(node, record), _count(node, record, "signature"), MAPPINGS[short])


def _count(node: Compute, record: Intrinsic, mode: Mode = "points") -> int:
    return sum(1 for _ in mappings(node, record, mode))


def _exhaustive(record: Intrinsic) -> Iterator[Exhaustive]:
    node = core("C2D", record)
    (found,) = match(node, record)
    x, z = found.access, found.intrinsic_access
    total, partial = 3 ** len(found.loops), 4 ** len(found.loops)
    yield Exhaustive("algorithm 4 as published, every loop mapped", total, algorithm4.count(x, z))
    yield Exhaustive("algorithm 4 as published, loops may stay outside", partial, algorithm4.count(x, z, partial=True))
    yield Exhaustive("algorithm 4 on mapped loops", partial, algorithm4.count(x, z, partial=True, mask=True))
    yield Exhaustive("algorithm 4 on mapped loops, and rule R", partial, _count(node, record))


# Accelerators ---------------------------------------------------------------------------------------------------------


def _accelerator(name: str) -> Accelerator:
    record = standard().find(name)
    node = core("C3D", record)
    (found,) = match(node, record)
    compat = list(mappings(node, record, "amos-compat"))
    refused: dict[str, int] = {}
    for each in compat:
        check = _refusing_check(each)
        if check is not None:
            refused[check] = refused.get(check, 0) + 1
    return Accelerator(
        name, len(found.points), _count(node, record), len(compat), len(compat) - sum(refused.values()), refused,
        _count(node, record, "signature"), ACCELERATORS[name], _count(core("C2D", record), record),
    )  # fmt: skip


def _refusing_check(mapping: Mapping) -> str | None:
    """The check that refuses a mapping, which is run in emulation too; None if it is valid."""
    refusal = judge(mapping, "points").refusal
    return None if refusal is None else refusal.check


# Table 5.4 ------------------------------------------------------------------------------------------------------------


def _layers(record: Intrinsic) -> Iterator[Layer]:
    for chosen in CHOSEN:
        whole = place(chosen.configuration, chosen.mapping, record)
        valid = judge(whole).refusal is None
        yield Layer(chosen.name, chosen.mapping, whole.fused, whole.calls, round(whole.utilisation, 4), valid)


# Table 5.1 ------------------------------------------------------------------------------------------------------------


def _networks(record: Intrinsic) -> Iterator[Mapped]:
    for network in NETWORKS:
        compat, plain = network.build(True), network.build(False)
        yield Mapped(
            network.name, network.operators, network.xla, network.xla_fails_on, network.mapped,
            len(mapped(compat, record, clean=False)), len(mapped(plain, record)), operators(plain), network.derivation,
        )  # fmt: skip


def mapped(graph: Graph, record: Intrinsic, *, clean: bool = True) -> tuple[Compute, ...]:
    """The nodes of a graph that `record` has a mapping for, loops of extent 1 added where it needs them.

    `clean` first moves out what the sums do not need.
    """
    return tuple(
        node
        for node in graph.nodes
        if node.accum is not None
        and any(True for _ in mappings(canonicalise(node) if clean else Canonical((), node), record, complete=True))
    )


# Claims ---------------------------------------------------------------------------------------------------------------


def _claims(found: Report) -> Iterator[Claim]:
    for operator in found.operators:
        yield _count_claim("spec3-E1", f"mappings of {operator.operator}", operator.thesis, operator.mappings,
                           f"counted by rule R for {WMMA}")  # fmt: skip
    yield from _exhaustive_claims(found.exhaustive)
    yield from _accelerator_claims({row.record: row for row in found.accelerators})
    for row in found.networks:
        yield _count_claim("spec3-E4", f"{row.network}: operators mapped", row.thesis, row.mapped,
                           "counted in the network as AMOS's code has it")  # fmt: skip
        bar = STANDARD_MAPPED.get(row.network, row.thesis)
        yield Claim("spec3-E4", f"{row.network}, standard network", NOT_STATED, row.standard, bar, "=",
                    "the usual network after clean-up, whose operators are not those of AMOS's code")  # fmt: skip


def _exhaustive_claims(found: tuple[Exhaustive, ...]) -> Iterator[Claim]:
    literal, _, masked, ruled = (row.accepted for row in found)
    yield _count_claim("spec3-E2", "mappings of C2D, by rule R", 35, ruled, "of all assignments of loops")
    for subject, ours, bar in (("C2D, algorithm 4 literally", literal, 1), ("C2D, algorithm 4 masked", masked, 49)):
        reason = "the published algorithm alone does not give the published 35; rule R is added to it"
        yield Claim("spec3-E2", subject, NOT_STATED, ours, bar, "=", reason)


def _accelerator_claims(rows: dict[str, Accelerator]) -> Iterator[Claim]:
    reasons = {"GEMV": "7 is the count of C2D; no rule gives it for C3D"}
    for name, row in rows.items():
        reason = reasons.get(name, "counted by the rule of AMOS's code")
        yield _count_claim("spec3-E3", f"mappings of C3D onto {name}", row.thesis, row.compat, reason)
    gemv = rows["GEMV"]
    yield Claim("spec3-E3", "mappings of C2D onto GEMV", NOT_STATED, gemv.points_c2d, gemv.thesis, "=",
                "the published count of C3D is that of C2D")  # fmt: skip
    for name, row in rows.items():
        refused = ", ".join(f"{count} by {check}" for check, count in row.refused.items()) or "none"
        yield Claim("spec3-E3", f"right ones of C3D onto {name}", NOT_STATED, row.valid, row.compat, "=",
                    f"run in emulation; refused: {refused} (V1: one that is no function)")  # fmt: skip


def _count_claim(name: str, subject: str, published: int, ours: int, reason: str) -> Claim:
    """A count that is to be the published one."""
    return Claim(name, subject, str(published), ours, published, "=", reason)


# Tables ---------------------------------------------------------------------------------------------------------------


def _tables(found: Report) -> Iterator[Table]:
    yield Table(
        "Table 5.1: operators of networks mapped to Tensor Core (WMMA 16x16x16)",
        _columns("network", "thesis: operators", "XLA", "mapped", "ours: mapped", "standard", "kernels"),
        tuple(
            (row.network, *map(str, (row.operators, row.xla, row.thesis, row.mapped, row.standard, row.kernels)))
            for row in found.networks
        ),
        "ours: networks as AMOS's code has them; standard: the usual ones after clean-up; kernels: after our fusion",
    )
    yield Table(
        "Table 5.3: mappings per operator onto WMMA 16x16x16",
        _columns("operator", "match points", "mappings", "thesis", "signature"),
        tuple(
            (row.operator, *map(str, (row.match_points, row.mappings, row.thesis, row.signature)))
            for row in found.operators
        ),
    )
    yield Table(
        "Assignments of C2D's seven loops to three intrinsic loops",
        {"rule": "left", "assignments": "right", "accepted": "right"},
        tuple((row.rule, str(row.assignments), str(row.accepted)) for row in found.exhaustive),
    )
    yield Table(
        "Mappings of C3D onto invented accelerators",
        _columns("record", "match points", "rule R", "compat", "valid", "signature", "thesis", "rule R on C2D"),
        tuple(
            (row.record, *map(str, (row.match_points, row.points, row.compat, row.valid, row.signature, row.thesis,
                                    row.points_c2d)))
            for row in found.accelerators
        ),
        "compat: unions up to 15 match points, else only that of all, no function; all others ran in emulation.\n"
        "The thesis's 7 for GEMV is the count of C2D; no rule gives it for C3D.",
    )  # fmt: skip
    yield Table(
        f"Table 5.4: mappings chosen for ResNet-18, batch {BATCH}, tile 16x16x16: {found.kinds} kinds",
        {"layer": "left", "mapping": "left", "fused extents": "right", "calls": "right", "utilisation": "right",
         "valid": "left"},
        tuple(
            (row.name, row.mapping, " x ".join(map(str, row.fused)), str(row.calls), f"{row.utilisation:.4f}",
             "yes" if row.valid else "no")
            for row in found.layers
        ),
    )  # fmt: skip


def _columns(first: str, *others: str) -> dict[str, str]:
    return {first: "left", **dict.fromkeys(others, "right")}
