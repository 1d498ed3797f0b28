"""Compares deductions with recorded answers of another compiler: a table of matmuls and their configurations."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidFile, ScheduleError
from tilewright.files import as_path, read_text
from tilewright.instruction.mma.deduce import Deduction, deduce_mma
from tilewright.instruction.mma.policy import Switches, switches_of
from tilewright.instruction.mma.problem import MmaProblem
from tilewright.instruction.mma.target import mma_target

PROBLEM: Final = ("target", "M", "N", "K", "a", "b", "c")
NUMBERS: Final = ("subgroup_size", "subgroup_m", "subgroup_n")
LISTS: Final = ("workgroup_size", "workgroup", "reduction", "subgroup", "padding", "promote")
WORDS: Final = ("pipeline", "mma")
ANSWER: Final = ("pipeline", "workgroup_size", "subgroup_size", "mma", "workgroup", "reduction", "subgroup_m",
                 "subgroup_n", "subgroup", "padding", "promote")  # fmt: skip

_PIPELINES = {
    "vector-distribute": "LLVMGPUVectorDistribute",
    "tile-and-fuse": "LLVMGPUTileAndFuse",
    "warp-reduction": "LLVMGPUWarpReduction",
    "tensor-core": "LLVMGPUMatmulTensorCore",
    "tensor-core-mma-sync": "LLVMGPUMatmulTensorCoreMmaSync",
}

Answer = dict[str, Any]  # per column of `ANSWER`: a word, a number, a list of numbers, or None for an empty cell


@dataclass(frozen=True)
class Recorded:
    """One row: its number in the file (the first after the headings is 2), the problem, and the recorded answer."""

    line: int
    target: str
    problem: MmaProblem
    answer: Answer


def read_recorded(path: str | os.PathLike[str]) -> list[Recorded]:
    """All rows of a file; raises InvalidFile naming line and column for what cannot be read."""
    path = as_path(path, "path")
    text = read_text(path)
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        missing = [name for name in (*PROBLEM, *ANSWER) if name not in (reader.fieldnames or ())]
        if missing:
            raise InvalidFile(f"has no column {', '.join(missing)}", where=f"{path}:1",
                              help=f"the columns are {', '.join((*PROBLEM, *ANSWER))}")  # fmt: skip
        rows = [_recorded(row, f"{path}:{reader.line_num}", reader.line_num) for row in reader]
    except csv.Error as error:
        raise InvalidFile(f"is not a table: {error}", where=f"{path}:{reader.line_num}") from error
    if not rows:
        raise InvalidFile("has no row below the headings", where=str(path))
    return rows


def mismatches(rows: list[Recorded], policy: str | Switches = "iree-3.6") -> Iterator[dict[str, Any]]:
    """For every row whose answer differs: the line, the problem, and (recorded, deduced) per differing column."""
    switches = switches_of(policy)
    for row in rows:
        own = answer_of(deduce_mma(row.problem, row.target, policy=switches))
        columns = {
            name: {"recorded": row.answer[name], "deduced": own[name]}
            for name in ANSWER if own[name] != row.answer[name]
        }  # fmt: skip
        if columns:
            yield {"line": row.line, "target": row.target, "problem": str(row.problem), "columns": columns}


def answer_of(deduction: Deduction) -> Answer:
    """A deduction in the columns of the table. Recorded warp reductions have no tiles, so these stay out too."""
    config = deduction.config
    tiles = config.pipeline != "warp-reduction"
    counts = config.subgroup_counts or (None, None)
    return {
        "pipeline": _PIPELINES[config.pipeline],
        "workgroup_size": list(config.workgroup_size),
        "subgroup_size": config.subgroup_size,
        "mma": config.intrinsic,
        "workgroup": list(config.workgroup) if tiles else None,
        "reduction": list(config.reduction) if tiles else None,
        "subgroup_m": counts[0],
        "subgroup_n": counts[1],
        "subgroup": None if config.subgroup is None else list(config.subgroup),
        "padding": None if config.padding is None else list(config.padding),
        "promote": list(config.promote) or None,
    }


def _recorded(row: Mapping[str | None, Any], where: str, line: int) -> Recorded:
    if None in row or None in row.values():
        raise InvalidFile("has another number of cells than the headings", where=where)
    cells = {str(name): str(value).strip() for name, value in row.items()}
    sizes = {name: _number(cells[name], name, where) for name in "MNK"}
    try:
        problem = MmaProblem((sizes["M"],), (sizes["N"],), (sizes["K"],), (), cells["a"], cells["b"], cells["c"])
        mma_target(cells["target"])
    except CompileError as error:
        column = f" ({error.where})" if isinstance(error, ScheduleError) and error.where else ""
        raise InvalidFile(f"{error.message}{column}", where=where, help=error.help) from error
    answer: Answer = {name: cells[name] or None for name in WORDS}
    answer |= {name: _number(cells[name], name, where) if cells[name] else None for name in NUMBERS}
    answer |= {name: _list(cells[name], name, where) if cells[name] else None for name in LISTS}
    return Recorded(line, cells["target"], problem, answer)


def _number(cell: str, column: str, where: str) -> int:
    if not (cell.isascii() and cell.isdigit()) or len(cell) > 18:
        raise InvalidFile(f"{column} is {cell[:40]!r}", where=where, help="a number without sign or point")
    return int(cell)


def _list(cell: str, column: str, where: str) -> list[int]:
    try:
        value = json.loads(cell)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise InvalidFile(f"{column} is {cell[:40]!r}", where=where, help='a list of numbers such as "[64, 64, 0]"')
    return value
