"""Files that users name: reading ends, and writing gives the old file or the whole new one, or adds whole lines.

Everything in the package that reads a user's file or writes one does it here. Only regular files are read, so that a
FIFO or a device neither blocks nor fills the memory, and none that is larger than its kind may be.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from io import BufferedReader, FileIO
from pathlib import Path
from typing import IO, Final, TypeAlias

from tilewright.errors import CompileError, InvalidArgument, InvalidFile, nearest

Content: TypeAlias = bytes | Callable[[IO[bytes]], None]  # the bytes, or what writes them to a file

MOST_NAMES: Final = 10_000  # of a folder that are compared with a name that is not there
TEXT_BYTES: Final = 256 << 20  # more than any tile program, PTX text or table that can be worked with

_KINDS: Final = {
    stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip
TEMPORARY: Final = r"\.tilewright-[0-9a-f]{16}-[0-9a-f]{16}\.tmp"  # names of files that are not finished
ABANDONED_SECONDS: Final = 3600.0  # locks may hold on one host only (NFS): no writer pauses, and no clock errs, so long
_DESCRIPTORS: Final = ("/dev/fd/", "/dev/std", "/proc/")  # where names stand for open files, such as /dev/stdout
_NO_NEW_FILES: Final = (errno.EACCES, errno.EPERM, errno.EROFS)  # what a folder says that takes none
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_REPLACEMENT: Final = (errno.EACCES, errno.EPERM, errno.EBUSY)  # a sticky folder of others; a mounted file


# Paths ----------------------------------------------------------------------------------------------------------------


def as_path(value: object, where: str = "") -> Path:
    """`value`, a str or a PathLike of one, as a path. Raises InvalidArgument for what no file can be named."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"{value!r} is no path", where=where, help="a str or a pathlib.Path")
    try:
        if b"\0" in os.fsencode(text):
            raise InvalidArgument(f"the path {text!r} holds a NUL", where=where, help="leave it out")
    except UnicodeEncodeError:
        raise InvalidArgument(f"the path {text!r} is no text of the file system", where=where) from None
    return Path(text)


# Reading --------------------------------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str], limit: int | None = None) -> BufferedReader:
    """Open a regular file of at most `limit` bytes for reading. Raises OSError, also for any other kind of file."""
    try:
        _require_regular(os.stat(path))  # opening a device may already do something
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None  # a NUL in the path
    try:
        status = os.fstat(descriptor)
        _require_regular(status)
        if limit is not None and status.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, the limit is {limit:,}")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(
    path: str | os.PathLike[str], error: type[CompileError] = InvalidFile, *, help: str = "", limit: int = TEXT_BYTES
) -> bytes:
    """All bytes of a regular file. Raises `error` where that cannot be, or where there are more than `limit`."""
    try:
        with open_regular(path, limit) as file:
            content = file.read(limit + 1)
            if content is None or len(content) > limit:  # files of the system do not say how long they are
                raise OSError(errno.EFBIG, f"it does not end within {limit:,} bytes")
            return content
    except FileNotFoundError:
        raise missing(path, error, help) from None
    except OSError as failure:
        raise error(f"cannot be read: {reason(failure)}", where=os.fspath(path), help=help) from failure
    except MemoryError as failure:
        raise error("cannot be read: it is larger than the memory", where=os.fspath(path), help=help) from failure


def missing(path: str | os.PathLike[str], error: type[CompileError] = InvalidFile, help: str = "") -> CompileError:
    """The error of a file that is not there. Without `help` it names a file that has nearly this name."""
    return error("there is no such file", where=os.fspath(path), help=help or _nearest(Path(path)))


def _nearest(path: Path) -> str:
    """The nearest name in the folder of a path; else the nearest folder that is there."""
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    if folder != path.parent:
        return f"a path in a folder that is there: {folder}"
    try:
        names = [each.name for each in itertools.islice(folder.iterdir(), MOST_NAMES)]
    except OSError:
        return ""
    close = nearest(path.name, names)
    return f"did you mean {folder / close[0]}?" if close else f"{folder.resolve()} has no file of a similar name"


def read_text(
    path: str | os.PathLike[str], error: type[CompileError] = InvalidFile, *, help: str = "", limit: int = TEXT_BYTES
) -> str:
    """A regular file as UTF-8 text, without a byte order mark. Raises `error` as `read_bytes` does."""
    content = read_bytes(path, error, help=help, limit=limit)
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as failure:
        raise error(f"is not UTF-8 text at byte {failure.start}", where=os.fspath(path), help=help) from failure


