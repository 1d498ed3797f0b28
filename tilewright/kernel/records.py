"""The records behind the names that products in a tile program carry.

`tile.dot`, `simt.mma` and what becomes of them name an intrinsic. The name is looked up here and nowhere else: among
the records that the module carries in its attribute `tile.records`, then in the catalogue. Passes, interpreters and
code generation read the record; the text of a name tells them nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from tilewright.errors import CompileError, InvalidProgram
from tilewright.kernel.dialect import DotOp

if TYPE_CHECKING:
    from tilewright.intrinsics.intrinsic import Intrinsic
    from tilewright.intrinsics.registry import Registry

RECORDS: Final = "tile.records"  # of a module: records as a file has them, JSON
FMA: Final = "fma"  # what `tile.dot` calls multiply-adds of a thread, which are no intrinsic


def carry(module: ModuleOp, registry: Registry | None, catalogue: Registry | None = None) -> None:
    """Put the records of `registry` that products of a module name into the module, where the catalogue lacks them.

    A record comes with the one that realises it, and with micro-kernels that are made of it and have another emitter,
    a body of their own. Aliases stay behind: programs use names. `registry` None is the
    catalogue itself; `catalogue` None is that of all targets.
    """
    if registry is None:
        return
    from dataclasses import replace

    from tilewright.intrinsics.files import to_text
    from tilewright.intrinsics.registry import standard

    known, found = catalogue or standard(), dict[str, "Intrinsic"]()
    names = [op.intrinsic.data for op in module.walk() if isinstance(op, DotOp)]
    for name in names:
        if name in registry and name not in found:
            record = found[name] = registry.find(name)
            names += [record.realised_by] if record.realised_by else []
            found |= {each.name: each for each in registry.made_of(name) if each.emitter != record.emitter}
    own = [record for name, record in found.items() if name not in known or known.find(name) != record]
    if own:
        module.attributes[RECORDS] = StringAttr(to_text(replace(record, aliases=()) for record in own))


def registry_of(op: Operation, catalogue: Callable[[], Registry] | None = None) -> Registry:
    """The records that an operation may name: those of its module first, then the catalogue (None: of all targets).

    Raises InvalidProgram where the module's own records cannot be read.
    """
    from tilewright.intrinsics.registry import standard

    top = op.get_toplevel_object()
    carried = top.attributes.get(RECORDS) if isinstance(top, ModuleOp) else None
    known = (catalogue or standard)()
    if carried is None:
        return known
    if not isinstance(carried, StringAttr):
        raise InvalidProgram(f"{RECORDS} is {carried}", help="a text: records as a file has them")
    return _with(known, carried.data)


@lru_cache(maxsize=64)
def _with(known: Registry, text: str) -> Registry:
    from tilewright.intrinsics.files import read_text

    try:
        carried = read_text(text, RECORDS)
        return known.without(*(record.name for record in carried if record.name in known)).add(*carried)
    except CompileError as error:
        raise InvalidProgram(f"{error.where}: {error.message}", help=error.help) from None


def record_of(op: Operation, catalogue: Callable[[], Registry] | None = None) -> Intrinsic:
    """The record that an operation with the property `intrinsic` names; raises InvalidProgram where there is none."""
    name: str = op.properties["intrinsic"].data  # type: ignore[attr-defined]
    try:
        return registry_of(op, catalogue).find(name)
    except InvalidProgram:
        raise
    except CompileError as error:
        raise InvalidProgram(error.message, help=error.help) from None


def fragments_record(op: Operation) -> Intrinsic | None:
    """The record of a product of tiles, None where every thread multiplies and adds; raises as `record_of` does."""
    return None if op.properties["intrinsic"].data == FMA else record_of(op)  # type: ignore[attr-defined]


# What records say -----------------------------------------------------------------------------------------------------


def lanes_of(record: Intrinsic) -> int:
    """Lanes that issue a record."""
    from tilewright.intrinsics.intrinsic import GROUP_LANES

    return GROUP_LANES[record.group]


def extents_of_record(record: Intrinsic) -> tuple[int, int, int]:
    """M, N and K of the product of two matrices; raises InvalidProgram for a record of another form."""
    shapes = [record.shape(operand) for operand in record.operands]
    if len(shapes) != 3 or any(len(shape) != 2 for shape in shapes):
        raise InvalidProgram(f"{record.name} is no product of two matrices: {record.compute}")
    (_, k), _, (m, n) = shapes
    return m, n, k


def dtypes_of(record: Intrinsic) -> tuple[str, ...]:
    """Element types of the operands: a, b and c of a product."""
    return tuple(operand.dtype for operand in record.operands)


def is_opaque(record: Intrinsic) -> bool:
    """Whether warps multiply matrices whose fragment layouts are unspecified."""
    return len(record.operands) == 3 and all(operand.layout == "opaque" for operand in record.operands)


def is_of_four_warps(record: Intrinsic) -> bool:
    """Whether a group of four warps issues a record together."""
    return record.group == "warpgroup128"


@lru_cache(maxsize=256)
def alike(record: Intrinsic, known: Registry, group: str, shape: tuple[int, int, int]) -> Intrinsic | None:
    """The first record of `known` with the types and rules of `record`, of another group and (M, N, K); None: none.

    Records with unspecified fragment layouts are left out.
    """
    wanted = dtypes_of(record), record.numerics, group
    for other in known:
        if (dtypes_of(other), other.numerics, other.group) != wanted or is_opaque(other):
            continue
        if all(len(operand.loops) == 2 for operand in other.operands) and extents_of_record(other) == shape:
            return other
    return None
