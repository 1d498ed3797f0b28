"""What the kernels of a test session take: `ptxas` says it of those that tests show to it, with a file of all of them.

`install` observes code as it is generated and assembled; `KernelReport.rows` are plain values, which workers of
pytest-xdist hand to the session that they are part of.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_MOST = 5  # kernels that a line names


class KernelReport:
    """Every kernel once, by its code and name: `arch`, `kernel`, `test`, and if `ptxas` saw it what it takes.

    `assemble`: show all code to `ptxas`, so that a test fails whose kernels it refuses.
    """

    def __init__(self, assemble: bool = False) -> None:
        self.assemble = assemble
        self.test = ""
        self.found: dict[tuple[str, str], Row] = {}

    @property
    def rows(self) -> list[Row]:
        return [{**row, "code": code} for (code, _), row in self.found.items()]

    def merge(self, rows: Sequence[Row]) -> None:
        for row in rows:
            known = self.found.get((row["code"], row["kernel"]))
            if known is None or not known["seen"]:
                self.found[row["code"], row["kernel"]] = {name: row[name] for name in row if name != "code"}

    def generated(self, code: Any) -> None:
        """Note the kernels of a `PtxCode`."""
        digest = _digest(code.ptx)
        known = [self.found.get((digest, kernel.entry)) for kernel in code.kernels]
        for kernel, row in zip(code.kernels, known, strict=True):
            if row is None:
                self.found[digest, kernel.entry] = {
                    "kernel": kernel.entry, "arch": code.target.cpu, "test": self.test, "seen": False,
                    "shared_bytes": kernel.shared_bytes,
                }  # fmt: skip
        if self.assemble and any(row is None or not row["seen"] for row in known):
            from tilewright.codegen.nvptx import ptxas

            ptxas.check(code.ptx, code.target.cpu)

    def assembled(self, ptx: str, resources: Any) -> None:
        """Note what `ptxas.check` gave."""
        digest = _digest(ptx)
        for name, taken in (resources or {}).items():
            row = self.found.get((digest, name))
            if row is not None:  # else text that a test wrote by hand
                row.update(seen=True, registers=taken.registers, spills=taken.spills, stack_bytes=taken.stack_bytes,
                           warnings=list(taken.warnings))  # fmt: skip

    def lines(self) -> list[str]:
        """A few lines for the end of a session; none where no kernel was made."""
        rows = list(self.found.values())
        seen = [row for row in rows if row["seen"]]
        if not rows:
            return []
        made = [f"{len(rows)} kernels were compiled, ptxas saw {len(seen)}"]
        for what, unit in (("registers", "registers"), ("shared_bytes", "bytes of shared memory")):
            if seen:
                most = max(seen, key=lambda row: row[what])
                made.append(f"at most {most[what]} {unit}: {_named(most)}")
        spilling = sorted((row for row in seen if row["spills"]), key=lambda row: -row["spills"])
        warned = [row for row in seen if row["warnings"]]
        made.append(f"{len(spilling)} spill registers" if seen else "no kernel was shown to ptxas")
        made += [f"  {row['spills']} bytes: {_named(row)}" for row in spilling[:_MOST]]
        made += [f"warned of: {_named(row)}: {row['warnings'][0]}" for row in warned[:_MOST]]
        return made

    def write(self, path: Path) -> None:
        """All kernels as JSON, those that spill most first."""
        rows = sorted(self.rows, key=lambda row: (-row.get("spills", 0), row["arch"], row["kernel"], row["code"]))
        path.write_text(json.dumps(rows, indent=1) + "\n")


def install(report: KernelReport) -> bool:
    """Let a report observe the code that is generated and assembled from now on; False where nothing can be yet.

    Tests that generate no code import no generator, and this imports none for them.
    """
    if "tilewright.codegen.nvptx.pipeline" not in sys.modules and not report.assemble:
        return False
    from tilewright.codegen.nvptx import pipeline as nvptx
    from tilewright.codegen.nvptx import ptxas

    pipeline: Any = nvptx
    made, checked = pipeline.PtxCode.__init__, ptxas.check

    def noted(code: Any, *given: Any, **named: Any) -> None:
        made(code, *given, **named)
        report.generated(code)

    def check(ptx: str, arch: str) -> Any:
        resources = checked(ptx, arch)
        report.assembled(ptx, resources)
        return resources

    pipeline.PtxCode.__init__ = noted
    ptxas.check = check
    return True


def _digest(ptx: str) -> str:
    return hashlib.sha256(ptx.encode()).hexdigest()[:16]


def _named(row: Row) -> str:
    return f"{row['kernel']} for {row['arch']} in {row['test']}"
