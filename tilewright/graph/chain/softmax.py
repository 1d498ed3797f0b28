"""A softmax between two products, rewritten so that its loop may be tiled (rule L5 of spec 1, section 2.6).

Before:  p = exp(s - max s) / sum exp(s - max s);  a = sum p * v
After:   x = exp(s);  num = sum x * v;  den = sum x;  a = num / den

This is deferred normalisation. The running maximum of an online softmax rescales `num` and `den` between steps of the
same loops: it has the same blocks and the same traffic, one row more, and a multiplication of every sum in each step
but the first (`online`). A tree over the rewritten expressions stands for both; which one runs is the plan's `rewrite`.
`running` leaves the expressions and says how their sums are rescaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tilewright.expr.core import Apply, Axis, Compute, Expr, Read, Tensor, apply
from tilewright.expr.core import walk as walk_expr
from tilewright.expr.intensity import is_compute_intensive
from tilewright.expr.names import unique
from tilewright.expr.rewrite import inline, substitute, transform
from tilewright.graph.chain.loops import Chain, Rescaled
from tilewright.tiles.problem import NEW, OLD, Problem, Rescaling

Rewrite = Literal["", "deferred", "online"]  #: of a softmax: none, sums divided at the end, a running maximum too


def deferred(computes: Sequence[Compute]) -> tuple[Compute, ...] | None:
    """The expressions with every softmax between two products rewritten; None where there is none."""
    flat = _without_maps(computes)
    found: list[Compute] = []
    renamed = False
    taken = {compute.name for compute in computes}
    maxima = {compute.name for compute in flat if compute.accum == "max"}
    dropped: set[str] = set()
    for compute in flat:
        parts = _normalised(compute, flat) if is_compute_intensive(compute) else None
        if parts is None:
            found.append(compute)
            continue
        probabilities, total, factor = parts
        exponent = transform(probabilities, lambda node: _without_maximum(node, maxima))
        loops = {axis for axis in walk_expr(exponent) if isinstance(axis, Axis)}
        axes = tuple(axis for axis in compute.loops if axis in loops)
        weights = Tensor(unique(f"{total.name}.exp", taken), tuple(axis.extent for axis in axes), exponent.dtype)
        sums = Tensor(unique(f"{total.name}.sum", taken), total.output.shape, total.output.dtype)
        product = Tensor(unique(f"{compute.name}.sum", taken), compute.output.shape, compute.output.dtype)
        found.append(Compute(weights, axes, exponent))
        found.append(Compute(product, compute.axes, weights[axes] * factor, compute.reduce, compute.accum))
        rows = _read_of(compute, total)
        den_axes = tuple(index for index in rows.indices if isinstance(index, Axis))
        found.append(Compute(sums, den_axes, weights[axes], compute.reduce, "sum"))
        found.append(replace(compute, body=product[compute.axes] / sums[den_axes], reduce=(), accum=None))
        dropped |= {total.name, *maxima}
        renamed = True
    if not renamed:
        return None
    used = {tensor.name for compute in found if compute.name not in dropped for tensor in compute.inputs()}
    return tuple(compute for compute in found if compute.name not in dropped or compute.name in used)


def online(chain: Chain) -> Chain:
    """The chain of what `deferred` gives, with the sums that a running maximum rescales."""
    found = []
    for operator in chain.operators:
        for name in operator.computes[1:]:
            if chain.problem.reductions(name) and chain.problem.reductions(name) <= operator.reductions:
                numerator, denominator = operator.access(operator.output), chain.problem.compute(name).output
                found.append(Rescaled(numerator.size + denominator.size, chain.problem.reductions(name)))
    return replace(chain, rescaled=tuple(found))


def running(problem: Problem) -> Problem:
    """The same expressions, in which the sums behind a softmax may run through its row in parts (rule L5 b).

    Whenever the running maximum changes, the sum of the exponentials and the product are multiplied by the exponential
    of its change; whenever that sum changes, the product by the old over the new one. A problem without a softmax
    between two products stays as it is.
    """
    flat = _without_maps(problem.computes)
    maxima = {compute.name: compute.output.dtype for compute in flat if compute.accum == "max"}
    found = list(problem.rescaled)
    for compute in flat:
        parts = _normalised(compute, flat) if is_compute_intensive(compute) else None
        if parts is None:
            continue
        exponential, total, _ = parts
        for read in walk_expr(exponential):
            if isinstance(read, Read) and read.tensor.name in maxima:
                old, new = _values(maxima[read.tensor.name])
                change = apply("exp", old - new)
                found += [Rescaling(name, read.tensor.name, change) for name in (total.name, compute.name)]
        old, new = _values(total.output.dtype)
        found.append(Rescaling(compute.name, total.name, old / new))
    return Problem.of(problem.computes, tuple(dict.fromkeys(found)))


def simplified(problem: Problem) -> Problem:
    """The softmax of three operators, ``exp(s)``, their sum and the division: without a maximum (spec 1, section 1.5).

    It computes the same as long as no exponential overflows. Its sums may run through the row in parts, as in
    `running`. A problem without a softmax between two products stays as it is.
    """
    rescaled = {one.running for one in running(problem).rescaled}
    maxima = {compute.name for compute in problem.computes if compute.accum == "max" and compute.name in rescaled}
    found: list[Compute] = []
    copies: list[Compute] = []
    for compute in problem.computes:
        if compute.name in maxima:
            continue
        compute = replace(compute, body=transform(compute.body, lambda node: _without_maximum(node, maxima)))
        for copy in copies:
            compute = inline(compute, copy)
        (copies if isinstance(compute.body, Read) and not compute.reduce else found).append(compute)
    return running(Problem.of(found)) if maxima else problem


def _values(dtype: str) -> tuple[Read, Read]:
    """A running value before and after it changes."""
    old, new = (Read(Tensor(name, (), dtype), ()) for name in (OLD, NEW))
    return old, new


def _without_maps(computes: Sequence[Compute]) -> list[Compute]:
    """The expressions with maps computed where they are read; a map that nothing here reads stays."""
    read = {tensor.name for compute in computes for tensor in compute.inputs()}
    maps: dict[str, Compute] = {}
    found = []
    for compute in computes:
        for tensor in compute.inputs():
            if tensor.name in maps:
                compute = inline(compute, maps[tensor.name])
        if compute.accum is None and compute.name in read:
            maps[compute.name] = compute
        else:
            found.append(compute)
    return found


def _normalised(compute: Compute, computes: Sequence[Compute]) -> tuple[Expr, Compute, Expr] | None:
    """The exponential, the sum that divides it, and the other factor, where a product is ``exp(..) / sum * factor``."""
    body = compute.body
    if not isinstance(body, Apply) or body.function != "mul" or compute.accum != "sum":
        return None
    sums = {each.name: each for each in computes if each.accum == "sum" and not is_compute_intensive(each)}
    for weight, factor in (body.args, body.args[::-1]):
        if not (isinstance(weight, Apply) and weight.function == "div" and isinstance(weight.args[1], Read)):
            continue
        exponential, divisor = weight.args
        assert isinstance(divisor, Read), "just asked"
        total = sums.get(divisor.tensor.name)
        if total is None or not (isinstance(exponential, Apply) and exponential.function == "exp"):
            continue
        if not all(isinstance(index, Axis) for index in divisor.indices) or len(total.reduce) != len(compute.reduce):
            continue
        places: dict[Axis, Expr] = dict(zip(total.axes, divisor.indices, strict=True))
        places.update(zip(total.reduce, compute.reduce, strict=True))
        if substitute(total.body, places) == exponential:
            return exponential, total, factor
    return None


def _without_maximum(node: Expr, maxima: set[str]) -> Expr | None:
    """``s - max`` is ``s``."""
    if isinstance(node, Apply) and node.function == "sub":
        left, right = node.args
        if isinstance(right, Read) and right.tensor.name in maxima:
            return left
    return None


def _read_of(compute: Compute, total: Compute) -> Read:
    return next(read for read in compute.reads() if read.tensor == total.output)
