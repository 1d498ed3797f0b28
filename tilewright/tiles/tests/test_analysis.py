"""Cycles, energy and the use of each level: worked numbers, agreement of the ways to add up, and names of metrics."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.random_tiles import random_case
from tilewright.errors import CompileError
from tilewright.expr.text import parse_graph
from tilewright.machine.description import Accelerator, Machine
from tilewright.machine.registry import names, resolve
from tilewright.tiles.analysis import Analyser, analyse
from tilewright.tiles.energy import access_energies, dram_energy, mac_energy, sram_energy
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.machines import resources
from tilewright.tiles.movement import Boundaries
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.timeline import steps
from tilewright.tiles.topology import Topology
from tilewright.tiles.tree import TileTree


def problem(text: str) -> Problem:
    return Problem.of(parse_graph(text).nodes)


def two_products() -> tuple[Problem, TileTree]:
    """The case 2mm of TileFlow's artifact in words of 8 bits; a maximum stands for its exponential."""
    subject = problem("""
        input A: i8[512, 64]
        input B: i8[64, 512]
        input D: i8[512, 64]
        C: i8[m:512, l:512] += A[m, k] * B[k, l] over k:64
        X: i8[m:512, l:512] = max(C[m, l], 0)
        E: i8[m:512, n:64] += X[m, l] * D[l, n] over l:512
        output E""")
    return subject, parse_tree("""@DRAM for l:32, m:64 { pipe[
        par m:2, l:4 { @RF for m:4, l:4, k:64 { op C } },
        seq[par m:2, l:4 { @RF for m:4, l:4 { op X } }, par m:2, l:4 { @RF for m:4, l:4, n:64 { op E } }]] }""")


ARTIFACT = Resources(
    (
        Level("DRAM", word_bits=8, technology="dram"),
        Level("RF", 64 * 1024, instances=16, word_bits=8, technology="regfile", read_words_per_cycle=2),
    ),
    units=16,
)


def test_spec1_g28_latency_of_two_products() -> None:
    subject, tree = two_products()
    found = analyse(tree, subject, ARTIFACT)
    assert found.cycles == 3_178_496
    assert found.units == 16
    assert found.bottleneck == "RF read"
    assert found.levels[1].slowdown == 1.5


def test_spec1_g29_operations_of_two_products() -> None:
    subject, tree = two_products()
    assert analyse(tree, subject, ARTIFACT).operations == 33_816_576


def test_spec1_g30_energy_of_two_products() -> None:
    subject, tree = two_products()
    dram = analyse(tree, subject, ARTIFACT, compat_evict=True).levels[0]
    assert dram.accesses == 7_340_032
    assert dram.energy == 734_003_200
    read, write, source = access_energies(ARTIFACT.levels[1])
    assert (round(read, 4), round(write, 4), source) == (2.0955, 2.0955, "line")


def test_spec1_g31_table_of_energies() -> None:
    assert sram_energy(256 * 1024, 16, line=True) == pytest.approx(13.8392, abs=5e-5)
    assert sram_energy(6, 16) == pytest.approx(0.975169, abs=5e-7)
    assert dram_energy(16) == 200
    assert mac_energy(16, 16) == 1
    # A megabyte costs less than DRAM, which the line would exceed from 4 MB on.
    assert sram_energy(4 << 20, 16, line=True) > dram_energy(16) > sram_energy(4 << 20, 16)


GEMM = """
    input A: f16[64, 32]
    input B: f16[32, 48]
    C: f16[m:64, n:48] += A[m, k] * B[k, n] over k:32
    output C"""
GEMM_TREE = "@DRAM for m:2, n:3 { par m:4 { @L1 for k:32 { par m:8, n:16 { @RF for once:1 { op C } } } } }"


