"""The pool covers every program exactly once, whoever calls it, and leaves the caller where it was."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.options import Options
from tilewright.runtime import pool as pools
from tilewright.runtime.loader import Code, load_ir
from tilewright.runtime.pool import Pool, default_threads, find_openmp, get_pool, pin_order
from tilewright.runtime.quota import affinity

pytestmark = pytest.mark.skipif(not pools.native.supported(), reason="the pool needs Linux on x86-64 or aarch64")

OWN = Options(openmp=False)
# args: i64[0] counts programs, i64[1] rounds of work per program, i64[8 + thread] programs of that thread,
# then one byte per program, counted up.
KERNEL_IR = """
define void @count(ptr %args, i64 %thread, i64 %begin, i64 %end) {
entry:
  %programs = sub i64 %end, %begin
  %all = atomicrmw add ptr %args, i64 %programs monotonic
  %word = add i64 %thread, 8
  %mine = getelementptr i64, ptr %args, i64 %word
  %before = atomicrmw add ptr %mine, i64 %programs monotonic
  %rounds_at = getelementptr i64, ptr %args, i64 1
  %rounds_each = load i64, ptr %rounds_at
  %rounds = mul i64 %rounds_each, %programs
  %marks = getelementptr i64, ptr %args, i64 72
  br label %mark
mark:
  %i = phi i64 [ %begin, %entry ], [ %i_next, %mark ]
  %at = getelementptr i8, ptr %marks, i64 %i
  %old = load i8, ptr %at
  %new = add i8 %old, 1
  store i8 %new, ptr %at
  %i_next = add i64 %i, 1
  %more = icmp slt i64 %i_next, %end
  br i1 %more, label %mark, label %work
work:
  %r = phi i64 [ 0, %mark ], [ %r_next, %work ]
  call void asm sideeffect "", ""()
  %r_next = add i64 %r, 1
  %again = icmp slt i64 %r_next, %rounds
  br i1 %again, label %work, label %done
done:
  ret void
}
"""
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@pytest.fixture(scope="module")
def kernel() -> Code:
    return load_ir(KERNEL_IR, ["count"])


@pytest.fixture
def fresh() -> Iterator[Callable[..., Pool]]:
    """Pools of this test alone, stopped after it."""
    made: list[Pool] = []

    def make(threads: int, cores: tuple[int, ...] = ()) -> Pool:
        made.append(Pool(threads, cores, None))
        return made[-1]

    yield make
    for pool in made:
        pool.stop()


def run(pool: Pool, kernel: Code, programs: int, rounds: int = 0) -> np.ndarray:
    """The programs that each thread ran, after checking that each program ran once."""
    args = np.zeros(72 + programs // 8 + 1, np.int64)
    args[1] = rounds
    PARALLEL(pool.parallel)(pool.address, kernel.address("count"), args.ctypes.data, programs)
    marks = args[72:].view(np.uint8)
    assert args[0] == programs
    assert (marks[:programs] == 1).all()
    assert not marks[programs:].any()
    return args[8:72]


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("programs", [0, 1, 2, 3, 5, 64, 1001])
def test_every_program_runs_once(fresh, kernel: Code, threads: int, programs: int) -> None:
    pool = fresh(threads)
    for _ in range(50):
        per_thread = run(pool, kernel, programs)
        assert per_thread[threads:].sum() == 0
        assert per_thread.sum() == programs


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_the_pool_compiles_for_both_architectures(architecture: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(f"{architecture}-unknown-linux-gnu").create_target_machine()
    module = llvm.parse_assembly(pools.native.pool_ir(architecture))
    module.verify()
    text = machine.emit_assembly(module)
    assert "tw_parallel:" in text
    assert ("pause" if architecture == "x86_64" else "yield") in text


def test_both_threads_take_part(fresh, kernel: Code) -> None:
    pool = fresh(2)
    for _ in range(20):
        per_thread = run(pool, kernel, programs=64, rounds=200_000)
        if per_thread[1]:
            break
    assert per_thread[1] > 0
    assert pool.workers == 1


def test_a_sleeping_worker_is_woken(fresh, kernel: Code) -> None:
    pool = fresh(2)
    took_part, end = 0, time.monotonic() + 60  # other processes may hold the worker's core for a while
    while not took_part and time.monotonic() < end:
        run(pool, kernel, 2)
        time.sleep(0.005)  # far longer than a worker spins
        took_part += run(pool, kernel, programs=64, rounds=200_000)[1] > 0
    assert took_part > 0


def test_callers_at_the_same_time(fresh, kernel: Code) -> None:
    pool = fresh(2)
    errors: list[BaseException] = []

    def call_often() -> None:
        try:
            for programs in range(200):
                run(pool, kernel, programs, rounds=100)
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=call_often) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not errors
    assert not any(caller.is_alive() for caller in callers)


def test_a_kernel_that_launches_a_kernel_runs_it_alone(fresh, kernel: Code) -> None:
    pool = fresh(2)
    inner = load_ir(
        """
        define void @outer(ptr %args, i64 %thread, i64 %begin, i64 %end) {
          %parallel = load ptr, ptr %args
          %pool_at = getelementptr ptr, ptr %args, i64 1
          %pool = load ptr, ptr %pool_at
          %kernel_at = getelementptr ptr, ptr %args, i64 2
          %kernel = load ptr, ptr %kernel_at
          %count_at = getelementptr ptr, ptr %args, i64 3
          call void %parallel(ptr %pool, ptr %kernel, ptr %count_at, i64 8)
          ret void
        }
    """,
        ["outer"],
    )
    args = np.zeros(200, np.int64)
    args[:3] = pool.parallel, pool.address, kernel.address("count")
    PARALLEL(pool.parallel)(pool.address, inner.address("outer"), args.ctypes.data, 2)
    assert args[3] == 16  # twice 8 programs
    assert args[3 + 8] == 16  # all as thread 0


def test_stopped_workers_start_again(fresh, kernel: Code) -> None:
    pool = fresh(3)
    run(pool, kernel, 10)
    assert pool.workers == 2
    assert pool.stop()
    assert pool.workers == 0
    run(pool, kernel, 10)
    assert pool.workers == 2


def test_a_child_gets_workers_of_its_own(kernel: Code) -> None:
    pool = get_pool(2, OWN)
    run(pool, kernel, 100)
    child = os.fork()
    if child == 0:
        started_empty = pool.workers == 0
        per_thread = run(pool, kernel, 100)
        os._exit(0 if started_empty and per_thread.sum() == 100 and pool.workers == 1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    run(pool, kernel, 100)


def test_the_callers_affinity_is_not_changed(fresh, kernel: Code) -> None:
    before = affinity()
    pool = fresh(len(before), tuple(pin_order(before, before[0])))
    run(pool, kernel, 100)
    assert affinity() == before


@pytest.mark.skipif(len(affinity()) < 2, reason="needs two cores")
def test_workers_have_distinct_cores_without_the_callers(kernel: Code) -> None:
    """And when the caller moves to a worker's core, that worker moves away."""
    before = os.sched_getaffinity(0)
    try:
        two = sorted(before)[:2]
        known = _threads()
        pool = Pool(2, (two[1], two[0]), None)
        for here, there in ((two[0], two[1]), (two[1], two[0]), (two[0], two[1])):
            os.sched_setaffinity(0, {here})
            run(pool, kernel, 100)
            (worker,) = _threads() - known
            assert os.sched_getaffinity(worker) == {there}
        pool.stop()
    finally:
        os.sched_setaffinity(0, before)


