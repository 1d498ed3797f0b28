"""Tensor-map boxes of tensors in global memory, which copies move to and from shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue
from xdsl.irdl import prop_def, traits_def, var_operand_def
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from tilewright.dataclass import dataclass
from tilewright.kernel.operation import NUMBER, NUMBERS, KernelOp
from tilewright.kernel.tile_types import element

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorMapBox:
    """A tensor of `extents` with `strides` in elements, the last 1, and the sides of a box of it; outermost first.

    In shared memory the box lies row-major. With `swizzle` its rows have so many bytes at most, and groups of
    16 bytes change places: bits 4 and up of an address are XORed with bits 7 and up.
    """

    extents: tuple[int, ...]
    strides: tuple[int, ...]
    sides: tuple[int, ...]
    swizzle: int

    def elements(self, start: Sequence[int]) -> tuple[Array, Array]:
        """Numbers of the elements of the box at `start` in its tensor, row-major, and which of them lie inside."""
        numbers, inside = np.zeros((), np.int64), np.ones((), np.bool_)
        for first, extent, stride, side in zip(start, self.extents, self.strides, self.sides, strict=True):
            index = first + np.arange(side)
            numbers = numbers[..., None] + index * stride
            inside = inside[..., None] & (index >= 0) & (index < extent)
        return numbers.ravel(), inside.ravel()


def swizzled(addresses: Array, span: int) -> Array:
    """Where in shared memory lies what would lie at these bytes without a swizzle of `span` bytes."""
    mask = span // 16 - 1 if span else 0
    return np.asarray(addresses ^ (((addresses >> 7) & mask) << 4))


def of_tensor_map(box: TensorMapBox) -> dict[str, Any]:
    """The properties of a copy of this box."""
    return {"extents": box.extents, "strides": box.strides, "box": box.sides, "swizzle": box.swizzle}


class BulkCopy(KernelOp):
    """A copy of the box whose first element has these coordinates."""

    coordinates = var_operand_def(IndexType)
    extents = prop_def(NUMBERS)
    strides = prop_def(NUMBERS)
    box = prop_def(NUMBERS)
    swizzle = prop_def(NUMBER)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    @property
    def form(self) -> TensorMapBox:
        extents, strides, sides = (
            tuple(int(number) for number in each.get_values()) for each in (self.extents, self.strides, self.box)
        )
        return TensorMapBox(extents, strides, sides, self.swizzle.value.data)

    def verify_form(self, tensor: SSAValue, memory: SSAValue) -> None:
        """Check what holds for every copy between a tensor and shared memory."""
        rank, form = len(self.coordinates), self.form
        if not len(form.extents) == len(form.strides) == len(form.sides) == rank > 0:
            fact = f"extents {form.extents}, strides {form.strides}, box {form.sides}"
            raise VerifyException(f"{rank} coordinates, {fact}")
        if form.strides[-1] != 1:
            raise VerifyException(f"strides {list(form.strides)}: the last is 1")
        if element(tensor) != element(memory):
            raise VerifyException(f"copies between {tensor.type} and {memory.type}")
