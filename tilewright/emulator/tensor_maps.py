"""Tensor maps: 128 bytes that describe a tensor in global memory and the box that one tensor copy moves.

The fields of real tensor maps are not documented; these 128 bytes have an order of their own. `TensorMap` is how a
launch hands one over, ``tensormap.replace`` how a kernel changes one.
"""

from __future__ import annotations

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.scalars import Array
from tilewright.errors import InvalidArgument

BYTES = 128
SWIZZLES = (0, 32, 64, 128)
# Codes of element types as ``tensormap.replace`` numbers them, and their bytes.
ELEMENTS = {
    "u8": (0, 1), "u16": (1, 2), "u32": (2, 4), "s32": (3, 4), "u64": (4, 8), "s64": (5, 8), "f16": (6, 2),
    "f32": (7, 4), "f32.ftz": (8, 4), "f64": (9, 8), "bf16": (10, 2), "tf32": (11, 4), "tf32.ftz": (12, 4),
}  # fmt: skip
_ELEMENT_OF_DTYPE = {
    "uint8": "u8", "int8": "u8", "bool": "u8", "uint16": "u16", "int16": "u16", "uint32": "u32", "int32": "s32",
    "uint64": "u64", "int64": "s64", "float16": "f16", "float32": "f32", "float64": "f64", "bfloat16": "bf16",
    "float8_e4m3fn": "u8", "float8_e5m2": "u8",
}  # fmt: skip

# Where the fields are: offset and bytes of one element.
FIELDS = {
    "global_address": (0, 8), "rank": (8, 4), "elemtype": (12, 4), "interleave_layout": (16, 4),
    "swizzle_mode": (20, 4), "fill_mode": (24, 4), "swizzle_atomicity": (28, 4), "global_dim": (32, 4),
    "box_dim": (52, 4),
    "element_stride": (72, 4), "global_stride": (96, 8),
}  # fmt: skip


@dataclass(frozen=True)
class TensorMap:
    """An argument: the tensor `array` (row-major), copied in boxes of `box` elements, in NumPy's order of axes.

    `swizzle` is the span in bytes by which the box is swizzled in shared memory: 0, 32, 64 or 128. Where `extents` and
    `strides` (in bytes) are given, the tensor lies so in the memory of the array, whatever its own shape and type.
    """

    array: Array
    box: tuple[int, ...]
    swizzle: int = 0
    element: str = ""
    extents: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """The name of the element type; "" where maps have none for the type of the array."""
        return self.element or _ELEMENT_OF_DTYPE.get(self.array.dtype.name, "")

    def encode(self, address: int) -> Array:
        """The 128 bytes, for a tensor at a generic address; raises InvalidArgument for what hardware refuses."""
        extents = self.extents or self.array.shape
        rank, where = len(extents), "tensor map"
        if not 1 <= rank <= 5 or len(self.box) != rank:
            raise InvalidArgument(f"a box of {len(self.box)} axes for {rank}", where=where, help="1 to 5, the same")
        if self.swizzle not in SWIZZLES:
            raise InvalidArgument(f"swizzle of {self.swizzle} bytes", where=where, help="0, 32, 64 or 128")
        if any(not 1 <= extent <= 256 for extent in self.box):
            raise InvalidArgument(f"box {self.box}", where=where, help="1 to 256 along each axis")
        strides = self._strides(extents)
        element = self.kind
        if element not in ELEMENTS or ELEMENTS[element][1] != strides[-1]:
            raise InvalidArgument(f"elements {element or self.array.dtype}", where=where, help=", ".join(ELEMENTS))
        if any(stride % 16 for stride in strides[:-1]):
            raise InvalidArgument(f"strides {list(strides)} bytes", where=where, help="multiples of 16")
        raw = np.zeros(BYTES, np.uint8)
        put(raw, "global_address", 0, address)
        put(raw, "rank", 0, rank - 1)
        put(raw, "elemtype", 0, ELEMENTS[element][0])
        put(raw, "swizzle_mode", 0, SWIZZLES.index(self.swizzle))
        for axis in range(rank):
            put(raw, "global_dim", axis, extents[rank - 1 - axis])
            put(raw, "box_dim", axis, self.box[rank - 1 - axis])
            put(raw, "element_stride", axis, 1)
            if axis:
                put(raw, "global_stride", axis - 1, strides[rank - 1 - axis])
        return raw

    def _strides(self, extents: tuple[int, ...]) -> tuple[int, ...]:
        """Bytes from element to element along each axis; raises InvalidArgument where they leave the array."""
        size = self.array.dtype.itemsize
        if not self.extents:
            return tuple(int(np.prod(extents[axis + 1 :])) * size for axis in range(len(extents)))
        needed = sum((extent - 1) * stride for extent, stride in zip(extents, self.strides, strict=True))
        if needed + self.strides[-1] > self.array.nbytes:
            message = f"extents {list(extents)} with strides {list(self.strides)} in {self.array.nbytes} bytes"
            raise InvalidArgument(message, where="tensor map", help="the tensor lies inside of the array")
        return self.strides


