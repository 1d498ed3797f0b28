"""Arrays in `.npz` files: what NumPy writes is read, and every kind of damage is an error that says what is wrong."""

from __future__ import annotations

import random
import tracemalloc
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.cli.arrays import read_npz, write_npz
from tilewright.errors import InvalidArgument

ARRAYS: dict[str, Any] = {
    "x": np.arange(35, dtype=np.float32).reshape(5, 7),
    "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "scalar": np.int64(3),
    "none": np.zeros((0, 3), np.uint8),
    "big_endian": np.arange(3, dtype=">i4"),
    "bf16": np.zeros(2, "V2"),
    "/scope/a.b:0": np.array([True]),
    "text": np.array(["a", "bc"]),
}


def read(path: Path, names: list[str] | None = None) -> dict[str, Any]:
    return read_npz(path, InvalidArgument, help="", names=names)


@pytest.mark.parametrize(
    "write", [write_npz, lambda path, a: np.savez(path, **a), lambda p, a: np.savez_compressed(p, **a)]
)
def test_what_is_written_is_read(write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "a.npz", ARRAYS)
    found = read(tmp_path / "a.npz")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array), name
        assert found[name].dtype == np.asarray(array).dtype
        assert found[name].flags.writeable


def npy(header: str | bytes, content: bytes = b"", version: int = 1) -> bytes:
    encoded = header.encode() if isinstance(header, str) else header
    size = len(encoded).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + encoded + content


def head(descr: str = "'<f4'", order: str = "False", shape: str = "(2,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (npy(head(), bytes(8)), None),
        (npy(head(), bytes(8), version=2), None),
        (npy(head(), bytes(8), version=3), "version 3"),
        (npy(head(), bytes(7)), "has .* bytes"),
        (npy(head(shape="(1099511627776, 1099511627776)")), "has .* bytes"),
        (npy(head(shape="(-1,)")), "shape"),
        (npy(head(shape="(True,)")), "shape"),
        (npy(head(shape="2")), "shape"),
        (npy(head(shape="(" + "1," * 70 + ")"), bytes(4)), "70 dimensions"),
        (npy(head(shape=f"({1 << 60},)")), "shape"),
        (npy(head(order="3"), bytes(8)), "order 3"),
        (npy(head(descr="'|O'"), bytes(16)), "Python objects"),
        (npy(head(descr="'O,O'"), bytes(16)), "records"),
        (npy(head(descr="[('a', '<f4')]"), bytes(8)), "records"),
        (npy(head(descr="'nonsense'"), bytes(8)), "unknown type 'nonsense'"),
        (npy(head(descr="'<f4\\0'"), bytes(8)), "unknown type"),
        (npy("{'shape': (2,)}"), "damaged"),
        (npy("__import__('os').abort()"), "damaged"),
        (npy("(" * 5000), "damaged"),
        (npy(b"\xff\xfe"), "damaged"),
        (npy(" " * 20_000), "header of 20,000 bytes"),
        (b"\x93NUMPY\1\0", "cannot be read"),
        (b"\x80\x04N.", "is no array"),
        (b"", "is no array"),
    ],
)
def test_damaged_arrays(member: bytes, message: str | None, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", member)
    if message is None:
        assert read(tmp_path / "a.npz")["x"].shape == (2,)
        return
    with pytest.raises(InvalidArgument, match=message):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_bombs_are_refused_before_they_are_unpacked(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("x.npy", bytes(20_000_000))
    tracemalloc.start()
    with pytest.raises(InvalidArgument, match="compressed by method"):
        read(tmp_path / "a.npz")
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_size_that_is_a_lie_is_found(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    for signature, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):  # uncompressed size
        place = content.index(signature) + offset
        content[place : place + 4] = (1 << 30).to_bytes(4, "little")
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InvalidArgument, match="has 1,073,741,824 bytes"):
        read(tmp_path / "a.npz")


def test_what_is_not_asked_for_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", b"no array")
    with pytest.raises(InvalidArgument, match=r"has y\n.*the inputs are x"):
        read(tmp_path / "a.npz", ["x"])


def test_an_array_without_a_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ARRAYS["x"])
    with pytest.raises(InvalidArgument, match="one array without a name"):
        read(tmp_path / "a.npy")


@pytest.mark.filterwarnings("ignore")
def test_random_damage_is_found_or_harmless(tmp_path: Path) -> None:
    path, numbers = tmp_path / "a.npz", random.Random(0)
    for save in (np.savez, np.savez_compressed):
        save(path, x=ARRAYS["x"], y=ARRAYS["f"])
        whole = path.read_bytes()
        for _ in range(300):
            content = bytearray(whole)
            for _ in range(numbers.choice([1, 1, 3])):
                content[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
            path.write_bytes(content[: numbers.choice([len(content), numbers.randrange(len(content))])])
            try:
                found = read(path, ["x", "y"])
            except InvalidArgument:
                continue
            assert np.array_equal(found["x"], ARRAYS["x"])


def test_the_file_is_written_as_numpy_does(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", {"x": ARRAYS["x"]})
    stored = np.load(BytesIO((tmp_path / "a.npz").read_bytes()))
    assert np.array_equal(stored["x"], ARRAYS["x"])
