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
from bench.peers.choice import fastest
from bench.problem import Loaded, Task

if TYPE_CHECKING:
    import torch


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
        forms = CASES[task.case].modules()
        inputs = [to_torch(array) for array in task.inputs().values()]
        start = time.perf_counter()
        ways = {  # by name: the form of the problem that each computes, and its call
            name: (form, call)
            for form, modules in forms.items()
            for module_name, module in modules.items()
            for name, call in _ways(module_name, module.eval(), inputs)
        }
        prepare_seconds = (time.perf_counter() - start) / len(ways)
        with torch.inference_mode():
            chosen, notes = fastest({name: call for name, (_, call) in ways.items()})
        form, call = ways[chosen]
        return _loaded(call, prepare_seconds, notes, form)

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


def _loaded(function: Callable[[], Any], seconds: float, notes: str, variant: str) -> Loaded:
    import torch

    mode = torch.inference_mode()
    mode.__enter__()  # as long as the task is loaded: a context per call would be timed
    results: list[Any] = [None]

    def call() -> None:
        results[0] = function()

    def outputs() -> list[Array]:
        values = results[0] if isinstance(results[0], tuple | list) else (results[0],)
        return [from_torch(value.contiguous()) for value in values]

    return Loaded(call, outputs, seconds, notes, variant, keep=mode)
