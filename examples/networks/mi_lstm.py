"""MI-LSTM: an LSTM whose gates multiply what they read and what they remember (Wu et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

GATES = 4  # forget, input, output, update


class MiLstm(nn.Module):
    """`sequence` [steps, batch, inputs] → class scores [batch, classes] from the last state; steps are unrolled.

    Gate g is ``act(α_g·(W_g x)·(U_g h) + β1_g·(W_g x) + β2_g·(U_g h))``: tanh for the update, sigmoid for the others.
    """

    def __init__(self, inputs: int = 784, width: int = 1024, classes: int = 10) -> None:
        super().__init__()
        self.width = width
        self.read = nn.ModuleList(nn.Linear(inputs, width) for _ in range(GATES))
        self.remember = nn.ModuleList(nn.Linear(width, width) for _ in range(GATES))
        self.scales = nn.ParameterList(1.0 + 0.1 * torch.randn(width) for _ in range(3 * GATES))
        self.classify = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        hidden = cell = sequence.new_zeros(sequence.shape[1], self.width)
        for step in range(sequence.shape[0]):
            forget, enter, leave, update = (self._gate(gate, sequence[step], hidden) for gate in range(GATES))
            cell = forget.sigmoid() * cell + enter.sigmoid() * update.tanh()
            hidden = leave.sigmoid() * cell.tanh()
        return self.classify(hidden)  # type: ignore[no-any-return]

    def _gate(self, gate: int, x: Tensor, hidden: Tensor) -> Tensor:
        read: Tensor = self.read[gate](x)
        remembered: Tensor = self.remember[gate](hidden)
        alpha, beta_read, beta_remembered = self.scales[3 * gate : 3 * gate + 3]
        mixed: Tensor = alpha * read * remembered + beta_read * read + beta_remembered * remembered
        return mixed
