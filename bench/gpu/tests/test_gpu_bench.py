"""The logic of the GPU benchmarks, with devices, clocks and workers that are made up; tiny cases in the emulator."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu import runner
from bench.gpu.budget import Budget
from bench.gpu.cases import BOUNDS, CASES, CHECKS, WEIGHTS, Case, gemm, sections, softmax, tiny
from bench.gpu.clock import Work
from bench.gpu.contenders import CLUSTERED, MINE, ONE_WARP, OURS, TUNED, Missing, Tile, Tuned, fastest, names, prepare
from bench.gpu.process import Lost
from bench.gpu.results import Row, table
from bench.gpu.runner import Item, Process
from bench.gpu.runs import Run
from bench.gpu.timing import FEWEST_SAMPLES, MOST_SAMPLES, MOST_SECONDS, Recorded, record, sample

ROOT = Path(__file__).parents[3]


class FakeTime:
    """A clock that work moves on."""

    cache_bytes, memory_bytes = 100, 1000

    def __init__(self) -> None:
        self.time = 0.0
        self.recordings = 0

    def now(self) -> float:
        return self.time

    def recorded(self, work: Work) -> Work:
        self.recordings += 1
        return work

    def seconds(self, work: Work) -> float:
        start = self.time
        work()
        return self.time - start


def test_shares_follow_weights_and_what_is_left_passes_on() -> None:
    clock = FakeTime()
    budget = Budget(100, {"a": 3, "b": 1}, ["a", "a", "b"], clock.now)
    assert budget.next_share() == pytest.approx(37.5)
    clock.time = 7.5  # 30 were left over
    assert budget.next_share() == pytest.approx(92.5 * 3 / 4)
    clock.time = 80
    assert budget.next_share() == pytest.approx(20)
    clock.time = 200
    assert budget.seconds_left == 0


def test_inputs_rotate_and_the_median_is_of_one_call() -> None:
    clock, calls = FakeTime(), []

    def call(number: int) -> None:
        calls.append(number)
        clock.time += 0.001 * (1 + number)

    (timing,) = sample(record(call, 3, clock), clock, 0.06)
    assert calls[:6] == [0, 1, 2, 0, 1, 2]
    assert len(calls) == 3 * (timing.samples + 2)
    assert (timing.seconds, timing.low, timing.high) == pytest.approx((0.002, 0.002, 0.002))
    assert clock.recordings == 1


@pytest.mark.parametrize(("each", "samples"), [(10.0, 1), (1e-6, MOST_SAMPLES), (0.5, FEWEST_SAMPLES)])
def test_sampling_ends(each: float, samples: int) -> None:
    clock = FakeTime()

    def call(number: int) -> None:
        clock.time += each / 2

    assert sample(record(call, 2, clock), clock, 1e9)[0].samples == samples
    assert clock.time <= max(6 * each, 4 * MOST_SECONDS + 3 * each)


def test_contenders_take_turns() -> None:
    clock, calls = FakeTime(), []

    def timed(name: str, each: float) -> Recorded:
        def call(number: int) -> None:
            calls.append(name)
            clock.time += each

        return record(call, 1, clock)

    ours, others = sample(timed("ours", 1e-3), clock, 0.02, timed("torch", 3e-3))
    assert (ours.seconds, others.seconds) == pytest.approx((1e-3, 3e-3))
    assert calls[2:6] == ["ours", "torch", "ours", "torch"]
    assert ours.samples == others.samples == FEWEST_SAMPLES


class FakeWorker:
    machine: dict[str, Any] = {"device": "made up"}  # noqa: RUF012

    def __init__(
        self, clock: FakeTime, cases: tuple[Case, ...], dies_at: set[str], each: float, faults_at: frozenset[str]
    ) -> None:
        self.clock, self.cases, self.dies_at, self.each, self.ended = clock, cases, dies_at, each, False
        self.faults_at, self.alive = faults_at, True

    def ask(self, item: Item, seconds: float, limit: float) -> Row:
        assert not self.ended
        assert self.alive, "nothing runs after a fault"
        self.clock.time += min(self.each, limit)
        if item[1] in self.dies_at:
            raise Lost("the process ended with status -11")
        self.alive = item[1] not in self.faults_at
        case = self.cases[item[0]]
        return Row(case.family, case.name, case.dtype, item[1], "ok", 1e-3, flops=case.flops, bytes=case.bytes)

    def end(self) -> None:
        self.ended = True


def run(
    dies_at: set[str], each: float, seconds: float = 480, faults_at: frozenset[str] = frozenset()
) -> tuple[Run[Row], FakeTime, list[FakeWorker]]:
    clock, workers = FakeTime(), []
    cases = (softmax(4, 4, "f32"), gemm(8, 8, 8, "bf16"), gemm(8, 8, 8, "f32"))

    def start(limit: float) -> FakeWorker:
        workers.append(FakeWorker(clock, cases, dies_at, each, faults_at))
        return workers[-1]

    return runner.run(cases, seconds, WEIGHTS, start, clock.now), clock, workers


def test_families_and_contenders_are_selected() -> None:
    cases = (softmax(4, 4, "f32"), gemm(8, 8, 8, "bf16"), gemm(8, 8, 8, "f32"))
    chosen = runner.Selection(("gemm",), (), ("torch.compile", "triton", TUNED)).items(cases)
    assert chosen == [(1, "torch"), (1, OURS), (1, CLUSTERED), (1, ONE_WARP), (2, "torch"), (2, OURS)]
    assert {number for number, _ in runner.Selection(texts=("4x4 f32", "bf16")).items(cases)} == {0, 1}
    assert runner.Selection().items(cases[:1]) == [(0, name) for name in names(cases[0])]


def test_every_item_has_a_row_and_a_death_costs_one_item() -> None:
    done, _, workers = run({OURS}, 1.0)
    wanted = [("rows", name) for name in ("torch", "torch.compile", "triton", OURS)]
    wanted += [("gemm", name) for name in ("torch", "triton", OURS, TUNED, CLUSTERED, ONE_WARP, "torch", OURS, TUNED)]
    assert [(row.family, row.contender) for row in done.rows] == wanted
    assert [row.contender for row in done.rows if row.status != "ok"] == [OURS] * 3
    assert {row.note for row in done.rows if row.status == "failed"} == {"the process ended with status -11"}
    assert len(workers) == 4
    assert all(worker.ended for worker in workers)


def test_after_a_fault_the_next_item_has_a_new_process() -> None:
    done, _, workers = run(set(), 1.0, faults_at=frozenset({"torch"}))
    assert {row.status for row in done.rows} == {"ok"}
    assert len(workers) == 4
    assert all(worker.ended for worker in workers)


def test_what_is_done_is_kept_after_every_item() -> None:
    kept: list[tuple[int, str]] = []
    clock, cases = FakeTime(), (softmax(4, 4, "f32"),)

    def start(limit: float) -> FakeWorker:
        return FakeWorker(clock, cases, set(), 1.0, frozenset())

    runner.run(cases, 480, WEIGHTS, start, clock.now, lambda done, message: kept.append((len(done.rows), message)))
    assert [number for number, _ in kept] == [1, 2, 3, 4]
    assert kept[-1][1] == " 476 s left: ok tilewright: rows softmax 4x4 f32"


def test_a_fault_ends_what_the_process_has_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from bench.gpu.worker import Worker

    worker = Worker("cpu")
    assert worker.alive()

    def now() -> float:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(worker.clock, "now", now)
    assert not worker.alive()


def test_only_answers_go_to_standard_output() -> None:
    pytest.importorskip("torch")
    code = """
