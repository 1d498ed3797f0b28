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
from bench.peers.choice import fastest_form
from bench.problem import Loaded, Task

NARROW = (BF16, np.dtype(np.uint8))  # element types for which it matters what a model is really computed in


@dataclass(frozen=True)
class OpenVino:
    name: str = "openvino"

    def missing(self) -> str:
        return "" if importlib.util.find_spec("openvino") else "openvino is not installed"

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        return {"OPENVINO_TELEMETRY_DISABLE": "1"}

    def load(self, task: Task) -> Loaded:
        return fastest_form(self._load_form, task)

    def _load_form(self, task: Task) -> Loaded:
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

        call()  # chooses kernels
        notes = _products(compiled) if any(array.dtype in NARROW for array in inputs.values()) else ""
        return Loaded(call, lambda: list(outputs.values()), compile_seconds, notes, keep=inputs)

    def version(self) -> str:
        import openvino as ov

        return f"openvino {ov.__version__}"


def _products(compiled: Any) -> str:
    """The kernels that compute the products of a compiled model: what it was given and what runs may differ in type."""
    kernels = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        facts = {key: value.value for key, value in node.get_rt_info().items()}
        if facts["layerType"] in ("Convolution", "FullyConnected", "MatMul"):
            kernels.append(facts["primitiveType"])
    return "runs " + ", ".join(kernels)


def _tensor(array: Array) -> Any:
    """A tensor over the memory of `array`."""
    import openvino as ov

    if array.dtype == BF16:
        return ov.Tensor(array.view(np.uint16), list(array.shape), ov.Type.bf16)
    return ov.Tensor(array, shared_memory=True)
