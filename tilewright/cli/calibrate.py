"""`tilewright calibrate`: what this machine reaches, measured once and kept."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.arguments import AsJson
from tilewright.cli.console import progress, show_json
from tilewright.cli.printing import say, table

EPILOG = """\
\b
example: tilewright calibrate
         tilewright calibrate --force --json
exit status: 0 measured, 2 bad usage, or measurements that do not agree
"""

Force = Annotated[bool, typer.Option("--force", help="measure again, also where a measurement is kept")]


def calibrate(force: Force = False, as_json: AsJson = False) -> None:
    """Measure clock, cycles per instruction and bandwidths of this machine, and keep them as a machine file.

    A measurement takes two to four seconds and is kept in the cache directory, for this processor only.
    """
    from tilewright.runtime.calibrate import calibrated
    from tilewright.runtime.calibration_file import calibration_file

    file = calibration_file()
    with progress("measuring"):
        machine = calibrated(force=force)
    facts = machine.to_json()
    if as_json:
        show_json({"file": str(file) if file.exists() else None, "machine": facts})
        return
    say(f"{file if file.exists() else 'not kept'}: {machine.llvm.cpu} at {facts['clock_hz'] / 1e9:.2f} GHz")
    rows = [[f"{name}, one core", f"{cycles:.3g} cycles"] for name, cycles in (machine.issue_cycles or {}).items()]
    rows += [
        [f"reading {cache.name}, one core", f"{cache.bytes_per_cycle:.3g} bytes/cycle"] for cache in machine.caches
    ]
    dram = machine.dram
    for what, rate in (
        ("reading memory, one core", dram.bytes_per_second_per_core),
        ("reading memory, all cores", dram.bytes_per_second),
        ("copying, all cores", dram.copy_bytes_per_second),
        ("copying past the caches, all cores", dram.nontemporal_copy_bytes_per_second),
    ):
        if rate is not None:
            rows.append([what, f"{rate / 1e9:.3g} GB/s"])
    table({"what": "left", "measured": "right"}, rows)
