"""Whether code from a folder may be run: only this user, and root, may be able to put anything there."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_MAX_LINKS = 40  # as the kernel has it


def distrusted(folder: Path) -> str:
    """Why `folder` is not to be trusted, or "": who else can write to it, or put another in its place.

    Every folder and link on the path counts. In a folder with the sticky bit, such as /tmp, others cannot replace what
    is there. Raises FileNotFoundError where the folder does not exist and what exists of its path is trusted, and
    OSError where the path cannot be followed.
    """
    root = _root_uid()
    for place, status in _path_components(folder):
        # A user namespace may show other users under the number of root: not where any user can make files.
        of_root = status.st_uid == root and not os.stat(place.parent).st_mode & stat.S_ISVTX
        if reason := writable_by_others(status, on_path=True, of_root=of_root):
            return f"{place} {reason}"
    status = os.stat(folder)
    reason = writable_by_others(status) if stat.S_ISDIR(status.st_mode) else "is not a folder"
    return reason and f"{folder} {reason}"


def distrusted_entry(path: Path) -> str:
    """Why a file or folder in a trusted folder is not to be trusted, or "". Raises OSError where there is none."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link"
    reason = writable_by_others(status)
    return reason and f"{path} {reason}"


def writable_by_others(status: os.stat_result, *, on_path: bool = False, of_root: bool = False) -> str:
    """Why others than this user and root can write to what has this status, or "".

    `on_path` is of a folder or link on a path: there the sticky bit is enough. `of_root` says that its owner is root.
    """
    if status.st_uid not in (os.geteuid(), 0) and not of_root:
        return f"belongs to {_user_name(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode) or (on_path and status.st_mode & stat.S_ISVTX):
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "can be written by everybody (`chmod o-w` ends that)"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        return f"can be written by group {status.st_gid} (`chmod g-w` ends that)"
    return ""


def _path_components(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder and symbolic link that the kernel visits on the way to `path`, and their status."""
    absolute = path if path.is_absolute() else Path.cwd() / path  # with its "..", which may be behind links
    parts = list(reversed(absolute.parts))
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


def _root_uid() -> int:
    """The user number under which the root of the host shows here: not 0 in a user namespace that does not map it."""
    try:
        return os.stat("/proc/sys/kernel/overflowuid").st_uid  # of that root wherever it is
    except OSError:
        return 0


def _is_private_group(group: int) -> bool:
    """Whether a group is this user's alone: it has the user's name, or number if both are nameless, and no members."""
    import grp
    import pwd

    user: pwd.struct_passwd | None = None
    entry: grp.struct_group | None = None
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.geteuid())
    with contextlib.suppress(KeyError):
        entry = grp.getgrgid(group)
    if user is None or entry is None:
        return user is None and entry is None and group == os.geteuid()
    return entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name} and user.pw_gid == group


def _user_name(user: int) -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"
