"""LLVM's passes over the code of kernels for GPUs."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

from tilewright.codegen.optimise import run_passes


def optimise(module: Any, machine: Any) -> None:
    """LLVM's -O3 without its vectorisers and unrolling: both are decided in the tile program."""
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    run_passes(module, machine, options)
