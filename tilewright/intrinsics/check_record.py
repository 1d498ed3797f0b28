"""What is proven of a record before anything uses it: its parts agree, and its layouts hold every element once."""

from __future__ import annotations

import re
from math import isfinite, prod

import numpy as np

from tilewright.errors import InvalidIntrinsic
from tilewright.expr.core import Apply, Axis, Const, Expr, Read
from tilewright.expr.text import print_expr
from tilewright.intrinsics.check_layout import NAME, check_layouts, check_memory, refuse
from tilewright.intrinsics.elements import KNOWN, Array, is_float
from tilewright.intrinsics.execute import COMBINES, FUNCTIONS
from tilewright.intrinsics.intrinsic import GROUP_LANES, WIDTH, Intrinsic
from tilewright.intrinsics.numerics import RULES

_LARGEST_BOX = 1 << 22  # elements of an operand
_LARGEST_CALL = 1 << 30  # points of the loop nest


def check(record: Intrinsic) -> None:
    """Prove a record consistent; raises InvalidIntrinsic with the reason, layouts with the element at fault."""
    try:
        _check_header(record)
        _check_extents(record)
        _check_operands(record)
        _check_body(record)
        _check_numerics(record)
        check_layouts(record)
        check_memory(record)
    except InvalidIntrinsic as error:
        if error.where:
            raise
        raise InvalidIntrinsic(error.message, where=record.name, help=error.help) from error


def _check_header(record: Intrinsic) -> None:
    for name in (record.name, *record.aliases):
        if not re.fullmatch(r"\w[\w.]*", name, re.ASCII):
            refuse(f"the name {name!r} is not made of letters, digits, points and underscores")
    if not NAME.fullmatch(record.target):
        refuse(f"the target {record.target!r} is no identifier")
    if record.group not in GROUP_LANES:
        refuse(f"unknown group {record.group!r}", f"one of {', '.join(GROUP_LANES)}")
    cost = record.cost
    if not (cost.issue_cycles > 0 and cost.latency_cycles >= 0 and cost.units_per_core >= 1) or not isfinite(
        cost.issue_cycles + cost.latency_cycles
    ):
        refuse(f"impossible cost: {cost}", "issue cycles above 0, latency of at least 0, at least 1 unit")
    if bool(record.vector_bits) != (WIDTH in record.llvm):
        refuse(f"vector_bits {list(record.vector_bits)} and the function {record.llvm!r}", f"both, {WIDTH} in the name")
    if record.vector_bits and prod(record.shape(record.destination)) not in record.functions:
        refuse(f"no function of its own width: vector_bits {list(record.vector_bits)}", "the bits of the destination")
    if record.limits.registers < 0 or any(size < 1 for size in record.limits.capacity_bytes.values()):
        refuse(f"impossible limits: {record.limits}", "registers of at least 0, capacities above 0")


def _check_extents(record: Intrinsic) -> None:
    if not record.extents:
        refuse("it has no loops", "give extents, as {i1: 16, i2: 8, r1: 16}")
    points = 1
    for name, extent in record.extents.items():
        if not NAME.fullmatch(name):
            refuse(f"the loop name {name!r} is no identifier")
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
            refuse(f"loop {name} has extent {extent!r}", "extents are positive integers")
        points *= extent
    if points > _LARGEST_CALL:
        refuse(f"one call has {points} points", f"at most {_LARGEST_CALL}")


def _check_operands(record: Intrinsic) -> None:
    if len(record.operands) < 2:
        refuse(f"it has {len(record.operands)} operands", "give the sources, then the destination")
    roles = [operand.role for operand in record.operands]
    for operand in record.operands:
        if not NAME.fullmatch(operand.role) or roles.count(operand.role) > 1:
            refuse(f"operand {operand.role!r} has no name of its own")
        if operand.dtype not in KNOWN:
            refuse(f"{operand.role} has unknown element type {operand.dtype!r}", f"one of {', '.join(KNOWN)}")
        for loop in operand.loops:
            if loop not in record.extents:
                refuse(f"{operand.role} has unknown loop {loop!r}", f"one of {', '.join(record.extents)}")
        if len(set(operand.loops)) != len(operand.loops):
            refuse(f"{operand.role} has a loop twice: {', '.join(operand.loops)}")
        if not operand.scope:
            refuse(f"{operand.role} has no scope", "reg, shared, global, use, or a scope of the target")
        if operand.registers < 0 or bool(operand.registers) != (operand.layout == "opaque"):
            refuse(f"{operand.role} of layout {operand.layout} has {operand.registers} registers",
                   "opaque operands state theirs, fragments and others do not")  # fmt: skip
        if int(np.prod(record.shape(operand), dtype=np.int64)) > _LARGEST_BOX:
            refuse(f"{operand.role} has more than {_LARGEST_BOX} elements")
    for loop in record.extents:
        if not any(loop in operand.loops for operand in record.operands):
            refuse(f"loop {loop} indexes no operand")


