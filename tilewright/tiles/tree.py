"""The tile tree: loops around expressions, memory level by memory level. A small immutable value.

A tree is a `Tile` or a `Scope`. A tile walks an ordered loop nest, outermost first, over data that lies in memory level
`level`; one step of its temporal loops has its slices one level further in. A scope runs several children, which is
what fusion means. A leaf names the expression that one step of the innermost tile computes; a leaf with a
`MicroKernelRef` hands that step to an opaque kernel, whose loops nobody may change.

Loops have the name of the expression loop that they advance; `problem.Problem` says which loops of which expression
go by one name. Two tiles may own loops of one name: they are different loops.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from math import prod
from typing import Any, Literal, TypeVar

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.intrinsics.mapping import ProductMapping

Path = tuple[int, ...]  #: where a node stands: the number of the child taken at each node from the root


RETENTION = ("keep", "bypass")  #: what a tile says about tensors: fields, keywords and keys of JSON
ONCE = "once"  #: the name of a loop of one step, where a tile needs a loop


class InvalidTree(CompileError):
    """A tile tree that is none: malformed text or JSON, a loop without a name, a scope without children."""

    code = "invalid-tree"


class Binding(Enum):
    """Who runs the iterations of a tile's loops: distinct units at once, or one in turn. The value is the keyword.

    Distinct units are programs of the grid where the tile is at DRAM, and lanes or threads where it is at REG.
    """

    SP = "par"
    TP = "for"
    UNROLL = "unroll"  # one in turn, written out: no loop is left in the program


class Kind(Enum):
    """How siblings share units, memory and time (spec 1, section 2.3). The value is the keyword."""

    SEQ = "seq"  # in turn; a child's memory is free again after it
    SHAR = "shar"  # in turn; the memory is divided, so that slices stay
    PARA = "para"  # at the same time, independent
    PIPE = "pipe"  # at the same time, each a step behind its predecessor


SIMULTANEOUS = (Kind.PARA, Kind.PIPE)


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of a tile: what it advances, and in how many steps; no factor: a search has yet to choose it."""

    name: str
    factor: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidTree("a loop has no name", help="give the name of the expression loop that it advances")
        if self.factor is not None and self.factor < 1:
            raise InvalidTree(f"loop {self.name} has factor {self.factor}", help="a factor of 1 or more, or None")

    def __str__(self) -> str:
        return f"{self.name}:{'?' if self.factor is None else self.factor}"

    @property
    def trips(self) -> int:
        """Steps of the loop; 1 while its factor is open."""
        return 1 if self.factor is None else self.factor


#: What hints there are, with the types of their arguments.
HINTS: dict[str, tuple[type, ...]] = {
    "prefetch": (str, int, int),  # a step asks for so many elements of a tensor, a distance after the first it reads
    "prefetch_lines": (int,),  # a block, or tiles of a panel, ask for the next one by lines of so many bytes
    # Tiles of a program ask for the rows of the next one by lines of so many bytes; in blocks, for those of the next
    # tile by elements.
    "prefetch_rows": (int,),
    "skip_zeros": (),  # a tile leaves out the steps of a sum that add zeros to all of its points (`Statement.support`)
    "stream": (),  # stores bypass the caches
    "lanes": (int,),  # elements of a vector register, where a tile does not fill one
    "blocked": (str,),  # which thread holds which element: the text of a blocked layout
    "warps": (int, int),  # of a thread block, along rows and columns
    "splits": (int,),  # so many thread blocks share the sums of a tile
    "cluster": (int,),  # so many thread blocks bring together what all of them read
    "neighbours": (int,),  # elements of a row that a prefix scan takes at once
    "sort": (str,),  # the method of a sort
    "seen": (str, int),  # of a loop run steps of so many points, up to the last one that a mask shows to a block
    "along_x": (int,),  # so many loops of a par, the innermost ones, are along X of an array of units, others along Y
}


@dataclass(frozen=True, slots=True)
class Hint:
    """A decision that no loop expresses: its name, a key of `HINTS`, and its arguments."""

    name: str
    arguments: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        known = HINTS.get(self.name)
        if known is None:
            raise InvalidTree(f"there is no hint {self.name!r}", help=f"one of {', '.join(sorted(HINTS))}")
        if tuple(type(argument) for argument in self.arguments) != known:
            wanted = ", ".join(kind.__name__ for kind in known) or "none"
            raise InvalidTree(f"hint {self.name} has arguments {self.arguments}", help=f"its arguments are {wanted}")

    def __str__(self) -> str:
        arguments = ", ".join(json.dumps(argument) for argument in self.arguments)
        return f"{self.name}({arguments})" if arguments else self.name


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a micro-kernel: a tensor of its `semantics`, and what the kernel does with it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    access: Literal["read", "write", "accumulate"]


