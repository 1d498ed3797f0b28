"""A pass that runs twice does what it does once; one that is asked for where it cannot work says so."""

from __future__ import annotations

from functools import cache

import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.covering import FULL
from tests.working_passes import changes
from tilewright.codegen.gpu.target import GpuTarget, described
from tilewright.errors import InvalidProgram
from tilewright.kernel.passes.gpu.distribution.tests import programs
from tilewright.kernel.passes.gpu.forms import LAYOUTS, TILE
from tilewright.kernel.passes.table import PIPELINES, WORKS_ON, pipeline, run_pass
from tilewright.kernel.target import ATTRIBUTE
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine.description import Gpu
from tilewright.machine.registry import resolve

TF32 = ((40, 40, 68), (32, 32, 16), "mma_m16n8k8_tf32_f32", "f32", "b")
PROGRAMS = {
    "product": programs.matmul((64, 64, 128), (32, 32, 32)),
    "ragged product": programs.ragged_matmul((40, 24, 48), (32, 16, 32)),
    "product of four warps": programs.matmul((128, 128, 128), (64, 64, 32), "wgmma_m64n64k16_f16_f32"),
    "product of tf32": programs.ragged_matmul(*TF32),
    "three products of tf32": programs.ragged_matmul(*TF32, precision="tf32x3"),
    "softmax": programs.softmax(3, 2, 128),
    "attention": programs.attention((2, 32, 32), (16, 16)),
    "attention of four warps": programs.attention(
        (1, 256, 64), (64, 64), (4, 1), False, "wgmma_m64n{n}k16_{dtype}_f32"
    ),
}
CASES = (
    ("product", "sm_75"), ("product", "sm_90a"), ("ragged product", "sm_80"), ("softmax", "sm_75"),
    ("product of four warps", "sm_80"), ("product of four warps", "sm_90a"), ("attention", "sm_80"),
    ("product of tf32", "sm_80"), ("three products of tf32", "sm_80"), ("attention of four warps", "sm_90a"),
    *((("product", "sm_80"), ("ragged product", "sm_75"), ("ragged product", "sm_90a")) if FULL else ()),
)  # fmt: skip
SETTINGS = {
    "split-k": {"splits": 2}, "multicast": {"cluster": 2}, "swizzle-blocks": {"group": 2}, "persistent": {"blocks": 3}
}  # fmt: skip
"""Such that small kernels are split, shared, ordered and kept, too."""


def targeted(text: str, machine: str) -> ModuleOp:
    found, module = resolve(machine), parse_module(text)
    assert isinstance(found, Gpu)
    module.attributes[ATTRIBUTE] = GpuTarget(*described(found)).attribute()
    return module


CHANGED: set[str] = set()
"""Passes that made another text of one of the programs so far."""


@cache
def steps(name: str, machine: str) -> tuple[tuple[str, bool], ...]:
    """The passes that change the program, in order, and whether each changes it again when it runs another time."""
    module, found = targeted(PROGRAMS[name], machine), []
    for each in pipeline("gpu", options=SETTINGS):
        before = None if each.name in CHANGED else print_module(module)
        if not changes(each, module):
            continue
        if before is not None and print_module(module) != before:
            CHANGED.add(each.name)
        found.append((each.name, changes(each, module)))
    return tuple(found)


@pytest.mark.parametrize(("name", "machine"), CASES)
def test_twice_is_once(name: str, machine: str) -> None:
    """The other time makes nothing anew, not even as it was."""
    assert [each for each, again in steps(name, machine) if again] == []


def test_every_pass_of_gpus_changes_one_of_these_programs() -> None:
    """So that the test above says something of each."""
    for case in CASES:
        steps(*case)
    others = {"pad-tiles", "hoist-accumulators", "tensor-stores", "prefetch-fragments"}
    assert {each.name for each in PIPELINES["gpu"]} - others <= CHANGED


@pytest.mark.parametrize("name", sorted(WORKS_ON))
def test_a_pass_that_is_named_wants_a_form_that_it_works_on(name: str) -> None:
    """In a pipeline, kernels in other forms are left alone."""
    first, last = WORKS_ON[name]
    tile, layouts, distributed = (parse_module(PROGRAMS["product"]) for _ in range(3))
    for module in (layouts, distributed):
        run_pass(module, "assign-layouts")
    run_pass(distributed, "distribute")
    for form, module in enumerate((tile, layouts, distributed)):
        before = print_module(module)
        if first <= form <= last:
            run_pass(module, name)
            continue
        maker = "(assign-layouts|distribute)"
        advice = f"run {maker} first" if form < first else f"run it before {maker}"
        with pytest.raises(InvalidProgram, match=f"pass '{name}' works on (.|\n)* kernel k is in (.|\n)*{advice}"):
            run_pass(module, name)
        assert print_module(module) == before


def test_the_advice_of_a_pass_in_the_wrong_form_helps() -> None:
    module = parse_module(PROGRAMS["product"])
    with pytest.raises(InvalidProgram, match=r"works on tile form with layouts(.|\n)*run assign-layouts first"):
        run_pass(module, "pipeline-loads")
    run_pass(module, "assign-layouts")
    run_pass(module, "pipeline-loads")
    assert "tile.stage" in print_module(module)


@pytest.mark.parametrize(
    ("text", "name", "legal"),
    [
        ("product", "split-k{splits=100}", "Legal for a kernel with one loop"),
        ("softmax", "split-k{splits=2}", "Legal for a kernel with one loop"),
        ("softmax", "swizzle-blocks{group=4}", "Legal for any grid"),
        ("product", "multicast{cluster=2}", "Legal for kernels with circular buffers"),
        ("product", "pipeline-tensor-copies{stages=3}", "Legal for circular buffers of one slot"),
    ],
)
def test_settings_that_change_nothing_are_told(text: str, name: str, legal: str) -> None:
    with pytest.raises(InvalidProgram, match=f"pass '{name}' changes nothing here\n  = help: {legal}"):
        run_pass(parse_module(PROGRAMS[text]), name)


@pytest.mark.parametrize("name", ["split-k{splits=1}", "swizzle-blocks{group=1}", "split-k", "split-k{}", "persistent"])
def test_passes_that_are_off_or_as_usual_may_change_nothing(name: str) -> None:
    module = parse_module(PROGRAMS["softmax"])
    before = print_module(module)
    run_pass(module, name)
    assert print_module(module) == before


def test_forms_are_of_passes_that_there_are() -> None:
    assert WORKS_ON.keys() <= {each.name for each in PIPELINES["gpu"]}
    assert WORKS_ON["assign-layouts"] == (TILE, LAYOUTS)