import os
from bench.gpu import worker
run = worker.Worker.run
def loud(self, *task):
    os.system("echo a compiler says something")
    print("a library says something")
    return run(self, *task)
worker.Worker.run = loud
worker.main("cpu")
"""
    task = json.dumps({"case": 0, "contender": "torch", "seconds": 0.01})
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=task, capture_output=True, text=True, timeout=120, check=True
    )
    machine, answer = map(json.loads, done.stdout.splitlines())
    assert machine["device"].startswith("none")
    assert answer["alive"]
    assert Row(**answer["row"]).status == "ok"


def test_a_run_ends_in_time_whatever_hangs() -> None:
    done, clock, _ = run(set(), 1e9, seconds=60)
    assert clock.time <= 60 * 1.1
    assert len(done.rows) == 13
    assert done.rows[-1].note in ("", "no time was left")


def test_a_worker_that_does_not_start_is_reported() -> None:
    def start(limit: float) -> FakeWorker:
        raise Lost("took longer than 90 s")

    clock = FakeTime()
    done = runner.run((softmax(4, 4, "f32"),), 100, WEIGHTS, start, clock.now)
    assert {(row.status, row.note) for row in done.rows} == {("failed", "took longer than 90 s")}


def test_the_table_says_everything() -> None:
    rows = [
        Row("check", "gemm 1x1x1", "f32", OURS, "ok", error=0.0),
        Row("copy", "copy", "f32", "torch", "ok", 1e-3, bytes=4_000_000_000),
        Row("rows", "softmax", "f32", "torch", "ok", 2e-3, bytes=4_000_000_000, error=1e-7),
        Row("rows", "softmax", "f32", OURS, "ok", 1e-3, bytes=2_000_000_000, error=1e-7),
        Row("gemm", "big", "bf16", "torch", "ok", 1e-3, flops=10**12, bytes=1),
        Row("gemm", "big", "bf16", OURS, "wrong", error=float("nan"), note="at most\n0.015 is allowed"),
    ]
    for spilled in (0, 40):
        note = f"k: 255 registers, {spilled} bytes of local memory"
        rows.append(Row("gemm", f"spills {spilled}", "f64", OURS, "ok", 1e-3, bytes=1, note=note))
    run = Run({"device": "a GPU"}, rows, 12.0)
    text = table(run)
    assert "device a GPU; 12 s" in text
    assert "Awkward sizes: 1 of 1 right." in text
    assert "| rows | softmax | f32 | torch | 2000.0 |  | 2000 | 50 % | 2.00 | 1.0e-07 |" in text
    assert "| rows | softmax | f32 | tilewright | 1000.0 |  | 2000 | 50 % |  | 1.0e-07 |" in text
    assert "| gemm | big | bf16 | torch | 1000.0 | 1000.0 | 0 |  |  |  |" in text
    assert "- wrong: tilewright, big, bf16, error nan: at most 0.015 is allowed" in text
    assert "- ok: tilewright, spills 40, f64: k: 255 registers, 40 bytes of local memory" in text
    assert "- ok: tilewright, spills 0" not in text
    stored = json.loads(run.to_json())
    assert stored["rows"][2] == json.loads(json.dumps(asdict(rows[2])))
    assert stored["rows"][5]["error"] is None


def test_cases_have_sections_bounds_and_names_of_their_own() -> None:
    everything = CHECKS + CASES
    assert set(sections(everything)) == set(WEIGHTS)
    assert {case.dtype for case in everything} <= set(BOUNDS)
    named = [(case.family, case.name, case.dtype) for case in everything]
    assert len(set(named)) == len(named)
    assert all(OURS in names(case) for case in everything if case.family != "copy")


@pytest.mark.parametrize("case", tiny(), ids=lambda case: case.family)
def test_tiny_cases_are_right_and_timed_in_the_emulator(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    from bench.gpu.worker import Worker

    row = Worker("cpu").run(case, [name for name in names(case) if name not in (TUNED, CLUSTERED, ONE_WARP)][-1], 0.01)
    assert (row.status, row.note) == ("ok", "")
    assert (row.seconds is None) == (case.family == "check")


def test_tiles_are_tuned_on_a_device_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    from bench.gpu.contenders import compile_ahead
    from bench.gpu.worker import Worker

    case = gemm(256, 256, 64, "f16")
    row = Worker("cpu").run(case, TUNED, 0.01)
    assert (row.status, row.note) == ("skipped", "tiles are measured on a device")
    compile_ahead(case, tmp_path, "sm_90a")
    described = [json.loads(path.read_text()) for path in sorted(tmp_path.glob(f"{case.file_name}.tile*.json"))]
    assert len({path.read_bytes() for path in tmp_path.glob(f"{case.file_name}.tile??")}) == len(described) > 8
    assert len({each["name"] for each in described} - {""}) == len(described)
    assert [each["cycles"] for each in described] == sorted(each["cycles"] for each in described)
    with pytest.raises(Missing, match="--compile"):
        prepare(TUNED, case, None, "cuda")
    with pytest.raises(Missing, match="no choice"):
        prepare(TUNED, case, None, "cuda", tmp_path / "cache")


def test_pairs_of_blocks_are_compiled_where_they_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    from bench.gpu.contenders import compile_ahead
    from tilewright.runtime.artifact import Artifact

    case = gemm(512, 512, 64, "f16")
    with pytest.raises(Missing, match="sm_90"):
        prepare(CLUSTERED, case, None, "cpu")
    capability = SimpleNamespace(cuda=SimpleNamespace(get_device_capability=lambda number: (9, 0)))
    with pytest.raises(Missing, match="was not compiled"):
        prepare(CLUSTERED, case, capability, "cuda", tmp_path)
    for machine, clusters in (("sm_80", False), ("sm_90a", True)):
        compile_ahead(case, tmp_path, machine, without=(TUNED,))
        path = tmp_path / f"{case.file_name}.clusters"
        assert path.exists() == clusters
    assert b"multicast::cluster" in Artifact.read(path).code


def test_the_fastest_tile_that_is_right_is_taken() -> None:
    tiles = [Tile(f"tile {number}", 1.0, seconds, error) for number, (seconds, error) in enumerate(
        [(3.0, 1e-4), (1.0, 1e-1), (2.0, 1e-3), (0.5, float("nan"))]
    )]  # fmt: skip
    assert fastest(tiles, 1e-2) == 2
    assert fastest(tiles, 1.0) == 1
    with pytest.raises(Missing, match="right result"):
        fastest(tiles[1:2], 1e-2)


def test_code_compiled_ahead_runs_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    from bench.gpu.contenders import compile_ahead

    compile_ahead(softmax(3, 40, "f32"), tmp_path, "sm_80")
    code = f"""
