"""Linking a relocatable object to the code object that a driver loads, where LLVM's linker is found."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tilewright.errors import InvalidProgram

_LINKER = "ld.lld"


@cache
def find() -> str | None:
    """The path of the linker, on PATH."""
    return shutil.which(_LINKER)


def linked(relocatable: bytes) -> bytes | None:
    """The code object; None where no linker is found. InvalidProgram where it refuses the object."""
    program = find()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.o"), Path(folder, "kernel.co")
        source.write_bytes(relocatable)
        done = subprocess.run(
            [program, "-shared", str(source), "-o", str(target)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise InvalidProgram(f"{_LINKER} refuses the object: {(done.stdout + done.stderr).strip()}")
        return target.read_bytes()
