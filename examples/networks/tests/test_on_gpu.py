"""Networks of the same layers as the examples, a few channels wide, for a GPU that the emulator plays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import tilewright  # noqa: E402
from examples.networks import bert, llama_layer, mi_lstm, mobilenet_v2, resnet, shufflenet_v1, vit  # noqa: E402
from examples.networks.initialise import initialise  # noqa: E402
from tests.covering import FULL  # noqa: E402
from tilewright.options import Options  # noqa: E402

Network = tuple[nn.Module, tuple[Tensor, ...]]


def _classified(channels: int, *layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


def _residual() -> Network:
    stem = resnet.convolution(3, 8, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
    return _classified(16, *stem, resnet.basic_block(8, 16, 2)), (torch.randn(1, 3, 20, 20),)


def _depthwise() -> Network:
    blocks = mobilenet_v2.InvertedResidual(8, 12, 2, 6), mobilenet_v2.InvertedResidual(12, 12, 1, 2)
    return _classified(12, resnet.convolution(3, 8, 3, stride=2), nn.ReLU6(), *blocks), (torch.randn(1, 3, 17, 17),)


def _groups() -> Network:
    units = shufflenet_v1.Unit(12, 48, 2, 3), shufflenet_v1.Unit(48, 48, 1, 3)
    return _classified(48, resnet.convolution(3, 12, 3, stride=2), *units), (torch.randn(1, 3, 14, 14),)


def _recurrent() -> Network:
    return mi_lstm.MiLstm(7, 24, 5), (torch.randn(2, 1, 7),)


def _tokens() -> Network:
    mask = torch.ones(1, 12, dtype=torch.int64)
    mask[:, 9:] = 0
    return bert.Bert(1, positions=12, width=32, heads=4, vocabulary=50), (torch.randint(0, 50, (1, 12)), mask)


def _patches() -> Network:
    return vit.ViT(1, width=32, heads=4, image=16, patch=8), (torch.randn(1, 3, 16, 16),)


def _decoder() -> Network:
    return llama_layer.LlamaLayer(12, width=32, heads=2, hidden=48), (torch.randn(2, 12, 32),)


NETWORKS: dict[str, Callable[[], Network]] = {
    "residual": _residual,
    "depthwise": _depthwise,
    "groups": _groups,
    "recurrent": _recurrent,
    "tokens": _tokens,
    "patches": _patches,
    "decoder": _decoder,
}
FLOATS = ("groups", "recurrent")
HALVES = ("depthwise", "tokens")  # computed in halves
BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-2}  # of the largest result: of a few layers, some hundred roundings


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in NETWORKS if FULL or name in FLOATS),
        *((name, torch.float16) for name in (*HALVES, "decoder", "residual") if FULL or name in HALVES),
    ],
)
def test_networks_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    """All with `--full`; a residual network is among those of `bench.gpu`."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module, inputs = NETWORKS[name]()
        initialise(module, {str(number): value for number, value in enumerate(inputs)})
        wanted = module.eval()(*inputs).double().numpy()
    given = tuple(value.to(dtype) if value.is_floating_point() else value for value in inputs)
    options = Options(cache=False)
    compiled = tilewright.compile(module.to(dtype), given, machine="sm_90a", device="emulator", options=options)
    found = np.asarray(compiled(*given), dtype=np.float64)
    assert abs(found - wanted).max() <= BOUNDS[dtype] * abs(wanted).max()
