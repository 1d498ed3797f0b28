"""The cost of expressions by their movement: worked numbers, and that no tree of theirs costs less."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Compute
from tilewright.expr.text import parse_graph
from tilewright.tiles.analysis import analyse
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.streamed import streamed

MACHINE = Resources(
    (
        Level("DRAM", instances=1, technology="dram", read_words_per_cycle=4, write_words_per_cycle=2),
        Level("L1", 1024, instances=2, read_words_per_cycle=8, write_words_per_cycle=8),
        Level("RF", 6, instances=8, technology="regfile", read_words_per_cycle=3, write_words_per_cycle=3),
    ),
    units=8,
)


def computes(text: str) -> tuple[Compute, ...]:
    return parse_graph(text).nodes


ADD = computes("input a: f16[64]\ninput b: f16[64]\nc: f16[i:64] = a[i] + b[i]\noutput c")


def test_every_tensor_moves_once_through_every_level() -> None:
    found = streamed(ADD, ["c"], MACHINE)
    dram, l1, rf = found.levels
    assert (dram.read, dram.update, dram.fill) == ({"a": 64, "b": 64}, {"c": 64}, {})
    assert (l1.fill, l1.read, l1.update) == ({"a": 64, "b": 64}, {"a": 64, "b": 64}, {"c": 64})
    assert (rf.read, rf.update) == ({"a": 64, "b": 64, "c": 0}, {"c": 64})
    assert found.operations == 64
    assert found.cycles == max(128 / 4, 64 / 2, 64 / 8)
    assert found.bottleneck == "DRAM read"
    assert found.energy == pytest.approx(found.operation_energy + sum(use.energy for use in found.levels))


def test_wider_elements_take_more_words_and_more_energy() -> None:
    wide = computes("input a: f32[64]\ninput b: f32[64]\nc: f32[i:64] = a[i] + b[i]\noutput c")
    narrow = streamed(ADD, ["c"], MACHINE)
    assert streamed(wide, ["c"], MACHINE).cycles == 2 * narrow.cycles
    assert streamed(wide, ["c"], MACHINE).energy > 2 * narrow.energy


def test_what_stays_inside_moves_in_no_memory_but_the_registers() -> None:
    softmax = computes("""
        input x: f16[4, 8]
        m: f16[i:4] max= x[i, j] over j:8
        e: f16[i:4, j:8] = exp(x[i, j] - m[i])
        s: f16[i:4] += e[i, j] over j:8
        y: f16[i:4, j:8] = e[i, j] / s[i]
        output y
    """)
    found = streamed(softmax, ["y"], MACHINE)
    assert (found.levels[0].read, found.levels[0].update) == ({"x": 32}, {"y": 32})
    assert found.levels[2].read["e"] == 32 + 32
    assert found.levels[2].read["s"] == 32 + 32  # the sum adds to itself, and divides
    assert found.operations == 4 * 32


def test_steps_and_tables_are_read_where_an_index_leads_only() -> None:
    strided = computes("input x: f16[100]\ny: f16[i:10] = x[10 * i]\noutput y")
    assert streamed(strided, ["y"], MACHINE).levels[0].read == {"x": 10}
    table = computes("input t: f16[1000, 4]\ninput n: i64[3]\ny: f16[i:3, j:4] = t[n[i], j]\noutput y")
    assert streamed(table, ["y"], MACHINE).levels[0].read == {"t": 12, "n": 3}


def test_no_tree_costs_less() -> None:
    tree = parse_tree("@DRAM for i:4 { par i:2 { @L1 for i:2 { par i:4 { @RF for once:1 { op c } } } } }")
    found, bound = analyse(tree, Problem.of(ADD), MACHINE), streamed(ADD, ["c"], MACHINE)
    assert (found.cycles, found.energy, found.operations) == (bound.cycles, bound.energy, bound.operations)
    assert found.utilisation == bound.utilisation


def test_nothing_to_compute_takes_next_to_no_time() -> None:
    empty = computes("input a: f16[0]\nc: f16[i:0] = a[i]\noutput c")
    assert streamed(empty, ["c"], MACHINE).cycles < 1e-6
