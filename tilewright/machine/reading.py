"""Files as text: the part of YAML that descriptions use, read into plain values with the line of each.

Only mappings with distinct string keys, lists, strings, numbers, true, false and null are read. Anchors, tags and
dates are refused: a description is data, and a small one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidMachine
from tilewright.fields import Place
from tilewright.files import read_bytes

MAX_BYTES: Final = 1 << 20

FILES: Final = Path(__file__).parent / "files"
MACHINE_START: Final = "start with `name: ...` and `kind: ...`"
_OURS: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast, and recurses in C

_INTEGER: Final = re.compile(r"[+-]?[0-9][0-9_]*")
_NUMBER: Final = re.compile(r"[+-]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Document:
    """A file's values and where each stands: `lines[place]` counts from 1."""

    path: str
    values: dict[str, Any]
    lines: dict[Place, int]

    def where(self, place: Place) -> str:
        """`file:line` of a place, or of the closest place around it that the file writes."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.path}:{self.lines[place]}" if place in self.lines else self.path


def read_document(path: Path, error: type[CompileError] = InvalidMachine, start: str = MACHINE_START) -> Document:
    """Read one file. Raises `error` if it cannot be read or is not a mapping of plain values; `start` is its help."""
    content = read_bytes(path, error, limit=MAX_BYTES)
    try:
        text = content.decode("utf-8")
        loader = (_OURS if path.parent == FILES else yaml.SafeLoader)(text)
        node = loader.get_single_node()
    except UnicodeDecodeError as failure:
        raise error(f"is not UTF-8 text at byte {failure.start}", where=str(path)) from failure
    except yaml.MarkedYAMLError as failure:
        line = f":{failure.problem_mark.line + 1}" if failure.problem_mark else ""
        raise error(f"is not YAML: {failure.problem}", where=f"{path}{line}") from failure
    except (yaml.YAMLError, ValueError) as failure:
        raise error(f"is not YAML: {str(failure).splitlines()[0]}", where=str(path)) from failure
    except RecursionError as failure:
        raise error("is nested too deeply", where=str(path)) from failure
    reader = _Reader(str(path), error)
    values = None if node is None else reader.value(node, ())
    if not isinstance(values, dict):
        raise error("is not a mapping", where=str(path), help=start)
    return Document(str(path), values, reader.lines)


class _Reader:
    """Nodes of YAML as plain values; `lines` has those of places."""

    def __init__(self, path: str, error: type[CompileError]) -> None:
        self.path, self.error = path, error
        self.lines: dict[Place, int] = {}
        self.seen: set[int] = set()

    def value(self, node: yaml.Node, place: Place) -> Any:
        line = node.start_mark.line + 1
        where = f"{self.path}:{line}"
        self.lines[place] = line
        if id(node) in self.seen:
            raise self.error("anchors and aliases are not read", where=where,
                             help="write the value out, or use `extends:` in a machine file")  # fmt: skip
        self.seen.add(id(node))
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            raise self.error(f"the tag {node.tag!r} is not read", where=where)
        if isinstance(node, yaml.MappingNode):
            mapping: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
                if key is None or key in mapping:
                    fault = "a key is not a word" if key is None else f"the key {key!r} stands twice"
                    raise self.error(fault, where=f"{self.path}:{key_node.start_mark.line + 1}")
                mapping[key] = self.value(value_node, (*place, key))
            return mapping
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
        return _scalar(node)


def _scalar(node: yaml.Node) -> Any:
    text = str(node.value)
    if node.style:  # quoted; libyaml says "" of what is not
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    if len(text) <= 40 and _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if len(text) <= 40 and _NUMBER.fullmatch(text):
        return float(text.replace("_", ""))
    return text
