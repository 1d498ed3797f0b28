"""What the matrix units of a GPU compute: results of single instructions on random operands, in a file.

    python -m bench.gpu.arithmetic --out mma.npz            # on a machine with a GPU
    python -m bench.gpu.arithmetic --compare mma.npz        # anywhere: the emulator on the same operands

PTX ISA leaves open how `mma` adds and rounds. The file has the operands and results of every warp as raw registers, so
that a model of the additions can be fitted to it without the GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
WARPS, LANES = 128, 32
SPREADS = (0, 1, 2, 4, 7)  # largest distance of exponents from 0; warps take them in turns


@dataclass(frozen=True)
class Instruction:
    """An `mma` by its opcode, the 32-bit registers of a lane for each operand, and their element types."""

    opcode: str
    registers: tuple[int, int, int]  # of a, b, c; d is as c
    inputs: str
    sums: str

    @property
    def name(self) -> str:
        return self.opcode.removeprefix("mma.sync.aligned.").replace(".", "_")


INSTRUCTIONS = (
    Instruction("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (4, 2, 4), "f16", "f32"),
    Instruction("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", (4, 2, 4), "bf16", "f32"),
    Instruction("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", (2, 1, 4), "f16", "f32"),
    Instruction("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", (4, 2, 4), "tf32", "f32"),
    Instruction("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", (2, 1, 4), "tf32", "f32"),
    Instruction("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", (4, 2, 2), "f16", "f16"),
    Instruction("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", (4, 2, 4), "f8e4m3fn", "f32"),
    Instruction("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", (2, 2, 4), "f64", "f64"),
    Instruction("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", (16, 8, 8), "f64", "f64"),
)


def ptx(instruction: Instruction) -> str:
    """A kernel of one warp per block: registers of a, b and c from memory, the instruction, d to memory."""
    wide = instruction.sums == "f64"
    bytes_, letter = (8, "fd") if wide else (4, "r")
    count = [each // 2 if wide else each for each in (*instruction.registers, instruction.registers[2])]
    load, move = ("f64", "f64") if wide else ("b32", "f32" if instruction.sums == "f32" else "b32")
    names = [[f"%{operand}{number}" for number in range(many)] for operand, many in zip("abcd", count, strict=True)]
    kinds = [load, load, move, move]
    lines = [
        ".version 8.4", ".target sm_90", ".address_size 64", "",
        ".visible .entry mma(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)", "{",
        "  .reg .b32 %lane, %warp;", "  .reg .b64 %at, %base;",
    ]  # fmt: skip
    for kind, operand in zip(kinds, names, strict=True):
        lines += [f"  .reg .{kind} {name};" for name in operand]
    lines += ["  mov.u32 %lane, %tid.x;", "  mov.u32 %warp, %ctaid.x;"]
    for letter, kind, operand in zip("abcd", kinds, names, strict=True):
        step = LANES * bytes_
        lines += [
            f"  ld.param.u64 %base, [p{letter}];",
            f"  mad.wide.u32 %at, %warp, {len(operand) * step}, %base;",
            f"  mad.wide.u32 %at, %lane, {bytes_}, %at;",
        ]
        if letter == "d":
            listed = ", ".join("{" + ", ".join(each) + "}" for each in (names[3], *names[:3]))
            lines.append(f"  {instruction.opcode} {listed};")
            lines += [f"  st.global.{kind} [%at+{number * step}], {name};" for number, name in enumerate(operand)]
        else:
            lines += [f"  ld.global.{kind} {name}, [%at+{number * step}];" for number, name in enumerate(operand)]
    return "\n".join([*lines, "  ret;", "}", ""])


def operands(instruction: Instruction, warps: int = WARPS, seed: int = 0) -> list[Array]:
    """Raw words of a, b and c, each [warp, register, lane]: numbers of random signs and mantissas, exponents in a range
    that grows from warp to warp.
    """
    random, made = np.random.default_rng(seed), []
    kinds = (instruction.inputs, instruction.inputs, instruction.sums)
    for kind, count in zip(kinds, instruction.registers, strict=True):
        shape = (warps, count * LANES * 4 // _BYTES[kind])
        spread = np.resize(np.asarray(SPREADS), warps)[:, None]
        made.append(_raw(numbers(random, shape, spread), kind).reshape(warps, -1, LANES))
    return made


def numbers(random: np.random.Generator, shape: tuple[int, ...], spread: Any) -> Array:
    """Numbers of random signs and mantissas, exponents up to `spread` from 0."""
    signs, mantissas = random.choice([-1.0, 1.0], shape), random.uniform(1, 2, shape)
    return np.asarray(signs * mantissas * 2.0 ** np.rint(random.uniform(-1, 1, shape) * spread))


_BYTES = {"f64": 8, "f32": 4, "tf32": 4, "f16": 2, "bf16": 2, "f8e4m3fn": 1}


def _raw(values: Array, kind: str) -> Array:
    """Words of numbers; tf32 has 13 zero bits below its mantissa."""
    if kind == "f64":
        return np.ascontiguousarray(values).view(np.uint64)
    types: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f8e4m3fn": ml_dtypes.float8_e4m3fn}
    words = np.ascontiguousarray(values.astype(types.get(kind, np.float32))).view(np.uint32)
    return words & np.uint32(0xFFFFE000) if kind == "tf32" else words


def run(instruction: Instruction, given: list[Array], device: str) -> Array:
    """Words of d from the GPU or the emulator."""
    found = np.zeros_like(given[2])
    if device == "emulator":
        from tilewright import emulator

        emulator.run(emulator.parse(ptx(instruction)), "mma", (len(found), 1, 1), (LANES, 1, 1), [*given, found])
        return found
    from tilewright.codegen.host_program import Kernel
    from tilewright.runtime.cuda.devices import open_driver
    from tilewright.runtime.cuda.driver import Slot

    driver = open_driver("cuda")
    library = driver.load(ptx(instruction).encode())
    slots = [Slot("argument", array.nbytes) for array in (*given, found)]
    for slot, array in zip(slots, (*given, found), strict=True):
        slot.word.value = driver.allocate(array.nbytes)
        driver.upload(slot.word.value, array.ctypes.data, array.nbytes, 0)
    kernel = Kernel("mma", "mma", (len(found), 1, 1), (LANES, 1, 1), 0)
    driver.launch(driver.prepare(library, kernel, slots), 0)
    driver.synchronize(0)
    driver.download(found.ctypes.data, slots[3].word.value, found.nbytes, 0)
    return found


def compare(path: Path) -> Iterator[tuple[str, Array]]:
    """Every instruction of a file, and which words of its results the emulator has too."""
    with np.load(path) as stored:
        for instruction in INSTRUCTIONS:
            given = [stored[f"{instruction.name}.{letter}"] for letter in "abcd"]
            yield instruction.name, np.asarray(run(instruction, given[:3], "emulator") == given[3])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.arithmetic", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="run on the GPU and write operands and results")
    parser.add_argument("--warps", type=int, default=WARPS, help=f"of each instruction (default: {WARPS})")
    parser.add_argument("--compare", type=Path, help="run the emulator on the operands of a file and compare")
    parser.add_argument("--device", choices=("cuda", "emulator"), default="cuda", help="where --out runs")
    options = parser.parse_args(arguments)
    if options.out is not None:
        stored: dict[str, Array] = {}
        for instruction in INSTRUCTIONS:
            given = operands(instruction, options.warps)
            given.append(run(instruction, given, options.device))
            stored |= {f"{instruction.name}.{letter}": array for letter, array in zip("abcd", given, strict=True)}
        np.savez_compressed(options.out, **stored)  # type: ignore[arg-type]
    if options.compare is not None:
        for name, same in compare(options.compare):
            print(f"{name}: {int(same.sum())} of {same.size} words are the same")
    return 0


if __name__ == "__main__":
    sys.exit(main())
