"""Check PTX with NVIDIA's assembler, where one is found: what a kernel takes of registers and memory."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidProgram

_WARNING = re.compile(r"^(?:ptxas\b.*?)?(?:warning *: *|info *: *(?=\(C\d+\)))(.*)$", re.MULTILINE)  # or the driver's
_PACKAGES = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu13", "nvidia-cuda-nvcc-cu12")


@dataclass(frozen=True)
class Resources:
    """What `ptxas` says of an entry: registers per thread, bytes spilled (stored and loaded) and on the stack, static
    shared memory, and warnings, such as of products that it makes wait for each other.
    """

    registers: int
    spills: int
    stack_bytes: int
    shared_bytes: int
    warnings: tuple[str, ...] = ()


@cache
def find() -> str | None:
    """The path of `ptxas`: on PATH, or in an installed package."""
    found = shutil.which("ptxas")
    if found is not None:
        return found
    from importlib import metadata

    for package in _PACKAGES:
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == "ptxas":
                return str(file.locate())
    return None


def check(ptx: str, arch: str) -> dict[str, Resources] | None:
    """Resources of every entry, by name; None where no assembler is found. InvalidProgram where it refuses the text."""
    program = find()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [program, "-v", f"-arch={arch}", str(source), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    if done.returncode:
        raise InvalidProgram(f"ptxas refuses the PTX for {arch}: {report.strip()}")
    return parsed(report)


def parsed(report: str) -> dict[str, Resources]:
    """Resources of every entry in what ``ptxas -v`` prints. A warning that names no entry is one of each."""
    found: dict[str, Resources] = {}
    parts = report.split("Compiling entry function '")[1:]
    names = [part[: part.index("'")] for part in parts]
    said = warnings(report)
    for name, part in zip(names, parts, strict=True):
        others = {f"'{other}'" for other in names if other != name}

        def number(pattern: str, text: str = part) -> int:
            return sum(map(int, re.findall(pattern, text)))

        found[name] = Resources(
            number(r"Used (\d+) registers"),
            number(r"(\d+) bytes spill (?:stores|loads)"),
            number(r"(\d+) bytes stack frame"),
            number(r"(\d+) bytes smem"),
            tuple(line for line in said if f"'{name}'" in line or not any(other in line for other in others)),
        )
    return found


def warnings(report: str) -> tuple[str, ...]:
    """What the assembler warns of: its warnings, and what it calls a potential loss of performance."""
    return tuple(dict.fromkeys(match[1].strip() for match in _WARNING.finditer(report)))
