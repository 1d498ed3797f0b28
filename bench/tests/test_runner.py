"""A whole run with one small case and PyTorch, and what happens to peers that fail."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench import __main__ as program
from bench import peers, runner
from bench.cases import CASES
from bench.ceilings import Ceilings
from bench.prepare import prepare
from bench.problem import SkippedError, Task
from bench.processes import busy_threads, own_cores, process_seconds
from bench.results import Run, share
from bench.runner import Effort, run
from bench.workers import ROOT, WorkerError, Workers

QUICK = ["--turns", "2", "--turn-seconds", "0.01", "--threads", "1", "--no-ceilings"]


def test_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    out, page = tmp_path / "results.json", tmp_path / "results.md"
    arguments = ["--cases", "call-overhead", "--peers", "torch", *QUICK, "--out", str(out), "--markdown", str(page)]
    assert program.main(arguments) == 0
    (result,) = Run.load(out).results
    assert (result.peer, result.status, result.threads) == ("torch", "ok", 1)
    assert result.times is not None
    assert 1e-7 < result.times.fastest <= result.times.median < 1e-2
    assert result.times.samples >= 4
    assert result.error is not None
    assert result.error < 1e-6
    assert set(result.busy_threads) <= {str(own_cores()[0])}  # pinned to one core
    assert "| call-overhead | 1 |" in page.read_text()
    assert program.main(["--report", str(out), "--markdown", str(page)]) == 0


@pytest.mark.parametrize("arguments", [["--cases", "nothing"], ["--peers", "nobody"], ["--threads", "9999"]])
def test_bad_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--cases", "call-overhead", "--no-ceilings", *arguments]) == 2
    assert "error: " in capsys.readouterr().err


# Of a machine faster than any.
CEILINGS = Ceilings(1, 1e15, 1e15, 1e15, 1e15, 1e13, 1e13, 1e13, 1e13, 1e13, l2_bytes=1 << 20, l3_bytes=32 << 20)


def test_ceiling_is_measured_in_the_turns_of_the_peers() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_measure_ceilings", lambda cores: CEILINGS)
        done = run([CASES["gemm-f32-skinny-m1-1024"]], [peers.PEERS["torch"]], [1], Effort(turns=3, turn_seconds=0.01))
    (conditions,), (result,) = done.conditions, done.results
    assert conditions.ceiling == "l3_read"  # by these ceilings
    assert len(conditions.turn_bounds) == len(result.turn_seconds) == 3
    assert conditions.bound_seconds is not None
    assert min(conditions.turn_bounds) > 2 * conditions.bound_seconds  # no machine reads as fast as these
    reached = share(result, conditions)
    assert reached is not None
    assert 0.001 < reached < 10


@dataclass(frozen=True)
class Absent(peers.torch.Torch):
    def missing(self) -> str:
        return "not for this machine"


def test_missing_peer_is_skipped_with_its_reason() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    done = run([CASES["call-overhead"]], [Absent()], [1], Effort(turns=1), with_ceilings=False)
    assert [(result.status, result.reason) for result in done.results] == [("skipped", "not for this machine")]
    assert done.conditions[0].bound_seconds is None


@dataclass(frozen=True)
class Stranger(peers.torch.Torch):
    """A peer whose worker can't even start: no such peer is registered."""

    name: str = "stranger"

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        return {"PYTHONHOME": "/nonexistent"}


def test_worker_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Workers(tmp_path) as workers, pytest.raises(WorkerError, match="its process ended with status 1: "):
        workers.ask(Stranger(), own_cores()[:1], "unload")


def test_worker_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    peer = peers.PEERS["torch"]
    with Workers(tmp_path, patience_seconds=0.01) as workers, pytest.raises(WorkerError, match="status -9"):
        workers.ask(peer, own_cores()[:1], "unload")


def test_another_tree_of_the_project_is_a_peer(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for part in ("bench", "tilewright"):
        (tree / part).symlink_to(ROOT / part)
    case = CASES["gemm-f32-skinny-m1-1024"]
    effort = Effort(turns=2, turn_seconds=0.01)
    done = run([case], [peers.PEERS["tilewright"]], [1], effort, with_ceilings=False, earlier=tree)
    assert [(result.peer, result.status) for result in done.results] == [("tilewright", "ok"), ("earlier", "ok")]
    (tree / "tilewright").unlink()
    (tree / "tilewright").mkdir()
    (tree / "tilewright" / "__init__.py").write_text("raise ImportError('the package of this tree')")
    done = run([case], [], [1], Effort(turns=0), with_ceilings=False, earlier=tree)
    assert [(result.peer, result.status) for result in done.results] == [("earlier", "failed")]


def test_answers_tell_errors_from_refusals(tmp_path: Path) -> None:
    peer = peers.PEERS["tilewright"]
    with Workers(tmp_path) as workers:
        with pytest.raises((WorkerError, SkippedError)):
            workers.ask(peer, own_cores()[:1], "load", case="no-such-case", directory=str(tmp_path))
        assert workers.ask(peer, own_cores()[:1], "unload") == {}  # it lives on


def test_idle_worker_takes_no_processor_time(tmp_path: Path) -> None:
    import time

    peer = peers.PEERS["torch"]
    with Workers(tmp_path) as workers:
        workers.ask(peer, own_cores()[:1], "unload")
        before = process_seconds(workers.pid(peer, 1))
        time.sleep(0.2)
        assert process_seconds(workers.pid(peer, 1)) - before < 0.01


def test_busy_threads_see_who_works_and_where() -> None:
    def spin() -> None:
        end = os.times().elapsed + 0.2
        while os.times().elapsed < end:
            pass

    mask = os.sched_getaffinity(0)
    core = min(mask)
    os.sched_setaffinity(0, {core})
    try:
        assert busy_threads(os.getpid(), spin)[os.getpid()] == str(core)
    finally:
        os.sched_setaffinity(0, mask)


def test_earlier_versions_read_the_facts_of_a_case(tmp_path: Path) -> None:
    """They refuse fields that they do not know: `--earlier` failed for all cases when there was a new one."""
    pytest.importorskip("onnx")
    pytest.importorskip("torch")
    made = prepare(CASES["gemm-chain-G10-softmax"], tmp_path)
    assert set(json.loads((tmp_path / "facts.json").read_text())) == {"flops", "bytes", "tolerance", "output_names"}
    assert Task("gemm-chain-G10-softmax", tmp_path, (0,)).facts() == made
    assert made.exponentials == 512 * 256
