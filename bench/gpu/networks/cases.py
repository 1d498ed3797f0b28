"""The networks: plain torch modules with random weights from a seed, and one input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SEED = 0


@dataclass(frozen=True)
class Network:
    """`make` gives the module in f32; its input is `shape` for each element of the batch.

    `channels_last`: torch runs it fastest with the channels of images innermost.
    """

    name: str
    make: Callable[[], Any]
    shape: tuple[int, ...]
    channels_last: bool = False

    def module(self) -> Any:
        """The module in f16 for inference, with the same weights in every process."""
        import torch

        from examples.networks.initialise import initialise

        with torch.no_grad():
            torch.manual_seed(SEED)
            module = self.make()
            initialise(module, {"x": torch.randn(1, *self.shape)})
        return module.eval().half()

    def input(self, batch: int) -> Any:
        """A batch of random numbers in f16, the same in every process."""
        import torch

        generator = torch.Generator().manual_seed(SEED + 1)
        return torch.randn(batch, *self.shape, generator=generator).half()


def _resnet50() -> Any:
    from examples.networks.resnet import resnet50

    return resnet50()


def _bert_base() -> Any:
    from examples.networks.bert import Encoder

    return Encoder(12, one_call=True)


def _llama_layer() -> Any:
    from examples.networks.llama_layer import LlamaLayer

    return LlamaLayer(512)


def _tiny_resnet() -> Any:
    from examples.networks.resnet import bottleneck, resnet

    return resnet(bottleneck, expansion=4, blocks=(1,), width=4, classes=10)


def _tiny_bert() -> Any:
    from examples.networks.bert import Encoder

    return Encoder(1, width=32, heads=2, one_call=True)


def _tiny_llama() -> Any:
    from examples.networks.llama_layer import LlamaLayer

    return LlamaLayer(16, width=32, heads=2, hidden=48)


NETWORKS = (
    Network("resnet50", _resnet50, (3, 224, 224), channels_last=True),
    Network("bert-base-128", _bert_base, (128, 768)),
    Network("llama-layer-512", _llama_layer, (512, 4096)),
)
TINY = (
    Network("tiny-resnet", _tiny_resnet, (3, 16, 16), channels_last=True),
    Network("tiny-bert", _tiny_bert, (16, 32)),
    Network("tiny-llama", _tiny_llama, (16, 32)),
)


def networks(device: str) -> tuple[Network, ...]:
    """What there is for a GPU, or few channels and layers for the emulator."""
    return NETWORKS if device == "cuda" else TINY
