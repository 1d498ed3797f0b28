"""What a compilation makes, as bytes: the members of a `.twm` and of a cache entry."""

from __future__ import annotations

import json
import re
from dataclasses import field
from os import PathLike
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.dataclass import dataclass
from tilewright.decision import Decision
from tilewright.errors import InvalidFile
from tilewright.fields import Readable, anything, optional, record, several, string, table
from tilewright.files import as_path, missing, reason, write_file
from tilewright.runtime.archive import Blocks, archived, read_archive
from tilewright.runtime.manifest import CODES, Manifest
from tilewright.runtime.memory import allocate

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_PLAN_HELP: Final = "compile the model again"

MEMBERS = ("manifest.json", "code.o", "program.tile", "graph.json", "plan.json", "constants.bin")


@dataclass(frozen=True)
class StoredPlan(Readable):
    """The member `plan.json`: the decisions, what was chosen for each product by its node, and forms of the program.

    `mapped` is the graph that kernels compute. `tile` is the program of whole tiles, "" where that is `program.tile`.
    `trees` has the tile tree of every kernel by its name, as `tiles.tree.to_json` writes it.
    """

    decisions: tuple[Decision, ...] = optional(several(record(Decision)), ())
    products: dict[str, Any] = field(default_factory=dict, metadata={"kind": table(string, table(string, anything))})
    mapped: str = optional(string, "")
    tile: str = optional(string, "")
    trees: dict[str, Any] = field(default_factory=dict, metadata={"kind": table(string, table(string, anything))})


@dataclass(frozen=True, eq=False)
class Artifact:
    """Code with everything needed to run it, to explain it, and to compile it again.

    `graph` is the JSON of the simplified expression graph and the layout of every constant, `plan` that of the
    decisions (a list under the key "decisions"), `constants` the packed constants as bytes.
    """

    manifest: Manifest
    code: bytes
    constants: NDArray[np.uint8]
    program: str
    graph: str
    plan: str

    def __post_init__(self) -> None:
        if self.constants.dtype != np.uint8 or self.constants.shape != (self.manifest.constants_bytes,):
            raise InvalidFile(
                f"the constants are {self.constants.size} elements of {self.constants.dtype}, "
                f"the manifest says {self.manifest.constants_bytes} bytes",
                where=self.manifest.name,
            )

    def to_blocks(self) -> dict[str, bytes | memoryview]:
        texts = (json.dumps(self.manifest.to_json(), indent=1), self.program, self.graph, self.plan)
        manifest, program, graph, plan = (text.encode() for text in texts)
        constants = np.ascontiguousarray(self.constants).data
        names = _members(self.manifest.code)
        return dict(zip(names, (manifest, self.code, program, graph, plan, constants), strict=True))

    def stored_plan(self) -> StoredPlan:
        """The plan as a value. Raises InvalidFile that names every malformed field."""
        where = f"{self.manifest.name}, plan.json"
        try:
            plan = json.loads(self.plan)
        except (ValueError, RecursionError) as error:
            raise InvalidFile(f"is not JSON: {error}", where=where, help=_PLAN_HELP) from error
        return StoredPlan.from_json(plan, where)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a `.twm`; an existing file is replaced as a whole. Raises InvalidArgument if it cannot be written."""
        write_file(path, archived(self.to_blocks()))

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Artifact:
        """Read a `.twm` and check it, without loading its code. Raises InvalidFile, which says what is wrong."""
        path = as_path(path)
        try:
            blocks = read_archive(path)
        except FileNotFoundError:
            raise missing(path) from None
        except OSError as error:
            raise InvalidFile(f"cannot be read: {reason(error)}", where=str(path)) from error
        try:
            return cls.from_blocks(blocks)
        except InvalidFile as error:
            where = f"{path}: {error.where}" if error.where else str(path)
            raise InvalidFile(error.message, where=where, help=error.help) from error

    @classmethod
    def from_blocks(cls, blocks: Blocks, known: bool = False) -> Artifact:
        """Read the members back. Raises InvalidFile that names what is missing or malformed.

        `known` says that the members are those of an artifact, byte for byte: only the manifest is read as JSON then.
        """
        kind = next((kind for kind, member in CODES.items() if member in blocks), "object")
        missing = [name for name in _members(kind) if name not in blocks]
        if missing:
            raise InvalidFile(f"{', '.join(missing)} is missing")
        text, code, program, graph, plan = (bytes(blocks[name]) for name in _members(kind)[:-1])
        if not known:
            _parse(graph, "graph.json")
            _parse(plan, "plan.json")
        manifest = Manifest.from_json(_parse(text, "manifest.json"), "manifest.json")
        if manifest.code != kind:
            raise InvalidFile(f"{CODES[manifest.code]} is missing")
        return cls(
            manifest=manifest,
            code=code,
            constants=np.frombuffer(blocks["constants.bin"], np.uint8) if blocks["constants.bin"] else allocate(0),
            program=_text(program, "program.tile"),
            graph=graph.decode(),
            plan=_text(plan, "plan.json"),
        )


def _members(code: str) -> tuple[str, ...]:
    """The members of an artifact with that kind of code."""
    return tuple(CODES[code] if name == CODES["object"] else name for name in MEMBERS)


def _text(block: bytes, name: str) -> str:
    try:
        return block.decode()
    except UnicodeDecodeError as error:
        raise InvalidFile(f"{name} is not text: {error}") from error


def _parse(block: bytes, name: str) -> Any:
    text = _text(block, name)
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # which halves of characters alone are not
    except (ValueError, RecursionError) as error:
        raise InvalidFile(f"{name} is not JSON: {error}") from error
    return value