def put(raw: Array, field: str, number: int, value: int) -> None:
    offset, width = FIELDS[field]
    start = offset + width * number
    raw[start : start + width] = np.frombuffer((value & ((1 << 8 * width) - 1)).to_bytes(width, "little"), np.uint8)


def get(raw: Array, field: str, number: int = 0) -> int:
    offset, width = FIELDS[field]
    return int.from_bytes(raw[offset + width * number : offset + width * (number + 1)].tobytes(), "little")


@dataclass(frozen=True)
class Box:
    """A decoded map: axes innermost first."""

    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]  # bytes; of the innermost axis the element
    box: tuple[int, ...]
    steps: tuple[int, ...]
    element_bytes: int
    swizzle: int
    nan_fill: bool

    @property
    def bytes(self) -> int:
        return int(np.prod(self.counts)) * self.element_bytes

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))


def decode(raw: Array) -> Box | str:
    """What 128 bytes describe, or what is wrong with them."""
    rank = get(raw, "rank") + 1
    sizes = dict(ELEMENTS.values())
    size = sizes.get(get(raw, "elemtype"))
    if rank > 5 or size is None or get(raw, "swizzle_mode") > 3:
        return "these 128 bytes are no tensor map"
    if get(raw, "interleave_layout"):
        return "interleaved layouts are not emulated"
    steps = tuple(max(1, get(raw, "element_stride", axis)) for axis in range(rank))
    box = Box(
        get(raw, "global_address"), tuple(get(raw, "global_dim", axis) for axis in range(rank)),
        (size, *(get(raw, "global_stride", axis) for axis in range(rank - 1))),
        tuple(get(raw, "box_dim", axis) for axis in range(rank)), steps, size,
        SWIZZLES[get(raw, "swizzle_mode")], get(raw, "fill_mode") == 1,
    )  # fmt: skip
    if any(not 1 <= extent <= 256 for extent in box.box):
        return f"a box of {box.box[::-1]} elements"
    if box.counts[0] * size % 16:
        return f"the innermost box has {box.counts[0] * size} bytes, no multiple of 16"
    if box.swizzle and box.counts[0] * size > box.swizzle:
        return f"the innermost box has {box.counts[0] * size} bytes, swizzled by {box.swizzle}"
    if box.address % 16 or any(stride % 16 for stride in box.strides[1:]):
        return "address or strides of the tensor are no multiples of 16 bytes"
    return box


def misplaced(box: Box, coordinates: tuple[int, ...]) -> str:
    """What is wrong with where a box begins; "" if nothing is.

    PTX does not say that the innermost coordinate is a multiple of 16 bytes. An H200 faults where it is none.
    """
    within = coordinates[0] * box.element_bytes
    return f"the innermost coordinate {coordinates[0]} is {within} bytes, no multiple of 16" if within % 16 else ""


def elements_of(box: Box, coordinates: tuple[int, ...]) -> tuple[Array, Array]:
    """Byte offsets of the box's elements from the tensor's start, flat in box order, and which lie inside."""
    offsets: Array = np.zeros(1, np.int64)
    inside: Array = np.ones(1, np.bool_)
    for axis, at in enumerate(coordinates):
        index = at + np.arange(0, box.box[axis], box.steps[axis])
        valid = (index >= 0) & (index < box.extents[axis])
        offsets = (index[:, None] * box.strides[axis] + offsets).reshape(-1)
        inside = (valid[:, None] & inside).reshape(-1)
    return offsets, inside


def swizzled(addresses: Array, span: int) -> Array:
    """Shared-memory addresses of bytes in a tile swizzled by `span`: 16-byte chunks move by their line."""
    mask = span // 16 - 1 if span else 0
    return np.asarray(addresses ^ (((addresses >> 7) & mask) << 4))
