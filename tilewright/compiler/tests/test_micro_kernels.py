"""Registered bodies of micro-kernels: proven against the record, chosen where they fit, refused if they are wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.codegen.cpu import dot
from tilewright.codegen.values import intrinsic, lanes_of, splat
from tilewright.compiler import micro_kernels
from tilewright.compiler.micro_kernels import WrongMicroKernel, register
from tilewright.errors import CompileError, InvalidIntrinsic
from tilewright.expr.graph import Graph, GraphBuilder
from tilewright.expr.ops import linalg
from tilewright.intrinsics.composite import outer
from tilewright.intrinsics.intrinsic import Intrinsic
from tilewright.intrinsics.portable import multiply_add
from tilewright.intrinsics.registry import catalogue, standard
from tilewright.kernel.text import parse_module, print_module
from tilewright.machine import host
from tilewright.options import Options

Rows = Sequence[Sequence[Any]]

LANES = host().vector_bits // 32
BASE = next(
    each
    for each in catalogue(host().architecture)
    if each.emitter == "fma" and not each.realised_by and each.destination.dtype == "f32"
    and each.extents == {"i2": LANES} and not each.sources[0].loops
)  # fmt: skip
ROWS, REGISTERS = 4, 2


def pairs(at: Any, a: Any, b: Any, c: Rows) -> Rows:
    """Rows two by two, each with its scalar broadcast before the multiply-adds of both (spec 1, section 4.2)."""
    rows = [list(row) for row in c]
    for step, load in enumerate(b):
        registers = load()
        for first in range(0, len(rows), 2):
            spread = [splat(at.builder, a(m, step), LANES) for m in (first, first + 1)]
            for m, scalar in enumerate(spread, first):
                for n, register_ in enumerate(registers):
                    name = f"llvm.fma.v{lanes_of(register_)}f32"
                    rows[m][n] = intrinsic(at.builder, name, register_.type, [scalar, register_, rows[m][n]])
    return rows


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No body outlives its test."""
    before = dict(dot.BODIES)
    yield
    dot.BODIES.clear()
    dot.BODIES.update(before)


def product(m: int, n: int, k: int = 20) -> Graph:
    b = GraphBuilder("product")
    return b.finish([linalg.matmul(b.input("a", (m, k), "f32"), b.input("b", (k, n), "f32"), name="y")])


def compiled(graph: Graph, kernel: Intrinsic) -> tilewright.Module:
    """With this micro-kernel and no other shape of register tiles."""
    registry = standard().without(*(each.name for each in standard().made_of(BASE.name))).add(kernel)
    return tilewright.compile(graph, threads=1, options=Options(intrinsics=registry, cache=False))


@pytest.mark.parametrize("beyond", [0, 3])
def test_a_body_is_chosen_where_its_shape_fits(beyond: int) -> None:
    """Of ragged tiles, which have another shape, the mapping makes the body."""
    calls = []

    def counted(*arguments: Any) -> Rows:
        calls.append(arguments)
        return pairs(*arguments)

    kernel = register("pairs", BASE, ROWS, REGISTERS, counted)
    assert kernel.name == f"pairs_{ROWS}x{REGISTERS}x1_{BASE.name}"
    assert kernel.extents == {"i1": ROWS, "i2": REGISTERS * LANES, "r1": 1}
    calls.clear()
    m, n = 4 * ROWS, 2 * REGISTERS * LANES + beyond
    module = compiled(product(m, n), kernel)
    explained = module.explain(all=True)
    if not beyond or f"{ROWS} rows by {REGISTERS} vectors" in explained:
        assert {(len(c), len(c[0])) for _, _, _, c in calls} == {(ROWS, REGISTERS)}
        assert f"micro-kernel of y: the registered body of {kernel.name}" in explained
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, shape).astype(np.float32) for shape in ((m, 20), (20, n)))
    np.testing.assert_array_equal(module(a, b), a @ b)


def test_a_body_of_several_steps_leaves_the_rest_to_the_mapping() -> None:
    kernel = register("pairs", BASE, ROWS, REGISTERS, pairs, steps=3)
    module = compiled(product(ROWS, REGISTERS * LANES, 11), kernel)
    a, b = np.ones((ROWS, 11), np.float32), np.ones((11, REGISTERS * LANES), np.float32)
    np.testing.assert_array_equal(module(a, b), a @ b)


