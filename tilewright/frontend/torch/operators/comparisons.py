"""Comparisons, logic, and choices between elements."""

from __future__ import annotations

from functools import partial

from tilewright.expr import dtypes
from tilewright.expr.core import Expr, Tensor, apply, const
from tilewright.expr.core import select as choose
from tilewright.expr.ops.elementwise import fill, map_elements
from tilewright.frontend.torch.call import Call, Number
from tilewright.frontend.torch.registry import aten

Operand = Tensor | Number


def _compare(call: Call, x: Operand, other: Operand, *, function: str) -> Tensor:
    """Both sides in their common dtype; bool counts as 0 and 1 where order matters."""
    common = call.common_dtype()
    work = "u8" if common == "bool" and function not in ("eq", "ne") else common
    return call.pointwise([x, other], lambda v, w: apply(function, v, w), compute=work)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    aten(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(partial(_compare, function=_name))


def _bits(call: Call, x: Operand, other: Operand, *, function: str) -> Tensor:
    return call.pointwise([x, other], lambda v, w: apply(function, v, w))


def _truth(call: Call, x: Tensor, other: Tensor, *, function: str) -> Tensor:
    def body(v: Expr, w: Expr) -> Expr:
        return apply(function, v.cast("bool"), w.cast("bool"))

    return call.pointwise([x, other], body, compute=call.common_dtype())


for _name in ("and", "or", "xor"):
    aten(f"aten.bitwise_{_name}.Tensor", f"aten.bitwise_{_name}.Scalar")(partial(_bits, function=_name))
    aten(f"aten.logical_{_name}.default")(partial(_truth, function=_name))

for _name, _function in (("left", "shl"), ("right", "shr")):
    _shifts = [f"aten.bitwise_{_name}_shift.Tensor", f"aten.bitwise_{_name}_shift.Tensor_Scalar"]
    _shifts += [f"aten.__{_name[0]}shift__.Tensor", f"aten.__{_name[0]}shift__.Scalar"]
    aten(*_shifts)(partial(_bits, function=_function))


@aten("aten.bitwise_not.default")
def bitwise_not(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: apply("not", v))


@aten("aten.logical_not.default")
def logical_not(call: Call, x: Tensor) -> Tensor:
    return call.pointwise([x], lambda v: apply("not", v.cast("bool")), compute=x.dtype)


def _special(call: Call, x: Tensor, *, function: str) -> Tensor:
    """isnan and isinf: never true of integers."""
    if not dtypes.is_float(x.dtype):
        return fill(call.b, call.shape, False, "bool", name=call.name)
    return call.pointwise([x], lambda v: apply(function, v), compute=x.dtype)


for _name in ("isnan", "isinf"):
    aten(f"aten.{_name}.default")(partial(_special, function=_name))


@aten("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(call: Call, condition: Tensor, x: Operand, other: Operand) -> Tensor:
    return _chosen(call, condition, x, other)


@aten("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(call: Call, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return _chosen(call, mask, value, x)


def _chosen(call: Call, condition: Tensor, yes: Operand, no: Operand) -> Tensor:
    """``condition ? yes : no`` in the dtype of the result; nothing is computed, so nothing is widened."""
    operands = [condition, *(x for x in (yes, no) if isinstance(x, Tensor))]

    def body(c: Expr, *elements: Expr) -> Expr:
        given = iter(elements)
        values = [next(given).cast(call.dtype) if isinstance(x, Tensor) else const(x, call.dtype) for x in (yes, no)]
        return choose(c.cast("bool"), *values)

    return map_elements(operands, body, name=call.name)
