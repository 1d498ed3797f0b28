"""Running a search: budgets, workers, interruption, continuation, replay, and what is remembered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.search.cost import Budget, Evaluation
from tilewright.search.exhaustive import Exhaustive
from tilewright.search.factor_space import FactorSpace, Row, Table
from tilewright.search.genetic import Genetic
from tilewright.search.method import Method
from tilewright.search.minimise import Outcome, minimise, replay
from tilewright.search.random import Random
from tilewright.search.rounds import Arm, Rounds
from tilewright.search.tests.tiles import PRODUCTS
from tilewright.search.trace import Step, Trace
from tilewright.search.tree_search import TreeSearch

COST = PRODUCTS[0]
SPACE = COST.space()


def predicted(point: Table) -> float:
    return COST(point).value


def rounds(trials: int = 60) -> Rounds[Table]:
    return Rounds([Arm("a", SPACE, predicted), Arm("b", PRODUCTS[1].space(), lambda _: 1e-5)], trials)


def measured(place: tuple[int, Table]) -> Evaluation:
    return PRODUCTS[place[0]](place[1])


METHODS: dict[str, Callable[[], tuple[Any, Method[Any]]]] = {
    "random": lambda: (COST, Random(SPACE)),
    "exhaustive": lambda: (COST, Exhaustive(SPACE, batch=7)),
    "genetic": lambda: (COST, Genetic(SPACE, population=8, keep=3)),
    "tree_search": lambda: (COST, TreeSearch(SPACE, rollouts=4)),
    "rounds": lambda: (measured, rounds()),
}
BUDGET = Budget(60)


def still() -> float:
    return 0.0


def run(name: str, **options: Any) -> Outcome[Any]:
    cost, method = METHODS[name]()
    return minimise(options.pop("cost", cost), method, options.pop("budget", BUDGET), clock=still, **options)


@pytest.mark.parametrize("name", METHODS)
def test_the_outcome_is_the_best_of_the_trace(name: str) -> None:
    outcome = run(name, budget=Budget(2000))
    valid = [step.evaluation.value for step in outcome.trace.steps if step.evaluation.valid]
    assert outcome.evaluation is not None
    assert outcome.trace.best is not None
    assert outcome.evaluation.value == min(valid) == outcome.trace.best.evaluation.value
    assert METHODS[name]()[1].space.to_json(outcome.best) == outcome.trace.best.point
    assert len(outcome.trace.steps) == 2000 or outcome.stopped == "finished"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_finds_the_same(name: str, workers: int) -> None:
    with ThreadPoolExecutor(workers) as executor:
        assert run(name, executor=executor) == run(name)


def late_first(point: Table) -> Evaluation:
    """Earlier points of a batch take longer than later ones."""
    time.sleep(0.002 * (sum(map(sum, point)) % 5))
    return COST(point)


def slowly(point: Table) -> Evaluation:
    """A point takes long enough for somebody to press a key meanwhile."""
    time.sleep(0.05)
    return COST(point)


def test_processes_that_finish_in_another_order_change_nothing() -> None:
    with ProcessPoolExecutor(3) as executor:
        assert run("tree_search", cost=late_first, executor=executor) == run("tree_search")


@pytest.mark.parametrize("name", METHODS)
def test_a_search_continued_anywhere_ends_as_one_without_interruption(name: str, tmp_path: Path) -> None:
    whole = run(name, trace=tmp_path / "whole")
    for cut in (0, 1, 17, 18, 59, 60):
        path = tmp_path / f"cut{cut}"
        first = run(name, budget=Budget(cut), trace=path)
        assert len(first.trace.steps) == min(cut, len(whole.trace.steps))
        asked: list[Any] = []
        cost = METHODS[name]()[0]
        again = run(name, trace=path, cost=lambda point: asked.append(point) or cost(point))  # noqa: B023
        assert again == whole
        assert len(asked) == len(whole.trace.steps) - len(first.trace.steps)
        assert path.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("name", METHODS)
def test_a_trace_replays_to_the_same_outcome(name: str, tmp_path: Path) -> None:
    outcome = run(name, trace=tmp_path / "trace")
    trace = Trace.read(tmp_path / "trace")
    assert trace == outcome.trace
    again = replay(trace, METHODS[name]()[1])
    assert replace(again, stopped=outcome.stopped) == outcome


def test_equal_searches_write_equal_files(tmp_path: Path) -> None:
    """With a clock that stands still: times differ otherwise."""
    for name in METHODS:
        run(name, trace=tmp_path / "a", seed=3)
        run(name, trace=tmp_path / "b", seed=3)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        (tmp_path / "a").unlink()
        (tmp_path / "b").unlink()


@dataclass
class Interrupting:
    """A cost during whose nth call somebody presses Ctrl-C."""

    number: int
    calls: int = 0

    def __call__(self, point: Any) -> Evaluation:
        self.calls += 1
        if self.calls == self.number:
            raise KeyboardInterrupt
        return COST(point)


@pytest.mark.parametrize("number", [1, 8, 23])
@pytest.mark.parametrize("parallel", [False, True])
def test_ctrl_c_keeps_the_best_so_far_and_what_is_stored(number: int, parallel: bool, tmp_path: Path) -> None:
    pool: Executor | None = ThreadPoolExecutor(1) if parallel else None
    stopped = run("random", cost=Interrupting(number), trace=tmp_path / "trace", executor=pool)
    if pool is not None:
        pool.shutdown()
    assert stopped.stopped == "interrupted"
    assert len(stopped.trace.steps) == number - 1
    assert stopped.trace == Trace.read(tmp_path / "trace")
    assert (stopped.best is None) == (number == 1)
    assert run("random", trace=tmp_path / "trace") == run("random")


def test_ctrl_c_in_the_progress_callback_keeps_that_evaluation(tmp_path: Path) -> None:
    def progress(step: Step) -> None:
        if step.iteration == 1:
            raise KeyboardInterrupt

    stopped = run("random", progress=progress, trace=tmp_path / "trace")
    assert stopped.stopped == "interrupted"
    assert len(Trace.read(tmp_path / "trace").steps) == 17


KILLED = """
import sys, time
from tilewright.search.tests.test_minimise import COST, METHODS, minimise
def slow(point):
    time.sleep(0.01)
    return COST(point)