def _check_body(record: Intrinsic) -> None:
    body = record.body
    for axis in body.axes:
        if axis.name not in record.extents:
            refuse(f"compute has unknown loop {axis.name!r}: {record.compute}")
    found = [(read.tensor.name, tuple(map(_loop, read.indices))) for read in body.reads]
    found.append((body.destination, tuple(axis.name for axis in body.axes if axis.name in record.destination.loops)))
    listed = [(operand.role, operand.loops) for operand in record.operands]
    for operand, (role, loops) in zip(listed, found, strict=False):
        if operand != (role, loops):
            refuse(
                f"compute has {_written(role, loops)} where the operands have {_written(*operand)}",
                "list the operands in the order in which compute reads them, the destination last",
            )
    if len(listed) != len(found):
        refuse(f"compute has {len(found)} operands, the record lists {len(listed)}", "each is read once")
    _check_value(body.value)


def _loop(index: Expr) -> str:
    if not isinstance(index, Axis):
        refuse(f"compute has the index {print_expr(index)}", "every index is one loop")
    return index.name


def _written(role: str, loops: tuple[str, ...]) -> str:
    return f"{role}[{', '.join(loops)}]"


def _check_value(value: Expr) -> None:
    if isinstance(value, Read | Const):
        return
    if not isinstance(value, Apply) or value.function not in FUNCTIONS:
        what = value.function if isinstance(value, Apply) else type(value).__name__
        refuse(f"compute uses {what}", f"bodies are made of {', '.join(FUNCTIONS)}, numbers and operands")
    for arg in value.args:
        _check_value(arg)


def _check_numerics(record: Intrinsic) -> None:
    numerics, accumulator = record.numerics, record.destination.dtype
    rule = RULES.get(numerics.rule)
    if rule is None:
        refuse(f"unknown rule {numerics.rule!r}", f"one of {', '.join(RULES)}")
    if rule.accumulators and accumulator not in rule.accumulators:
        refuse(f"rule {numerics.rule} adds to {', '.join(rule.accumulators)}, not {accumulator}")
    if not is_float(accumulator) and any(is_float(operand.dtype) for operand in record.sources):
        refuse(f"float sources and an accumulator of {accumulator}")
    value = record.body.value
    product = isinstance(value, Apply) and value.function == "mul" and all(isinstance(a, Read) for a in value.args)
    if rule.products and not (product and record.combine == "sum"):
        refuse(f"rule {numerics.rule} adds products of two operands, compute is {record.compute}")
    reductions = int(np.prod([loop.extent for loop in record.loops if loop.kind == "R"], dtype=np.int64))
    group = numerics.group or rule.group
    if numerics.group < 0 or reductions % group:
        refuse(f"rule {numerics.rule} adds {group} at a time, the reduction has {reductions} points")
    if numerics.saturate and accumulator not in ("i8", "u8", "i16", "u16", "i32", "u32"):
        refuse(f"{accumulator} cannot saturate", "8, 16 and 32-bit integers do")
    if numerics.denormals not in ("keep", "zero") or numerics.order not in ("fixed", "unspecified"):
        refuse(f"unknown options: {numerics}", "denormals keep or zero; order fixed or unspecified")
    if numerics.denormals == "zero" and accumulator not in ("bf16", "f16", "f32", "f64"):
        refuse(f"{accumulator} has no denormals that are flushed")
    _check_pad(record)


def _check_pad(record: Intrinsic) -> None:
    """A call on padding alone leaves the destination as it is."""
    integer, pad = not is_float(record.destination.dtype), record.pad_identity
    wide = np.int64 if integer else np.float64
    if integer and not (isfinite(pad) and pad == int(pad) and abs(pad) < 1 << 62):
        refuse(f"pad_identity {pad} is no integer of 63 bits")
    values = np.array([0, 1, -1, 3], wide)
    value = _on_padding(record.body.value, np.array(pad, wide))
    with np.errstate(invalid="ignore"):
        combined = COMBINES[record.combine](values, value)
    if not np.array_equal(combined, values):
        at = int(np.argmax(combined != values))
        refuse(f"pad_identity {pad} is not neutral: it makes {values[at]} of the destination {combined[at]}",
                "0 for sums of products")  # fmt: skip


def _on_padding(value: Expr, pad: Array) -> Array:
    if isinstance(value, Read):
        return pad
    if isinstance(value, Const):
        return np.asarray(value.value)
    assert isinstance(value, Apply), "bodies are checked before"
    return FUNCTIONS[value.function](*(_on_padding(arg, pad) for arg in value.args))
