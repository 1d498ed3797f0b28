"""What is proven of layouts and memory statements: every element is somewhere, once, and addresses are affine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NoReturn

import numpy as np

from tilewright.errors import InvalidIntrinsic
from tilewright.intrinsics.formula import formula
from tilewright.intrinsics.fragments import places
from tilewright.intrinsics.intrinsic import GROUP_LANES, Fragment, Intrinsic, Movement, Operand

WORDS = ("row_major", "descriptor", "opaque")  # layouts that are not a formula
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
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
                f"leaves the tile: lane {lane}, e {e} holds {loop} = {index[lane, e]}, its extent is {extent} ({text})"
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
    """A formula is a bijection from the tile to offsets 0 to elements - 1."""
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
    if shared := _shared(operand.loops, shape, offsets):
        refuse(f"the layout of {operand.role} puts {shared} ({text})")


def _shared(loops: tuple[str, ...], shape: tuple[int, ...], offsets: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    """Two elements of a tile that have one offset, in words; "" if there are none."""
    order = np.argsort(offsets, kind="stable")
    same = np.flatnonzero(np.diff(offsets[order]) == 0)
    if not same.size:
        return ""
    first, second = (_element(loops, shape, int(order[same[0] + step])) for step in (0, 1))
    return f"{first} and {second} at {offsets[order[same[0]]]}"


def _element(loops: tuple[str, ...], shape: tuple[int, ...], flat: int) -> str:
    at = np.unravel_index(flat, shape) if shape else ()
    return f"[{', '.join(f'{loop}={int(index)}' for loop, index in zip(loops, at, strict=True))}]"


def check_memory(record: Intrinsic) -> None:
    """Addresses of movements know their names, are affine in the operand's loops and keep its elements apart;
    granularities are possible, and capacities those of scopes that are used.
    """
    for movement in record.memory:
        operand = record.operand(movement.operand)
        _check_movement(movement, operand.loops)
        _check_apart(movement, operand.loops, record.shape(operand))
    scopes = {operand.scope for operand in record.operands}
    scopes |= {scope for movement in record.memory for scope in (movement.source, movement.destination)}
    for scope in record.limits.capacity_bytes:
        if scope not in scopes:
            refuse(f"it has a capacity of {scope!r}, where it keeps nothing", f"one of {', '.join(sorted(scopes))}")


@cache
def _check_movement(movement: Movement, loops: tuple[str, ...]) -> None:
    where = f"memory statement {movement.name!r}"
    for scope in (movement.source, movement.destination):
        if not NAME.fullmatch(scope):
            refuse(f"{where} has the scope {scope!r}", "reg, shared, global, use, or a name of the target")
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


def _check_apart(movement: Movement, loops: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """No two elements of an operand have one address, where strides are long enough."""
    address, reach = movement.address, 0
    for step, extent in sorted(zip(_steps(address, loops), shape, strict=False)):
        if extent > 1 and step <= reach:
            break
        reach += step * (extent - 1)
    else:
        return  # each loop steps over all that those with shorter steps reach
    index = formula(address)
    numbers = {name: pow(3, 41 + number, 1 << 62) for number, name in enumerate(_strides(index.names, loops))}
    values = {**dict.fromkeys(index.names, 0), **numbers, **dict(zip(loops, np.indices(shape), strict=True))}
    offsets = np.broadcast_to(np.asarray(index(values), np.int64), shape).ravel()  # modulo 2**64
    if shared := _shared(loops, shape, offsets):
        refuse(f"memory statement {movement.name!r} puts {shared.partition(' at ')[0]} at one address: {address!r}")


@cache
def _steps(address: str, loops: tuple[str, ...]) -> tuple[int, ...]:
    """How far apart an affine address puts neighbours along each loop, with strides longer than any operand."""
    if not address:
        return ()
    index = formula(address)
    rows = np.zeros((len(loops) + 1, len(index.names | set(loops))), object)  # element 0, then 1 along each loop
    values = dict(zip((*loops, *sorted(index.names - set(loops))), rows.T, strict=True))
    for number, name in enumerate(_strides(index.names, loops), 1):
        values[name][:] = 1 << 40 * number
    for number, name in enumerate(loops, 1):
        values[name][number] = 1
    first, *others = np.broadcast_to(index(values), len(rows)).tolist()
    return tuple(abs(other - first) for other in others)


def _strides(names: frozenset[str], loops: tuple[str, ...]) -> list[str]:
    return [name for name in sorted(names - set(loops)) if not name.startswith(("addr", "base"))]
