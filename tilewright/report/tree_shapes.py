"""What a picture of a tile tree shows, whoever draws it: lines of text in frames, one inside the other.

A tile whose steps have their data one level further in says how many bytes of which tensor that is. `tile_trees` draws
shapes in SVG, `tree_boxes` in characters for a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from tilewright.dataclass import dataclass
from tilewright.expr.text import print_compute
from tilewright.tiles.footprints import footprint_bytes, working_set
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import RETENTION, SIMULTANEOUS, Binding, Leaf, Node, Path, Scope, Stage, Tile, TileTree, walk

Weight: TypeAlias = Literal["head", "", "faint"]  #: of a line of text

_MOST = 90  # letters of an expression that are shown


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
class Shape:
    """A node of a tree: its lines of text, and the shapes inside, one below the other or `beside` each other.

    `level` is the number of a tile's memory level, outermost first, None of scopes, stages and leaves. `tip` is the
    whole text of a line that is cut.
    """

    kind: Literal["tile", "scope", "leaf"]
    lines: tuple[tuple[Weight, str], ...]
    inside: tuple[Shape, ...] = ()
    beside: bool = False
    level: int | None = None
    tip: str = ""


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


def shape_of(picture: TreePicture) -> Shape:
    """The shape of a picture's tree."""
    return _Shapes(picture).shape(picture.tree, ())


def step_notes(picture: TreePicture) -> dict[Path, str]:
    """What one step of a tile has in the next level, in words, by the path of the tile, where a picture says it."""
    shapes = _Shapes(picture)
    held = {path: shapes.held(node, path) for path, node in walk(picture.tree) if isinstance(node, Tile)}
    return {path: text for path, text in held.items() if text}


class _Shapes:
    def __init__(self, picture: TreePicture) -> None:
        self.tree, self.problem = picture.tree, picture.problem
        self.levels = list(picture.levels)
        for _, node in walk(picture.tree):
            assert not isinstance(node, Tile) or node.level in self.levels, f"level {node.level} has no line"

    def shape(self, node: Node, path: Path) -> Shape:
        if isinstance(node, Leaf):
            return self._leaf(node)
        if isinstance(node, Scope):
            inside = tuple(self.shape(child, (*path, number)) for number, child in enumerate(node.children))
            return Shape("scope", (("faint", node.kind.value),), inside, node.kind in SIMULTANEOUS)
        child = (self.shape(node.child, (*path, 0)),)
        if isinstance(node, Stage):
            slots = f" in {node.slots} buffers" if node.slots > 1 else ""
            return Shape("scope", (("faint", f"{node.tensor} stays in {node.level}{slots}"),), child)
        return Shape("tile", self._lines(node, path), child, level=self.levels.index(node.level))

    def _lines(self, tile: Tile, path: Path) -> tuple[tuple[Weight, str], ...]:
        word = "par" if tile.binding is Binding.SP else "for"
        lines: list[tuple[Weight, str]] = [("head", f"@{tile.level} {word} {', '.join(map(str, tile.loops))}")]
        for name in RETENTION:
            if tensors := getattr(tile, name):
                lines.append(("", f"{name} {', '.join(tensors)}"))
        if held := self.held(tile, path):
            lines.append(("faint", held))
        return tuple(lines)

    def held(self, tile: Tile, path: Path) -> str:
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

    def _leaf(self, leaf: Leaf) -> Shape:
        text = print_compute(self.problem.compute(leaf.op)).strip().splitlines()[-1]
        shown = text if len(text) <= _MOST else text[: _MOST - 1] + "…"
        lines: list[tuple[Weight, str]] = [("head", f"op {leaf.op}"), ("faint", shown)]
        if leaf.kernel is not None:
            lines.append(("", f"kernel {leaf.kernel.name}"))
        return Shape("leaf", tuple(lines), tip=text if shown != text else "")


def _bytes(size: float) -> str:
    """A size in the largest unit of which there is at least one.

    >>> _bytes(96), _bytes(4096), _bytes(3 * 2**20 // 2)
    ('96 B', '4 KiB', '1.5 MiB')
    """
    unit, name = next(((u, n) for u, n in ((1 << 20, "MiB"), (1 << 10, "KiB")) if size >= u), (1, "B"))
    return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
