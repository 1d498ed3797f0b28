"""Tile files: read, written, and refused with a place and a legal change, also when they are damaged by chance."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.random_tiles import ATTENTION, random_case
from tilewright.errors import CompileError
from tilewright.expr.graph import Graph
from tilewright.tiles.file import TileFile, parse_tile_file, print_tile_file, read_tile_file
from tilewright.tiles.legality import check

GEMM = """graph main
input A: f32[8, 4]
input B: f32[4, 6]
C: f32[m:8, n:6] += A[m, k] * B[k, n] over k:4
output C
tree
@DRAM for m:2, n:3 keep A {
  @L1 for m:4, n:2, k:4 bypass B { op C }
}
"""
SIZES = {"m": 8, "l": 16, "k": 4, "n": 4}
FUSED = ", ".join(f"@L1 for m:8, l:4{', k:4' * (op == 'S')}{', n:4' * (op == 'O')} {{ op {op} }}" for op in "SMUXZPO")
SOFTMAX = f"""{ATTENTION.format(**SIZES)}
    # the running maximum and sum
    rescale Z when M by exp(old[] - new[])
    rescale O when M by exp(old[] - new[])
    rescale O when Z by old[] / new[]
tree
    @DRAM for l:4 {{ shar[{FUSED}] }}
"""


def test_a_file_is_written_as_it_was_read() -> None:
    file = parse_tile_file(GEMM)
    assert print_tile_file(file) == GEMM
    assert [tensor.name for tensor in file.graph.outputs] == ["C"]
    check(file.tree, file.problem)


def test_rescalings_are_in_the_file() -> None:
    file = parse_tile_file(SOFTMAX)
    assert [(one.total, one.running) for one in file.problem.rescaled] == [("Z", "M"), ("O", "M"), ("O", "Z")]
    check(file.tree, file.problem)
    assert parse_tile_file(print_tile_file(file)) == file


def test_a_file_is_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "gemm.tile"
    path.write_text(GEMM)
    assert read_tile_file(path) == parse_tile_file(GEMM)
    path.write_bytes(b"\xff")
    with pytest.raises(CompileError, match="is not UTF-8 text at byte 0") as raised:
        read_tile_file(path)
    assert raised.value.where == str(path)


@pytest.mark.parametrize(
    ("old", "new", "where", "message", "help"),
    [
        ("\ntree\n", "\n", "f.tile:9", "there is no line `tree`", "then a line `tree`"),
        ("m:2,", "m:0,", "f.tile:7:11", "loop m has factor 0", "a factor of 1 or more"),
        ("op C", "op", "f.tile:8:39", "found '}'", "the name of an expression"),
        ("keep A", "keep {", "f.tile:7:25", "found '{'", "the name of a tensor"),
        ("over k:4", "over k:x", "f.tile:4:46", "no dimension is called x", ""),
        ("tree\n", "rescale C by C\ntree\n", "f.tile:6", "found 'rescale C by C'", "rescale SUM when VALUE by FACTOR"),
        ("tree\n", "rescale C when Q by new[]\ntree\n", "f.tile:6", "when Q changes, no expression", "C"),
        ("tree\n", "rescale C when C by new[\ntree\n", "f.tile:6", "the factor 'new['", "exp(old[] - new[])"),
        ("tree\n", "rescale C when C by new[]\ntree\n", "f.tile", "C is rescaled when C changes", "one of (none)"),
    ],
)
def test_errors_say_where_and_what_is_legal(old: str, new: str, where: str, message: str, help: str) -> None:
    with pytest.raises(CompileError) as raised:
        parse_tile_file(GEMM.replace(old, new, 1), where="f.tile")
    assert raised.value.where == where
    assert message in raised.value.message
    assert help in raised.value.help


@pytest.mark.parametrize("seed", range(30))
def test_random_trees_come_back(seed: int) -> None:
    case = random_case(random.Random(seed))
    computes = case.problem.computes
    written = {compute.name for compute in computes}
    inputs = tuple(tensor for name, tensor in case.problem.tensors().items() if name not in written)
    file = TileFile(Graph(inputs, (computes[-1].output,), computes), case.problem, case.tree)
    assert parse_tile_file(print_tile_file(file)).tree == case.tree


@pytest.mark.parametrize("seed", range(40))
def test_damaged_files_are_refused_or_right(seed: int) -> None:
    roll = random.Random(seed)
    for _ in range(25):
        text = damaged(roll, roll.choice((GEMM, SOFTMAX)))
        file = read_or_refused(text)
        assert file is None or parse_tile_file(print_tile_file(file)) == file, text


def read_or_refused(text: str) -> TileFile | None:
    """What a text holds; None where it is refused with a place."""
    try:
        return parse_tile_file(text, where="f.tile")
    except CompileError as error:
        if not error.where.startswith("f.tile"):
            raise
        return None


def damaged(roll: random.Random, text: str) -> str:
    """A text after some accidents."""
    for _ in range(roll.choice((1, 1, 2, 4))):
        place = roll.randrange(len(text) + 1)
        end = min(len(text), place + roll.choice((1, 1, 3, 10, 60)))
        piece = roll.choice(("", *'"[]{}:,\né', "tree\n", "rescale ", "-1", "9" * 30, "op "))
        text = text[:place] + piece + text[roll.choice((place, end)) :]
    return text
