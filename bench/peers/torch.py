"""PyTorch eager, as installed. Of a case's ways to write it, contiguous and channels-last, the fastest is timed.

Eager functions allocate their results; the worker's allocator keeps freed memory, so that pages fault only once.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.arrays import Array, from_torch, to_torch
from bench.problem import Loaded, SkippedError, Task

if TYPE_CHECKING:
    import torch

TRIAL_SECONDS = 0.2  # per way to write a case, when choosing the fastest


@dataclass(frozen=True)
class Torch:
    name: str = "torch"

    def missing(self) -> str:
        return "" if importlib.util.find_spec("torch") else "torch is not installed"

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        places = ",".join(f"{{{core}}}" for core in cores)
        return {"OMP_NUM_THREADS": str(len(cores)), "OMP_PLACES": places, "OMP_PROC_BIND": "true"}

    def load(self, task: Task) -> Loaded:
        import torch

        from bench.cases import CASES

        torch.set_num_threads(len(task.cores))
        modules = CASES[task.case].build().modules
        inputs = [to_torch(array) for array in task.inputs().values()]
        start = time.perf_counter()
        ways = [way for name, module in modules.items() for way in _ways(name, module.eval(), inputs)]
        prepare_seconds = (time.perf_counter() - start) / len(ways)
        refused = []
        best: tuple[float, str, Callable[[], Any]] | None = None
        for name, call in ways:
            try:
                seconds = _trial(call)
            except RuntimeError as error:
                refused.append(f"{name}: {str(error).splitlines()[0]}")
                continue
            if best is None or seconds < best[0]:
                best = (seconds, name, call)
        if best is None:
            raise SkippedError("; ".join(refused))
        notes = [f"{best[1]} is the fastest of {len(ways)} ways to write it"] if len(ways) > 1 else []
        return _loaded(best[2], prepare_seconds, "; ".join([*notes, *refused]))

    def version(self) -> str:
        import torch

        return f"torch {torch.__version__}"


def _ways(name: str, module: torch.nn.Module, inputs: list[torch.Tensor]) -> list[tuple[str, Callable[[], Any]]]:
    """The module as it is and, where it reads images, in channels-last layout (the input is given in it)."""
    import torch

    ways: list[tuple[str, Callable[[], Any]]] = [(name, lambda: module(*inputs))]
    if any(tensor.ndim == 4 for tensor in inputs):
        import copy

        nhwc = copy.deepcopy(module).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = [x.to(memory_format=torch.channels_last) if x.ndim == 4 else x for x in inputs]
        ways.append((f"{name}, channels last", lambda: nhwc(*images)))
    return ways


def _trial(call: Callable[[], Any]) -> float:
    """Seconds of the fastest call within `TRIAL_SECONDS`, after one that is not counted."""
    import torch

    with torch.inference_mode():
        call()
        best = float("inf")
        end = time.perf_counter() + TRIAL_SECONDS
        while (start := time.perf_counter()) < end:
            call()
            best = min(best, time.perf_counter() - start)
    return best


def _loaded(function: Callable[[], Any], seconds: float, notes: str) -> Loaded:
    import torch

    mode = torch.inference_mode()
    mode.__enter__()  # as long as the task is loaded: a context per call would be timed
    results: list[Any] = [None]

    def call() -> None:
        results[0] = function()

    def outputs() -> list[Array]:
        values = results[0] if isinstance(results[0], tuple | list) else (results[0],)
        return [from_torch(value.contiguous()) for value in values]

    return Loaded(call, outputs, seconds, notes, keep=mode)
