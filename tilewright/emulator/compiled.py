"""Kernels that a compiler hands over with what their launch needs, as Triton does: PTX text and metadata.

Nothing of Triton is imported: an object counts by its attributes, which are ``asm["ptx"]`` and ``metadata`` with
`name`, `num_warps` and `shared`. `load_compiled` makes such an object of the files in Triton's cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.arguments import Argument, Uninitialised
from tilewright.emulator.parser import parse
from tilewright.emulator.syntax import Module
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.files import as_path, read_text

_SCRATCH = ("global_scratch", "profile_scratch")  # pointers behind the parameters of the source, in this order
_ADVICE = "a kernel that Triton compiled for CUDA: asm['ptx'], and metadata with name, num_warps and shared"


@dataclass(frozen=True)
class Compiled:
    """A module with its entry, and what the compiler says of a launch.

    `scratch_bytes` has the bytes that each program gets behind each hidden pointer; a program is a cluster of
    `blocks_per_program` blocks along x.
    """

    module: Module
    entry: str
    threads: int
    shared_bytes: int
    blocks_per_program: int = 1
    scratch_bytes: tuple[int, ...] = ()

    def grid(self, programs: tuple[int, int, int]) -> tuple[int, int, int]:
        """The blocks of a launch of so many programs."""
        return programs[0] * self.blocks_per_program, programs[1], programs[2]

    def arguments(self, args: Sequence[Argument], programs: tuple[int, int, int]) -> list[Argument]:
        """`args` with the hidden pointers behind them. Raises InvalidArgument where there are too many."""
        parameters = self.module.functions[self.entry].parameters
        own = len(parameters) - len(self.scratch_bytes)
        if len(args) > own:
            help = "the arguments of the source in order, without those that are constexpr: these are compiled in"
            raise InvalidArgument(f"{len(args)} arguments, {self.entry} has {own}", where="arguments", help=help)
        blocks = self.blocks_per_program * int(np.prod(programs))
        scratch = [Uninitialised(np.zeros(blocks * size, np.uint8)) if size else None for size in self.scratch_bytes]
        return [*args, *[None] * (own - len(args)), *scratch]


@dataclass(frozen=True)
class _Stored:
    """A kernel of two files, with the attributes of one that was just compiled."""

    asm: Mapping[str, str]
    metadata: Mapping[str, Any]


def compiled(kernel: Any, entry: str = "") -> Compiled:
    """What an object with PTX and metadata says; `entry` instead of the name in its metadata.

    Raises InvalidArgument where something is missing, InvalidPtx for its text.
    """
    asm, metadata = getattr(kernel, "asm", None), getattr(kernel, "metadata", None)
    if asm is None or metadata is None:
        raise InvalidArgument(
            f"a {type(kernel).__name__} is no kernel", where="kernel", help=f"parse(text), or {_ADVICE}"
        )
    if "ptx" not in asm:
        held = ", ".join(asm) or "nothing"
        raise InvalidArgument(
            f"the kernel holds {held}, no ptx", where="kernel.asm", help="compile it for a GPU of NVIDIA"
        )
    name, warps = entry or _of(metadata, "name", str), _of(metadata, "num_warps", int)
    text = asm["ptx"]
    module = parse(text.decode() if isinstance(text, bytes) else text)
    if name not in module.entries:
        entries = ", ".join(module.entries) or "none"
        raise InvalidArgument(
            f"no entry {name!r} in the PTX text", where="kernel.metadata.name", help=f"one of {entries}"
        )
    return Compiled(
        module, name, warps * _of(metadata, "warp_size", int, 32), _of(metadata, "shared", int),
        _of(metadata, "num_ctas", int, 1), _scratch(module, name, metadata),
    )  # fmt: skip


def load_compiled(path: str | os.PathLike[str]) -> _Stored:
    """A kernel of Triton's cache by the path of its metadata, ``NAME.json``, with the text ``NAME.ptx`` beside it.

    Raises InvalidFile where one of the two cannot be read, InvalidArgument for what is no path.
    """
    named = as_path(path, "path")
    try:
        metadata = json.loads(read_text(named))
    except ValueError as error:
        raise InvalidFile(f"no JSON: {error}", where=str(named), help=f"the metadata of {_ADVICE}") from error
    if not isinstance(metadata, dict):
        raise InvalidFile(f"holds a {type(metadata).__name__}", where=str(named), help=f"the metadata of {_ADVICE}")
    return _Stored({"ptx": read_text(named.with_suffix(".ptx"))}, metadata)


def _of(metadata: Any, name: str, kind: type, default: Any = None) -> Any:
    """An entry of the metadata, which is an object or a mapping."""
    value: Any = metadata.get(name, default) if isinstance(metadata, Mapping) else getattr(metadata, name, default)
    if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        fact = f"metadata has no {name}" if value is None else f"metadata.{name} is {value!r}"
        raise InvalidArgument(fact, where="kernel", help=_ADVICE)
    return value


def _scratch(module: Module, entry: str, metadata: Any) -> tuple[int, ...]:
    """Bytes behind each hidden pointer: Triton adds those whose size its metadata gives."""
    named = [f"{name}_size" for name in _SCRATCH]
    held = [name for name in named if (name in metadata if isinstance(metadata, Mapping) else hasattr(metadata, name))]
    sizes = [_of(metadata, name, int) for name in held]
    return tuple(sizes[: len(module.functions[entry].parameters)])
