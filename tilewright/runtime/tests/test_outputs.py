"""The pool of outputs: memory is used again when nothing refers to it, never before, and only so much is kept."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import InvalidArgument
from tilewright.options import Options
from tilewright.runtime import outputs as pools
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.memory import HUGE_PAGE
from tilewright.runtime.module import Module
from tilewright.runtime.outputs import OUTPUTS, SMALLEST, OutputPool

Make = Callable[..., Artifact]
F32 = np.dtype(np.float32)
LARGE = (SMALLEST // 4 + 3,)
LIMIT = 1 << 30

pytestmark = pytest.mark.skipif(not pools._COUNTS, reason="no memory is used again on this interpreter")


def address(array: Any) -> int:
    return int(array.ctypes.data)


@pytest.fixture
def pool() -> OutputPool:
    return OutputPool()


def test_memory_is_used_again_when_its_array_is_dropped(pool: OutputPool) -> None:
    first = pool.empty(LARGE, F32, LIMIT)
    second = pool.empty(LARGE, F32, LIMIT)
    places = {address(first), address(second)}
    assert len(places) == 2
    del first, second
    third, fourth = pool.empty(LARGE, F32, LIMIT), pool.empty(LARGE, F32, LIMIT)
    assert {address(third), address(fourth)} == places
    assert third.flags.writeable
    assert third.flags.c_contiguous
    assert address(third) % 64 == 0


def test_other_types_and_shapes_of_the_same_size_share_memory(pool: OutputPool) -> None:
    place = address(pool.empty((256, 512), F32, LIMIT))
    array = pool.empty((512, 512), np.dtype(ml_dtypes.bfloat16), LIMIT)
    assert (address(array), array.shape, array.dtype) == (place, (512, 512), ml_dtypes.bfloat16)
    assert address(pool.empty((256, 513), F32, LIMIT)) != place


def by_torch(array: np.ndarray) -> Any:
    return pytest.importorskip("torch").from_numpy(array)


def root(array: Any) -> Any:
    """The last object behind an array that refers to its memory."""
    while (base := getattr(array, "base", None)) is not None or (base := getattr(array, "obj", None)) is not None:
        array = base
    return array


CYCLE = "an object that holds it in a cycle"
HOLDERS: dict[str, Callable[[np.ndarray], Any]] = {
    "a view": lambda array: array[1:2],
    "a view of a view": lambda array: array[1:].reshape(-1, 2)[3:4].T,
    "another type": lambda array: array.view(np.int8),
    "a memoryview": lambda array: memoryview(array)[5:6],
    "a buffer of ctypes": lambda array: (__import__("ctypes").c_char * 4).from_buffer(array),
    "the pointer that NumPy gives": lambda array: array.ctypes,
    "a capsule of DLPack": lambda array: array.__dlpack__(),
    "a view by DLPack": lambda array: np.from_dlpack(array),
    "an iterator": lambda array: array.flat,
    "a tensor": by_torch,
    "a view of a tensor": lambda array: by_torch(array)[7:8],
    "a storage": lambda array: by_torch(array).untyped_storage(),
    "a tensor for DLPack": lambda array: by_torch(array).__dlpack__(),
    "the owner": lambda array: array.base,
    "the root of all bases": root,
    "a weak reference to the owner": lambda array: weakref.ref(array.base),
    "an array of structures": lambda array: array.view([("x", "<f4")])["x"],
    "a broadcast": lambda array: np.broadcast_to(array, (2, *array.shape)),
    "a masked array": lambda array: np.ma.masked_array(array),
    CYCLE: lambda array: (cycle := [array]).append(cycle),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_holds_is_not_used_again(holder: str, pool: OutputPool) -> None:
    shape = (HUGE_PAGE // 4 + 3,)
    HOLDERS[holder](OutputPool().empty(shape, F32, LIMIT))  # the import of torch keeps frames
    gc.disable()
    try:
        array = pool.empty(shape, F32, LIMIT)
        place = address(array)
        held = HOLDERS[holder](array)
        del array
        others = [pool.empty(shape, F32, LIMIT) for _ in range(6)]
        assert place not in set(map(address, others))
        del held
    finally:
        gc.enable()
    if holder == CYCLE:
        gc.collect()
    others += [pool.empty(shape, F32, LIMIT) for _ in range(6)]
    assert place in set(map(address, others))


def test_a_weak_reference_that_becomes_a_strong_one_meanwhile(
    pool: OutputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread does so between the two tests of a buffer."""
    array = pool.empty(LARGE, F32, LIMIT)
    place, weak, strong = address(array), [weakref.ref(array.base)], []
    del array

    def upgrade(owner: Any) -> int:
        if weak:
            strong.append(weak.pop()())
        return weakref.getweakrefcount(owner)

    monkeypatch.setattr(pools, "weakref", SimpleNamespace(getweakrefcount=upgrade))
    assert address(pool.empty(LARGE, F32, LIMIT)) != place
    strong.clear()
    assert address(pool.empty(LARGE, F32, LIMIT)) == place


