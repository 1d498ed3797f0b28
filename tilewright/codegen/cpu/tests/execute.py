"""Runs a tile program as machine code, so that tests can hold it against the interpreter."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from xdsl.dialects.builtin import MemRefType, ModuleOp

from tilewright.codegen.cpu.pipeline import ObjectCode, generate
from tilewright.codegen.cpu.target import Target, described
from tilewright.expr import dtypes
from tilewright.kernel import dialect as tile
from tilewright.kernel.elements import dtype_of
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.memory import allocate
from tilewright.runtime.module import Module

Array = np.ndarray[Any, Any]


def target(machine: str = "host") -> Target:
    return described(resolve_cpu(machine))


def aimed(program: ModuleOp, machine: str = "host") -> ModuleOp:
    """A copy of a program that names a machine as its target."""
    copy = parse_module(print_module(program))
    copy.attributes[ATTRIBUTE] = target(machine).attribute()
    return copy


def compile_program(program: ModuleOp, machine: str = "host") -> ObjectCode:
    return generate(aimed(program, machine))


def run_program(program: ModuleOp, inputs: Sequence[Array], machine: str = "host", threads: int = 1) -> list[Array]:
    """The outputs of a program without constants, flat."""
    made = compile_program(program, machine)
    main = next(op for op in program.body.block.ops if isinstance(op, tile.MainOp))
    specs: dict[str, dict[int, TensorSpec]] = {"input": {}, "output": {}}
    for op in main.body.block.ops:
        if isinstance(op, tile.BufferOp) and op.space.data in specs:
            type_, number = op.result.type, op.index.value.data
            assert isinstance(type_, MemRefType)
            dtype = dtypes.from_numpy(dtype_of(type_))
            specs[op.space.data][number] = TensorSpec(f"{op.space.data}{number}", dtype, type_.get_shape())
    cpu = resolve_cpu(machine)
    manifest = Manifest(
        name="program",
        inputs=tuple(spec for _, spec in sorted(specs["input"].items())),
        outputs=tuple(spec for _, spec in sorted(specs["output"].items())),
        features=tuple(sorted(cpu.features)),
        triple=made.target.triple,
        **made.parts(),
    )
    artifact = Artifact(manifest, made.code, allocate(made.constants_bytes), print_module(program), "{}", "{}")
    found = Module(artifact, threads=threads, options=replace(Options(), cache=False))(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def undefined_symbols(code: bytes) -> list[str]:
    """Names that an ELF object needs from elsewhere."""
    (sections_at,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, sections_at + number * size) for number in range(count)]
    found = []
    for _, kind, _, _, start, length, link, _, _, entry in sections:
        if kind != 2:  # the symbol table
            continue
        names_at = sections[link][4]
        for place in range(start, start + length, entry):
            name, _, _, section = struct.unpack_from("<IBBH", code, place)
            if section == 0 and name:
                end = code.index(b"\0", names_at + name)
                found.append(code[names_at + name : end].decode())
    return found
