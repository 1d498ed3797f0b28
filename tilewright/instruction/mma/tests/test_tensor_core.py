"""Tensor-core configurations: derived values, every rule, and the strategy that takes fixed tiles from a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.errors import InvalidArgument, ScheduleError
from tilewright.instruction.mma import MmaProblem, Options, Reason, deduce_mma, mma_target
from tilewright.instruction.mma import tensor_core_config as rules
from tilewright.instruction.mma.tensor_core_config import MatmulConfig, verify
from tilewright.instruction.mma.tensor_core_table import IREE_ROWS, LARGE, ROWS, Row

E1 = MatmulConfig((128, 128, 64), (256, 1, 1), route="wmma", pad=8, warp=(64, 32, 32))
E2 = replace(E1, warp=(32, 64, 32))
W = MatmulConfig((32, 32, 16), (64, 2, 1), 3, route="wmma")
WMMA, MMA = (16, 16, 16), (16, 8, 16)
LIMIT = 49152


def codes(config: MatmulConfig, shape: tuple[int | None, ...], dtype: str, **options: object) -> list[str]:
    c = "i32" if dtype == "i8" else "f32"
    found = verify(config, shape, dtype, dtype, c, **{"shared_limit": LIMIT, **options})
    return [each.code for each in found]


# -- derived values ---------------------------------------------------------------------------------------------------


def test_spec4_example_e1() -> None:
    assert rules.warps(E1) == (2, 4, 1)
    assert rules.grid(E1, (8192, 8192, 8192)) == (64, 64)
    assert rules.shared_bytes(E1, "f16", "f32") == 18432 + 17408
    assert rules.copies(E1, "f16") == (4, 4)
    assert rules.accumulator_registers(E1, "f32") == 64
    assert rules.staging_registers(E1, "f16") == 32
    assert rules.registers(E1, WMMA, "f16", "f32") == 64 + 24 + 32 + 32


def test_spec4_example_e2() -> None:
    assert (rules.warps(E2), rules.grid(E2, (1024, 1024, 1024))) == ((4, 2, 1), (8, 8))


def test_spec4_example_w() -> None:
    assert (rules.warps(W), rules.warp_tile(W)) == ((2, 2, 1), (16, 16, 16))
    assert rules.grid(W, (512, 512, 128)) == (16, 16)
    staged = replace(W, stage_c=True)
    assert rules.shared_bytes(staged, "f16", "f16") == 8192
    assert rules.shared_bytes(replace(staged, pad=8), "f16", "f16") == 11008
    assert rules.copies(replace(W, vector_bits=64), "f16") == (1, 1)


def test_spec4_structure_counts() -> None:
    small = MatmulConfig((32, 32, 32), (64, 2, 1), 4)
    assert rules.copies(small, "f16") == (1, 1)
    large = MatmulConfig((128, 256, 32), (128, 2, 1), 3)
    assert (rules.warps(large), rules.warp_tile(large)) == ((2, 4, 1), (64, 64, 32))
    assert rules.shared_bytes(large, "f16", "f32") == 73728
    assert rules.copies(large, "f16") == (2, 4)
    square = MatmulConfig((64, 64, 64), (128, 1, 1), warp=(32, 32, 64), pad=8)
    assert (rules.copies(square, "f16"), rules.shared_bytes(square, "f16", "f32")) == ((4, 4), 18432)


# -- the rules --------------------------------------------------------------------------------------------------------

# threads | block | stages | M x N x K | type | route | codes
VERDICTS = """
64,2,10 | 32,32,16 | 1 | 32x32x16 | f32 | wmma | TC06 TC07
48,2,1 | 32,32,16 | 1 | 32x32x16 | f32 | wmma | TC08
64,2,2 | 32,32,16 | 1 | 32x32x16 | f32 | wmma | TC07
64,2,1 | 32,32,20 | 1 | 32x32x16 | f32 | wmma | TC10 TC11
128,1,1 | 64,32,16 | 1 | 1024x256x512 | f32 | wmma | TC11
64,2,1 | 32,32,16 | 1 | 48x32x16 | f32 | wmma | TC10
64,2,1 | 32,32,16 | 1 | 32x48x16 | f32 | wmma | TC10
128,1,1 | 64,32,48 | 1 | 1024x256x512 | f32 | mma.sync | TC10
128,1,1 | 64,32,4 | 1 | 1024x256x512 | f32 | mma.sync | TC11
128,1,1 | 64,64,64 | 1 | 1024x256x512 | i8 | mma.sync |
64,2,1 | 32,32,16 | 3 | 512x512x128 | f16 | wmma |
64,3,1 | 32,32,16 | 1 | 512x512x128 | f16 | wmma | TC11 TC12
"""


def numbers(text: str, separator: str = ",") -> tuple[int, int, int]:
    first, second, third = (int(part) for part in text.split(separator))
    return first, second, third


@pytest.mark.parametrize("row", VERDICTS.strip().splitlines())
def test_spec4_verdicts(row: str) -> None:
    threads, block, stages, shape, dtype, route, expected = (cell.strip() for cell in row.split("|"))
    config = MatmulConfig(numbers(block), numbers(threads), int(stages), route=route)
    assert codes(config, numbers(shape, "x"), dtype) == expected.split()


def test_spec4_verdict_8_batch_tile() -> None:
    config = replace(W, stages=1, batch_tile=2)
    assert codes(config, (32, 32, 16), "f32") == ["TC05"]
    assert codes(replace(config, batch_tile=1), (32, 32, 16), "f32", batch_distributed=True) == []
    assert codes(replace(config, batch_tile=0), (32, 32, 16), "f32", batch_distributed=True) == ["TC05"]


def test_spec4_verdict_11_with_the_original_instructions() -> None:
    config = MatmulConfig((64, 64, 64), (128, 1, 1))
    floats = [each for each in mma_target("sm_80").intrinsics if each.a[0] in "bft"]
    assert codes(config, (1024, 256, 512), "i8", intrinsics=floats) == ["TC09"]


def test_spec4_verdict_13_e1_is_legal() -> None:
    assert codes(E1, (8192, 8192, 8192), "f16") == []


def test_spec4_verdict_14_shared_memory() -> None:
    config = MatmulConfig((256, 128, 64), (128, 2, 1), 4, pad=8)
    (found,) = verify(config, (4096, 4096, 4096), "f16", "f16", "f32", shared_limit=101376)
    assert found.message == "217088 bytes of shared memory needed, 101376 available"
    assert found.help == "try fewer stages or a smaller BK"


@pytest.mark.parametrize(
    ("changed", "options", "expected"),
    [
        ({"threads": None}, {}, "TC01 no workgroup size"),
        ({"stages": None}, {}, "TC02 pipeline depth or store stage is missing"),
        ({"store_stage": None}, {}, "TC02 pipeline depth or store stage is missing"),
        ({"store_stage": 2}, {}, "TC03 store stage 2 is not supported, only 1"),
        ({}, {"b": "bf16"}, "TC04 operands have different element types f16 and bf16"),
        ({"stages": 0}, {}, "TC14 pipeline depth 0 too small for any schedule"),
        ({"stages": 1, "schedule": "load-first"}, {}, "TC14 pipeline depth 1 too small for load-first"),
        ({"stages": 2, "schedule": "tensor-core"}, {}, "TC14 pipeline depth 2 too small for tensor-core"),
        ({"block": (128, 256, 16), "threads": (64, 2, 1)}, {}, "TC15 about 336 registers per thread, 255 allowed"),
        ({}, {"row_elements": (127, 512)}, "TC16 operand A: rows start at odd multiples of 2 bytes"),
        ({}, {"shape": (512, None, 128)}, "TC17 dimension N is dynamic and no divisor is known"),
        ({}, {"c": "i32"}, "TC18 accumulator i32 not available for f16"),
        ({"pad": 4}, {}, "TC19 padding 4 breaks the 16-byte row alignment"),
        ({}, {"capability": 61}, "TC20 wmma 16x16x16 f16 needs sm_70, target is sm_61"),
        ({"warp": (16, 16, 12)}, {}, "TC11 warp tile 16x16x12 is not a multiple of 16x16x16"),
        ({"warp": (32, 16, 16)}, {}, "TC12 block tile 32x32 cannot be split over 4 warps of 32x16"),
        ({"warp": (32, 48, 16)}, {}, "TC12 block tile 32 cannot be split over 1 warps"),
    ],
)  # fmt: skip
def test_every_rule_is_refused_alone(changed: dict[str, object], options: dict[str, object], expected: str) -> None:
    given = {"shape": (512, 512, 128), "a": "f16", "b": "f16", "c": "f32", "shared_limit": LIMIT, **options}
    config = replace(W, **changed)
    found = [str(each) for each in verify(config, **given)]
    assert any(text.startswith(expected) for text in found), found
    assert {text[:4] for text in found} <= {expected[:4], "TC12"}
    assert all(each.help for each in verify(config, **given))


@pytest.mark.parametrize(
    ("changed", "options", "code", "legal"),
    [
        ({"threads": (512, 2, 1)}, {}, "TC06", True),
        ({"threads": (512, 3, 1)}, {}, "TC06", False),
        ({}, {"shared_limit": 6144}, "TC13", True),
        ({}, {"shared_limit": 6143}, "TC13", False),
        ({"max_regs": 48}, {}, "TC15", True),
        ({"max_regs": 47}, {}, "TC15", False),
        ({"stages": 1, "schedule": "registers"}, {}, "TC14", True),
        ({"stages": 2, "schedule": "load-first"}, {}, "TC14", True),
        ({"stages": 3, "schedule": "tensor-core"}, {}, "TC14", True),
        ({}, {"row_elements": (130, 512)}, "TC16", True),
        ({}, {"row_elements": (128, 511)}, "TC16", False),
        ({}, {"a": "f32", "b": "f32", "row_elements": (1, 1)}, "TC16", True),
        ({"pad": 4}, {"a": "f32", "b": "f32"}, "TC19", True),
        ({}, {"capability": 70}, "TC20", True),
        ({"route": "mma.sync"}, {"a": "f32", "b": "f32", "capability": 80}, "TC20", True),
        ({"route": "mma.sync"}, {"a": "f32", "b": "f32", "capability": 75}, "TC20", False),
        ({}, {"c": "f16"}, "TC18", True),
        ({}, {"a": "bf16", "b": "bf16", "c": "f16"}, "TC18", False),
        ({}, {"a": "f32", "b": "f32", "c": "f16"}, "TC18", False),
    ],
)  # fmt: skip
def test_limits_on_both_sides(changed: dict[str, object], options: dict[str, object], code: str, legal: bool) -> None:
    given = {"shape": (512, 512, 128), "a": "f16", "b": "f16", "c": "f32", "shared_limit": 10**6, **options}
    found = {each.code for each in verify(replace(W, **changed), **given)}
    assert (code not in found) == legal, found


def test_rows_at_odd_bytes_name_the_step() -> None:
    """Bytes where rows have an odd number of them, else pairs."""
    wide = replace(W, route="mma.sync")
    for elements, step in ((129, 1), (130, 2)):
        found = verify(wide, (512, 512, 128), "i8", "i8", "i32", shared_limit=LIMIT, row_elements=(elements, 512))
        assert f"TC16 operand A: rows start at odd multiples of {step} bytes" in map(str, found)


def test_what_waits_in_registers_counts_for_one_stage_only() -> None:
    one = replace(W, stages=1)
    assert rules.staging_registers(one, "f16") == 8
    assert rules.registers(one, WMMA, "f16", "f32") - rules.registers(W, WMMA, "f16", "f32") == 8


@pytest.mark.parametrize(
    "changed",
    [
        {"threads": (0, 2, 1)}, {"threads": (64, 0, 1)}, {"threads": (-64, 2, 1)}, {"threads": (64, 2)},
        {"block": (0, 32, 16)}, {"block": (-32, 32, 16)}, {"block": (32, 32)}, {"warp": (0, 16, 16)},
        {"vector_bits": 0}, {"vector_bits": 7}, {"pad": -8}, {"stages": -1}, {"max_regs": 0}, {"batch_tile": -1},
        {"schedule": "nope"}, {"route": "nope"},
    ],
)  # fmt: skip
def test_configurations_that_mean_nothing(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="of a tensor-core configuration"):
        replace(W, **changed)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((0, 512, 128), "f16"), ((-32, 512, 128), "f16"), ((512, 512), "f16"), ((512, 512, 128), "foo")],
)
def test_products_that_mean_nothing(shape: tuple[int, int, int], dtype: str) -> None:
    with pytest.raises(InvalidArgument):
        verify(W, shape, dtype, dtype, "f32", shared_limit=LIMIT)


def test_a_divisor_stands_for_a_size() -> None:
    assert codes(W, (512, None, 128), "f16", divisors=(None, 64, None)) == []
    assert codes(W, (512, None, 128), "f16", divisors=(None, 16, None)) == ["TC10"]


def test_spills_are_a_warning_only() -> None:
    config = MatmulConfig((128, 256, 16), (64, 2, 1))
    (found,) = verify(config, (512, 512, 128), "f16", "f16", "f32", shared_limit=LIMIT)
    assert (found.code, found.warning) == ("TC15", True)


# -- the table --------------------------------------------------------------------------------------------------------

# type | C of 1536 x 1536 or more | block | threads | stages
TABLE = """
f16 | yes | 128,256,32 | 128,2,1 | 3
f16 | | 32,32,32 | 64,2,1 | 4
f32 | yes | 128,256,16 | 128,2,1 | 4
f32 | | 32,32,16 | 64,2,1 | 4
f32 | | 16,32,16 | 64,1,1 | 4
f32 | | 32,16,16 | 32,2,1 | 4
f32 | | 16,16,16 | 32,1,1 | 4
bf16 | yes | 128,256,16 | 128,2,1 | 4
bf16 | | 32,32,16 | 64,2,1 | 4
bf16 | | 16,32,16 | 64,1,1 | 4
bf16 | | 32,16,16 | 32,2,1 | 4
bf16 | | 16,16,16 | 32,1,1 | 4
"""


def table(m: int, n: int, k: int, dtype: str = "f16", c: str = "f32") -> MmaProblem:
    return MmaProblem((m,), (n,), (k,), (), dtype, dtype, c)


def test_spec4_table_as_published() -> None:
    rows = {dtype: [] for dtype in IREE_ROWS}
    for line in TABLE.strip().splitlines():
        dtype, large, block, threads, stages = (cell.strip() for cell in line.split("|"))
        x, y, _ = numbers(threads)
        rows[dtype].append(Row(numbers(block), (x, y), int(stages), 1536 * 1536 if large else 0))
    assert {dtype: list(found) for dtype, found in IREE_ROWS.items()} == rows


@pytest.mark.parametrize("line", TABLE.strip().splitlines())
@pytest.mark.parametrize("route", ["auto", "wmma"])
def test_spec4_every_row_is_taken(line: str, route: str) -> None:
    """By the smallest problem that no row before it takes."""
    dtype, large, block, threads, stages = (cell.strip() for cell in line.split("|"))
    (m, n, k), (x, y, _) = numbers(block), numbers(threads)
    shape = (2048, 2048, 3 * k) if large else (3 * m, 3 * n, 3 * k)
    options = Options(tensor_core_table=route)
    found = deduce_mma(table(*shape, dtype), "sm_80", policy="iree-3.6", options=options)
    assert found.path == "TC"
    assert found.config.workgroup == (m, n, 0)
    assert found.config.reduction == found.config.reduction_elements == (0, 0, k)
    assert (found.config.workgroup_size, found.config.stages) == ((x, y, 1), int(stages))
    schedule = found.schedule
    assert schedule is not None
    assert (schedule.wg_m, schedule.wg_n, schedule.wg_k, schedule.threads) == (m, n, k, x * y)
    assert schedule.intrinsic.name.startswith("MMA_SYNC" if route == "auto" else "NV_WMMA")
    assert found.config.bank_conflict_padding == (route == "wmma")
    size = 4 if dtype == "f32" else 2
    pad = 16 // size if route == "wmma" else 0
    assert found.shared_bytes == int(stages) * size * (m * (k + pad) + k * (n + pad))
    grid = next(event.fields for event in found.events if event.kind == "config.grid")
    assert (grid["factors"], grid["k_steps"]) == ((shape[0] // m, shape[1] // n), 3)


def test_spec4_our_rows_go_on() -> None:
    """bf16 uses the f16 rows first, f16 goes on with the f32 rows."""
    on = Options(tensor_core_table="auto")
    wide = table(64, 64, 64, "bf16")
    assert deduce_mma(wide, "sm_80", options=on).config.reduction == (0, 0, 32)
    assert deduce_mma(wide, "sm_80", options=on, policy="iree-3.6").config.reduction == (0, 0, 16)
    narrow = table(48, 16, 48)
    assert deduce_mma(narrow, "sm_80", options=on).config.workgroup == (16, 16, 0)
    assert deduce_mma(narrow, "sm_80", options=on, policy="iree-3.6").refusals[0] == ("TC", Reason.DOES_NOT_FIT)
    assert ROWS["f16"][: len(IREE_ROWS["f16"])] == IREE_ROWS["f16"]


def test_operands_that_are_tf32_already() -> None:
    found = deduce_mma(table(64, 64, 64, "tf32"), "sm_80", options=Options(tensor_core_table="auto"))
    assert (found.path, found.config.reduction, found.shared_bytes) == ("TC", (0, 0, 16), 4 * 2 * 32 * 16 * 4)


def test_spec4_one_slice_needs_one_stage() -> None:
    found = deduce_mma(table(64, 64, 32), "sm_80", options=Options(tensor_core_table="auto"))
    assert (found.config.stages, found.shared_bytes) == (1, 2 * 32 * 32 * 2)


def test_a_refused_row_says_why_and_the_next_is_tried() -> None:
    """128x256x32 in three stages needs the opt-in; without it the small tile is left."""
    large = table(4096, 4096, 4096)
    found = deduce_mma(large, "sm_80", options=Options(tensor_core_table="auto", shared_limit=49152))
    rows = [event.fields for event in found.events if event.kind == "table.row"]
    assert [row["block"] for row in rows] == [(128, 256, 32), (32, 32, 32)]
    assert rows[0]["refused"] == ("TC13 73728 bytes of shared memory needed, 49152 available",)
    assert found.config.workgroup == (32, 32, 0)
    assert "TC13 73728 bytes" in found.explain()
    small = deduce_mma(table(64, 64, 64), "sm_80", options=Options(tensor_core_table="auto"))
    first = next(event for event in small.events if event.kind == "table.row")
    assert first.fields["refused"] == (f"m*n = 4096 < {LARGE}",)


@pytest.mark.parametrize(
    ("problem", "target", "reason"),
    [
        (table(64, 64, 64), "gfx1100", Reason.NO_INTRINSICS),
        (MmaProblem((64,), (64,), (None,)), "sm_80", Reason.DYNAMIC_INNERMOST),
        (MmaProblem((64,), (64,), (64,), (), "f16", "bf16"), "sm_80", Reason.MIXED_INPUT),
        (replace(table(64, 64, 64), fused_producer=True), "sm_80", Reason.FUSED_PRODUCER),
        (replace(table(64, 64, 64), broadcasts=False), "sm_80", Reason.NOT_A_CONTRACTION),
        (table(64, 64, 64, "f64", "f64"), "sm_80", Reason.DOES_NOT_FIT),
        (table(64, 64, 64, "i8", "i32"), "sm_80", Reason.DOES_NOT_FIT),
        (table(100, 64, 64), "sm_80", Reason.NO_ELIGIBLE_INTRINSIC),
        (table(64, 64, 64, "bf16", "bf16"), "sm_80", Reason.NO_ELIGIBLE_INTRINSIC),
        (replace(table(64, 64, 64, "f32"), tf32_allowed=False), "sm_80", Reason.NO_ELIGIBLE_INTRINSIC),
        (table(48, 80, 40, "f32"), "sm_80", Reason.DOES_NOT_FIT),
        (table(48, 24, 48), "sm_80", Reason.DOES_NOT_FIT),
    ],
)  # fmt: skip
def test_what_the_table_refuses_goes_on(problem: MmaProblem, target: str, reason: Reason) -> None:
    found = deduce_mma(problem, target, options=Options(tensor_core_table="auto"))
    assert found.refusals[0] == ("TC", reason)
    assert found.path != "TC"
    without = deduce_mma(problem, target)
    assert (found.config, found.path) == (without.config, without.path)


def test_outer_loops_get_a_tile_of_one() -> None:
    found = deduce_mma(MmaProblem((3, 64), (64,), (5, 64), (2,)), "sm_80", options=Options(tensor_core_table="auto"))
    assert found.config.workgroup == (1, 1, 32, 32, 0, 0)
    assert found.config.reduction == (0, 0, 0, 0, 1, 32)


def test_machines_without_mma_sync_or_asynchronous_copies() -> None:
    volta = deduce_mma(table(4096, 4096, 4096), "sm_70", options=Options(tensor_core_table="auto"))
    assert volta.config.intrinsic == "NV_WMMA_F32_16x16x16_F16"
    assert (volta.config.stages, mma_target("sm_70").async_copies) == (1, False)
    turing = deduce_mma(table(64, 64, 64), "sm_75", options=Options(tensor_core_table="auto"))
    assert (turing.config.intrinsic, turing.config.stages) == ("MMA_SYNC_F32_16x8x8_F16", 1)


def test_the_table_can_be_forbidden_and_is_off_by_default() -> None:
    on = Options(tensor_core_table="auto", forbid=frozenset({"TC"}))
    assert deduce_mma(table(64, 64, 64), "sm_80", options=on).refusals[0] == ("TC", Reason.STRATEGY_DISABLED)
    assert deduce_mma(table(64, 64, 64), "sm_80").path == "TF"
    with pytest.raises(ScheduleError, match="there is no table 'new'"):
        Options(tensor_core_table="new")
    forced = Options(tensor_core_table="auto", force_intrinsic="NV_WMMA_F32_16x16x16_F16")
    assert deduce_mma(table(64, 64, 64), "sm_80", options=forced).config.intrinsic == "NV_WMMA_F32_16x16x16_F16"
