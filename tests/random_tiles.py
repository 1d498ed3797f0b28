"""Random tile trees over small problems, from products to attention; legal or not, but analysable."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.expr.text import parse_graph
from tilewright.graph.chain.softmax import running
from tilewright.tiles.levels import Unanalysable
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources
from tilewright.tiles.topology import Topology
from tilewright.tiles.tree import ONCE, Binding, Hint, Kind, Leaf, Loop, Scope, Stage, Tile, TileTree

EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8)
LARGE = (1, 2, 3, 5, 7, 8, 11, 12, 16, 17, 24)
GEMM = """
    input A: f32[{m}, {k}]
    input B: f32[{k}, {n}]
    C: f32[m:{m}, n:{n}] += A[m, k] * B[k, n] over k:{k}
    output C"""
CHAIN = """
    input A: f32[{m}, {k}]
    input B: f32[{k}, {l}]
    input D: f32[{l}, {n}]
    C: f32[m:{m}, l:{l}] += A[m, k] * B[k, l] over k:{k}
    E: f32[m:{m}, n:{n}] += C[m, l] * D[l, n] over l:{l}
    output E"""
CHAIN_OF_THREE = """
    input A: f32[{m}, {k}]
    input B: f32[{k}, {l}]
    input D: f32[{l}, {n}]
    C: f32[m:{m}, l:{l}] += A[m, k] * B[k, l] over k:{k}
    X: f32[m:{m}, l:{l}] = exp(C[m, l])
    E: f32[m:{m}, n:{n}] += X[m, l] * D[l, n] over l:{l}
    output E"""
PART = """
    input A: f32[{m2}, {k}]
    input B: f32[{k}, {l2}]
    input D: f32[{l}, {n}]
    C: f32[m:{m2}, l:{l2}] += A[m, k] * B[k, l] over k:{k}
    E: f32[m:{m}, n:{n}] += C[m, l] * D[l, n] over l:{l}
    output E"""
CONVOLUTION = """
    input X: f32[{k}, {rows}, {columns}]
    input W: f32[{n}, {k}, 3, 2]
    Y: f32[n:{n}, h:{m}, w:{l}] += X[c, {s}*h + r, w + s] * W[n, c, r, s] over c:{k}, r:3, s:2
    output Y"""
PADDED = """
    input X: f32[{m}, {l}]
    input W: f32[3, 3]
    P: f32[p:{m2}, q:{l2}] = select((1 <= p) & (p <= {m}) & (1 <= q) & (q <= {l}), X[p - 1, q - 1], 0.0)
    Y: f32[h:{m}, w:{l}] += P[h + r, w + s] * W[r, s] over r:3, s:3
    output Y"""
CONVOLUTIONS = """
    input X: f32[{k}, {rows2}]
    input V: f32[{n}, {k}, 3]
    input W: f32[{l}, {n}, 3]
    Y: f32[n:{n}, p:{rows}] += X[c, p + r] * V[n, c, r] over c:{k}, r:3
    Z: f32[l:{l}, h:{m}] += Y[n, {s}*h + u] * W[l, n, u] over n:{n}, u:3
    output Z"""
ATTENTION = """
    input Q: f32[{m}, {k}]
    input K: f32[{l}, {k}]
    input V: f32[{l}, {n}]
    S: f32[m:{m}, l:{l}] += Q[m, k] * K[l, k] over k:{k}
    M: f32[m:{m}] max= S[m, l] over l:{l}
    U: f32[m:{m}, l:{l}] = S[m, l] - M[m]
    X: f32[m:{m}, l:{l}] = exp(U[m, l])
    Z: f32[m:{m}] += X[m, l] over l:{l}
    P: f32[m:{m}, l:{l}] = X[m, l] / Z[m]
    O: f32[m:{m}, n:{n}] += P[m, l] * V[l, n] over l:{l}
    output O"""
MAPS = """
    input A: f32[{m}, {n}]
    input b: f32[{n}]
    B: f32[m:{m}, n:{n}] = A[m, n] + b[n]
    C: f32[n:{n}, m:{m}] = B[m, n] * A[m, 0]
    output C"""
MASKED = CHAIN_OF_THREE.replace("exp(C[m, l])", "l <= m + {n} ? C[m, l] : -inf")
PROBLEMS = (GEMM, CHAIN, CHAIN_OF_THREE, PART, CONVOLUTION, PADDED, CONVOLUTIONS, ATTENTION, MAPS)


@dataclass(frozen=True)
class Case:
    """A tree with what it is analysed for."""

    problem: Problem
    tree: TileTree
    resources: Resources | None
    compat_evict: bool


def random_problem(
    roll: random.Random, texts: Sequence[str] = PROBLEMS, extents: Sequence[int] = EXTENTS
) -> Problem:  # fmt: skip
    """One of these problems with such extents; most softmaxes may run through their rows in parts."""
    size = {name: roll.choice(extents) for name in "mnkl"}
    stride = roll.choice((1, 2, 3))
    rows = stride * (size["m"] - 1) + 3
    text = roll.choice(texts).format(
        **size, s=stride, rows=rows, rows2=rows + 2, columns=size["l"] + 1, m2=size["m"] + 2, l2=size["l"] + 2
    )
    problem = Problem.of(parse_graph(text).nodes)
    online = "exp(U[m, l])" in text and roll.random() < 0.7
    return running(problem) if online else problem


def random_case(
    roll: random.Random, texts: Sequence[str] = PROBLEMS, extents: Sequence[int] = EXTENTS
) -> Case:  # fmt: skip
    """A problem and a tree of at most some thousand steps."""
    while True:
        problem = random_problem(roll, texts, extents)
        levels = ("DRAM", "L1", "RF")[: roll.choice((1, 2, 2, 3, 3))]
        tree = _Trees(roll, problem, levels).tree()
        if steps(tree) > 3000 or not _holds(tree, problem):
            continue
        resources = None
        if roll.random() < 0.4:
            resources = Resources(tuple(_level(name, roll) for name in levels))
        if resources is None or _holds(tree, problem, resources):
            compat_evict, paths = roll.random() < 0.15, roll.choice((None, (), (("DRAM", "RF"),)))
            resources = None if resources is None else replace(resources, direct_paths=paths)
            return Case(problem, tree, resources, compat_evict)


def random_masked(roll: random.Random, extents: Sequence[int] = EXTENTS) -> Case:
    """As `random_case`, of a chain with a mask that ends the loops along its columns early."""
    case = random_case(roll, [MASKED], extents)
    _, columns = (case.problem.names["X", axis.name] for axis in case.problem.compute("X").axes)
    hint = Hint("seen", (columns, roll.randint(1, 3)))
    return replace(case, tree=_with_hint(case.tree, hint))


def _with_hint(node: Any, hint: Hint) -> Any:
    """A tree with a hint at the leaf of X."""
    if isinstance(node, Leaf):
        return replace(node, hints=(hint,)) if node.op == "X" else node
    if isinstance(node, Scope):
        return replace(node, children=tuple(_with_hint(child, hint) for child in node.children))
    return replace(node, child=_with_hint(node.child, hint))


def _holds(tree: TileTree, problem: Problem, resources: Resources | None = None) -> bool:
    """Whether every tensor and stage has a level that holds it, of those that the tree names or of a machine."""
    try:
        topology = Topology(tree, problem, resources)
        return all(topology.source(top, name) >= 0 for top in topology.tops for name in problem.tensors())
    except (Unanalysable, IndexError):
        return False


def _level(name: str, roll: random.Random) -> Level:
    multicast, retain, accumulate = (roll.random() < often for often in (0.6, 0.8, 0.2))
    return Level(name, multicast=multicast, retain=retain, accumulate=accumulate)


def steps(tree: TileTree | Leaf) -> int:
    """Visits of leaves in a tree, clipped steps included."""
    if isinstance(tree, Leaf):
        return 1
    if isinstance(tree, Tile):
        return tree.trips * steps(tree.child)
    return sum(steps(child) for child in tree.children) if isinstance(tree, Scope) else steps(tree.child)


Blocks = dict[str, int]  #: what is left of every axis below a node, by the name of its loop


class _Trees:
    def __init__(self, roll: random.Random, problem: Problem, levels: Sequence[str]) -> None:
        self.roll, self.problem, self.levels = roll, problem, levels
        self.names = {
            compute.name: [
                problem.names[compute.name, a.name]
                for a in compute.loops
                if (compute.name, a.name) not in problem.derived
            ]
            for compute in problem.computes
        }
        self.derived = {
            compute.name: {
                problem.names[compute.name, a.name]: a.size
                for a in compute.loops
                if (compute.name, a.name) in problem.derived
            }
            for compute in problem.computes
        }

    def tree(self) -> TileTree:
        sizes = {self.problem.names[c.name, a.name]: a.size for c in self.problem.computes for a in c.loops}
        blocks = {name: self.padded(size) for name, size in sizes.items()}
        tree = self.node(tuple(self.names), blocks, 0, first=True)
        assert not isinstance(tree, Leaf)
        return tree

    def padded(self, size: int) -> int:
        """The extent, or a larger one whose last steps are clipped."""
        return size if self.roll.random() < 0.6 else size + self.roll.randrange(0, 4)

    def node(self, ops: tuple[str, ...], blocks: Blocks, level: int, first: bool = False) -> TileTree | Leaf:
        """A subtree of these expressions, whose tiles are at `level` or further in."""
        if len(ops) == 1:
            return self.topology(ops[0], dict(blocks), level)
        if first and self.roll.random() < 0.15:
            return self.scope(ops, blocks, level)
        tiles = self.roll.choice((1, 1, 2))
        made: list[tuple[str, tuple[Loop, ...], Binding]] = []
        blocks = dict(blocks)
        inner = level
        for _ in range(tiles):
            names = sorted({name for op in ops for name in self.names[op]})
            loops = self.loops(names, blocks)
            made.append((self.levels[inner], loops, self.binding()))
            if inner + 1 < len(self.levels) and self.roll.random() < 0.3:
                inner += 1
        child: TileTree = self.scope(ops, blocks, inner)
        for name, loops, binding in reversed(made):
            child = self.staged(child)
            child = Tile(name, loops, child, binding, (), self.some(0.25), self.some(0.1))
        return self.staged(child)

    def staged(self, child: TileTree) -> TileTree:
        """A subtree, around which a tensor may lie at a level."""
        if self.roll.random() >= 0.1:
            return child
        return Stage(self.roll.choice(sorted(self.problem.tensors())), self.roll.choice(self.levels), child)

    def some(self, often: float) -> tuple[str, ...]:
        """Tensors that a tile keeps or bypasses: mostly none."""
        names = sorted(self.problem.tensors())
        return tuple(self.roll.sample(names, self.roll.randint(1, 2))) if self.roll.random() < often else ()

    def scope(self, ops: tuple[str, ...], blocks: Blocks, level: int) -> Scope:
        cuts = sorted(self.roll.sample(range(1, len(ops)), self.roll.randint(1, min(3, len(ops) - 1))))
        groups = [ops[a:b] for a, b in zip([0, *cuts], [*cuts, len(ops)], strict=True)]
        nodes = []
        for group in groups:
            inner = level + (level + 1 < len(self.levels) and self.roll.random() < 0.7)
            if len(group) > 1 and self.roll.random() < 0.3:
                nodes.append(self.scope(group, blocks, level))
            else:
                node = self.node(group, blocks, inner)
                if isinstance(node, Leaf):
                    node = Tile(self.levels[inner], (Loop(ONCE, 1),), node)
                nodes.append(node)
        return Scope(self.roll.choice(tuple(Kind)), tuple(nodes))

    def topology(self, op: str, blocks: Blocks, level: int) -> TileTree | Leaf:
        """Tiles of one expression that use up all that is left of its axes."""
        own = [*self.names[op], *(name for name in self.derived[op] if self.roll.random() < 0.5)]
        for name in self.derived[op]:
            blocks[name] = self.padded(blocks[name])
        tiles: list[tuple[str, tuple[Loop, ...], Binding]] = []
        for inner in range(level, len(self.levels)):
            for _ in range(self.roll.choice((0, 1, 1, 2))):
                tiles.append((self.levels[inner], self.loops(own, blocks), self.binding()))
        rest = [Loop(name, blocks[name]) for name in own if blocks[name] > 1] or [Loop(ONCE, 1)]
        self.roll.shuffle(rest)
        node: TileTree | Leaf = Tile(self.levels[-1], tuple(rest), Leaf(op), Binding.TP)
        for name, loops, binding in reversed(tiles):
            node = Tile(name, loops, node, binding, (), (), self.some(0.05))
        if self.roll.random() < 0.05 and isinstance(node, Tile):
            node = Stage(op, self.levels[-1], node)
        return node

    def loops(self, names: Sequence[str], blocks: Blocks) -> tuple[Loop, ...]:
        """Loops over some axes, in any order; what they leave stays in `blocks`."""
        found = []
        for name in self.roll.sample(list(names), self.roll.randint(0, min(3, len(names)))):
            divisors = [d for d in range(1, blocks[name] + 1) if blocks[name] % d == 0]
            factor = self.roll.choice(divisors)
            blocks[name] //= factor
            found.append(Loop(name, factor))
        return tuple(found) or (Loop(ONCE, 1),)

    def binding(self) -> Binding:
        return Binding.SP if self.roll.random() < 0.25 else Binding.TP
