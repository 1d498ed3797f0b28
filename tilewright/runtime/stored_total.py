"""The bytes of all files in a folder, kept in a file, so that adding one file does not look at all others.

Any number of processes may add at once: the file is locked from reading to writing. The total is never less than what
was added since the last count, so that a limit holds. What is removed is not subtracted, and what others than `add`
bring is not in it: a count corrects both, where the total exceeds the limit, or after `RECOUNT_SECONDS`.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

RECOUNT_SECONDS: Final = 3600.0
_PATIENCE_SECONDS: Final = 1.0  # for a process that counts; one that was stopped may hold the lock for ever
_TEXT: Final = re.compile(rb"(\d{1,19}) bytes, counted at (\d{1,19})\n")


def add(path: Path, size_bytes: int, limit_bytes: int, count: Callable[[], int]) -> None:
    """Add a file that is in the folder to the total in the file `path`; count again where that is due.

    `count` gives the bytes of all files, and may remove some first. It runs each time where `path` is no regular file,
    cannot be locked or cannot be written. Raises what `count` raises.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError:
        count()
        return
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not _locked(descriptor):
            _forget(path)  # who holds the lock may not know of the new file
            count()
            return
        try:
            _update(descriptor, path, size_bytes, limit_bytes, count)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # for processes forked meanwhile, too
    finally:
        os.close(descriptor)


def _update(descriptor: int, path: Path, size_bytes: int, limit_bytes: int, count: Callable[[], int]) -> None:
    found, now = _TEXT.fullmatch(os.pread(descriptor, 100, 0)), int(time.time())
    total, counted = (int(found[1]) + size_bytes, int(found[2])) if found else (0, 0)
    if total > limit_bytes or not 0 <= now - counted < RECOUNT_SECONDS:
        total, counted = count(), now
    text = b"%d bytes, counted at %d\n" % (total, counted)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text, 0)
    except OSError:  # a full disk: an empty file is no total
        _forget(path)


def _locked(descriptor: int) -> bool:
    """Lock an open file; False where another process does not let go of it, or there are no locks."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        except OSError:
            return False
        else:
            return True


def _forget(path: Path) -> None:
    """Remove the file, if it is one, so that the next process counts."""
    try:
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
    except OSError:
        return
