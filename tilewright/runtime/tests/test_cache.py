"""The cache gives back what was put, and nothing else, whatever happens to its files."""

from __future__ import annotations

import ctypes
import fcntl
import grp
import json
import logging
import multiprocessing
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tilewright.errors import InvalidArgument
from tilewright.options import Options
from tilewright.runtime import archive, stored_total, trust
from tilewright.runtime import cache as cache_module
from tilewright.runtime.cache import Cache, cache_key

BLOCKS = {"code.o": b"machine code" * 100, "plan.json": b"{}", "empty": b""}
KEY = cache_key({"program": "p", "llvm": "22"})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 1 << 20)


def entry(cache: Cache, key: str = KEY) -> Path:
    return cache.directory / key[:2] / f"{key}.zip"


def make_due(cache: Cache) -> None:
    """Make the cache count its entries with the next one, and look for what was abandoned."""
    (cache.directory / ".total").write_bytes(b"0 bytes, counted at 0\n")


def test_put_and_get(cache: Cache) -> None:
    assert cache.get(KEY) is None
    cache.put(KEY, BLOCKS)
    blocks = cache.get(KEY)
    assert blocks is not None
    assert {name: bytes(block) for name, block in blocks.items()} == BLOCKS
    statistics = cache.statistics()
    assert (statistics.hits, statistics.misses, statistics.entries) == (1, 1, 1)
    assert statistics.bytes == entry(cache).stat().st_size