def test_every_level_of_a_product_on_edge() -> None:
    found = analyse(parse_tree(GEMM_TREE), problem(GEMM), resources(resolve("edge")))
    dram, l1, rf = found.levels
    assert dram.read == {"A": 64 * 32, "B": 2 * 32 * 48, "C": 0}
    assert dram.update == {"A": 0, "B": 0, "C": 64 * 48}
    assert l1.fill == {"A": 64 * 32, "B": 4 * 2 * 32 * 48, "C": 0}  # B goes to four cores
    assert l1.read == {"A": 3 * 64 * 32, "B": 4 * 2 * 32 * 48, "C": 0}
    assert rf.read == {"A": 64 * 48 * 32, "B": 64 * 48 * 32, "C": 64 * 48 * 32}
    assert found.operations == 64 * 48 * 32
    assert found.busiest == 2 * 3 * 32
    assert found.units == 4 * 8 * 16
    assert l1.footprint_bytes == 2 * (8 * 32 + 32 * 16 + 8 * 16)
    assert l1.capacity_use == l1.footprint_bytes / (4 << 20)
    assert (l1.instances, l1.spatial_use) == (4, 1)
    assert (rf.instances, rf.spatial_use) == (512, 512 / 4096)
    reads, writes = (64 * 32 + 2 * 32 * 48) / 30, 64 * 48 / 30
    assert found.cycles == max(reads, writes, 192) == 192
    assert found.bottleneck == "compute"
    assert found.utilisation == 64 * 48 * 32 / (192 * 4096)
    assert found.energy == found.operation_energy + sum(level.energy for level in found.levels)


def test_metrics_have_the_names_of_the_reports() -> None:
    metrics = analyse(parse_tree(GEMM_TREE), problem(GEMM), resources(resolve("edge"))).metrics()
    assert metrics["Cycle"] == 192
    assert metrics["Flops"] == 64 * 48 * 32
    assert metrics["DRAM::Read"] == metrics["DRAM::Read::A"] + metrics["DRAM::Read::B"]
    for name in ("Update", "Fill", "Accesses", "Energy", "SlowDown", "CapUtil", "SpatialUtil"):
        assert f"L1::{name}" in metrics
    assert metrics["MEM::L1"] == metrics["L1::CapUtil"]
    assert metrics["SPATIAL::L1"] == 1


def test_bandwidth_decides_where_it_is_short() -> None:
    machine = resources(resolve("edge"))
    slow = replace(machine, levels=(replace(machine.levels[0], read_words_per_cycle=1.0), *machine.levels[1:]))
    found = analyse(parse_tree(GEMM_TREE), problem(GEMM), slow)
    assert found.cycles == 64 * 32 + 2 * 32 * 48
    assert found.bottleneck == "DRAM read"
    assert found.levels[0].slowdown == found.cycles / 192
    assert found.levels[0].demand_words_per_cycle == (found.cycles + 64 * 48) / found.cycles


def test_a_pipe_may_wait_for_its_first_step() -> None:
    subject, tree = two_products()
    found = analyse(tree, subject, ARTIFACT, exact_pipe=True)
    assert found.cycles == 3_178_496 + 3_145_728 / 2048


@pytest.mark.parametrize("seed", range(60))
def test_steps_load_and_store_what_moves(seed: int) -> None:
    """The steps of the outermost nests add up to the movement, without clipped edges on several units."""
    case = random_case(random.Random(seed))
    boundaries = Boundaries(Topology(case.tree, case.problem, case.resources), compat_evict=False)
    point = boundaries.point()
    if any(loop.spatial and loop.level == 0 for loops in boundaries.topology.loops.values() for loop in loops):
        return
    found = steps(boundaries, point)
    loads: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    for top, tensors in boundaries.traffic_at(point).moved.items():
        if boundaries.topology.level(top) == 0:
            loads.update({name: moved.loads for name, moved in tensors.items()})
            stores.update({name: moved.stores for name, moved in tensors.items()})
    assert {name: int(np.sum(count)) for name, count in found.loads.items()} == dict(loads)
    assert {name: int(np.sum(count)) for name, count in found.stores.items()} == dict(stores)
    for path in found.visits:
        share = found.share[found.visit == found.visits.index(path)].sum()
        assert share == pytest.approx(1) or share == 0