minimise(slow, METHODS["tree_search"]()[1], trace=sys.argv[1])
"""


def test_a_killed_search_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    try:
        began = time.monotonic()
        while (not path.exists() or path.read_bytes().count(b"\n") < 12) and time.monotonic() < began + 60:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    stored = Trace.read(path).steps
    assert len(stored) >= 10
    continued = minimise(COST, METHODS["tree_search"]()[1], BUDGET, trace=path)
    assert [step.point for step in continued.trace.steps] == [step.point for step in run("tree_search").trace.steps]
    assert continued.trace.steps[: len(stored)] == stored[:60]


PRESSED = """
import signal, sys
from tilewright.search.minimise import minimise
from tilewright.search.tests.test_minimise import METHODS, slowly
from tilewright.search.workers import processes
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell in the background would ignore
    with processes(2) as executor:
        found = minimise(slowly, METHODS["tree_search"]()[1], executor=executor, trace=sys.argv[1])
    print(found.stopped, len(found.trace.steps), found.best is not None)
"""


def test_ctrl_c_at_a_terminal_reaches_the_workers_too_and_keeps_what_is_stored(tmp_path: Path) -> None:
    path, program = tmp_path / "trace", tmp_path / "program.py"
    program.write_text(PRESSED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, str(program), str(path)], start_new_session=True, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)  # fmt: skip
    began = time.monotonic()
    while (not path.exists() or path.read_bytes().count(b"\n") < 12) and time.monotonic() < began + 60:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    stopped, count, found = output.split()
    assert (stopped, found) == ("interrupted", "True")
    assert len(Trace.read(path).steps) == int(count) >= 10


def test_progress_is_told_every_new_evaluation(tmp_path: Path) -> None:
    told: list[Step] = []
    run("genetic", budget=Budget(10), trace=tmp_path / "trace")
    outcome = run("genetic", progress=told.append, trace=tmp_path / "trace")
    assert tuple(told) == outcome.trace.steps[10:]


def test_seconds_end_a_search_and_go_on_in_its_continuation(tmp_path: Path) -> None:
    def ticking() -> Iterator[float]:
        now = 100.0
        while True:
            yield now
            now += 1.0

    first = minimise(COST, Random(SPACE), Budget(seconds=10), trace=tmp_path / "trace", clock=ticking().__next__)
    assert first.stopped == "seconds"
    assert first.trace.steps[-1].time == 10.0
    done = len(first.trace.steps)
    second = minimise(COST, Random(SPACE), Budget(seconds=15), trace=tmp_path / "trace", clock=ticking().__next__)
    assert second.trace.steps[:done] == first.trace.steps
    assert second.trace.steps[done].time > 10.0
    assert second.trace.steps[-1].time == 15.0
    third = minimise(_unasked, Random(SPACE), Budget(seconds=12), trace=tmp_path / "trace", clock=still)
    assert third.trace.steps[-1].time == 12.0, "a smaller budget is answered from the file"


def _unasked(point: Any) -> Evaluation:
    raise AssertionError(f"{point} was asked for")


def test_budgets_of_nothing_ask_for_nothing() -> None:
    assert minimise(_unasked, Random(SPACE), Budget(0)).stopped == "evaluations"
    assert minimise(_unasked, Random(SPACE), Budget(seconds=0)).stopped == "seconds"


@pytest.mark.parametrize("name", ["evaluations", "seconds"])
def test_a_negative_budget_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"a budget of -1 {name}"):
        Budget(**{name: -1})


def test_points_are_evaluated_once_unless_asked_for_again() -> None:
    asked: Counter[str] = Counter()

    def cost(point: Table) -> Evaluation:
        asked[str(point)] += 1
        return COST(point)

    minimise(cost, Genetic(SPACE, population=10, rounds=50))
    assert set(asked.values()) == {1}


@pytest.mark.parametrize("value", [inf, nan, -inf])
def test_a_valid_answer_without_a_finite_number_is_refused(value: float) -> None:
    outcome = minimise(lambda _: Evaluation(value), Random(SPACE), Budget(3))
    assert outcome.best is None
    assert [step.evaluation.reason for step in outcome.trace.steps] == [f"its value is {value}"] * 3


OTHERS: dict[str, tuple[Callable[[], Method[Any]], dict[str, Any], str]] = {
    "seed": (lambda: Random(SPACE), {"seed": 1}, "seed is 0 in the file, 1 here"),
    "method": (lambda: Exhaustive(SPACE), {}, 'method is "random" in the file, "exhaustive" here'),
    "parameter": (lambda: Random(SPACE, batch=3), {}, "parameters.batch is 16 in the file, 3 here"),
    "constraint": (lambda: Random(PRODUCTS[1].space()), {}, r"space.rows.0.1 is 16 in the file, 32 here"),
    "rows": (
        lambda: Random(FactorSpace((Row("m", 4, (None, None)),))),
        {},
        r"space.rows is \[.*\.\.\. in the file, \[\[\"m\", 4, \[null, null\]\]\] here",
    ),
    "notes": (lambda: Random(SPACE), {"notes": {"machine": "b"}}, 'notes.machine is "a" in the file, "b" here'),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_trace_of_another_search_is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    run("random", trace=tmp_path / "trace", notes={"machine": "a"})
    before = (tmp_path / "trace").read_bytes()
    method, options, message = OTHERS[name]
    with pytest.raises(InvalidFile, match=f"another search: {message}"):
        minimise(_unasked, method(), trace=tmp_path / "trace", **{"notes": {"machine": "a"}, **options})
    assert (tmp_path / "trace").read_bytes() == before
    with pytest.raises(InvalidFile, match="another search"):
        replay(replace(Trace.read(tmp_path / "trace"), header=replace(Trace.read(tmp_path / "trace").header, seed=0,
               method="genetic")), Random(SPACE))  # fmt: skip


def test_a_method_that_asks_for_other_points_than_the_trace_has_is_refused(tmp_path: Path) -> None:
    outcome = run("random", trace=tmp_path / "trace")
    steps = list(outcome.trace.steps)
    steps[4] = replace(steps[4], point=steps[9].point)
    (tmp_path / "trace").write_text("".join(replace(outcome.trace, steps=tuple(steps)).lines()))
    with pytest.raises(InvalidFile, match=r"evaluation 5 of the trace is of .* but the method asks for"):
        run("random", trace=tmp_path / "trace")
    longer = replace(outcome.trace, steps=(*outcome.trace.steps, outcome.trace.steps[-1]))
    with pytest.raises(InvalidFile, match="evaluation 61"):
        replay(longer, Random(SPACE))


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    run("random", budget=Budget(5), trace=tmp_path / "trace")
    program = f"""
