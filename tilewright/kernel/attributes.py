"""What a kernel asks of passes and of code generation: its attributes, checked and read here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidProgram, nearest
from tilewright.layouts.linear import LinearLayout

if TYPE_CHECKING:
    from tilewright.kernel.programs import FuncOp

WARPS, STAGES, SPLITS, CLUSTER, LAYOUT = "warps", "stages", "splits", "cluster", "layout"
REGISTERS, BLOCKS, MOST_RESIDENT = "registers", "blocks_per_multiprocessor", "most_blocks_per_multiprocessor"
LIMITS: Final = (REGISTERS, BLOCKS, MOST_RESIDENT)
"""What code generation reads: these stay with a kernel in distributed form."""

MOST_CLUSTER = 4  # blocks of a program: 8 are what every GPU with clusters has; beyond 4, boxes are cut too small
MOST_REGISTERS = 512  # of a thread, on any GPU; what its machine has is checked where that is known
MOST_BLOCKS = 32  # of a multiprocessor; CUDA C++ Programming Guide, "Compute Capabilities"


@dataclass(frozen=True)
class Known:
    """One attribute: who reads it, and what it may be, in words and as a test."""

    readers: str
    legal: str
    is_legal: Callable[[Attribute], bool]


def _number(most: int | None = None) -> Callable[[Attribute], bool]:
    def is_legal(value: Attribute) -> bool:
        return isinstance(value, IntegerAttr) and value.type == i64 and 1 <= value.value.data <= (most or 1 << 31)

    return is_legal


def _is_grid(value: Attribute) -> bool:
    if not isinstance(value, DenseArrayBase) or value.elt_type != i64 or len(value) != 2:
        return False
    return all(count > 0 and not count & (count - 1) for count in map(int, value.get_values()))


def _is_cluster(value: Attribute) -> bool:
    return _number(MOST_CLUSTER)(value) and isinstance(value, IntegerAttr) and value.value.data != 3


def _is_layout(value: Attribute) -> bool:
    return isinstance(value, StringAttr) and _layout(value.data) is not None


@lru_cache(maxsize=1024)
def _layout(text: str) -> LinearLayout | None:
    from tilewright.layouts.text import parse  # brings every kind of layout, which CPUs do without

    try:
        found = parse(text)
    except CompileError:
        return None
    return found if isinstance(found, LinearLayout) else None


KNOWN: Final[Mapping[str, Known]] = MappingProxyType({
    WARPS: Known(
        "assign-layouts, distribute and the passes of products",
        "warps along m and n of products: two powers of two, such as array<i64: 2, 4>", _is_grid,
    ),
    STAGES: Known("pipeline-loads, pipeline-tensor-copies", "buffers: 1 or more, such as 3 : i64", _number()),
    SPLITS: Known("split-k", "parts of k: 1 or more, such as 4 : i64", _number()),
    CLUSTER: Known("multicast", "blocks that share copies: 1, 2 or 4, such as 2 : i64", _is_cluster),
    LAYOUT: Known("assign-layouts", 'the text of a linear layout of tiles, "#linear<…>"', _is_layout),
    REGISTERS: Known(
        "code generation", f"registers of a thread: 1 to {MOST_REGISTERS}, such as 128 : i64", _number(MOST_REGISTERS)
    ),
    BLOCKS: Known(
        "code generation", f"blocks for which there are registers: 1 to {MOST_BLOCKS}, such as 2 : i64",
        _number(MOST_BLOCKS),
    ),
    MOST_RESIDENT: Known(
        "code generation", f"blocks that a multiprocessor holds at most: 1 to {MOST_BLOCKS}, such as 1 : i64",
        _number(MOST_BLOCKS),
    ),
})  # fmt: skip


def wrong(attributes: Mapping[str, Attribute]) -> tuple[str, str] | None:
    """What is wrong with the attributes of a kernel, and what would be legal; None if nothing is.

    >>> wrong({"warp": i64})[0]
    'no attribute warp'
    """
    for key, value in attributes.items():
        known = KNOWN.get(key)
        if known is None:
            close = [f"did you mean {name}?" for name in nearest(key, KNOWN)]
            return f"no attribute {key}", " ".join([*close, f"one of {', '.join(KNOWN)}"])
        if not known.is_legal(value):
            return f"{key} = {value}", f"{known.legal}; read by {known.readers}"
    return None


def warps_of(kernel: FuncOp) -> tuple[int, int] | None:
    """Warps of a block along m and n of its products, where the kernel's attribute `warps` says so."""
    found = _checked(kernel, WARPS)
    if not isinstance(found, DenseArrayBase):
        return None
    rows, columns = (int(count) for count in found.get_values())
    return rows, columns


def set_warps(kernel: FuncOp, warps: tuple[int, int]) -> None:
    """Say how many warps a block has along m and n of its products."""
    kernel.attributes[WARPS] = DenseArrayBase.from_list(i64, warps)


def stages_of(kernel: FuncOp, usual: int) -> int:
    """How many buffers what a kernel's loops read has in turns: what its attribute `stages` says, or as usual."""
    return _number_of(kernel, STAGES) or usual


def splits_of(kernel: FuncOp, usual: int) -> int:
    """Blocks that share a tile of a kernel's product: what its attribute `splits` says, or as usual."""
    return _number_of(kernel, SPLITS) or usual


def cluster_of(kernel: FuncOp, usual: int) -> int:
    """Blocks that share copies of what all of them read: what a kernel's attribute `cluster` says, or as usual."""
    return _number_of(kernel, CLUSTER) or usual


def registers_of(kernel: FuncOp) -> int | None:
    """The most registers that a thread may have, where a kernel says so."""
    return _number_of(kernel, REGISTERS)


def blocks_of(kernel: FuncOp) -> int | None:
    """How many blocks of a kernel a multiprocessor shall have registers for, where it says so."""
    return _number_of(kernel, BLOCKS)


def most_resident_of(kernel: FuncOp) -> int | None:
    """How many blocks of a kernel a multiprocessor may hold at once, where it says so."""
    return _number_of(kernel, MOST_RESIDENT)


def asked_layout(kernel: FuncOp) -> LinearLayout | None:
    """The layout of the tiles of a block, where the kernel's attribute `layout` says so."""
    found = _checked(kernel, LAYOUT)
    return _layout(found.data) if isinstance(found, StringAttr) else None


def _number_of(kernel: FuncOp, key: str) -> int | None:
    found = _checked(kernel, key)
    return int(found.value.data) if isinstance(found, IntegerAttr) else None


def _checked(kernel: FuncOp, key: str) -> Attribute | None:
    """An attribute of a kernel that perhaps nobody has verified; InvalidProgram for an illegal one."""
    value = kernel.attributes.get(key)
    if value is not None and (problem := wrong({key: value})) is not None:
        raise InvalidProgram(f"kernel {kernel.sym_name.data}: {problem[0]}", help=problem[1])
    return value
