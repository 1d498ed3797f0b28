"""The networks of Table 5.1 as PyTorch modules have as many mapped operators as their tensor expressions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from examples.networks.tests.built import built  # noqa: E402
from tests.covering import FULL  # noqa: E402
from tilewright.expr.rewrites.flat_to_split import flat_to_split  # noqa: E402
from tilewright.frontend.torch import import_module  # noqa: E402
from tilewright.intrinsics.registry import standard  # noqa: E402
from tilewright.reproduce.amos.mappings import mapped  # noqa: E402

MAPPED = {
    "shufflenet-v1": 50, "resnet50": 54, "mobilenet-v1": 28, "mobilenet-v1-separable": 29, "bert-layer": 8,
    "mi-lstm-step": 9,
}  # fmt: skip


LARGE = ("resnet50", "mobilenet-v1")  # more layers of the kinds that the others have


@pytest.mark.parametrize("name", [name for name in MAPPED if FULL or name not in LARGE])
def test_spec3_g46_of_modules(name: str) -> None:
    module, inputs = built(name)
    graph = flat_to_split(import_module(module, tuple(inputs.values())))
    assert len(mapped(graph, standard().find("GEMM"))) == MAPPED[name]
