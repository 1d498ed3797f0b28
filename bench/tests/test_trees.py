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
    assert [each.references for each in found] == [(1.0, 1.0, 1.0), (1.0, 1.0)]


def test_a_cold_subject_is_called_once_a_turn() -> None:
    called: list[str] = []
    timed([Subject("a", 1.0, recorded(called, "a"))], 1, warm=False)
    assert called == ["a"]


def test_a_row_has_bar_least_spread_and_the_median_that_decides() -> None:
    times = Times(Subject("a tree", 4e-3, lambda: None), tuple(1e-3 * each for each in range(1, 12)), (1.0,) * 11)
    row = ["a", "tree", "4", "1.000", "2.000", "6.000", "10.000", "11", "11", "6.000", "above"]
    assert times.row(1.0).split() == row
    assert Times(Subject("a tree", 6.1e-3, lambda: None), times.seconds, times.references).row(1.0).endswith("met")


@pytest.mark.parametrize(
    ("references", "expected"),
    [((1.0, 1.24, 1.05, 1.3, 2.0), 2.0), ((1.0, 1.24, 1.3, 1.3, 2.0), 3.0), ((2.0, 2.0, 2.1, 2.0, 4.0), 3.0)],
)
def test_turns_in_which_the_core_ran_at_its_speed_decide(references: tuple[float, ...], expected: float) -> None:
    """Where there are three of them; else all turns do."""
    times = Times(Subject("a", 2.5, lambda: None), (1.0, 2.0, 3.0, 4.0, 5.0), references)
    assert times.deciding(1.0) == expected
    assert times.row(1.0).endswith("met" if expected == 2.0 else "above")


@pytest.mark.parametrize(("bar", "status"), [(1e9, 0), (-1.0, 1)])
def test_the_exit_status_says_whether_bars_are_met(
    bar: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trees, "subjects", lambda: [Subject("a", 1e9, lambda: None)])
    monkeypatch.setattr(trees, "search", lambda: Subject("whole search", bar, lambda: None))
    assert trees.main(["--turns", "2", "--search"]) == status
    assert trees.main(["--turns", "2"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    columns = "one of bar, ms least 10 % median 90 % turns at speed median"
    assert head.split() == columns.split()
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
