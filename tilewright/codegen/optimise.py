"""LLVM's machines, and its passes over a module in memory; what runs them is freed at once."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

from tilewright.codegen import unlocked
from tilewright.errors import InvalidProgram, Unsupported

LEAST: Final = 22  # the oldest LLVM that code is made for; others may end the process at an intrinsic they do not know


def target_machine(triple: str, **given: Any) -> Any:
    """LLVM's machine for a triple, which is made known to LLVM; `given` are the arguments of `create_target_machine`.

    Raises Unsupported where llvmlite brings an LLVM that is too old, InvalidProgram for a triple it has not.
    """
    if llvm.llvm_version_info[0] < LEAST:
        raise Unsupported(
            f"llvmlite {llvmlite.__version__} brings LLVM {llvm.llvm_version_info[0]}, "
            f"code is made with {LEAST} or newer",
            help="pip install 'llvmlite>=0.50'",
        )
    _initialise()
    try:
        found = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise InvalidProgram(f"LLVM has no target {triple!r}: {error}") from error
    return found.create_target_machine(**given)


@cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def optimise(module: Any, machine: Any) -> None:
    """LLVM's -O3 without its vectorisers and unrolling: both are decided in the tile program."""
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    run_passes(module, machine, options)


def simplify(module: Any, machine: Any) -> None:
    """The LLVM passes that tile programs of CPUs gain from, over every function.

    The tile program comes vectorised, unrolled, hoisted and without stack memory. What is left for LLVM: arithmetic on
    single elements, equal addresses, and loops that test at their ends; then the addresses that these leave. -O3 takes
    three times as long for the same inner loops.
    """
    module.verify()
    with llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3)) as builder:
        manager = llvm.create_new_module_pass_manager()
        manager.add_simplify_cfg_pass()
        manager.add_instruction_combine_pass()
        manager.add_loop_rotate_pass()
        manager.add_new_gvn_pass()
        manager.add_simplify_cfg_pass()
        manager.add_instruction_combine_pass()
        _run(manager, module, builder)


def run_passes(module: Any, machine: Any, options: Any) -> None:
    """Run the pipeline that `options`, from `create_pipeline_tuning_options`, describe."""
    with llvm.create_pass_builder(machine, options) as builder:
        _run(builder.getModulePassManager(), module, builder)


def inline(module: Any, machine: Any) -> None:
    """Inline what is marked `alwaysinline`, and simplify branches: all that LLVM IR written by hand gains from."""
    with llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2)) as builder:
        manager = llvm.create_new_module_pass_manager()
        manager.add_always_inliner_pass()
        manager.add_simplify_cfg_pass()
        _run(manager, module, builder)


def rotate_loops(module: Any, machine: Any) -> None:
    """Let loops test at their ends, while what stands at their heads is no more than tests and phis.

    LLVM's own pipeline comes to it later, when more stands there, and then leaves them.
    """
    with llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1)) as builder:
        manager = llvm.create_new_module_pass_manager()
        manager.add_loop_rotate_pass()
        _run(manager, module, builder)


def _run(manager: Any, module: Any, builder: Any) -> None:
    try:
        unlocked.run(manager, module, builder)
    finally:
        _free(manager)


def _free(manager: Any) -> None:
    """llvmlite 0.50 never frees a pass manager: `ObjectRef`, whose `_dispose` does nothing, precedes `NewPassManager`
    among its bases. That was 75 kB of each compilation.
    """
    NewPassManager._dispose(manager)
    manager.detach()  # whatever else it would free has been
