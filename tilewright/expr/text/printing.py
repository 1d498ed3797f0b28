"""The text of expressions, computes and graphs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import InvalidExpression
from tilewright.expr import dtypes
from tilewright.expr.core import FUNCTIONS, Apply, Axis, Cast, Compute, Const, Dim, Expr, Extent, Read, Tensor
from tilewright.expr.dtypes import DType
from tilewright.expr.graph import Graph, Loop
from tilewright.expr.ordered import SCATTER, PrefixScan, Scatter, Sort
from tilewright.expr.text.grammar import (
    ACCUMULATE,
    BINARY,
    COMPARISON,
    COMPARISONS,
    KEYWORDS,
    NAME,
    NOT,
    PRIMARY,
    UNARY,
)


def print_compute(compute: Compute) -> str:
    """A compute with the declarations it needs; `parse_compute` of it gives the compute back."""
    tensors = (*compute.inputs(), compute.output)
    lines = _dim_lines(_dims(tensors, [compute]))
    lines += [f"input {_declaration(tensor)}" for tensor in compute.inputs()]
    return "\n".join([*lines, print_statement(compute)]) + "\n"


def print_graph(graph: Graph) -> str:
    """A graph without the values of its constants; `parse_graph` of it with these values gives the graph back."""
    lines = [f"graph {_name(graph.name)}", *_dim_lines(_dims(graph.tensors().values(), _all_nodes(graph)))]
    lines += [f"input {_declaration(tensor)}" for tensor in graph.inputs]
    lines += _constant_lines(graph)
    lines += _step_lines(graph)
    lines += [f"output {_name(tensor.name)}" for tensor in graph.outputs]
    return "\n".join(lines) + "\n"


def _all_nodes(graph: Graph) -> list[Compute]:
    return [*graph.nodes, *(node for loop in graph.loops for node in _all_nodes(loop.body))]


def _constant_lines(graph: Graph) -> list[str]:
    tensors = [Tensor(name, array.shape, dtypes.from_numpy(array.dtype)) for name, array in graph.constants.items()]
    return [f"const {_declaration(tensor)}" for tensor in tensors]


def _step_lines(graph: Graph) -> list[str]:
    lines: list[str] = []
    for step in graph.steps():
        lines += [print_statement(step)] if isinstance(step, Compute) else _loop_lines(step)
    return lines


def _loop_lines(loop: Loop) -> list[str]:
    back = {False: "", True: " backwards"}
    return [
        f"loop {_name(loop.name)} times {loop.trips}",
        *(f"slice {_name(e.part.name)} of {_name(e.whole.name)}{back[e.backwards]}" for e in loop.sliced),
        *(f"state {_name(e.state.name)} of {_name(e.initial.name)}" for e in loop.carried),
        *_constant_lines(loop.body),
        *_step_lines(loop.body),
        *(f"carry {_name(e.state.name)} to {_name(e.following.name)} as {_name(e.final.name)}" for e in loop.carried),
        *(f"stack {_name(e.part.name)} as {_name(e.whole.name)}{back[e.backwards]}" for e in loop.stacked),
        "end",
    ]


def print_statement(compute: Compute) -> str:
    """One line: ``C: f32[i:64, j:64] += A[i, k] * B[k, j] over k:32``."""
    target = f"{_name(compute.name)}: {compute.output.dtype}[{', '.join(map(_axis, compute.axes))}]"
    over = f" over {', '.join(map(_axis, compute.reduce))}" if compute.reduce else ""
    accum, body = compute.accum, compute.body
    if isinstance(accum, Sort):
        words = f" sorted {_name(compute.axes[accum.dim].name)}{' descending' if accum.descending else ''}"
        return f"{target} = {print_expr(body)}{over}{words}"
    if isinstance(accum, Scatter):
        assert isinstance(body, Apply), "a scatter's body is its three parts"
        parts = [*(print_expr(arg, body.dtype) for arg in body.args[:2])]
        parts += [print_expr(place, dtypes.INDEX) for place in body.args[2:]]
        along = ", ".join(_name(compute.axes[dim].name) for dim in accum.dims)
        return f"{target} {sign(accum.combine)} {SCATTER}({', '.join(parts)}){over} scattered {along}"
    words = ""
    if isinstance(accum, PrefixScan):
        words = f" scanned {_name(compute.axes[accum.dim].name)}"
        words += " exclusive" * accum.exclusive + " reverse" * accum.reverse
        accum = accum.combine
    return f"{target} {sign(accum)} {print_expr(body, compute.output.dtype)}{over}{words}"


def sign(accum: str | None) -> str:
    return ACCUMULATE[accum] if accum else "="


def print_expr(expr: Expr, context: DType | None = None) -> str:
    """An expression; a number shows its dtype where neither its operands nor `context` determine it."""
    return _print(expr, context, 0)


def _print(expr: Expr, context: DType | None, level: int) -> str:
    if isinstance(expr, Const):
        if isinstance(expr.value, bool):
            return "true" if expr.value else "false"
        return repr(expr.value) + ("" if context == expr.dtype else f"_{expr.dtype}")
    if isinstance(expr, Axis):
        return _name(expr.name)
    if isinstance(expr, Read):
        return f"{_name(expr.tensor.name)}[{', '.join(_print(index, dtypes.INDEX, 0) for index in expr.indices)}]"
    if isinstance(expr, Cast):
        return f"{expr.dtype}({_print(expr.arg, None, 0)})"
    assert isinstance(expr, Apply), f"unknown expression {expr!r}"
    text, own = _print_apply(expr, context)
    return f"({text})" if own < level else text


def _print_apply(expr: Apply, context: DType | None) -> tuple[str, int]:
    """The text of a function applied to arguments, and how tightly it binds."""
    function, args = expr.function, expr.args
    values = args[1:] if function == "select" else args
    dtype = values[0].dtype
    expected = dtype if any(map(_typed, values)) or (context == dtype and expr.dtype == dtype) else None
    # Where no operand determines the dtype of numbers, the first number shows it.
    contexts = [expected or (dtype if number else None) for number in range(len(values))]
    if function == "select":
        condition = _print(args[0], "bool", 2)
        yes, no = _print(args[1], contexts[0], 0), _print(args[2], contexts[1], 1)
        return f"{condition} ? {yes} : {no}", 1
    symbol = FUNCTIONS[function].symbol
    if symbol and len(args) == 1:
        if function == "not" and dtype == "bool":
            return f"not {_print(args[0], contexts[0], NOT)}", NOT
        operand = _print(args[0], contexts[0], UNARY)
        return f"{symbol}({operand})" if operand[0] in "0123456789in" and isinstance(args[0], Const) else (
            f"{symbol}{operand}"
        ), UNARY
    if symbol:
        if function in ("and", "or") and dtype == "bool":
            symbol = function
        power = COMPARISON if symbol in COMPARISONS else BINARY[symbol][0]
        left = _print(args[0], contexts[0], power + (symbol in COMPARISONS))
        return f"{left} {symbol} {_print(args[1], contexts[1], power + 1)}", power
    printed = ", ".join(_print(arg, hint, 0) for arg, hint in zip(args, contexts, strict=True))
    return f"{function}({printed})", PRIMARY


def _typed(expr: Expr) -> bool:
    """Whether the text of `expr` determines its dtype without suffixes on its numbers."""
    if isinstance(expr, Const):
        return isinstance(expr.value, bool)
    if isinstance(expr, Apply):
        rule = FUNCTIONS[expr.function].result
        return rule == "bool" or any(map(_typed, expr.args[1:] if rule == "select" else expr.args))
    return True


def _name(name: str) -> str:
    plain = re.fullmatch(NAME, name) and name not in KEYWORDS and not name.startswith(("inf_", "nan_"))
    return name if plain else json.dumps(name)


def _axis(axis: Axis) -> str:
    return f"{_name(axis.name)}:{_extent(axis.extent)}"


def _extent(extent: Extent) -> str:
    return _name(extent.name) if isinstance(extent, Dim) else str(extent)


def _declaration(tensor: Tensor) -> str:
    return f"{_name(tensor.name)}: {tensor.dtype}[{', '.join(map(_extent, tensor.shape))}]"


def _dims(tensors: Any, computes: Sequence[Compute]) -> dict[str, Dim]:
    extents: list[Extent] = [extent for tensor in tensors for extent in tensor.shape]
    for compute in computes:
        extents += [axis.extent for axis in compute.loops]
    dims: dict[str, Dim] = {}
    for extent in extents:
        if isinstance(extent, Dim) and dims.setdefault(extent.name, extent) != extent:
            raise InvalidExpression(
                f"two dimensions are called {extent.name}, with different ranges", help="use two names"
            )
    return dims


def _dim_lines(dims: Mapping[str, Dim]) -> list[str]:
    return [f"dim {_name(dim.name)} in [{dim.low}, {dim.high}] % {dim.divisor}" for dim in dims.values()]
