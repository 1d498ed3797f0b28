"""Runs AArch64 objects on another machine: a small program around `tw_main`, linked statically, under qemu-user."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.codegen.cpu.pipeline import ObjectCode

Array = np.ndarray[Any, Any]
TOOLS = ("qemu-aarch64", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld")


def missing() -> str:
    """What this machine lacks to run AArch64 code; empty if nothing."""
    return ", ".join(tool for tool in TOOLS if shutil.which(tool) is None)


def run_aarch64(
    made: ObjectCode, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path, constants: bytes = b""
) -> list[Array]:
    """What an object computes; `outputs` give dtypes and shapes. Uses `folder` for files."""
    emulator, assembler, linker = TOOLS
    (folder / "code.o").write_bytes(made.code)
    (folder / "constants").write_bytes(constants)
    for number, array in enumerate(inputs):
        (folder / f"input{number}").write_bytes(array.tobytes())
    sizes = [array.nbytes for array in outputs]
    (folder / "start.s").write_text(_program(len(inputs), sizes, made.arena_bytes, made.scratch_bytes))
    for command in (
        [assembler, "-o", "start.o", "start.s"],
        [linker, "-e", "start", "-o", "program", "start.o", "code.o"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=60)
    run = subprocess.run([emulator, str(folder / "program")], check=True, capture_output=True, timeout=120)
    assert len(run.stdout) == sum(sizes)
    found, place = [], 0
    for output in outputs:
        part = run.stdout[place : place + output.nbytes]
        found.append(np.frombuffer(part, output.dtype).reshape(output.shape))
        place += output.nbytes
    return found


def _program(inputs: int, output_sizes: Sequence[int], arena_bytes: int, scratch_bytes: int) -> str:
    """`start` runs `tw_main` on one thread, writes the outputs to the standard output, and exits with its status."""
    lines = [".text", ".global start", "start:", "  ldr x0, =call", "  bl tw_main", "  mov w19, w0"]
    for number, size in enumerate(output_sizes):  # write(1, output, size) in one piece: the reader empties the pipe
        lines += [f"  mov x0, 1; ldr x1, =output{number}; ldr x2, ={size}; mov x8, 64; svc 0"]
    lines += ["  mov w0, w19; mov x8, 93; svc 0"]  # exit
    lines += ["parallel:", "  mov x9, x1; mov x0, x2; mov x1, 0; mov x2, 0; br x9", ".ltorg", ".data"]
    for name in ("constants", *(f"input{number}" for number in range(inputs))):
        lines += [".balign 64", f'{name}: .incbin "{name}"', "  .skip 64"]
    for kind, count in (("input", inputs), ("output", len(output_sizes))):
        lines += [".balign 8", f"{kind}s: .quad {', '.join([*(f'{kind}{n}' for n in range(count)), '0'])}"]
    lines += ["call: .quad inputs, outputs, constants, arena, scratch, parallel, 0, 0", ".bss"]
    spaces = {f"output{number}": size for number, size in enumerate(output_sizes)}
    for name, size in {**spaces, "arena": arena_bytes, "scratch": scratch_bytes}.items():
        lines += [".balign 64", f"{name}: .skip {size + 1}"]
    return "\n".join([*lines, ""])
