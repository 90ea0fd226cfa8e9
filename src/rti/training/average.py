"""The moving average of what trains: trainable parameters only, the frozen backbone is never copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class MovingAverage:
    """Exponential moving average of named parameters, in float32.

    Early on the decay is smaller, (1 + n) / (10 + n) after n updates, so that the first steps are soon forgotten.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float):
        self.parameters, self.decay, self.updates = parameters, decay, 0
        self.values = {name: parameter.detach().float().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        current = [parameter.detach().float() for parameter in self.parameters.values()]
        get_ema_multi_avg_fn(decay)(list(self.values.values()), current, self.updates)
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the averaged parameters, for sampling and saving; the trained ones come back, bit by bit."""
        trained = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        try:
            self._put(self.values)
            yield
        finally:
            self._put(trained)

    @torch.no_grad()
    def _put(self, values: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])
