"""What passes know of the machine that a program is for: the module's attribute `tile.target`, as its file says it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr

ATTRIBUTE = "tile.target"
MATRIX_LOADS = "ldmatrix"  # the unit that loads rows of matrices for other lanes
COPIES = "cp_async"  # the one that copies from global to shared memory while threads go on
UNITS, MULTIPROCESSORS, SHARED_BYTES = "units", "multiprocessors", "shared_bytes"


@dataclass(frozen=True)
class Facts:
    """Units that a machine has beside its arithmetic, such as "tma"; multiprocessors, and shared memory of a block.

    A program that says nothing of its machine has no units, 0 multiprocessors and 0 bytes.
    """

    units: frozenset[str] = frozenset()
    multiprocessors: int = 0
    shared_bytes: int = 0

    def attributes(self) -> dict[str, StringAttr | IntegerAttr]:
        """The entries of the attribute."""
        return {
            UNITS: StringAttr(" ".join(sorted(self.units))),
            MULTIPROCESSORS: IntegerAttr(self.multiprocessors, 64),
            SHARED_BYTES: IntegerAttr(self.shared_bytes, 64),
        }


NOTHING = Facts()


def facts_of(module: ModuleOp) -> Facts:
    """The facts that a module's attribute holds."""
    found = module.attributes.get(ATTRIBUTE)
    entries = found.data if isinstance(found, DictionaryAttr) else {}
    units, counts = entries.get(UNITS), [entries.get(key) for key in (MULTIPROCESSORS, SHARED_BYTES)]
    numbers = [each.value.data if isinstance(each, IntegerAttr) else 0 for each in counts]
    return Facts(frozenset(units.data.split()) if isinstance(units, StringAttr) else frozenset(), *numbers)
