"""What the tree of a scheduled kernel says, by part: for `lower`, and for what predicts the time of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.tree import (
    ONCE,
    Binding,
    Hint,
    InvalidTree,
    Leaf,
    Node,
    Scope,
    Stage,
    Tile,
    TileTree,
    children,
    walk,
)


class Parts:
    """The nodes of the tree of a kernel by their parts."""

    def __init__(self, kernel: Kernel) -> None:
        self.axes = {axis.name: axis for each in kernel.statements for axis in (*each.axes, *each.reduce)}
        nodes = [node for _, node in walk(kernel.tree)]
        self.tiles = [node for node in nodes if isinstance(node, Tile)]
        self.stages = [node for node in nodes if isinstance(node, Stage)]
        self.scopes = [node for node in nodes if isinstance(node, Scope)]
        self.leaves = {node.op: node for node in nodes if isinstance(node, Leaf)}
        self.product = next((leaf.kernel for leaf in self.leaves.values() if leaf.kernel is not None), None)
        self.points = {loop.name: loop.trips for loop in self.product.quantum} if self.product is not None else {}
        self.on_blocks = self.hint("warps") is not None
        grid = self.loops("DRAM", Binding.SP)
        self.grid_order = tuple(grid)
        self.blocks = {name: count for name, count in grid.items() if count > 1}

    def loops(self, level: str, *bindings: Binding) -> dict[str, int]:
        """The loops at a level with their factors, outermost first; of loops of one name the first."""
        found: dict[str, int] = {}
        for tile in self.tiles:
            if tile.level == level and tile.binding in (bindings or Binding):
                for loop in tile.loops:
                    found.setdefault(loop.name, loop.trips)
        found.pop(ONCE, None)
        return found

    def grid_of_tiles(self, points: Mapping[str, int]) -> list[SpatialLoop]:
        """The loops of the grid, the slowest first, where a program has one tile of so many points of each.

        Raises InvalidTree where the tiles of the grid are not those that cover a loop.
        """
        grid = self.loops("DRAM", Binding.SP)
        sizes = {name: points.get(name, 1) for name in grid}
        self.require_covered(grid, sizes)
        return [SpatialLoop(self.axes[name], sizes[name], count, sizes[name]) for name, count in grid.items()]

    def require_covered(self, counts: Mapping[str, int], points: Mapping[str, int]) -> None:
        """Raise InvalidTree for a loop whose tiles, so many of so many points, are too few or too many."""
        for name, count in counts.items():
            wanted = max(1, -(-self.axes[name].size // points[name]))
            if count != wanted:
                message = f"{count} tiles of {points[name]} points of {name}, whose extent is {self.axes[name].size}"
                raise InvalidTree(message, help=f"{wanted} tiles")

    def hints(self, name: str) -> Iterator[tuple[Tile | Leaf, Hint]]:
        """The hints of a name with their nodes."""
        nodes: list[Tile | Leaf] = [*self.tiles, *self.leaves.values()]
        for node in nodes:
            yield from ((node, hint) for hint in node.hints if hint.name == name)

    def hint(self, name: str) -> Hint | None:
        """The first hint of a name."""
        return next((hint for _, hint in self.hints(name)), None)

    def number(self, name: str, otherwise: int) -> int:
        """The argument of a hint that has one."""
        hint = self.hint(name)
        return otherwise if hint is None else int(hint.arguments[0])

    def spatial_loop(self, name: str) -> SpatialLoop:
        """A loop in tiles: the points in one register tile, and the blocks that the grid has of it."""
        vector, extent, lanes = self.vector()
        if name == vector:
            return SpatialLoop(self.axes[name], extent, self.blocks.get(name, 1), lanes)
        points = self.loops("REG", Binding.UNROLL).get(name, 1)
        return SpatialLoop(self.axes[name], points, self.blocks.get(name, 1))

    def vector(self) -> tuple[str, int, int]:
        """The loop whose points are lanes, its points in a register tile, and the lanes of a register."""
        lanes = self.loops("REG", Binding.SP)
        if not lanes:
            return "", 1, self.number("lanes", 16)
        ((name, extent),) = lanes.items()
        vectors = self.loops("REG", Binding.UNROLL).get(name, 1)
        return name, extent * vectors, self.number("lanes", extent)


@dataclass(frozen=True)
class Program:
    """The loops around what a program does at one tile: programs of the grid and tiles of a program, by loop.

    Both are in the order of the tree; `body` is what stands inside.
    """

    grid: dict[str, int]
    tiles: dict[str, int]
    body: Node


def program_of(tree: TileTree) -> Program:
    """The loops to the grid, and those inside them over data in L2."""
    node: Node = tree
    found: list[dict[str, int]] = []
    for level, binding in (("DRAM", Binding.SP), ("L2", Binding.TP)):
        found.append({})
        if isinstance(node, Tile) and (node.level, node.binding) == (level, binding):
            found[-1] = factors(node)
            node = node.child
    grid, tiles = found
    return Program(grid, tiles, node)


def factors(tile: Tile) -> dict[str, int]:
    """The loops of a tile with their factors, outermost first."""
    return {loop.name: loop.trips for loop in tile.loops if loop.name != ONCE}


def spatial_loop(axis: Axis, quantum: int, programs: int, tiles: int, lanes: int = 0) -> SpatialLoop:
    """A loop that so many programs walk, each so many tiles of `quantum` points.

    Raises InvalidTree where programs and tiles are not those that the loop has.
    """
    loop = SpatialLoop(axis, quantum, programs, lanes)
    wanted = loop.programs, max(1, loop.tiles_per_block)
    if wanted != (programs, tiles):
        raise InvalidTree(
            f"{programs} programs walk {tiles} tiles of {quantum} points of {axis.name}, which has {axis.size}",
            help=f"{wanted[0]} programs and {wanted[1]} tiles, or tiles of another size",
        )
    return loop


@dataclass(frozen=True)
class RegisterTile:
    """What one step of a leaf computes: points along each loop, outermost first, and the loop whose points are lanes.

    A register has `lanes` lanes; `vector` is empty and `lanes` 1 where a step computes one number at a time.
    """

    points: tuple[tuple[str, int], ...] = ()
    vector: str = ""
    lanes: int = 1

    def along(self, loop: str) -> int:
        """Points along a loop."""
        return dict(self.points).get(loop, 1)

    def inside(self, tile: Tile) -> RegisterTile:
        """This tile with the loops of a node below it."""
        points = dict(self.points)
        for loop in tile.loops:
            points[loop.name] = points.get(loop.name, 1) * loop.trips
        points.pop(ONCE, None)
        if tile.binding is not Binding.SP:
            return RegisterTile(tuple(points.items()), self.vector, self.lanes)
        (vector,) = tile.loops
        lanes = next((int(hint.arguments[0]) for hint in tile.hints if hint.name == "lanes"), vector.trips)
        return RegisterTile(tuple(points.items()), vector.name, lanes)


def register_tiles(tree: Node, above: RegisterTile | None = None) -> Iterator[tuple[Leaf, RegisterTile]]:
    """The leaves of a tree for a CPU, left to right, with what the loops at REG above them make of one step."""
    above = above or RegisterTile()
    if isinstance(tree, Leaf):
        yield tree, above
        return
    if isinstance(tree, Tile):
        above = above.inside(tree) if tree.level == "REG" else RegisterTile()
    for child in children(tree):
        yield from register_tiles(child, above)
