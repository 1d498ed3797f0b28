"""The RTL simulations of TileFlow's accelerator against the analysis: a tile tree for each row, one machine, one rule.

    python -m tests.rtl_rows

Prints the mean and the largest error of both files and R² for both ways to add up a tree's latency.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.expr.text import parse_graph
from tilewright.machine.registry import resolve
from tilewright.tiles.analysis import Mode, analyse
from tilewright.tiles.machines import resources
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem
from tilewright.tiles.tree import TileTree

FOLDER = Path(__file__).parent / "data" / "tileflow"
Row = dict[str, int]


@dataclass(frozen=True)
class Errors:
    """Relative errors of predicted cycles, and how the predictions correlate with the measurements (R²)."""

    mean: float
    largest: float
    r_squared: float
    rows: int


def errors(name: str, mode: Mode) -> Errors:
    """The errors of one file: "gemm" or "fused_gemm"."""
    measured, predicted = [], []
    machine = resources(resolve("tileflow-rtl"))
    case = gemm if name == "gemm" else fused
    for row in rows(name):
        problem, tree = case(row)
        measured.append(row["rtl_cycles"])
        predicted.append(analyse(tree, problem, machine, mode=mode).cycles)
    off = np.abs(np.array(predicted) / np.array(measured) - 1)
    return Errors(off.mean(), off.max(), np.corrcoef(predicted, measured)[0, 1] ** 2, len(off))


def rows(name: str) -> list[Row]:
    """The rows of one file."""
    with (FOLDER / f"tileflow_{name}_rtl.csv").open() as file:
        return [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]


def gemm(row: Row) -> tuple[Problem, TileTree]:
    """A product that streams through the buffer block by block, its sums innermost."""
    m, n, k = (row[f"micro_{axis}"] for axis in "MNK")
    tree = f"""@DRAM for m:{_steps(row["M"], m)}, n:{_steps(row["N"], n)}, k:{_steps(row["K"], k)} {{
        {_array("C", {"m": m, "n": n}, "k", k)} }}"""
    return _gemm(row["M"], row["N"], row["K"]), parse_tree(tree)


def fused(row: Row) -> tuple[Problem, TileTree]:
    """Two products: the rows of a block stay in the buffer, the loops over k and over l stream through it."""
    m, l, k = (row[f"micro_{axis}1"] for axis in "MNK")
    n, sums = row["micro_N2"], row["micro_K2"]
    tree = f"""@DRAM for m:{_steps(row["M1"], m)} {{ shar[
        @DRAM for k:{_steps(row["K1"], k)} {{ {_array("C", {"m": m, "l": l}, "k", k)} }},
        @DRAM for l:{_steps(row["K2"], sums)} {{ {_array("E", {"m": m, "n": n}, "l", sums)} }}] }}"""
    return _products(row["M1"], row["N1"], row["K1"], row["N2"]), parse_tree(tree)


def _array(op: str, rows_and_columns: dict[str, int], sums: str, length: int) -> str:
    """A block in the buffer, 16 x 16 of its results at a time on the array."""
    blocks = ", ".join(f"{name}:{_steps(size, 16)}" for name, size in rows_and_columns.items())
    units = ", ".join(f"{name}:{min(size, 16)}" for name, size in rows_and_columns.items())
    return f"@L1 for {blocks}, {sums}:{length} {{ par {units} {{ @RF for once:1 {{ op {op} }} }} }}"


def _steps(extent: int, block: int) -> int:
    return -(-extent // block)


@cache
def _gemm(m: int, n: int, k: int) -> Problem:
    return Problem.of(parse_graph(f"""
        input A: f16[{m}, {k}]
        input B: f16[{k}, {n}]
        C: f16[m:{m}, n:{n}] += A[m, k] * B[k, n] over k:{k}
        output C""").nodes)


@cache
def _products(m: int, l: int, k: int, n: int) -> Problem:
    return Problem.of(parse_graph(f"""
        input A: f16[{m}, {k}]
        input B: f16[{k}, {l}]
        input D: f16[{l}, {n}]
        C: f16[m:{m}, l:{l}] += A[m, k] * B[k, l] over k:{k}
        E: f16[m:{m}, n:{n}] += C[m, l] * D[l, n] over l:{l}
        output E""").nodes)


def main() -> None:
    for name in ("gemm", "fused_gemm"):
        for mode in ("phases", "stepwise"):
            found = errors(name, mode)  # type: ignore[arg-type]
            print(
                f"{name}, {mode}: {found.rows} rows, mean error {found.mean:.2%}, largest {found.largest:.2%}, "
                f"R² {found.r_squared:.5f}"
            )


if __name__ == "__main__":
    main()
