"""Which tile trees are legal for which expressions: rules L1 to L9 of spec 1, section 2.6, L10 and L11.

Each rule is one function that yields what breaks it: an `IllegalTree` with the loops, factors and expressions at
fault and the nearest legal change. Factors that a search has yet to choose break nothing; L8 and L9 ask for a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import combinations
from math import prod
from typing import ClassVar

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError
from tilewright.expr.core import Apply, Compute, Read
from tilewright.expr.core import walk as walk_expr
from tilewright.tiles.capacity import excesses
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Resources
from tilewright.tiles.tree import (
    RETENTION,
    SIMULTANEOUS,
    Binding,
    Kind,
    Leaf,
    Loop,
    Path,
    Scope,
    Stage,
    Tile,
    TileTree,
    ancestors,
    leaves,
    same_path,
    walk,
)


class IllegalTree(CompileError):
    """A tree that a rule forbids for these expressions."""

    code = "illegal-tree"
    rule: ClassVar[str] = ""

    def __init__(self, message: str, *, help: str) -> None:
        super().__init__(f"{self.rule}: {message}", where="tile tree", help=help)


class WrongCoverage(IllegalTree):
    """L1: the factors of a loop do not make up its extent, or an expression is missing, unknown or there twice."""

    rule = "L1 coverage"


class WrongOrder(IllegalTree):
    """L2: a consumer stands before its producer."""

    rule = "L2 order"


class IncompleteProducer(IllegalTree):
    """L3: a consumer would read values that are not finished."""

    rule = "L3 producer reduction"


class Recomputation(IllegalTree):
    """L4: a loop runs an expression again that it does not advance."""

    rule = "L4 foreign loop"


class SplitSoftmax(IllegalTree):
    """L5: the maximum or the sum of a softmax is tiled together with what needs all of it."""

    rule = "L5 softmax"


class DependentPara(IllegalTree):
    """L6: children that should run independently depend on each other."""

    rule = "L6 Para"


class MisplacedPipe(IllegalTree):
    """L7: siblings that share units stand inside loops that share them already."""

    rule = "L7 Pipe"


class TooLarge(IllegalTree):
    """L8: more units or bytes than the machine has, or levels that it does not have in this order."""

    rule = "L8 resources"


class SpatialReduction(IllegalTree):
    """L9: a reduction loop is spread over units that cannot add up."""

    rule = "L9 spatial reduction"


class WrongRetention(IllegalTree):
    """L11: a tile keeps or bypasses, or a stage keeps, a tensor that nothing in it uses."""

    rule = "L11 retention"


class Reordered(IllegalTree):
    """L10: the steps of a scan, sort or scatter are distributed, or run in another order."""

    rule = "L10 ordered accumulation"


def check(
    tree: TileTree,
    problem: Problem,
    *,
    imperfect: bool = False,
    recompute: bool = False,
    resources: Resources | None = None,
) -> None:
    """Raise the first violation in the order of the rules; `violations` has the meaning of the options."""
    for violation in violations(tree, problem, imperfect=imperfect, recompute=recompute, resources=resources):
        raise violation


def violations(
    tree: TileTree,
    problem: Problem,
    *,
    imperfect: bool = False,
    recompute: bool = False,
    resources: Resources | None = None,
) -> Iterator[IllegalTree]:
    """Everything that is wrong with a tree.

    `imperfect` lets factors exceed an extent, with clipped edges; `recompute` lets loops run expressions again. Without
    `resources`, the rules L8 and L9 are not asked.
    """
    unusable = list(_leaves_match(tree, problem))
    yield from unusable
    if unusable:
        return  # the other rules need every expression at one leaf
    subject = _Subject(tree, problem, imperfect, recompute, resources)
    for rule in RULES:
        yield from rule(subject)


def _leaves_match(tree: TileTree, problem: Problem) -> Iterator[IllegalTree]:
    """Part of L1: every expression is one leaf."""
    known = [compute.name for compute in problem.computes]
    found = [leaf.op for _, leaf in leaves(tree)]
    for op in dict.fromkeys(found):
        if op not in known:
            yield WrongCoverage(f"op {op} is no expression here", help=f"one of {', '.join(known)}")
        elif found.count(op) > 1:
            yield WrongCoverage(f"op {op} is computed by {found.count(op)} leaves", help="keep one of them")
    for op in known:
        if op not in found:
            yield WrongCoverage(f"no leaf computes {op}", help=f"add a tile with op {op} before its consumers")


@dataclass
class _Subject:
    """A tree with all that rules ask of it."""

    tree: TileTree
    problem: Problem
    imperfect: bool
    recompute: bool
    resources: Resources | None

    @cached_property
    def places(self) -> dict[str, tuple[Path, Leaf]]:
        return {leaf.op: (path, leaf) for path, leaf in leaves(self.tree)}

    def tiles_above(self, path: Path) -> list[Tile]:
        return [node for _, node in ancestors(self.tree, path) if isinstance(node, Tile)]

    def loops_above(self, path: Path) -> list[tuple[Tile, Loop]]:
        return [(tile, loop) for tile in self.tiles_above(path) for loop in tile.loops]

    def ops_below(self, path: Path) -> list[str]:
        return [op for op, (place, _) in self.places.items() if place[: len(path)] == path]

    def meeting(self, a: str, b: str) -> Path:
        """The path of the scope in which two expressions meet."""
        return same_path(self.places[a][0], self.places[b][0])

    @cached_property
    def reaches(self) -> dict[str, set[str]]:
        """Every expression that needs an expression's result, directly or not."""
        found: dict[str, set[str]] = {compute.name: set() for compute in self.problem.computes}
        for producer, consumer in reversed(list(self.problem.edges())):
            found[producer.name] |= {consumer.name} | found[consumer.name]
        return found


