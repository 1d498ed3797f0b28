"""RTL simulations of TileFlow's accelerator beside the analysis: a tile tree for each row, one machine, one rule.

The files are of the paper's public artifact: cycles of single products, and of two fused products with the bits that
moved between memory, buffer and registers. Nothing is fitted to a row.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidFile
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_graph
from tilewright.files import as_path, read_text
from tilewright.machine.registry import resolve
from tilewright.tiles.analysis import Analysis, Mode, analyse
from tilewright.tiles.file import TileFile
from tilewright.tiles.machines import resources
from tilewright.tiles.notation import parse_tree
from tilewright.tiles.problem import Problem

MACHINE = "tileflow-rtl"
#: Half of the rows of the artifact, each.
GEMM_ROWS = Path(__file__).parent / "rows" / "tileflow_gemm_rtl.csv"
FUSED_ROWS = Path(__file__).parent / "rows" / "tileflow_fused_gemm_rtl.csv"
WORD_BITS = 16
GEMM_COLUMNS = ("M", "N", "K", "micro_M", "micro_N", "micro_K", "rtl_cycles")
FUSED_COLUMNS = (
    "M1", "N1", "K1", "micro_M1", "micro_N1", "micro_K1", "M2", "N2", "K2", "micro_M2", "micro_N2", "micro_K2",
    "rtl_cycles", "mem_to_buf", "buf_to_mem",
)  # fmt: skip
REGISTER_COLUMNS = ("buf_to_reg", "reg_to_buf")  # bits, of two fused products

Row = Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """One row, its expressions and tile tree, what the analysis says, and the cycles that were measured."""

    row: Row
    file: TileFile
    analysis: Analysis

    @property
    def error(self) -> float:
        """The relative error of the predicted cycles."""
        return float(abs(self.analysis.cycles / self.row["rtl_cycles"] - 1))

    @property
    def bits_equal(self) -> bool:
        """Whether the bits between memory and buffer are those that the simulation counted."""
        memory = self.analysis.traffic.at("DRAM").values()
        loaded, stored = (WORD_BITS * sum(int(moved) for moved in each) for each in zip(
            *((moved.loads, moved.stores) for moved in memory), strict=True))  # fmt: skip
        return (loaded, stored) == (self.row["mem_to_buf"], self.row["buf_to_mem"])


@dataclass(frozen=True)
class Errors:
    """Relative errors of predicted cycles, and how the predictions correlate with the measurements (R²)."""

    mean: float
    largest: float
    r_squared: float


def errors(cases: Sequence[Case]) -> Errors:
    off = [case.error for case in cases]
    predicted = [float(case.analysis.cycles) for case in cases]
    measured = [case.row["rtl_cycles"] for case in cases]
    correlation = np.corrcoef(predicted, measured)[0, 1] if len(set(measured)) > 1 else 1.0
    return Errors(float(np.mean(off)), max(off), float(correlation**2))


def gemm_cases(path: str | os.PathLike[str], mode: Mode = "stepwise") -> list[Case]:
    """The rows of a file of single products. Raises InvalidFile with line and column where it is none."""
    return _cases(path, GEMM_COLUMNS, gemm, mode)


def fused_cases(path: str | os.PathLike[str], mode: Mode = "stepwise", columns: Sequence[str] = ()) -> list[Case]:
    """The rows of a file of two fused products, with more `columns`. Raises InvalidFile with line and column."""
    return _cases(path, (*FUSED_COLUMNS, *columns), fused, mode)


def gemm(row: Row) -> TileFile:
    """A product that streams through the buffer block by block, its sums innermost."""
    m, n, k = (row[f"micro_{axis}"] for axis in "MNK")
    tree = f"""@DRAM for m:{_steps(row["M"], m)}, n:{_steps(row["N"], n)}, k:{_steps(row["K"], k)} {{
        {_array("C", {"m": m, "n": n}, "k", k)} }}"""
    return _file(_gemm(row["M"], row["N"], row["K"]), tree)


def fused(row: Row) -> TileFile:
    """Two products: the rows of a block stay in the buffer, the loops over k and over l stream through it."""
    m, l, k = (row[f"micro_{axis}1"] for axis in "MNK")
    n, sums = row["micro_N2"], row["micro_K2"]
    tree = f"""@DRAM for m:{_steps(row["M1"], m)} {{ shar[
        @DRAM for k:{_steps(row["K1"], k)} {{ {_array("C", {"m": m, "l": l}, "k", k)} }},
        @DRAM for l:{_steps(row["K2"], sums)} {{ {_array("E", {"m": m, "n": n}, "l", sums)} }}] }}"""
    return _file(_products(row["M1"], row["N1"], row["K1"], row["N2"]), tree)


def read_rows(path: str | os.PathLike[str], columns: Sequence[str]) -> list[Row]:
    """The rows of a CSV file with positive whole numbers. Raises InvalidFile with line, column and what it has."""
    path = as_path(path, "path")
    reader = csv.DictReader(io.StringIO(read_text(path)))
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise InvalidFile(f"there is no column {missing[0]}", where=f"{path}:1", help=f"columns {', '.join(columns)}")
    found: list[Row] = []
    for row in reader:
        where = f"{path}:{reader.line_num}"
        for name in columns:
            text = row[name] or ""
            if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text)):
                raise InvalidFile(f"{name} is {text[:40]!r}", where=where, help="a whole number of 1 or more")
        found.append({name: int(row[name]) for name in columns})
    if not found:
        raise InvalidFile("the file has no rows", where=str(path), help="one line per run")
    return found


def _cases(
    path: str | os.PathLike[str], columns: Sequence[str], build: Callable[[Row], TileFile], mode: Mode
) -> list[Case]:
    machine, found = resources(resolve(MACHINE)), []
    for row in read_rows(path, columns):
        file = build(row)
        found.append(Case(row, file, analyse(file.tree, file.problem, machine, mode=mode)))
    return found


def _file(graph: Graph, tree: str) -> TileFile:
    return TileFile(graph, Problem.of(graph.nodes), parse_tree(tree))


def _array(op: str, rows_and_columns: Mapping[str, int], sums: str, length: int) -> str:
    """A block in the buffer, 16 x 16 of its results at a time on the array."""
    blocks = ", ".join(f"{name}:{_steps(size, 16)}" for name, size in rows_and_columns.items())
    units = ", ".join(f"{name}:{min(size, 16)}" for name, size in rows_and_columns.items())
    return f"@L1 for {blocks}, {sums}:{length} {{ par {units} {{ @RF for once:1 {{ op {op} }} }} }}"


def _steps(extent: int, block: int) -> int:
    return -(-extent // block)


@cache
def _gemm(m: int, n: int, k: int) -> Graph:
    return parse_graph(f"""
        input A: f16[{m}, {k}]
        input B: f16[{k}, {n}]
        C: f16[m:{m}, n:{n}] += A[m, k] * B[k, n] over k:{k}
        output C""")


@cache
def _products(m: int, l: int, k: int, n: int) -> Graph:
    return parse_graph(f"""
        input A: f16[{m}, {k}]
        input B: f16[{k}, {l}]
        input D: f16[{l}, {n}]
        C: f16[m:{m}, l:{l}] += A[m, k] * B[k, l] over k:{k}
        E: f16[m:{m}, n:{n}] += C[m, l] * D[l, n] over l:{l}
        output E""")
