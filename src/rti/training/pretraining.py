"""Base training as a task: a backbone from scratch, with every parameter trainable and no interface; and its Muon."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rti.backbones.base import Backbone, Condition
from rti.checkpoint import under
from rti.flow import interpolate
from rti.loading import save_backbone
from rti.text.encoder import TextEncoder
from rti.training.config import PretrainConfig
from rti.training.draws import Draws
from rti.training.stream import DataTask, MicroBatch, Stream
from rti.training.tasks import BETAS, velocity_losses

# Coefficients of the quintic iteration that Muon's author fitted: they bring singular values near 1 in five rounds.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5


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
    """Nesterov momentum whose update is made orthogonal. The learning rate is on AdamW's scale (updates of RMS 0.2).

    torch.optim.Muon iterates in bfloat16, one matrix at a time, which is slow on a CPU without bfloat16 units; this one
    takes matrices of one shape together, in the dtype of the weights.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float | None = None):
        decay = 0.01 if weight_decay is None else weight_decay
        super().__init__(parameters, {"lr": lr, "momentum": 0.95, "weight_decay": decay})

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


class BaseObjective(nn.Module):
    """The velocity loss of a backbone alone, with its word vectors where it learns those too."""

    def __init__(self, backbone: Backbone, words: nn.Module | None):
        super().__init__()
        self.backbone, self.words = backbone, words
        self._no_split_modules = [kind.__name__ for kind in backbone.block_types]

    def forward(
        self, images: torch.Tensor, inputs: Condition | torch.Tensor, draws: Draws, once: None = None
    ) -> torch.Tensor:
        """(B, C, H, W) clean images -> (B,); `inputs` is a condition, or word ids (B, T)."""
        backbone = self.backbone
        if self.words is not None:
            states, mask = self.words.embed(inputs)
            inputs = backbone.condition(text=states, mask=mask)
        condition = inputs.where(~draws.dropped, backbone.unconditional(inputs))
        x = interpolate(images, backbone.flow.noise_scale * draws.noise, draws.t)
        return velocity_losses(backbone(x, draws.t, condition), images, draws.t, backbone.flow.time_floor)


class BaseTraining(DataTask):
    """Base training: every parameter of a backbone, and its word vectors if it has some."""

    config: PretrainConfig
    saves_frozen = True

    def __init__(self, config: PretrainConfig, backbone: Backbone, stream: Stream, encoder: TextEncoder | None = None):
        super().__init__(config, backbone, stream, encoder)
        self.words = encoder if isinstance(encoder, nn.Module) else None
        self.module = BaseObjective(backbone, self.words)
        if config.compile:
            backbone.compile_repeated_blocks()

    def inputs(self, batch: MicroBatch) -> Any:
        if self.words is None:
            return super().inputs(batch)
        return self.words.ids(batch.captions, self.backbone.config.prompt_length)

    def optimisers(self) -> list[torch.optim.Optimizer]:
        config = self.config
        decay = config.weight_decay or 0.0
        trained = {name: value for name, value in self.module.named_parameters() if value.requires_grad}
        if config.optimiser == "adamw":
            return [torch.optim.AdamW(trained.values(), lr=config.learning_rate, betas=BETAS, weight_decay=decay)]
        matrices = [name for name, value in trained.items() if "blocks." in name and value.ndim == 2]
        muon = Muon([trained.pop(name) for name in matrices], config.learning_rate, config.weight_decay)
        return [
            muon,
            torch.optim.AdamW(trained.values(), lr=config.adam_learning_rate, betas=BETAS, weight_decay=decay),
        ]

    def save(self, folder: Path, values: dict[str, torch.Tensor]) -> None:
        save_backbone(self.backbone, folder / "model", under("backbone.", values))
        if self.words is not None:
            self.words.save_pretrained(folder / "model" / "text_encoder", under("words.", values))
