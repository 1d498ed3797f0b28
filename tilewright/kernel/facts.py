"""What passes know of the machine that a program is for: the module's attribute `tile.target`, as its file says it."""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr

from tilewright.dataclass import dataclass
from tilewright.instruction.mma.tensor_core_config import MAX_THREADS
from tilewright.kernel.target import ATTRIBUTE

UNITS = "units"


@dataclass(frozen=True)
class Facts:
    """Units that a machine has beside its arithmetic, such as "tma"; its multiprocessors; what a block may have.

    A program that says nothing of its machine has no units, 0 multiprocessors and 0 bytes; `threads` of a block and
    `registers` of a thread are then what GPUs have.
    """

    units: frozenset[str] = frozenset()
    multiprocessors: int = 0
    shared_bytes: int = 0
    threads: int = MAX_THREADS
    registers: int = 255

    def attributes(self) -> dict[str, StringAttr | IntegerAttr]:
        """The entries of the attribute."""
        return {
            UNITS: StringAttr(" ".join(sorted(self.units))),
            **{key: IntegerAttr(getattr(self, key), 64) for key in _NUMBERS},
        }


_NUMBERS = ("multiprocessors", "shared_bytes", "threads", "registers")
NOTHING = Facts()


def facts_of(module: ModuleOp) -> Facts:
    """The facts that a module's attribute holds."""
    found = module.attributes.get(ATTRIBUTE)
    entries = found.data if isinstance(found, DictionaryAttr) else {}
    units = entries.get(UNITS)
    numbers = {key: value.value.data for key in _NUMBERS if isinstance(value := entries.get(key), IntegerAttr)}
    return Facts(frozenset(units.data.split()) if isinstance(units, StringAttr) else frozenset(), **numbers)
