"""What an artifact holds of the graph that it was compiled from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewright.errors import InvalidFile
from tilewright.expr import dtypes, serialize
from tilewright.expr.graph import Graph
from tilewright.layouts import Packed
from tilewright.runtime.artifact import Artifact


def stored_graph(artifact: Artifact) -> Graph:
    """The simplified graph inside an artifact, its constants unpacked from the layouts they are stored in."""
    try:
        held = json.loads(artifact.graph)
        structure, placed = held["graph"], held["constants"]
        constants: dict[str, np.ndarray[Any, Any]] = {}
        declared = {name: (dtype, shape) for name, dtype, shape in _constants(structure)}
        for entry in placed.values():
            layout = Packed.from_json(entry["layout"])
            dtype, shape = declared[entry["of"]]
            size = layout.size * dtypes.size_bytes(dtype)
            raw = artifact.constants[entry["offset"] : entry["offset"] + size]
            constants[entry["of"]] = layout.unpack(raw.view(dtypes.numpy_dtype(dtype))).reshape(shape)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidFile(f"the stored graph is damaged: {error!r}", where=artifact.manifest.name) from error
    return serialize.from_json(structure, constants)


def _constants(structure: Any) -> Iterator[tuple[str, str, list[int]]]:
    """The constants that a stored graph declares, in its loops too."""
    yield from structure["constants"]
    for node in structure["nodes"]:
        if "loop" in node:
            yield from _constants(node)
