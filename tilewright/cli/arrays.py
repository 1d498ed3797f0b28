"""`.npz` files: arrays by name. Sizes are checked before anything is unpacked, and nothing is unpickled."""

from __future__ import annotations

import ast
import struct
import zipfile
from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.errors import CompileError, InvalidFile
from tilewright.files import missing, open_regular, reason, write_file
from tilewright.runtime.memory import allocate
from tilewright.runtime.zips import DAMAGED, opened_zip, read_into

Array = np.ndarray[Any, Any]

MOST_BYTES: Final = 8 << 30  # of all arrays of a file together
_MOST_HEADER_BYTES: Final = 1 << 14  # an array of 64 dimensions has some 1,500
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of np.savez and np.savez_compressed
_FIELDS: Final = {"descr", "fortran_order", "shape"}


@dataclass(frozen=True)
class _Header:
    """What a `.npy` says in front of its elements: NumPy's NEP 1."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    bytes: int  # of the header itself


def read_npz(
    path: Path, error: type[CompileError], *, help: str, names: Collection[str] | None = None
) -> dict[str, Array]:
    """The arrays of an `.npz`. Raises `error` where it is damaged, holds objects, or is larger than `MOST_BYTES`.

    With `names` only where it has arrays of exactly these names, which is seen before any of them is unpacked.
    """
    try:
        with open_regular(path) as file:
            if file.read(6) == b"\x93NUMPY":
                raise InvalidFile("it holds one array without a name")
            with opened_zip(file, _METHODS) as archive:
                return _arrays(archive, names)
    except FileNotFoundError:
        raise missing(path, error, help) from None
    except InvalidFile as failure:
        raise error(failure.message, where=str(path), help=failure.help or help) from None
    except (*DAMAGED, OSError) as failure:
        raise error(f"cannot be read as an .npz: {reason(failure)}", where=str(path), help=help) from failure
    except MemoryError as failure:
        raise error("its arrays do not fit into the memory", where=str(path), help=help) from failure


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an `.npz`, under names of any kind. Raises InvalidArgument if the file cannot be written."""

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w") as stored:  # np.savez cannot write an array of the name "file"
            for name, array in arrays.items():
                with stored.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)

    write_file(path, write)


def _arrays(archive: zipfile.ZipFile, names: Collection[str] | None) -> dict[str, Array]:
    infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(infos) != len(archive.infolist()):
        raise InvalidFile("two of its arrays have the same name")
    if names is not None and set(infos) != set(names):
        found = ", ".join(sorted(infos)) or "nothing"
        raise InvalidFile(f"has {found}", help=f"the inputs are {', '.join(names)}")
    total = sum(info.file_size for info in infos.values())
    if total > MOST_BYTES:
        raise InvalidFile(f"its arrays have {total:,} bytes, the limit is {MOST_BYTES:,}")
    return {name: _array(archive, info, name) for name, info in infos.items()}


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Array:
    with archive.open(info) as member:
        header = _header(member, name)
    if header.bytes + prod(header.shape) * header.dtype.itemsize != info.file_size:
        message = f"{name!r} is said to be {header.dtype} of shape {header.shape}, and has {info.file_size:,} bytes"
        raise InvalidFile(message)
    content = allocate(info.file_size)
    read_into(archive, info, content.data)
    elements = content[header.bytes :].view(header.dtype) if header.dtype.itemsize else np.zeros(0, header.dtype)
    return elements.reshape(header.shape, order="F" if header.fortran_order else "C")


def _header(member: IO[bytes], name: str) -> _Header:
    magic = member.read(8)
    if magic[:6] != b"\x93NUMPY":
        raise InvalidFile(f"{name!r} is no array")
    form = {1: "<H", 2: "<I"}.get(magic[6])  # the third form is for names of fields
    if form is None:
        raise InvalidFile(f"{name!r} is in version {magic[6]} of the form of NumPy, which is for records")
    (size,) = struct.unpack(form, member.read(struct.calcsize(form)))
    if size > _MOST_HEADER_BYTES:
        raise InvalidFile(f"{name!r} has a header of {size:,} bytes")
    try:
        fields = ast.literal_eval(member.read(size).decode("latin1").strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        fields = None
    if not isinstance(fields, dict) or set(fields) != _FIELDS:
        raise InvalidFile(f"the header of {name!r} is damaged")
    shape, order = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(extent) is int and 0 <= extent < 1 << 48 for extent in shape):
        raise InvalidFile(f"{name!r} has the shape {shape!r}")
    if len(shape) > 64 or type(order) is not bool:
        raise InvalidFile(f"the header of {name!r} is damaged: {len(shape)} dimensions, order {order!r}")
    return _Header(_dtype(fields["descr"], name), shape, order, 8 + struct.calcsize(form) + size)


def _dtype(text: object, name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(text) if isinstance(text, str) and len(text) < 32 else None
    except (TypeError, ValueError, SyntaxError, OverflowError):
        dtype = None
    if dtype is None or dtype.names is not None or dtype.subdtype is not None:
        raise InvalidFile(f"{name!r} holds records, or elements of an unknown type {text!r}")
    if dtype.hasobject:
        raise InvalidFile(f"{name!r} holds Python objects, which would be code", help="an array of numbers")
    return dtype
