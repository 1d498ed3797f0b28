"""The convergence of searches as a picture: what is in it, and what cannot be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import InvalidArgument
from tilewright.report.convergence import convergence
from tilewright.report.plot import draw
from tilewright.search.cost import Budget, Evaluation
from tilewright.search.factor_space import FactorSpace, Row, Table
from tilewright.search.minimise import minimise
from tilewright.search.random import Random
from tilewright.search.trace import Trace

SPACE = FactorSpace((Row("m", 64, (None, None, None)),))


def trace(seed: int, seconds: float = 1e-3) -> Trace:
    def cost(point: Table) -> Evaluation:
        return Evaluation(seconds * point[0][0])

    times = iter(range(100))
    return minimise(cost, Random(SPACE), Budget(12), seed=seed, clock=lambda: float(next(times))).trace


def test_lines_have_the_best_so_far_at_each_evaluation() -> None:
    found = trace(0)
    picture = convergence({"seed 0": found, "seed 1": trace(1)})
    assert list(picture.lines) == ["seed 0", "seed 1"]
    assert picture.lines["seed 0"] == tuple((float(n), step.best) for n, step in enumerate(found.steps, 1))
    values = [best for _, best in picture.lines["seed 0"]]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


def test_lines_over_time_have_the_times_of_the_trace() -> None:
    found = trace(0)
    picture = convergence({"seed 0": found}, seconds=True)
    assert [time for time, _ in picture.lines["seed 0"]] == [step.time for step in found.steps]
    assert "seconds" in picture.x


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw([convergence({"seed 0": trace(0), "seed 1": trace(1)})], tmp_path / "curve.svg")
    text = (tmp_path / "curve.svg").read_text()
    assert all(each in text for each in ("seed 0", "seed 1", "best so far, in seconds"))


@pytest.mark.parametrize(("made", "message"), [(Trace(trace(0).header, ()), "no valid"), (trace(0, 0.0), "of value 0")])
def test_traces_that_cannot_be_drawn_are_refused(made: Trace, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        convergence({"x": made})
