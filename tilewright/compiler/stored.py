"""What an artifact holds of the graph that it was compiled from: its form in a file, and the graph read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidFile
from tilewright.expr import dtypes, serialize
from tilewright.expr.graph import Graph
from tilewright.fields import Readable, anything, record, required, size, string, table
from tilewright.layouts import Packed
from tilewright.runtime.artifact import Artifact


@dataclass(frozen=True)
class StoredConstant(Readable):
    """Where the constant `of` of the graph begins among the packed constants, in bytes, and in which layout it is."""

    of: str = required(string)
    offset: int = required(size)
    layout: Packed = required(record(Packed))

    def part(self, name: str, widths: Sequence[tuple[int, int]]) -> StoredConstant:
        """A constant that is stored inside of this one, with so many elements before and after in each dimension."""
        shape = zip(self.layout.shape, widths, strict=True)
        halo = zip(self.layout.halo, widths, strict=True)
        layout = Packed(
            tuple(extent - before - after for extent, (before, after) in shape),
            self.layout.digits,
            tuple((before + own, after + other) for (before, after), (own, other) in halo),
        )
        return StoredConstant(name, self.offset, layout)


@dataclass(frozen=True)
class StoredGraph(Readable):
    """The member `graph.json`: the structure as `expr.serialize` writes it, and constants by the names of the plan."""

    graph: dict[str, Any] = required(table(string, anything))
    constants: dict[str, StoredConstant] = required(table(string, record(StoredConstant)))


def stored_graph(artifact: Artifact) -> Graph:
    """The simplified graph inside an artifact, its constants unpacked from the layouts they are stored in."""
    where = f"{artifact.manifest.name}, graph.json"
    held = StoredGraph.from_json(json.loads(artifact.graph), where)
    try:
        constants: dict[str, np.ndarray[Any, Any]] = {}
        declared = {name: (dtype, shape) for name, dtype, shape in _constants(held.graph)}
        for each in held.constants.values():
            dtype, shape = declared[each.of]
            size = each.layout.size * dtypes.size_bytes(dtype)
            raw = artifact.constants[each.offset : each.offset + size]
            constants[each.of] = each.layout.unpack(raw.view(dtypes.numpy_dtype(dtype))).reshape(shape)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidFile(f"the stored graph is damaged: {error!r}", where=where) from error
    return serialize.from_json(held.graph, constants)


def _constants(structure: Any) -> Iterator[tuple[str, str, list[int]]]:
    """The constants that a stored graph declares, in its loops too."""
    yield from structure["constants"]
    for node in structure["nodes"]:
        if "loop" in node:
            yield from _constants(node)