import fcntl, os, sys
descriptor = os.open({str(tmp_path / "trace")!r}, os.O_RDWR)
fcntl.lockf(descriptor, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(InvalidArgument, match="another process writes it"):
            run("random", trace=tmp_path / "trace")
        other.stdin.close()
    assert len(run("random", trace=tmp_path / "trace").trace.steps) == 60


@pytest.mark.parametrize("kind", ["folder", "no folder", "FIFO", "protected"])
def test_a_trace_that_cannot_be_written_is_refused_before_the_search(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    if kind == "folder":
        path.mkdir()
    elif kind == "no folder":
        path = path / "below"
    elif kind == "FIFO":
        os.mkfifo(path)
    else:
        path.touch(0o400)
        if os.access(path, os.W_OK):
            pytest.skip("this user may write everywhere")
    with pytest.raises(InvalidArgument, match="cannot write"):
        minimise(_unasked, Random(SPACE), trace=path)


def test_what_a_batch_answers_at_once_is_kept_although_the_time_is_over() -> None:
    times = iter([0.0, 0.0, *([9.0] * 1000)])

    class Batched:
        def __call__(self, point: Table) -> Evaluation:
            return COST(point)

        def batch(self, points: Sequence[Table]) -> list[Evaluation]:
            return [COST(point) for point in points]

    method = Genetic(SPACE, population=12, rounds=3)
    found = minimise(Batched(), method, Budget(seconds=1), clock=lambda: next(times))
    assert (found.stopped, len(found.trace.steps)) == ("seconds", 12)
    again = iter([0.0, 0.0, *([9.0] * 1000)])
    one = minimise(COST, method, Budget(seconds=1), clock=lambda: next(again))
    assert (one.stopped, len(one.trace.steps)) == ("seconds", 1)


class Remembered:
    """Evaluations in memory."""

    path = "memory"

    def __init__(self) -> None:
        self.stored: list[Step] = []
        self.added: list[Step] = []

    def append(self, step: Step) -> None:
        self.added.append(step)


@pytest.mark.parametrize("name", METHODS)
def test_evaluations_may_be_kept_elsewhere_than_in_a_file(name: str) -> None:
    whole = run(name)
    records = Remembered()
    run(name, budget=Budget(23), trace=records)
    assert tuple(records.added) == whole.trace.steps[:23]
    records.stored, records.added = records.added, []
    assert run(name, trace=records) == whole
    assert (*records.stored, *records.added) == whole.trace.steps
    records.stored = records.stored[:4] + records.stored[5:6]
    with pytest.raises(InvalidFile, match="evaluation 5") as raised:
        run(name, trace=records)
    assert raised.value.where == "memory"