def _coverage(subject: _Subject) -> Iterator[IllegalTree]:
    """L1: the factors on the way to a leaf make up the extent of each of its loops; derived loops follow others."""
    problem = subject.problem
    for compute in problem.computes:
        path, leaf = subject.places[compute.name]
        for axis in compute.body_loops:
            if (compute.name, axis.name) in problem.derived:
                continue
            name, extent = problem.names[compute.name, axis.name], int(axis.extent)  # type: ignore[arg-type]
            placed = [(tile, loop) for tile, loop in subject.loops_above(path) if loop.name == name]
            inside = [loop for loop in (leaf.kernel.quantum if leaf.kernel is not None else ()) if loop.name == name]
            covered = prod(loop.trips for loop in (*(loop for _, loop in placed), *inside))
            open_factors = any(loop.factor is None for _, loop in placed)
            wrong = covered < extent if subject.imperfect else covered != extent
            if open_factors:
                wrong = not subject.imperfect and extent % covered != 0
            if wrong:
                steps = [f"{loop.trips}@{tile.level}" for tile, loop in placed]
                factors = "*".join([*steps, *(str(loop.trips) for loop in inside)])
                yield WrongCoverage(
                    f"loop {name} of {compute.name} has extent {extent}, but factors {factors or 'none'}"
                    + (f" = {covered}" if len(placed) + len(inside) > 1 else ""),
                    help=_nearest_factor(name, extent, covered, placed, subject.imperfect),
                )


def _nearest_factor(name: str, extent: int, covered: int, placed: list[tuple[Tile, Loop]], imperfect: bool) -> str:
    """The one factor whose change makes the product right."""
    if not placed:
        return f"add {name}:{-(-extent // covered)} to a tile around it"
    for tile, loop in reversed(placed):
        rest = covered // loop.trips
        if extent % rest == 0 or imperfect:
            return f"make {name} at {tile.level} {-(-extent // rest)} instead of {loop.trips}"
    allowed = " or allow imperfect factors" if covered >= extent else ""
    return f"use factors of {name} whose product is {extent}{allowed}"


