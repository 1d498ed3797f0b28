"""A `.twm` comes back as it was saved; what is no good `.twm` is refused with a message that says why."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import tries
from tilewright.errors import InvalidArgument, InvalidFile
from tilewright.runtime.archive import INDEX, read_archive, write_archive
from tilewright.runtime.artifact import MEMBERS, Artifact
from tilewright.runtime.container import load
from tilewright.runtime.loader import host_triple, load_object
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.module import Module

Make = Callable[..., Artifact]
ONES = np.ones(1000, np.float32)


@pytest.fixture
def saved(add_artifact: Make, tmp_path: Path) -> Path:
    path = tmp_path / "add.twm"
    add_artifact().save(path)
    return path


def test_round_trip(add_artifact: Make, tmp_path: Path) -> None:
    artifact = add_artifact()
    path = tmp_path / "add.twm"
    Module(artifact, threads=1).save(path)
    module = load(path, threads=2)
    assert module.threads == 2
    assert np.array_equal(module(ONES, ONES), 2.5 * ONES)
    read = Artifact.read(path)
    assert read.manifest == artifact.manifest
    assert (read.code, read.program, read.graph) == (artifact.code, artifact.program, artifact.graph)
    assert json.loads(read.plan) == json.loads(artifact.plan)
    assert np.array_equal(read.constants, artifact.constants)
    assert read.constants.ctypes.data % 64 == 0


def test_the_same_module_is_the_same_file(add_artifact: Make, tmp_path: Path) -> None:
    for name in ("a.twm", "b.twm"):
        add_artifact().save(tmp_path / name)
    assert (tmp_path / "a.twm").read_bytes() == (tmp_path / "b.twm").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.twm", "b.twm"}


def test_it_is_a_zip_of_the_members(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        assert archive.namelist() == [INDEX, *MEMBERS]
        texts = [json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")]
        assert len(texts) == 4


def test_save_where_it_cannot_be(add_artifact: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file or directory"):
        add_artifact().save(tmp_path / "missing" / "add.twm")


def test_saving_again_replaces_the_file(add_artifact: Make, saved: Path) -> None:
    old = load(saved, threads=1)
    add_artifact(offset=7.0).save(saved)
    assert np.array_equal(old(ONES, ONES), 2.5 * ONES)
    assert np.array_equal(load(saved, threads=1)(ONES, ONES), 9 * ONES)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no such file"):
        load(tmp_path / "missing.twm")
    with pytest.raises(InvalidFile, match="directory"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04" + b"\0" * 100, pickle.dumps([1, 2])])
def test_foreign_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.twm"
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=r"x\.twm.*not a tilewright file"):
        load(path)


def test_a_foreign_zip(tmp_path: Path) -> None:
    path = tmp_path / "x.twm"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    with pytest.raises(InvalidFile, match="is a zip, but not a tilewright file"):
        load(path)


def test_a_directory_that_points_in_front_of_the_file() -> None:
    content = bytearray(_saved_bytes())
    field = content.rindex(b"PK\5\6") + 16  # end of the directory: its offset
    content[field : field + 4] = (int.from_bytes(content[field : field + 4], "little") + 1).to_bytes(4, "little")
    with pytest.raises(InvalidFile, match="in front of the file"):
        _read_bytes(bytes(content))


@given(st.integers(0, 10_000), st.integers(1, 255))
@settings(max_examples=tries(15, full=60), deadline=None)
def test_any_changed_byte_is_harmless_or_found(place: int, change: int) -> None:
    content = bytearray(_saved_bytes())
    content[place % len(content)] ^= change
    try:
        blocks = _read_bytes(bytes(content))
    except InvalidFile:
        return
    assert blocks == _read_bytes(_saved_bytes())  # a byte without a meaning: a date, a reserved field


@given(st.integers(0, 10_000))
@settings(max_examples=tries(10, full=30), deadline=None)
def test_any_truncation_is_found(length: int) -> None:
    content = _saved_bytes()
    with pytest.raises(InvalidFile):
        _read_bytes(content[: length % len(content)])


def test_other_version(saved: Path) -> None:
    def change(index: dict) -> None:
        index["version"] = 99

    _rewrite_index(saved, change)
    with pytest.raises(InvalidFile, match="format version is 99; this tilewright reads version 1"):
        load(saved)


def test_wrong_size_in_the_index(saved: Path) -> None:
    def change(index: dict) -> None:
        index["members"]["code.o"]["bytes"] = 1 << 60

    _rewrite_index(saved, change)
    with pytest.raises(InvalidFile, match=r"code\.o has \d+ bytes"):
        load(saved)


def repacked(path: Path, change: Callable[[zipfile.ZipInfo], None], twice: str = "", extra: str = "") -> None:
    """Write the archive again with its members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            change(info)
            archive.writestr(info, content)
        if twice:
            archive.writestr(twice, members[twice])
        if extra:
            archive.writestr(extra, b"")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "x.twm"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("constants.bin", bytes(10_000_000))
        archive.writestr(INDEX, json.dumps({"format": "tilewright-archive", "version": 1, "members": {}}))
    with pytest.raises(InvalidFile, match=r"'constants\.bin' is compressed by method 12"):
        load(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("compress_type", zipfile.ZIP_DEFLATED, "compressed by method 8"),
        ("compress_type", zipfile.ZIP_LZMA, "compressed by method 14"),
        ("external_attr", 0o120777 << 16, "is not a file"),
        ("external_attr", 0o010644 << 16, "is not a file"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_members_in_another_form(field: str, value: int, message: str, saved: Path) -> None:
    repacked(saved, lambda info: setattr(info, field, value))
    with pytest.raises(InvalidFile, match=message):
        load(saved)


@pytest.mark.filterwarnings("ignore")
def test_members_twice_or_elsewhere(saved: Path) -> None:
    for twice, extra, message in (
        ("code.o", "", "same name"), ("", "/etc/passwd", "its members are not"), ("", "../x", "its members are not"),
        ("", "folder/", "is not a file"),
    ):  # fmt: skip
        content = saved.read_bytes()
        repacked(saved, lambda info: None, twice, extra)
        with pytest.raises(InvalidFile, match=message):
            load(saved)
        saved.write_bytes(content)


def test_an_encrypted_member(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + offset] |= 1
    saved.write_bytes(content)
    with pytest.raises(InvalidFile, match="encrypted"):
        load(saved)


def test_a_directory_of_very_many_members(tmp_path: Path) -> None:
    path = tmp_path / "x.twm"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(25_000):
            archive.writestr(zipfile.ZipInfo(str(number)), b"")
    with pytest.raises(InvalidFile, match="lists 25000 members"):
        load(path)


def test_pickling_says_save(add_artifact: Make) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot be pickled.*\n.*save it"):
        pickle.dumps(Module(add_artifact(), threads=1))


def test_memory_that_no_machine_has(add_artifact: Make, tmp_path: Path) -> None:
    path = tmp_path / "x.twm"
    add_artifact(arena_bytes=1 << 46).save(path)
    with pytest.raises(InvalidArgument, match="bytes of arena"):
        load(path, threads=1)


def test_missing_member(add_artifact: Make, tmp_path: Path) -> None:
    blocks = dict(add_artifact().to_blocks())
    del blocks["program.tile"]
    write_archive(tmp_path / "x.twm", blocks)
    with pytest.raises(InvalidFile, match=r"program\.tile is missing"):
        load(tmp_path / "x.twm")


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("manifest.json", b"{}", r"manifest\.json: .*; name is missing; inputs is missing"),
        ("manifest.json", b"[", "not JSON"),
        ("manifest.json", b"\xff", "not text"),
        ("plan.json", b"", "not JSON"),
        ("graph.json", b"[" * 100_000, "not JSON"),
        ("graph.json", b"1" * 10_000, "not JSON"),
        ("graph.json", rb'{"name": "\ud800"}', "not JSON"),
        ("constants.bin", b"123", "the constants are 3"),
        ("code.o", b"", "not an ELF object"),
        ("code.o", b"\x7fELF\x02\x01" + b"\xff" * 200, "not an ELF object"),
    ],
)
def test_malformed_members(member: str, content: bytes, message: str, add_artifact: Make, tmp_path: Path) -> None:
    write_archive(tmp_path / "x.twm", {**add_artifact().to_blocks(), member: content})
    with pytest.raises(InvalidFile, match=message):
        load(tmp_path / "x.twm")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("inputs", {}, "not a list"),
        ("inputs", [{"name": "x", "dtype": "f31", "shape": []}], r"inputs\.0\.dtype is 'f31', not 'bool', 'u8'"),
        (
            "inputs",
            [{"name": "x", "dtype": "f32", "shape": [-1]}],
            r"inputs\.0\.shape\.0 is -1, not a whole number from 0",
        ),
        ("inputs", [{"name": "x", "dtype": "f32", "shape": [1 << 46]}], "larger than any memory"),
        (
            "inputs",
            [{"name": "x", "dtype": "f32", "shape": [0, 1 << 70]}],
            r"shape\.1 is .*, not a whole number from 0 to 2\*\*47 - 1",
        ),
        ("inputs", [{"name": "x", "dtype": "f32", "shape": [1] * 65}], "65 dimensions"),
        ("arena_bytes", 1 << 70, r"not a whole number from 0 to 2\*\*47 - 1"),
        ("zeroed_bytes", 1 << 40, "zeroed_bytes is 1099511627776, of an arena of "),
        ("arena_bytes", 1.5, "arena_bytes is 1.5, not a whole number"),
        ("scratch_bytes", True, "scratch_bytes is True, not a whole number"),
        ("triple", 3, "triple is 3, not a text"),
        ("features", [3], r"features\.0 is 3, not a text"),
        ("launches", [{"name": "x"}], r"launches\.0\.kernel is missing; launches\.0\.programs is missing"),
    ],
)
def test_malformed_manifests(field: str, value: object, message: str, add_artifact: Make) -> None:
    manifest = {**add_artifact().manifest.to_json(), field: value}
    with pytest.raises(InvalidFile, match=message):
        Manifest.from_json(manifest)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("[]", r"is \[\], not a mapping with the fields decisions, products, mapped, tile"),
        ('{"decisions": [{"subject": "x", "chosen": 3}]}', r"decisions\.0\.chosen is 3, .*; .*reason is missing"),
        ('{"decisions": [{"cost": {"cycles": "1"}}]}', r"decisions\.0\.cost\.cycles is '1', not a number"),
        ('{"products": {"c": 3}}', r"products\.c is 3, not a mapping"),
    ],
)  # fmt: skip
def test_malformed_plans(plan: str, message: str, add_artifact: Make) -> None:
    damaged = dataclasses.replace(add_artifact(), plan=plan)
    with pytest.raises(InvalidFile, match=f"add, plan.json: .*{message}"):
        damaged.stored_plan()


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"features": ["+antigravity", "timetravel"]}, "needs the CPU features antigravity, timetravel"),
        ({"triple": "s390x-unknown-linux-gnu"}, "needs a machine of kind s390x"),
    ],
)
def test_code_for_another_machine(changes: dict, lacks: str, add_artifact: Make, tmp_path: Path) -> None:
    path = tmp_path / "x.twm"
    add_artifact(**changes).save(path)
    with pytest.raises(InvalidFile, match=f"{lacks}.*this machine is {host_triple()}") as caught:
        load(path)
    assert "--rebuild" in str(caught.value)
    rebuilt = []

    def rebuild(artifact: Artifact) -> Artifact:
        rebuilt.append(artifact.program)
        return add_artifact()

    with pytest.warns(UserWarning, match=rf"{re.escape(str(path))}: its code {lacks}.*--rebuild -o FILE") as said:
        assert np.array_equal(load(path, threads=1, rebuild=rebuild)(ONES, ONES), 2.5 * ONES)
    assert len(said) == 1
    assert rebuilt == ["tile text"]


def test_code_for_this_machine_is_not_rebuilt(saved: Path) -> None:
    def rebuild(artifact: Artifact) -> Artifact:
        raise AssertionError

    load(saved, rebuild=rebuild)


def test_an_object_without_tw_main(add_artifact: Make) -> None:
    artifact = add_artifact()
    code = artifact.code.replace(b"tw_main\0", b"tw_mein\0")
    assert code != artifact.code
    with pytest.raises(InvalidFile, match="tw_main"):
        load_object(code, artifact.manifest)


def test_constants_of_the_wrong_size(add_artifact: Make) -> None:
    with pytest.raises(InvalidFile, match="the manifest says 4 bytes"):
        dataclasses.replace(add_artifact(), constants=np.zeros(5, np.uint8))


def _saved_bytes() -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x"
        write_archive(path, {"manifest.json": b'{"name": "x"}', "code.o": bytes(range(256)) * 4})
        return path.read_bytes()


def _read_bytes(content: bytes) -> dict[str, bytes]:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x"
        path.write_bytes(content)
        return {name: bytes(block) for name, block in read_archive(path).items()}


def _rewrite_index(path: Path, change: Callable[[dict], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    index = json.loads(members[INDEX])
    change(index)
    members[INDEX] = json.dumps(index).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
