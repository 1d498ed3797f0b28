"""The five networks of Table 5.1 compile, and compute what PyTorch computes in double precision; all with `--full`."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from examples.networks.tests.built import built  # noqa: E402
from tests.covering import FULL  # noqa: E402
from tilewright import Options, compile  # noqa: E402

QUICK = ("shufflenet-v1", "bert-layer", "mi-lstm-step")


@pytest.mark.parametrize("name", (*QUICK, "resnet50", "mobilenet-v1", "mobilenet-v1-separable") if FULL else QUICK)
def test_a_network_computes_what_pytorch_does(name: str) -> None:
    module, inputs = built(name)
    found = compile(module, tuple(inputs.values()), threads=1, options=Options(cache=False))(
        *(value.numpy() for value in inputs.values())
    )
    with torch.no_grad():
        expected = module.double()(*(value.double() for value in inputs.values())).numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
