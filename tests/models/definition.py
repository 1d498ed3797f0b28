"""What an entry of the list of architectures is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Built = tuple[Any, tuple[Any, ...]]  # a torch.nn.Module in evaluation mode, and tensors for its positional arguments

SEED = 0


@dataclass(frozen=True)
class Architecture:
    """A model of true structure with random weights.

    package    what must be installed to build it
    build      makes the module and its inputs; random numbers are seeded before the call
    tolerance  largest error of a result, relative to the largest magnitude of the same result in float64
    notes      how it differs from the published model: fewer layers, a smaller input
    """

    name: str
    family: str
    package: str
    build: Callable[[], Built]
    tolerance: float = 1e-4
    notes: str = ""

    def missing(self) -> str:
        """Why it cannot be built here, or ""."""
        return "" if importlib.util.find_spec(self.package) else f"{self.package} is not installed"

    def built(self) -> Built:
        """The module and its inputs, the same ones in each process."""
        import torch

        torch.manual_seed(SEED)
        module, inputs = self.build()
        module = module.eval().requires_grad_(False)
        _disturb(module)
        return module, inputs


def _disturb(module: torch.nn.Module) -> None:
    """Give biases, scales, running statistics and weights of almost 0 values of their own.

    Initial values of 0 and 1 would hide an operand that is ignored; a last layer of zeros hides all before it.
    """
    import torch

    seen = set()
    for name, values in (*module.named_parameters(), *module.named_buffers()):
        if not values.is_floating_point() or values.numel() == 0 or values.data_ptr() in seen:
            continue
        seen.add(values.data_ptr())
        trained = isinstance(values, torch.nn.Parameter)
        if name.endswith("running_var"):
            values.mul_(torch.empty_like(values).uniform_(0.8, 1.2))
        elif (trained and values.ndim <= 1) or name.endswith("running_mean"):
            values.add_(torch.randn_like(values), alpha=0.05)
        elif trained and values.std() < (spread := values[0].numel() ** -0.5) / 10:
            values.normal_(0, spread)


def image(size: int, *, batch: int = 1, channels: int = 3) -> torch.Tensor:
    """A random image, batch x channels x size x size."""
    import torch

    return torch.randn(batch, channels, size, size)


def tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    """Random token numbers below `vocabulary`."""
    import torch

    return torch.randint(0, vocabulary, shape)
