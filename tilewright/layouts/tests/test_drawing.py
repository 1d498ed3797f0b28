"""Tables and pictures of layouts."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tilewright.errors import InvalidArgument
from tilewright.layouts import Blocked, Mma, Padded, Shared, Slice, linear
from tilewright.layouts.picture import svg
from tilewright.layouts.tables import cells, table

WIDE = Blocked((1, 8), (16, 2), (1, 1), (1, 0))


def test_replicas_are_counted() -> None:
    assert [cell.text for cell in cells(Slice(1, WIDE), (16,))][:3] == ["T0:0+1", "T2:0+1", "T4:0+1"]


def test_elements_that_nothing_holds() -> None:
    assert [cell.text for cell in cells(linear((4,), register=[(1,)]), (4,))] == ["T0:0", "T0:1", "-", "-"]


def test_threads_are_numbered_through_the_warps() -> None:
    example = Blocked((2, 2), (8, 4), (1, 2), (1, 0))
    drawn = table(example, (16, 16)).splitlines()
    assert drawn[3].split()[1] == "T4:0"  # the article's example: element (2, 0)
    assert drawn[1].split()[9] == "T32:0"
    assert drawn[16].split()[16] == "T63:3"


def test_offsets_of_shared_memory() -> None:
    assert table(Shared(2, 2, 2, (1, 0)), (4, 4)).splitlines()[3].split() == ["2", "10", "11", "8", "9"]
    assert table(Padded(1, (1, 0)), (2, 3)).splitlines()[2].split() == ["1", "4", "5", "6"]
    assert [cell.offset for cell in cells(Shared(2, 2, 2, (1, 0)).to_linear((4, 4)), (4, 4))][8] == 10


def test_matrices_of_larger_tiles() -> None:
    text = table(Mma(2, (2, 1, 1)), (2, 16, 8))
    assert [line for line in text.splitlines() if line.startswith("[")] == ["[0]", "[1]"]
    assert "T32:0" in text


def test_pictures_are_deterministic_and_label_every_element() -> None:
    layout = Mma(2, (2, 2))
    text = svg(layout, (32, 32))
    assert text == svg(layout, (32, 32))
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    labels = [each.text for each in root.iter(f"{space}text")]
    assert labels.count("T102:1") == 1  # warp 3, lane 6 holds (17, 13)
    assert len(list(root.iter(f"{space}rect"))) == 1 + 32 * 32
    fills = [each.get("fill") for each in root.iter(f"{space}rect")][1:]
    assert len(set(fills)) == 4 * 32  # a colour per thread


def test_pictures_of_shared_memory_are_coloured_by_bank() -> None:
    root = ET.fromstring(svg(Shared(1, 1, 1, (1, 0)), (2, 64), bits=16))
    fills = [each.get("fill") for each in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert fills[:64] == fills[64:]
    assert len(set(fills)) == 32
    assert fills[0] == fills[1] != fills[2]


def test_drawings_have_a_limit() -> None:
    with pytest.raises(InvalidArgument, match="65536 elements"):
        svg(Mma(2, (1, 1)), (256, 256))
