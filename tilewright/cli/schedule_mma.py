"""`tilewright schedule-mma`: which matrix intrinsic executes a product on a GPU, how it is tiled, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion
from tilewright.cli.arguments import AsJson, machine_option
from tilewright.cli.completion import among
from tilewright.cli.console import show_json
from tilewright.cli.printing import say
from tilewright.errors import CompileError, InvalidArgument

if TYPE_CHECKING:
    from tilewright.instruction.mma import Deduction

EPILOG = """\
\b
example: tilewright schedule-mma --m 128 --n 256 --k 512 --a f16 --b f16 \\
             --c f32 --machine nvidia-h200-sxm
         tilewright schedule-mma --m 4,16 --n 2,32 --k 3,128 \\
             --machine nvidia-h200-sxm --json
exit status: 0 scheduled (a fall-back too), 2 bad usage or input
"""


class TableName(StrEnum):
    """Which instructions the fixed tiles are for."""

    AUTO = "auto"
    WMMA = "wmma"


def _type_option(name: str, help: str) -> Any:
    return typer.Option(name, metavar="TYPE", help=help, autocompletion=among(completion.operand_types))


M = Annotated[str, typer.Option("--m", metavar="N[,N…]", help="sizes of the rows, outermost first; ? if not known")]
N = Annotated[str, typer.Option("--n", metavar="N[,N…]", help="sizes of the columns")]
K = Annotated[str, typer.Option("--k", metavar="N[,N…]", help="sizes that are summed over")]
Batch = Annotated[str, typer.Option("--batch", metavar="N[,N…]", help="sizes of the batch loops", show_default=False)]
A = Annotated[str, _type_option("--a", "element type of the left operand")]
B = Annotated[str, _type_option("--b", "element type of the right operand (default: that of a)")]
C = Annotated[str, _type_option("--c", "element type of the result")]
Gpu = Annotated[str, machine_option("the GPU; `tilewright machines` lists them")]
PolicyName = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME",
        help="tilewright, iree-3.6 or size-classes: the rules to deduce by",
        autocompletion=among(completion.schedule_policies),
    ),
]
LhsTransposed = Annotated[bool, typer.Option("--lhs-transposed", help="the left operand is stored [k, m]")]
RhsTransposed = Annotated[bool, typer.Option("--rhs-transposed", help="the right operand is stored [n, k]")]
Warpgroup = Annotated[bool, typer.Option("--warpgroup", help="try instructions of four warps first, where there are")]
Table = Annotated[
    TableName | None,
    typer.Option("--tensor-core-table", help="try fixed tiles first: by mma.sync where there is, or by WMMA only",
                 show_default=False),
]  # fmt: skip
Forbid = Annotated[
    list[str] | None,
    typer.Option("--forbid", metavar="NAME", help="a path or an intrinsic not to use; may be repeated",
                 show_default=False, autocompletion=among(completion.schedule_paths)),
]  # fmt: skip
Explain = Annotated[bool, typer.Option("--explain", help="print the whole trace of the deduction")]


def schedule_mma(
    m: M, n: N, k: K, machine: Gpu, a: A = "f16", b: B = "", c: C = "f32", batch: Batch = "",
    policy: PolicyName = "tilewright", lhs_transposed: LhsTransposed = False, rhs_transposed: RhsTransposed = False,
    warpgroup: Warpgroup = False, tensor_core_table: Table = None, forbid: Forbid = None, explain: Explain = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Schedule the product C[m, n] += A[m, k] * B[k, n] on a GPU, or name the fall-back and why.

    Tiles and counts are lists with one entry per loop; `workgroup_tile` and `reduction_tile` go over batch, m, n and k,
    in elements, 0 where a loop is not tiled.
    """
    from tilewright.instruction.mma import MmaProblem, Options, deduce_mma, mma_target
    from tilewright.machine import resolve

    target = mma_target(resolve(machine))
    options = Options(
        warpgroup=warpgroup,
        forbid=frozenset(forbid or ()),
        tensor_core_table=None if tensor_core_table is None else tensor_core_table.value,
    )  # fmt: skip
    with _about_options():
        problem = MmaProblem(
            _sizes(m, "--m"), _sizes(n, "--n"), _sizes(k, "--k"), _sizes(batch, "--batch") if batch else (), a, b or a,
            c, lhs_transposed, rhs_transposed,
        )  # fmt: skip
        deduction = deduce_mma(problem, target, policy=policy, options=options)
    if as_json:
        value = as_value(deduction)
        show_json({**value, "trace": [str(event) for event in deduction.events]} if explain else value)
    elif explain:
        say(deduction.explain(), indent=17)  # where the facts of an event begin
    else:
        for line in _lines(deduction):
            say(line, indent=11)


