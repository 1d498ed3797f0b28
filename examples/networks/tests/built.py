"""The networks, each built once in a process: to draw and measure the weights takes longer than most tests of them."""

from __future__ import annotations

import copy
from functools import cache

from torch import Tensor, nn

from examples.networks import build

_built = cache(build)


def built(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """What `build` returns, in copies that a test may change."""
    return copy.deepcopy(_built(name))
