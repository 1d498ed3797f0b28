"""The table of instructions: from the first word of an opcode to the function that builds its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dataclass import dataclass
from tilewright.emulator.decode import Decoder
from tilewright.emulator.lanes import Lanes, Run
from tilewright.emulator.scalars import Array


@dataclass
class Built:
    """What an instruction does; the fields are those of `lanes.Step`."""

    run: Run | None = None
    group: str = "other"
    control: Callable[[Lanes, Any, int], int | None] | None = None
    meeting: Callable[[Lanes], Array | int] | None = None
    own_taint: bool = False
    uses_products: bool = False
    warps: int = 1
    guarded: tuple[int, ...] = ()
    taint: Callable[[Lanes], None] | None = None


Builder = Callable[[Decoder], Built]
INSTRUCTIONS: dict[str, Builder] = {}


def instruction(*names: str) -> Callable[[Builder], Builder]:
    """Enters a function into the table under the first words of the opcodes it builds."""

    def enter(builder: Builder) -> Builder:
        for name in names:
            assert name not in INSTRUCTIONS, f"{name} is there twice"
            INSTRUCTIONS[name] = builder
        return builder

    return enter


def elementwise(
    decoder: Decoder, group: str, function: Callable[..., Any], result: str, arguments: tuple[str, ...]
) -> Built:
    """``d = function(a, b, …)`` on each lane; types by name."""
    decoder.count(1 + len(arguments))
    put = decoder.put(0, result)
    gets = [decoder.get(1 + number, kind) for number, kind in enumerate(arguments)]
    if len(gets) == 1:
        (only,) = gets
        return Built(lambda lanes: put(lanes, function(only(lanes))), group)
    if len(gets) == 2:
        first, second = gets
        return Built(lambda lanes: put(lanes, function(first(lanes), second(lanes))), group)
    return Built(lambda lanes: put(lanes, function(*[get(lanes) for get in gets])), group)


def bytewise(decoder: Decoder, built: Built, rule: Callable[[list[Array]], Array]) -> Built:
    """`built`, with a rule for undefined bytes: from the masks of the registers read, in order, to that of the result.

    A mask has one bit per byte. Constants are not among the registers.
    """
    reads, writes = tuple(decoder.reads), tuple(decoder.writes)

    def taint(lanes: Lanes) -> None:
        found = rule([lanes.undefined_bytes(slot) for slot in reads])
        for slot in writes:
            lanes.define_bytes(slot, found)

    built.taint = taint
    return built


def pairwise(decoder: Decoder, built: Built, width: int) -> Built:
    """`built`, which computes each half of a register of `width` bits from those halves of what it reads."""
    low = np.uint8((1 << width // 16) - 1)
    high = low << np.uint8(width // 16)

    def rule(masks: list[Array]) -> Array:
        found = np.bitwise_or.reduce(masks) if masks else np.zeros(1, np.uint8)
        return np.asarray(np.where(found & low, low, np.uint8(0)) | np.where(found & high, high, np.uint8(0)))

    return bytewise(decoder, built, rule)


def whole_warps(lanes: Lanes) -> int:
    """For `meeting`: all lanes of the warp take part."""
    return -1
