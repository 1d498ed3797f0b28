"""A file gives the bytes that its parts stand for, of the file that was opened, or an OSError."""

from __future__ import annotations

import gc
import hashlib
import os
from pathlib import Path
from random import Random

import pytest

from tilewright.frontend.onnx.content import FileBytes, sha256

CONTENT = Random(0).randbytes(3 * 4096 + 17)
LIMIT = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


def test_parts_are_those_of_bytes(path: Path) -> None:
    file, rng = FileBytes.opened(path, LIMIT), Random(1)
    assert len(file) == len(CONTENT)
    assert bytes(file) == CONTENT
    for _ in range(200):
        begin, end = rng.randrange(len(CONTENT)), rng.randrange(len(CONTENT))
        part, expected = file[begin:end], CONTENT[begin:end]
        assert len(part) == len(expected)
        assert bytes(part) == expected
        assert [bytes(part[2:-3]), bytes(part[5:])] == [expected[2:-3], expected[5:]]
        for place in {0, len(expected) // 2, len(expected) - 1} if expected else ():
            assert part[place] == expected[place]
    with pytest.raises(IndexError):
        file[len(CONTENT)]
    with pytest.raises(IndexError):
        file[3:5][2]


def test_digests_of_files_and_memory_agree(path: Path) -> None:
    expected = hashlib.sha256(CONTENT).hexdigest()
    assert sha256(FileBytes.opened(path, LIMIT)) == sha256(memoryview(CONTENT)) == expected


def test_a_digest_is_of_the_bytes_that_are_there_now(path: Path) -> None:
    file = FileBytes.opened(path, LIMIT)
    first = sha256(file)
    with path.open("r+b") as stream:
        stream.write(b"changed")
    assert sha256(file) != first


def test_another_file_in_its_place_changes_nothing(path: Path, tmp_path: Path) -> None:
    file = FileBytes.opened(path, LIMIT)
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "other").replace(path)
    assert bytes(file) == CONTENT


def test_a_file_that_became_shorter_is_an_error(path: Path) -> None:
    file = FileBytes.opened(path, LIMIT)
    os.truncate(path, 4096)
    assert bytes(file[:4096]) == CONTENT[:4096]
    with pytest.raises(OSError, match="ends at byte 4096"):
        bytes(file)
    with pytest.raises(OSError, match="ends at byte 5000"):
        file[5000]


def test_other_files_are_refused(path: Path, tmp_path: Path) -> None:
    for wrong, limit in ((path, len(CONTENT) - 1), (tmp_path, LIMIT), (tmp_path / "nothing", LIMIT)):
        with pytest.raises(OSError, match=r"."):
            FileBytes.opened(wrong, limit)


def test_the_file_is_closed_with_its_last_part(path: Path) -> None:
    def open_files() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    part = FileBytes.opened(path, LIMIT)[3:9]
    assert open_files() == before + 1
    assert bytes(part) == CONTENT[3:9]
    del part
    assert open_files() == before
