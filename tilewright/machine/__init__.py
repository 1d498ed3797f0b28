"""Machines as data: what a target has and how fast it is, read from files or found on the host."""

from tilewright.machine.description import (
    Accelerator,
    Cache,
    Compute,
    Cpu,
    Dram,
    Gpu,
    Level,
    Llvm,
    Machine,
    missing_features,
)
from tilewright.machine.detect import host
from tilewright.machine.registry import machine_from_json, names, resolve, resolve_cpu

__all__ = [
    "Accelerator", "Cache", "Compute", "Cpu", "Dram", "Gpu", "Level", "Llvm", "Machine",
    "host", "machine_from_json", "missing_features", "names", "resolve", "resolve_cpu",
]  # fmt: skip
