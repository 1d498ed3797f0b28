"""The manifest beside an object: its inputs and outputs, the memory it needs, what it launches, where it can run.

`codegen` writes it as JSON; `Manifest.from_json` is the only reader, and checks it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tilewright.errors import InvalidFile
from tilewright.expr.dtypes import DTYPES, size_bytes


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and shape of one input or output."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @cached_property
    def bytes(self) -> int:
        return math.prod(self.shape) * size_bytes(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a call: `programs` programs that do `flops` operations and move `bytes` bytes."""

    name: str
    kernel: str
    programs: int
    flops: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Manifest:
    """What `docs/developers/design.md` lists under "Object code"."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants_bytes: int
    arena_bytes: int
    scratch_bytes: int  # per thread
    launches: tuple[Launch, ...]
    features: tuple[str, ...]  # names as LLVM has them, "avx512f"
    triple: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Manifest:
        """Read a manifest. Raises InvalidFile that names the field which is missing or malformed."""
        fields = _Reader(value, "manifest")
        return cls(
            name=fields.text("name"),
            inputs=tuple(map(_tensor, fields.items("inputs"))),
            outputs=tuple(map(_tensor, fields.items("outputs"))),
            constants_bytes=fields.size("constants_bytes"),
            arena_bytes=fields.size("arena_bytes"),
            scratch_bytes=fields.size("scratch_bytes"),
            launches=tuple(map(_launch, fields.items("launches"))),
            features=tuple(_feature(item.value) for item in fields.items("features")),
            triple=fields.text("triple"),
        )


def _tensor(item: _Reader) -> TensorSpec:
    dtype = item.text("dtype")
    if dtype not in DTYPES:
        raise InvalidFile(f"unknown dtype {dtype!r}", where=item.where)
    shape = tuple(extent.as_size() for extent in item.items("shape"))
    if math.prod(shape) * size_bytes(dtype) >= 1 << 63:
        raise InvalidFile(f"the shape {shape} is larger than any memory", where=item.where)
    return TensorSpec(item.text("name"), dtype, shape)


def _launch(item: _Reader) -> Launch:
    sizes = (item.size(field) for field in ("programs", "flops", "bytes"))
    return Launch(item.text("name"), item.text("kernel"), *sizes)


def _feature(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidFile(f"a feature is a name, got {value!r}", where="manifest.features")
    return value.removeprefix("+")


@dataclass(frozen=True)
class _Reader:
    """A JSON value and the path to it, for messages."""

    value: Any
    where: str

    def _field(self, name: str) -> Any:
        if not isinstance(self.value, Mapping) or name not in self.value:
            raise InvalidFile(f"the field {name!r} is missing", where=self.where)
        return self.value[name]

    def text(self, name: str) -> str:
        value = self._field(name)
        if not isinstance(value, str):
            raise InvalidFile(f"the field {name!r} is {value!r}, not a string", where=self.where)
        return value

    def size(self, name: str) -> int:
        return _Reader(self._field(name), f"{self.where}.{name}").as_size()

    def as_size(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 0:
            raise InvalidFile(f"{self.value!r} is not a whole number of 0 or more", where=self.where)
        return self.value

    def items(self, name: str) -> list[_Reader]:
        value = self._field(name)
        if not isinstance(value, (list, tuple)):
            raise InvalidFile(f"the field {name!r} is {value!r}, not a list", where=self.where)
        return [_Reader(item, f"{self.where}.{name}[{index}]") for index, item in enumerate(value)]
