"""One compilation in a process of its own: `worker.py MODEL THREADS` prints its times as JSON.

It imports only what every version of Tilewright has, so that the runner can point it at another checkout by PYTHONPATH.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

#: Phase -> the functions that it consists of, where they are looked up: (module, attribute). One that a version does
#: not have is left out, and its time is then part of "other".
PHASES: dict[str, tuple[tuple[str, str], ...]] = {
    "import": (("tilewright.compiler.compile", "import_any"), ("tilewright.compiler.source", "OnnxModel.graph")),
    "plan": (("tilewright.compiler.compile", "plan_graph"),),
    "lower": (("tilewright.compiler.cpu", "build_module"),),
    "passes": (("tilewright.compiler.cpu", "run_passes"),),
    "emit": (("tilewright.codegen.cpu.pipeline", "llvm_text"), ("tilewright.codegen.cpu.pipeline", "_emit")),
    "llvm": (("tilewright.codegen.cpu.pipeline", "_compiled"),),
    "generate": (("tilewright.codegen.cpu.pipeline", "generate"),),  # emission and LLVM, where that is one function
    "pack": (("tilewright.compiler.program", "Placement.packed"),),
}
WARM_UP = 8  # elements of the tensor whose compilation imports everything


class Clock:
    """CPU seconds inside of wrapped functions, of all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.lock = threading.Lock()

    def wrap(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = time.thread_time() - start
                with self.lock:
                    self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

        return timed


def main(model: str, threads: int) -> dict[str, Any]:
    import tilewright

    options = tilewright.Options(cache=False)
    _warm_up(tilewright, options)
    clock = Clock()
    for phase, places in PHASES.items():
        for place, attribute in places:
            _wrap(clock, phase, place, attribute)
    cpu, wall = time.process_time(), time.perf_counter()
    module = tilewright.compile(model, threads=threads, options=options)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    launches = module.manifest.launches
    return {
        "cpu": cpu,
        "wall": wall,
        "phases": clock.seconds,
        "kernels": len({launch.kernel for launch in launches}),
        "launches": len(launches),
    }


def _wrap(clock: Clock, phase: str, place: str, attribute: str) -> None:
    try:
        owner: Any = importlib.import_module(place)
    except ModuleNotFoundError:
        return
    *path, last = attribute.split(".")
    for name in path:
        owner = getattr(owner, name)
    if hasattr(owner, last):
        setattr(owner, last, clock.wrap(phase, getattr(owner, last)))


def _warm_up(tilewright: Any, options: Any) -> None:
    """Compile one small product, so that the measured compilation imports nothing."""
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [WARM_UP, WARM_UP]) for name in "xy")
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "warm", [x], [y]), opset_imports=[helper.make_opsetid("", 18)])
    onnx.checker.check_model(model)
    tilewright.compile(model, threads=1, options=options)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
