"""Tile trees as pictures in SVG: nested boxes, one per tile, whose colour is that of the memory level that it walks.

Children of `pipe` and `para` stand side by side, as they run at the same time; those of `seq` and `shar` one below the
other. The pictures are text, need nothing else, follow the reader's light or dark colours, and are the same for the
same trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate

from tilewright.dataclass import dataclass
from tilewright.report.tree_shapes import Shape, TreePicture, shape_of

_LINE, _LETTER, _PAD, _GAP = 16, 7.3, 8, 8  # pixels: of a line, a letter of 12 pixels, inside boxes, between them
_HUES = (210, 145, 35, 280, 0, 180)  # of levels, outermost first

_STYLE = """\
svg{color-scheme:light dark;--back:#fff;--ink:#1a1a1a;--faint:#5a5a5a;--light:92%;--edge:45%}
@media(prefers-color-scheme:dark){svg{--back:#16181c;--ink:#ececec;--faint:#a8a8a8;--light:20%;--edge:62%}}
text{font:12px ui-monospace,monospace;fill:var(--ink);white-space:pre}
.head{font-weight:bold}.faint{fill:var(--faint)}.back{fill:var(--back)}
rect{stroke-width:1.5}.scope{fill:none;stroke:var(--faint);stroke-dasharray:5 3}
.leaf{fill:var(--back);stroke:var(--faint)}"""


@dataclass(frozen=True)
class _Box:
    """A rectangle with lines of text on top and boxes inside, each at its place."""

    width: float
    height: float
    style: str
    lines: Sequence[tuple[str, str]]  # class, text
    inside: tuple[tuple[float, float, _Box], ...] = ()
    tip: str = ""

    def svg(self, x: float, y: float) -> list[str]:
        tip = f"<title>{escape(self.tip)}</title>" if self.tip else ""
        shape = f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(self.width)}" height="{_n(self.height)}" rx="4" {self.style}'
        drawn = [f"{shape}>{tip}</rect>" if tip else f"{shape}/>"]
        for number, (kind, line) in enumerate(self.lines):
            drawn.append(_text(x + _PAD, y + _PAD + _LINE * number + 11, line, kind))
        for left, top, box in self.inside:
            drawn += box.svg(x + left, y + top)
        return drawn


def svg(pictures: Sequence[TreePicture]) -> str:
    """The pictures one below the other; at least one."""
    body, top, width = [], float(_GAP), 0.0
    for picture in pictures:
        drawn, right, top = _picture(picture, top)
        body += drawn
        width = max(width, right)
        top += 3 * _GAP
    size = f'width="{_n(width)}" height="{_n(top)}" viewBox="0 0 {_n(width)} {_n(top)}"'
    title = escape("; ".join(picture.title for picture in pictures))
    styles = "\n".join(
        f".level{number}{{fill:hsl({hue} 60% var(--light));stroke:hsl({hue} 55% var(--edge))}}"
        for number, hue in enumerate(_HUES)
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>', f"<title>{title}</title>",
        f"<style>{_STYLE}\n{styles}</style>", f'<rect class="back" width="{_n(width)}" height="{_n(top)}"/>', *body,
        "</svg>", "",
    ])  # fmt: skip


def _picture(picture: TreePicture, top: float) -> tuple[list[str], float, float]:
    """What is drawn, the right edge, and the bottom."""
    body = [_text(_GAP, top + 14, picture.title, "head")]
    top += _LINE + _GAP
    right = _GAP + len(picture.title) * _LETTER
    for number, (level, line) in enumerate(picture.levels.items()):
        shown = f"{level}  {line}".rstrip()
        body.append(f'<rect x="{_GAP}" y="{_n(top)}" width="12" height="12" rx="2" {_of_level(number)}/>')
        body.append(_text(_GAP + 18, top + 11, shown, ""))
        right = max(right, _GAP + 18 + len(shown) * _LETTER)
        top += _LINE + 2
    box = _boxed(shape_of(picture))
    body += box.svg(_GAP, top + _GAP)
    return body, max(right, box.width + _GAP) + _GAP, top + _GAP + box.height


def _boxed(shape: Shape) -> _Box:
    style = f'class="{shape.kind}"' if shape.level is None else _of_level(shape.level)
    if shape.inside:
        return _around(shape.lines, [_boxed(each) for each in shape.inside], style, shape.beside)
    return _Box(_text_width(shape.lines), len(shape.lines) * _LINE + 2 * _PAD, style, shape.lines, tip=shape.tip)


def _around(lines: Sequence[tuple[str, str]], inside: Sequence[_Box], style: str, beside: bool) -> _Box:
    """A box around others, which stand one below the other, or beside each other."""
    top = _PAD + len(lines) * _LINE + _GAP / 2
    if beside:
        starts = list(accumulate([float(_PAD), *(box.width + _GAP for box in inside)]))
        places = [(left, top, box) for left, box in zip(starts, inside, strict=False)]
        width, height = starts[-1] - _GAP + _PAD, top + max(box.height for box in inside) + _PAD
    else:
        starts = list(accumulate([top, *(box.height + _GAP for box in inside)]))
        places = [(float(_PAD), below, box) for below, box in zip(starts, inside, strict=False)]
        width, height = max(box.width for box in inside) + 2 * _PAD, starts[-1] - _GAP + _PAD
    return _Box(max(width, _text_width(lines)), height, style, lines, tuple(places))


def _text_width(lines: Sequence[tuple[str, str]]) -> float:
    return max(len(line) for _, line in lines) * _LETTER + 2 * _PAD


def _of_level(number: int) -> str:
    return f'class="level{number % len(_HUES)}"'


def _text(x: float, y: float, line: str, kind: str) -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{style}>{escape(line)}</text>'


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
