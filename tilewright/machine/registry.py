"""Machines by name or file: the files beside this module, files of the user, and the host."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from typing import Any, Final

from tilewright.errors import InvalidMachine, nearest
from tilewright.fields import Place
from tilewright.files import as_path
from tilewright.machine.description import Accelerator, Cpu, Gpu, Machine
from tilewright.machine.reading import FILES, Document, read_document

KINDS: Final[dict[str, type[Machine]]] = {"cpu": Cpu, "gpu": Gpu, "accelerator": Accelerator}
MAX_EXTENDS: Final = 8
EXTENSIBLE_LISTS: Final = ("features", "intrinsics")  # take {add: [...], remove: [...]} in a file that extends


def names() -> list[str]:
    """Every name that `resolve` knows: `host` first, then the machine files in alphabetic order."""
    return ["host", *sorted(path.stem for path in FILES.glob("*.yaml"))]


def naming(word: str) -> list[str]:
    """The machines in whose files a word stands: no other file has to be read as YAML to find the one that says it."""
    whole = re.compile(rf"(?<![\w.+-]){re.escape(word)}(?![\w.+-])")
    return [name for name in names()[1:] if whole.search((FILES / f"{name}.yaml").read_text("utf-8"))]


def resolve(name_or_path: str | os.PathLike[str]) -> Machine:
    """The machine of that name, or described by that YAML file.

    A file may start from another machine with `extends: NAME` (or a path relative to the file) and state only what
    differs: nested mappings are merged (null takes an entry away), lists replace, and `features` and `intrinsics` also
    take `{add: [...], remove: [...]}`. Raises InvalidMachine naming file, line, field, value and what would be legal.
    """
    if isinstance(name_or_path, str) and not _is_path(name_or_path):
        if name_or_path == "host":
            from tilewright.machine.detect import host  # detection reads the files through this module

            return host()
        if name_or_path not in names():
            raise _unknown(name_or_path)
        return _listed_machine(name_or_path)
    return _read(as_path(name_or_path, "machine"))


def resolve_cpu(name_or_path: str | os.PathLike[str]) -> Cpu:
    """`resolve` for callers that generate CPU code; raises InvalidMachine for a GPU or accelerator."""
    machine = resolve(name_or_path)
    if not isinstance(machine, Cpu):
        cpus = [name for name in names()[1:] if isinstance(_listed_machine(name), Cpu)]
        raise InvalidMachine(
            f"{machine.name} is of kind {machine.kind}, and a CPU is needed",
            where=os.fspath(name_or_path),
            help="one of " + ", ".join(["host", *cpus]),
        )
    return machine


def machine_from_json(value: Any) -> Machine:
    """The machine that `Machine.to_json` wrote; raises InvalidMachine if it is not one."""
    if not isinstance(value, dict):
        raise InvalidMachine(f"a machine is a mapping, not {type(value).__name__}", where="machine")
    return _validate(Document("machine", value, {}), value)


@functools.cache
def _listed_machine(name: str) -> Machine:
    return _read(FILES / f"{name}.yaml")


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def _unknown(name: str, where: str = "") -> InvalidMachine:
    close = nearest(name, names(), 3)
    legal = f"did you mean {', '.join(close)}?" if close else f"one of {', '.join(names())}"
    return InvalidMachine(f"there is no machine {name!r}", where=where, help=f"{legal}; or a path to a .yaml file")


def _read(path: Path) -> Machine:
    document = read_document(path)
    return _validate(document, _extended(document, depth=0))


def _extended(document: Document, depth: int) -> dict[str, Any]:
    """The values of a file on top of those of the machine that it extends."""
    values = dict(document.values)
    base_name = values.pop("extends", None)
    if base_name is None:
        return values
    where = document.where(("extends",))
    if not isinstance(base_name, str):
        raise InvalidMachine(f"extends is {base_name!r}, which is no name", where=where)
    if depth == MAX_EXTENDS:
        raise InvalidMachine(f"more than {MAX_EXTENDS} files extend each other", where=where, help="is it a circle?")
    if base_name == "host":
        base = resolve("host").to_json()
    elif _is_path(base_name):
        base = _extended(read_document(Path(document.path).parent / base_name), depth + 1)
    elif base_name in names():
        base = _extended(read_document(FILES / f"{base_name}.yaml"), depth + 1)
    else:
        raise _unknown(base_name, where)
    if base.get("kind") == "cpu" and isinstance(base.get("llvm"), dict):
        base["llvm"] = {key: value for key, value in base["llvm"].items() if key != "features"}
    return _merged(base, values, document, ())


def _merged(base: dict[str, Any], over: dict[str, Any], document: Document, place: Place) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        here = (*place, key)
        old = merged.get(key)
        if not place and key in EXTENSIBLE_LISTS and isinstance(value, dict):
            merged[key] = _edited_list(old or [], value, document, here)
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(old, dict):
            merged[key] = _merged(old, value, document, here)
        else:
            merged[key] = value
    return merged


def _edited_list(old: list[Any], edit: dict[str, Any], document: Document, place: Place) -> list[Any]:
    for key, names_ in edit.items():
        if key not in ("add", "remove") or not isinstance(names_, list):
            raise InvalidMachine(
                f"{place[-1]} has {key!r}: {names_!r}", where=document.where((*place, key)),
                help="a list of names, or {add: [names], remove: [names]}",
            )  # fmt: skip
    removed = edit.get("remove", [])
    for name in removed:
        if name not in old:
            raise InvalidMachine(f"{place[-1]} has no {name!r} to remove", where=document.where((*place, "remove")))
    kept = [name for name in old if name not in removed]
    return kept + [name for name in edit.get("add", []) if name not in kept]


def _validate(document: Document, values: dict[str, Any]) -> Machine:
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidMachine(f"kind is {kind!r}", where=document.where(("kind",)), help=f"one of {', '.join(KINDS)}")
    return KINDS[kind].from_json(values, document.where, InvalidMachine)
