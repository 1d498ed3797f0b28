"""Pictures to one file, `.svg`, `.png` or `.pdf`, one below the other. The same pictures give the same bytes.

Needs matplotlib, and leaves its settings and its list of open figures as they were.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from tilewright.errors import InvalidArgument, MissingExtra
from tilewright.files import as_path, write_file
from tilewright.report import bars, curves, scatter
from tilewright.reproduce.pictures import Bars, Curves, Picture, Scatter

SUFFIXES = (".svg", ".png", ".pdf")

_KINDS: dict[type[Picture], Any] = {Scatter: scatter, Bars: bars, Curves: curves}
_WIDTH = 10.0  # inches
_UNDATED = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}
_STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True,
    "text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "tilewright", "savefig.dpi": 150,
}  # fmt: skip


def check(path: str | os.PathLike[str]) -> None:
    """Raises CompileError where `draw` could not write `path`, as far as that shows before there are pictures."""
    path = as_path(path, "--plot")
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidArgument(f"{path.name!r} has no suffix of a picture", where="--plot",
                              help=f"end it in {', '.join(SUFFIXES)}")  # fmt: skip
    if not path.parent.is_dir():
        raise InvalidArgument(f"there is no folder {str(path.parent)!r}", where="--plot", help="make it first")
    _matplotlib()


def draw(pictures: Sequence[Picture], path: str | os.PathLike[str]) -> None:
    """Draw to `path`; its suffix says which format. Raises CompileError where the file cannot be written."""
    path = as_path(path, "--plot")
    check(path)
    drawn = render(pictures, path.suffix.lower())
    write_file(path, drawn, where="--plot")


def render(pictures: Sequence[Picture], suffix: str) -> bytes:
    """The file's content, for one of `SUFFIXES`; at least one picture."""
    _matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure

    heights = [_KINDS[type(picture)].height(picture) for picture in pictures]
    content = BytesIO()
    with style.context(["default", "tableau-colorblind10", _STYLE]):
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(pictures), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, picture in zip(parts, pictures, strict=True):
            part.suptitle(picture.title, fontsize=10)
            _KINDS[type(picture)].draw(picture, part)
        figure.savefig(content, format=suffix.removeprefix("."), metadata=_UNDATED[suffix])
    return content.getvalue()


def _matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("matplotlib", "report") from error