def test_words_past_a_level_take_their_time_at_the_port() -> None:
    machine = resources(resolve("tileflow-rtl"))
    tree = "@DRAM for m:2, n:3 {{ @L1 for m:2, k:32 {} {{ par m:16, n:16 {{ @RF for once:1 {{ op C }} }} }} }}"
    held, past = (
        analyse(parse_tree(tree.format(said)), problem(GEMM), machine, mode="stepwise") for said in ("", "bypass B")
    )
    # Each row block of a step reads its 16 columns of B, 32 deep, from DRAM: twice as often as once a step.
    assert past.levels[0].read["B"] == 2 * held.levels[0].read["B"]
    # Six steps load 512 words more. The last one computes as slowly as its 1024 words of B arrive, not for 64 cycles.
    assert past.cycles - held.cycles == 6 * 512 / 4 + (1024 / 4 - 64)


def test_a_batch_is_analysed_as_one_by_one() -> None:
    subject, machine = problem(GEMM), resources(resolve("edge"))
    tree = parse_tree("@DRAM for m, n { par m:4 { @L1 for k:32 { par m, n { @RF for once:1 { op C } } } } }")
    rows = [[2, 3, 8, 16], [4, 6, 4, 8], [16, 1, 1, 48]]
    analyser = Analyser(tree, subject, machine)
    batch = analyser.analysis(np.array(rows))
    for number, row in enumerate(rows):
        one = analyser.analysis(row)
        assert batch.cycles[number] == one.cycles
        assert batch.energy[number] == pytest.approx(one.energy)
        assert batch.bottleneck[number] == one.bottleneck
        assert batch.levels[1].footprint_bytes[number] == one.levels[1].footprint_bytes
    with pytest.raises(Unanalysable, match="step-wise latency of a batch") as raised:
        analyser.analysis(np.array(rows), mode="stepwise")
    assert raised.value.help


# Machines -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in names() if name != "host"])
def test_every_machine_has_levels(name: str) -> None:
    machine = resolve(name)
    found = resources(machine)
    assert found.levels[0].name == "DRAM"
    assert found.levels[0].technology == "dram"
    assert len({level.name for level in found.levels}) == len(found.levels) > 1
    assert found.units is not None
    assert sum(units.count or 0 for units in found.classes) >= max(1, found.levels[-1].instances)
    assert all(inner.capacity_bytes for inner in found.levels[1:])


def test_the_validated_accelerator() -> None:
    """Spec 1, section 5.1, and the word counts of the artifact."""
    machine: Machine = resolve("tileflow-rtl")
    assert isinstance(machine, Accelerator)
    assert machine.units == 256
    found = {level.name: level for level in resources(machine).levels}
    assert found["L1"].capacity_bytes == 131_072 * 2
    assert found["RF"].capacity_bytes == 3 * 2
    assert (found["DRAM"].read_words_per_cycle, found["L1"].read_words_per_cycle) == (4, 32)
    assert found["L1"].read_energy_macs == pytest.approx(sram_energy(256 * 1024, 16, line=True), abs=5e-5)


def test_a_tree_of_other_levels_is_refused() -> None:
    with pytest.raises(CompileError, match="level REG does not exist") as raised:
        analyse(parse_tree("@DRAM for m:64, n:48, k:32 { @REG for once:1 { op C } }"), problem(GEMM), ARTIFACT)
    assert raised.value.help == "one of DRAM, RF"


def test_machines_of_the_experiments() -> None:
    """Peaks and sizes of spec 1, section 6.1."""
    ascend, xeon = resolve("ascend-910"), resources(resolve("xeon-gold-6240"))
    assert isinstance(ascend, Accelerator)
    found = resources(ascend)
    assert 2 * found.units * found.operations_per_cycle * ascend.clock_hz == pytest.approx(320e12)
    assert [level.capacity_bytes for level in found.levels[1:]] == [1 << 20, 256 << 10, 384 << 10]
    assert found.levels[0].read_words_per_cycle * 2 * ascend.clock_hz == pytest.approx(1200e9)
    assert [level.name for level in xeon.levels] == ["DRAM", "L3", "L2", "L1", "REG"]
    assert [level.instances for level in xeon.levels] == [1, 1, 18, 18, 18]
    assert xeon.units == 18 * 2 * 16
    assert xeon.levels[2].capacity_bytes * 18 == 18 << 20  # 18 MB of L2
    assert [level.name for level in resources(resolve("sm_80")).levels] == ["DRAM", "SHARED", "REG"]
