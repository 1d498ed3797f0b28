"""Tile files: the expressions of a problem, how its sums are rescaled, and a tile tree. Exact both ways::

    input A: f32[8, 4]
    input B: f32[4, 6]
    C: f32[m:8, n:6] += A[m, k] * B[k, n] over k:4
    output C
    tree
    @DRAM for m:2, n:3 { @L1 for m:4, n:2, k:4 { op C } }

The expressions are the text of a graph (`expr.text`), the tree is that of `notation`. Between them stand the
rescalings, where there are any: ``rescale O when M by exp(old[] - new[])`` says that the sum O is multiplied by this
whenever the running value M changes from `old` to `new`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidExpression
from tilewright.expr.core import Axis, Expr
from tilewright.expr.graph import Graph
from tilewright.expr.text import parse_compute, parse_graph, print_expr, print_graph
from tilewright.files import read_bytes
from tilewright.tiles.notation import parse_tree, print_tree
from tilewright.tiles.problem import NEW, OLD, Problem, Rescaling
from tilewright.tiles.tree import InvalidTree, MicroKernelRef, TileTree

MAX_BYTES = 1 << 24
_NAME = r'[^\s"]+|"(?:[^"\\]|\\.)*"'
_RESCALE = re.compile(rf"\s*rescale\s+(?P<total>{_NAME})\s+when\s+(?P<running>{_NAME})\s+by\s+(?P<factor>.+)")
_WHOLE = "the expressions, then a line `tree`, then the tree"


@dataclass(frozen=True)
class TileFile:
    """What a tile file holds: a graph, its expressions as a problem, and a tree of them."""

    graph: Graph
    problem: Problem
    tree: TileTree


def read_tile_file(path: str | os.PathLike[str], kernels: Mapping[str, MicroKernelRef] | None = None) -> TileFile:
    """Read a file; raises CompileError with the line at fault, also where it cannot be read."""
    content = read_bytes(path, InvalidTree, limit=MAX_BYTES)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidTree(
            f"is not UTF-8 text at byte {error.start}", where=os.fspath(path), help="UTF-8 text"
        ) from error
    return parse_tile_file(text, kernels, where=os.fspath(path))


def parse_tile_file(
    text: str, kernels: Mapping[str, MicroKernelRef] | None = None, *, where: str = "<text>"
) -> TileFile:
    """The problem and the tree of a text; `kernels` are the micro-kernels that the tree names.

    Raises CompileError with line, column and what is legal there.
    """
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if line.strip() == "tree"), None)
    if start is None:
        raise InvalidTree("there is no line `tree`", where=f"{where}:{len(lines)}", help=_WHOLE)
    first = next((n for n, line in enumerate(lines[:start]) if line.split()[:1] == ["rescale"]), start)
    graph = parse_graph("\n".join(lines[:first]), where=where)
    rescaled = [
        rescaling
        for number in range(first, start)
        if (rescaling := _rescaling(lines[number], graph, f"{where}:{number + 1}")) is not None
    ]
    try:
        problem = Problem.of(graph.nodes, rescaled)
    except InvalidExpression as error:
        error.where = error.where or where
        error.help = error.help or _WHOLE
        raise
    # Empty lines keep the places of errors those of the file.
    tree = parse_tree("\n" * (start + 1) + "\n".join(lines[start + 1 :]), kernels, where=where)
    return TileFile(graph, problem, tree)


def print_tile_file(file: TileFile) -> str:
    """The text of a problem and a tree; micro-kernels are named only."""
    rescalings = [
        f"rescale {_written(one.total)} when {_written(one.running)} by {print_expr(one.factor)}\n"
        for one in file.problem.rescaled
    ]
    expressions = print_graph(file.graph)
    return f"{expressions.rstrip()}\n{''.join(rescalings)}tree\n{print_tree(file.tree, indented=True)}"


def _rescaling(line: str, graph: Graph, where: str) -> Rescaling | None:
    if not line.strip() or line.strip().startswith("#"):
        return None
    match = _RESCALE.fullmatch(line)
    if match is None:
        raise InvalidTree(
            f"found {line.strip()[:40]!r} before the line `tree`", where=where, help="rescale SUM when VALUE by FACTOR"
        )
    total, running = (_read(match[group], where) for group in ("total", "running"))
    dtypes = {node.name: node.output.dtype for node in graph.nodes}
    if running not in dtypes:
        known = ", ".join(dtypes) or "(none)"
        raise InvalidTree(f"{total} is rescaled when {running} changes, no expression", where=where, help=known)
    return Rescaling(total, running, _factor(match["factor"], dtypes[running], where))


def _factor(text: str, dtype: str, where: str) -> Expr:
    """The factor of a rescaling, an expression of the running value before and after."""
    inputs = "".join(f"input {name}: {dtype}[]\n" for name in (OLD, NEW))
    try:
        compute = parse_compute(f"{inputs}factor: {dtype}[] = {text}", where=where)
    except InvalidExpression as error:
        message = error.message.split("\n")[0]
        raise InvalidTree(
            f"the factor {text.strip()[:40]!r}: {message}",
            where=where, help=f"an expression of {OLD}[] and {NEW}[], as exp({OLD}[] - {NEW}[])",
        ) from None  # fmt: skip
    assert not isinstance(compute.body, Axis)
    return compute.body


def _read(name: str, where: str) -> str:
    if not name.startswith('"'):
        return name
    try:
        return str(json.loads(name))
    except ValueError:
        raise InvalidTree(f"the name {name[:40]} has an invalid escape", where=where, help="a JSON string") from None


def _written(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name) else json.dumps(name)
