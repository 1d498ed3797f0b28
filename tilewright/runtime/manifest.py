"""The manifest beside an object: its inputs and outputs, the memory it needs, what it launches, where it can run.

`compiler` writes it; `Manifest.from_json` is the only reader of its JSON, and checks it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tilewright.codegen.host_program import Buffer, HostProgram, Kernel, Launch, TensorMap
from tilewright.errors import InvalidFile
from tilewright.expr.dtypes import DTYPES, size_bytes

_MOST_BYTES = 1 << 47  # what the addresses of a process reach
_MOST_COUNT = 1 << 90  # of what is only printed: floating-point operations, bytes moved
_MOST_DIMENSIONS = 64  # of an array of NumPy

CODES = {"object": "code.o", "ptx": "code.ptx"}  # kinds of code, and the member of an artifact that holds it


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and shape of one input or output."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    if TYPE_CHECKING:

        @property
        def bytes(self) -> int: ...

    def __post_init__(self) -> None:
        """`bytes` is no field, which would be stored, and no cached_property, whose lock a fork may find locked."""
        object.__setattr__(self, "bytes", math.prod(self.shape) * size_bytes(self.dtype))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, kw_only=True)
class Manifest(HostProgram):
    """The host program of a module with its interface and the machine that it is for.

    `docs/developers/design.md` lists the fields under "Object code".
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    features: tuple[str, ...]  # names as LLVM has them, "avx512f"
    triple: str
    code: str = "object"  # a name of CODES
    machine: str = ""  # the name of its description

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
            **_of_a_gpu(fields),
        )


def _of_a_gpu(fields: _Reader) -> dict[str, Any]:
    """The fields that files from before there was code for GPUs do not have."""
    code = fields.text("code") if "code" in fields.value else "object"
    if code not in CODES:
        raise InvalidFile(f"unknown kind of code {code!r}", where=fields.where, help=f"one of {', '.join(CODES)}")
    if code == "object":
        return {"machine": fields.text("machine") if "machine" in fields.value else ""}
    kernels = tuple(map(_kernel, fields.items("kernels")))
    sizes = {
        "input": [spec.bytes for spec in map(_tensor, fields.items("inputs"))],
        "output": [spec.bytes for spec in map(_tensor, fields.items("outputs"))],
    }
    flat = {"constant": fields.size("constants_bytes"), "arena": fields.size("arena_bytes")}
    for launch in map(_launch, fields.items("launches")):
        where = f"launch {launch.name}"
        if launch.kernel not in {kernel.name for kernel in kernels}:
            raise InvalidFile(f"there is no kernel {launch.kernel!r}", where=where)
        kernel = next(kernel for kernel in kernels if kernel.name == launch.kernel)
        if any(each.argument >= len(launch.operands) for each in kernel.tensor_maps):
            raise InvalidFile("a tensor map is of an argument that there is not", where=where)
        for operand in launch.operands:
            whole = sizes.get(operand.space)
            fits = (
                operand.index < len(whole) and _is_part(operand, whole[operand.index])
                if whole is not None
                else operand.index + operand.bytes <= flat.get(operand.space, -1)
            )
            if not fits:
                raise InvalidFile(f"{operand} is not in the module", where=where)
    return {"code": code, "machine": fields.text("machine"), "kernels": kernels}


def _is_part(operand: Buffer, whole: int) -> bool:
    """Whether an operand is all of an array of `whole` bytes, or one of its rows."""
    end = operand.offset + operand.bytes
    return end <= whole if operand.bytes == 0 else end <= whole and whole % operand.bytes == 0


def _tensor(item: _Reader) -> TensorSpec:
    dtype = item.text("dtype")
    if dtype not in DTYPES:
        raise InvalidFile(f"unknown dtype {dtype!r}", where=item.where)
    shape = tuple(extent.as_size() for extent in item.items("shape"))
    if len(shape) > _MOST_DIMENSIONS:
        raise InvalidFile(f"{len(shape)} dimensions", where=item.where, help=f"at most {_MOST_DIMENSIONS}")
    if math.prod(max(1, extent) for extent in shape) * size_bytes(dtype) > _MOST_BYTES:
        raise InvalidFile(f"the shape {shape} is larger than any memory", where=item.where)
    return TensorSpec(item.text("name"), dtype, shape)


def _launch(item: _Reader) -> Launch:
    name, kernel = item.text("name"), item.text("kernel")
    programs, flops, size = item.size("programs"), item.size("flops", _MOST_COUNT), item.size("bytes", _MOST_COUNT)
    operands = tuple(map(_operand, item.items("operands"))) if "operands" in item.value else ()
    trips = item.size("trips") if "trips" in item.value else 1
    known = {field: item.size(field, _MOST_COUNT) for field in ("cycles", "constant_bytes") if field in item.value}
    instruction = item.text("instruction") if "instruction" in item.value else ""
    return Launch(name, kernel, programs, flops, size, operands, trips, instruction=instruction, **known)


def _operand(item: _Reader) -> Buffer:
    offset = item.size("offset") if "offset" in item.value else 0
    return Buffer(item.text("space"), item.size("index"), item.size("bytes"), offset)


def _kernel(item: _Reader) -> Kernel:
    grid, block = (_extents(item, field) for field in ("grid", "block"))
    maps = tuple(map(_tensor_map, item.items("tensor_maps")))
    return Kernel(item.text("name"), item.text("entry"), grid, block, item.size("shared_bytes"), maps)


def _tensor_map(item: _Reader) -> TensorMap:
    extents, strides, box = (
        tuple(each.as_size() for each in item.items(field)) for field in ("extents", "strides", "box")
    )
    if not 1 <= len(extents) == len(strides) == len(box):
        raise InvalidFile("extents, strides and box have different lengths", where=item.where)
    return TensorMap(item.size("argument"), item.text("element"), extents, strides, box, item.size("swizzle"))


def _extents(item: _Reader, field: str) -> tuple[int, int, int]:
    found = tuple(extent.as_size() for extent in item.items(field))
    if len(found) != 3 or 0 in found:
        raise InvalidFile(f"{field} is {found}", where=item.where, help="three numbers of 1 or more")
    return found


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

    def size(self, name: str, most: int = _MOST_BYTES) -> int:
        return _Reader(self._field(name), f"{self.where}.{name}").as_size(most)

    def as_size(self, most: int = _MOST_BYTES) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 0:
            raise InvalidFile(f"{self.value!r} is not a whole number of 0 or more", where=self.where)
        if self.value > most:
            raise InvalidFile(f"{self.value:#x} is larger than any memory", where=self.where)
        return self.value

    def items(self, name: str) -> list[_Reader]:
        value = self._field(name)
        if not isinstance(value, (list, tuple)):
            raise InvalidFile(f"the field {name!r} is {value!r}, not a list", where=self.where)
        return [_Reader(item, f"{self.where}.{name}[{index}]") for index, item in enumerate(value)]
