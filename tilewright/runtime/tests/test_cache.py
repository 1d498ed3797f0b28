"""The cache gives back what was put, and nothing else, whatever happens to its files."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.errors import InvalidArgument
from tilewright.options import Options
from tilewright.runtime import cache as cache_module
from tilewright.runtime.cache import Cache, cache_key

BLOCKS = {"code.o": b"machine code" * 100, "plan.json": b"{}", "empty": b""}
KEY = cache_key({"program": "p", "llvm": "22"})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 1 << 20)


def entry(cache: Cache, key: str = KEY) -> Path:
    return cache.directory / key[:2] / f"{key}.zip"


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
    }
    for how, data in damaged.items():
        entry(cache).write_bytes(data)
        assert cache.get(KEY) is None, how
        assert not entry(cache).exists(), how
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


def test_abandoned_temporary_files_are_removed(cache: Cache) -> None:
    cache.put(KEY, BLOCKS)
    old, young = (entry(cache).parent / f".{name}.tmp" for name in ("old", "young"))
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    cache.put(KEY, BLOCKS)
    assert not old.exists()
    assert young.exists()


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