def _order(subject: _Subject) -> Iterator[IllegalTree]:
    """L2: producers stand before consumers."""
    for producer, consumer in subject.problem.edges():
        if subject.places[producer.name][0] > subject.places[consumer.name][0]:
            yield WrongOrder(
                f"{consumer.name} stands before {producer.name}, whose result it reads",
                help=f"put the child with {producer.name} before the child with {consumer.name}",
            )


def _incomplete(subject: _Subject) -> Iterator[IllegalTree]:
    """L3 and L5: what surrounds producer and consumer must not cut what the consumer needs whole."""
    problem = subject.problem
    for producer, consumer in problem.edges():
        for tile, loop in subject.loops_above(subject.meeting(producer.name, consumer.name)):
            if loop.trips == 1:
                continue
            where = f"{loop} at {tile.level} surrounds {producer.name} and {consumer.name}"
            if loop.name in problem.reductions(producer.name) and problem.runs(producer.name, loop.name):
                continue
            if loop.name in problem.reductions(producer.name):
                if _is_softmax(producer, problem):
                    yield SplitSoftmax(
                        f"{where}, which needs the {producer.accum} over all of {loop.name}",
                        help=f"give {loop.name} factor 1 there, or rewrite the group with deferred normalisation or "
                        "a running maximum and sum",
                    )
                else:
                    yield IncompleteProducer(
                        f"{where}, which would read {producer.name} before its sum over {loop.name} is complete",
                        help=f"move {loop.name} into the tile of {producer.name}, or give it factor 1",
                    )
            elif _cuts(loop.name, producer, consumer, problem):
                yield IncompleteProducer(
                    f"{where}, which reads other elements of {producer.name} along {loop.name} than this tile has",
                    help=f"move {loop.name} into the tile of {producer.name}, or give it factor 1",
                )


def _cuts(name: str, producer: Compute, consumer: Compute, problem: Problem) -> bool:
    """Whether a consumer reads a producer across the tiles of one of the producer's loops."""
    return any(
        name in problem.loops_of(producer.name, axis.name) and not problem.follows(read, consumer, dim)
        for dim, axis in enumerate(producer.axes)
        for read in consumer.reads()
        if read.tensor == producer.output
    )


EXPONENTIALS = ("exp", "exp_nonpositive")


def _is_softmax(producer: Compute, problem: Problem) -> bool:
    """Whether a reduction is the maximum that exponentials subtract, or the sum of exponentials."""

    def has_exp(compute: Compute) -> bool:
        return any(isinstance(node, Apply) and node.function in EXPONENTIALS for node in walk_expr(compute.body))

    if producer.accum == "max":
        return any(p is producer and has_exp(c) for p, c in problem.edges())
    if producer.accum != "sum":
        return False
    summed = isinstance(producer.body, Read) and any(c is producer and has_exp(p) for p, c in problem.edges())
    return summed or (isinstance(producer.body, Apply) and producer.body.function in EXPONENTIALS)


def _foreign(subject: _Subject) -> Iterator[IllegalTree]:
    """L4: every loop around an expression advances it, unless recomputation is allowed."""
    if subject.recompute:
        return
    for op, (path, _) in subject.places.items():
        own = subject.problem.loops(op)
        for tile, loop in subject.loops_above(path):
            if loop.trips > 1 and loop.name not in own:
                yield Recomputation(
                    f"{loop} at {tile.level} is no loop of {op} and would compute it {loop.trips} times",
                    help=f"move {loop.name} to a tile of expressions that have it, give it factor 1, "
                    "or allow recomputation",
                )


def _independent(subject: _Subject) -> Iterator[IllegalTree]:
    """L6: no child of Para needs another."""
    for path, node in walk(subject.tree):
        if not isinstance(node, Scope) or node.kind is not Kind.PARA:
            continue
        groups = [subject.ops_below((*path, number)) for number in range(len(node.children))]
        for first, second in combinations(range(len(groups)), 2):
            for a, b in ((a, b) for a in groups[first] for b in groups[second]):
                if b in subject.reaches[a] or a in subject.reaches[b]:
                    before, after = (a, b) if b in subject.reaches[a] else (b, a)
                    yield DependentPara(
                        f"children {first} and {second} of para depend on each other: {after} needs {before}",
                        help="use pipe, or seq or shar",
                    )


