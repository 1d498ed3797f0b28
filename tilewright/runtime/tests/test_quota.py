"""CPU quotas of control groups, in made-up trees of files as containers and hosts have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime import pool as pools
from tilewright.runtime.quota import cpu_quota

V2 = "31 23 0:28 {mounted} /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 {mounted} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
V1_OTHERS = "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
V1_IN = "sys/fs/cgroup/cpu,cpuacct"


def tree(root: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v1(group: str, quota: str, period: str = "100000\n") -> dict[str, str]:
    return {f"{V1_IN}{group}/cpu.cfs_quota_us": quota, f"{V1_IN}{group}/cpu.cfs_period_us": period}


CASES = {
    "a container of version 2": ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
    "no limit": ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    "the root of a host has no file": ("0::/\n", V2, {}, None),
    "the smallest of nested groups": (
        "0::/a.slice/b/c\n",
        V2,
        {
            "sys/fs/cgroup/a.slice/cpu.max": "200000 100000",
            "sys/fs/cgroup/a.slice/b/cpu.max": "max 100000",
            "sys/fs/cgroup/a.slice/b/c/cpu.max": "90000 30000",
            "sys/fs/cgroup/other/cpu.max": "1000 100000",
        },
        2.0,
    ),
    "a mount of the container's own group": ("0::/docker/1\n", V2, {"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
    "a process outside of its namespace": ("0::/../1\n", V2, {"sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
    "a blank in a name": (
        "0::/a b\n",
        V2.replace("/sys/fs/cgroup", "/my\\040groups"),
        {"my groups/a b/cpu.max": "300000 100000"},
        3.0,
    ),
    "version 1": ("4:cpuset:/\n3:cpu,cpuacct:/a\n", V1_OTHERS + V1, v1("/a", "250000\n"), 2.5),
    "version 1 without a limit": ("3:cpu,cpuacct:/a\n", V1, v1("/a", "-1\n"), None),
    "version 1, nested": ("3:cpu,cpuacct:/a/b\n", V1, {**v1("/a", "100000"), **v1("/a/b", "300000")}, 1.0),
    "version 1, in a container": ("3:cpuacct,cpu:/docker/1\n", V1.format(mounted="/docker/1"), v1("", "7000"), 0.07),
    "both, one of them with the controller": (
        "3:cpu,cpuacct:/a\n0::/a\n",
        V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
        v1("/a", "400000"),
        4.0,
    ),
    "words that are no numbers": ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "many 100000\n"}, None),
    "an empty file": ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": ""}, None),
    "too many words": ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "1 2 3"}, None),
    "a period of zero": ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "100000 0"}, None),
    "a negative quota": ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "-5 100000"}, None),
    "version 1 without a period": ("3:cpu:/\n", V1, {f"{V1_IN}/cpu.cfs_quota_us": "100000"}, None),
    "a damaged list of groups": ("0:\n\nx\n0::/\n", V2, {"sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0),
    "a damaged list of mounts": (
        "0::/\n",
        "- - -\nx - cgroup2\nx - cgroup\n - \n" + V2,
        {"sys/fs/cgroup/cpu.max": "1000 1000"},
        1.0,
    ),
    "bytes that are no text": ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "\udcff"}, None),
    "nothing is mounted": ("0::/\n", "", {}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_quota_of_a_container(name: str, tmp_path: Path) -> None:
    cgroup, mountinfo, files, quota = CASES[name]
    files = {path: text.encode("utf-8", "surrogateescape").decode("latin-1") for path, text in files.items()}
    assert cpu_quota(tree(tmp_path, cgroup, mountinfo.replace("{mounted}", "/"), files)) == quota


def test_default_threads_are_no_more_than_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with 2 of 64 cores' time ran 64 threads, which were paused for most of each period."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(pools, "affinity", lambda: tuple(range(64)))
    for quota, threads in ((None, 64), (2.0, 2), (2.9, 2), (0.3, 1), (80.0, 64)):
        monkeypatch.setattr(pools, "cpu_quota", lambda quota=quota: quota)
        assert pools.default_threads() == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert pools.default_threads() == 5  # who says a number gets it


def test_workers_that_share_their_cores_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers with quotas would pin their workers to the same first cores."""
    monkeypatch.setattr(pools, "affinity", lambda: (0, 1, 2, 3))
    for quota, pinned in ((None, True), (2.0, False), (4.0, True)):
        monkeypatch.setattr(pools, "cpu_quota", lambda quota=quota: quota)
        assert pools.get_pool(2, pools.Options(openmp=False, pin=True)).pinned is pinned