def test_without_the_record_nothing_changes() -> None:
    graph = product(8, 2 * LANES)
    before = tilewright.compile(graph, threads=1, options=Options(cache=False))
    register("pairs", BASE, ROWS, REGISTERS, pairs)
    after = tilewright.compile(graph, threads=1, options=Options(cache=False))
    assert after.artifact.code == before.artifact.code
    assert "registered body" not in after.explain(all=True)


def test_the_program_has_all_that_code_generation_needs() -> None:
    """Its text has the record; where the body is not registered, the mapping makes it."""
    from tilewright.codegen.cpu.pipeline import generate

    kernel = register("pairs", BASE, ROWS, REGISTERS, pairs)
    module = compiled(product(8, 2 * LANES), kernel)
    program = parse_module(module.artifact.program)
    assert kernel.emitter in print_module(program)
    with_it = generate(program).code
    assert with_it == module.artifact.code
    dot.BODIES.clear()
    assert generate(parse_module(module.artifact.program)).code


def test_names_are_the_same_in_each_process() -> None:
    """Constants of a body may be functions, whose text has an address."""
    source = "def body(at, a, b, c):\n    return [[(lambda x: x)(each) for each in row] for row in c]\n"
    found = []
    for _ in range(2):
        space: dict[str, Any] = {}
        exec(source, space)
        found.append(micro_kernels._digest(space["body"], "kernel"))
    assert found[0] == found[1]


def test_bodies_of_one_factory_have_digests_of_their_own() -> None:
    """The second of them took the place of the first one, which was proven with another number."""

    def body_of(rows: int) -> dot.Body:
        def body(at: Any, a: Any, b: Any, c: Any) -> Any:
            assert len(c) == rows
            return pairs(at, a, b, c)

        return body

    tall = register("made", BASE, ROWS, REGISTERS, body_of(ROWS))
    short = register("made", BASE, 2, REGISTERS, body_of(2))
    assert len({tall.emitter, short.emitter}) == 2
    digests = [micro_kernels._digest(body_of(rows), "made") for rows in (1, 2, 2)]
    assert digests[0] != digests[1] == digests[2]
    given_rows = [partial(pairs, number) for number in (1, 2)]  # type: ignore[call-arg]
    assert len({micro_kernels._digest(each, "made") for each in given_rows}) == 2


def test_a_digest_does_not_depend_on_the_order_of_a_set() -> None:
    program = (
        "from tilewright.compiler.micro_kernels import _digest\n"
        "def body(x):\n    return x in {'aa', 'bb', 'cc', 'dd'}\n"
        "print(_digest(body, 'made'))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, BASE, ROWS, REGISTERS), "None is no name"),
        (("made", "abc", ROWS, REGISTERS), "base is a str"),
        (("made", BASE, "2", REGISTERS), "'2' rows"),
    ],
)
def test_arguments_of_other_types_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        register(*arguments, pairs)
    assert caught.value.help


def test_a_body_without_a_digest_is_refused() -> None:
    state = object()
    with pytest.raises(WrongMicroKernel, match="its body holds a value of type object") as caught:
        register("made", BASE, ROWS, REGISTERS, lambda at, a, b, c: pairs(at, a, b, c) if state else c)
    assert caught.value.help


def test_a_changed_body_is_another_emitter() -> None:
    first = register("pairs", BASE, ROWS, REGISTERS, pairs)
    again = register("pairs", BASE, ROWS, REGISTERS, pairs)
    other = register("pairs", BASE, ROWS, REGISTERS, lambda at, a, b, c: pairs(at, a, b, c))
    assert first == again
    assert first.emitter != other.emitter


@pytest.mark.skipif("avx512vnni" not in host().features, reason="vpdpbusd of 16 lanes")
def test_a_body_of_words() -> None:
    base = standard().find("vpdpbusd_16x4_u8s8_s32")

    def words(at: Any, a: Any, b: Any, c: Rows) -> Rows:
        step = dot.product_of_record(base)
        rows = [list(row) for row in c]
        for number, load in enumerate(b):
            for n, vector in enumerate(load()):
                for m in range(len(rows)):
                    rows[m][n] = step.step(at, step.broadcast(at, a(m, number), 16), vector, rows[m][n])
        return rows

    kernel = register("words", base, 3, 2, words)
    assert kernel.extents == {"i1": 3, "i2": 32, "r1": 4}

    def turned(at: Any, a: Any, b: Any, c: Rows) -> Rows:
        return words(at, lambda m, step: a(2 - m, step), b, c)

    with pytest.raises(WrongMicroKernel, match=r"Dst\[i1=0, i2=0\] is"):
        register("turned", base, 3, 2, turned)


