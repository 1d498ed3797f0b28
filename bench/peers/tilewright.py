"""This project, through its Python interface; the compile cache is off, so that compile times are real."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.problem import Loaded, SkippedError, Task


@dataclass(frozen=True)
class Tilewright:
    name: str = "tilewright"

    def missing(self) -> str:
        return "" if importlib.util.find_spec("tilewright") else "the package tilewright is not installed"

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        return {"TILEWRIGHT_CACHE": "0", "OMP_NUM_THREADS": str(len(cores))}

    def load(self, task: Task) -> Loaded:
        import tilewright

        if not hasattr(tilewright, "compile"):
            raise SkippedError("this version of tilewright has no compile()")
        start = time.perf_counter()
        module = tilewright.compile(str(task.model_path), threads=len(task.cores))
        compile_seconds = time.perf_counter() - start
        inputs = list(task.inputs().values())
        outputs = list(task.output_buffers().values())
        out = outputs[0] if len(outputs) == 1 else tuple(outputs)
        return Loaded(lambda: module(*inputs, out=out), lambda: outputs, compile_seconds)

    def version(self) -> str:
        from importlib import metadata

        try:
            return f"tilewright {metadata.version('tilewright')}"
        except metadata.PackageNotFoundError:
            return "tilewright (source tree)"
