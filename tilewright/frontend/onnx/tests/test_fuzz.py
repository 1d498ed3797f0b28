"""Damaged models: every outcome is a graph or a CompileError. `--full` tries a hundred times as many."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("onnx")

import onnx

from tests.covering import tries
from tilewright.errors import CompileError
from tilewright.frontend.onnx import import_model
from tilewright.frontend.onnx.tests.conformance import cases

TRIES = tries(250, full=50_000)
ABSURD = (0, 1, -1, 2, 3, -2, 7, 1 << 20, 1 << 31, 1 << 40, 1 << 60, -(1 << 63), (1 << 63) - 1)


@pytest.fixture(scope="module")
def models() -> list[Any]:
    return [case.model for case in cases(every=3)]


def damaged_bytes(rng: random.Random, model: Any) -> bytes:
    """The file with bytes changed, removed, inserted, or its end cut off."""
    content = bytearray(model.SerializeToString())
    if rng.random() < 0.2:
        return bytes(content[: rng.randrange(len(content))])
    for _ in range(rng.choice([1, 2, 4, 16])):
        place = rng.randrange(len(content) + 1)
        content[place : place + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
    return bytes(content)


def change_attribute(rng: random.Random, model: Any) -> None:
    attributes = [attribute for node in model.graph.node for attribute in node.attribute]
    if attributes:
        attribute = rng.choice(attributes)
        attribute.i = rng.choice(ABSURD)
        attribute.f = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30])
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(ABSURD)


def drop_attribute(rng: random.Random, model: Any) -> None:
    node = rng.choice(model.graph.node)
    if node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def change_inputs(rng: random.Random, model: Any) -> None:
    node = rng.choice(model.graph.node)
    if node.input and rng.random() < 0.5:
        del node.input[-1]
    elif node.input and model.graph.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(model.graph.input).name


def change_shape(rng: random.Random, model: Any) -> None:
    dims = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    if dims:
        rng.choice(dims).dim_value = rng.choice(ABSURD)


def change_element_type(rng: random.Random, model: Any) -> None:
    if model.graph.input:
        rng.choice(model.graph.input).type.tensor_type.elem_type = rng.choice([0, 1, 6, 7, 9, 10, 11, 16, 17, 99])


def change_version(rng: random.Random, model: Any) -> None:
    for opset in model.opset_import:
        opset.version = rng.choice([-1, 0, 1, 7, 12, 13, 17, 18, 21, 28, 99])


DAMAGES: tuple[Callable[[random.Random, Any], None], ...] = (
    change_attribute, drop_attribute, change_inputs, change_shape, change_element_type, change_version,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["bytes", "model"])
def test_damaged_models_never_crash(models: list[Any], kind: str) -> None:
    imported = 0
    for seed in range(TRIES):
        rng = random.Random(seed)
        model = rng.choice(models)
        if kind == "bytes":
            source: Any = damaged_bytes(rng, model)
        else:
            source = onnx.ModelProto()
            source.CopyFrom(model)
            for _ in range(rng.choice([1, 1, 2, 3])):
                rng.choice(DAMAGES)(rng, source)
        imported += survives(source, seed)
    assert imported > 0


def survives(source: Any, seed: int) -> bool:
    """Is the source imported? Anything but a CompileError fails the test with its seed."""
    try:
        import_model(source)
    except CompileError:
        return False
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return True
