"""Double buffering: what a tile streams counts twice, in footprints, in rule L8 and in an analysis of many trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.random_tiles import CHAIN
from tilewright.expr.text import parse_graph
from tilewright.tiles.analysis import analyse
from tilewright.tiles.buffers import buffers
from tilewright.tiles.footprints import Accesses, footprints
from tilewright.tiles.legality import TooLarge, check
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources

PROBLEM = Problem.of(parse_graph(CHAIN.format(m=8, k=4, l=6, n=5)).nodes)
TREE = """@DRAM for m:{m}, l:{l} {{ {kind}[
    @L1 for m:{m0}, l:{l0}, k:4 {{ @RF for once:1 {{ op C }} }},
    @L1 for m:{m0}, l:{l0}, n:5 {{ @RF for once:1 {{ op E }} }} ] }}"""
MACHINE = Resources((Level("DRAM"), Level("L1", 400), Level("RF", 12)))


def tree(kind: str = "shar", m: int = 2, l: int = 3) -> str:
    return TREE.format(kind=kind, m=m, l=l, m0=8 // m, l0=6 // l)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        (tree(), "ABDE"),
        (tree(l=1), "AE"),  # B and D are loaded once
        (tree(m=1), "BD"),
        (tree(m=1, l=1), ""),
        (tree("seq", l=1), "ABDE"),  # B and D are dropped and loaded again in each step
        (tree("seq", m=1, l=1), ""),
        (f"@DRAM par m:2 {{ {tree(m=1, l=1).replace('m:8', 'm:4')} }}", ""),  # units at once, no steps
    ],
)
def test_what_steps_replace_is_streamed(text: str, twice: str) -> None:
    parsed = parse_tree(text)
    path = (0,) if text.startswith("@DRAM par") else ()
    found = buffers(Accesses(parsed, PROBLEM), path)
    assert "".join(name for name, count in found.items() if count == 2) == twice
    assert set(found) == set("ABDE")  # C lives inside


def test_streamed_tensors_count_twice_and_links_once() -> None:
    parsed = parse_tree(tree())
    assert footprints(parsed, PROBLEM, dedupe=True)[()] == 16 + 8 + 8 + 10 + 20
    assert footprints(parsed, PROBLEM, dedupe=True, double_buffer=True)[()] == 2 * (16 + 8 + 10 + 20) + 8
    assert footprints(parse_tree(tree("seq")), PROBLEM, double_buffer=True)[()] == 2 * (10 + 20) + 8


def test_what_a_seq_keeps_is_there_once_more_beside_every_child() -> None:
    text = tree("seq", l=1).replace("l:1 {", "l:1 keep B {")
    parsed = parse_tree(text)
    assert buffers(Accesses(parsed, PROBLEM), ())["B"] == 1


def test_a_machine_that_double_buffers_refuses_larger_trees() -> None:
    parsed = parse_tree(tree())
    check(parsed, PROBLEM, resources=MACHINE)
    with pytest.raises(TooLarge, match="keeps 464 bytes in L1, which holds 400"):
        check(parsed, PROBLEM, resources=replace(MACHINE, double_buffer=True))


def test_trees_of_a_batch_have_the_footprints_of_single_ones() -> None:
    machine = replace(MACHINE, double_buffer=True)
    opened = parse_tree("""@DRAM for m:?, l:? { seq[
        @L1 for m:?, l:?, k:4 { @RF for once:1 { op C } },
        @L1 for m:?, l:?, n:5 { @RF for once:1 { op E } } ] }""")
    shapes = [(1, 1), (2, 1), (1, 3), (2, 3), (8, 6)]
    factors = np.array([[m, l, 8 // m, 6 // l, 8 // m, 6 // l] for m, l in shapes])
    batch = analyse(opened, PROBLEM, machine, factors=factors)
    for number, (m, l) in enumerate(shapes):
        one = analyse(parse_tree(tree("seq", m, l)), PROBLEM, machine)
        assert [int(use.footprint_bytes) for use in one.levels] == [
            int(np.broadcast_to(use.footprint_bytes, len(shapes))[number]) for use in batch.levels
        ]
    once = analyse(opened, PROBLEM, MACHINE, factors=factors)
    assert np.all(batch.levels[1].footprint_bytes >= once.levels[1].footprint_bytes)
    assert np.all(batch.levels[2].footprint_bytes == once.levels[2].footprint_bytes)  # operands of the units
