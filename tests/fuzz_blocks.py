"""Random tile programs of blocks through the passes of GPUs: what the interpreter gives before, it gives after.

A case takes a machine, a subset of the optimisations and settings of passes by chance. The distributed form runs under
the checks of its interpreter (races, copies read too early, memory that nobody wrote). A share of the cases goes on: to
PTX and the emulator, or, for AMD GPUs, to an object of LLVM's back end, which is run nowhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp

from tests.random_blocks import FEW, random_blocks
from tests.random_kernels import RandomKernel
from tilewright.codegen.amdgpu import pipeline as amd
from tilewright.codegen.amdgpu import target as amd_target
from tilewright.codegen.nvptx import pipeline, target
from tilewright.codegen.nvptx.simt import LANES
from tilewright.errors import CompileError, InvalidProgram
from tilewright.intrinsics.registry import standard
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.passes.table import OPTIMISATIONS, run_pipeline
from tilewright.kernel.simt_interpreter import ORDERS
from tilewright.kernel.text import parse_module, print_module
from tilewright.kernel.verify import verify
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve
from tilewright.runtime import emulated

NVIDIA = ("sm_75", "sm_80", "sm_90a")
AMD = ("gfx1100", "gfx1201", "gfx942", "gfx950")
MACHINES = (*NVIDIA, *AMD)
SIZES = (8, 8, 16, 24)  # steps of a program
CODE = 0.1  # of the cases
TOGETHER = 0.5  # of the cases; in the others threads run warp by warp, which takes as often the time
VERIFIED = 0.1  # of the cases, after every pass, having been text before: half of the time of these
SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "assign-layouts": {
        "access_bytes": (4, 8, 16),
        "promote": (True, True, False),
        "stage_c": ("auto", "auto", "on", "off"),
    },
    "distribute": {
        "memory": ("swizzled", "padded", "plain"),
        "matrix_loads": (True, False),
        "outer_product": (True, False),
    },
    "swizzle-blocks": {"group": (1, 2, 8)},
    "multicast": {"cluster": (1, 2, 4)},
    "split-k": {"splits": (1, 2, 3)},
    "persistent": {"blocks": (0, 1, 2)},
    "pipeline-loads": {
        "stages": (1, 2, 3, 4),
        "schedule": ("auto", "tensor-core", "load-first"),
        "memory": ("swizzled", "padded", "plain"),
    },
    "pipeline-tensor-copies": {"stages": (1, 2, 4)},
    "allocate-shared": {"least": (0, 64, 1024), "most": (0, 1)},
}


def try_blocks(rng: random.Random, size: int = 0, code: bool | None = None, machines: Sequence[str] = MACHINES) -> None:
    """One case; with `code`, as machine code too (by chance if None). Few steps make a quick one; 0: by chance.

    Raises AssertionError where two results differ or anything is refused: these programs are legal.
    """
    try:
        _run(rng, size or rng.choice(SIZES), code, rng.choice(machines))
    except CompileError as error:
        raise AssertionError(f"a legal program is refused: {error}") from error


def _run(rng: random.Random, size: int, code: bool | None, name: str) -> None:
    large = rng.random() < (0.2 if size >= FEW else 0.05)
    attribute, lanes = with_multiprocessors(name, rng.choice((1, 2, 4)))
    program = random_blocks(rng.randrange(1 << 32), size, intrinsics(name), large)
    wanted = program.outputs()
    program.module.attributes["tile.target"] = attribute
    with np.errstate(all="ignore"):
        run_main(program.module, program.inputs, wanted)
        (disable, settings), each = chosen(rng), rng.random() < VERIFIED / (1 if size >= FEW else 4)
        module = parse_module(print_module(program.module)) if each else program.module
        run_pipeline(module, "gpu", disable, each, lanes, settings)
        if size >= FEW:
            verify(module)
        what = f"{name} without {disable} with {settings}"
        found = program.outputs()
        order = "together" if rng.random() < TOGETHER else rng.choice(ORDERS)
        run_main(module, program.inputs, found, races=True, seed=rng.randrange(99), order=order)
        compare(found, wanted, f"the distributed form for {what}")
        chance = rng.random() < CODE
        if chance if code is None else code:
            try:
                _check_code(module, program, wanted, name in AMD, what)
            except InvalidProgram as error:
                if "bytes of shared memory" not in str(error):
                    raise
                # without all that saves memory a block may not have what these boxes need


def _check_code(module: ModuleOp, program: RandomKernel, wanted: list[Any], for_amd: bool, what: str) -> None:
    """Machine code of a module: right in the emulator; without one, taken by LLVM, as it says of itself."""
    if for_amd:
        made = amd.generate(module)
        for kernel in made.kernels:
            needs = made.resources[kernel.name]
            assert needs.lanes == made.target.lanes, f"code for {what}: {needs}"
            assert needs.shared_bytes in (0, kernel.shared_bytes), f"code for {what}: {needs}"  # 0 where all is unused
        return
    found = program.outputs()
    code = pipeline.generate(module)
    run = emulated.run_module(code, [_plain(x) for x in program.inputs], [_plain(x) for x in found])
    assert not run.diagnostics, f"PTX for {what}: {run.diagnostics[0]}"
    compare(found, wanted, f"PTX for {what}")


@cache
def machine(name: str) -> Gpu:
    found = resolve(name)
    assert isinstance(found, Gpu)
    return found


@cache
def intrinsics(name: str) -> tuple[str, ...]:
    """The instructions of a machine, and what is made of several of one."""
    own = frozenset(machine(name).intrinsics)
    return tuple(record.name for record in standard() if own & {record.name, record.realised_by})


def with_multiprocessors(name: str, multiprocessors: int) -> tuple[DictionaryAttr, int]:
    """A machine with few multiprocessors, so that small grids are more than these, and the lanes of its warps."""
    known = machine(name)
    found = amd_target.target_for(known) if name in AMD else target.target_for(known)
    lanes = found.lanes if isinstance(found, amd_target.Target) else LANES
    return replace(found, facts=replace(found.facts, multiprocessors=multiprocessors)).attribute(), lanes


def chosen(rng: random.Random) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
    """Optimisations to leave out, and settings of passes; half of the time all run."""
    share = rng.choice((0.0, 0.0, 0.2, 0.6))
    disable = tuple(name for name in OPTIMISATIONS if rng.random() < share)
    settings: dict[str, dict[str, Any]] = {}
    for name, own in SETTINGS.items():
        settings[name] = {key: rng.choice(values) for key, values in own.items() if rng.random() < 0.5}
    warps = rng.choice((1, 2, 4, 4, 8))
    for name in ("assign-layouts", "distribute"):
        settings[name]["warps"] = warps
    return disable, settings


def compare(found: list[Any], wanted: list[Any], what: str) -> None:
    """Raise AssertionError where arrays differ; zeros of either sign are equal, any NaN is a NaN."""
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        equal = (one == other) | ((one != one) & (other != other))
        if not equal.all():
            place = int(np.flatnonzero(~equal)[0])
            fact = f"{(~equal).sum()} of {equal.size} elements, [{place}] is {one[place]} instead of {other[place]}"
            raise AssertionError(f"output {number} of {what}: {fact}")


def _plain(array: Any) -> Any:
    """bf16 is the integers of its bits in the emulator."""
    return array.view(np.int16) if array.dtype.name == "bfloat16" else array