def read_input(name: str, stream: IO[str], error: type[CompileError], limit: int = TEXT_BYTES) -> str:
    """The text of standard input. Raises `error` where it is not text or does not end within `limit` characters."""
    try:
        text = stream.read(limit + 1)
    except (OSError, UnicodeDecodeError) as failure:
        raise error(f"cannot be read: {reason(failure)}", where=name) from failure
    if len(text) > limit:
        raise error(f"does not end within {limit:,} characters", where=name)
    return text


def reason(failure: Exception) -> str:
    """What a failure of the system or of a reader says, in one line."""
    said = (getattr(failure, "strerror", None) or str(failure)).strip() or type(failure).__name__
    return said.splitlines()[0]


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(status.st_mode), 'special')}, not a file")


# Writing --------------------------------------------------------------------------------------------------------------


def write_file(path: str | os.PathLike[str], content: Content, where: str | None = None) -> None:
    """`replace_file` for a file that a user names. Raises InvalidArgument where it cannot be written."""
    named = as_path(path, where or "")
    try:
        replace_file(named, content)
    except OSError as error:
        message = f"cannot write {str(named)!r}" if where else "cannot write"
        raise InvalidArgument(f"{message}: {reason(error)}", where=where or str(named)) from error


def open_locked(path: str | os.PathLike[str], where: str, limit: int) -> FileIO:
    """Open a regular file of at most `limit` bytes to read it and to write in place; a new one is empty.

    For files that grow line by line, too often to write a whole new one. Raises InvalidArgument where it cannot be
    opened, or where another process has it open so. The lock ends when the process closes a descriptor of the file.
    """
    named = as_path(path, where)
    try:
        _require_writable(named, _status(named))
        file = FileIO(os.open(named, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666), "r+")
        try:
            status = os.fstat(file.fileno())
            _require_regular(status)
            if status.st_size > limit:
                raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, the limit is {limit:,}")
            _lock(file)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise InvalidArgument(f"cannot write {str(named)!r}: {reason(error)}", where=where) from error
    return file


def _lock(file: FileIO) -> None:
    """Lock a file for this process alone: unlike `flock`, not for the workers that it forks."""
    try:
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):  # others are of file systems without locks
            raise OSError(error.errno, "another process writes it") from None


def require_writable(path: str | os.PathLike[str] | None, where: str) -> None:
    """Raise InvalidArgument where `write_file` cannot but fail, before hours of work; None is no file."""
    if path is None:
        return
    named = as_path(path, where)
    try:
        _require_writable(named, _status(named))
    except OSError as error:
        raise InvalidArgument(f"cannot write {str(named)!r}: {reason(error)}", where=where) from error


def _require_writable(path: Path, status: os.stat_result | None) -> None:
    folder = Path(os.path.realpath(path)).parent
    if status is not None:
        _require_kind(stat.S_IFMT(status.st_mode))
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "the file is protected from writing")
    elif not folder.exists():
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(folder)!r}")
    elif not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{str(folder)!r} is no folder")
    elif not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"the folder {str(folder)!r} is protected from writing")


def replace_file(path: Path, content: Content, mode: int = 0o666) -> None:
    """Write `content` to `path`: others see the old file or the whole new one, never a part.

    A symbolic link stays, what it points to is written. A file that is there keeps its permissions; a new one has
    `mode` without the umask. Raises OSError; then the old file is as it was. A temporary file of a process that was
    killed is removed when another one writes to the same place and the file is `ABANDONED_SECONDS` old.

    What cannot be replaced is overwritten in place once the content is complete, and others may see a part: a file in
    a folder that takes no new files, a mounted file, a terminal, /dev/null, a FIFO that somebody reads. Anything else
    that is not a regular file is refused.
    """
    status = _status(path)
    if status is not None and (not stat.S_ISREG(status.st_mode) or os.path.abspath(path).startswith(_DESCRIPTORS)):
        _write_in_place(path, status, content)
        return
    target = Path(os.path.realpath(path))
    if status is not None and not os.access(target, os.W_OK):
        status = _status(path)  # another process may have removed it, or replaced it, just now
        if status is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "the file is protected from writing")
    stem = f".tilewright-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}-"
    remove_abandoned(target.parent, re.compile(f"{re.escape(stem)}.*"))
    try:
        temporary, descriptor = _temporary(target.parent, stem, mode)
    except OSError as error:
        if status is None or error.errno not in _NO_NEW_FILES:
            raise
        _write_in_place(target, status, content)
        return
    try:
        with os.fdopen(os.dup(descriptor), "w+b") as file:
            _fill(file, content)
            file.flush()
            if status is not None:
                _copy_owner_and_mode(status, descriptor)
            _replace(temporary, target, status, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)  # and with it the lock, which says until here that the file has a writer


