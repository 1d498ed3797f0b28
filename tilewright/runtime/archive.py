"""Named blocks of bytes in one file: the form of a `.twm` and of an entry of the compile cache.

A zip, uncompressed, whose first member `archive.json` gives the format version and the size and digest of every other
member. Writing is atomic. Reading checks everything and never executes, unpickles or unpacks anything.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, TypeAlias

from tilewright.errors import InvalidFile
from tilewright.files import Content, open_regular, replace_file
from tilewright.runtime.memory import allocate
from tilewright.runtime.zips import DAMAGED, opened_zip, read_stored

INDEX = "archive.json"
FORMAT = "tilewright-archive"
VERSION = 1
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say: the same blocks give the same file
_MAX_INDEX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")  # of a member: no path, and nothing that a file system minds

Blocks: TypeAlias = Mapping[str, bytes | memoryview]


def archived(blocks: Blocks) -> Content:
    """What writes an archive of `blocks`, for `tilewright.files`."""
    members = {name: {"bytes": len(block), "sha256": _digest(block)} for name, block in blocks.items()}
    index = json.dumps({"format": FORMAT, "version": VERSION, "members": members}, indent=1)

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(INDEX, _DATE), index)
            for name, block in blocks.items():
                with archive.open(zipfile.ZipInfo(name, _DATE), "w", force_zip64=True) as member:
                    member.write(block)

    return write


def write_archive(path: Path, blocks: Blocks, mode: int = 0o666) -> None:
    """Write `blocks` to `path`, as `tilewright.files.replace_file` writes. Raises OSError where that cannot be."""
    replace_file(path, archived(blocks), mode)


def read_archive(path: Path) -> dict[str, memoryview]:
    """Read all blocks of an archive, each into memory aligned to 64 bytes.

    Raises OSError if the file cannot be opened or read, is no regular file or does not fit into the memory, and
    InvalidFile where it is no archive of this version, where a member is missing, too many or in another form, or where
    a size or digest differs.
    """
    try:
        with open_regular(path) as file, opened_zip(file, methods=(zipfile.ZIP_STORED,)) as archive:
            return _read_members(file, archive)
    except InvalidFile as error:
        raise InvalidFile(error.message, where=str(path), help=error.help or "make the file again") from None
    except DAMAGED as error:
        message = f"this is not a tilewright file, or it is damaged ({error})"
        raise InvalidFile(message, where=str(path), help="make the file again") from error
    except MemoryError as error:  # the file may be good
        raise OSError(errno.ENOMEM, "it does not fit into the memory") from error


def _read_members(file: BufferedReader, archive: zipfile.ZipFile) -> dict[str, memoryview]:
    infos = {info.filename: info for info in archive.infolist()}
    members = _read_index(archive, infos)
    if set(infos) != {INDEX, *members}:
        raise InvalidFile(f"its members are not those that {INDEX} lists: {', '.join(map(repr, sorted(infos)))}")
    blocks = {}
    for name, (size, digest) in members.items():
        if infos[name].file_size != size:
            raise InvalidFile(f"{name} has {infos[name].file_size} bytes, {INDEX} says {size}")
        block = allocate(size).data
        read_stored(file, infos[name], block)
        if _digest(block) != digest:
            raise InvalidFile(f"{name} is damaged: its digest differs from the one in {INDEX}")
        blocks[name] = block
    return blocks


def _read_index(archive: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo]) -> dict[str, tuple[int, str]]:
    """The size and digest of each member."""
    info = infos.get(INDEX)
    if info is None or info.file_size > _MAX_INDEX_BYTES:
        raise InvalidFile(f"this is a zip, but not a tilewright file: it has no {INDEX}")
    try:
        index = json.loads(archive.read(info))
    except RecursionError:
        raise InvalidFile(f"{INDEX} is nested too deeply") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise InvalidFile(f"this is a zip, but not a tilewright file: {INDEX} does not say {FORMAT}")
    if index.get("version") != VERSION:
        raise InvalidFile(
            f"its format version is {index.get('version')}; this tilewright reads version {VERSION}",
            help="use the tilewright that made it, or make the file again",
        )
    members = index.get("members")
    if not isinstance(members, dict) or not all(_NAME.fullmatch(name) for name in members):
        raise InvalidFile(f"{INDEX} is malformed: its members are no names")
    checked = {}
    for name, entry in members.items():
        size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or not 0 <= size < 1 << 62 or not isinstance(digest, str):
            raise InvalidFile(f"{INDEX} is malformed: {name} has the size {size!r} and the digest {digest!r}")
        checked[name] = (size, digest)
    return checked


def _digest(block: bytes | memoryview) -> str:
    return hashlib.sha256(block).hexdigest()
