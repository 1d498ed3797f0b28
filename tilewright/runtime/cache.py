"""The compile cache: blocks of bytes on disk under the digest of everything that they were made from.

Entries are archives (`archive.py`), `<directory>/<first two digits>/<key>.zip`. Any number of processes may read and
write at once: an entry appears as a whole, and the same key always means the same content. A damaged entry counts as
absent and is removed. Where the disk is full or read-only, compilation goes on without the cache.

The code of an entry is run, so a folder that others can write to is not used (`trust.py`). A folder is a cache if it
has the marker, or nothing but what a cache has; in another folder nothing is written, read or removed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tilewright.dataclass import dataclass
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.files import ABANDONED_SECONDS, TEMPORARY, open_regular, reason, remove_abandoned, replace_file
from tilewright.options import Options
from tilewright.runtime.archive import Blocks, read_archive, write_archive
from tilewright.runtime.stored_total import add
from tilewright.runtime.trust import distrusted, distrusted_entry

_log = logging.getLogger(__name__)
_KEY = re.compile(r"[0-9a-f]{64}")
_SUBFOLDER = re.compile(r"[0-9a-f]{2}")  # of entries: the first two digits of their keys
_MACHINES = "machines"  # beside them: what `calibrate` measured
_MACHINE = re.compile(r"[0-9a-f]{32}\.yaml")
# What is not finished: in subfolders of entries and in that of machines, the second of each from earlier versions.
_UNFINISHED_ENTRY = re.compile(rf"{TEMPORARY}|\.[0-9a-f]{{64}}\.zip\.[0-9a-z_]{{8}}\.tmp")
_UNFINISHED_MACHINE = re.compile(rf"{TEMPORARY}|tmp[0-9a-z_]{{8}}\.tmp")
_OF_THE_SYSTEM = re.compile(r"lost\+found|\..*")  # .nfs0000, .DS_Store, .snapshot: no files of a user
_MARKER = "CACHEDIR.TAG"  # known to backup programs too: https://bford.info/cachedir/
_MARK = b"Signature: 8a477f597d28d172789f06886806bc55\n# the compile cache of tilewright: `tilewright cache --clear`\n"
_REMEDY = "set TILEWRIGHT_CACHE_DIR to a folder that only you can write to"
_TOTAL = ".total"  # beside them, too: the bytes of all entries, so that a new one need not look at the others
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

    def refused(self) -> str:
        """Why the directory is not used, or "": others can write to it, or it is not a cache."""
        try:
            if problem := distrusted(self.directory):
                return f"{problem}, and what it holds would be run: {_REMEDY}"
            if not _is_cache(self.directory):
                return f"it has other files and no {_MARKER} of a compile cache: choose another folder"
        except FileNotFoundError:
            return ""  # it will be made
        except OSError as error:
            return reason(error)
        return ""

    def prepare(self, folder: str) -> Path:
        """A folder in the directory, both made where they are missing. Raises OSError, also where it is refused."""
        if refusal := self.refused():
            raise PermissionError(refusal)
        if not self.directory.exists():
            _make_folder(self.directory)
            return self.prepare(folder)  # now that all of the path can be checked
        marker = self.directory / _MARKER
        if not marker.exists():
            replace_file(marker, _MARK, mode=0o644)
        path = self.directory / folder
        _make_folder(path)
        if problem := distrusted_entry(path):
            raise PermissionError(problem)
        return path

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
            self.prepare(path.parent.name)
            if not _is_entry(path):
                raise FileExistsError(f"{path} is not a file of the cache")
            write_archive(path, blocks, 0o644)
        except OSError as error:
            _warn_once(self.directory, reason(error))
            return
        try:
            size = os.lstat(path).st_size
        except OSError:  # another process removed it
            return
        add(self.directory / _TOTAL, size, self.capacity_bytes, lambda: self._evict(spare=path))

    def drop(self, key: str) -> None:
        """Remove the entry of `key`, which is not what was put."""
        if self.enabled and not self.refused():
            self._remove(self._path(key))

    def clear(self) -> None:
        """Remove all entries; a file that cannot be removed is only logged. Raises InvalidArgument if refused."""
        if refusal := self.refused():
            raise InvalidArgument(refusal, where=str(self.directory), help="remove it by hand if it is to go")
        for path, _ in self._entries():
            self._remove(Path(path))
        self._remove_abandoned(seconds=0)

    def statistics(self) -> Statistics:
        entries = [] if self.refused() else [status for _, status in self._entries()]
        return Statistics(self._hits, self._misses, len(entries), sum(status.st_size for status in entries))

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise InvalidArgument(f"{key!r} is not a key of the cache", help="make it with cache_key")
        return self.directory / key[:2] / f"{key}.zip"

    def _read(self, path: Path) -> dict[str, memoryview] | None:
        if refusal := self.refused():
            _warn_once(self.directory, refusal)
            return None
        try:
            if problem := distrusted_entry(path.parent) or distrusted_entry(path):
                raise PermissionError(problem)
            blocks = read_archive(path)
        except FileNotFoundError:
            return None
        except InvalidFile as error:
            _log.info("a damaged cache entry is removed: %s", error)
            self._remove(Path(path))
            return None
        except OSError as error:
            _warn_once(self.directory, reason(error))
            return None
        with contextlib.suppress(OSError):  # a read-only cache serves entries too, it only forgets their use
            os.utime(path)
        return blocks

    def _evict(self, spare: Path) -> int:
        """Remove the entries used longest ago while all are larger than the capacity, and abandoned temporary files.

        Returns the bytes of the entries that are left.
        """
        self._remove_abandoned()
        entries = [(status.st_mtime_ns, status.st_size, path) for path, status in self._entries()]
        total = sum(size for _, size, _ in entries)
        if total <= self.capacity_bytes:
            return total
        for _, size, path in sorted(entries):
            if total <= self.capacity_bytes * _KEEP:
                break
            if path != str(spare):
                self._remove(Path(path))
                total -= size
        return total

    def _entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Paths of what has the name of an entry and is a file."""
        for subfolder in _subfolders(self.directory):
            for item in _listed(subfolder):
                if _KEY.fullmatch(item.name.removesuffix(".zip")) and item.name[:2] == subfolder.name:
                    with contextlib.suppress(OSError):  # another process removed it
                        status = item.stat(follow_symlinks=False)
                        if item.name.endswith(".zip") and stat.S_ISREG(status.st_mode):
                            yield item.path, status

    def _remove_abandoned(self, seconds: float = ABANDONED_SECONDS) -> None:
        """Remove what processes that were killed while they wrote have left behind."""
        for subfolder in _subfolders(self.directory):
            remove_abandoned(subfolder, _UNFINISHED_ENTRY, seconds)
        machines = self.directory / _MACHINES
        if not machines.is_symlink():
            remove_abandoned(machines, _UNFINISHED_MACHINE, seconds)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _warn_once(self.directory, reason(error))


