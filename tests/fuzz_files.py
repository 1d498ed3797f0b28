"""Damaged files of every kind, for `tests.fuzz`: a right result, or a `CompileError` that says what is wrong.

A damaged entry of the cache is no error: the module is right, and the next compilation finds a good entry.
"""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compiler.compile import build, compile_graph
from tilewright.errors import CompileError, InvalidFile
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import elementwise, linalg
from tilewright.machine import host
from tilewright.options import Options

Random = random.Random
PACKAGE = Path(__file__).parents[1] / "tilewright"
X = np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7)
ABSURD = (
    -1, 0, 1, 1.5, 1 << 31, 1 << 46, 1 << 62, 1 << 63, 1 << 64, 10**30, 10**400, -(1 << 70), 1e308, math.inf, math.nan,
    None, True, "", "x", "\0", "\ud800", "9" * 5000, [], {}, [[]], "../../etc/passwd",
)  # fmt: skip


# Damage ---------------------------------------------------------------------------------------------------------------


def damaged(rng: Random, content: bytes, other: bytes) -> bytes:
    """A file after a few accidents: bits, bytes, an end that is missing, a piece of another one, fields of zips."""
    found = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        action = rng.randrange(9)
        place = rng.randrange(len(found)) if found else 0
        count = rng.choice([1, 2, 4, 16, 512])
        if action == 0 and found:
            found[place] ^= 1 << rng.randrange(8)
        elif action == 1:
            found[place : place + count] = rng.randbytes(len(found[place : place + count]))
        elif action == 2:
            del found[place:]
        elif action == 3:
            del found[place : place + count]
        elif action == 4:
            found[place:place] = rng.choice([rng.randbytes(count), bytes(count), found[place : place + count]])
        elif action == 5:
            start = rng.randrange(len(other))
            found[place:] = other[start:]
        elif action == 6:
            found[:0] = rng.choice([rng.randbytes(count), other])
        elif action == 7:
            found += rng.choice([rng.randbytes(count), bytes(count), bytes(found), other])
        else:
            spoil_header(rng, found)
    return bytes(found)


