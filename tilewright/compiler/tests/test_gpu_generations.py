"""Graphs on the newest GPUs: run by the emulator without diagnostics, assembled by ptxas, against the evaluator."""

from __future__ import annotations

import pytest

from tilewright.codegen.nvptx.target import TRIPLE
from tilewright.compiler.tests.test_gpu_products import check, products, ptx
from tilewright.compiler.tests.test_gpu_routes import product
from tilewright.expr.ops import elementwise, norm
from tilewright.machine import Gpu, names, resolve

NEWEST = ("sm_90", "sm_100a", "sm_103a", "sm_120a")
INSTRUCTIONS = {
    "f16": ("mma_m16n8k16_f16_f32",), "bf16": ("mma_m16n8k16_bf16_f32",), "i8": ("mma_m16n8k32_s8_s32",),
    "f64": ("mma_m16n8k16_f64_f64", "mma_m16n8k8_f64_f64", "mma_m16n8k4_f64_f64"),
}  # fmt: skip


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", NEWEST)
@pytest.mark.parametrize("dtype", INSTRUCTIONS)
def test_products_run_on_mma_sync(machine: str, dtype: str) -> None:
    module = check(product(dtype, (40, 33, 48)), machine)
    found = resolve(machine)
    legal = [name for name in INSTRUCTIONS[dtype] if name in found.intrinsics] or ["fma"]
    assert products(module)[0]["instruction"] in legal
    assert f".target {machine}" in ptx(module)


@pytest.mark.parametrize("machine", NEWEST)
def test_maps_and_rows(machine: str) -> None:
    module = check(lambda b: norm.softmax(elementwise.gelu(b.input("x", (5, 37), "f32"))), machine)
    assert f".target {machine}" in ptx(module)


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("sm_")])
def test_the_target_is_the_machine_that_was_named(name: str) -> None:
    machine = resolve(name)
    assert isinstance(machine, Gpu)
    assert (machine.llvm.triple, machine.llvm.cpu) == (TRIPLE, name)