import sys
sys.modules["xdsl"] = None
from pathlib import Path
from bench.gpu.cases import softmax
from bench.gpu.worker import Worker
worker = Worker("cpu", Path({str(tmp_path)!r}))
for columns in (40, 41):
    row = worker.run(softmax(3, columns, "f32"), "tilewright", 0.01)
    print(row.status, row.note)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ok ", f"skipped {tmp_path}/rows-softmax-3x41-f32.twm was not compiled"]


def test_names_of_compiled_files_are_their_own() -> None:
    names_ = [case.file_name for case in CHECKS + CASES]
    assert len(set(names_)) == len(names_)


def test_a_back_end_that_refuses_is_skipped_with_the_reason() -> None:
    pytest.importorskip("torch")
    from bench.gpu.worker import Worker

    attention = next(case for case in tiny() if case.sdpa)
    row = Worker("cpu").run(attention, "sdpa cudnn", 0.01)
    assert (row.status, row.note) == ("skipped", "the back end does not take this case on this machine")
    assert Worker("cpu").run(attention, "sdpa math", 0.01).status == "ok"


def test_wrong_results_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from bench.gpu import contenders
    from bench.gpu.worker import Worker

    monkeypatch.setattr(contenders, "prepare", lambda *_: lambda x: x.softmax(-1) * 1.001)
    row = Worker("cpu").run(softmax(3, 40, "f32"), "torch", 0.01)
    assert (row.status, row.seconds) == ("wrong", None)
    assert row.error == pytest.approx(1e-3, rel=1e-3)
    monkeypatch.setattr(contenders, "prepare", lambda *_: lambda x: x.softmax(-1) * float("nan"))
    assert Worker("cpu").run(softmax(3, 40, "f32"), "torch", 0.01).status == "wrong"


