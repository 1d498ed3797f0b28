"""The measurement of the model of tile trees. Nothing here looks at how long things take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench import trees
from bench.trees import Subject, Times, timed
from tilewright.graph.chain.solve import Solution
from tilewright.graph.dataflow_search import Searched
from tilewright.tiles.analysis import Analysis


def recorded(names: list[str], name: str) -> Callable[[], object]:
    return lambda: names.append(name)


def test_subjects_take_turns_and_each_begins_with_a_call_that_is_not_timed() -> None:
    called: list[str] = []
    ticks = iter(range(100))
    often = Subject("a", 1.0, recorded(called, "a"), count=4)
    seldom = Subject("b", 1.0, recorded(called, "b"), every=2)
    found = timed([often, seldom], 3, clock=lambda: float(next(ticks)))
    assert "".join(called) == "aabb" + "aa" + "aabb"
    assert [each.seconds for each in found] == [(0.25, 0.25, 0.25), (1.0, 1.0)]


def test_a_cold_subject_is_called_once_a_turn() -> None:
    called: list[str] = []
    timed([Subject("a", 1.0, recorded(called, "a"))], 1, warm=False)
    assert called == ["a"]


def test_a_row_has_bar_least_median_and_spread() -> None:
    times = Times(Subject("a tree", 4e-3, lambda: None), tuple(1e-3 * each for each in range(1, 12)))
    assert times.row().split() == ["a", "tree", "4", "1.000", "6.000", "2.000", "10.000", "11", "above"]
    assert not times.is_met
    assert Times(Subject("a tree", 6.1e-3, lambda: None), times.seconds).row().endswith("met")


@pytest.mark.parametrize(("bar", "status"), [(1e9, 0), (-1.0, 1)])
def test_the_exit_status_says_whether_bars_are_met(
    bar: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trees, "subjects", lambda: [Subject("a", 1e9, lambda: None)])
    monkeypatch.setattr(trees, "search", lambda: Subject("whole search", bar, lambda: None))
    assert trees.main(["--turns", "2", "--search"]) == status
    assert trees.main(["--turns", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["one", "of", "bar,", "ms", "least", "median", "10", "%", "90", "%", "turns"]
    assert sum(row.startswith("whole search") for row in rows) == 1


def test_what_is_timed_does_the_work() -> None:
    tree, batch, products, convolutions = (subject.call() for subject in trees.subjects())
    assert isinstance(tree, Analysis)
    assert tree.cycles > 0
    assert isinstance(batch, Analysis)
    assert batch.cycles.shape == (trees.BATCH,)
    assert batch.cycles[0] == tree.cycles
    for solution in (products, convolutions):
        assert isinstance(solution, Solution)
        assert solution.plans


def test_the_search_is_of_whole_trees() -> None:
    found = trees.search(genomes=4).call()
    assert isinstance(found, Searched)
    assert len(found.outcome.trace.steps) == 4
    assert found.tree is not None


def test_no_turns_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        trees.main(["--turns", "0"])
    assert "--turns is 1 or more" in capsys.readouterr().err
