"""The bytes of a model: in memory, or in a file of which only the parts that are asked for are read."""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path
from typing import Final, TypeAlias, overload

from tilewright.files import open_regular

_PAGE_BYTES: Final = 1 << 12  # what is read for a single byte: numbers and sizes of fields stand close together
_PIECE_BYTES: Final = 1 << 20  # what is read at a time for a digest


class FileBytes:
    """Bytes of an open file from `begin` to `end`: a byte by its place, a part by a slice, all of them by `bytes`.

    The file stays open while one of its parts lives. Raises OSError where it cannot be read, also where it has become
    shorter.
    """

    def __init__(self, file: _File, begin: int, end: int) -> None:
        self._file, self._begin, self._end = file, begin, end

    @classmethod
    def opened(cls, path: Path, limit: int) -> FileBytes:
        """A whole regular file of at most `limit` bytes. Raises OSError for any other."""
        file = _File(path, limit)
        return cls(file, 0, file.size)

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> FileBytes: ...
    def __getitem__(self, place: int | slice) -> int | FileBytes:
        if isinstance(place, slice):
            begin, end, step = place.indices(len(self))
            assert step == 1, "parts are contiguous"
            return FileBytes(self._file, self._begin + begin, self._begin + max(begin, end))
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._file.byte(self._begin + place)

    def __bytes__(self) -> bytes:
        return self._file.read(self._begin, self._end)

    def sha256(self) -> str:
        """The digest of the bytes as they are in the file now, in hexadecimal."""
        digest = hashlib.sha256()
        for begin in range(self._begin, self._end, _PIECE_BYTES):
            digest.update(self._file.read(begin, min(begin + _PIECE_BYTES, self._end)))
        return digest.hexdigest()


Content: TypeAlias = memoryview | FileBytes


def sha256(content: Content) -> str:
    """The digest of all bytes, in hexadecimal. Raises OSError where a file cannot be read."""
    return content.sha256() if isinstance(content, FileBytes) else hashlib.sha256(content).hexdigest()


class _File:
    """An open file, and the page of it that was read last."""

    def __init__(self, path: Path, limit: int) -> None:
        with open_regular(path, limit) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size
        self._page_begin, self._page = 0, b""

    def byte(self, place: int) -> int:
        begin, page = self._page_begin, self._page
        if not begin <= place < begin + len(page):
            begin = self._page_begin = place
            page = self._page = self.read(begin, min(begin + _PAGE_BYTES, self.size))
        return page[place - begin]

    def read(self, begin: int, end: int) -> bytes:
        """Bytes from `begin` to `end`."""
        parts = []
        while begin < end:
            part = os.pread(self._descriptor, end - begin, begin)
            if not part:
                raise OSError(f"it ends at byte {begin}, it was longer when it was opened")
            parts.append(part)
            begin += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