def as_value(deduction: Deduction) -> dict[str, Any]:
    """The answer as JSON values; a fall-back has null for what belongs to an intrinsic, and `fallback` and `why`.

    `stages` is there where shared memory has several buffers.
    """
    config, schedule = deduction.config, deduction.schedule
    counts = dict.fromkeys(("m_subgroups", "n_subgroups", "m_tiles", "n_tiles", "k_tiles"))
    value: dict[str, Any] = {
        "pipeline": config.pipeline,
        "intrinsic": config.intrinsic,
        "subgroup_size": config.subgroup_size,
        **(counts if schedule is None else {name: _per_loop(deduction, name) for name in counts}),
        "workgroup_tile": list(config.workgroup),
        "reduction_tile": list(config.reduction_elements),
        "workgroup_size": list(config.workgroup_size),
        "shared_bytes": deduction.shared_bytes,
    }
    if config.stages != 1:
        value["stages"] = config.stages
    if schedule is None:
        value["fallback"] = deduction.path
        value["why"] = [{"tried": tried, "reason": str(reason)} for tried, reason in deduction.refusals]
    return value


def _per_loop(deduction: Deduction, name: str) -> list[int]:
    """A list of the schedule with 1 for the loops that it leaves outside: outer ones, or those of unknown size."""
    counts = iter(getattr(deduction.schedule, name))
    sizes = getattr(deduction.problem, name[0])
    assert deduction.scheduled is not None
    outside = len(sizes) - len(getattr(deduction.scheduled, name[0]))
    if deduction.path in ("VD", "VD+upcast", "TC"):
        return [1] * outside + list(counts)
    return [1 if size is None else next(counts) for size in sizes]


def _lines(deduction: Deduction) -> list[str]:
    config, schedule = deduction.config, deduction.schedule
    lines = [f"{deduction.problem} on {deduction.target}"]
    if schedule is None:
        lines.append(f"  fall-back  {deduction.path} ({config.pipeline})")
        lines += [f"             {tried}: {reason}" for tried, reason in deduction.refusals]
    else:
        lines += [
            f"  intrinsic  {schedule.intrinsic.name}, path {deduction.path}, pipeline {config.pipeline}",
            f"  subgroups  m {_per_loop(deduction, 'm_subgroups')}  n {_per_loop(deduction, 'n_subgroups')}",
            f"  tiles      m {_per_loop(deduction, 'm_tiles')}  n {_per_loop(deduction, 'n_tiles')}  "
            f"k {_per_loop(deduction, 'k_tiles')}",
            f"  shared     {deduction.shared_bytes} bytes"
            + (f" in {config.stages} stages" if config.stages != 1 else ""),
        ]
    return [
        *lines,
        f"  workgroup  tile {list(config.workgroup)}, {list(config.workgroup_size)} threads in subgroups of "
        f"{config.subgroup_size}",
        f"  reduction  {list(config.reduction_elements)}",
    ]


@contextmanager
def _about_options() -> Iterator[None]:
    """Errors about a field name the option that it was given by."""
    try:
        yield
    except CompileError as error:
        field = error.where.removeprefix("options.")
        if field in ("m", "n", "k", "batch", "a", "b", "c", "policy", "forbid"):
            error.where = f"--{field}"
        raise


def _sizes(text: str, option: str) -> tuple[int | None, ...]:
    """Read ``4,16``; ``?`` is a size known only at run time."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part == "?" or (part.isascii() and part.isdigit() and len(part) <= 18) for part in parts):
        raise InvalidArgument(f"{text!r} is no list of sizes", where=option, help=f"{option} 128 or 4,16")
    if any(part != "?" and not int(part) for part in parts):
        raise InvalidArgument("0 is not a positive size", where=option, help="1 or more, or ? for a size not yet known")
    return tuple(None if part == "?" else int(part) for part in parts)
