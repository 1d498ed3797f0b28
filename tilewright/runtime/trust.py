"""Whether code from a folder may be run: only this user, and root, may be able to put anything there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MAX_LINKS = 40  # as the kernel has it


def distrusted(folder: Path) -> str:
    """Why `folder` is not to be trusted, or "": who else can write to it, or put another in its place.

    Every folder and link on the way to it counts. In a folder with the sticky bit, such as /tmp, others cannot replace
    what is there. Raises FileNotFoundError where it does not exist and all that exists of the way is trusted, and
    OSError where the way cannot be walked.
    """
    if not hasattr(os, "geteuid"):
        return ""
    for place, status in _way(folder):
        if found := foreign(status, sticky=True):
            return f"{place} {found}"
    status = os.stat(folder)
    found = foreign(status) if stat.S_ISDIR(status.st_mode) else "is not a folder"
    return found and f"{folder} {found}"


def foreign(status: os.stat_result, *, sticky: bool = False) -> str:
    """Why what has this status is not this user's alone, or ""; with `sticky` that bit makes up for it."""
    if not hasattr(os, "geteuid"):
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to {_user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or (sticky and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if status.st_mode & stat.S_IWGRP and not _only_own(status.st_gid):
        return f"can be written by group {status.st_gid}"
    return ""


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and symbolic link that the kernel visits on the way to `path`, and their status."""
    parts = list(reversed(Path(os.path.abspath(path)).parts))
    here, links = Path(parts.pop()), 0
    yield here, os.lstat(here)
    while parts:
        part = parts.pop()
        if part == "..":
            here = here.parent
            continue
        place = here / part
        status = os.lstat(place)
        yield place, status
        if not stat.S_ISLNK(status.st_mode):
            here = place
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        target = Path(os.readlink(place))
        if target.is_absolute():
            here = Path(target.anchor)
        parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def _only_own(group: int) -> bool:
    """Whether a group is this user's own: of the same name, and nobody else is in it."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name} and user.pw_gid == group


def _user_name(user: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
