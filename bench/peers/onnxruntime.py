"""ONNX Runtime's CPU provider, all optimisations on, inputs and outputs bound to arrays once."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.arrays import BF16
from bench.peers.choice import fastest_form
from bench.problem import Loaded, SkippedError, Task


@dataclass(frozen=True)
class OnnxRuntime:
    name: str = "onnxruntime"

    def missing(self) -> str:
        return "" if importlib.util.find_spec("onnxruntime") else "onnxruntime is not installed"

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        return {}

    def load(self, task: Task) -> Loaded:
        return fastest_form(self._load_form, task)

    def _load_form(self, task: Task) -> Loaded:
        import onnxruntime as ort

        inputs = task.inputs()
        if any(array.dtype == BF16 for array in inputs.values()):
            raise SkippedError("the CPU provider has no bfloat16 products")
        options = ort.SessionOptions()
        options.intra_op_num_threads = len(task.cores)
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if len(task.cores) > 1:  # the caller is the first thread; processors are counted from 1 here
            affinities = ";".join(str(core + 1) for core in task.cores[1:])
            options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
            options.add_session_config_entry("session.force_spinning_stop", "1")  # spin in a call, not between calls
        start = time.perf_counter()
        session = ort.InferenceSession(str(task.model_path), options, providers=["CPUExecutionProvider"])
        compile_seconds = time.perf_counter() - start

        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        outputs = task.output_buffers()
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        run = session.run_with_iobinding
        return Loaded(lambda: run(binding), lambda: list(outputs.values()), compile_seconds, keep=inputs)

    def version(self) -> str:
        import onnxruntime as ort

        return f"onnxruntime {ort.__version__}"