def remove_abandoned(
    folder: Path, names: re.Pattern[str] = re.compile(TEMPORARY), seconds: float = ABANDONED_SECONDS
) -> None:
    """Remove the files in `folder` with temporary `names` that have no writer and were last written `seconds` ago."""
    try:
        with os.scandir(folder) as entries:
            abandoned = [entry.name for entry in entries if names.fullmatch(entry.name)]
    except OSError:
        return  # what is wrong with the folder shows when something is written to it
    for name in abandoned:
        with contextlib.suppress(OSError):  # it has a writer, or another process removes it
            _remove_unlocked(folder / name, seconds)


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None  # a NUL in the path


def _write_in_place(path: Path, status: os.stat_result, content: Content) -> None:
    _require_kind(stat.S_IFMT(status.st_mode))
    with tempfile.TemporaryFile() as whole:
        _fill(whole, content)  # an archive goes back and forth in its file
        _overwrite(path, status, whole)


def _require_kind(kind: int) -> None:
    """Refuse what takes no bytes in place: directories, disks, sockets."""
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if kind not in (stat.S_IFREG, stat.S_IFCHR, stat.S_IFIFO):
        raise OSError(errno.EINVAL, f"it is {'a disk' if kind == stat.S_IFBLK else _KINDS.get(kind, 'special')}")


def _overwrite(path: Path, status: os.stat_result, whole: IO[bytes]) -> None:
    """Write all of the file `whole` to `path`, whose old content is kept until then, and for good on a full disk."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is a FIFO that nobody reads, or a device that is not there") from None
        raise
    with os.fdopen(descriptor, "wb") as file:
        os.set_blocking(descriptor, True)
        before, size = os.fstat(descriptor).st_size, whole.seek(0, os.SEEK_END)
        if stat.S_ISREG(status.st_mode) and size > before:
            _reserve(descriptor, before, size)
        whole.seek(0)
        shutil.copyfileobj(whole, file)
        file.flush()
        if stat.S_ISREG(status.st_mode) and size < before:
            os.ftruncate(descriptor, size)


def _reserve(descriptor: int, before: int, size: int) -> None:
    """Reserve `size` bytes for a file of `before` bytes, whose content stays. Raises OSError on a full disk."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in _NO_ROOM:  # others are of file systems that reserve nothing
            os.ftruncate(descriptor, before)
            raise


def _temporary(folder: Path, stem: str, mode: int) -> tuple[Path, int]:
    """A new file in `folder`, and a descriptor that holds it locked: no other process takes it for abandoned."""
    while True:
        path = folder / f"{stem}{os.urandom(8).hex()}.tmp"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process took it for abandoned just now, and removes it
            with contextlib.suppress(OSError):
                os.unlink(path)
        except OSError:  # a file system without locks: nobody removes it either
            return path, descriptor
        else:
            if os.fstat(descriptor).st_nlink:
                return path, descriptor  # else it was removed before it was locked
        os.close(descriptor)


def _fill(file: IO[bytes], content: Content) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content)


def _copy_owner_and_mode(status: os.stat_result, descriptor: int) -> None:
    """Give an open file the permissions of another, and its owner and group as far as that is allowed."""
    for user, group in ((status.st_uid, status.st_gid), (-1, status.st_gid)):
        try:
            os.fchown(descriptor, user, group)
            break
        except OSError:
            continue
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & 0o777)


def _replace(temporary: Path, target: Path, status: os.stat_result | None, whole: IO[bytes]) -> None:
    """Put the temporary file, which is open as `whole`, in place of `target`, whose status is `status` if it exists."""
    try:
        os.replace(temporary, target)
    except OSError as error:
        if status is None or error.errno not in _NO_REPLACEMENT:
            raise
        _overwrite(target, status, whole)
        os.unlink(temporary)


def _remove_unlocked(path: Path, seconds: float) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        old = status.st_mtime <= time.time() - seconds
        if old and stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    finally:
        os.close(descriptor)
