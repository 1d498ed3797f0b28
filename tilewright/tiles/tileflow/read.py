"""Files in the YAML of TileFlow's artifact, read into a tile file and, where they have an architecture, a machine.

The parts of a run stand in one file or in several, in any order: `problem`, `mapping`, perhaps `architecture` and
`macro`. Its other parts say how the artifact's own program runs, and are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidFile, nearest
from tilewright.fields import Kind, Place, read, record, table, whole, word
from tilewright.machine.description import Accelerator
from tilewright.machine.reading import read_document
from tilewright.tiles.file import TileFile
from tilewright.tiles.problem import Problem
from tilewright.tiles.tileflow import schema
from tilewright.tiles.tileflow.architecture import accelerator
from tilewright.tiles.tileflow.mapping import tree_of
from tilewright.tiles.tileflow.problem import graph_of

PARTS: Final = ("problem", "mapping", "architecture", "macro")
SHORT: Final = {"arch": "architecture"}
DROPPED: Final = ("check", "tileflow_mapper", "output", "verbose")
DTYPES: Final = {8: "i8", 16: "f16", 32: "f32", 64: "f64"}  # by the bits of a word
_START: Final = f"start with {', '.join(f'`{part}:`' for part in PARTS[:-1])} or `macro:`"


@dataclass(frozen=True)
class Run:
    """A problem with its tree, and the machine, where the files have one."""

    file: TileFile
    machine: Accelerator | None


def read_run(paths: Sequence[Path]) -> Run:
    """Read files that together have a problem and a mapping.

    Elements have the width of a machine's words: i8, f16, f32 or f64; f16 without a machine. Raises CompileError with
    file, line, value and what is legal there.
    """
    parts = _Parts.of(paths)
    macros = parts.read("macro", table(word, whole(1, 47))) if "macro" in parts.values else {}
    mapping: schema.Node = parts.read("mapping", schema.node)
    given: schema.Problem = parts.read("problem", record(schema.Problem))
    machine, levels, dtype = None, [], DTYPES[16]
    if "architecture" in parts.values:
        architecture: schema.Architecture = parts.read("architecture", record(schema.Architecture))
        machine = accelerator(architecture, mapping, parts.where)
        levels = [level.name for level in machine.levels]
        if machine.word_bits not in DTYPES:
            raise InvalidFile(f"words have {machine.word_bits} bits", where=parts.where(("architecture",)),
                              help=f"{', '.join(map(str, DTYPES))}")  # fmt: skip
        dtype = DTYPES[machine.word_bits]
    operators = graph_of(given, macros, dtype, parts.where)
    problem = Problem.of(operators.graph.nodes)
    tree = tree_of(mapping, operators, problem, macros, levels, parts.where)
    return Run(TileFile(operators.graph, problem, tree), machine)


@dataclass(frozen=True)
class _Parts:
    """The parts of all files by name, and where each value stands."""

    values: Mapping[str, Any]
    places: Mapping[Place, str]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> _Parts:
        values: dict[str, Any] = {}
        places: dict[Place, str] = {(): str(paths[0])}
        for path in paths:
            document = read_document(path, InvalidFile, _START)
            for name, value in _respelt(document.values, (), document.where).items():
                name = SHORT.get(name, name)
                if name in DROPPED:
                    continue
                where = document.where((name,))
                if name not in PARTS:
                    close = nearest(name, PARTS)
                    legal = f"did you mean {close[0]}?" if close else f"one of {', '.join(PARTS)}"
                    raise InvalidFile(f"there is no part {name!r}", where=where, help=legal)
                if name in values:
                    raise InvalidFile(f"{name} stands in {places[name,]} too", where=where, help="one of them")
                values[name], places[name,] = value, where
            lines = {tuple(map(_spelt, place)): line for place, line in document.lines.items()}
            places |= {place: f"{path}:{line}" for place, line in lines.items() if place and place not in places}
        for name in PARTS[:2]:
            if name not in values:
                raise InvalidFile(f"there is no {name}", where=", ".join(map(str, paths)),
                                  help=f"a file with `{name}:` too")  # fmt: skip
        return cls(values, places)

    def where(self, place: Place) -> str:
        """The file and line of a place, or of the closest place around it that a file writes."""
        while place not in self.places:
            place = place[:-1]
        return self.places[place]

    def read(self, part: str, kind: Kind) -> Any:
        return read(kind, self.values[part], lambda place: self.where((part, *place)), InvalidFile)


def _spelt(key: str | int) -> str | int:
    """A key with underscores; other texts stay."""
    return key.replace("-", "_") if isinstance(key, str) else key


def _respelt(value: Any, place: Place, where: Callable[[Place], str]) -> Any:
    """A value whose keys have underscores. Raises InvalidFile where a mapping has both spellings of one."""
    if isinstance(value, list):
        return [_respelt(item, (*place, number), where) for number, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = str(_spelt(key))
        if name in found:
            raise InvalidFile(f"{key} stands twice", where=where((*place, key)), help="one spelling of it")
        found[name] = _respelt(item, (*place, key), where)
    return found
