"""Buffers of launches: parts of them, and what alignment code may rely on. One class for all who launch."""

from __future__ import annotations

import pytest

from tilewright.codegen.host_program import Buffer, HostProgram
from tilewright.codegen.nvptx.pipeline import PtxCode
from tilewright.runtime.manifest import Manifest


@pytest.mark.parametrize(
    ("whole", "part", "shown"),
    [
        (Buffer("input", 3, 96), Buffer("input", 3, 16, 32), "input 3+32 (16 bytes)"),
        (Buffer("output", 0, 96, 8), Buffer("output", 0, 16, 40), "output 0+40 (16 bytes)"),
        (Buffer("arena", 256, 96), Buffer("arena", 288, 16), "arena+288 (16 bytes)"),
    ],
)
def test_a_part_begins_behind_its_whole(whole: Buffer, part: Buffer, shown: str) -> None:
    assert whole.part(32, 16) == part
    assert str(part) == shown


@pytest.mark.parametrize(
    ("buffer", "align"),
    [
        (Buffer("input", 3, 16), 256), (Buffer("input", 0, 16, 48), 16), (Buffer("output", 1, 16, 1024), 256),
        (Buffer("arena", 0, 16), 256), (Buffer("arena", 192, 16), 64), (Buffer("constant", 7, 1), 1),
    ],
)  # fmt: skip
def test_alignment_follows_from_where_a_buffer_begins(buffer: Buffer, align: int) -> None:
    assert buffer.align == align


def test_code_and_manifest_hold_the_same_host_program() -> None:
    code = PtxCode(ptx="", target=None, constants_bytes=1, arena_bytes=2, launches=())  # type: ignore[arg-type]
    stored = Manifest(name="m", inputs=(), outputs=(), features=(), triple="t", **code.parts())
    assert stored.parts() == code.parts() == HostProgram(**code.parts()).parts()