def test_as_much_is_kept_as_the_limit_says(pool: OutputPool) -> None:
    size = SMALLEST * 4
    held = [pool.empty((size,), np.dtype(np.uint8), 3 * size) for _ in range(9)]
    assert len(set(map(address, held))) == 9
    assert 0 < pool.bytes <= 3 * size
    freed = weakref.ref(held[0].base)
    del held
    assert freed() is None  # it was no longer kept
    for extent in range(50):  # shapes that come once do not add up
        pool.empty((size + extent,), np.dtype(np.uint8), 3 * size)
    assert 0 < pool.bytes <= 3 * size
    assert len(pool._queues) < 5
    pool.clear()
    assert pool.bytes == 0


@pytest.mark.parametrize(("shape", "limit"), [((0,), LIMIT), ((4, 0, 1 << 40), LIMIT), ((), LIMIT), ((7,), LIMIT)])
def test_small_and_empty_outputs_are_ordinary_arrays(shape: tuple[int, ...], limit: int, pool: OutputPool) -> None:
    array = pool.empty(shape, F32, limit)
    assert (array.shape, array.flags.owndata, pool.bytes) == (shape, True, 0)


def test_outputs_larger_than_the_limit_are_not_kept(pool: OutputPool) -> None:
    assert pool.empty(LARGE, F32, SMALLEST).flags.owndata
    assert pool.empty(LARGE, F32, 0).flags.owndata
    assert pool.bytes == 0


def test_memory_that_there_is_not_is_an_error(pool: OutputPool) -> None:
    with pytest.raises(MemoryError):
        pool.empty((1 << 50,), F32, 1 << 60)
    assert pool.bytes == 0