def test_workers_are_not_pinned_when_pinning_is_off(kernel: Code) -> None:
    known = _threads()
    pool = Pool(2, (), None)
    run(pool, kernel, 100)
    (worker,) = _threads() - known
    assert os.sched_getaffinity(worker) == os.sched_getaffinity(0)
    pool.stop()


@pytest.mark.skipif(len(affinity()) < 2, reason="needs two cores")
def test_the_mask_is_respected() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert get_pool(2, OWN).pinned is False  # two threads on one core: nothing to choose
    finally:
        os.sched_setaffinity(0, before)
    assert get_pool(2, OWN).pinned is True
    assert get_pool(2, Options(openmp=False, pin=False)).pinned is False


def test_one_pool_per_kind() -> None:
    assert get_pool(2, OWN) is get_pool(2, OWN)
    assert get_pool(2, OWN) is not get_pool(3, OWN)


@pytest.mark.parametrize("threads", [0, -1, 2.0, True, 1 << 40])
def test_a_bad_number_of_threads_is_an_error(threads: object) -> None:
    with pytest.raises(InvalidArgument, match="threads"):
        get_pool(threads)  # type: ignore[arg-type]


def test_default_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert default_threads() == len(affinity())
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert default_threads() == 3


def test_pin_order_uses_whole_cores_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "hardware_siblings", lambda core: frozenset({core % 4, core % 4 + 4}))
    order = pin_order(range(8), current=1)
    assert order[-1] == 1
    assert {core % 4 for core in order[-4:]} == {0, 1, 2, 3}
    assert sorted(order) == list(range(8))