@dataclass(frozen=True, slots=True)
class MicroKernelRef:
    """An opaque leaf: what a kernel computes (`semantics`, a statement of tensor expressions), how much of each loop.

    `quantum` lists the loops of the tree that the kernel runs inside, with their extents in one call; `mapping` says
    how an intrinsic executes them, where one does. Kernels of one name in one tree are the same kernel.
    """

    name: str
    semantics: str
    operands: tuple[Operand, ...]
    quantum: tuple[Loop, ...]
    mapping: ProductMapping | None = None

    def __post_init__(self) -> None:
        for loop in self.quantum:
            if loop.factor is None:
                raise InvalidTree(f"micro-kernel {self.name}: the extent of {loop.name} is open", help="give a number")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One expression, by the name of the tensor it writes, computed by `kernel` where that is given."""

    op: str
    kernel: MicroKernelRef | None = None
    hints: tuple[Hint, ...] = ()

    def __post_init__(self) -> None:
        if not self.op:
            raise InvalidTree("a leaf has no name", help="give the name of an expression")


@dataclass(frozen=True, slots=True)
class Tile:
    """A loop nest at one memory level around one child; all its loops have one binding.

    `keep` names tensors that stay in the next inner level from step to step: those that `Seq` would drop, and values of
    which a step then computes only the part that the step before did not (the halo of a window). `bypass` names
    tensors that the tile's own level does not hold: they move between the level outside and the one inside.
    """

    level: str
    loops: tuple[Loop, ...]
    child: Tile | Scope | Stage | Leaf
    binding: Binding = Binding.TP
    hints: tuple[Hint, ...] = ()
    keep: tuple[str, ...] = ()
    bypass: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("loops", "keep", "bypass"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        for field in ("keep", "bypass"):
            tensors = getattr(self, field)
            if not all(tensors) or len(set(tensors)) != len(tensors):
                raise InvalidTree(
                    f"a tile at {self.level} has {field} {', '.join(map(repr, tensors))}",
                    help="name each tensor once",
                )
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.level):
            raise InvalidTree(f"a tile is at level {self.level!r}", help="letters, digits and _, as DRAM, L2 or 0")
        names = [loop.name for loop in self.loops]
        if not names:
            raise InvalidTree(f"a tile at {self.level} has no loops", help="give at least one, of factor 1 if need be")
        if len(set(names)) != len(names):
            raise InvalidTree(
                f"a tile at {self.level} has two loops of one name: {', '.join(names)}",
                help="split the tile in two of the same level",
            )

    @property
    def trips(self) -> int:
        """Steps of all loops together."""
        return prod(loop.trips for loop in self.loops)


@dataclass(frozen=True, slots=True)
class Scope:
    """Siblings and how they run."""

    kind: Kind
    children: tuple[Tile | Scope | Stage, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "children", tuple(self.children))
        if not self.children:
            raise InvalidTree(f"{self.kind.value} has no children", help="give at least one tree")
        for child in self.children:
            if isinstance(child, Leaf):
                raise InvalidTree(f"{self.kind.value} holds op {child.op} itself", help="put a tile around it")


@dataclass(frozen=True, slots=True)
class Stage:
    """A tensor that lies in memory `level` while `child` runs, in `slots` buffers in turn.

    An operand is brought there from outside; a value that an expression of the child computes is kept there for others,
    or until the child has ended. No `seq` inside the child drops the tensor from that level or those around it.
    """

    tensor: str
    level: str
    child: Tile | Scope | Stage
    slots: int = 1

    def __post_init__(self) -> None:
        if not self.tensor:
            raise InvalidTree("a stage has no tensor", help="give the name of the tensor that it keeps")
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.level):
            raise InvalidTree(f"a stage is at level {self.level!r}", help="letters, digits and _, as L2 or SHARED")
        if self.slots < 1:
            raise InvalidTree(f"the stage of {self.tensor} has {self.slots} slots", help="1 or more")
        if isinstance(self.child, Leaf):
            raise InvalidTree(
                f"the stage of {self.tensor} holds op {self.child.op} itself", help="put a tile around it"
            )


Node = Tile | Scope | Stage | Leaf
TileTree = Tile | Scope | Stage


@contextmanager
def about(name: str) -> Iterator[None]:
    """Errors that are raised meanwhile say that they are about the tile tree of this kernel or file."""
    try:
        yield
    except CompileError as error:
        place = error.where.removeprefix("tile tree")
        error.where = f"tile tree of {name}{', ' if place and place[0].isalnum() else ''}{place}"
        raise


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below, in order."""
    if isinstance(node, Scope):
        return node.children
    return () if isinstance(node, Leaf) else (node.child,)


