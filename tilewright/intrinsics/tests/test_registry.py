"""The registry as a value, composite records, and that a new record is one data file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright import intrinsics
from tilewright.errors import InvalidArgument, InvalidIntrinsic
from tilewright.intrinsics.composite import optimum, outer
from tilewright.intrinsics.execute import execute
from tilewright.intrinsics.registry import Registry, standard

BASE = standard().find("fma_ps")


def test_adding_makes_a_copy_and_prefers_what_is_new() -> None:
    registry = Registry([BASE])
    more = registry.add(outer(BASE, 4, 6))
    assert [record.name for record in more] == ["outer_4x6x1_fma_16_f32_f32", "fma_16_f32_f32"]
    assert len(registry) == 1
    assert "outer_4x6x1_fma_16_f32_f32" not in registry


def test_a_record_can_be_taken_out_by_an_alias() -> None:
    left = standard().without("vpdpbusd")
    assert "vpdpbusd_16x4_u8s8_s32" not in left
    assert "vpdpbusd_16x4_u8s8_s32" in standard()
    assert len(left) == len(standard()) - 1


def test_names_are_unique() -> None:
    with pytest.raises(InvalidIntrinsic, match=r"the name 'fma_ps' is taken by fma_16_f32_f32"):
        Registry([BASE, replace(BASE, name="other")])
    with pytest.raises(InvalidIntrinsic, match="is taken by"):
        standard().add(replace(BASE, source="another"))


def test_a_record_that_is_there_already_comes_first() -> None:
    kernel = outer(standard().find("fma_ps"), 4, 6)
    assert kernel.name in standard()
    found = standard().add(kernel)
    assert found.records[0] == kernel
    assert len(found) == len(standard())


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidIntrinsic) as caught:
        standard().find("vpdbusd")
    assert "vpdpbusd" in caught.value.help


def test_what_enters_is_checked() -> None:
    with pytest.raises(InvalidIntrinsic, match="loop i2 has extent 0"):
        standard().add(replace(BASE, name="mine", aliases=(), extents={"i2": 0}))


def test_records_are_found_by_target_and_features() -> None:
    found = standard().select("x86", frozenset({"avx2", "fma"}))
    assert {record.target for record in found} == {"x86"}
    assert "fma_8_f32_f32" in found
    assert "fma_16_f32_f32" not in found
    assert "widen_4_u8s8_s32" in standard().select(features=frozenset())


def test_a_new_record_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "acme"
    package.mkdir()
    (package / "__init__.py").write_text('"""Records of Acme."""\n\nPREFERENCE = 9\n')
    (package / "unit.py").write_text(
        "from dataclasses import replace\n"
        "from tilewright.intrinsics.invented.accelerators import INTRINSICS as THERE\n"
        "INTRINSICS = (replace(THERE[0], name='acme_4_f32_f32', target='acme', aliases=()),)\n"
    )
    monkeypatch.setattr(intrinsics, "__path__", [*intrinsics.__path__, str(tmp_path)])
    try:
        assert "acme_4_f32_f32" in standard.__wrapped__()
    finally:
        for name in ("tilewright.intrinsics.acme", "tilewright.intrinsics.acme.unit"):
            sys.modules.pop(name, None)
        vars(intrinsics).pop("acme", None)
    assert "acme_4_f32_f32" not in standard()


@pytest.mark.parametrize(
    ("name", "mi", "ni", "ki"),
    [("fma_ps", 3, 2, 5), ("vpdpbusd", 2, 2, 3), ("vdpbf16ps", 2, 1, 4), ("sdot", 3, 2, 2), ("vpdpbusds", 2, 1, 3)],
)
def test_an_outer_product_is_its_instructions(name: str, mi: int, ni: int, ki: int) -> None:
    """The record computes bit for bit what its base does, row by row, register by register, step by step."""
    base = standard().find(name)
    record = outer(base, mi, ni, ki)
    assert standard().add(record).find(record.name).realised_by == base.name
    random = np.random.default_rng(0)
    tiles = []
    for operand in record.operands:
        bits = random.integers(0, 255, record.shape(operand))
        dtype = execute_dtype(operand.dtype)
        tiles.append((bits.astype(np.uint8).view(np.int8) if dtype.itemsize == 1 else bits - 100).astype(dtype))
    a, b, dst = tiles
    if dst.dtype == np.int32:  # sums that leave 32 bits
        dst = random.choice(np.array([-(1 << 31), (1 << 31) - 1], np.int32), dst.shape)
    result = execute(record, dst, a, b)
    lanes, group = next(iter(base.extents.values())), record.extents["r1"] // ki
    expected = dst.copy()
    vector = next(operand for operand in base.sources if len(operand.loops) == max(len(o.loops) for o in base.sources))
    for row in range(mi):
        for register in range(ni):
            at = slice(register * lanes, (register + 1) * lanes)
            for step in range(ki):
                k = slice(step * group, (step + 1) * group)
                word, wide = a[row, k], b[k, at].T
                if group == 1:
                    word, wide = word.reshape(()), wide.reshape(lanes)
                sources = (word, wide) if base.sources[1] is vector else (wide, word)
                expected[row, at] = execute(base, expected[row, at], *sources)
    np.testing.assert_array_equal(result, expected)


def execute_dtype(dtype: str) -> np.dtype:  # type: ignore[type-arg]
    from tilewright.intrinsics.elements import storage

    return storage(dtype)


def test_registers_of_outer_products() -> None:
    assert [outer(BASE, mi, ni).limits.registers for mi, ni in ((6, 4), (3, 3), (1, 8), (4, 6))] == [30, 15, 17, 32]


@pytest.mark.parametrize("name", ["mma_m16n8k16_f16_f32", "fma_full_16_f32_f32", "arm_dot"])
def test_an_outer_product_of_something_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="has the form"):
        outer(standard().find(name), 6, 4)


def test_an_outer_product_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="0 rows"):
        outer(BASE, 0, 4)
    with pytest.raises(InvalidArgument, match="no outer product fits into 4"):
        optimum(4)


@pytest.mark.parametrize("registers", range(5, 65))
def test_the_optimum_is_that_of_trying_everything(registers: int) -> None:
    found = optimum(registers)
    best = max(
        mi * ni / (mi + ni)
        for mi in range(2, registers)
        for ni in range(1, registers)
        for mii in range(2, mi + 1)
        if mi % mii == 0 and mi * ni + ni + mii <= registers
    )
    assert found.intensity() == best
    assert found.registers <= registers


def test_emitters_exist() -> None:
    """Every record of a CPU that this package can emit names an emitter of code generation."""
    from tilewright.codegen.cpu.dot import product_of_record

    named = [record for record in standard() if record.emitter and not record.realised_by]
    assert {"fma", "widen_f32", "widen_i32", "words"} <= {record.emitter for record in named}
    for record in named:
        assert product_of_record(record).group == record.macs // max(record.extents.values()), record.name


@pytest.mark.parametrize(("instruction", "registers"), [
    ("vpdpbusd_8x4_u8s8_s32", 16), ("vpmaddwd_8x2_s16_s32", 16), ("vpdpbusd_16x4_u8s8_s32", 32),
])  # fmt: skip
def test_sums_fit_the_registers_of_processors_that_have_an_instruction(instruction: str, registers: int) -> None:
    """AVX-VNNI came without AVX-512, whose 32 registers `vpdpbusd` of 16 lanes may count on."""
    sums = [record.grid[0] * record.grid[1] for record in standard().made_of(instruction)]
    assert registers // 2 < max(sums) < registers
