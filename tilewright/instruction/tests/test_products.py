"""The recogniser of products: the same roles of loops on every machine, what a machine refuses, and by which rule."""

from __future__ import annotations

import pytest

from tilewright.expr.core import Compute
from tilewright.expr.text import parse_compute
from tilewright.instruction.cpu_products import CpuProducts
from tilewright.instruction.gpu_products import GpuProducts
from tilewright.instruction.products import MappedProduct, Target, find_lanes, find_product
from tilewright.instruction.validation import MappingRefused
from tilewright.intrinsics.registry import standard
from tilewright.machine.description import Cpu, Gpu
from tilewright.machine.registry import resolve

SIZES = {"b": 3, "i": 70, "j": 33, "l": 5, "k": 20, "q": 9, "r": 3}


def target(name: str) -> Target:
    machine = resolve(name)
    assert isinstance(machine, Cpu | Gpu)
    return CpuProducts(standard(), machine) if isinstance(machine, Cpu) else GpuProducts(machine)


TARGETS = [pytest.param(name, id=name) for name in ("x86-64-v3", "sm_75", "sm_90a", "gfx1201")]


def names(product: MappedProduct) -> tuple[str, str, str, str]:
    roles = (product.outer, product.rows, (product.columns,), product.depth)
    return tuple("".join(axis.name for axis in axes) for axes in roles)  # type: ignore[return-value]


def found(text: str, machine: str, dtype: str = "f32") -> MappedProduct:
    product, decision = find_product(parse_compute(text, SIZES, dict.fromkeys("ABY", dtype)), target(machine))
    assert product is not None, decision and decision.explain()
    return product


def rules(node: Compute, machine: str) -> set[str]:
    """The rules by which a compute is no product of this machine."""
    product, decision = find_product(node, target(machine))
    assert product is None
    assert decision is not None
    return {refusal.rule for refusal in decision.refused}


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("Y[i,j] += A[i,k] * B[k,j]", ("", "i", "j", "k")),
        ("Y[i,j] += B[k,j] * A[i,k]", ("", "i", "j", "k")),
        ("Y[b,i,j] += A[b,i,k] * B[b,k,j]", ("b", "i", "j", "k")),
        ("Y[b,i,q,j] += A[b,i,q+r,k] * B[j,r,k]", ("", "biq", "j", "rk")),
        ("Y[i,j] += A[i,k,r] * B[k,j]", ("", "i", "j", "kr")),
    ],
)
def test_roles_of_loops_are_the_same_on_every_machine(
    text: str, roles: tuple[str, str, str, str], machine: str
) -> None:
    assert names(found(text, machine)) == roles


@pytest.mark.parametrize("machine", TARGETS)
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Y[i,j] max= A[i,k] * B[k,j]", None),
        ("Y[i,j] += A[i,k] * (B[k,j] + 1.0)", None),
        ("Y[i,j] += A[i,j,k] * B[i,j,k]", "a loop indexes b and the result alone"),
    ],
)
def test_what_is_no_product_says_by_which_rule(text: str, rule: str | None, machine: str) -> None:
    node = parse_compute(text, SIZES, dict.fromkeys("ABY", "f32"))
    product, decision = find_product(node, target(machine))
    assert product is None
    assert (decision is None) == (rule is None)
    assert rule is None or rule in rules(node, machine)


def test_a_row_alone_is_a_product_of_a_cpu_and_none_of_a_gpu() -> None:
    text = "Y[j] += A[k] * B[k,j]"
    assert names(found(text, "x86-64-v3")) == ("", "", "j", "k")
    node = parse_compute(text, SIZES, dict.fromkeys("ABY", "f32"))
    assert "a loop indexes the rows: a row alone is a reduction" in rules(node, "sm_80")


@pytest.mark.parametrize("machine", TARGETS)
def test_factors_that_a_cast_changes_are_refused(machine: str) -> None:
    node = parse_compute("Y[i,j] += i32(A[i,k]) * i32(B[k,j])", SIZES, {"A": "f32", "B": "f32", "Y": "i32"})
    assert len(rules(node, machine)) == 1


@pytest.mark.parametrize("record", ["mma_m16n8k16_f16_f32", "wgmma_m64n64k16_f16_f32", "wmma_16x16x16_f16_f32"])
def test_the_record_of_a_tile_is_validated_with_the_loops_of_the_product(record: str) -> None:
    node = parse_compute("Y[i,j] += f32(A[i,k]) * f32(B[k,j])", SIZES, {"A": "f16", "B": "f16", "Y": "f32"})
    product, _ = find_product(node, target("sm_90a"))
    assert product is not None
    running = product.on(standard().find(record))
    assert str(running.mapping) == "(i|j|k)"
    assert running.to_json()["record"] == record
    with pytest.raises(MappingRefused, match="V6"):
        product.on(standard().find("mma_m16n8k32_s8_s32"))


def test_lanes_are_a_loop_of_both_factors_or_of_one() -> None:
    node = parse_compute("Y[i,j] += A[i,j,k] * B[j,k]", SIZES, dict.fromkeys("ABY", "f32"))
    lanes, _ = find_lanes(node, target("x86-64-v3"))
    assert [(each.columns.name, each.lane_by_lane) for each in lanes] == [("j", True), ("i", False)]
    assert find_lanes(node, target("sm_80")) == ([], [])