# Wrong ones -----------------------------------------------------------------------------------------------------------


def swapped(at: Any, a: Any, b: Any, c: Rows) -> Rows:
    first, second, *rest = pairs(at, a, b, c)
    return [second, first, *rest]


def forgets_sums(at: Any, a: Any, b: Any, c: Rows) -> Rows:
    from llvmlite import ir

    return pairs(at, a, b, [[ir.Constant(each.type, [0.0] * LANES) for each in row] for row in c])


def flushes(at: Any, a: Any, b: Any, c: Rows) -> Rows:
    """Right for numbers; a NaN is lost."""
    rows = pairs(at, a, b, c)
    return [
        [
            at.builder.select(at.builder.fcmp_ordered("ord", each, each), each, old)
            for each, old in zip(row, before, strict=True)
        ]
        for row, before in zip(rows, c, strict=True)
    ]


def too_few(at: Any, a: Any, b: Any, c: Rows) -> Rows:
    return pairs(at, a, b, c)[:-1]


def fails(at: Any, a: Any, b: Any, c: Rows) -> Rows:
    return [[at.builder.nothing()] for _ in c]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (swapped, r"Dst\[i1=0, i2=0\] is -?\d+, and not -?\d+; \d+ of \d+ elements differ"),
        (forgets_sums, r"Dst\[i1=0, i2=\d+\] is -?\d+, and not -?\d+"),
        (flushes, r"and not nan"),
        (too_few, r"gives 3 rows of 2, 2, 2 registers"),
        (fails, r"its body fails: .*nothing"),
    ],
)
def test_a_wrong_body_is_refused(body: dot.Body, message: str) -> None:
    with pytest.raises(WrongMicroKernel, match=message) as caught:
        register("wrong", BASE, ROWS, REGISTERS, body)
    assert caught.value.where.startswith("wrong_4x2x1_")
    assert caught.value.help
    assert not any(name.startswith("wrong") for name in dot.BODIES)


def test_what_cannot_be_tested_is_refused() -> None:
    foreign = next(
        each for each in standard() if each.target == "arm" and each.emitter == "fma" and not each.realised_by
    )
    with pytest.raises(CompileError) as caught:
        register("pairs", foreign, ROWS, REGISTERS, pairs)
    assert "cannot be tested on this machine" in caught.value.message or "no 2 registers" in caught.value.message


def test_registers_of_another_width_are_refused() -> None:
    narrow = next(
        each
        for each in catalogue(host().architecture)
        if each.emitter == "fma" and not each.realised_by and each.extents == {"i2": 4} and not each.sources[0].loops
    )
    with pytest.raises(WrongMicroKernel, match="tiles of this machine have no 4 registers of 4 elements"):
        register("pairs", narrow, 4, 4, pairs)


def test_names_and_bases() -> None:
    with pytest.raises(InvalidIntrinsic, match="'6x4' is no name of a micro-kernel"):
        register("6x4", BASE, ROWS, REGISTERS, pairs)
    mute = next(each for each in standard() if not each.emitter)
    with pytest.raises(InvalidIntrinsic, match="is not emitted"):
        register("pairs", mute, ROWS, REGISTERS, pairs)


def test_the_cache_tells_records_of_one_name_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is emitted for a record follows from its fields, which decisions of a plan do not show."""
    added = dot.Product(
        1, dot.PRODUCTS["fma"].broadcast, dot.PRODUCTS["fma"].ready, lambda at, a, b, c: at.builder.fadd(b, c)
    )
    monkeypatch.setitem(dot.PRODUCTS, "adds only", added)
    codes = []
    for emitter in ("fma", "adds only"):
        record = replace(multiply_add(LANES, "f32", "f32", "f32", family="mine"), emitter=emitter, llvm="")
        registry = standard().add(outer(record, ROWS, REGISTERS), record)
        options = Options(intrinsics=registry, cache=True, cache_dir=tmp_path)
        codes.append(tilewright.compile(product(8, 2 * LANES), threads=1, options=options).artifact.code)
    assert codes[0] != codes[1]
