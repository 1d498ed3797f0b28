"""What is proven of a record before anything uses it: its parts agree, and its layouts hold every element once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from math import isfinite
from typing import NoReturn

import numpy as np

from tilewright.errors import InvalidIntrinsic
from tilewright.expr.core import Apply, Axis, Const, Expr, Read
from tilewright.expr.text import print_expr
from tilewright.instruction.elements import KNOWN, Array, is_float
from tilewright.instruction.execute import COMBINES, FUNCTIONS
from tilewright.instruction.formula import formula
from tilewright.instruction.fragments import places
from tilewright.instruction.intrinsic import GROUP_LANES, Fragment, Intrinsic, Operand
from tilewright.instruction.numerics import RULES

WORDS = ("box", "descriptor", "opaque")  # layouts that are not a formula
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"(addr|base|stride|ld)(_\w+)?")
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
        for operand in record.operands:
            _check_layout(record, operand)
        _check_memory(record)
    except InvalidIntrinsic as error:
        if error.where:
            raise
        raise InvalidIntrinsic(error.message, where=record.name, help=error.help) from error


def _refuse(message: str, help: str = "") -> NoReturn:
    raise InvalidIntrinsic(message, help=help)


def _check_header(record: Intrinsic) -> None:
    for name in (record.name, *record.aliases):
        if not re.fullmatch(r"\w[\w.]*", name):
            _refuse(f"the name {name!r} is not made of letters, digits, points and underscores")
    if not record.target:
        _refuse("it has no target")
    if record.group not in GROUP_LANES:
        _refuse(f"unknown group {record.group!r}", f"one of {', '.join(GROUP_LANES)}")
    cost = record.cost
    if not (cost.issue_cycles > 0 and cost.latency_cycles >= 0 and cost.units_per_core >= 1) or not isfinite(
        cost.issue_cycles + cost.latency_cycles
    ):
        _refuse(f"impossible cost: {cost}", "issue cycles above 0, latency of at least 0, at least 1 unit")
    if record.limits.registers < 0 or any(size < 1 for size in record.limits.capacity_bytes.values()):
        _refuse(f"impossible limits: {record.limits}", "registers of at least 0, capacities above 0")


def _check_extents(record: Intrinsic) -> None:
    if not record.extents:
        _refuse("it has no loops", "give extents, as {i1: 16, i2: 8, r1: 16}")
    points = 1
    for name, extent in record.extents.items():
        if not _NAME.fullmatch(name):
            _refuse(f"the loop name {name!r} is no identifier")
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
            _refuse(f"loop {name} has extent {extent!r}", "extents are positive integers")
        points *= extent
    if points > _LARGEST_CALL:
        _refuse(f"one call has {points} points", f"at most {_LARGEST_CALL}")


def _check_operands(record: Intrinsic) -> None:
    if len(record.operands) < 2:
        _refuse(f"it has {len(record.operands)} operands", "give the sources, then the destination")
    roles = [operand.role for operand in record.operands]
    for operand in record.operands:
        if not _NAME.fullmatch(operand.role) or roles.count(operand.role) > 1:
            _refuse(f"operand {operand.role!r} has no name of its own")
        if operand.dtype not in KNOWN:
            _refuse(f"{operand.role} has unknown element type {operand.dtype!r}", f"one of {', '.join(KNOWN)}")
        for loop in operand.loops:
            if loop not in record.extents:
                _refuse(f"{operand.role} has unknown loop {loop!r}", f"one of {', '.join(record.extents)}")
        if len(set(operand.loops)) != len(operand.loops):
            _refuse(f"{operand.role} has a loop twice: {', '.join(operand.loops)}")
        if not operand.scope:
            _refuse(f"{operand.role} has no scope", "reg, shared, global, use, or a scope of the target")
        if int(np.prod(record.shape(operand), dtype=np.int64)) > _LARGEST_BOX:
            _refuse(f"{operand.role} has more than {_LARGEST_BOX} elements")
    for loop in record.extents:
        if not any(loop in operand.loops for operand in record.operands):
            _refuse(f"loop {loop} indexes no operand")


def _check_body(record: Intrinsic) -> None:
    body = record.body
    for axis in body.axes:
        if axis.name not in record.extents:
            _refuse(f"compute has unknown loop {axis.name!r}: {record.compute}")
    found = [(read.tensor.name, tuple(map(_loop, read.indices))) for read in body.reads]
    found.append((body.destination, tuple(axis.name for axis in body.axes if axis.name in record.destination.loops)))
    listed = [(operand.role, operand.loops) for operand in record.operands]
    for operand, (role, loops) in zip(listed, found, strict=False):
        if operand != (role, loops):
            _refuse(
                f"compute has {_written(role, loops)} where the operands have {_written(*operand)}",
                "list the operands in the order in which compute reads them, the destination last",
            )
    if len(listed) != len(found):
        _refuse(f"compute has {len(found)} operands, the record lists {len(listed)}", "each is read once")
    _check_value(body.value)


def _loop(index: Expr) -> str:
    if not isinstance(index, Axis):
        _refuse(f"compute has the index {print_expr(index)}", "every index is one loop")
    return index.name


def _written(role: str, loops: tuple[str, ...]) -> str:
    return f"{role}[{', '.join(loops)}]"


def _check_value(value: Expr) -> None:
    if isinstance(value, Read | Const):
        return
    if not isinstance(value, Apply) or value.function not in FUNCTIONS:
        what = value.function if isinstance(value, Apply) else type(value).__name__
        _refuse(f"compute uses {what}", f"bodies are made of {', '.join(FUNCTIONS)}, numbers and operands")
    for arg in value.args:
        _check_value(arg)


def _check_numerics(record: Intrinsic) -> None:
    numerics, accumulator = record.numerics, record.destination.dtype
    rule = RULES.get(numerics.rule)
    if rule is None:
        _refuse(f"unknown rule {numerics.rule!r}", f"one of {', '.join(RULES)}")
    if rule.accumulators and accumulator not in rule.accumulators:
        _refuse(f"rule {numerics.rule} adds to {', '.join(rule.accumulators)}, not {accumulator}")
    if not is_float(accumulator) and any(is_float(operand.dtype) for operand in record.sources):
        _refuse(f"float sources and an accumulator of {accumulator}")
    value = record.body.value
    product = isinstance(value, Apply) and value.function == "mul" and all(isinstance(a, Read) for a in value.args)
    if rule.products and not (product and record.combine == "sum"):
        _refuse(f"rule {numerics.rule} adds products of two operands, compute is {record.compute}")
    reductions = int(np.prod([loop.extent for loop in record.loops if loop.kind == "R"], dtype=np.int64))
    group = numerics.group or rule.group
    if numerics.group < 0 or reductions % group:
        _refuse(f"rule {numerics.rule} adds {group} at a time, the reduction has {reductions} points")
    if numerics.saturate and accumulator not in ("i8", "u8", "i16", "u16", "i32", "u32"):
        _refuse(f"{accumulator} cannot saturate", "8, 16 and 32-bit integers do")
    if numerics.denormals not in ("keep", "zero") or numerics.order not in ("fixed", "unspecified"):
        _refuse(f"unknown options: {numerics}", "denormals keep or zero; order fixed or unspecified")
    if numerics.denormals == "zero" and accumulator not in ("bf16", "f16", "f32", "f64"):
        _refuse(f"{accumulator} has no denormals that are flushed")
    _check_pad(record)


def _check_pad(record: Intrinsic) -> None:
    """A call on padding alone leaves the destination as it is."""
    integer, pad = not is_float(record.destination.dtype), record.pad_identity
    wide = np.int64 if integer else np.float64
    if integer and not (isfinite(pad) and pad == int(pad) and abs(pad) < 1 << 62):
        _refuse(f"pad_identity {pad} is no integer of 63 bits")
    values = np.array([0, 1, -1, 3], wide)
    value = _on_padding(record.body.value, np.array(pad, wide))
    with np.errstate(invalid="ignore"):
        combined = COMBINES[record.combine](values, value)
    if not np.array_equal(combined, values):
        at = int(np.argmax(combined != values))
        _refuse(f"pad_identity {pad} is not neutral: it makes {values[at]} of the destination {combined[at]}",
                "0 for sums of products")  # fmt: skip


def _on_padding(value: Expr, pad: Array) -> Array:
    if isinstance(value, Read):
        return pad
    if isinstance(value, Const):
        return np.asarray(value.value)
    assert isinstance(value, Apply), "bodies are checked before"
    return FUNCTIONS[value.function](*(_on_padding(arg, pad) for arg in value.args))


def _check_layout(record: Intrinsic, operand: Operand) -> None:
    if isinstance(operand.layout, Fragment):
        _check_fragment(record, operand, operand.layout)
    elif operand.layout not in WORDS:
        _check_offsets(record, operand, operand.layout)


def _check_fragment(record: Intrinsic, operand: Operand, fragment: Fragment) -> None:
    role, lanes = operand.role, GROUP_LANES[record.group]
    if len(fragment.indices) != len(operand.loops):
        _refuse(f"the fragment of {role} has {len(fragment.indices)} indices for {len(operand.loops)} loops")
    if fragment.lanes != lanes:
        _refuse(f"the fragment of {role} has {fragment.lanes} lanes, a {record.group} has {lanes}")
    fault = _fault(fragment, operand.loops, record.shape(operand))
    if fault:
        _refuse(f"the fragment of {role} {fault}",
                "say `replicated` if lanes hold copies on purpose" if "twice" in fault else "")  # fmt: skip


@cache
def _fault(fragment: Fragment, loops: tuple[str, ...], shape: tuple[int, ...]) -> str:
    """What contradicts coverage (every element is held) or bijectivity (by one lane and e, unless replicated)."""
    indices = places(fragment)
    for loop, text, index, extent in zip(loops, fragment.indices, indices, shape, strict=True):
        outside = (index < 0) | (index >= extent)
        if outside.any():
            lane, e = (int(number) for number in np.argwhere(outside)[0])
            return (
                f"leaves the box: lane {lane}, e {e} holds {loop} = {index[lane, e]}, its extent is {extent} ({text})"
            )
    if not shape:
        return "" if fragment.lanes * fragment.elements == 1 or fragment.replicated else "holds a scalar twice"
    flat = np.ravel_multi_index(indices, shape).ravel()
    holders = np.bincount(flat, minlength=int(np.prod(shape)))
    if not holders.all():
        return f"does not cover it: no lane holds {_element(loops, shape, int(np.argmin(holders)))}"
    if holders.max() > 1 and not fragment.replicated:
        place = int(np.argmax(holders > 1))
        first, second = (divmod(int(at), fragment.elements) for at in np.flatnonzero(flat == place)[:2])
        return (
            f"holds {_element(loops, shape, place)} twice: lane {first[0]}, e {first[1]} and lane {second[0]}, "
            f"e {second[1]}"
        )
    return "says replicated, and holds every element once" if holders.max() == 1 and fragment.replicated else ""


def _check_offsets(record: Intrinsic, operand: Operand, text: str) -> None:
    """A formula is a bijection from the box to offsets 0 to elements - 1."""
    index, shape = formula(text), record.shape(operand)
    if unknown := index.names - set(operand.loops):
        _refuse(f"{sorted(unknown)[0]!r} is unknown in the layout of {operand.role}: {text!r}",
                f"its loops are {', '.join(operand.loops)}; or one of {', '.join(WORDS)}")  # fmt: skip
    values = dict(zip(operand.loops, np.indices(shape), strict=True))
    offsets = np.broadcast_to(np.asarray(index(values), np.int64), shape).ravel()
    outside = (offsets < 0) | (offsets >= offsets.size)
    if outside.any():
        at = int(np.argmax(outside))
        _refuse(f"the layout of {operand.role} puts {_element(operand.loops, shape, at)} at {offsets[at]}, "
                f"outside of its {offsets.size} elements ({text})")  # fmt: skip
    order = np.argsort(offsets, kind="stable")
    same = np.flatnonzero(np.diff(offsets[order]) == 0)
    if same.size:
        first, second = (_element(operand.loops, shape, int(order[same[0] + step])) for step in (0, 1))
        _refuse(f"the layout of {operand.role} puts {first} and {second} at {offsets[order[same[0]]]} ({text})")


def _element(loops: tuple[str, ...], shape: tuple[int, ...], flat: int) -> str:
    at = np.unravel_index(flat, shape) if shape else ()
    return f"[{', '.join(f'{loop}={int(index)}' for loop, index in zip(loops, at, strict=True))}]"


def _check_memory(record: Intrinsic) -> None:
    for movement in record.memory:
        where = f"memory statement {movement.name!r}"
        operand = record.operand(movement.operand)
        if not (movement.source and movement.destination):
            _refuse(f"{where} has no scope", "give destination and source")
        if movement.alignment_bytes < 1 or movement.alignment_bytes & (movement.alignment_bytes - 1):
            _refuse(f"{where} is aligned to {movement.alignment_bytes} bytes", "a power of two")
        if movement.stride_multiple < 1:
            _refuse(f"{where} has strides of multiples of {movement.stride_multiple}", "a positive number")
        for text, own in _addresses(movement.address, movement.lane_address, operand.loops):
            names = formula(text).names
            for name in sorted(names - own):
                if not _PARAMETER.fullmatch(name):
                    _refuse(f"{where} has the unknown name {name!r} in address {text!r}",
                            f"{', '.join(sorted(own))}, and parameters addr_*, base_*, stride_*, ld_*")  # fmt: skip
            if text == movement.address and not formula(text).is_affine(own):
                _refuse(f"{where} has an address that is not affine: {text!r}", "sums of loop * stride")


def _addresses(address: str, lane_address: str, loops: tuple[str, ...]) -> Iterator[tuple[str, frozenset[str]]]:
    if address:
        yield address, frozenset(loops)
    if lane_address:
        yield lane_address, frozenset(("lane",))
