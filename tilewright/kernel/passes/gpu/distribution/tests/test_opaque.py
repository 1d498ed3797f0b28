"""Unspecified layouts, and the memory from which their fragments are loaded."""

from __future__ import annotations

import pytest

from tilewright.errors import InvalidArgument, InvalidProgram
from tilewright.intrinsics.registry import standard
from tilewright.kernel.passes.gpu.distribution.layout import canonical
from tilewright.kernel.passes.gpu.distribution.matrix import dot_layouts, fragments
from tilewright.kernel.passes.gpu.distribution.opaque import Matrices, matrices_in, memory_between, record_with_sums
from tilewright.kernel.passes.gpu.distribution.rows import Rows
from tilewright.kernel.passes.gpu.distribution.tests.programs import matmul
from tilewright.kernel.passes.table import run_pipeline
from tilewright.kernel.records import is_opaque
from tilewright.kernel.text import parse_module
from tilewright.layouts.linear import LinearLayout
from tilewright.layouts.mma import Mma, Wmma
from tilewright.layouts.opaque import Opaque, opaque
from tilewright.layouts.text import parse

NAMES = [record.name for record in standard() if record.group == "warp32" and is_opaque(record)]
WHOLE = [name for name in NAMES if "s4" not in name and "u4" not in name and "b1" not in name]


def test_a_layout_that_is_not_told_equals_no_other() -> None:
    made, told = opaque(Wmma((1, 1)), (16, 16)), canonical(Mma(2, (1, 1)).to_linear((16, 16)))
    assert made.bases == told.bases
    assert made != told
    assert parse(str(made)) == made.form
    assert made == opaque(Wmma((1, 1)), (16, 16))


@pytest.mark.parametrize("name", WHOLE)
def test_fragments_are_those_of_the_record(name: str) -> None:
    """Boxes of the instruction cover a tile, each in as many registers as one fragment has."""
    record = standard().find(name)
    extents = tuple(2 * size for size in (*record.shape(record.destination), record.shape(record.sources[0])[1]))
    for layout, operand in zip(dot_layouts(record, extents, (1, 1)), record.operands, strict=True):
        assert isinstance(layout, Opaque)
        assert layout.tile == record.shape(operand)
        assert len(fragments(layout, layout.one)) == 4
        assert {len(registers) for registers in fragments(layout, layout.one).values()} == {
            layout.one.in_size("register")
        }


def rows_of_threads(fastest: int) -> LinearLayout:
    bases = [tuple(1 << bit if dim == fastest else 0 for dim in range(2)) for bit in range(3)]
    others = [tuple(1 << bit if dim != fastest else 0 for dim in range(2)) for bit in range(5)]
    own = [tuple(1 << bit if dim == fastest else 0 for dim in range(2)) for bit in (3, 4)]
    outs = (("dim0", 32), ("dim1", 32))
    return LinearLayout((("register", (*bases, *own)), ("lane", tuple(others)), ("warp", ())), outs)


@pytest.mark.parametrize(("fastest", "columns"), [(1, False), (0, True)])
def test_rows_with_padding(fastest: int, columns: bool) -> None:
    target = dot_layouts(standard().find("wmma_16x16x16_f16_f32"), (32, 32, 32), (1, 1))[0]
    memory = memory_between(rows_of_threads(fastest), target, 16, "swizzled")
    assert isinstance(memory, Rows)
    strides = (1, 40) if columns else (40, 1)
    assert matrices_in(str(memory), (32, 32), (16, 16)) == Matrices(strides, 40, columns)
    assert Matrices(strides, 40, columns).place((16, 16)) == 16 * 41


def test_rows_shorter_than_their_alignment_lie_behind_each_other() -> None:
    """16 bytes: fragments begin every 32 rows of them, at multiples of 32 bytes."""
    target = dot_layouts(standard().find("wmma_16x16x16_s8_s32"), (32, 32, 32), (1, 1))[0]
    memory = memory_between(rows_of_threads(1), target, 8, "padded")
    found = matrices_in(str(memory), (32, 32), (16, 16))
    assert found == Matrices((16, 32), 16, False)
    assert [found.place(corner) for corner in ((0, 0), (16, 0), (0, 16))] == [0, 256, 512]


def test_memory_without_rows_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="fragments of 16x16 in memory"):
        matrices_in("#shared<vec=8, perPhase=2, maxPhase=4, O=[1,0]>", (32, 32), (16, 16))


def test_programs_that_cannot_be() -> None:
    with pytest.raises(InvalidProgram, match="a product of 16x16x8 on wmma_16x16x16_f16_f32"):
        dot_layouts(standard().find("wmma_16x16x16_f16_f32"), (16, 16, 8), (1, 1))
    with pytest.raises(InvalidProgram, match="issued by 32 lanes, a warp here has 64"):
        dot_layouts(standard().find("wmma_16x16x16_f16_f32"), (16, 16, 16), (1, 1), 64)
    with pytest.raises(InvalidProgram, match="for a product in a block"):
        dot_layouts(standard().find("wmma_8x8x32_s4_s32"), (8, 8, 32), (1, 1))
    with pytest.raises(InvalidProgram, match="with sums of bf16"):
        record_with_sums(standard(), (16, 16, 16), "bf16")
    with pytest.raises(InvalidArgument, match="is documented"):
        opaque(Mma(2, (1, 1)), (16, 16))  # type: ignore[arg-type]


def test_warps_that_hold_the_same_result_store_it_once() -> None:
    """A tile of one fragment for four warps: three of them have copies."""
    module = parse_module(matmul((16, 16, 16), (16, 16, 16), "wmma_16x16x16_f16_f32"))
    run_pipeline(module, "gpu", verify_each=True)
    text = str(module)
    assert text.count("simt.store_fragment") == 1
    assert "scf.if" in text.partition("simt.store_fragment")[0]