def test_memory_that_is_kept_is_given_back_before_an_allocation_fails(
    pool: OutputPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [pool.empty(LARGE, F32, LIMIT) for _ in range(pools._MAX_PROBES)]
    freed = weakref.ref(pool.empty(LARGE, F32, LIMIT).base)  # behind those, so that it is not found

    def allocate(size: int, dtype: Any) -> Any:
        if freed() is not None:
            raise MemoryError
        return empty(size, dtype)

    empty = np.empty
    monkeypatch.setattr(pools.np, "empty", allocate)
    held.append(pool.empty(LARGE, F32, LIMIT))
    assert pool.bytes == held[-1].nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "make", ["outputs.OUTPUTS.empty((size,), np.dtype(np.uint8), 1 << 28)", "memory.allocate(size)"]
)
def test_arrays_just_above_a_huge_page_take_their_size(make: str) -> None:
    """They took two huge pages, and outputs two mappings each, of which a process has 65,530."""
    script = f"""
from pathlib import Path
import numpy as np
from tilewright.runtime import memory, outputs
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
def mappings():
    return Path("/proc/self/maps").read_text().count("\\n")
size, kept = 21 * (1 << 20) // 10, []
before = resident(), mappings()
for _ in range(150):
    kept.append({make})
    kept[-1][:] = 1
print((resident() - before[0]) / (150 * size), (mappings() - before[1]) / 150)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    memory, mappings = map(float, done.stdout.split())
    assert memory < 1.1, done.stdout
    assert mappings < 0.5 or "OUTPUTS" not in make, done.stdout


def test_the_long_way_uses_the_outputs_that_the_short_one_made(add_artifact: Make) -> None:
    module = Module(add_artifact((2, SMALLEST)), threads=1)
    OUTPUTS.clear()
    x = np.ones((2, 2 * SMALLEST), F32)[:, ::2]
    assert (module(x, x) == np.float32(2.5)).all()
    assert OUTPUTS.bytes == 8 * SMALLEST


def test_an_option_switches_it_off(add_artifact: Make) -> None:
    module = Module(add_artifact(LARGE), threads=1, options=Options(output_pool_bytes=0))
    assert module(np.ones(LARGE, F32), np.ones(LARGE, F32)).flags.owndata
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(InvalidArgument, match="output_pool_bytes is"):
            Options(output_pool_bytes=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["numpy", "torch", "bf16"])
def test_results_of_modules_use_memory_again_and_outlive_them(kind: str, add_artifact: Make) -> None:
    dtype, numpy_dtype = ("bf16", ml_dtypes.bfloat16) if kind == "bf16" else ("f32", np.float32)
    shape = (SMALLEST // 2, 3)
    a = (np.arange(np.prod(shape)) % 128).reshape(shape).astype(numpy_dtype)
    b = np.zeros_like(a)
    expected = a if kind == "bf16" else a + np.float32(0.5)
    if kind != "numpy":
        torch = pytest.importorskip("torch")
        a, b, expected = (
            torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if kind == "bf16" else torch.from_numpy(x)
            for x in (a, b, expected)
        )
    module = Module(add_artifact(shape, dtype, offset=0 if kind == "bf16" else 0.5), threads=2)
    OUTPUTS.clear()
    first, second = module(a, b), module(a, b)
    assert type(first) is type(a)
    assert first.dtype == a.dtype
    used = OUTPUTS.bytes
    for _ in range(5):
        first, second = second, module(a, b)
    assert OUTPUTS.bytes == used + used // 2  # three: two are held during the call
    view = second[3:5]
    del module, second
    gc.collect()
    assert (view == expected[3:5]).all()
    assert (first == expected).all()


def test_threads_never_get_the_same_memory(pool: OutputPool) -> None:
    """Each thread marks its arrays; memory that two of them have shows the other's mark."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    wrong = []

    def work(number: int) -> None:
        kept: list[np.ndarray] = []
        for turn in range(400):
            array = pool.empty(LARGE, F32, 20 * SMALLEST)
            array[:8] = number
            kept.append(array)
            if any((other[:8] != number).any() for other in kept):
                wrong.append(number)
            del kept[: turn % 4]

    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert pool.bytes <= 20 * SMALLEST


def test_a_buffer_that_a_thread_holds_is_counted_when_it_is_put_back(pool: OutputPool) -> None:
    """While one thread tests a buffer, another one allocates and finds that the limit holds without it."""
    limit = 3 * SMALLEST

    class Interrupted(deque[Any]):
        def popleft(self) -> Any:
            buffer = super().popleft()
            if others:
                held.append(pool.empty((2 * SMALLEST // 4 + 3,), F32, others.pop()))
            return buffer

    held = [pool.empty(LARGE, F32, limit)]
    ((size, queue),) = pool._queues.items()
    pool._queues[size] = Interrupted(queue)
    held.clear()
    others = [limit]
    pool.empty(LARGE, F32, limit)
    assert not others
    assert pool.bytes <= limit


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_and_its_parent_have_memory_of_their_own(pool: OutputPool) -> None:
    held = pool.empty(LARGE, F32, LIMIT)
    held[:] = 1
    free = address(pool.empty(LARGE, F32, LIMIT))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        array = pool.empty(LARGE, F32, LIMIT)
        array[:] = 2
        os._exit(0 if address(array) == free and (held == 1).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (held == 1).all()


def test_arrays_that_live_until_the_interpreter_ends() -> None:
    script = """
import threading
import numpy as np
from tilewright.runtime.outputs import OUTPUTS
f32 = np.dtype(np.float32)
kept = [OUTPUTS.empty((100_000 + n % 3,), f32, 1 << 24) for n in range(50)]
def forever():
    while True:
        OUTPUTS.empty((100_000,), f32, 1 << 24)[:] = 1
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
class Late:
    def __del__(self):
        kept.append(OUTPUTS.empty((100_000,), f32, 1 << 24))
late = Late()
late.cycle = late
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
