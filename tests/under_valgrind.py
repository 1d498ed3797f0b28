"""Cache misses and memory accesses of a C program by valgrind, where that and a C compiler are installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tilewright.machine.description import Cache

needs_valgrind = pytest.mark.skipif(
    not (shutil.which("valgrind") and shutil.which("cc")), reason="needs valgrind and a C compiler"
)


def cachegrind(source: str, macros: Mapping[str, int], caches: Sequence[Cache], folder: Path) -> tuple[int, int]:
    """Misses of data in the first and in the last of two caches, in the function `counted` of a program.

    The program begins `counted` with none of the lines that it accesses in a cache.
    """
    output = folder / "cachegrind.out"
    sizes = [f"{each.bytes},{each.lines_per_set},{each.line_bytes}" for each in caches]
    _valgrind(
        source, macros, folder, "--tool=cachegrind", "--cache-sim=yes", f"--D1={sizes[0]}", f"--LL={sizes[1]}",
        "--I1=32768,8,64", f"--cachegrind-out-file={output}",
    )  # fmt: skip
    return _misses(output.read_text())


def accesses(source: str, macros: Mapping[str, int], line_bytes: int, folder: Path) -> list[tuple[int, int]]:
    """The lines that a program reads (0) or writes (1) of the memory whose begin and end it prints, in order.

    Lines have numbers from its begin on. An access that is equal to the one before is left out.
    """
    log = folder / "lackey.out"
    printed = _valgrind(source, macros, folder, "--tool=lackey", "--trace-mem=yes", f"--log-file={log}")
    begin, end = (int(word, 16) for word in printed.split())
    found: list[tuple[int, int]] = []
    for line in log.read_text().splitlines():
        if line[:3] in (" L ", " S ", " M "):
            address = int(line[3:].partition(",")[0], 16)
            access = ((address - begin) // line_bytes, int(line[1] != "L"))
            if begin <= address < end and found[-1:] != [access]:
                found.append(access)
    return found


def _valgrind(source: str, macros: Mapping[str, int], folder: Path, *options: str) -> str:
    """What a program prints that runs under a tool of valgrind."""
    program = folder / "program"
    program.with_suffix(".c").write_text(source)
    defined = [f"-D{name}={value}" for name, value in macros.items()]
    subprocess.run(["cc", "-O1", "-g", *defined, "-o", program, program.with_suffix(".c")], check=True)
    return subprocess.run(["valgrind", *options, program], check=True, capture_output=True, text=True).stdout


def _misses(text: str) -> tuple[int, int]:
    """The events D1mr and D1mw, DLmr and DLmw, summed over the lines inside `counted`.

    Its first and its last line, where registers are saved and where it returns, access the stack.
    """
    names: list[str] = []
    lines: dict[int, dict[str, int]] = {}
    inside = False
    for line in text.splitlines():
        if line.startswith("events:"):
            names = line.split()[1:]
        elif line.startswith("fn="):
            inside = line == "fn=counted"
        elif inside and line[:1].isdigit():
            number, *events = map(int, line.split())
            lines[number] = dict(zip(names, events, strict=False))
    body = [lines[number] for number in sorted(lines)[1:-1]]
    first, last = (
        sum(each.get(name, 0) for each in body for name in (f"{level}mr", f"{level}mw")) for level in ("D1", "DL")
    )
    return first, last