def _placement(subject: _Subject) -> Iterator[IllegalTree]:
    """L7: no Pipe or Para directly inside spatial loops."""
    for path, node in walk(subject.tree):
        if isinstance(node, Scope) and node.kind in SIMULTANEOUS:
            around = subject.tiles_above(path)
            if around and around[-1].binding is Binding.SP:
                loops = ", ".join(map(str, around[-1].loops))
                yield MisplacedPipe(
                    f"{node.kind.value} stands directly inside par {loops} at {around[-1].level}",
                    help=f"put par {loops} into each of its {len(node.children)} children",
                )


def _resources(subject: _Subject) -> Iterator[IllegalTree]:
    """L8: levels in order, units and instances below each level, bytes per level, threads and registers."""
    if subject.resources is not None:
        for message, help in excesses(subject.tree, subject.problem, subject.resources):
            yield TooLarge(message, help=help)


def _reductions(subject: _Subject) -> Iterator[IllegalTree]:
    """L9: spatial reduction loops only where units can add up."""
    resources = subject.resources
    if resources is None:
        return
    able = {level.name for level in resources.levels if level.reduce}
    for path, node in walk(subject.tree):
        if not isinstance(node, Tile) or node.binding is not Binding.SP or node.level in able:
            continue
        for op in subject.ops_below(path):
            for loop in node.loops:
                if loop.trips > 1 and loop.name in subject.problem.reductions(op):
                    others = f", or put it at {' or '.join(sorted(able))}" if able else ""
                    yield SpatialReduction(
                        f"par {loop} at {node.level} reduces {op} across units, which {node.level} cannot",
                        help=f"bind {loop.name} as for{others}",
                    )


def _steps(subject: _Subject) -> Iterator[IllegalTree]:
    """L10: one unit takes the steps of an ordered accumulation, and their loops are nested as they were."""
    problem = subject.problem
    for compute in problem.computes:
        if compute.ordered is None:
            continue
        path, _ = subject.places[compute.name]
        names = [problem.names[compute.name, axis.name] for axis in compute.reduce]
        walked = [(tile, loop) for tile, loop in subject.loops_above(path) if loop.name in names and loop.trips > 1]
        for tile, loop in walked:
            if tile.binding is Binding.SP:
                yield Reordered(
                    f"par {loop} at {tile.level} distributes the steps of {compute.name}, which run in turn",
                    help=f"bind {loop.name} as for",
                )
        nested = [loop.name for _, loop in walked]
        if nested != sorted(nested, key=names.index):
            yield Reordered(
                f"the steps of {compute.name} run in the order of {', '.join(nested)}",
                help=f"nest their loops in the order of {', '.join(names)}",
            )


def _retention(subject: _Subject) -> Iterator[IllegalTree]:
    """L11: tiles and stages say something about their own tensors only."""
    for path, node in walk(subject.tree):
        if not isinstance(node, Stage) and not (isinstance(node, Tile) and (node.keep or node.bypass)):
            continue
        computes = [subject.problem.compute(op) for op in subject.ops_below(path)]
        used = sorted({tensor.name for compute in computes for tensor in (*compute.inputs(), compute.output)})
        if isinstance(node, Stage) and node.tensor not in used:
            yield WrongRetention(
                f"stage {node.tensor} in {node.level} keeps what nothing in it uses", help=f"one of {', '.join(used)}"
            )
        for field in RETENTION if isinstance(node, Tile) else ():
            for name in getattr(node, field):
                if name not in used:
                    yield WrongRetention(
                        f"the tile at {node.level} has {field} {name}, which nothing in it uses",
                        help=f"one of {', '.join(used)}",
                    )


RULES: tuple[Callable[[_Subject], Iterator[IllegalTree]], ...] = (
    _coverage, _order, _incomplete, _foreign, _independent, _placement, _resources, _reductions, _steps,
    _retention,
)  # fmt: skip
