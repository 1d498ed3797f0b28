"""Random weights under which activations neither vanish nor explode."""

from __future__ import annotations

import torch
from torch import nn


def initialise(module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Fill `module` in place from torch's random state, then run it once to set the statistics of its batch norms.

    Every product keeps the variance of what it reads (He et al. 2015 for convolutions, 1/fan_in for linear layers);
    norms get scales around 1 and small offsets, so that folding them into a neighbour changes every weight.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        elif isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight)
        elif isinstance(layer, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
        else:
            continue
        bias = getattr(layer, "bias", None)
        if bias is not None:
            nn.init.normal_(bias, std=0.1)
    _measure_batch_norms(module, inputs)


def _measure_batch_norms(module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = 1.0  # the statistics of the next batch replace the old ones
    module.train()
    module(*inputs.values())
    for norm in norms:
        norm.momentum = 0.1
