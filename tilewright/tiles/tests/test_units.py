"""Units for classes of operators: legality, draws, and what an analysis says of machines with vector units."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.random_tiles import random_case
from tilewright.expr.text import parse_graph
from tilewright.graph.chain.workloads import shaped, workload
from tilewright.graph.dataflows.table import ATTENTION
from tilewright.graph.tree_factors import TreeFactors
from tilewright.machine import resolve
from tilewright.tiles.analysis import analyse
from tilewright.tiles.capacity import Capacities
from tilewright.tiles.legality import violations
from tilewright.tiles.machines import resources
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources, Units
from tilewright.tiles.streamed import streamed
from tilewright.tiles.summary import facts, units_text
from tilewright.tiles.tree import SIMULTANEOUS, Scope, TileTree, leaves, walk

CHAIN = Problem.of(
    parse_graph("""
        input A: f16[16, 8]
        input B: f16[8, 32]
        input D: f16[32, 8]
        C: f16[m:16, l:32] += A[m, k] * B[k, l] over k:8
        X: f16[m:16, l:32] = exp(C[m, l])
        E: f16[m:16, n:8] += X[m, l] * D[l, n] over l:32
        output E""").nodes
)
SHARED = Resources(
    (Level("DRAM", instances=1), Level("L1", instances=2, array=(2, 1)), Level("RF", instances=32, array=(8, 2))),
    units=32,
    operation_energy_macs=1.0,
)
OWN = replace(SHARED, vector=Units("vector units", 8, (4, 1), 0.5, 3.0))


def chain(kind: str, c: int, x: int, e: int, level: str = "DRAM", hint: str = "") -> TileTree:
    """All three operators in one scope of a tile at `level`, with so many units for each."""
    return parse_tree(f"""@{level} for m:16 {{ {kind}[
        @L1 for k:8 {{ par l:{c} {hint} {{ @RF for l:{32 // c} {{ op C }} }} }},
        @L1 for once:1 {{ par l:{x} {hint} {{ @RF for l:{32 // x} {{ op X }} }} }},
        @L1 for l:32 {{ par n:{e} {hint} {{ @RF for n:{8 // e} {{ op E }} }} }}] }}""")


@pytest.mark.parametrize(
    ("tree", "shared", "own"),
    [
        (chain("pipe", 8, 4, 8), "one instance of L1 feeds 20 units, the machine has 16 there", ""),
        (chain("seq", 16, 4, 8), "", ""),
        (chain("seq", 16, 8, 8), "", "one instance of L1 feeds 8 vector units, the machine has 4 there"),
        (chain("pipe", 16, 4, 8), "one instance of L1 feeds 28 units, the machine has 16 there",
         "one instance of L1 feeds 24 matrix units, the machine has 16 there"),
        (chain("seq", 2, 16, 2), "",
         "the tree keeps 16 vector units busy, the machine has 8; "
         "one instance of L1 feeds 16 vector units, the machine has 4 there"),
        (chain("seq", 4, 4, 4, hint="with along_x(0)"),
         "one instance of L1 feeds 4 along Y, the machine has 2 there",
         "one instance of L1 feeds 4 along Y, the machine has 2 there; one instance of L1 feeds 4 along Y, the machine "
         "has 1 there"),
        (chain("pipe", 4, 4, 2, hint="with along_x(1)"),
         "one instance of L1 feeds 10 along X, the machine has 8 there", ""),
    ],
)  # fmt: skip
def test_every_class_has_units_of_its_own(tree: TileTree, shared: str, own: str) -> None:
    for machine, expected in ((SHARED, shared), (OWN, own)):
        broken = [each.message.removeprefix("L8 resources: ") for each in violations(tree, CHAIN, resources=machine)]
        assert "; ".join(broken) == expected


def test_matrix_and_vector_units_exchange_nothing_in_registers() -> None:
    tree = chain("seq", 2, 2, 2, level="L1")
    assert list(violations(tree, CHAIN, resources=SHARED)) == []
    (broken,) = violations(tree, CHAIN, resources=OWN)
    assert "C, E and X exchange data in RF, but matrix and vector units have registers of their own" in broken.message
    assert broken.help == "put the seq into a tile outside L1, so that they exchange it in L1"


def test_operators_of_one_class_may_exchange_data_in_registers() -> None:
    """Two products, and the exponential of it twice, each pair in a scope at L1."""
    text = """
        input A: f16[16, 8]
        input B: f16[8, 32]
        input D: f16[32, 8]
        C: f16[m:16, l:32] += A[m, k] * B[k, l] over k:8
        E: f16[m:16, n:8] += C[m, l] * D[l, n] over l:32
        X: f16[m:16, n:8] = exp(E[m, n])
        Y: f16[m:16, n:8] = tanh(X[m, n])
        output Y"""
    tree = parse_tree("""@DRAM for once:1 { seq[
        @L1 for m:16 { seq[@RF for k:8, l:32 { op C }, @RF for l:32, n:8 { op E }] },
        @L1 for m:16 { seq[@RF for n:8 { op X }, @RF for n:8 { op Y }] }] }""")
    assert list(violations(tree, Problem.of(parse_graph(text).nodes), resources=OWN)) == []


@pytest.mark.parametrize(("kind", "cycles"), [("seq", 16 * (32 + 16 + 32)), ("pipe", 16 * 32)])
def test_classes_work_at_the_same_time_in_a_pipe(kind: str, cycles: int) -> None:
    """C has 8 and E has 8 units, each a row's 256 multiply-adds; X has 4 that take two cycles for an exponential."""
    found = analyse(chain(kind, 8, 4, 8), CHAIN, OWN)
    assert found.cycles == cycles
    matrix, vector = found.classes
    products = 8 if kind == "seq" else 16
    assert (matrix.units.name, matrix.used, matrix.operations) == ("matrix units", products, 2 * 16 * 32 * 8)
    assert (vector.units.name, vector.used, vector.operations) == ("vector units", 4, 16 * 32)
    assert found.units == products + 4
    assert found.levels[-1].instances == products + 4
    assert matrix.utilisation == 2 * 16 * 32 * 8 / (cycles * 32)
    assert vector.utilisation == 16 * 32 / (cycles * 8 * 0.5)
    assert found.utilisation == found.operations / (cycles * (32 + 4))
    assert found.operation_energy == 2 * 16 * 32 * 8 + 3 * 16 * 32


def test_expressions_by_their_movement_run_on_units_of_their_class() -> None:
    exponentials = CHAIN.computes[1:2]
    assert streamed(exponentials, ["X"], SHARED).cycles == 16 * 32 / 32
    found = streamed(exponentials, ["X"], OWN)
    assert found.cycles == 16 * 32 / (8 * 0.5)
    assert [(each.used, each.operations) for each in found.classes] == [(32, 0), (8, 16 * 32)]
    assert found.classes[1].utilisation == 1


@pytest.mark.parametrize("seed", range(60))
def test_vector_units_of_the_same_rate_change_nothing_where_one_operator_runs_at_a_time(seed: int) -> None:
    roll = random.Random(seed)
    case = random_case(roll)
    while any(isinstance(node, Scope) and node.kind in SIMULTANEOUS for _, node in walk(case.tree)):
        case = random_case(roll)
    machine = case.resources or Resources(tuple(Level(name) for name in ("DRAM", "L1", "RF")))
    several = replace(machine, vector=Units("vector units", None))
    one, other = (analyse(case.tree, case.problem, each) for each in (machine, several))
    assert (one.cycles, one.energy, one.traffic) == (other.cycles, other.energy, other.traffic)
    assert sum(each.operations for each in other.classes) == one.operations


@pytest.mark.parametrize("name", ["FLAT-RGran", "TileFlow", "Uni-pipe"])
def test_drawn_trees_are_within_the_units_of_every_class(name: str) -> None:
    """Products of a pipe share the matrix units, and the softmax has all vector units."""
    dataflow = ATTENTION[name]
    problem = dataflow.rewrite(Problem.of(workload(shaped("attention", "mlp-mixer-512"), "f16")))
    machine = resources(resolve("edge-vector"))
    space = TreeFactors(dataflow.tree(problem, [level.name for level in machine.levels]), problem, machine)
    numbers = np.random.default_rng(0)
    start = space.start()
    assert start is not None
    drawn = np.array(space.completions(start, 200, numbers))
    assert len(drawn) >= 200
    most: dict[str, int] = {}
    for row in drawn[:40].tolist():
        tree = space.filled(tuple(row))
        assert list(violations(tree, problem, resources=machine)) == []
        for each in analyse(tree, problem, machine).classes:
            most[each.units.name] = max(most.get(each.units.name, 0), int(each.used))
    assert most["matrix units"] >= 512
    assert most["vector units"] >= 64


def test_a_batch_of_trees_is_checked_by_class() -> None:
    tree = parse_tree("""@DRAM for m:16 { pipe[
        @L1 for k:8 { par l { @RF for l { op C } } },
        @L1 for once:1 { par l { @RF for l { op X } } },
        @L1 for l:32 { par n:4 { @RF for n:2 { op E } } }] }""")
    rows = [(8, 4), (16, 4), (8, 8), (4, 1), (1, 16)]
    tops = [path[:2] for path, _ in leaves(tree)]
    factors: Mapping[tuple[tuple[int, ...], int], np.ndarray] = {  # type: ignore[type-arg]
        ((*tops[place], *(0,) * depth), 0): np.array([row[place] if depth == 1 else 32 // row[place] for row in rows])
        for place in range(2)
        for depth in (1, 2)
    }
    trees = [chain("pipe", c, x, 4) for c, x in rows]
    for machine in (SHARED, OWN):
        fits = Capacities(tree, CHAIN, machine).fit(factors)
        assert fits.tolist() == [not list(violations(each, CHAIN, resources=machine)) for each in trees]
    assert fits.tolist() == [True, False, False, True, False]


def test_edge_with_vector_units() -> None:
    machine, shared = resources(resolve("edge-vector")), resources(resolve("edge"))
    assert machine.vector == Units("vector units", 4 * 96, (32, 3), 1.0, 1.0)
    assert replace(machine, vector=None, levels=shared.levels) == shared
    assert machine.levels[:-1] == shared.levels[:-1]
    assert machine.levels[-1].instances == 4096 + 384


def test_classes_of_units_are_told_where_there_are_several() -> None:
    several, one = (facts(analyse(chain("seq", 8, 4, 8), CHAIN, each), CHAIN.tensors()) for each in (OWN, SHARED))
    assert "classes" not in one
    assert units_text(one) == f"8 units, {100 * one['utilisation']:.1f} % of their peak"
    assert several["classes"]["vector units"]["of"] == 8
    assert units_text(several) == "8 matrix units and 4 vector units, 20.0 % and 10.0 % of their peak"
