"""Reading the tree of a scheduled kernel, for `lower` and for what predicts the time of a kernel.

A reader takes the decisions of one kind of kernel from a tree, wherever they stand, and makes the tree of that kind
that has these decisions. `require_form` compares the two: a node that no reader took, or that does not fit, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tilewright.dataclass import dataclass
from tilewright.expr.core import Axis
from tilewright.tiles.kernel import Kernel
from tilewright.tiles.loops import SpatialLoop
from tilewright.tiles.tree import (
    ONCE,
    RETENTION,
    Binding,
    Hint,
    InvalidTree,
    Leaf,
    Node,
    Path,
    Scope,
    Stage,
    Tile,
    TileTree,
    children,
    leaves,
    walk,
)


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


def tiles_at(tree: Node, level: str) -> list[Tile]:
    """The tiles at a level, parents first, left to right."""
    return [node for _, node in walk(tree) if isinstance(node, Tile) and node.level == level]


def hints_of(tree: Node, name: str) -> list[tuple[Tile | Leaf, Hint]]:
    """The hints of a name with their nodes."""
    nodes = [node for _, node in walk(tree) if isinstance(node, Tile | Leaf)]
    return [(node, hint) for node in nodes for hint in node.hints if hint.name == name]


def numbers_of(tree: Node, name: str) -> tuple[int, ...]:
    """The arguments, numbers of 1 or more, of the hint of a name; () where there is none."""
    found = hints_of(tree, name)
    if not found:
        return ()
    (_, hint), *others = found
    if others or any(int(argument) < 1 for argument in hint.arguments):
        shown = ", ".join(str(each) for _, each in found)
        raise InvalidTree(f"the tree has the hints {shown}", help=f"{name} once, with numbers of 1 or more")
    return tuple(int(argument) for argument in hint.arguments)


def number_of(tree: Node, name: str, otherwise: int) -> int:
    """The argument of the hint of a name, where there is one."""
    found = numbers_of(tree, name)
    return found[0] if found else otherwise


def on_blocks(tree: TileTree) -> bool:
    """Whether programs are thread blocks: the grid says of how many warps."""
    return isinstance(tree, Tile) and any(hint.name == "warps" for hint in tree.hints)


def axes_of(kernel: Kernel) -> dict[str, Axis]:
    """The loops of the statements of a kernel by their names."""
    return {axis.name: axis for each in kernel.statements for axis in (*each.axes, *each.reduce)}


def has_several_parts(tree: TileTree) -> bool:
    """Whether a tree computes several products, or rows before one."""
    products = [leaf.kernel is not None for _, leaf in leaves(tree)]
    return sum(products) > 1 or (any(products) and not products[0])


def loops_named(
    names: Iterable[str],
    among: Sequence[Axis],
    points: Mapping[str, int],
    programs: Mapping[str, int],
    lanes: Mapping[str, int] | None = None,
) -> tuple[SpatialLoop, ...]:
    """These loops in tiles of so many points, which so many programs walk; `lanes` are those of a vector's loop.

    Raises InvalidTree for another loop than those `among` which they should be.
    """
    axes = {axis.name: axis for axis in among}
    for name in names:
        if name not in axes:
            raise InvalidTree(f"{name} is no loop of the result", help=f"one of {', '.join(axes) or 'none'}")
    return tuple(
        SpatialLoop(axes[name], points.get(name, 1), programs.get(name, 1), (lanes or {}).get(name, 0))
        for name in names
    )


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


# Register tiles -------------------------------------------------------------------------------------------------------


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
        if len(tile.loops) > 1 or self.vector:
            loops = ", ".join(map(str, tile.loops))
            raise InvalidTree(
                f"par {loops} at REG{f' inside of lanes along {self.vector}' if self.vector else ''}",
                help="one loop whose points are lanes, others unroll",
            )
        (vector,) = tile.loops
        lanes = next((int(hint.arguments[0]) for hint in tile.hints if hint.name == "lanes"), vector.trips)
        if lanes < 1:
            raise InvalidTree(f"a vector along {vector} has {lanes} lanes", help="1 or more")
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


# The form of a tree ---------------------------------------------------------------------------------------------------


def require_form(tree: TileTree, wanted: TileTree) -> None:
    """Raises InvalidTree with the first node of a tree that is not as in the tree that its decisions make.

    Of a micro-kernel, its name and description follow from its quantum: they may be any.
    """
    for (path, node), (_, other) in zip(walk(tree), walk(wanted), strict=False):
        if _alone(node) != _alone(other):
            raise InvalidTree(
                f"{_text(node)} does not go with the rest of the tree",
                where=f"tile tree{_place(tree, path)}",
                help=f"{_text(other)} in its place",
            )


def _place(tree: Node, path: Path) -> str:
    """A path as keys of the tree in JSON."""
    found = ""
    for number in path:
        found += f".{tree.kind.value}[{number}]" if isinstance(tree, Scope) else ".child"
        tree = children(tree)[number]
    return found


def _alone(node: Node) -> object:
    """A node without what stands below it."""
    if isinstance(node, Scope):
        return node.kind, len(node.children)
    if isinstance(node, Stage):
        return node.tensor, node.level, node.slots
    if isinstance(node, Tile):
        return node.level, node.binding, node.loops, node.hints, node.keep, node.bypass
    kernel = None if node.kernel is None else (node.kernel.quantum, node.kernel.mapping)
    return node.op, node.hints, kernel


def _text(node: Node) -> str:
    """A node without what stands below it, in words of the notation."""
    if isinstance(node, Scope):
        return f"{node.kind.value} of {len(node.children)}"
    if isinstance(node, Stage):
        return f"stage {node.tensor} in {node.level} slots {node.slots}"
    hints = f" with {', '.join(map(str, node.hints))}" if node.hints else ""
    if isinstance(node, Tile):
        retained = [f" {field} {', '.join(getattr(node, field))}" for field in RETENTION if getattr(node, field)]
        return f"@{node.level} {node.binding.value} {', '.join(map(str, node.loops))}{''.join(retained)}{hints}"
    if node.kernel is None:
        return f"op {node.op}{hints}"
    quantum = ", ".join(map(str, node.kernel.quantum))
    mapped = "" if node.kernel.mapping is None else f" by {node.kernel.mapping.intrinsic}"
    return f"op {node.op} of {quantum}{mapped}{hints}"
