"""Plots: every value is in the file, the same values give the same file, and what cannot be drawn is said before."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tilewright.errors import InvalidArgument, MissingExtra
from tilewright.report.plot import SUFFIXES, check, draw, render
from tilewright.reproduce.pictures import Bars, Curves, Picture, Scatter

SVG = "{http://www.w3.org/2000/svg}"
SCATTER = Scatter("points", "measured", "predicted", {"C0": ((1, 2), (3, 3), (4, 9)), "C$1$": ((100, 2000),)})
BARS = Bars("bars", "part", ("C0", "C6", "C9"), {"one": (0.5, 0.7, 0.0), "other": (0.9, 0.8, 1.0)}, {"≥ 0.8": 0.8})
RATIOS = Bars("ratios", "times", ("C0", "C6"), {"fixed": (0.98, 27.0)}, ratios=True)
CURVES = Curves(
    "curves", "best", "found", {"C0": ((0.5, 0.5), (1, 1))}, {"published": ((0.3, 0.8), (0.4, 0.9))}, "line"
)
ALL = (SCATTER, BARS, RATIOS, CURVES)


def svg(*pictures: Picture) -> ElementTree.Element:
    return ElementTree.fromstring(render(pictures, ".svg"))


def texts(root: ElementTree.Element) -> set[str]:
    return {"".join(each.itertext()).strip() for each in root.iter(f"{SVG}text")}


def points(root: ElementTree.Element) -> int:
    """Markers inside axes: those of ticks and legends are not clipped."""
    return sum(len(group.findall(f"{SVG}use")) for group in root.iter(f"{SVG}g") if "clip-path" in group.attrib)


def bars(root: ElementTree.Element) -> int:
    """Filled shapes inside axes."""
    return sum("clip-path" in path.attrib and "fill: #" in path.get("style", "") for path in root.iter(f"{SVG}path"))


def test_every_point_is_drawn_in_the_panel_of_its_name() -> None:
    root = svg(SCATTER)
    assert points(root) == 4
    assert {"points", "measured", "predicted", "C0", "C$1$"} <= texts(root)


@pytest.mark.parametrize(("picture", "count"), [(BARS, 6), (RATIOS, 2)])
def test_every_value_has_a_bar(picture: Bars, count: int) -> None:
    root = svg(picture)
    assert bars(root) == count
    assert {picture.title, picture.y, *picture.groups, *picture.levels} <= texts(root)


def test_series_and_lines_are_named() -> None:
    assert {"one", "other"} <= texts(svg(BARS))
    root = svg(CURVES)
    assert {"C0", "published", "line", "best", "found"} <= texts(root)
    assert points(root) == 2


@pytest.mark.parametrize("panels", [1, 4, 5, 12])
def test_panels_that_do_not_fill_the_last_row(panels: int) -> None:
    names = [f"C{number}" for number in range(panels)]
    root = svg(Scatter("points", "x", "y", dict.fromkeys(names, ((1.0, 1.0), (2.0, 5.0)))))
    assert points(root) == 2 * panels
    assert set(names) <= texts(root)
    assert sum(each.get("id", "").startswith("axes_") for each in root.iter(f"{SVG}g")) == panels


@pytest.mark.parametrize("span", [1.0, 1.05, 3.0, 20.0, 1e5])
def test_logarithmic_axes_have_labels(span: float) -> None:
    """Of the default labels, a narrow axis has none."""
    root = svg(Bars("ratios", "times", ("C0",), {"fixed": (span,)}, ratios=True))
    assert len(texts(root) - {"ratios", "times", "C0"}) >= 2


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_pictures_give_the_same_file(suffix: str) -> None:
    assert render(ALL, suffix) == render(ALL, suffix)


def test_settings_are_left_as_they_were() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    render(ALL, ".png")
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize(
    ("name", "start"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.SVG", b"<?xml")]
)
def test_the_suffix_is_the_format(tmp_path: Path, name: str, start: bytes) -> None:
    draw([BARS], tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["a.jpg", "a", "svg", ".svg"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="no suffix of a picture") as raised:
        check(tmp_path / name)
    assert ".svg, .png, .pdf" in raised.value.help


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="there is no folder"):
        check(tmp_path / "nonsuch" / "a.svg")
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(InvalidArgument, match=r"cannot write .*directory"):
        draw([BARS], tmp_path / "a.svg")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tilewright\[report\]'"):
        check(tmp_path / "a.svg")
