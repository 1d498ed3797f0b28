"""`tilewright search`: the best tile trees of a model's layers, or of a workload's dataflows, on a machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson, machine_option, shapes_of
from tilewright.cli.completion import among
from tilewright.cli.sweep import SweepText, refuse_beside_sweep
from tilewright.errors import InvalidArgument

if TYPE_CHECKING:
    from tilewright.expr.dtypes import DType

EPILOG = """\
\b
example: tilewright search model.onnx --machine edge --seconds 300
         tilewright search model.onnx --machine edge -o trees \\
             --objective energy --json
         tilewright search model.onnx --machine edge \\
             --sweep L1.capacity_bytes=65536,262144 --evaluations 9000
         tilewright search --workload attention --shape bert-base \\
             --machine edge --dataflow all --seconds 20
         tilewright search --workload conv-chain --shape C1 \\
             --machine cloud --dataflow fused-layer \\
             --evaluations 2000 -o best.tile
exit status: 0 found, 1 a layer, or every dataflow, has no legal tree,
             2 bad usage or input,
             130 interrupted: what was found until then is shown
"""

WORKLOAD_SECONDS, MODEL_SECONDS = 60.0, 120.0  # of a dataflow, and of a whole model


class Goal(StrEnum):
    """What is made small."""

    CYCLES = "cycles"
    ENERGY = "energy"


class MethodChoice(StrEnum):
    """How factors are searched."""

    DESCENT = "descent"
    TREE_SEARCH = "tree-search"


Model = Annotated[
    Path | None, typer.Argument(metavar="[MODEL]", help="a model.onnx: every layer of it", show_default=False)
]
Workload = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="KIND",
        help="attention, gemm-chain or conv-chain",
        show_default=False,
        autocompletion=among(completion.workload_kinds),
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME", help="of a workload: bert-base, …, G1 to G12; of conv-chain C1 to C8; of "
                 "MODEL: NAME=N,N,…, repeatable", autocompletion=among(completion.workload_shapes)),
]  # fmt: skip
MachineName = Annotated[str, machine_option("whose levels, rates and units")]
DataflowNames = Annotated[
    str | None,
    typer.Option("--dataflow", metavar="NAME,…|all", help="of a workload: layerwise, tileflow, …, or any: order and "
                 "mapping are searched too; another name lists them (default: all, without any)",
                 autocompletion=among(completion.dataflows, several=True)),
]  # fmt: skip
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", metavar="S", min=0, help="per dataflow, of MODEL in all (default: 60, of MODEL 120, or "
                 "--evaluations)"),
]  # fmt: skip
Evaluations = Annotated[
    int | None,
    typer.Option("--evaluations", metavar="N", min=1, help="per dataflow, of MODEL in all: same number, same result"),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="of the random numbers")]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", metavar="FILE", help="keep every evaluation there and go on with those that it has; "
                 "of several searches FILE.NAME"),
]  # fmt: skip
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE.tile", help="write the best tree there; of MODEL a folder of trees"),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="of a workload: draw how it converged, a .svg, .png, .pdf"),
]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", metavar="PREFIX", help="of a workload: write the best tree's PREFIX.csv and "
                 "PREFIX.mapping.txt, and every evaluation in PREFIX.tuning.csv; of several searches "
                 "PREFIX.NAME.tuning.csv"),
]  # fmt: skip
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", min=1, help="of --dataflow any: processes that evaluate orders and mappings "
                 "side by side; any number finds the same (default: 1)"),
]  # fmt: skip
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="T",
        help="what floating-point elements count as",
        autocompletion=among(completion.float_dtypes),
    ),
]


def search(
    machine: MachineName,
    model: Model = None,
    workload: Workload = None,
    shape: Shape = None,
    dataflow: DataflowNames = None,
    dtype: Dtype = "f16",
    seconds: Seconds = None,
    evaluations: Evaluations = None,
    seed: Seed = 0,
    objective: Annotated[Goal, typer.Option("--objective", help="what to make small")] = Goal.CYCLES,
    method: Annotated[
        MethodChoice, typer.Option("--method", help="descent from random factors, or Monte Carlo tree search")
    ] = MethodChoice.DESCENT,
    sweep: SweepText = None,
    resume: Resume = None,
    output: Output = None,
    plot: Plot = None,
    csv_prefix: Csv = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Search the tile trees of a model's layers, or of a workload's dataflows, for few cycles or little energy.

    Of a model, layers that are no products are counted by their movement, and chains of layers are fused where that
    pays. Costs are predicted, as `tilewright model` does.
    """
    from tilewright.cli.searching import Settings
    from tilewright.graph.search_options import SearchOptions
    from tilewright.machine.registry import resolve
    from tilewright.search.cost import Budget

    if (model is None) == (workload is None):
        raise InvalidArgument("give one thing to search", where="search", help="MODEL or --workload KIND")
    if sweep is not None:
        given = {"--json": as_json, "--output": output, "--plot": plot, "--csv": csv_prefix, "--resume": resume}
        refuse_beside_sweep({option: bool(value) for option, value in given.items()})
    usual = WORKLOAD_SECONDS if model is None else MODEL_SECONDS
    budget = Budget(evaluations, usual if seconds is None and evaluations is None else seconds)
    settings = Settings(
        resolve(machine), SearchOptions(budget, objective.value, method.value, seed, trace=resume), _float(dtype),
        output=output, plot=plot, csv_prefix=csv_prefix, workers=workers, sweep=sweep, as_json=as_json,
    )  # fmt: skip
    if model is not None:
        from tilewright.cli.search_network import search_network

        of_workloads = {"--dataflow": dataflow, "--plot": plot, "--csv": csv_prefix, "--workers": workers}
        for option, value in of_workloads.items():
            if value is not None:
                raise InvalidArgument(f"{option} is of a workload", where=option, help="leave it out")
        search_network(model, shapes_of(shape), settings)
        return
    from tilewright.cli.search_workload import search_workload

    assert workload is not None, "one of both is given"
    if shape is None or len(shape) != 1:
        raise InvalidArgument("a workload has one shape", where="--shape", help="--shape bert-base, G1 or C1")
    search_workload(workload, shape[0], dataflow or "all", settings)


def _float(name: str) -> DType:
    from tilewright.expr.dtypes import DTYPES, SPELLINGS, is_float

    named = SPELLINGS.get(name.lower())
    if named is None or not is_float(named):
        known = ", ".join(each for each in DTYPES if is_float(each))
        raise InvalidArgument(
            f"{name!r} is no type of floating-point elements", where="--dtype", help=f"one of {known}"
        )
    return named
