"""Pictures of tile trees in characters: what they say, frames that close, and the width of a terminal."""

from __future__ import annotations

import pytest

from tilewright.expr.text import parse_graph
from tilewright.report.tests.test_tile_trees import FILE, LEVELS
from tilewright.report.tree_boxes import drawn
from tilewright.report.tree_shapes import TreePicture, step_notes
from tilewright.tiles.file import parse_tile_file
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem

TWO = Problem.of(
    parse_graph("""
        input x: f32[8]
        a: f32[i:8] = exp(x[i])
        b: f32[i:8] = exp(a[i])
        output b
    """).nodes
)


def picture() -> TreePicture:
    given = parse_tile_file(FILE)
    return TreePicture("two", given.tree, given.problem, LEVELS)


def siblings(kind: str, columns: int | None) -> str:
    tree = parse_tree(f"@DRAM for i:2 {{ {kind}[ @L1 for i:4 {{ op a }}, @L1 for i:4 {{ op b }} ] }}")
    return drawn(TreePicture(kind, tree, TWO, {"DRAM": "", "L1": ""}), columns)


def test_a_picture_has_a_frame_around_every_node() -> None:
    expected = """\
seq
DRAM
L1
┌──────────────────────────────────────┐
│ @DRAM for i:2                        │
│ a step in L1: x 16 B, a 16 B, b 16 B │
│ ┌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┐  │
│ ╎ seq                             ╎  │
│ ╎ ┌─────────────────────────────┐ ╎  │
│ ╎ │ @L1 for i:4                 │ ╎  │
│ ╎ │ ╭─────────────────────────╮ │ ╎  │
│ ╎ │ │ op a                    │ │ ╎  │
│ ╎ │ │ a: f32[i:8] = exp(x[i]) │ │ ╎  │
│ ╎ │ ╰─────────────────────────╯ │ ╎  │
│ ╎ └─────────────────────────────┘ ╎  │
│ ╎ ┌─────────────────────────────┐ ╎  │
│ ╎ │ @L1 for i:4                 │ ╎  │
│ ╎ │ ╭─────────────────────────╮ │ ╎  │
│ ╎ │ │ op b                    │ │ ╎  │
│ ╎ │ │ b: f32[i:8] = exp(a[i]) │ │ ╎  │
│ ╎ │ ╰─────────────────────────╯ │ ╎  │
│ ╎ └─────────────────────────────┘ ╎  │
│ └╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┘  │
└──────────────────────────────────────┘
"""
    assert siblings("seq", None) == expected


def test_loops_what_stays_and_bytes_are_there() -> None:
    text = drawn(picture())
    for part in ("@DRAM for m:2, l:3", "keep A", "@L1 par m:4", "bypass D", "shar", "op C", "L1  holds 70 words",
                 "a step in L1: A 32 B, B 16 B, C 16 B, D 20 B, E 40 B"):  # fmt: skip
        assert part in text


def test_children_at_the_same_time_stand_side_by_side_where_there_is_room() -> None:
    assert "op a" in next(line for line in siblings("pipe", None).splitlines() if "op b" in line)
    assert "op a" in next(line for line in siblings("pipe", 100).splitlines() if "op b" in line)
    assert "op a" not in next(line for line in siblings("pipe", 60).splitlines() if "op b" in line)
    assert "op a" not in next(line for line in siblings("shar", None).splitlines() if "op b" in line)


@pytest.mark.parametrize("columns", [30, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_frames_close(columns: int) -> None:
    title, dram, l1, rf, *frame = drawn(picture(), columns).splitlines()
    assert max(map(len, (title, dram, l1, rf))) <= columns
    assert len({len(line) for line in frame}) == 1
    assert len(frame[0]) <= max(columns, 12 + 4 * 6)  # six frames around 12 letters
    for opening, closing in ("┌┘", "┐└", "╭╯", "╮╰"):
        text = "".join(frame)
        assert text.count(opening) == text.count(closing) > 0


def test_notes_are_those_of_tiles_whose_steps_fill_a_level() -> None:
    notes = step_notes(picture())
    assert notes[()] == "a step in L1: A 32 B, B 16 B, C 16 B, D 20 B, E 40 B"
    assert (0, 1) not in notes  # its steps are split among units
