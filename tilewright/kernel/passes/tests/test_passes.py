"""Passes do not change what a program computes: the interpreter before and after, on random kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ModuleOp

from tests.calls import superlinear
from tests.covering import tries
from tests.random_kernels import RandomKernel, random_kernel
from tilewright.errors import InvalidArgument
from tilewright.kernel.interpreter import run_main
from tilewright.kernel.passes.gpu.forms import TILE
from tilewright.kernel.passes.table import OPTIMISATIONS, PASSES, PIPELINES, REQUIRED, WORKS_ON, run_pass, run_pipeline
from tilewright.kernel.text import parse_module, print_module


def outputs(kernel: RandomKernel, module: ModuleOp) -> list[np.ndarray]:
    arrays = kernel.outputs()
    run_main(module, kernel.inputs, arrays, races=True)
    return arrays


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, any NaN being equal to any other."""
    if a.dtype.kind == "i":
        return bool((a == b).all())
    nan = np.isnan(a)
    return bool((nan == np.isnan(b)).all() and a[~nan].tobytes() == b[~nan].tobytes())


@pytest.mark.parametrize("name", sorted(name for name in OPTIMISATIONS if WORKS_ON.get(name, (TILE, TILE))[0] == TILE))
@settings(max_examples=tries(3, full=15), deadline=None)
@given(st.integers(0, 2**32))
def test_pass_keeps_every_bit(name: str, seed: int) -> None:
    kernel = random_kernel(seed, size=25)
    expected = outputs(kernel, kernel.module)
    run_pass(kernel.module, name)
    assert all(map(same, expected, outputs(kernel, kernel.module)))


@settings(max_examples=tries(6, full=30), deadline=None)
@given(st.integers(0, 2**32), st.sets(st.sampled_from(sorted(OPTIMISATIONS)), max_size=2))
def test_pipeline_keeps_every_bit(seed: int, disable: set[str]) -> None:
    kernel = random_kernel(seed)
    expected = outputs(kernel, kernel.module)
    run_pipeline(kernel.module, disable=sorted(disable), verify_each=True)
    assert all(map(same, expected, outputs(kernel, kernel.module)))
    text = print_module(kernel.module)
    assert print_module(parse_module(text)) == text


def test_the_pipeline_gives_the_same_text_every_time() -> None:
    texts = set()
    for _ in range(3):
        module = random_kernel(7).module
        run_pipeline(module)
        texts.add(print_module(module))
    assert len(texts) == 1


def test_a_disabled_pass_does_not_run() -> None:
    text = print_module(random_kernel(3).module)
    module = parse_module(text)
    run_pipeline(module, disable=OPTIMISATIONS)
    assert print_module(module) == text
    run_pipeline(module, disable=("canonicalise", "licm", "cse"))
    assert len(print_module(module)) < len(text)


def test_unknown_names_are_errors() -> None:
    module = parse_module("tile.func @k() grid [1] { tile.return }")
    with pytest.raises(InvalidArgument, match="no pass 'unroll'"):
        run_pass(module, "unroll")
    with pytest.raises(InvalidArgument, match="no pass 'unroll'"):
        run_pipeline(module, disable=("unroll",))
    with pytest.raises(InvalidArgument, match="no pipeline for target 'tpu'"):
        run_pipeline(module, target="tpu")


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_what_later_phases_need_cannot_be_switched_off(name: str) -> None:
    module = parse_module("tile.func @k() grid [1] { tile.return }")
    with pytest.raises(InvalidArgument, match=f"pass '{name}' cannot be switched off"):
        run_pipeline(module, target="gpu", disable=(name,))


def test_names_are_unique_and_every_pass_says_what_is_legal() -> None:
    for pipeline in PIPELINES.values():
        for each in pipeline:
            assert PASSES[each.name] == each
            assert "Legal" in (type(each).__doc__ or "")
            assert "Before:" in (type(each).__doc__ or "")


def chain(count: int) -> str:
    """A kernel of `count` dependent additions in one block, all different, and as many loads."""
    lines = ["tile.func @k(%x: memref<64xf32>, %y: memref<64xf32>) grid [4] {", "%v0 = tile.program_id 0"]
    for number in range(count):
        lines.append(f"%w{number} = tile.load %x[%v{number}] strides [] : memref<64xf32> -> f32")
        lines.append(f"%v{number + 1} = arith.addi %v{number}, %v{number // 2} : index")
        lines.append(f"tile.store %w{number}, %y[%v{number}] strides [] : f32, memref<64xf32>")
    return "\n".join([*lines, "tile.return", "}"])


def test_a_program_of_twice_the_size_takes_twice_the_steps() -> None:
    programs = {count: [parse_module(chain(count)) for _ in range(2)] for count in (50, 100)}
    run_pipeline(programs[100].pop())  # what is kept from one program to the next is known then
    assert not superlinear(lambda count: run_pipeline(programs[count].pop()), 50)