def test_openmp_runtime_of_torch_is_used() -> None:
    """In another process: torch loads its OpenMP runtime, a module runs on it, its worker is pinned, a child works."""
    pytest.importorskip("torch")
    script = """
        import os, sys, torch
        sys.path[:0] = [TESTS]
        import test_pool as t
        code = t.load_ir(t.KERNEL_IR, ["count"])
        torch.set_num_threads(2)
        torch.ones(1000, 1000).sum()
        pool = t.get_pool(2)
        assert pool.openmp and "omp" in pool.openmp.path, "not on OpenMP"
        for programs in (0, 1, 2, 3, 1000):
            for _ in range(20):
                t.run(pool, code, programs, rounds=10)
        assert pool.workers == 0, "has workers of its own"
        masks = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]
        assert os.sched_getaffinity(0) == set(t.affinity())
        if len(t.affinity()) > 1:
            assert any(len(mask) == 1 for mask in masks), masks
        child = os.fork()
        if child == 0:
            t.run(pool, code, 100)
            os._exit(0 if pool.openmp is None and t.get_pool(2).openmp is None else 1)
        assert os.waitpid(child, 0)[1] == 0, "child"
        t.run(pool, code, 100)
        print("good")
    """
    done = _python(script)
    assert done.stdout == "good\n", done.stderr


def test_exit_while_workers_spin_sleep_or_work() -> None:
    script = """
        import sys, threading, time
        sys.path[:0] = [TESTS]
        import test_pool as t
        code = t.load_ir(t.KERNEL_IR, ["count"])
        t.run(t.get_pool(2, t.OWN), code, 10)
        time.sleep(0.01)
        pool = t.get_pool(3, t.OWN)
        thread = threading.Thread(target=lambda: t.run(pool, code, 64, 10_000_000), daemon=True)
        thread.start()
        time.sleep(0.01)
        t.run(t.get_pool(4, t.OWN), code, 10)
        print("good")
    """
    done = _python(script)
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_find_openmp_with_a_file_whose_name_is_no_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff"
    with open(path, "wb+") as file:
        file.write(b"x")
        file.flush()
        with mmap.mmap(file.fileno(), 1):
            find_openmp()


def test_find_openmp_loads_nothing() -> None:
    script = """
        from tilewright.runtime.pool import find_openmp
        before = open("/proc/self/maps").read().count("omp.so")
        print(find_openmp(), open("/proc/self/maps").read().count("omp.so") - before)
    """
    assert _python(script).stdout == "None 0\n"


def _threads() -> set[int]:
    return {int(task) for task in os.listdir("/proc/self/task")}


def _python(script: str) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(script).replace("TESTS", repr(str(Path(__file__).parent)))
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)


def test_a_pool_of_one_thread_compiles_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def noted(text: str, functions: list[str]) -> Code:
        compiled.append(text)
        return load_ir(text, functions)

    monkeypatch.setattr(pools, "load_ir", noted)
    code = pools.pool_code.__wrapped__.__wrapped__  # type: ignore[attr-defined]
    code(True)
    code(False)
    assert [text == pools.native.SERIAL_IR for text in compiled] == [True, False]
