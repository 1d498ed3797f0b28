"""Zip files from anywhere: what they say about themselves is checked before anything in them is read."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from typing import IO, Final

from tilewright.errors import InvalidFile

# What `zipfile` and what reads a member raise for damaged files.
DAMAGED: Final = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError, LookupError,
    struct.error,
)  # fmt: skip

_PIECE_BYTES: Final = 16 << 20  # zipfile copies what it reads: in pieces, so that memory does not double
_MAX_DIRECTORY_BYTES: Final = 1 << 20  # some ten thousand members

_LOCAL: Final = struct.Struct(
    "<4s22x2H"
)  # what stands before a member, APPNOTE.TXT 4.3.7: sizes of name and extra field

# The end of a zip and what may stand in front of it, APPNOTE.TXT 4.3.14 to 4.3.16
_END: Final = struct.Struct("<4s4H2LH")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64: Final = struct.Struct("<4sLQL")

_UTF8: Final = 0x800  # the only flag that members may have, and the one of writers that could not go back
_DESCRIPTOR: Final = 0x8


@contextmanager
def opened_zip(file: IO[bytes], methods: Sequence[int]) -> Iterator[zipfile.ZipFile]:
    """A zip with members in the given `methods` of compression; raises InvalidFile or one of `DAMAGED` for others.

    Members are files under names of their own, not encrypted, and lie within the file.
    """
    file_bytes = os.fstat(file.fileno()).st_size
    _check_directory(file, file_bytes)
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        if len({info.filename for info in infos}) != len(infos):
            raise InvalidFile("two of its members have the same name")
        for info in infos:
            _check_member(info, methods, file_bytes)
        if min((info.header_offset for info in infos), default=0):
            raise InvalidFile("it does not begin as a zip file does")
        if sum(info.compress_size for info in infos) > file_bytes:
            raise InvalidFile("its members are larger than the file")
        yield archive


def read_into(archive: zipfile.ZipFile, info: zipfile.ZipInfo, block: memoryview) -> None:
    """Read a member of exactly the size of `block`, bytes. Raises one of `DAMAGED` where it has another one."""
    with archive.open(info) as member:
        begin = 0
        while begin < len(block):
            piece = member.read(min(_PIECE_BYTES, len(block) - begin))
            if not piece:
                raise EOFError(f"{info.filename} ends after {begin} of {len(block)} bytes")
            block[begin : begin + len(piece)] = piece
            begin += len(piece)
        if member.read(1):
            raise ValueError(f"{info.filename} has more than {len(block)} bytes")


def read_stored(file: BufferedReader, info: zipfile.ZipInfo, block: memoryview) -> None:
    """Read a member that is not compressed from the file of its zip, without a copy and without its checksum.

    For members whose contents are checked by a digest. Raises one of `DAMAGED` where they are not there.
    """
    file.seek(info.header_offset)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        raise zipfile.BadZipFile(f"{info.filename} is not where the directory says")
    _, name_bytes, extra_bytes = _LOCAL.unpack(header)
    file.seek(name_bytes + extra_bytes, os.SEEK_CUR)
    begin = 0
    while begin < len(block):
        count = file.readinto(block[begin:])
        if not count:
            raise EOFError(f"{info.filename} ends after {begin} of {len(block)} bytes")
        begin += count


def _check_directory(file: IO[bytes], file_bytes: int) -> None:
    """Raise InvalidFile where the list of members is not at the end of the file, or too long to be read."""
    file.seek(max(0, file_bytes - _END.size - _LOCATOR64.size - _END64.size))
    tail = file.read()
    if len(tail) < _END.size:
        raise zipfile.BadZipFile("File is not a zip file")
    signature, *_, count, size, _, comment = _END.unpack(tail[-_END.size :])
    if signature != b"PK\5\6" or comment:
        raise zipfile.BadZipFile("it does not end as a zip file does")
    if len(tail) == _END.size + _LOCATOR64.size + _END64.size:
        locator = tail[_END64.size : -_END.size]
        if locator.startswith(b"PK\6\7"):
            record, *_, count, size, _ = _END64.unpack(tail[: _END64.size])
            if record != b"PK\6\6":
                raise InvalidFile("its directory is not where it should be")
    if size > _MAX_DIRECTORY_BYTES:
        raise InvalidFile(f"it lists {count} members in {size} bytes")


def _check_member(info: zipfile.ZipInfo, methods: Sequence[int], file_bytes: int) -> None:
    name = info.filename
    if info.compress_type not in methods:
        raise InvalidFile(f"{name!r} is compressed by method {info.compress_type}")
    if info.flag_bits & ~(_UTF8 | _DESCRIPTOR | 0x6):  # 0x6: how hard deflate tried
        raise InvalidFile(f"{name!r} is encrypted or patched: flags {info.flag_bits:#x}")
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise InvalidFile(f"{name!r} has {info.compress_size} bytes in the file, and {info.file_size} outside")
    if not 0 <= info.header_offset <= file_bytes - info.compress_size:
        raise InvalidFile("its directory names a place in front of the file, or behind it")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG) or info.is_dir():
        raise InvalidFile(f"{name!r} is not a file")
