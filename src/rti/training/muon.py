"""Muon: momentum whose update is made orthogonal, for the matrices of a transformer.

torch.optim.Muon iterates in bfloat16, one matrix at a time, which is slow on a CPU without bfloat16 units; this one
takes matrices of one shape together, in the dtype of the weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn

# Coefficients of the quintic iteration that Muon's author fitted: they bring singular values near 1 in five rounds.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
MUON_DECAY = 0.01  # of the weights, where nothing else is asked for


def orthogonalise(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest matrices with singular values near 1: (K, m, n) -> (K, m, n)."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum. The learning rate is on AdamW's scale (updates of RMS 0.2)."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = MUON_DECAY
    ):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for shape, parameters in by_shape.items():
                for parameter in parameters:
                    self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                gradients = [parameter.grad for parameter in parameters]
                momenta = [self.state[parameter]["momentum"] for parameter in parameters]
                torch._foreach_mul_(momenta, group["momentum"])
                torch._foreach_add_(momenta, gradients)
                ahead = torch.stack(gradients) + group["momentum"] * torch.stack(momenta)
                updates = orthogonalise(ahead)
                scale = 0.2 * max(shape) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, list(updates), alpha=-group["lr"] * scale)


def split_parameters(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices inside blocks, which are Muon's, and everything else that trains, which is AdamW's."""
    trained = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    matrices = [value for name, value in trained if "blocks." in name and value.ndim == 2]
    return matrices, [value for name, value in trained if not ("blocks." in name and value.ndim == 2)]
