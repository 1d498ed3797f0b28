"""Pictures of tile trees: what they say, that boxes lie inside each other, that nothing but the tree decides them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.command_line import CliRunner
from tilewright.cli.main import app
from tilewright.expr.text import parse_graph
from tilewright.report.tile_trees import svg
from tilewright.report.tree_shapes import TreePicture
from tilewright.tiles.file import parse_tile_file
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem

SVG = "{http://www.w3.org/2000/svg}"
FILE = """
input A: f16[8, 4]
input B: f16[4, 6]
input D: f16[6, 5]
C: f16[m:8, l:6] += A[m, k] * B[k, l] over k:4
E: f16[m:8, n:5] += C[m, l] * D[l, n] over l:6
output E
tree
@DRAM for m:2, l:3 keep A {
  shar[
    @L1 for m:4, l:2, k:4 { @RF for once:1 { op C } },
    @L1 par m:4 bypass D { @L1 for l:2, n:5 { @RF for once:1 { op E } } }
  ]
}
"""
LEVELS = {"DRAM": "", "L1": "holds 70 words", "RF": ""}


def picture(title: str = "two & more") -> TreePicture:
    given = parse_tile_file(FILE)
    return TreePicture(title, given.tree, given.problem, LEVELS)


def read(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def rectangles(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of every box of a tree, outer ones first."""
    found = []
    for each in root.iter(f"{SVG}rect"):
        x, y, width, height = (float(each.get(name, 0)) for name in ("x", "y", "width", "height"))
        if each.get("class") != "back" and width > 12:
            found.append((x, y, x + width, y + height))
    return found


def test_loops_what_stays_and_bytes_are_there() -> None:
    shown = texts(read(svg([picture()])))
    assert "two & more" in shown
    assert "L1  holds 70 words" in shown
    assert "@DRAM for m:2, l:3" in shown
    assert "keep A" in shown
    assert "@L1 par m:4" in shown
    assert "bypass D" in shown
    assert "shar" in shown
    assert "op C" in shown
    assert any(line.startswith("C: f16[m:8, l:6] +=") for line in shown)
    # A step in L1: m:4, l:2, k:4 of C, and n:5 of E; C is there for both
    assert "a step in L1: A 32 B, B 16 B, C 16 B, D 20 B, E 40 B" in shown


def test_boxes_lie_in_or_beside_each_other_and_in_the_picture() -> None:
    root = read(svg([picture(), picture("again")]))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    boxes = rectangles(root)
    assert len(boxes) == 2 * 9
    for number, (a, b, c, d) in enumerate(boxes):
        assert 0 <= a < c <= width
        assert 0 <= b < d <= height
        for e, f, g, h in boxes[number + 1 :]:
            inside = a < e and b < f and g < c and h < d
            apart = g <= a or c <= e or h <= b or d <= f
            assert inside or apart


def test_children_at_the_same_time_stand_side_by_side() -> None:
    problem = Problem.of(
        parse_graph("""
        input x: f32[8]
        a: f32[i:8] = exp(x[i])
        b: f32[i:8] = exp(a[i])
        output b
    """).nodes
    )
    both = []
    for kind in ("pipe", "seq"):
        tree = parse_tree(f"@DRAM for i:2 {{ {kind}[ @L1 for i:4 {{ op a }}, @L1 for i:4 {{ op b }} ] }}")
        boxes = rectangles(read(svg([TreePicture(kind, tree, problem, {"DRAM": "", "L1": ""})])))
        first, second = (boxes[number] for number in (2, 4))
        both.append((first[0] == second[0], first[1] == second[1]))
    assert both == [(False, True), (True, False)]


def test_same_trees_give_the_same_text_and_names_are_escaped() -> None:
    assert svg([picture()]) == svg([picture()])
    assert svg([picture()]) != svg([picture("other")])
    assert "two &amp; more" in svg([picture()])
    assert "prefers-color-scheme:dark" in svg([picture()])


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), prog_name="tilewright")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def test_commands_draw_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chain.tile").write_text(FILE.replace(" keep A", "").replace(" bypass D", ""))
    run("model", "chain.tile", "--machine", "edge", "--svg", "model.svg")
    shown = texts(read(Path("model.svg").read_text()))
    assert shown[0].startswith("chain on edge: ")
    assert any(line.startswith("L1  holds ") and " of 4 MiB, filled with " in line for line in shown)
    run("fuse", "--workload", "gemm-chain-G10", "--machine", "edge", "--dtype", "f16", "--svg", "fuse.svg")
    shown = texts(read(Path("fuse.svg").read_text()))
    assert shown[0].startswith("C + E on edge: order ")
    assert {"op C", "op E"} <= set(shown)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("model", "chain.tile", "--machine", "edge", "--svg", "absent/a.svg"), "absent"),
        (("model", "chain.tile", "--machine", "edge", "--svg", "a.svg", "--sweep", "clock_hz=1e9"), "without --svg"),
        (("fuse", "--workload", "gemm-chain-G10", "--machine", "edge", "--svg", "absent/a.svg"), "absent"),
    ],
)
def test_places_that_cannot_be_written_are_named(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chain.tile").write_text(FILE)
    assert said in run(*arguments, status=2)
