"""Machine files as text: the part of YAML they use, read into plain values with the line of each.

Only mappings with distinct string keys, lists, strings, numbers, true, false and null are read. Anchors, tags and
dates are refused: a description is data, and a small one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidMachine
from tilewright.fields import Place
from tilewright.files import read_bytes

MAX_BYTES: Final = 1 << 20

FILES: Final = Path(__file__).parent / "files"
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


def read_document(path: Path) -> Document:
    """Read one machine file; raises InvalidMachine if it cannot be read or is not a mapping of plain values."""
    content = read_bytes(path, InvalidMachine, limit=MAX_BYTES)
    try:
        text = content.decode("utf-8")
        loader = (_OURS if path.parent == FILES else yaml.SafeLoader)(text)
        node = loader.get_single_node()
    except UnicodeDecodeError as error:
        raise InvalidMachine(f"is not UTF-8 text at byte {error.start}", where=str(path)) from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidMachine(f"is not YAML: {error.problem}", where=f"{path}{line}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidMachine(f"is not YAML: {str(error).splitlines()[0]}", where=str(path)) from error
    except RecursionError as error:
        raise InvalidMachine("is nested too deeply", where=str(path)) from error
    lines: dict[Place, int] = {}
    seen: set[int] = set()
    values = None if node is None else _value(node, (), str(path), lines, seen)
    if not isinstance(values, dict):
        raise InvalidMachine("is not a mapping", where=str(path), help="start with `name: ...` and `kind: ...`")
    return Document(str(path), values, lines)


def _value(node: yaml.Node, place: Place, path: str, lines: dict[Place, int], seen: set[int]) -> Any:
    line = node.start_mark.line + 1
    where = f"{path}:{line}"
    lines[place] = line
    if id(node) in seen:
        raise InvalidMachine("anchors and aliases are not read in machine files", where=where,
                             help="write the value out, or use `extends:`")  # fmt: skip
    seen.add(id(node))
    if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
        raise InvalidMachine(f"the tag {node.tag!r} is not read in machine files", where=where)
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key in mapping:
                fault = "a key is not a word" if key is None else f"the key {key!r} stands twice"
                raise InvalidMachine(fault, where=f"{path}:{key_node.start_mark.line + 1}")
            mapping[key] = _value(value_node, (*place, key), path, lines, seen)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*place, index), path, lines, seen) for index, item in enumerate(node.value)]
    return _scalar(node, where)


def _scalar(node: yaml.Node, where: str) -> Any:
    text = str(node.value)
    if node.style:  # quoted; libyaml says "" of what is not
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if len(text) <= 40 and _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    if len(text) <= 40 and _NUMBER.fullmatch(text):
        return float(text.replace("_", ""))
    return text
