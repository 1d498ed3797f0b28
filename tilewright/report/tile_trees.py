"""Tile trees as pictures in SVG: nested boxes, one per tile, whose colour is that of the memory level that it walks.

Children of `pipe` and `para` stand side by side, as they run at the same time; those of `seq` and `shar` one below the
other. A tile whose steps have their data one level further in says how many bytes of which tensor that is. The pictures
are text, need nothing else, follow the reader's light or dark colours, and are the same for the same trees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.expr.text import print_compute
from tilewright.tiles.footprints import footprint_bytes, working_set
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import RETENTION, SIMULTANEOUS, Binding, Leaf, Node, Path, Scope, Stage, Tile, TileTree, walk

_LINE, _LETTER, _PAD, _GAP = 16, 7.3, 8, 8  # pixels: of a line, a letter of 12 pixels, inside boxes, between them
_HUES = (210, 145, 35, 280, 0, 180)  # of levels, outermost first
_MOST = 90  # letters of an expression that are shown

_STYLE = """\
svg{color-scheme:light dark;--back:#fff;--ink:#1a1a1a;--faint:#5a5a5a;--light:92%;--edge:45%}
@media(prefers-color-scheme:dark){svg{--back:#16181c;--ink:#ececec;--faint:#a8a8a8;--light:20%;--edge:62%}}
text{font:12px ui-monospace,monospace;fill:var(--ink);white-space:pre}
.head{font-weight:bold}.faint{fill:var(--faint)}.back{fill:var(--back)}
rect{stroke-width:1.5}.scope{fill:none;stroke:var(--faint);stroke-dasharray:5 3}
.leaf{fill:var(--back);stroke:var(--faint)}"""


@dataclass(frozen=True)
class TreePicture:
    """A tree with a title, and what each memory level holds and moves, as a line of text by its name.

    `levels` are outermost first, all that the tree names; a line may be empty.
    """

    title: str
    tree: TileTree
    problem: Problem
    levels: Mapping[str, str]


@dataclass(frozen=True)
class _Box:
    """A rectangle with lines of text on top and boxes inside, each at its place."""

    width: float
    height: float
    style: str
    lines: tuple[tuple[str, str], ...]  # class, text
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


def level_lines(found: Mapping[str, Any]) -> dict[str, str]:
    """What each level holds and moves, in bytes, from the facts of an analysis (`tiles.summary.facts`)."""
    lines = {}
    for name, level in found["levels"].items():

        def size(words: float, word_bits: int = level["word_bits"]) -> str:
            return _bytes(words * word_bits / 8)

        capacity = "" if level["capacity"] is None else f" of {size(level['capacity'])}"
        moved = {
            kind: size(sum(each[kind] for each in level["tensors"].values())) for kind in ("fill", "read", "update")
        }
        holds = f"holds {size(level['footprint'])}{capacity}, " if level["footprint"] else ""
        filled = f"filled with {moved['fill']}, " if any(each["fill"] for each in level["tensors"].values()) else ""
        lines[name] = f"{holds}{filled}{moved['read']} read, {moved['update']} updated"
    return lines


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
    box = _Drawing(picture).box(picture.tree, ())
    body += box.svg(_GAP, top + _GAP)
    return body, max(right, box.width + _GAP) + _GAP, top + _GAP + box.height


class _Drawing:
    def __init__(self, picture: TreePicture) -> None:
        self.tree, self.problem = picture.tree, picture.problem
        self.levels = list(picture.levels)
        for _, node in walk(picture.tree):
            assert not isinstance(node, Tile) or node.level in self.levels, f"level {node.level} has no line"

    def box(self, node: Node, path: Path) -> _Box:
        if isinstance(node, Leaf):
            return self._leaf(node)
        if isinstance(node, Scope):
            inside = [self.box(child, (*path, number)) for number, child in enumerate(node.children)]
            return _around([("faint", node.kind.value)], inside, 'class="scope"', node.kind in SIMULTANEOUS)
        child = [self.box(node.child, (*path, 0))]
        if isinstance(node, Stage):
            slots = f" in {node.slots} buffers" if node.slots > 1 else ""
            return _around([("faint", f"{node.tensor} stays in {node.level}{slots}")], child, 'class="scope"')
        word = "par" if node.binding is Binding.SP else "for"
        lines = [("head", f"@{node.level} {word} {', '.join(map(str, node.loops))}")]
        for name in RETENTION:
            if tensors := getattr(node, name):
                lines.append(("", f"{name} {', '.join(tensors)}"))
        if held := self._held(node, path):
            lines.append(("faint", held))
        return _around(lines, child, _of_level(self.levels.index(node.level)))

    def _held(self, tile: Tile, path: Path) -> str:
        """What one step has in the next level; nothing where that is the operands of a unit, or the step is split."""
        inside = self.levels.index(tile.level) + 1
        child = tile.child
        if inside >= len(self.levels) or (isinstance(child, Tile) and child.level == tile.level):
            return ""
        tensors = self.problem.tensors()
        sizes = self._resident((*path, 0), child)
        held = ", ".join(f"{name} {_bytes(size * footprint_bytes(tensors[name]))}" for name, size in sizes.items())
        return f"a step in {self.levels[inside]}: {held}" if held else ""

    def _resident(self, path: Path, node: Node) -> dict[str, Any]:
        """Elements of the tensors that a step of the tile around a node touches; of siblings the largest of each."""
        if isinstance(node, Stage):
            return self._resident((*path, 0), node.child)
        if not isinstance(node, Scope):
            return working_set(self.tree, self.problem, path)
        found: dict[str, Any] = {}
        for number, child in enumerate(node.children):
            for name, size in self._resident((*path, number), child).items():
                found[name] = max(size, found.get(name, 0))
        return found

    def _leaf(self, leaf: Leaf) -> _Box:
        text = print_compute(self.problem.compute(leaf.op)).strip().splitlines()[-1]
        shown = text if len(text) <= _MOST else text[: _MOST - 1] + "…"
        kernel = [("", f"kernel {leaf.kernel.name}")] if leaf.kernel is not None else []
        lines = (("head", f"op {leaf.op}"), ("faint", shown), *kernel)
        width = max(len(line) for _, line in lines) * _LETTER + 2 * _PAD
        return _Box(width, len(lines) * _LINE + 2 * _PAD, 'class="leaf"', lines, tip=text if shown != text else "")


def _around(lines: Sequence[tuple[str, str]], inside: Sequence[_Box], style: str, beside: bool = False) -> _Box:
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
    width = max(width, max(len(line) for _, line in lines) * _LETTER + 2 * _PAD)
    return _Box(width, height, style, tuple(lines), tuple(places))


def _of_level(number: int) -> str:
    return f'class="level{number % len(_HUES)}"'


def _text(x: float, y: float, line: str, kind: str) -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{_n(x)}" y="{_n(y)}"{style}>{escape(line)}</text>'


def _bytes(size: float) -> str:
    """A size in the largest unit of which there is at least one.

    >>> _bytes(96), _bytes(4096), _bytes(3 * 2**20 // 2)
    ('96 B', '4 KiB', '1.5 MiB')
    """
    unit, name = next(((u, n) for u, n in ((1 << 20, "MiB"), (1 << 10, "KiB")) if size >= u), (1, "B"))
    return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
