"""Tile trees as pictures in characters, for a terminal: a frame around every tile, a dashed one around every scope.

Children of `pipe` and `para` stand side by side where the terminal is wide enough, all others one below the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.report.tree_shapes import Shape, TreePicture, shape_of

#: Corners from the upper left one on, clockwise, then a horizontal and a vertical edge.
_FRAMES = {"tile": tuple("┌┐┘└─│"), "scope": tuple("┌┐┘└╌╎"), "leaf": tuple("╭╮╯╰─│")}
_EDGES = 4  # columns that a frame takes, with a space at either side
_LEAST = 12  # columns of text inside a frame, however narrow the terminal is


def drawn(picture: TreePicture, columns: int | None = None) -> str:
    """The picture as lines of text, none wider than `columns` unless frames alone take that much."""
    levels = [f"{level}  {line}".rstrip() for level, line in picture.levels.items()]
    lines = [_cut(line, columns) for line in (picture.title, *levels)]
    return "\n".join([*lines, *_framed(shape_of(picture), columns), ""])


def _framed(shape: Shape, columns: int | None) -> list[str]:
    """The lines of a shape with its frame, all equally wide."""
    most = None if columns is None else max(_LEAST, columns - _EDGES)
    blocks = [_framed(each, most) for each in shape.inside]
    if shape.beside:
        beside = _side_by_side([_framed(each, None) for each in shape.inside])
        blocks = [beside] if most is None or len(beside[0]) <= most else blocks
    body = [_cut(line, most) for _, line in shape.lines] + [line for block in blocks for line in block]
    width = max(map(len, body))
    upper_left, upper_right, lower_right, lower_left, across, down = _FRAMES[shape.kind]
    edge = across * (width + 2)
    return [
        upper_left + edge + upper_right,
        *(f"{down} {line.ljust(width)} {down}" for line in body),
        lower_left + edge + lower_right,
    ]


def _side_by_side(blocks: Sequence[Sequence[str]]) -> list[str]:
    """Blocks of lines beside each other, a space between them; shorter ones end with blank lines."""
    height = max(map(len, blocks))
    padded = [[*block, *[" " * len(block[0])] * (height - len(block))] for block in blocks]
    return [" ".join(row) for row in zip(*padded, strict=True)]


def _cut(line: str, columns: int | None) -> str:
    return line if columns is None or len(line) <= columns else line[: columns - 1] + "…"
