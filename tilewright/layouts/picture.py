"""A picture of a layout as SVG: one square per element, coloured by warp and lane, or by bank of shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hls_to_rgb
from html import escape

from tilewright.layouts.access import BANKS, WORD_BYTES
from tilewright.layouts.form import Distributed, InShared
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.tables import Cell, cells, matrix_of, slices

_HIGH, _MARGIN, _LETTER = 24, 28, 6.6  # pixels: of a square, for headings, of a letter of 11 pixels
_GOLDEN = 0.381966  # of the circle of hues from one warp to the next


def svg(layout: LinearLayout | Distributed | InShared, shape: Sequence[int], bits: int = 32) -> str:
    """The picture; same layout and shape, same bytes. `bits` of an element say in which bank an offset is."""
    found = cells(layout, shape)
    rows, columns = matrix_of(shape)
    wide = max(_HIGH, round(max(len(cell.text) for cell in found) * _LETTER) + 8)
    lanes = 1 + max(cell.lane for cell in found)
    title = f"{layout} on {'x'.join(map(str, shape)) or 'one element'}"
    width = max(_MARGIN + columns * wide, round(len(title) * _LETTER)) + 8
    body, top = [_text(8, 16, title, "start")], 24
    for number, where in enumerate(slices(shape)):
        if where:
            body.append(_text(8, top + 14, where, "start"))
            top += 18
        body += [
            _text(_MARGIN + column * wide + wide / 2, top + 14, str(column), "middle") for column in range(columns)
        ]
        top += 20
        for row in range(rows):
            y = top + row * _HIGH
            body.append(_text(_MARGIN - 4, y + 16, str(row), "end"))
            for column in range(columns):
                cell = found[(number * rows + row) * columns + column]
                x = _MARGIN + column * wide
                body.append(
                    f'<rect x="{x}" y="{y}" width="{wide}" height="{_HIGH}" fill="{_colour(cell, lanes, bits)}"/>'
                    + _text(x + wide / 2, y + 16, cell.text, "middle")
                )
        top += rows * _HIGH + 8
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}">',
            "<style>text{font:11px monospace}rect{stroke:#fff}</style>",
            f'<rect width="{width}" height="{top}" fill="#fff"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _colour(cell: Cell, lanes: int, bits: int) -> str:
    """A hue per warp, lighter from lane to lane; of shared memory a hue per bank."""
    if cell.text == "-":
        return "#eeeeee"
    if cell.offset >= 0:
        hue, light = cell.offset * bits // (8 * WORD_BYTES) % BANKS / BANKS, 0.8
    else:
        hue, light = (0.55 + _GOLDEN * cell.warp) % 1, 0.62 + 0.3 * cell.lane / lanes
    return "#" + "".join(f"{round(255 * part):02x}" for part in hls_to_rgb(hue, light, 0.6))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
