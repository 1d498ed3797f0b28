"""The attribute of a module that names what it is compiled for, as LLVM names it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr

from tilewright.errors import InvalidProgram
from tilewright.machine import targets

ATTRIBUTE = "tile.target"


def texts_of(module: ModuleOp, *keys: str) -> list[str]:
    """Entries of a module's attribute that are text; raises InvalidProgram where one is missing or no text."""
    found = module.attributes.get(ATTRIBUTE)
    if not isinstance(found, DictionaryAttr):
        raise InvalidProgram(f"the module has no {ATTRIBUTE} attribute", help=f"it names {', '.join(keys)}")
    texts = []
    for key in keys:
        value = found.data.get(key)
        if not isinstance(value, StringAttr):
            raise InvalidProgram(f"{ATTRIBUTE} has no text {key!r}")
        texts.append(value.data)
    return texts


def triple_of(module: ModuleOp) -> str:
    """The triple of the target that a module names, "" where it names none."""
    found = module.attributes.get(ATTRIBUTE)
    triple = found.data.get("triple") if isinstance(found, DictionaryAttr) else None
    return triple.data if isinstance(triple, StringAttr) else ""


def require_fit(triple: str, cpu: str, features: Sequence[str]) -> None:
    """Raises InvalidProgram for a target of which LLVM has no code; `features` are signed."""
    misfit = targets.misfit(triple, cpu, features)
    if misfit is not None:
        raise InvalidProgram(f"{ATTRIBUTE}: {misfit.field} {misfit.message}", help=misfit.help)