def _is_cache(directory: Path) -> bool:
    """Whether a folder has the marker, or, as of earlier versions, nothing but what a cache has."""
    marker = directory / _MARKER
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.lstat(marker).st_mode):
            with open_regular(marker) as file:
                return b"tilewright" in file.read(len(_MARK))
    for item in _listed(directory):
        if _OF_THE_SYSTEM.fullmatch(item.name):
            continue
        if not item.is_dir(follow_symlinks=False):
            return False
        names = [file.name for file in _listed(Path(item.path)) if not _OF_THE_SYSTEM.fullmatch(file.name)]
        if not all(_is_of_cache(item.name, name) for name in names):
            return False
    return True


def _is_of_cache(folder: str, name: str) -> bool:
    """Whether a cache has files of this name in this folder."""
    if folder == _MACHINES:
        return bool(_MACHINE.fullmatch(name) or _UNFINISHED_MACHINE.fullmatch(name))
    return bool(_SUBFOLDER.fullmatch(folder) and re.fullmatch(rf"{folder}[0-9a-f]{{62}}\.zip", name))


def _subfolders(directory: Path) -> Iterator[Path]:
    """The folders of entries."""
    for item in _listed(directory):
        if _SUBFOLDER.fullmatch(item.name) and item.is_dir(follow_symlinks=False):
            yield Path(item.path)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing where it is not there or cannot be read."""
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError:
        return []


def _make_folder(path: Path) -> None:
    """Make a folder that only this user can write to, and the folders above it; one that is there is left."""
    try:
        path.mkdir(mode=0o755, exist_ok=True)
    except FileNotFoundError:
        _make_folder(path.parent)
        path.mkdir(mode=0o755, exist_ok=True)


def _is_entry(path: Path) -> bool:
    """Whether an entry can be put at `path`: nothing is there, or an entry."""
    try:
        return not distrusted_entry(path) and stat.S_ISREG(os.lstat(path).st_mode)
    except FileNotFoundError:
        return True


@functools.cache
def _warn_once(directory: Path, reason: str) -> None:
    _log.warning("the compile cache in %s does not work: %s; compiling goes on without it", directory, reason)
