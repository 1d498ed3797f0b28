"""`tilewright validate tileflow`: predicted cycles of tile trees beside RTL simulations of an accelerator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.arguments import AsJson
from tilewright.cli.console import show_json
from tilewright.cli.model import Latency
from tilewright.cli.printing import say
from tilewright.errors import InvalidArgument
from tilewright.files import write_file

if TYPE_CHECKING:
    from tilewright.reproduce.tileflow.rtl import Case

EPILOG = """\
\b
example: tilewright validate tileflow --gemm gemm.csv --fused fused.csv
         tilewright validate tileflow --gemm gemm.csv --dump trees --json
exit status: 0 compared, 2 a file that cannot be read
"""

Gemm = Annotated[
    Path | None,
    typer.Option("--gemm", metavar="FILE.csv", help="products: M,N,K,micro_M,micro_N,micro_K,rtl_cycles"),
]
Fused = Annotated[
    Path | None,
    typer.Option("--fused", metavar="FILE.csv", help="two fused products, with the bits that they moved"),
]
Dump = Annotated[Path | None, typer.Option("--dump", metavar="DIR", help="write the tile tree of every row there")]
LatencyName = Annotated[Latency, typer.Option("--latency", help="as `tilewright model` has it")]


def validate(
    gemm: Gemm = None,
    fused: Fused = None,
    dump: Dump = None,
    latency: LatencyName = Latency.STEPWISE,
    as_json: AsJson = False,
) -> None:
    """Predict every row with the machine tileflow-rtl; print errors relative to the cycles that were measured."""
    from tilewright.reproduce.tileflow.rtl import errors, fused_cases, gemm_cases
    from tilewright.tiles.file import print_tile_file

    if gemm is None and fused is None:
        raise InvalidArgument("there is nothing to compare with", where="validate tileflow", help="--gemm or --fused")
    found: dict[str, list[Case]] = {}
    if gemm is not None:
        found["gemm"] = gemm_cases(gemm, latency.value)
    if fused is not None:
        found["fused"] = fused_cases(fused, latency.value)
    shown: dict[str, Any] = {}
    for name, cases in found.items():
        off = errors(cases)
        shown[name] = {"rows": len(cases), "mean_abs_error": off.mean, "largest": off.largest, "r2": off.r_squared}
        if name == "fused":
            shown[name]["bits_equal_rows"] = sum(case.bits_equal for case in cases)
        if dump is not None:
            for number, case in enumerate(cases, 1):
                path = dump / f"{name}-{number:03}.tile"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, print_tile_file(case.file).encode(), where="--dump")
    if as_json:
        show_json(shown)
        return
    for name, facts in shown.items():
        bits = f", bits equal in {facts['bits_equal_rows']}" if name == "fused" else ""
        text = f"mean error {facts['mean_abs_error']:.2%}, largest {facts['largest']:.2%}, R² {facts['r2']:.5f}"
        say(f"{name}: {facts['rows']} rows, {text}{bits}")
