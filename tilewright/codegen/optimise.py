"""LLVM's passes over a module in memory; what runs them is freed at once."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager


def run_passes(module: Any, machine: Any, options: Any) -> None:
    """Run the pipeline that `options`, from `create_pipeline_tuning_options`, describe.

    llvmlite 0.50 never frees a pass manager: `ObjectRef`, whose `_dispose` does nothing, precedes `NewPassManager`
    among its bases. That was 75 kB of each compilation.
    """
    with llvm.create_pass_builder(machine, options) as builder:
        manager = builder.getModulePassManager()
        try:
            manager.run(module, builder)
        finally:
            NewPassManager._dispose(manager)
            manager.detach()  # whatever else it would free has been
