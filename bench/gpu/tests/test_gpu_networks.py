"""The benchmark of whole networks, with processes and clocks that are made up; tiny networks in the emulator."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.clock import WallClock
from bench.gpu.networks import runner
from bench.gpu.networks.__main__ import main
from bench.gpu.networks.cases import NETWORKS, TINY
from bench.gpu.networks.results import COMPILED, EAGER, EAGER_GRAPH, OURS, OURS_GRAPH, Row, tables
from bench.gpu.networks.runner import PREPARATION, ProcessChild, Task, run
from bench.gpu.process import Lost
from bench.gpu.runs import Run
from tests.covering import FULL

ROOT = Path(__file__).parents[3]
TASKS = tuple(Task(name, 1, contender) for name in ("a", "b") for contender in (EAGER, OURS))


class FakeTime:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class FakeChild:
    """Prepares in no time and measures for `takes` seconds; dies where it is told to."""

    def __init__(self, task: Task, clock: FakeTime, dies: str = "", takes: float = 1.0) -> None:
        self.task, self.clock, self.dies, self.takes = task, clock, dies, takes
        self.rows: list[Row] = []
        self.stage, self.machine, self.turns, self.ended = "its start", {"device": "made up"}, 0, False

    def until_turn(self, limit: float) -> None:
        self.stage = "compile" if self.turns == 0 else "profile"
        self.rows = [Row(self.task.network, self.task.batch, self.task.contender, "ok", 0.0)]
        if self.turns:
            self.rows[0].seconds = 1.0
            self.clock.time += min(self.takes, limit)
        if self.dies == self.stage:
            raise Lost("the process ended with status -11")
        if self.turns and self.takes > limit:
            raise Lost(f"took longer than {limit:.0f} s")

    def measure(self, seconds: float) -> None:
        assert not self.ended
        self.turns += 1

    def end(self) -> None:
        self.ended = True


def ran(together: int, seconds: float = 100, **given: Any) -> tuple[Run[Row], list[FakeChild], list[tuple[int, str]]]:
    """A run whose child for `Task("a", 1, OURS)` is made like this; what was kept on the way, as rows and messages."""
    clock, children, kept = FakeTime(), list[FakeChild](), list[tuple[int, str]]()

    def start(task: Task) -> FakeChild:
        children.append(FakeChild(task, clock, **(given if task == TASKS[1] else {})))
        return children[-1]

    done = run(TASKS, seconds, together, start, clock.now, lambda so_far, line: kept.append((len(so_far.rows), line)))
    assert clock.time <= seconds * 1.1
    return done, children, kept


@pytest.mark.parametrize("together", [1, 3, 4])
def test_every_task_has_its_rows_in_order(together: int) -> None:
    done, children, kept = ran(together)
    assert [(row.network, row.contender, row.status) for row in done.rows] == [
        (task.network, task.contender, "ok") for task in TASKS
    ]
    assert all(child.ended for child in children)
    assert done.machine == {"device": "made up"}
    assert len(kept) == 2 * len(TASKS)
    assert kept[-1] == (4, "   4 s: done with tilewright: b, batch 1")


def test_a_death_costs_one_process_and_says_where() -> None:
    done, children, _ = ran(4, dies="compile")
    assert [row.status for row in done.rows] == ["ok", "failed", "ok", "ok"]
    assert done.rows[1].note == "the process ended with status -11 at compile"
    assert {child.task: child.turns for child in children} == {task: int(task != TASKS[1]) for task in TASKS}


def test_times_outlive_a_death_in_the_profile() -> None:
    done, _, _ = ran(4, dies="profile")
    assert (done.rows[1].status, done.rows[1].seconds) == ("ok", 1.0)
    assert "at profile" in done.rows[1].note


@pytest.mark.parametrize("together", [1, 4])
def test_what_hangs_costs_its_share(together: int) -> None:
    done, _, _ = ran(together, takes=1e9)
    assert [row.status for row in done.rows if row.contender == EAGER] == ["ok", "ok"]
    assert "took longer than" in done.rows[1].note
    assert done.rows[3].status == "ok"


def test_what_is_not_prepared_in_time_is_dropped() -> None:
    limits, lock = [], threading.Lock()

    class Slow(FakeChild):
        def until_turn(self, limit: float) -> None:
            with lock:
                limits.append(limit)
            if self.task == TASKS[0]:
                raise Lost(f"took longer than {limit:.0f} s")

    clock = FakeTime()
    done = run(TASKS[:1], 100, 1, lambda task: Slow(task, clock), clock.now)
    assert limits == [100 * PREPARATION]
    assert done.rows[0].note == "took longer than 60 s at its start"


def row(contender: str, microseconds: float | None = None, **given: Any) -> Row:
    timed = {} if microseconds is None else dict.fromkeys(("seconds", "low", "high"), microseconds * 1e-6)
    made = Row("net", 16, contender, **{"status": "ok", "flops": 2 * 10**9, "error": 1e-3, **timed, **given})
    assert not made.steps or made.launches
    return made


def test_the_tables_say_everything() -> None:
    kernel = {"name": "conv", "count": 3, "seconds": 3e-5, "share": 0.75, "gflops_per_second": 12.0,
              "gbytes_per_second": 0.0, "what": "grid 4x1x1"}  # fmt: skip
    rows = [
        row(OURS, 40.0, host_seconds=2e-5, steps={"export": 2.0, "compile": 3.25}, launches=7, kernels=5,
            profile=[kernel, {**kernel, "name": "other", "seconds": 1e-5, "share": 0.25}]),
        row(OURS_GRAPH, 20.0), row(EAGER, 100.0), row(EAGER_GRAPH, 50.0),
        row(COMPILED, status="failed", note="took longer\nthan 9 s at first call"),
    ]  # fmt: skip
    text = tables(Run({"device": "a GPU"}, rows, 12.0))
    assert "f16, forward; device a GPU; 12 s" in text
    head = "| net | 16 | 40.0 (40.0 to 40.0) | 20.0 (20.0 to 20.0) | 100.0 (100.0 to 100.0) |"
    assert f"{head} 50.0 (50.0 to 50.0) | failed | 2.50 | 100.0 | 1.0e-03 | 1.0e-03 |" in text
    assert "| net | 16 | 20.0 |  |  |  |  |" in text
    assert "| net | 16 | tilewright | export 2.0, compile 3.2; 5 kernels, 7 launches |" in text
    assert "## Kernels of net, batch 16, tilewright: 40 µs one by one" in text
    assert "| conv | 3 | 30.0 | 75.0 % | 12 |  | grid 4x1x1 |" in text
    assert "- failed: torch.compile, net, batch 16: took longer than 9 s at first call" in text
    stored = json.loads(Run({}, rows).to_json())
    assert stored["rows"][0] == json.loads(json.dumps(asdict(rows[0])))


@pytest.mark.parametrize(("status", "wanted"), [("ok", 0), ("wrong", 1), ("failed", 1)])
def test_the_exit_status_tells_of_ours_alone(status: str, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(EAGER, status="failed"), row(OURS, status=status)]
    monkeypatch.setattr(runner, "run", lambda *_: Run({}, rows))
    assert main(["--device", "cpu"]) == wanted


def test_an_unknown_network_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--device", "cpu", "--networks", "tiny-bert,alexnet"])
    assert "there is no 'alexnet'; there are tiny-resnet" in capsys.readouterr().err


@pytest.mark.parametrize("network", TINY if FULL else (TINY[0], TINY[2]), ids=lambda network: network.name)
def test_tiny_networks_are_right_timed_and_profiled(network: Any) -> None:
    torch = pytest.importorskip("torch")
    from bench.gpu.networks.contenders import Ours

    stages: list[str] = []
    found = Ours(network, 1, "cpu", torch, WallClock(), stages.append)
    with torch.random.fork_rng(devices=[]):
        found.prepare()
    found.measure(0.1)
    (made,) = found.rows
    assert (made.status, made.note) == ("ok", "")
    assert made.seconds is not None
    assert made.host_seconds is not None
    assert list(made.steps) == ["weights", "export", "compile", "load", "first call"]
    assert stages[-1] == "profile"
    assert sum(kernel["count"] for kernel in made.profile) == made.launches
    assert any("mma_m16n8k16_f16_f32" in kernel["what"] for kernel in made.profile)
    attention = [kernel["what"] for kernel in made.profile if "attention" in kernel["name"]]
    assert [what.count("stages") for what in attention] == ([] if network.channels_last else [2])  # of both products


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_a_wrong_result_has_no_time(factor: float) -> None:
    torch = pytest.importorskip("torch")
    from bench.gpu.networks.contenders import Eager

    class Wrong(Eager):
        def _check(self, row: Row, module: Any, found: Any) -> bool:
            return super()._check(row, module, found * factor)

    found = Wrong(TINY[2], 1, "cpu", torch, WallClock(), lambda stage: None)
    with torch.random.fork_rng(devices=[]):
        found.prepare()
    found.measure(0.1)
    (made,) = found.rows
    assert (made.status, made.seconds) == ("wrong", None)
    json.dumps(asdict(made), allow_nan=False)


def test_a_process_prepares_waits_and_is_timed() -> None:
    pytest.importorskip("torch")
    child = ProcessChild(Task("tiny-llama", 1, EAGER), "cpu", "default")
    child.until_turn(120)
    assert child.rows[0].seconds is None
    child.measure(0.1)
    child.until_turn(120)
    assert (child.rows[0].status, child.stage) == ("ok", "nothing")
    assert child.rows[0].seconds is not None
    child.end()


def test_a_failure_is_reported_by_its_process() -> None:
    pytest.importorskip("torch")
    code = """
from bench.gpu.networks import contenders, worker
def broken(*given):
    print("a library says something")
    raise MemoryError("no room")
contenders.Eager._input = broken
worker.main("tiny-llama", 1, "torch eager", "cpu", "default")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input='{"seconds": 0.1}\n', capture_output=True, text=True, timeout=120
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["turn"] for each in said][-2:] == [True, True]
    (made,) = said[-1]["rows"]
    assert (made["status"], made["note"]) == ("failed", "MemoryError at its turn: no room")


def test_weights_and_inputs_are_the_same_everywhere() -> None:
    torch = pytest.importorskip("torch")
    network = replace(TINY[1])
    with torch.random.fork_rng(devices=[]):
        first, second = (network.module().state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(network.input(2), network.input(2))
    assert {each.name for each in NETWORKS}.isdisjoint(each.name for each in TINY)
