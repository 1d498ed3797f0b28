"""The cores that a thread may use, and the CPU time that Linux's control groups grant this process, versions 1 and 2.

A quota is time per period: 150 ms in each 100 ms are 1.5 cores. Groups are nested, and each limits what is in it, so
the smallest quota between the process and the outermost group that is visible holds. What cannot be read is no limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ESCAPE = re.compile(r"\\([0-7]{3})")  # in mountinfo, proc(5): blanks and backslashes of paths


def affinity() -> tuple[int, ...]:
    """The cores that the calling thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of CPU time that this process may use, or None without a limit. `root`: where `proc` and `sys` are.

    >>> from tempfile import gettempdir
    >>> cpu_quota(Path(gettempdir(), "nothing is here")) is None
    True
    """
    quotas = [_quota(group) for group in _groups(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The directories of the groups that this process is in, from the innermost outwards, in all hierarchies."""
    mounts = list(_mounts(root))
    for line in _lines(root / "proc/self/cgroup"):
        fields = line.split(":", 2)  # number, controllers, path; version 2 has no controllers here
        if len(fields) < 3 or (fields[1] and "cpu" not in fields[1].split(",")):
            continue
        kind, path = ("cgroup" if fields[1] else "cgroup2"), PurePosixPath(fields[2])
        for mount_kind, mount_root, mount_point in mounts:
            if mount_kind == kind:
                seen = path.is_relative_to(mount_root) and ".." not in path.parts  # else it lies outside of the mount
                inside = path.relative_to(mount_root) if seen else PurePosixPath(".")
                for group in (inside, *inside.parents):
                    yield mount_point / group


def _mounts(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Mounted hierarchies that may limit CPU time: kind, the group that is mounted, and where."""
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, rest = line.partition(" - ")
        fields, (kind, *others) = mount.split(" "), rest.split(" ")
        limits = kind == "cgroup2" or (kind == "cgroup" and "cpu" in ",".join(others[-1:]).split(","))
        if limits and len(fields) > 4:
            yield kind, _unescaped(fields[3]), root / _unescaped(fields[4]).lstrip("/")


def _quota(group: Path) -> float | None:
    """Cores that the files of one group grant."""
    words = [word for line in _lines(group / "cpu.max") for word in line.split()]  # version 2: "max 100000"
    if not words:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # version 1: -1 without a limit
        words = [word for name in names for word in _lines(group / name)[:1]]
    try:
        quota, period = (int(word) for word in words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except (OSError, ValueError):  # not there, not to be read, or a name with NUL
        return []


def _unescaped(path: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)
