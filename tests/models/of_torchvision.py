"""Architectures of torchvision: `torchvision.models.get_model`, without weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.models.definition import Architecture, Built, image


def _classifier(name: str, size: int = 224) -> Built:
    from torchvision.models import get_model

    extra = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    return get_model(name, weights=None, **extra), (image(size),)


class _Taken(nn.Module):
    """The module's results of these names, as a tuple."""

    def __init__(self, module: nn.Module, *names: str) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        found = self.module(*inputs)
        return tuple(found[name] for name in self.names)


def _segmentation(name: str, size: int) -> Built:
    from torchvision.models import get_model

    return _Taken(get_model(name, weights=None, weights_backbone=None), "out"), (image(size),)


class _Detector(nn.Module):
    """Backbone and heads of a detector: what it computes before boxes are chosen."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.head(list(self.backbone(x).values())).values())


def _detector(name: str, size: int) -> Built:
    from torchvision.models import get_model

    return _Detector(get_model(name, weights=None, weights_backbone=None)), (image(size),)


def _video(name: str, frames: int, size: int) -> Built:
    from torchvision.models import get_model

    return get_model(name, weights=None), (torch.randn(1, 3, frames, size, size),)


class _Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import get_model

        self.model = get_model("raft_small", weights=None)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.model(first, second, num_flow_updates=2)[-1]


def _flow() -> Built:
    return _Flow(), (image(128), image(128))


def _entry(name: str, build: Callable[[], Built], notes: str = "") -> Architecture:
    return Architecture(name, "torchvision", "torchvision", build, notes=notes)


_CLASSIFIERS = (
    *("alexnet", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "densenet121", "googlenet"),
    *("mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "shufflenet_v2_x1_0", "squeezenet1_1"),
    *("efficientnet_b0", "efficientnet_v2_s", "regnet_x_400mf", "regnet_y_400mf", "convnext_tiny"),
    *("swin_t", "swin_v2_t", "vit_b_32", "maxvit_t", "mnasnet1_0"),
)

ARCHITECTURES = [
    *(_entry(name, partial(_classifier, name)) for name in _CLASSIFIERS),
    _entry("inception_v3", partial(_classifier, "inception_v3", 299)),
    _entry("fcn_resnet50", partial(_segmentation, "fcn_resnet50", 128), "image of 128"),
    _entry("deeplabv3_mobilenet_v3_large", partial(_segmentation, "deeplabv3_mobilenet_v3_large", 224)),
    _entry("lraspp_mobilenet_v3_large", partial(_segmentation, "lraspp_mobilenet_v3_large", 224)),
    _entry("ssdlite320_mobilenet_v3_large", partial(_detector, "ssdlite320_mobilenet_v3_large", 320), "no boxes"),
    _entry("ssd300_vgg16", partial(_detector, "ssd300_vgg16", 300), "no boxes"),
    _entry("retinanet_resnet50_fpn", partial(_detector, "retinanet_resnet50_fpn", 128), "image of 128, no boxes"),
    _entry("r3d_18", partial(_video, "r3d_18", 8, 64), "8 frames of 64"),
    _entry("s3d", partial(_video, "s3d", 16, 224), "16 frames"),
    _entry("mvit_v1_b", partial(_video, "mvit_v1_b", 16, 224)),
    _entry("raft_small", _flow, "images of 128, two updates"),
]
