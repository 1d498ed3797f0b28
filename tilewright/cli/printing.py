"""Text for people: prose and tables, wrapped to the columns of the terminal, 80 where these are not known."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from shutil import get_terminal_size

_USUAL_COLUMNS, _FEWEST_COLUMNS = 80, 20
_GAPS = (3, 2, 1)  # spaces between the columns of a table: the first that fits; but for the first, cells are wrapped
_NARROW_GAP = 2  # of a table whose rows go on below
_INDENT = 4  # of what continues a row below it


def terminal_columns(most: int | None = None) -> int:
    """The columns of the terminal, but at most `most`."""
    columns = max(_FEWEST_COLUMNS, get_terminal_size((_USUAL_COLUMNS, 24)).columns)
    return columns if most is None else min(columns, most)


def say(text: str, indent: int = 2) -> None:
    """Print prose; what continues a line stands `indent` columns further in than the line."""
    for line in wrapped(text, terminal_columns(), indent):
        print(line)


def wrapped(text: str, columns: int, indent: int = 2) -> Iterator[str]:
    """The lines of a text, wrapped between words: a word that is longer than a line stays whole.

    >>> list(wrapped("  one two three", 12))
    ['  one two', '    three']
    """
    for line in text.split("\n"):
        if len(line) <= columns:
            yield line
            continue
        margin = " " * (len(line) - len(line.lstrip(" ")))
        yield from textwrap.wrap(
            line.lstrip(" "), columns, initial_indent=margin, subsequent_indent=margin + " " * indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def table(columns: Mapping[str, str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; `columns` maps headings to "left" or "right"."""
    for line in table_lines(columns, rows, terminal_columns()):
        print(line)


def table_lines(columns: Mapping[str, str], rows: Sequence[Sequence[str]], limit: int) -> Iterator[str]:
    r"""The lines of a table, of at most `limit` characters.

    Texts and headings that are too wide are wrapped between words, the widest first; numbers are not. Where this is not
    enough, a row goes on below in an indented line, and so do the headings.

    >>> print(*table_lines({"name": "left", "about": "left"}, [["a", "one two three"]], 12), sep="\n")
    name  about
    a     one
          two
          three
    """
    lines, sides = [list(columns), *map(list, rows)], list(columns.values())
    natural = [max(len(line[column]) for line in lines) for column in range(len(sides))]
    least = [_least(lines, column, sides[column], limit - _INDENT) for column in range(len(sides))]
    gap = next((gap for gap in _GAPS if _total(natural if gap == _GAPS[0] else least, gap) <= limit), _NARROW_GAP)
    bands = list(_bands(least, gap, limit))
    widths = [
        _shrunk([natural[column] for column in band], [least[column] for column in band], gap, limit - _indent(number))
        for number, band in enumerate(bands)
    ]
    for line in lines:
        for number, (band, of_band) in enumerate(zip(bands, widths, strict=True)):
            for text in _row([line[column] for column in band], of_band, [sides[column] for column in band], gap):
                yield " " * _indent(number) + text if text else text


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _indent(band: int) -> int:
    return _INDENT if band else 0


def _least(lines: Sequence[Sequence[str]], column: int, side: str, limit: int) -> int:
    """The width of a column below which a word of a text or a heading, or a number, would be cut."""
    heading, *cells = (line[column] for line in lines)
    words = [*heading.split(), *(word for cell in cells for word in (cell.split() if side == "left" else [cell]))]
    return min(limit, max(map(len, words), default=0))


def _bands(least: Sequence[int], gap: int, limit: int) -> Iterator[list[int]]:
    """The columns, in as few bands as their least widths fit."""
    band: list[int] = []
    indent = 0
    for column, width in enumerate(least):
        if band and _total([*(least[each] for each in band), width], gap) > limit - indent:
            yield band
            band, indent = [], _INDENT
        band.append(column)
    yield band


def _shrunk(natural: Sequence[int], least: Sequence[int], gap: int, limit: int) -> list[int]:
    """Widths that fit, from the natural ones: the widest column that is not at its least width loses first."""
    widths = list(natural)
    while _total(widths, gap) > limit:
        wide = [column for column in range(len(widths)) if widths[column] > least[column]]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], sides: Sequence[str], gap: int) -> Iterator[str]:
    """The lines of a row: as many as the cell with the most."""
    wrapped_cells = [_cell(text, width) for text, width in zip(cells, widths, strict=True)]
    for parts in zip_longest(*wrapped_cells, fillvalue=""):
        padded = [
            part.rjust(width) if side == "right" else part.ljust(width)
            for part, width, side in zip(parts, widths, sides, strict=True)
        ]
        yield (" " * gap).join(padded).rstrip()


def _cell(text: str, width: int) -> list[str]:
    return [text] if len(text) <= width else textwrap.wrap(text, max(width, 1), break_on_hyphens=False)
