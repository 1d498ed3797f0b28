"""PyTorch whose MKL takes this processor for its own vendor's, and uses the instructions it has.

MKL asks `mkl_serv_intel_cpu_true` which code it may use; a preloaded library that always says yes lifts that check.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.torch import Torch

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


@dataclass(frozen=True)
class TorchLifted(Torch):
    name: str = "torch_lifted"

    def missing(self) -> str:
        if reason := super().missing():
            return reason
        if _vendor() != "AuthenticAMD":
            return "MKL's vendor check only concerns AMD processors"
        return "" if shutil.which("gcc") else "gcc, which builds the preloaded library, is not installed"

    def environment(self, cores: Sequence[int], scratch: Path) -> dict[str, str]:
        library = scratch / "lift_vendor_check.so"
        if not library.exists():
            source = library.with_suffix(".c")
            source.write_text(SOURCE)
            subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
        return {**super().environment(cores, scratch), "LD_PRELOAD": str(library)}


def _vendor() -> str:
    processor = Path("/proc/cpuinfo")
    lines = processor.read_text().splitlines() if processor.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")
