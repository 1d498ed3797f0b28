"""OpenVINO's CPU device, one stream, held to the precision of the case (by itself it would compute f32 in bf16)."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.arrays import BF16, Array
from bench.problem import Loaded, Task


@dataclass(frozen=True)
class OpenVino:
    name: str = "openvino"

    def missing(self) -> str:
        return "" if importlib.util.find_spec("openvino") else "openvino is not installed"

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        return {"OPENVINO_TELEMETRY_DISABLE": "1"}

    def load(self, task: Task) -> Loaded:
        import openvino as ov

        inputs = task.inputs()
        outputs = task.output_buffers()
        narrow = any(array.dtype == BF16 for array in inputs.values())
        properties = {
            "INFERENCE_NUM_THREADS": len(task.cores),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": True,
            "INFERENCE_PRECISION_HINT": "bf16" if narrow else "f32",
        }
        start = time.perf_counter()
        compiled = ov.Core().compile_model(str(task.model_path), "CPU", properties)
        request = compiled.create_infer_request()
        compile_seconds = time.perf_counter() - start
        for name, array in inputs.items():
            request.set_tensor(name, _tensor(array))
        for name, array in outputs.items():
            request.set_tensor(name, _tensor(array))

        def call() -> None:
            request.start_async()
            request.wait()

        return Loaded(call, lambda: list(outputs.values()), compile_seconds, keep=inputs)

    def version(self) -> str:
        import openvino as ov

        return f"openvino {ov.__version__}"


def _tensor(array: Array) -> Any:
    """A tensor over the memory of `array`."""
    import openvino as ov

    if array.dtype == BF16:
        return ov.Tensor(array.view(np.uint16), list(array.shape), ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)
