"""Named blocks of bytes in one file: the form of a `.twm` and of an entry of the compile cache.

A zip, uncompressed, whose first member `archive.json` gives the format version and the size and digest of every other
member. Writing is atomic. Reading checks everything and never executes, unpickles or unpacks anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tilewright.errors import InvalidFile
from tilewright.runtime.memory import allocate

INDEX = "archive.json"
FORMAT = "tilewright-archive"
VERSION = 1
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say: the same blocks give the same file
_MAX_INDEX_BYTES = 1 << 20
_PIECE_BYTES = 16 << 20  # zipfile copies what it reads: in pieces, so that memory does not double

Blocks: TypeAlias = Mapping[str, bytes | memoryview]


def write_archive(path: Path, blocks: Blocks) -> None:
    """Write `blocks` to `path`: other processes see the old file or the whole new one, never a part.

    Raises OSError where the file system refuses; then nothing is left behind.
    """
    members = {name: {"bytes": len(block), "sha256": _digest(block)} for name, block in blocks.items()}
    index = json.dumps({"format": FORMAT, "version": VERSION, "members": members}, indent=1)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(INDEX, _DATE), index)
            for name, block in blocks.items():
                with archive.open(zipfile.ZipInfo(name, _DATE), "w", force_zip64=True) as member:
                    member.write(block)
        os.chmod(temporary, 0o644)  # mkstemp makes it private, but a model file is like any other
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_archive(path: Path) -> dict[str, memoryview]:
    """Read all blocks of an archive, each into memory aligned to 64 bytes.

    Raises OSError if the file cannot be opened or read, and InvalidFile where it is no archive of this version,
    where a member is missing or too many, or where a size or digest differs.
    """
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return _read_members(archive, os.fstat(file.fileno()).st_size)
    except InvalidFile as error:
        raise InvalidFile(error.message, where=str(path), help=error.help or "make the file again") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError) as error:
        message = f"this is not a tilewright file, or it is damaged ({error})"
        raise InvalidFile(message, where=str(path), help="make the file again") from error


def _read_members(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, memoryview]:
    infos = {info.filename: info for info in archive.infolist()}
    if any(info.header_offset < 0 for info in infos.values()):
        raise InvalidFile("its directory names a place in front of the file")
    members = _read_index(archive, infos)
    if set(infos) != {INDEX, *members} or len(archive.infolist()) != len(infos):
        raise InvalidFile(f"its members are not those that {INDEX} lists: {', '.join(sorted(infos))}")
    blocks = {}
    for name, (size, digest) in members.items():
        info = infos[name]
        if info.file_size != size or info.compress_size != size or size > file_bytes:
            raise InvalidFile(f"{name} has {info.file_size} bytes, {INDEX} says {size}")
        block = allocate(size).data
        with archive.open(info) as member:
            for begin in range(0, size, _PIECE_BYTES):
                piece = member.read(_PIECE_BYTES)
                block[begin : begin + len(piece)] = piece
        if _digest(block) != digest:
            raise InvalidFile(f"{name} is damaged: its digest differs from the one in {INDEX}")
        blocks[name] = block
    return blocks


def _read_index(archive: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo]) -> dict[str, tuple[int, str]]:
    """The size and digest of each member."""
    info = infos.get(INDEX)
    if info is None or info.file_size > _MAX_INDEX_BYTES:
        raise InvalidFile(f"this is a zip, but not a tilewright file: it has no {INDEX}")
    index = json.loads(archive.read(info))
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InvalidFile(f"this is a zip, but not a tilewright file: {INDEX} does not say {FORMAT}")
    if index.get("version") != VERSION:
        raise InvalidFile(
            f"its format version is {index.get('version')}; this tilewright reads version {VERSION}",
            help="use the tilewright that made it, or make the file again",
        )
    try:
        return {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in index["members"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidFile(f"{INDEX} is malformed: {error!r}") from error


def _digest(block: bytes | memoryview) -> str:
    return hashlib.sha256(block).hexdigest()
