"""Programs in several LLVM modules: one object with the same code, whatever threads made it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tilewright.codegen.cpu import pipeline
from tilewright.codegen.cpu.merge import merged
from tilewright.codegen.cpu.tests.emulate import missing, run_aarch64
from tilewright.codegen.cpu.tests.execute import aimed, undefined_symbols
from tilewright.compiler.compile import build, compile_graph
from tilewright.expr import Graph, GraphBuilder
from tilewright.expr.evaluate import evaluate
from tilewright.expr.ops import conv, elementwise, linalg, norm
from tilewright.kernel.text import parse_module
from tilewright.machine.registry import resolve_cpu
from tilewright.options import Options

FUNCTION = 2  # type of a symbol, elf(5)
OPTIONS = Options(cache=False)


def network() -> Graph:
    """A product, a convolution and row reductions, with vector constants in their code."""
    b = GraphBuilder("network")
    x = b.input("x", (1, 5, 9, 11), "f32")
    y = conv.conv(x, b.constant(values(7, 5, 3, 3), "w"), pads=(1, 1, 1, 1))
    flat = linalg.linear(b.input("z", (13, 17), "f32"), b.constant(values(19, 17), "v"))
    return b.finish([norm.softmax(elementwise.gelu(y), axis=-1), norm.layer_norm(flat)])


def values(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@cache
def text(machine: str) -> str:
    return build(network(), resolve_cpu(machine), 1, OPTIONS).program


def program(machine: str = "host") -> ModuleOp:
    return parse_module(text(machine))


def functions(code: bytes) -> dict[str, int]:
    """Names and bytes of the functions of an ELF object."""
    (sections_at,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, sections_at + number * size) for number in range(count)]
    found = {}
    for _, kind, _, _, start, length, link, _, _, _ in sections:
        if kind == 2:
            names = sections[link][4]
            for name, type_, _, _, _, bytes_ in struct.iter_unpack("<IBBHQQ", code[start : start + length]):
                if type_ & 15 == FUNCTION:
                    found[code[names + name : code.index(b"\0", names + name)].decode()] = bytes_
    return found


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Sets the number of instructions of a module."""
    return lambda most: monkeypatch.setattr(pipeline, "INSTRUCTIONS", most)


@pytest.mark.parametrize("machine", ["host", "x86-64-v2", "aarch64"])
def test_functions_are_those_of_one_module(machine: str, modules: Callable[[int | None], None]) -> None:
    modules(None)
    whole = pipeline.generate(aimed(program(machine), machine)).code
    for most in (1, 300) if machine == "host" else (1,):
        modules(most)
        found = pipeline.generate(aimed(program(machine), machine)).code
        assert found != whole, "no module was cut"
        assert functions(found) == functions(whole)
        assert undefined_symbols(found) == []


def test_the_number_of_threads_leaves_the_code_as_it_is(modules: Callable[[int | None], None]) -> None:
    modules(1)
    found = {pipeline.generate(program(), threads).code for threads in (1, 2, 3, 8)}
    assert len(found) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_merged_code_computes_what_the_graph_says(threads: int, modules: Callable[[int | None], None]) -> None:
    modules(1)
    graph = network()
    module = compile_graph(graph, threads=threads, options=OPTIONS)
    inputs = [values(1, 5, 9, 11), values(13, 17)]
    for found, expected in zip(module(*inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert all(time.seconds > 0 for time in module.profile(*inputs))


@pytest.mark.skipif(bool(missing()), reason=f"without {missing()} AArch64 code is unverified")
def test_merged_code_of_aarch64(tmp_path: Path, modules: Callable[[int | None], None]) -> None:
    modules(1)
    artifact = build(network(), resolve_cpu("aarch64"), 1, OPTIONS)
    made = pipeline.generate(parse_module(artifact.program))
    outputs = [np.zeros(spec.shape, np.float32) for spec in artifact.manifest.outputs]
    inputs = [values(1, 5, 9, 11), values(13, 17)]
    found = run_aarch64(made, inputs, outputs, tmp_path, artifact.constants.tobytes())
    for each, expected in zip(found, compile_graph(network(), options=OPTIONS)(*inputs), strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-5)


def test_one_file_stays_as_it_is() -> None:
    assert merged([b"anything"]) == b"anything"