def walk(tree: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every node with its path, parents first, left to right."""
    rest = [(path, tree)]
    while rest:
        path, tree = rest.pop()
        yield path, tree
        if isinstance(tree, Scope):
            below = tree.children
            rest += [((*path, number), below[number]) for number in range(len(below) - 1, -1, -1)]
        elif not isinstance(tree, Leaf):
            rest.append(((*path, 0), tree.child))


def node_at(tree: Node, path: Path) -> Node:
    """The node that `path` leads to."""
    for number in path:
        tree = children(tree)[number]
    return tree


def ancestors(tree: Node, path: Path) -> tuple[tuple[Path, Node], ...]:
    """The nodes above `path` with their paths, root first."""
    return tuple((path[:depth], node_at(tree, path[:depth])) for depth in range(len(path)))


def leaves(tree: Node) -> tuple[tuple[Path, Leaf], ...]:
    """Every leaf with its path, left to right."""
    return tuple((path, node) for path, node in walk(tree) if isinstance(node, Leaf))


def kernels(tree: Node) -> dict[str, MicroKernelRef]:
    """The micro-kernels of a tree by name: what `notation.parse_tree` needs beside the text."""
    return {leaf.kernel.name: leaf.kernel for _, leaf in leaves(tree) if leaf.kernel is not None}


def with_kernels(tree: TileTree, found: Mapping[str, MicroKernelRef]) -> TileTree:
    """The tree with these micro-kernels, by the operators that they compute."""
    if isinstance(tree, Scope):
        return replace(tree, children=tuple(with_kernels(child, found) for child in tree.children))
    if isinstance(tree, Stage):
        return replace(tree, child=with_kernels(tree.child, found))
    child = tree.child
    if not isinstance(child, Leaf):
        return replace(tree, child=with_kernels(child, found))
    return replace(tree, child=replace(child, kernel=found.get(child.op, child.kernel)))


def same_path(a: Path, b: Path) -> Path:
    """The path of the lowest common ancestor of two nodes."""
    length = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:length]


# Files ----------------------------------------------------------------------------------------------------------------

_T = TypeVar("_T")
_HELP = "write it with to_json"
DEEPEST = 100  #: levels of a tree in text or JSON; deeper ones are refused before they exhaust the stack


def to_json(tree: Node) -> dict[str, Any]:
    """A tree as dicts, lists, strings and numbers, for the tuning database."""
    if isinstance(tree, Tile):
        loops = [[loop.name, loop.factor] for loop in tree.loops]
        return {
            "level": tree.level,
            tree.binding.value: loops,
            **{field: list(tensors) for field in RETENTION if (tensors := getattr(tree, field))},
            **_hints_to_json(tree),
            "child": to_json(tree.child),
        }
    if isinstance(tree, Stage):
        return {"stage": tree.tensor, "level": tree.level, "slots": tree.slots, "child": to_json(tree.child)}
    if isinstance(tree, Scope):
        return {tree.kind.value: [to_json(child) for child in tree.children]}
    leaf = {"op": tree.op, **_hints_to_json(tree)}
    if tree.kernel is None:
        return leaf
    kernel: dict[str, Any] = {
        "name": tree.kernel.name,
        "semantics": tree.kernel.semantics,
        "operands": [[o.name, list(o.shape), o.dtype, o.access] for o in tree.kernel.operands],
        "quantum": [[loop.name, loop.factor] for loop in tree.kernel.quantum],
    }
    if tree.kernel.mapping is not None:
        kernel["mapping"] = tree.kernel.mapping.to_json()
    return {**leaf, "kernel": kernel}


def _hints_to_json(node: Tile | Leaf) -> dict[str, Any]:
    return {"hints": [[hint.name, *hint.arguments] for hint in node.hints]} if node.hints else {}


def from_json(value: Any, *, where: str = "") -> TileTree:
    """The tree that `to_json` wrote. Raises InvalidTree for everything else."""
    node = _node(value, where, 0)
    if isinstance(node, Leaf):
        raise InvalidTree(f"the tree is op {node.op} alone", where=where, help="put a tile around it")
    return node


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Errors that are raised meanwhile and say no place or help get those of a value in a file."""
    try:
        yield
    except InvalidTree as error:
        error.where, error.help = error.where or where, error.help or _HELP
        raise


def _node(value: Any, where: str, depth: int) -> Node:
    """One node; `where` grows into the path of the value at fault."""
    with _reading(where):
        return _node_of(value, where, depth)


def _node_of(value: Any, where: str, depth: int) -> Node:
    _require(depth <= DEEPEST, where, f"the tree is more than {DEEPEST} levels deep")
    _require(isinstance(value, dict), where, f"a node is {_shown(value)}, not an object")
    keys = set(value)
    hints = _list(value.get("hints", []), f"{where}.hints", _hint)
    for binding in Binding:
        if keys - {"hints", *RETENTION} == {"level", binding.value, "child"}:
            _require(isinstance(value["level"], str), where, f"a level is {_shown(value['level'])}, not text")
            loops = _list(value[binding.value], f"{where}.{binding.value}", _loop)
            keep, bypass = (_list(value.get(field, []), f"{where}.{field}", _tensor) for field in RETENTION)
            child = _node(value["child"], f"{where}.child", depth + 1)
            return Tile(value["level"], loops, child, binding, hints, keep, bypass)
    if keys == {"stage", "level", "slots", "child"}:
        for key in ("stage", "level"):
            _require(isinstance(value[key], str), where, f"{key} is {_shown(value[key])}, not text")
        slots = _extent(value["slots"], f"{where}.slots")
        return Stage(value["stage"], value["level"], _inner(_node(value["child"], f"{where}.child", depth + 1)), slots)
    for kind in Kind:
        if keys == {kind.value}:
            nodes = _list(value[kind.value], f"{where}.{kind.value}", lambda v, at: _node(v, at, depth + 1))
            return Scope(kind, tuple(_inner(node) for node in nodes))
    if keys - {"hints", "kernel"} == {"op"}:
        _require(isinstance(value["op"], str), where, f"an op is {_shown(value['op'])}, not a name")
        return Leaf(value["op"], _kernel(value["kernel"], f"{where}.kernel") if "kernel" in value else None, hints)
    raise InvalidTree(
        f"a node has the keys {', '.join(sorted(map(str, keys))) or '(none)'}",
        where=where,
        help="level, for, par or unroll, child, perhaps keep, bypass and hints; or stage, level, slots, child; "
        "or seq, shar, para or pipe; or op",
    )


def _inner(node: Node) -> TileTree:
    if isinstance(node, Leaf):
        raise InvalidTree(f"a scope or stage holds op {node.op} itself", help="put a tile around it")
    return node


def _tensor(value: Any, where: str) -> str:
    _require(isinstance(value, str), where, f"a tensor is {_shown(value)}, not a name")
    return str(value)


def _hint(value: Any, where: str) -> Hint:
    right = isinstance(value, list) and all(type(item) in (str, int) for item in value)
    _require(
        right and len(value) > 0 and isinstance(value[0], str),
        where,
        f"a hint is {_shown(value)}, not a name and arguments",
    )
    return Hint(value[0], tuple(value[1:]))


def _kernel(value: Any, where: str) -> MicroKernelRef:
    keys = {"name", "semantics", "operands", "quantum"}
    right = isinstance(value, dict) and set(value) - {"mapping"} == keys
    _require(right, where, f"a kernel has the keys {sorted(keys)}, and perhaps mapping")
    for key in ("name", "semantics"):
        _require(isinstance(value[key], str), where, f"{key} is {_shown(value[key])}, not text")
    operands = _list(value["operands"], f"{where}.operands", _operand)
    quantum = _list(value["quantum"], f"{where}.quantum", _loop)
    mapping = None
    if "mapping" in value:
        mapping = ProductMapping.from_json(value["mapping"], f"{where}.mapping", InvalidTree)
    return MicroKernelRef(value["name"], value["semantics"], operands, quantum, mapping)


def _operand(value: Any, where: str) -> Operand:
    right = isinstance(value, list) and len(value) == 4 and all(isinstance(value[n], str) for n in (0, 2, 3))
    _require(right and value[3] in ("read", "write", "accumulate"), where, f"an operand is {_shown(value)}")
    return Operand(value[0], _list(value[1], where, _extent), value[2], value[3])


def _loop(value: Any, where: str) -> Loop:
    _require(
        isinstance(value, list) and len(value) == 2 and isinstance(value[0], str), where, f"a loop is {_shown(value)}"
    )
    return Loop(value[0], None if value[1] is None else _extent(value[1], where))


def _extent(value: Any, where: str) -> int:
    _require(type(value) is int and 1 <= value < 1 << 62, where, f"an extent is {_shown(value)}, not a number from 1")
    return int(value)


def _list(value: Any, where: str, read: Callable[[Any, str], _T]) -> tuple[_T, ...]:
    _require(isinstance(value, list), where, f"{_shown(value)} is no list")
    found = []
    for number, item in enumerate(value):
        with _reading(f"{where}[{number}]"):
            found.append(read(item, f"{where}[{number}]"))
    return tuple(found)


def _require(condition: bool, where: str, message: str) -> None:
    if not condition:
        raise InvalidTree(message, where=where, help=_HELP)


def _shown(value: Any) -> str:
    return repr(value)[:80]
