"""Genomes and factors of tile trees: the worked case of the specification, legal draws, and searches of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, islice
from math import prod
from typing import Any

import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.expr.text import parse_graph
from tilewright.graph.factor_draws import Draws
from tilewright.graph.orders import Orders
from tilewright.graph.tree_factors import Factors, TreeFactors
from tilewright.graph.tree_fitness import TreeFitness
from tilewright.graph.tree_space import Genome, TreeSpace
from tilewright.search.cost import Evaluation
from tilewright.search.exhaustive import Exhaustive
from tilewright.search.genetic import Genetic
from tilewright.search.minimise import minimise
from tilewright.search.space import NoLegalPoint, canonical
from tilewright.search.tree_search import TreeSearch
from tilewright.tiles.footprints import footprints
from tilewright.tiles.legality import violations
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.resources import Level, Resources, processing_elements
from tilewright.tiles.tree import Kind, Scope, Tile, TileTree, ancestors, leaves, node_at, same_path, walk

LEVELS = ("L2", "L1", "L0")


def chain(i: int = 8, l: int = 8, j: int = 4, k: int = 4) -> Problem:
    """Two products with a pointwise operator between them."""
    return problem(f"""
        input Q: f32[{i}, {k}]
        input K: f32[{k}, {l}]
        input V: f32[{l}, {j}]
        OP1: f32[i:{i}, l:{l}] += Q[i, k] * K[k, l] over k:{k}
        OP2: f32[i:{i}, l:{l}] = tanh(OP1[i, l])
        OP3: f32[i:{i}, j:{j}] += OP2[i, l] * V[l, j] over l:{l}
        output OP3
    """)


def softmax(i: int = 4, l: int = 4) -> Problem:
    """With edges that skip operators: E and S go to D, X to M and E."""
    return problem(f"""
        input X: f32[{i}, {l}]
        M: f32[i:{i}] max= X[i, l] over l:{l}
        E: f32[i:{i}, l:{l}] = exp(X[i, l] - M[i])
        S: f32[i:{i}] += E[i, l] over l:{l}
        D: f32[i:{i}, l:{l}] = E[i, l] / S[i]
        output D
    """)


def convolutions() -> Problem:
    """The rows and columns of the first follow those of the second, halo included."""
    return problem("""
        input I: f32[4, 10, 10]
        input W: f32[4, 4, 3, 3]
        input U: f32[2, 4, 3, 3]
        C1: f32[l:4, h:8, w:8] += I[c, h + r, w + s] * W[l, c, r, s] over c:4, r:3, s:3
        C2: f32[k:2, h:6, w:6] += C1[l, h + u, w + v] * U[k, l, u, v] over l:4, u:3, v:3
        output C2
    """)


def problem(text: str) -> Problem:
    return Problem.of(parse_graph(text).nodes)


PROBLEMS = {"chain": chain, "softmax": softmax, "convolutions": convolutions}


def meeting(tree: TileTree, a: str, b: str) -> Tile | None:
    """The tile right above the scope in which two operators meet; None where only the root is above."""
    places = {leaf.op: path for path, leaf in leaves(tree)}
    path = same_path(places[a], places[b])
    assert isinstance(node_at(tree, path), Scope)
    if not path:
        return None
    tile = node_at(tree, path[:-1])
    assert isinstance(tile, Tile)
    return tile


def fused(genome: Genome | None) -> Genome:
    """A genome without its orders."""
    assert genome is not None
    return tuple(column[:3] for column in genome[:-1])


def test_spec1_g39() -> None:
    """OP1:(L1,OP3) OP2:(L0,OP3): OP2 and OP3 meet under a tile at L1, that tile and OP1 under one at L2."""
    space = TreeSpace(chain(), LEVELS)
    tree = space.tree((("L1", "OP3", "seq"), ("L0", "OP3", "pipe")))
    assert tree == parse_tree("""
        @L2 for i, l { seq[
            @L1 for i, l, k { @L0 for i, l, k { op OP1 } },
            @L1 for i, l { pipe[ @L0 for i, l { op OP2 }, @L0 for i, j, l { op OP3 } ] }] }
    """)


def test_an_operator_has_its_loops_in_the_order_of_its_cell() -> None:
    """At every level; a tile around several operators has its loops in the order of the last one."""
    space = TreeSpace(chain(), LEVELS)
    tree = space.tree((("L1", "OP3", "seq", "k l i"), ("L0", "OP3", "pipe", "i l"), ("l j i",)))
    assert tree == parse_tree("""
        @L2 for l, i { seq[
            @L1 for k, l, i { @L0 for k, l, i { op OP1 } },
            @L1 for l, i { pipe[ @L0 for i, l { op OP2 }, @L0 for l, j, i { op OP3 } ] }] }
    """)


@pytest.mark.parametrize("name", PROBLEMS)
def test_operators_meet_under_a_tile_one_level_above_where_the_result_is_staged(name: str) -> None:
    space = TreeSpace(PROBLEMS[name](), LEVELS, frozenset({"L2"}))
    numbers = np.random.default_rng(0)
    for genome in (space.sample(numbers) for _ in range(15)):
        tree = space.tree(genome)
        for op, (level, into, kind) in zip(space.operators[:-1], fused(genome), strict=True):
            tile = meeting(tree, op, into)
            if level == LEVELS[0]:
                assert tile is None
            else:
                assert tile is not None
                assert tile.level == LEVELS[LEVELS.index(level) - 1]
                assert isinstance(tile.child, Scope)
                assert tile.child.kind is Kind(kind)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_genome_is_repaired_to_a_legal_one_that_stays_or_is_rejected(name: str) -> None:
    space = TreeSpace(PROBLEMS[name](), LEVELS, frozenset({"L2", "L1"}))
    numbers = np.random.default_rng(1)
    rejected = 0
    for _ in range(100):
        drawn = any_genome(space, numbers)
        found = space.repaired(drawn)
        rejected += found is None
        if found is not None:
            assert space.repaired(found) == found
            assert structure(space.tree(found)) == structure(space.tree(drawn))
            assert list(violations(space.tree(found), space.problem)) == []
    assert 0 < rejected < 100


def test_genomes_of_one_family_differ_in_orders_only() -> None:
    space = TreeSpace(chain(), LEVELS)
    found = [each for each in (space.repaired(genome) for genome in islice(space.points(), 0, None, 61)) if each]
    families: dict[object, list[Genome]] = {}
    for genome in found:
        families.setdefault(space.family(genome), []).append(genome)
    assert 5 < len(families) < len({*found})
    for genomes in families.values():
        assert len({str(structure(space.tree(each))) for each in genomes}) == 1
        assert len({fused(each) for each in genomes}) == 1


def any_genome(space: TreeSpace, numbers: np.random.Generator) -> Genome:
    """A value of every cell, legal together or not."""
    return tuple(
        tuple(
            cell.drawn(numbers) if isinstance(cell, Orders) else cell[int(numbers.integers(len(cell)))]
            for cell in column
        )
        for column in space.cells
    )


def structure(tree: TileTree) -> list[object]:
    """A tree without the order of loops in a tile."""
    nodes = [(path, node) for path, node in walk(tree) if not isinstance(node, Scope)]
    return [(path, sorted(map(str, node.loops)), node.level) if isinstance(node, Tile) else (path, node)
            for path, node in nodes]  # fmt: skip


def test_a_scope_of_operators_that_need_each_other_is_never_para() -> None:
    space = TreeSpace(chain(), LEVELS)
    assert space.repaired((("L1", "OP2", "para"), ("L2", "OP3", "seq"))) is None
    drawn = dict.fromkeys(map(fused, space.points()))
    legal = {fused(found) for genome in drawn if (found := space.repaired(genome)) is not None}
    assert all(kind != "para" or level == "L2" for genome in legal for level, _, kind in genome)
    assert any(kind == "pipe" and level == "L1" for genome in legal for level, _, kind in genome)


def test_what_lies_between_two_operators_of_a_scope_belongs_to_it() -> None:
    """M and D are fused; E and S, which lie between them, cannot stay outside."""
    space = TreeSpace(softmax(), LEVELS)
    genome = space.repaired((("L1", "D", "shar"), ("L2", "S", "seq"), ("L2", "D", "seq")))
    assert fused(genome) == (("L1", "E", "shar"), ("L1", "S", "shar"), ("L1", "D", "shar"))


def test_loops_that_would_cut_a_reduction_stand_in_no_shared_tile() -> None:
    space = TreeSpace(softmax(), LEVELS)
    tree = space.tree((("L1", "E", "shar"), ("L1", "S", "shar"), ("L1", "D", "shar")))
    assert isinstance(tree, Tile)
    assert [loop.name for loop in tree.loops] == ["i"]


def test_without_the_rule_l4_a_shared_tile_has_loops_that_run_operators_again() -> None:
    fused = (("L1", "OP2", "seq"), ("L1", "OP3", "seq"))
    once, again = (TreeSpace(chain(), LEVELS, recompute=recompute).tree(fused) for recompute in (False, True))
    assert isinstance(once, Tile)
    assert isinstance(again, Tile)
    assert [loop.name for loop in once.loops] == ["i", "l"]
    assert [loop.name for loop in again.loops] == ["i", "j", "l"]


def test_rows_of_a_convolution_are_cut_by_its_own_loops_or_follow_the_next_ones() -> None:
    space = TreeSpace(convolutions(), LEVELS)
    own = {space.problem.names["C1", axis] for axis in "hw"}
    for genome, expected in ((("L2", "C2", "seq"), own), (("L1", "C2", "seq"), set())):
        tree = space.tree((genome,))
        assert {loop.name for tile in tiles_above(tree, "C1") for loop in tile.loops} & own == expected
        factors = TreeFactors(tree, space.problem)
        for _ in range(3):
            filled = factors.filled(factors.sample(np.random.default_rng(0)))
            above = [loop for tile in tiles_above(filled, "C1") for loop in tile.loops]
            assert all(prod(loop.trips for loop in above if loop.name == name) == 8 for name in expected)


def tiles_above(tree: TileTree, op: str) -> list[Tile]:
    (path,) = (path for path, leaf in leaves(tree) if leaf.op == op)
    return [node for _, node in ancestors(tree, path) if isinstance(node, Tile)]


def test_points_are_as_many_as_the_size_says_and_are_read_back() -> None:
    space = TreeSpace(chain(), LEVELS)
    points = list(space.points())
    orders = 6, 2, 6  # of i, l and k; of i and l; of i, j and l
    assert len(points) == len(set(points)) == space.size == (3 * 2 * 4) * (3 * 1 * 4) * prod(orders)
    points = points[::97]
    assert [space.from_json(json.loads(canonical(space, point))) for point in points] == points
    written = space.to_json(points[0])
    for damaged in (None, {}, written | {"OP1": 3}, written | {"OP1": ["L1", "OP1", "seq", "i l k"]},
                    written | {"x": []}, written | {"OP2": ["L1", "OP3", "seq"]}, written | {"OP3": ["i l"]},
                    written | {"OP2": ["L7", "OP3", "seq", "i l"]}, written | {"OP3": ["i l i"]}):  # fmt: skip
        with pytest.raises(NoLegalPoint):
            space.from_json(damaged)


def test_neighbours_differ_in_a_cell_or_what_follows_from_it() -> None:
    space = TreeSpace(chain(), LEVELS)
    start = (("L2", "OP2", "seq", "i l k"), ("L2", "OP3", "seq", "i l"), ("i j l",))
    near = space.neighbours(start)
    assert len(near) == (2 + 1 + 3 + 2) + (2 + 0 + 3 + 1) + 2
    assert {each for each in near if each is not None} > {
        (("L1", "OP2", "seq", "i l k"), *start[1:]),
        (("L2", "OP2", "seq", "l i k"), *start[1:]),
        (*start[:2], ("i l j",)),
    }


def test_a_tree_needs_two_levels() -> None:
    with pytest.raises(InvalidArgument, match="over the levels DRAM"):
        TreeSpace(chain(), ("DRAM",))


# Factors --------------------------------------------------------------------------------------------------------------

FUSED: Genome = (("L1", "OP2", "shar"), ("L0", "OP3", "pipe"))


def small(resources: Resources | None = None) -> TreeFactors:
    space = TreeSpace(chain(4, 3, 2, 2), LEVELS)
    return TreeFactors(space.tree(FUSED), space.problem, resources)


TIGHT = Resources((Level("L2"), Level("L1", 120), Level("L0", 40)))


@pytest.mark.parametrize("resources", [None, TIGHT])
def test_factors_are_all_that_make_up_the_extents_once(resources: Resources | None) -> None:
    space = small(resources)
    points = list(space.points())
    assert len(points) == len(set(points)) == space.size
    for point in points[::7]:
        broken = [each for each in violations(space.filled(point), space.problem) if each.rule.startswith("L1 ")]
        assert broken == []
    # Brute force: the two factors of j, three of k on one path, and those of i and l, which two paths share
    i, l = (
        sum((a * b * c == n) * (a * d * e == n) * (a * d * f == n)
            for a, b, c, d, e, f in np.ndindex(*(n + 1,) * 6))
        for n in (4, 3)
    )  # fmt: skip
    assert space.size == i * l * 1 * 2


@pytest.mark.parametrize("resources", [None, TIGHT])
def test_decisions_lead_to_every_legal_tree_once(resources: Resources | None) -> None:
    space = small(resources)
    outcome = minimise(lambda _: Evaluation(1.0), TreeSearch(space, rollouts=1))
    visited = {tuple(step.point.values()) for step in outcome.trace.steps}
    legal = {point for point in space.points() if not space.refuses(point)}
    assert outcome.stopped == "finished"
    assert visited == legal
    assert 0 < len(legal) < space.size or resources is None


def test_draws_and_neighbours_are_legal() -> None:
    space = small(TIGHT)
    legal = {point for point in space.points() if not space.refuses(point)}
    numbers = np.random.default_rng(0)
    for point in (space.sample(numbers) for _ in range(20)):
        assert point in legal
        near = [each for each in space.neighbours(point) if each is not None]
        assert near
        assert set(near) <= legal - {point}
        assert space.from_json(json.loads(canonical(space, point))) == point


def test_a_second_table_of_draws_follows_where_few_of_the_first_are_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = small()
    state = factors.start()
    assert state is not None
    tables: list[int] = []
    drawn, legal = Draws.drawn, TreeFactors.legal

    def counted(self: Draws, possible: Any, count: int, numbers: Any) -> Any:
        tables.append(count)
        return drawn(self, possible, count, numbers)

    def none_of_the_first(self: TreeFactors, table: Any) -> Any:
        return legal(self, table) & (len(tables) > 1)

    monkeypatch.setattr(Draws, "drawn", counted)
    monkeypatch.setattr(TreeFactors, "legal", none_of_the_first)
    assert len(factors.completions(state, 100, np.random.default_rng(0))) == 100
    assert tables == [100, 700]


def test_neighbours_lead_from_every_tree_to_every_other() -> None:
    space = small()
    start = next(space.points())
    reached, edge = {start}, [start]
    while edge:
        edge = list({each for point in edge for each in space.neighbours(point) if each is not None} - reached)
        reached.update(edge)
    assert reached == set(space.points())


def test_factors_that_are_none_are_refused() -> None:
    space = small()
    written = space.to_json(next(space.points()))
    first = next(iter(written))
    for damaged in (None, {}, written | {first: 3}, written | {first: "2"}, written | {first: 0}, written | {"x": 1}):
        with pytest.raises(NoLegalPoint):
            space.from_json(damaged)


def test_no_memory_is_said() -> None:
    nothing = Resources((Level("L2"), Level("L1", 1), Level("L0", 1)))
    with pytest.raises(NoLegalPoint, match="no factors of @L2"):
        small(nothing).sample(np.random.default_rng(0))


@pytest.mark.parametrize("name", PROBLEMS)
def test_drawn_trees_are_legal_in_all(name: str) -> None:
    resources = Resources((Level("L2"), Level("L1", 6000), Level("L0", 3000)), units=64)
    space = TreeSpace(PROBLEMS[name](), LEVELS, frozenset({"L2"}), resources)
    numbers = np.random.default_rng(2)
    for genome in (space.sample(numbers) for _ in range(3)):
        factors = TreeFactors(space.tree(genome), space.problem, resources)
        tree = factors.filled(factors.sample(numbers))
        assert list(violations(tree, space.problem, resources=resources)) == []


# Both searches together -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FactorCost:
    """The cost of factors: that of the tree that they fill."""

    space: TreeFactors
    cost: Callable[[TileTree], Evaluation]

    def __call__(self, point: Factors) -> Evaluation:
        return self.cost(self.space.filled(point))


def made_up(tree: TileTree) -> Evaluation:
    """A cost that falls with fusion and with equal factors: what each step keeps, and how uneven factors are."""
    held = footprints(tree, chain(2, 3, 2, 2))
    factors = [loop.trips for path in held if isinstance(tile := node_at(tree, path), Tile) for loop in tile.loops]
    return Evaluation((sum(held.values()) + sum(factors)) / processing_elements(tree) * 1e-9)


def test_a_genetic_search_with_tree_searches_inside_finds_what_exhaustive_search_does() -> None:
    space = TreeSpace(chain(2, 3, 2, 2), LEVELS[:2], resources=Resources((Level("L2"), Level("L1", 60))))
    fitness = TreeFitness(
        space, lambda factors: FactorCost(factors, made_up), lambda factors: TreeSearch(factors, rollouts=4), 10_000
    )
    best = None
    usual = dict.fromkeys(map(fused, space.points()))  # the cost does not depend on orders
    for genome in {space.repaired(genome) for genome in usual} - {None}:
        assert genome is not None
        factors = TreeFactors(space.tree(genome), space.problem, space.resources)
        found = minimise(FactorCost(factors, made_up), Exhaustive(factors)).evaluation
        assert found is not None
        best = found.value if best is None else min(best, found.value)
    outcome = minimise(fitness, Genetic(space, population=6, keep=3, rounds=6))
    assert outcome.best is not None
    assert outcome.evaluation == Evaluation(best)
    tree, evaluation = fitness.best_tree(outcome.best)
    assert tree is not None
    assert made_up(tree) == evaluation == outcome.evaluation


def test_spaces_are_told_apart_by_their_identity() -> None:
    spaces = [
        TreeSpace(chain(), LEVELS), TreeSpace(chain(16), LEVELS), TreeSpace(chain(), LEVELS[:2]),
        TreeSpace(chain(), LEVELS, frozenset({"L1"})), TreeSpace(chain(), LEVELS, resources=TIGHT),
        TreeSpace(chain(), LEVELS, recompute=True), TreeSpace(softmax(), LEVELS),
    ]  # fmt: skip
    written = [json.dumps(each.identity) for each in spaces]
    assert all(a != b for a, b in combinations(written, 2))
    trees = [json.dumps(TreeFactors(space.tree(space.sample(np.random.default_rng(0))), space.problem).identity)
             for space in (spaces[0], spaces[1], spaces[6])]  # fmt: skip
    assert len(set(trees)) == 3


def test_the_factors_of_a_tree_with_some_given_make_up_the_rest() -> None:
    tree = parse_tree("""
        @L2 for i:2, l { seq[@L1 for i, l, k { op OP1 }, @L1 for i, l { op OP2 }, @L1 for i, j, l { op OP3 }] }
    """)
    space = TreeFactors(tree, chain(4, 4, 2, 2))
    for point in space.points():
        filled = space.filled(point)
        assert prod(loop.trips for loop in filled.loops if loop.name == "i") == 2  # type: ignore[union-attr]
        assert not space.refuses(point)