def spoil_header(rng: Random, content: bytearray) -> None:
    """Change one field of one header of a zip, also to the values that mean something else."""
    signature, size = rng.choice([(b"PK\3\4", 30), (b"PK\1\2", 46), (b"PK\5\6", 22)])
    places = [i for i in range(len(content) - size) if content.startswith(signature, i)]
    if places:
        field = rng.choice(places) + rng.randrange(4, size - 2, 2)
        width = rng.choice([2, 4])
        value = rng.choice([0, 1, 8, 9, 12, 14, 99, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF, rng.getrandbits(32), len(content)])
        content[field : field + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def repacked(rng: Random, content: bytes) -> bytes:
    """The same members in a zip of another form: compressed, twice, in another order, with others, as links."""
    packed = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old, zipfile.ZipFile(packed, "w") as new:
        names = old.namelist() + rng.choice([[], ["/etc/passwd"], ["../x"], ["folder/"], [old.namelist()[-1]]])
        if rng.random() < 0.3:
            rng.shuffle(names)
        odd = rng.choice(names)
        for name in names:
            info = zipfile.ZipInfo(name)
            if name == odd:
                info.compress_type = rng.choice([0, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
                info.external_attr = rng.choice([0, 0o120777, 0o10644, 0o20644, 0o100644]) << 16
                info.comment = rng.choice([b"", b"x" * 60_000])
            new.writestr(info, old.read(name) if name in old.namelist() else bytes(rng.choice([0, 1 << 22])))
        new.comment = rng.choice([b"", b"", b"PK\5\6" * 10])
    return packed.getvalue()


def spoiled(rng: Random, value: Any) -> Any:
    """A JSON value with one of its parts made absurd, repeated or taken away."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        if rng.random() < 0.1:
            return {key: each for key, each in value.items() if key != name}
        return {**value, name: spoiled(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        return [
            *value[:place],
            *rng.choice([[], [value[place]] * 2, [spoiled(rng, value[place])]]),
            *value[place + 1 :],
        ]
    return rng.choice(ABSURD)


# Files ----------------------------------------------------------------------------------------------------------------


@cache
def graph(size: int) -> Graph:
    b = GraphBuilder("sample")
    weights = np.ones((size, 7), np.float32)
    x = b.input("x", (5, 7), "f32")
    return b.finish([elementwise.relu(linalg.linear(x, b.constant(weights, "w")), name="y")])


def expected(size: int) -> Any:
    return np.maximum(X.sum(1, keepdims=True) * np.ones((1, size), np.float32), 0)


@cache
def module_file(size: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.twm"
        build(graph(size), host(), 1, Options(cache=False)).save(path)
        return path.read_bytes()


@cache
def cache_files(size: int) -> dict[str, bytes]:
    """The entries of a model and of its code by their names, smallest first."""
    with tempfile.TemporaryDirectory() as folder:
        build(graph(size), host(), 1, Options(cache_dir=Path(folder) / "cache"))
        contents = {path.name: path.read_bytes() for path in Path(folder).glob("cache/??/*.zip")}
        return dict(sorted(contents.items(), key=lambda item: len(item[1])))


def changed_zip(rng: Random, content: bytes, other: bytes) -> bytes:
    return repacked(rng, content) if rng.random() < 0.3 else damaged(rng, content, other)


def try_module(rng: Random, folder: Path) -> None:
    from tilewright.runtime.container import load

    path = folder / "a.twm"
    if rng.random() < 0.4:
        _spoil_member(rng, path)
        load(path, threads=1)  # is not run: who changes the digests too may change the code
        return
    path.write_bytes(changed_zip(rng, module_file(3), module_file(5)))
    result = load(path, threads=1)(X)
    whole = 5 if path.read_bytes().endswith(module_file(5)) else 3
    require(np.allclose(result, expected(whole), atol=1e-5), "a damaged module gives another result")


def _spoil_member(rng: Random, path: Path) -> None:
    from tilewright.runtime.archive import read_archive, write_archive

    path.write_bytes(module_file(3))
    blocks: dict[str, Any] = dict(read_archive(path))
    name = rng.choice(["manifest.json", "manifest.json", "plan.json", "graph.json"])
    value = json.loads(bytes(blocks[name]))
    for _ in range(rng.choice([1, 1, 3])):
        value = spoiled(rng, value)
    write_archive(path, {**blocks, name: json.dumps(value).encode()})


def try_entry(rng: Random, folder: Path) -> None:
    options = Options(cache_dir=folder / "cache")
    for name, content in cache_files(3).items():
        path = options.cache_dir / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    number = rng.randrange(len(cache_files(3)))
    name, content = list(cache_files(3).items())[number]
    other = list(cache_files(5).values())[number]
    path = options.cache_dir / name[:2] / name
    path.write_bytes(other if rng.random() < 0.1 else changed_zip(rng, content, other))
    for _ in range(2):
        module = compile_graph(graph(3), threads=1, options=options)
        require(np.allclose(module(X), expected(3), atol=1e-5), "a damaged entry gives another result")
    from tilewright.runtime.cache import Cache

    require(Cache.from_options(options).get(path.stem) is not None, "there is no good entry after a compilation")


def try_arrays(rng: Random, folder: Path) -> None:
    from tilewright.cli.arrays import read_npz

    stored, other = BytesIO(), BytesIO()
    rng.choice([np.savez, np.savez_compressed])(stored, x=X, y=np.arange(6))
    np.savez(other, x=np.array([{}], dtype=object), z=X[0])
    (folder / "a.npz").write_bytes(changed_zip(rng, stored.getvalue(), other.getvalue()))
    found = read_npz(folder / "a.npz", InvalidFile, help="")
    require(all(array.dtype != object for array in found.values()), "objects were unpickled")
    require(not np.array_equal(found.get("x", X), X[::-1]), "a damaged array gives another value")


def try_machine(rng: Random, folder: Path) -> None:
    from tilewright.machine import resolve

    files = sorted((PACKAGE / "machine" / "files").glob("*.yaml"))
    content, other = (rng.choice(files).read_bytes() for _ in range(2))
    if rng.random() < 0.5:
        lines = content.decode().splitlines()
        place = rng.randrange(len(lines))
        key, colon, _ = lines[place].partition(":")
        lines[place] = f"{key}{colon} {json.dumps(rng.choice(ABSURD))}"
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
    else:
        content = damaged(rng, content, other)
    (folder / "a.yaml").write_bytes(content)
    resolve(folder / "a.yaml")


def try_results(rng: Random, folder: Path) -> None:
    from tilewright.instruction.mma.reference import read_recorded

    (table,) = (PACKAGE / "instruction" / "mma" / "tests").rglob("*.csv")
    content = table.read_bytes()[:4000]
    (folder / "a.csv").write_bytes(damaged(rng, content, content))
    read_recorded(folder / "a.csv")


def try_ptx(rng: Random, folder: Path) -> None:
    from tilewright.emulator import parse
    from tilewright.files import read_text

    files = sorted((PACKAGE / "emulator" / "tests").rglob("*.ptx"))
    content, other = (rng.choice(files).read_bytes() for _ in range(2))
    (folder / "a.ptx").write_bytes(damaged(rng, content, other))
    parse(read_text(folder / "a.ptx"))


def try_special(rng: Random, folder: Path) -> None:
    """A FIFO, a device, a folder or an endless link in the place of a file."""
    from tilewright.cli.arrays import read_npz
    from tilewright.files import read_text, write_file
    from tilewright.machine import resolve
    from tilewright.runtime.container import load

    path = folder / "a.yaml"
    kind = rng.randrange(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.symlink_to("/dev/zero")
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        path.symlink_to(path)
    else:
        path = folder / ("n" * rng.choice([255, 256, 5000]))
    uses: list[Callable[[], object]] = [
        lambda: load(path), lambda: resolve(path), lambda: read_npz(path, InvalidFile, help=""),
        lambda: read_text(path), lambda: _import(path), lambda: write_file(path, b"") if kind != 1 else None,
    ]  # fmt: skip
    rng.choice(uses)()


def _import(path: Path) -> object:
    from tilewright.compiler.compile import import_any

    return import_any(path)


FORMS: tuple[Callable[[Random, Path], None], ...] = (
    try_module, try_module, try_entry, try_arrays, try_machine, try_results, try_ptx, try_special,
)  # fmt: skip


def try_stored(rng: Random) -> None:
    """One damaged file of some kind."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            rng.choice(FORMS)(rng, Path(folder))
        except CompileError as error:
            str(error).encode()  # it can be printed
            raise


def require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)