@pytest.mark.parametrize("name", MINE)
def test_what_we_leave_unwritten_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from bench.gpu import contenders
    from bench.gpu.worker import Worker

    def half(x: Any, out: Any) -> None:
        out[:1] = x[:1].softmax(-1)

    def whole(x: Any, out: Any = None) -> Any:
        return torch.softmax(x, -1, out=out)

    monkeypatch.setattr(contenders, "prepare", lambda *_: half)
    assert Worker("cpu").run(softmax(3, 40, "f32"), name, 0.01).status == "wrong"
    monkeypatch.setattr(contenders, "prepare", lambda *_: whole)
    assert Worker("cpu").run(softmax(3, 40, "f32"), name, 0.01).status == "ok"


def test_a_tuned_row_has_its_tile_and_what_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from bench.gpu import contenders
    from bench.gpu.worker import Worker
    from tilewright.runtime.cuda.driver import Resources

    class Spilling:
        def __call__(self, x: Any, out: Any = None) -> Any:
            return torch.softmax(x, -1, out=out)

        def resources(self) -> dict[str, Resources | None]:
            return {"k": Resources(255, 40, 0), "emulated": None}

    monkeypatch.setattr(contenders, "prepare", lambda *_: Tuned(Spilling(), "64x64x32"))
    row = Worker("cpu").run(softmax(3, 40, "f32"), TUNED, 0.01)
    assert (row.status, row.note) == ("ok", "64x64x32; k: 255 registers, 40 bytes of local memory")
    assert "- ok: tilewright tuned, softmax 3x40" in table(Run({}, [row]))


@pytest.mark.parametrize(
    ("contender", "status", "wanted"),
    [
        *((name, status, 1) for name in MINE for status in ("wrong", "failed")),
        *((name, status, 0) for name in MINE for status in ("ok", "skipped")),
        ("torch", "failed", 0),
    ],
)
def test_the_exit_status_tells_of_ours_alone(
    contender: str, status: str, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.gpu.__main__ import main

    monkeypatch.setattr(runner, "run", lambda *_: Run({}, [Row("gemm", "big", "f16", contender, status)]))
    assert main(["--device", "cpu"]) == wanted


def test_a_process_answers_and_can_be_lost() -> None:
    pytest.importorskip("torch")
    process = Process("cpu", 120)
    assert process.machine["device"].startswith("none")
    assert process.ask((0, "torch"), 0.01, 60).status == "ok"
    process._process.kill()
    with pytest.raises(Lost, match="ended"):
        process.ask((0, "torch"), 0.01, 60)
    process.end()


def test_wheels_are_installed_for_this_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.gpu.__main__ import _install

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "before")
    assert not _install(tmp_path)
    assert "has no wheels" in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "made_up-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("made_up.py", "NUMBER = 7\n")
        wheel.writestr("made_up-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
        wheel.writestr("made_up-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("made_up-1.0.dist-info/RECORD", "")
    assert _install(tmp_path)
    assert importlib.import_module("made_up").NUMBER == 7
    assert os.environ["PYTHONPATH"] == f"{sys.path[0]}{os.pathsep}before"
