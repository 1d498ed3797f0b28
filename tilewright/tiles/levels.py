"""The memory levels of a tile tree, and the tree with a tile at each of them, as `topology` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import is_

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.tiles.resources import Level
from tilewright.tiles.tree import ONCE, Leaf, Loop, Node, Path, Scope, Stage, Tile, TileTree, leaves, node_at


class Unanalysable(CompileError):
    """A tree whose data movement is not defined: a level that the machine lacks, open factors, unequal blocks."""

    code = "unanalysable-tree"


def levels_of(tree: Node) -> tuple[Level, ...]:
    """The levels that a tree names, outermost first; raises Unanalysable if paths disagree about the order."""
    outside: dict[str, set[str]] = {}
    for path, _ in leaves(tree):
        nodes = (node_at(tree, path[:n]) for n in range(len(path)))
        names = list(dict.fromkeys(node.level for node in nodes if isinstance(node, Tile)))
        for number, name in enumerate(names):
            outside.setdefault(name, set()).update(names[:number])
    order: list[str] = []
    while len(order) < len(outside):
        free = [name for name in outside if name not in order and outside[name] <= set(order)]
        if not free:
            left = ", ".join(name for name in outside if name not in order)
            raise Unanalysable(
                f"levels {left} stand inside each other in different orders",
                where="tile tree", help="name the machine, or use one order of levels in all branches",
            )  # fmt: skip
        order.append(free[0])
    return tuple(Level(name) for name in order)


@dataclass(frozen=True, slots=True)
class Staged:
    """A tensor that lies in a level while the node at `path` of a tree without stages runs."""

    tensor: str
    level: int
    path: Path


def completed(tree: TileTree, levels: Sequence[Level]) -> tuple[TileTree, tuple[Staged, ...]]:
    """The tree with a tile of one step wherever it skips a level, without stages; and what these say.

    Raises Unanalysable for a level that is not among `levels`, and for one inside a level that should surround it.
    """
    completion = _Completion(levels)
    return completion.node(tree, -1, ()), tuple(completion.staged)  # type: ignore[return-value]


class _Completion:
    """What `completed` does, node by node; `staged` grows meanwhile."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self.levels = levels
        self.index = {level.name: number for number, level in enumerate(levels)}
        self.names = ", ".join(self.index)
        self.staged: list[Staged] = []

    def node(self, node: Node, outer: int, path: Path) -> Node:
        """The node at `path`, inside a tile of level number `outer`."""
        if isinstance(node, Leaf):
            return self._through(node, outer + 1, len(self.levels))
        if isinstance(node, Stage):
            self.staged.append(Staged(node.tensor, self._at(node.level), path))
            return self.node(node.child, outer, path)
        if isinstance(node, Scope):
            below = [self.node(child, outer, (*path, number)) for number, child in enumerate(node.children)]
            if all(map(is_, below, node.children)):
                return node
            return Scope(node.kind, tuple(below))  # type: ignore[arg-type]
        level = self._at(node.level)
        if level < outer:
            raise Unanalysable(
                f"a tile at {node.level} stands inside one at {self.levels[outer].name}",
                where="tile tree", help=f"levels from the outside in: {self.names}",
            )  # fmt: skip
        skipped = max(0, level - outer - 1)
        child = self.node(node.child, level, path + (0,) * (skipped + 1))
        return self._through(node if child is node.child else replace(node, child=child), outer + 1, level)

    def _at(self, name: str) -> int:
        if name not in self.index:
            raise Unanalysable(f"level {name} does not exist", where="tile tree", help=f"one of {self.names}")
        return self.index[name]

    def _through(self, node: Node, first: int, last: int) -> Node:
        """The node inside a tile of one step at each level from `first` to `last`, which is not among them."""
        for level in reversed(range(first, last)):
            node = Tile(self.levels[level].name, (Loop(ONCE, 1),), node)
        return node
