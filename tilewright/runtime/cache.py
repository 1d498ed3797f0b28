"""The compile cache: blocks of bytes on disk under the digest of everything that they were made from.

Entries are archives (`archive.py`), `<directory>/<first two digits>/<key>.zip`. Any number of processes may read and
write at once: an entry appears as a whole, and the same key always means the same content. A damaged entry counts as
absent and is removed. Where the disk is full or read-only, compilation goes on without the cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.options import Options
from tilewright.runtime.archive import Blocks, read_archive, write_archive

_log = logging.getLogger(__name__)
_KEY = re.compile(r"[0-9a-f]{64}")
_ABANDONED_SECONDS = 3600  # a temporary file as old as this has lost its writer
_KEEP = 0.9  # of the capacity is left after an eviction, so that not every write evicts


def cache_key(parts: Mapping[str, str | bytes]) -> str:
    """The key of what is made from `parts`: program, decisions, machine, options, versions, each under its name.

    >>> cache_key({"a": "x", "b": b"y"}) == cache_key({"b": "y", "a": b"x"}) != cache_key({"a": "xb", "b": ""})
    True
    """
    digest = hashlib.sha256()
    for name in sorted(parts):
        value = parts[name]
        for block in (name.encode(), value.encode() if isinstance(value, str) else value):
            digest.update(len(block).to_bytes(8, "little"))
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class Statistics:
    """What a `Cache` did since it was made, and what is on disk now."""

    hits: int
    misses: int
    entries: int
    bytes: int


class Cache:
    """A directory of entries of at most `capacity_bytes` together; those used longest ago go first."""

    def __init__(self, directory: Path, capacity_bytes: int, *, enabled: bool = True) -> None:
        self.directory = directory
        self.capacity_bytes = capacity_bytes
        self.enabled = enabled
        self._hits = self._misses = 0

    @classmethod
    def from_options(cls, options: Options) -> Cache:
        return cls(options.cache_dir, options.cache_bytes, enabled=options.cache)

    def get(self, key: str) -> dict[str, memoryview] | None:
        """The blocks that were put under `key`, or None."""
        blocks = self._read(self._path(key)) if self.enabled else None
        self._hits += blocks is not None
        self._misses += blocks is None
        return blocks

    def put(self, key: str, blocks: Blocks) -> None:
        """Keep `blocks` under `key`. An entry larger than the capacity is not kept; a disk error is only logged."""
        path = self._path(key)
        if not self.enabled or sum(map(len, blocks.values())) > self.capacity_bytes:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_archive(path, blocks)
        except OSError as error:
            _warn_once(self.directory, error.strerror or str(error))
            return
        self._evict(spare=path)

    def clear(self) -> None:
        """Remove all entries. A file that cannot be removed is only logged."""
        for path, _ in self._files():
            self._remove(path)

    def statistics(self) -> Statistics:
        entries = [status for path, status in self._files() if path.suffix == ".zip"]
        return Statistics(self._hits, self._misses, len(entries), sum(status.st_size for status in entries))

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise InvalidArgument(f"{key!r} is not a key of the cache", help="make it with cache_key")
        return self.directory / key[:2] / f"{key}.zip"

    def _read(self, path: Path) -> dict[str, memoryview] | None:
        try:
            blocks = read_archive(path)
        except FileNotFoundError:
            return None
        except InvalidFile as error:
            _log.info("a damaged cache entry is removed: %s", error)
            self._remove(path)
            return None
        except OSError as error:
            _warn_once(self.directory, error.strerror or str(error))
            return None
        with contextlib.suppress(OSError):  # a read-only cache serves entries too, it only forgets their use
            os.utime(path)
        return blocks

    def _evict(self, spare: Path) -> None:
        """Remove the entries used longest ago while all are larger than the capacity, and abandoned temporary files."""
        entries = []
        for path, status in self._files():
            if path.suffix == ".zip":
                entries.append((status.st_mtime_ns, status.st_size, path))
            elif time.time() - status.st_mtime > _ABANDONED_SECONDS:
                self._remove(path)
        total = sum(size for _, size, _ in entries)
        if total <= self.capacity_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= self.capacity_bytes * _KEEP:
                break
            if path != spare:
                self._remove(path)
                total -= size

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for pattern in ("??/*.zip", "??/.*.tmp"):
            for path in self.directory.glob(pattern):
                with contextlib.suppress(OSError):  # another process removed it
                    found.append((path, path.stat()))
        return found

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _warn_once(self.directory, error.strerror or str(error))


@functools.cache
def _warn_once(directory: Path, reason: str) -> None:
    _log.warning("the compile cache in %s does not work: %s; compiling goes on without it", directory, reason)
