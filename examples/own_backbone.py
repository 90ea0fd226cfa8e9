"""A family of your own behind the protocol: python examples/own_backbone.py

A plain class-conditional transformer over patches. Sampling, training and every reduction take it as it is.
"""

from dataclasses import dataclass

import torch
from torch import nn

import rti
from rti.backbones import Condition, FlowSettings, Tokens
from rti.backbones.layers import FloatTable, attention, grid_angles, patchify, phasors, unpatchify


@dataclass(frozen=True)
class PlainConfig:
    image_size: int = 32
    patch_size: int = 4
    hidden_size: int = 64
    num_heads: int = 4
    depth: int = 6
    num_classes: int = 10

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class PlainCondition(Condition):
    labels: torch.Tensor  # (B,)


class PlainBlock(nn.Module):
    def __init__(self, config: PlainConfig):
        super().__init__()
        width, self.heads = config.hidden_size, config.num_heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, places: torch.Tensor, log_sizes: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.proj(attention(turned(q, places), turned(k, places), v, log_sizes))
        return x + self.mlp(self.norm2(x))


def turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rotary position: (B, L, heads, head_dim), (1 or B, L, head_dim) -> (B, L, heads, head_dim)."""
    cos, sin = places[:, :, None].chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Plain(rti.Backbone):
    family = "plain"
    config_type = PlainConfig
    condition_type = PlainCondition
    conditioned_on = "labels"
    block_types = (PlainBlock,)
    lora_targets = ("qkv", "proj")

    def __init__(self, config: PlainConfig):
        super().__init__()
        self.config, self.hidden_size, self.depth = config, config.hidden_size, config.depth
        self.patch_size, self.channels = config.patch_size, 3
        self.grid = (config.image_size // config.patch_size,) * 2
        self.flow = FlowSettings(1.0, "euler", steps=20, guidance_scale=2.0, guidance_interval=(0.0, 1.0))
        pixels = 3 * config.patch_size**2
        self.patch_in, self.patch_out = nn.Linear(pixels, self.hidden_size), nn.Linear(self.hidden_size, pixels)
        self.label = nn.Embedding(config.num_classes + 1, self.hidden_size)
        self.time = nn.Linear(1, self.hidden_size)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.depth))
        self.patch_phasors = FloatTable(phasors(grid_angles(self.grid, config.head_dim)))

    def condition(self, labels: torch.Tensor) -> PlainCondition:
        return PlainCondition(labels)

    def unconditional(self, condition: PlainCondition) -> PlainCondition:
        return PlainCondition(torch.full_like(condition.labels, self.config.num_classes))

    def embed(self, x: torch.Tensor, t: torch.Tensor, condition: PlainCondition) -> Tokens:
        what = self.label(condition.labels) + self.time(t[:, None])
        return Tokens(self.patch_in(patchify(x, self.patch_size)) + what[:, None], self.patch_phasors())

    def run(self, tokens: Tokens, start: int, stop: int) -> Tokens:
        image = tokens.image
        for block in self.blocks[start:stop]:
            image = self.call_block(block, image, tokens.phasors, tokens.log_sizes)
        return tokens._replace(image=image)

    def head(self, tokens: Tokens) -> torch.Tensor:
        return unpatchify(self.patch_out(tokens.image), self.grid, self.patch_size)


if __name__ == "__main__":
    torch.manual_seed(0)
    backbone = Plain(PlainConfig())
    model = rti.attach(backbone, rti.RegionConfig(core=(1, 4), cuts="merge", cuts_from="estimate"))
    noise = torch.randn(2, 3, 32, 32)
    for budget in (64, 16):
        images = rti.sample(model, noise, model.condition(labels=torch.tensor([1, 2])), steps=4, budget=budget)
        print(f"R = {budget}: {len(images)} pictures of {tuple(images.shape[1:])}")
