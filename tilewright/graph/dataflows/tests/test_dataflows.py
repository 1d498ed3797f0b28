"""The named dataflows: their trees as the specification writes them, all legal, with factors to search."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.expr.graph import GraphBuilder
from tilewright.expr.ops import attention as attention_ops
from tilewright.expr.text import parse_graph
from tilewright.graph.chain.workloads import CONV_CHAINS, unpadded_convolutions
from tilewright.graph.dataflows.table import ATTENTION, CONVOLUTIONS
from tilewright.graph.tree_factors import TreeFactors
from tilewright.machine.registry import resolve
from tilewright.tiles.footprints import working_set
from tilewright.tiles.legality import SplitSoftmax, violations
from tilewright.tiles.machines import resources
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import Kind, Scope, Tile, TileTree, leaves, node_at, same_path

LEVELS = ("DRAM", "L1", "L0")
CLOUD = ("DRAM", "L2", "L1", "L0")


def problem(text: str) -> Problem:
    return Problem.of(parse_graph(text).nodes)


def products() -> Problem:
    """Attention without softmax, one batch: as the public artifact has it."""
    return problem("""
        input Q: f32[2, 8, 4]
        input K: f32[2, 4, 6]
        input V: f32[2, 6, 4]
        QK: f32[b:2, m:8, l:6] += Q[b, m, a] * K[b, a, l] over a:4
        PV: f32[b:2, m:8, n:4] += QK[b, m, l] * V[b, l, n] over l:6
        output PV
    """)


def heads() -> Problem:
    """Attention with the five operators of softmax."""
    b = GraphBuilder()
    q, k, v = (b.input(name, (2, 3, 8, 4), "f32") for name in "qkv")
    return Problem.of(b.finish([attention_ops.attention(q, k, v)]).nodes)


def convolutions(maps: bool = False) -> Problem:
    between = "R: f32[b:1, l:4, y:8, x:8] = tanh(C1[b, l, y, x])" if maps else ""
    read = "R" if maps else "C1"
    return problem(f"""
        input I: f32[1, 4, 10, 10]
        input W: f32[4, 4, 3, 3]
        input U: f32[2, 4, 3, 3]
        C1: f32[b:1, l:4, h:8, w:8] += I[b, c, h + r, w + s] * W[l, c, r, s] over c:4, r:3, s:3
        {between}
        C2: f32[b:1, k:2, h:6, w:6] += {read}[b, l, h + u, w + v] * U[k, l, u, v] over l:4, u:3, v:3
        output C2
    """)


QK = "@L1 for b, m, l, a { par b, m, l { @L0 for b:1, m:1, l:1, a:1 { op QK } } }"
PV = "@L1 for b, m, n, l { par b, m, n { @L0 for b:1, m:1, n:1, l:1 { op PV } } }"
CONV2 = "@L1 for b, k, h, w, l, u, v { par b, k, h, w { @L0 for b:1, k:1, h:1, w:1, l:1, u, v { op C2 } } }"
# Rows follow those of C2: what a block of it needs is computed one by one.
BLOCKS = """@L1 for b, l, c, r, s, C1.h:8, C1.w:8 { par b, l {
    @L0 for C1.h:1, C1.w:1, b:1, l:1, c:1, r, s { op C1 } } }"""

EXPECTED = {
    "Layerwise": f"seq[ @DRAM for b, m, l {{ par b, m {{ {QK} }} }}, @DRAM for b, m, l {{ par b, m {{ {PV} }} }} ]",
    "Uni-pipe": f"@DRAM for b {{ pipe[ {QK}, {PV} ] }}",
    "FLAT-HGran": f"@DRAM for b {{ par b {{ shar[ {QK}, {PV} ] }} }}",
    "FLAT-RGran": f"@DRAM for b, m {{ par b, m {{ shar[ {QK}, {PV} ] }} }}",
    "Chimera": f"""@DRAM for b, m, l {{ par b, m {{ seq[ @DRAM for a {{ {QK} }}, @DRAM for n {{ {PV} }} ] }} }}""",
    "TileFlow": f"@DRAM for b, m, l {{ pipe[ par b, m {{ {QK} }}, par b, m {{ {PV} }} ] }}",
}


@pytest.mark.parametrize("name", ATTENTION)
def test_trees_of_attention_are_those_of_the_table(name: str) -> None:
    assert ATTENTION[name].tree(products(), LEVELS) == parse_tree(EXPECTED[name])


def test_trees_of_convolutions_are_those_of_the_table() -> None:
    trees = {name: dataflow.tree(convolutions(), LEVELS) for name, dataflow in CONVOLUTIONS.items()}
    assert trees["Fused-Layer"] == parse_tree(
        f"@DRAM for b, h, w {{ pipe[ par h, w {{ {BLOCKS} }}, par h, w {{ {CONV2} }} ] }}"
    )
    assert trees["TileFlow"] == parse_tree(
        f"@DRAM for b, h, w, l {{ pipe[ par h, w {{ {BLOCKS} }}, par h, w {{ @DRAM for k {{ {CONV2} }} }} ] }}"
    )
    rows = """@L1 for b, l, C1.w, c, r, s, C1.h:8 { par b, l, C1.w {
        @L0 for C1.h:1, b:1, l:1, C1.w:1, c:1, r, s { op C1 } } }"""
    assert trees["ISOS"] == parse_tree(f"@DRAM for b, h {{ pipe[ par h {{ {rows} }}, par h {{ {CONV2} }} ] }}")


def test_a_second_convolution_of_one_point_has_the_rows_of_the_first() -> None:
    given = Problem.of(unpadded_convolutions(CONV_CHAINS[0], "f16"))
    tree = CONVOLUTIONS["Fused-Layer"].tree(given, LEVELS)
    first = "@L1 for l, p, q, c, r, s { par l, p, q { @L0 for l:1, p:1, q:1, c:1, r, s { op T } } }"
    second = "@L1 for k, p, q, l { par k, p, q { @L0 for k:1, p:1, q:1, l:1 { op Y } } }"
    assert tree == parse_tree(f"@DRAM for p, q {{ pipe[ par p, q {{ {first} }}, par p, q {{ {second} }} ] }}")


def test_blocks_of_the_first_convolution_need_no_room_in_the_registers() -> None:
    """Its rows run one by one, so that a block of the image may be larger than the registers of a unit."""
    machine = resources(resolve("edge"))
    for number, largest in ((0, 4), (5, 4)):
        given = Problem.of(unpadded_convolutions(CONV_CHAINS[number], "f16"))
        space = TreeFactors(
            CONVOLUTIONS["Fused-Layer"].tree(given, [level.name for level in machine.levels]), given, machine
        )
        start = space.start()
        assert start is not None
        drawn = space.completions(start, 50, np.random.default_rng(0))
        assert min(factors[0] * factors[1] for factors in drawn) <= given.compute("Y").axes[1].size ** 2 / largest**2


CASES = [
    *((name, dataflow, make) for name, dataflow in ATTENTION.items() for make in (products, heads)),
    *((f"conv {name}", dataflow, make) for name, dataflow in CONVOLUTIONS.items()
      for make in (convolutions, lambda: convolutions(maps=True))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("levels", [LEVELS, CLOUD])
def test_trees_are_legal_with_open_and_with_drawn_factors(
    case: tuple[str, object, object], levels: tuple[str, ...]
) -> None:
    _, dataflow, make = case
    given: Problem = make()  # type: ignore[operator]
    tree: TileTree = dataflow.tree(given, levels)  # type: ignore[operator]
    assert list(violations(tree, given)) == []
    factors = TreeFactors(tree, given)
    filled = factors.filled(factors.sample(np.random.default_rng(0)))
    assert list(violations(filled, given)) == []
    assert factors.size > 100
    touched = working_set(filled, given)
    for name, tensor in given.tensors().items():  # all of every tensor from outside, whatever the factors
        if name in touched:
            assert touched[name] == np.prod(tensor.shape)


@pytest.mark.parametrize("name", ["Chimera", "TileFlow"])
def test_keys_are_cut_in_the_shared_tile_only_where_no_softmax_needs_them_whole(name: str) -> None:
    dataflow = ATTENTION[name]
    for given, allowed in ((products(), True), (heads(), False), (dataflow.rewrite(heads()), True)):
        tree = dataflow.tree(given, LEVELS)
        assert isinstance(tree, Tile)
        place = [loop.name for loop in tree.loops].index(given.names[given.computes[-1].name, "l"])
        factors = TreeFactors(tree, given)
        start = factors.start()
        assert start is not None
        assert (factors.decide(start, place, 2) is not None) == allowed
        cut = factors.filled((*(None,) * place, 2, *(None,) * (len(start) - place - 1)))
        assert any(isinstance(each, SplitSoftmax) for each in violations(cut, given)) != allowed


def test_the_other_dataflows_run_the_softmax_as_it_is() -> None:
    given = heads()
    assert [name for name, each in ATTENTION.items() if each.rewrite(given) != given] == ["Chimera", "TileFlow"]
    assert all(each.rewrite(products()) == products() for each in ATTENTION.values())


def test_what_is_fused_meets_under_the_scope_of_its_name() -> None:
    kinds = {"Uni-pipe": Kind.PIPE, "FLAT-HGran": Kind.SHAR, "FLAT-RGran": Kind.SHAR, "Chimera": Kind.SEQ,
             "TileFlow": Kind.PIPE}  # fmt: skip
    for name, kind in kinds.items():
        tree = ATTENTION[name].tree(heads(), LEVELS)
        places = [path for path, _ in leaves(tree)]
        scope = node_at(tree, same_path(places[0], places[-1]))
        assert isinstance(scope, Scope)
        assert scope.kind is kind
        assert len(scope.children) == 3


@pytest.mark.parametrize("name", ATTENTION)
def test_convolutions_are_no_attention(name: str) -> None:
    with pytest.raises(InvalidArgument, match="the operators C1, C2 are no attention"):
        ATTENTION[name].tree(convolutions(), LEVELS)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_attention_is_no_pair_of_convolutions(name: str) -> None:
    with pytest.raises(InvalidArgument, match="the operators QK, PV are no chain of two convolutions"):
        CONVOLUTIONS[name].tree(products(), LEVELS)


def test_a_dataflow_needs_a_level_on_the_chip() -> None:
    with pytest.raises(InvalidArgument, match="a dataflow over the levels DRAM, L0"):
        ATTENTION["Layerwise"].tree(products(), ("DRAM", "L0"))