def test_keys_depend_on_every_name_and_value() -> None:
    keys = [
        cache_key(parts)
        for parts in ({}, {"a": ""}, {"a": "b"}, {"ab": ""}, {"a": "b", "c": ""}, {"a": "bc"}, {"a": "b\0c"})
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key({"x": "1", "y": "2"}) == cache_key({"y": b"2", "x": b"1"})


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_what_is_no_key_is_refused(cache: Cache, key: str) -> None:
    with pytest.raises(InvalidArgument, match="not a key"):
        cache.get(key)


def test_a_damaged_entry_is_a_miss_and_is_removed(cache: Cache) -> None:
    cache.put(KEY, BLOCKS)
    content = entry(cache).read_bytes()
    damaged = {
        "flipped": content.replace(b"machine code", b"machine coda", 1),
        "truncated": content[: len(content) // 2],
        "empty": b"",
        "noise": b"\x80\x04" * 500,
        "compressed": repacked(content, zipfile.ZIP_DEFLATED),
        "compressed well": repacked(content, zipfile.ZIP_BZIP2),
    }
    for how, data in damaged.items():
        entry(cache).write_bytes(data)
        assert cache.get(KEY) is None, how
        assert not entry(cache).exists(), how
    cache.put(KEY, BLOCKS)
    assert cache.get(KEY) is not None


def repacked(content: bytes, method: int) -> bytes:
    """The same members, compressed."""
    packed = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old, zipfile.ZipFile(packed, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return packed.getvalue()


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("field", [4, 6, 8, 10, 14, 16, 20, 24, 28, 32, 36, 38, 42])  # of an entry of the directory
def test_a_flipped_bit_in_the_directory_is_a_miss(field: int, bit: int, cache: Cache) -> None:
    cache.put(KEY, BLOCKS)
    content = bytearray(entry(cache).read_bytes())
    content[content.index(b"PK\1\2") + field] ^= 1 << bit
    entry(cache).write_bytes(content)
    blocks = cache.get(KEY)
    assert blocks is None or {name: bytes(block) for name, block in blocks.items()} == BLOCKS
    cache.put(KEY, BLOCKS)
    assert cache.get(KEY) is not None


def test_switched_off(tmp_path: Path) -> None:
    cache = Cache.from_options(Options(cache=False, cache_dir=tmp_path / "cache"))
    cache.put(KEY, BLOCKS)
    assert cache.get(KEY) is None
    assert not (tmp_path / "cache").exists()


def test_the_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 10_000)
    keys = [cache_key({"number": str(number)}) for number in range(4)]
    for age, key in enumerate(keys[:3]):
        cache.put(key, {"x": bytes(2500)})
        os.utime(entry(cache, key), (1000 + age, 1000 + age))
    assert cache.get(keys[0]) is not None  # now the youngest
    cache.put(keys[3], {"x": bytes(2500)})
    present = [key in {path.stem for path in tmp_path.glob("??/*.zip")} for key in keys]
    assert present[0]
    assert present[3]
    assert not present[1]
    assert cache.statistics().bytes <= 10_000


def test_an_entry_larger_than_the_capacity_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    cache.put(KEY, {"x": bytes(1001)})
    assert cache.statistics().entries == 0


def many(cache: Cache, count: int) -> int:
    """Put so many entries; the bytes of all."""
    for number in range(count):
        cache.put(cache_key({"number": str(number)}), {"x": bytes(900)})
    return cache.statistics().bytes


def test_a_new_entry_does_not_look_at_the_others(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(KEY, BLOCKS)
    with monkeypatch.context() as patched:
        patched.setattr(Cache, "_entries", None)
        patched.setattr(cache_module, "remove_abandoned", None)
        cache.put(cache_key({"another": ""}), BLOCKS)
    total = int((cache.directory / ".total").read_text().split()[0])
    assert total == cache.statistics().bytes


def test_the_capacity_holds_whatever_is_counted(tmp_path: Path) -> None:
    assert 7_500 < many(Cache(tmp_path, 10_000), 50) <= 10_000


def test_what_others_bring_is_counted_within_the_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, cache = Cache(tmp_path / "other", 1 << 20), Cache(tmp_path / "cache", 5_000)
    cache.put(KEY, BLOCKS)
    many(other, 10)
    shutil.copytree(other.directory, cache.directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".total"))
    cache.put(KEY, BLOCKS)
    assert cache.statistics().bytes > 5_000
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    cache.put(KEY, BLOCKS)
    assert cache.statistics().bytes <= 5_000


@pytest.mark.parametrize("content", [b"", b"9", b"1 bytes, counted at 5", b"-1 bytes, counted at 1\n", b"x" * 5_000])
def test_a_total_that_cannot_be_read_is_counted_again(content: bytes, tmp_path: Path) -> None:
    cache = Cache(tmp_path, 5_000)
    for number in range(20):
        (tmp_path / ".total").write_bytes(content)
        cache.put(cache_key({"number": str(number)}), {"x": bytes(900)})
        assert cache.statistics().bytes <= 5_000
    many(cache, 2)
    assert int((tmp_path / ".total").read_text().split()[0]) >= cache.statistics().bytes


@pytest.mark.parametrize("obstacle", ["link", "dangling link", "fifo", "folder", "held"])
def test_the_capacity_holds_without_a_total(obstacle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is not followed; a process that does not let go of the total, since it was stopped, stops no other."""
    monkeypatch.setattr(stored_total, "_PATIENCE_SECONDS", 0.01)
    cache, total, outside = Cache(tmp_path / "cache", 5_000), tmp_path / "cache" / ".total", tmp_path / "outside"
    cache.put(KEY, BLOCKS)
    held = os.open(total, os.O_RDWR)
    if obstacle == "held":
        fcntl.flock(held, fcntl.LOCK_EX)
    else:
        total.unlink()
    if obstacle == "link":
        outside.write_bytes(b"0 bytes, counted at 0\n")
    if "link" in obstacle:
        total.symlink_to(outside)
    elif obstacle == "fifo":
        os.mkfifo(total)
    elif obstacle == "folder":
        total.mkdir()
    assert many(cache, 10) <= 5_000
    os.close(held)
    assert outside.exists() == (obstacle == "link")
    assert obstacle != "link" or outside.read_bytes() == b"0 bytes, counted at 0\n"


def put_together(directory: str, number: int, start: Barrier) -> None:
    cache = Cache(Path(directory), 1 << 20)
    start.wait(60)
    keys = [cache_key({"process": str(number), "number": str(each)}) for each in range(20)]
    for key in keys:
        cache.put(key, {"x": bytes(900)})


def test_the_total_is_that_of_all_processes(tmp_path: Path) -> None:
    Cache(tmp_path, 1 << 20).put(KEY, BLOCKS)
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    writers = [context.Process(target=put_together, args=(str(tmp_path), number, start)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    found = Cache(tmp_path, 1 << 20).statistics()
    assert found.entries == 81
    assert int((tmp_path / ".total").read_text().split()[0]) == found.bytes


def test_what_a_killed_writer_leaves_is_removed_by_any_other(cache: Cache) -> None:
    other = cache_key({"another": ""})
    cache.put(KEY, BLOCKS)
    left = entry(cache).parent / f".tilewright-{'0' * 16}-{'0' * 16}.tmp"
    left.write_bytes(b"x")
    make_due(cache)
    cache.put(other, BLOCKS)
    assert left.exists()  # young: its writer may live on another host
    os.utime(left, (1000, 1000))
    with left.open("rb") as at_work:
        fcntl.flock(at_work, fcntl.LOCK_EX)
        make_due(cache)
        cache.put(other, BLOCKS)
        assert left.exists()  # its writer lives
    make_due(cache)
    cache.put(other, BLOCKS)
    assert not left.exists()


@pytest.mark.parametrize("age_seconds", [0, 10_000])
@pytest.mark.parametrize("name", [f"{KEY[:2]}/.{KEY}.zip.abc_d012.tmp", "machines/tmpabc_d012.tmp"])
def test_temporary_files_of_earlier_versions_are_removed(name: str, age_seconds: int, cache: Cache) -> None:
    cache.put(KEY, BLOCKS)
    fill(cache.directory, [name])
    then = time.time() - age_seconds
    os.utime(cache.directory / name, (then, then))
    make_due(cache)
    cache.put(KEY, BLOCKS)
    assert (cache.directory / name).exists() == (age_seconds == 0)
    cache.clear()
    assert not (cache.directory / name).exists()


def test_an_entry_that_does_not_fit_into_the_memory_stays(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> None:
        raise MemoryError

    cache.put(KEY, BLOCKS)
    with monkeypatch.context() as patch:
        patch.setattr(archive, "allocate", full)
        assert cache.get(KEY) is None
    assert cache.get(KEY) is not None


# Whose files ----------------------------------------------------------------------------------------------------------

FOREIGN = (
    "ab/photo.zip",
    "ab/.notes.tmp",
    "cd/" + "0" * 64 + ".zip",
    "ab/" + "x" * 64 + ".zip",
    "notes.txt",
    "ef/gh/i",
)


def fill(folder: Path, names: Sequence[str] = FOREIGN) -> dict[str, bytes]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
        os.utime(folder / name, (1000, 1000))
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [name for name in FOREIGN if "/." not in name])
def test_a_folder_with_files_of_others_is_refused(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = fill(tmp_path, [name])
    cache = Cache(tmp_path, 10)
    with caplog.at_level(logging.WARNING):
        cache.put(KEY, {"x": b""})
    assert cache.get(KEY) is None
    assert "CACHEDIR.TAG" in caplog.text
    with pytest.raises(InvalidArgument, match="other files"):
        cache.clear()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["lost+found/#1", ".nfs0001", ".DS_Store", ".snapshot/a", ".keep", "ab/.nfs0001"])
def test_a_folder_with_files_of_the_system_can_be_a_cache(name: str, tmp_path: Path) -> None:
    before = fill(tmp_path, [name])
    cache = Cache(tmp_path, 1 << 20)
    cache.put(KEY, BLOCKS)
    assert cache.get(KEY) is not None
    cache.clear()
    assert contents(tmp_path).items() >= before.items()


def test_files_of_others_in_a_cache_survive_eviction_and_clearing(cache: Cache) -> None:
    cache.put(KEY, BLOCKS)
    fill(cache.directory)
    outside = cache.directory.parent / "outside"
    fill(outside, [f"{'0' * 64}.zip", f"a{'0' * 63}.zip", ".x.tmp"])
    for subfolder in ("00", "a0"):
        (cache.directory / subfolder).symlink_to(outside)
    (entry(cache).parent / f"{KEY[:2]}{'1' * 62}.zip").symlink_to(outside / f"{'0' * 64}.zip")
    (cache.directory / ".total").unlink()
    before = contents(cache.directory) | contents(outside)
    small = Cache(cache.directory, 1200)
    for number in range(4):
        small.put(cache_key({"number": str(number)}), {"x": bytes(500)})
    small.clear()
    assert small.statistics().entries == 0
    after = contents(cache.directory) | contents(outside)
    assert before.items() - after.items() == {(str(entry(cache).relative_to(cache.directory)), before_of(before))}


def before_of(before: dict[str, bytes]) -> bytes:
    return before[f"{KEY[:2]}/{KEY}.zip"]


def test_links_in_a_cache_are_not_written_through(cache: Cache, tmp_path: Path) -> None:
    cache.put(cache_key({}), BLOCKS)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    entry(cache).parent.mkdir(exist_ok=True)
    entry(cache).symlink_to(outside)
    cache.put(KEY, BLOCKS)
    assert cache.get(KEY) is None
    assert outside.read_bytes() == b"mine"
    entry(cache).unlink()
    entry(cache).parent.rmdir()
    (tmp_path / "folder").mkdir()
    entry(cache).parent.symlink_to(tmp_path / "folder")
    cache.put(KEY, BLOCKS)
    assert cache.get(KEY) is None
    assert not os.listdir(tmp_path / "folder")


def test_a_cache_of_an_earlier_version_goes_on(cache: Cache) -> None:
    cache.put(KEY, BLOCKS)
    (cache.directory / "CACHEDIR.TAG").unlink()
    fill(cache.directory, [f"machines/{'0' * 32}.yaml", f"{KEY[:2]}/.{KEY}.zip.abc_d012.tmp"])
    assert cache.get(KEY) is not None
    cache.put(cache_key({}), BLOCKS)
    assert (cache.directory / "CACHEDIR.TAG").exists()


# Who may write --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
@pytest.mark.parametrize("what", ["directory", "subfolder", "entry", "parent"])
def test_what_others_can_write_to_is_not_run(
    what: str, mode: int, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_is_private_group", lambda group: False)
    cache.put(KEY, BLOCKS)
    path = {
        "directory": cache.directory, "subfolder": entry(cache).parent, "entry": entry(cache),
        "parent": cache.directory.parent,
    }[what]  # fmt: skip
    path.chmod(mode)
    sticky_parent = what == "parent" and mode & 0o1000
    assert (cache.get(KEY) is not None) == bool(sticky_parent)
    if what in ("directory", "parent"):
        assert bool(cache.refused()) == (not sticky_parent)


@pytest.mark.parametrize("what", ["directory", "subfolder", "entry", "parent", "link"])
def test_what_another_user_owns_is_not_run(what: str, cache: Cache) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    cache.put(KEY, BLOCKS)
    assert cache.get(KEY) is not None
    if what == "link":
        link = cache.directory.parent / "link"
        link.symlink_to(cache.directory)
        os.lchown(link, 65534, 65534)
        cache = Cache(link, 1 << 20)
    else:
        parts = {"directory": cache.directory, "subfolder": entry(cache).parent, "entry": entry(cache)}
        os.chown(parts.get(what, cache.directory.parent), 65534, 65534)
    assert cache.get(KEY) is None


def test_a_group_without_other_members_is_no_other_user(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_is_private_group", lambda group: True)
    cache.put(KEY, BLOCKS)
    cache.directory.chmod(0o775)
    assert cache.get(KEY) is not None


@pytest.mark.parametrize("offset", [0, 1])
def test_a_user_without_names_has_a_group_of_the_same_number(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    monkeypatch.setattr(grp, "getgrgid", nameless)
    status = os.stat_result((stat.S_IFDIR | 0o775, 0, 0, 2, os.geteuid(), os.geteuid() + offset, 0, 0, 0, 0))
    assert bool(trust.writable_by_others(status)) == bool(offset)


@pytest.mark.parametrize(("mode", "command"), [(0o777, "chmod o-w"), (0o775, "chmod g-w")])
def test_a_refusal_names_the_remedy(mode: int, command: str, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_is_private_group", lambda group: False)
    cache.put(KEY, BLOCKS)
    cache.directory.chmod(mode)
    assert command in cache.refused()
    assert "set TILEWRIGHT_CACHE_DIR to a folder that only you can write to" in cache.refused()


def test_the_parent_of_a_link_is_that_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "open" / "inner").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to("open/inner")
    cache = Cache(tmp_path / "link" / ".." / "cache", 1 << 20)
    assert f"{tmp_path / 'open'} can be written by everybody" in cache.refused()
    cache.put(KEY, BLOCKS)
    assert os.listdir(tmp_path / "open") == ["inner"]


def test_a_path_through_a_folder_that_is_made_is_checked_once_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    Cache(tmp_path / "missing" / ".." / "open" / "cache", 1 << 20).put(KEY, BLOCKS)
    assert not list((tmp_path / "open").rglob("*.zip"))


def test_folders_of_root_are_trusted_in_a_user_namespace_without_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as another:
        folder, elsewhere = Path(name), Path(another) / "cache"
        elsewhere.mkdir()
        for path, user in ((folder, 1234), (elsewhere, 1234), (elsewhere.parent, 1235)):
            os.chown(path, user, user)
            path.chmod(0o755)
        said = in_user_namespace(1234, lambda: [trust.distrusted(path) for path in (folder, elsewhere, Path("/usr"))])
        assert said[0] == ""
        assert said[1].startswith(f"{another} belongs to ")  # in /tmp anybody makes folders
        assert said[2].startswith("/usr belongs to ")  # not this user's, and so no cache of this user


def in_user_namespace(user: int, call: Callable[[], list[str]]) -> list[str]:
    """What `call` returns where that user is the only one that has a number."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        answer: object = "an error"
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            libc = ctypes.CDLL(None, use_errno=True)
            libc.prctl(4, 1)  # PR_SET_DUMPABLE: its files in /proc are its own again
            if libc.unshare(0x10000000):  # CLONE_NEWUSER
                answer = None
            else:
                Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
                answer = call()
        except BaseException as error:
            answer = repr(error)
        finally:
            os.write(send, json.dumps(answer).encode())
            os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    with os.fdopen(receive) as file:
        answer = json.load(file)
    if answer is None:
        pytest.skip("no user namespaces here")
    assert isinstance(answer, list), answer
    return answer


def test_a_cache_is_made_for_this_user_whatever_the_umask(cache: Cache) -> None:
    before = os.umask(0)
    try:
        cache.put(KEY, BLOCKS)
    finally:
        os.umask(before)
    assert cache.get(KEY) is not None
    assert [path.stat().st_mode & 0o22 for path in (cache.directory, entry(cache).parent, entry(cache))] == [0] * 3


# Disks ----------------------------------------------------------------------------------------------------------------


def test_clear(cache: Cache) -> None:
    cache.put(KEY, BLOCKS)
    cache.clear()
    assert cache.get(KEY) is None
    assert cache.statistics().entries == 0


@pytest.mark.parametrize("obstacle", ["a file in place of the directory", "a full disk"])
def test_a_disk_that_does_not_take_entries_is_said_once(
    obstacle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if obstacle == "a full disk":

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cache_module, "write_archive", full)
    else:
        (tmp_path / "cache").write_text("in the way")
    cache_module._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cache = Cache(tmp_path / "cache", 1 << 20)
            cache.put(KEY, BLOCKS)
            assert cache.get(KEY) is None
    assert len(caplog.records) == 1
    assert str(tmp_path / "cache") in caplog.text


def test_a_read_only_cache_serves_entries(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    """In another user's process, since root may write everywhere."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    cache.put(KEY, BLOCKS)
    for path in (cache.directory, *cache.directory.parents):
        if str(path).startswith("/tmp/"):
            path.chmod(0o755)
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from tilewright.runtime.cache import Cache, cache_key
cache = Cache(Path({str(cache.directory)!r}), 1 << 20)
cache.put(cache_key({{"other": ""}}), {{"x": b"y"}})
assert bytes(cache.get({KEY!r})["plan.json"]) == b"{{}}"
"""
    command = ["setpriv", "--reuid", "65534", "--clear-groups", "--", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr or "Permission denied: '/root" in done.stderr:
        pytest.skip("another user cannot read the package here")
    assert done.returncode == 0, done.stderr


def write_often(directory: str, seed: int) -> None:
    cache = Cache(Path(directory), 40_000)  # small, so that eviction runs at the same time
    for number in range(40):
        key = cache_key({"number": str((number * 7 + seed) % 12)})
        blocks = cache.get(key)
        if blocks is None:
            cache.put(key, {"code.o": key.encode() * 60, "plan.json": b"{}"})
        else:
            assert bytes(blocks["code.o"]) == key.encode() * 60


def test_processes_that_write_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_often, args=(str(tmp_path), seed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert not list(tmp_path.glob("??/.*"))
    cache = Cache(tmp_path, 40_000)
    keys = [path.stem for path in tmp_path.glob("??/*.zip")]
    assert keys
    assert all(cache.get(key) is not None for key in keys)
    assert cache.statistics().bytes <= 40_000
