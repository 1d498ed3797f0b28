"""Files that say what is fused: kernels run as a saved plan or a tile file says, and bad files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.compiler.compile import build, compile_graph
from tilewright.compiler.make_plan import make_plan
from tilewright.compiler.plan import Plan
from tilewright.compiler.tests.edited_trees import Edits, edited
from tilewright.compiler.tests.test_fused_products import ALWAYS, LARGE, MACHINE, SMALL, chain, fusion, inputs, planned
from tilewright.errors import CompileError, InvalidArgument, InvalidFile
from tilewright.expr.evaluate import evaluate
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_graph
from tilewright.machine import resolve_cpu
from tilewright.options import Options
from tilewright.runtime.loader import missing_features
from tilewright.tiles.file import TileFile, print_tile_file
from tilewright.tiles.legality import IllegalTree, TooLarge
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import InvalidTree


def tile_text(graph: Graph, plan: Plan, edits: Edits = ()) -> str:
    """The tile file of the kernel that computes a whole chain."""
    tree = plan.kernels[-1].scheduled.tree
    return edited(print_tile_file(TileFile(graph, Problem.of(graph.nodes), tree)), edits)


def file_of(folder: Path, graph: Graph, edits: Edits = ()) -> Options:
    path = folder / "chain.tile"
    path.write_text(tile_text(graph, planned(graph), edits))
    return Options(cache=False, fuse=path)


def test_a_tile_file_says_how_the_kernel_runs(tmp_path: Path) -> None:
    graph, machine = chain(LARGE), resolve_cpu(MACHINE)
    own = build(graph, machine, 1, ALWAYS).program
    assert build(graph, machine, 1, file_of(tmp_path, graph)).program == own
    other = file_of(tmp_path, graph, (("m:5 {", "m:10 {"), ("m:18", "m:9")))
    assert build(graph, machine, 1, other).program != own
    if not missing_features(machine.features):
        host = compile_graph(graph, MACHINE, threads=1, options=other)
        np.testing.assert_array_equal(host(*inputs(graph)), evaluate(graph, inputs(graph))[0])


def test_a_saved_plan_says_which_products_are_one(tmp_path: Path) -> None:
    """What is predicted not to pay is fused as the file says, and what it does not have stays apart."""
    graph, path = chain(SMALL), tmp_path / "chain.plan"
    path.write_text(json.dumps({"decisions": [], "trees": planned(graph).trees()}))
    assert fusion(planned(graph, Options(cache=False, fuse=str(path)))).chosen.startswith("one kernel")
    both = parse_graph("""
        graph both
        input A: f32[512, 512]
        input B: f32[512, 2048]
        input D: f32[2048, 64]
        input H: f32[64, 64]
        E: f32[m:64, n:64] += H[m, k] * H[k, n] over k:64
        C: f32[m:64, l:64] += E[m, k] * H[k, l] over k:64
        P: f32[m:512, l:2048] += A[m, k] * B[k, l] over k:512
        Q: f32[m:512, n:64] += P[m, l] * D[l, n] over l:2048
        output C
        output Q""")
    plan = planned(both)
    assert [kernel.name for kernel in plan.kernels if kernel.instruction] == ["E+C", "P+Q"]
    path.write_text(json.dumps({"trees": {"E+C": plan.trees()["E+C"]}}))
    found = planned(both, Options(cache=False, fuse=path))
    assert [kernel.name for kernel in found.kernels if kernel.instruction] == ["E+C", "P", "Q"]


def test_the_cache_knows_the_content_of_the_file(tmp_path: Path) -> None:
    graph = chain(LARGE)
    trees = []
    for edits in ((), (("m:5 {", "m:10 {"), ("m:18", "m:9"))):
        options = Options(cache=True, cache_dir=tmp_path / "cache", fuse=file_of(tmp_path, graph, edits).fuse)
        trees.append(build(graph, resolve_cpu(MACHINE), 1, options).stored_plan().trees["C+E"])
    assert trees[0] != trees[1]


# Bad files ------------------------------------------------------------------------------------------------------------


def refused(options: Options, graph: Graph) -> CompileError:
    with pytest.raises(CompileError) as caught:
        make_plan(graph, resolve_cpu(MACHINE), 1, options)
    assert caught.value.help or isinstance(caught.value, InvalidFile)
    return caught.value


def test_a_tree_of_another_graph(tmp_path: Path) -> None:
    options = file_of(tmp_path, chain(LARGE))
    longer = refused(options, chain((8, 512, 64, 64, 384)))
    assert isinstance(longer, InvalidTree | IllegalTree)
    assert longer.where.startswith("tile tree of C+E")
    named = refused(options, chain(LARGE, "max(@, 0.0)"))
    assert isinstance(named, InvalidArgument)
    assert (named.where, named.message) == (str(options.fuse), "the plan has no kernel 'C+E'")


def test_a_tree_of_products_that_cannot_be_one_kernel(tmp_path: Path) -> None:
    graph = chain(LARGE)
    shown = parse_graph(f"{tile_text(graph, planned(graph)).split('tree')[0]}output C")
    assert "there is no such kernel: C is read elsewhere too" in refused(file_of(tmp_path, graph), shown).message


def test_a_tree_whose_buffers_do_not_fit(tmp_path: Path) -> None:
    graph = chain((1, 1024, 64, 64, 512))
    whole = file_of(tmp_path, graph, (("@L3 for m:9 {", "@L3 for m:1 {"), ("m:19", "m:171")))
    error = refused(whole, graph)
    assert isinstance(error, IllegalTree)
    assert "L8 resources: a program keeps" in error.message


@pytest.mark.parametrize(
    ("leaf", "message", "help"),
    [
        ("op X as fma_16_f32_f32_6x64x4", "no intrinsic executes op C", "op C as fma_16_f32_f32_ROWSxCOLUMNSxDEPTH"),
        ("op C as fma_6x64x4", "no intrinsic executes op C as fma_6x64x4", "op C as fma_16_f32_f32_"),
        ("op C as fma_16_f32_f32", "no intrinsic executes op C as fma_16_f32_f32", "op C as fma_16_f32_f32_"),
        (
            "op C as fma_16_f32_f32_12x64x4",
            "L8 resources: a register tile has 12 rows by 4 vectors",
            "6 rows by 4 vectors",
        ),
        ("op C as fma_16_f32_f32_6x60x4", "a register tile has 60 columns of l, which has 512", "64, whole vectors of"),
        ("op C as fma_16_f32_f32_6x64x99", "one product takes 99 points of k, which has 64", "at most 16"),
    ],
)
def test_a_leaf_that_no_intrinsic_executes(tmp_path: Path, leaf: str, message: str, help: str) -> None:
    graph = chain(LARGE)
    error = refused(file_of(tmp_path, graph, (("op C as fma_16_f32_f32_6x64x4", leaf),)), graph)
    assert isinstance(error, TooLarge if message.startswith("L8") else InvalidTree)
    assert error.where.startswith("tile tree of C+E")
    assert error.message == message
    assert help in (error.help or "")


def test_a_leaf_without_a_micro_kernel(tmp_path: Path) -> None:
    graph = chain(LARGE)
    options = file_of(tmp_path, graph, (("op C as fma_16_f32_f32_6x64x4", "op C"),))
    error = refused(options, graph)
    assert (error.where, error.message) == ("tile tree of C+E", "no intrinsic executes op C")
    assert "op C as fma_16_f32_f32_ROWSxCOLUMNSxDEPTH" in (error.help or "")


@pytest.mark.parametrize(
    ("content", "where", "message"),
    [
        (b"\x89PNG\r\n\xff", "", "is not UTF-8 text at byte 0"),
        (b"some text\n", ":2", "there is no line `tree`"),
        (b"{1", "", "is no JSON"),
        (b'{"tiles": {}}', "", "has no trees"),
        (b'{"trees": {"C+E": 3}}', ": C+E", "a node is 3, not an object"),
        (b'{"trees": {}}', "", "no kernel in it has several products"),
        (b"input A: f32[4]\nB: f32[m:4] = A[m]\noutput B\ntree\n@L1 for m:4 { op B }", "", "no kernel in it"),
    ],
)
def test_a_file_that_is_no_tree(tmp_path: Path, content: bytes, where: str, message: str) -> None:
    path = tmp_path / "chain.plan"
    path.write_bytes(content)
    error = refused(Options(cache=False, fuse=path), chain(SMALL))
    assert error.where == f"{path}{where}"
    assert message in error.message


def test_a_file_that_is_not_there_and_one_tree_too_many(tmp_path: Path) -> None:
    assert "there is no such file" in refused(Options(cache=False, fuse="nowhere.tile"), chain(SMALL)).message
    graph = chain(LARGE)
    options = Options(cache=False, fuse=file_of(tmp_path, graph).fuse, trees={"C+E": planned(graph).trees()["C+E"]})
    assert "has a tree of C+E too" in refused(options, graph).message


@pytest.mark.parametrize("fuse", ["always", "chain.tile"])
def test_a_search_leaves_products_apart(fuse: str) -> None:
    with pytest.raises(InvalidArgument, match="a search times chains both ways"):
        Options(search="joint", fuse=fuse)
