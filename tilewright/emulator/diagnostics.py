"""What a run finds wrong with a kernel: one `Diagnostic` per kind and instruction, with the first case in full."""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from tilewright.dataclass import dataclass
from tilewright.emulator.errors import Place

#: Every kind of diagnostic, and what it means.
KINDS: dict[str, str] = {
    "out-of-bounds": "an access outside of every buffer, of shared memory or of a thread's local memory",
    "misaligned": "an address that is no multiple of the bytes accessed",
    "race": "two threads touch the same bytes of shared memory, one of them writes, and nothing orders them",
    "uninitialised": "memory is read that nothing wrote",
    "undefined-value": "a register that nothing defined decides a branch, is an address, or is stored to global memory",
    "barrier-divergence": "threads of a warp or block do not reach the same barrier or collective instruction",
    "early-read": "the destination of an asynchronous copy or product is used before the wait that covers it",
    "overwritten": "memory or registers are written while an asynchronous operation still uses them",
    "missing-fence": "the asynchronous proxy or a matrix product uses what no fence has made visible to it",
    "mbarrier": "an mbarrier that is not initialised, gets too many arrivals, or is waited for in a wrong phase",
    "bad-operand": "a descriptor, tensor map, mask or size that the instruction does not allow",
    "read-only": "a store to constant or parameter memory",
    "not-constant": "bytes of global memory that a launch both writes and loads with .nc, as if they were constant",
    "too-early": "global memory is touched before the griddepcontrol.wait of the kernel, while others may still run",
    "trap": "a trap or a failed assertion",
    "deadlock": "no thread can go on",
    "no-end": "the limit of executed instructions was reached",
}


@dataclass
class Diagnostic:
    """One defect: its kind, the instruction, and the first thread that showed it; `times` counts all cases."""

    kind: str
    message: str
    place: Place
    instruction: str
    source: str = ""
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None
    address: int | None = None
    space: str = ""
    times: int = 1

    def __str__(self) -> str:
        return self.within("PTX")

    def within(self, file: str) -> str:
        """In words, with the name of the file that holds the PTX text."""
        who = f" by thread {self.thread} of block {self.block}" if self.thread is not None else ""
        source = f" ({self.source})" if self.source else ""
        more = f" [{self.times} times]" if self.times > 1 else ""
        return f"{file}:{self.place}{source}: {self.kind}: {self.message}{who}{more}\n    {self.instruction}"

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        del value["place"]
        return {**value, "line": self.place.line, "column": self.place.column}


@dataclass
class Diagnostics:
    """Collects diagnostics; equal ones at the same instruction are counted, not repeated."""

    lines: tuple[str, ...]
    files: dict[int, str]
    found: dict[tuple[str, int, int], Diagnostic] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        place: Place,
        message: str,
        *,
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
        address: int | None = None,
        space: str = "",
        times: int = 1,
    ) -> None:
        assert kind in KINDS, f"unknown kind of diagnostic {kind!r}"
        known = self.found.get((kind, place.line, place.column))
        if known is not None:
            known.times += times
            return
        source = ""
        if place.source is not None:
            number, line, column = place.source
            source = f"{self.files.get(number, f'file {number}')}:{line}:{column}"
        text = self.lines[place.line - 1].split("//")[0].strip() if 0 < place.line <= len(self.lines) else ""
        self.found[kind, place.line, place.column] = Diagnostic(
            kind, message, place, text, source, block, thread, address, space, times
        )  # fmt: skip
