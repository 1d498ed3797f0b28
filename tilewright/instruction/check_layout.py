"""What is proven of layouts and memory statements: every element is somewhere, once, and addresses are affine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NoReturn

import numpy as np

from tilewright.errors import InvalidIntrinsic
from tilewright.instruction.formula import formula
from tilewright.instruction.fragments import places
from tilewright.instruction.intrinsic import GROUP_LANES, Fragment, Intrinsic, Movement, Operand

WORDS = ("box", "descriptor", "opaque")  # layouts that are not a formula
_PARAMETER = re.compile(r"(addr|base|stride|ld)(_\w+)?")


def check_layouts(record: Intrinsic) -> None:
    """Fragments cover their operand and hold every element once, formulas of offsets are bijections."""
    for operand in record.operands:
        if isinstance(operand.layout, Fragment):
            _check_fragment(record, operand, operand.layout)
        elif operand.layout not in WORDS:
            _check_offsets(record, operand, operand.layout)


def refuse(message: str, help: str = "") -> NoReturn:
    """Raise InvalidIntrinsic; `check` adds the name of the record."""
    raise InvalidIntrinsic(message, help=help)


def _check_fragment(record: Intrinsic, operand: Operand, fragment: Fragment) -> None:
    role, lanes = operand.role, GROUP_LANES[record.group]
    if len(fragment.indices) != len(operand.loops):
        refuse(f"the fragment of {role} has {len(fragment.indices)} indices for {len(operand.loops)} loops")
    if fragment.lanes != lanes:
        refuse(f"the fragment of {role} has {fragment.lanes} lanes, a {record.group} has {lanes}")
    fault = _fault(fragment, operand.loops, record.shape(operand))
    if fault:
        refuse(f"the fragment of {role} {fault}",
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
        refuse(f"{sorted(unknown)[0]!r} is unknown in the layout of {operand.role}: {text!r}",
                f"its loops are {', '.join(operand.loops)}; or one of {', '.join(WORDS)}")  # fmt: skip
    values = dict(zip(operand.loops, np.indices(shape), strict=True))
    offsets = np.broadcast_to(np.asarray(index(values), np.int64), shape).ravel()
    outside = (offsets < 0) | (offsets >= offsets.size)
    if outside.any():
        at = int(np.argmax(outside))
        refuse(f"the layout of {operand.role} puts {_element(operand.loops, shape, at)} at {offsets[at]}, "
                f"outside of its {offsets.size} elements ({text})")  # fmt: skip
    order = np.argsort(offsets, kind="stable")
    same = np.flatnonzero(np.diff(offsets[order]) == 0)
    if same.size:
        first, second = (_element(operand.loops, shape, int(order[same[0] + step])) for step in (0, 1))
        refuse(f"the layout of {operand.role} puts {first} and {second} at {offsets[order[same[0]]]} ({text})")


def _element(loops: tuple[str, ...], shape: tuple[int, ...], flat: int) -> str:
    at = np.unravel_index(flat, shape) if shape else ()
    return f"[{', '.join(f'{loop}={int(index)}' for loop, index in zip(loops, at, strict=True))}]"


def check_memory(record: Intrinsic) -> None:
    """Addresses of movements know their names and are affine in the operand's loops; granularities are possible."""
    for movement in record.memory:
        _check_movement(movement, record.operand(movement.operand).loops)


@cache
def _check_movement(movement: Movement, loops: tuple[str, ...]) -> None:
    where = f"memory statement {movement.name!r}"
    if not (movement.source and movement.destination):
        refuse(f"{where} has no scope", "give destination and source")
    if movement.alignment_bytes < 1 or movement.alignment_bytes & (movement.alignment_bytes - 1):
        refuse(f"{where} is aligned to {movement.alignment_bytes} bytes", "a power of two")
    if movement.stride_multiple < 1:
        refuse(f"{where} has strides of multiples of {movement.stride_multiple}", "a positive number")
    for text, own in _addresses(movement.address, movement.lane_address, loops):
        for name in sorted(formula(text).names - own):
            if not _PARAMETER.fullmatch(name):
                help = f"{', '.join(sorted(own))}, and parameters addr_*, base_*, stride_*, ld_*"
                refuse(f"{where} has the unknown name {name!r} in address {text!r}", help)
        if text == movement.address and not formula(text).is_affine(own):
            refuse(f"{where} has an address that is not affine: {text!r}", "sums of loop * stride")


def _addresses(address: str, lane_address: str, loops: tuple[str, ...]) -> Iterator[tuple[str, frozenset[str]]]:
    if address:
        yield address, frozenset(loops)
    if lane_address:
        yield lane_address, frozenset(("lane",))
