"""Layers that both families share."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

RMSNorm = partial(nn.RMSNorm, eps=1e-6)  # torch computes it in float32 also for half-precision inputs


class PatchEmbed(nn.Module):
    """Pixels to patch tokens through a narrow bottleneck, row by row: (B, 3, H, W) -> (B, N, D).

    The release stores two convolutions whose stride is their size: each is a linear map of one patch, and runs as one.
    """

    def __init__(self, channels: int, patch_size: int, bottleneck: int, hidden_size: int):
        super().__init__()
        self.proj1 = nn.Conv2d(channels, bottleneck, patch_size, stride=patch_size, bias=False)
        self.proj2 = nn.Conv2d(bottleneck, hidden_size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not (isinstance(self.proj1, nn.Conv2d) and isinstance(self.proj2, nn.Conv2d)):  # a user's LoRA is on them
            return self.proj2(self.proj1(x.to(self.proj1.weight.dtype))).flatten(2).transpose(1, 2)
        narrow, wide = self.proj1.weight, self.proj2.weight
        batch, channels, height, width = x.shape
        size = narrow.shape[-1]
        patches = x.to(narrow.dtype).reshape(batch, channels, height // size, size, width // size, size)
        patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)
        return F.linear(F.linear(patches, narrow.flatten(1)), wide.flatten(1), self.proj2.bias)


class TimeEmbed(nn.Module):
    """Sinusoids of the time, then a small network: (B,) -> (B, D). The time is not scaled: it runs from 0 to 1."""

    FREQUENCIES = 256

    def __init__(self, hidden_size: int):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(self.FREQUENCIES, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size)
        )

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        half = self.FREQUENCIES // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        angles = t.float()[:, None] * frequencies
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.mlp[0].weight.dtype))


class FloatTable(nn.Module):
    """A constant table, computed once, that follows its module to a device but stays float32."""

    def __init__(self, values: torch.Tensor):
        super().__init__()
        self.register_buffer("values", values.float(), persistent=False)

    def _apply(self, function, recurse=True):
        self.values = self.values.to(function(self.values).device)  # the device only: neither a dtype nor emptiness
        return self

    def forward(self) -> torch.Tensor:
        return self.values


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_sizes: torch.Tensor | None = None) -> torch.Tensor:
    """Fused softmax attention, scale head_dim^-0.5: (B, L, heads, head_dim) -> (B, L, heads * head_dim).

    With `log_sizes` (B, N), of the last N tokens, each is seen as often as its size says.
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    bias = None
    if log_sizes is not None:
        bias = F.pad(log_sizes, (k.shape[2] - log_sizes.shape[1], 0)).to(q.dtype)[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)


def frequencies(count: int, span: int) -> torch.Tensor:
    """Rotary frequencies 10000^(-2i / span), float64, always made on the CPU: a table must not need a GPU."""
    return 10000.0 ** (-2.0 * torch.arange(count, dtype=torch.float64, device="cpu") / span)


def coordinates(count: int, spacing: float = 1.0) -> torch.Tensor:
    """Where the patches of one side lie: 0, 1, 2, ... A spacing of 2 puts each in the middle of two finer patches."""
    return torch.arange(count, dtype=torch.float64, device="cpu") * spacing + (spacing - 1) / 2


def grid_angles(grid: tuple[int, int], head_dim: int, spacing: float = 1.0) -> torch.Tensor:
    """Rotary angles of each patch, first those of its row, then those of its column: (1, N, head_dim / 2)."""
    rows, columns = (coordinates(side, spacing) for side in grid)
    rate = frequencies(head_dim // 4, head_dim // 2)
    by_row = (rows[:, None] * rate)[:, None].expand(-1, grid[1], -1)
    by_column = (columns[:, None] * rate)[None].expand(grid[0], -1, -1)
    return torch.cat([by_row, by_column], dim=-1).flatten(0, 1)[None]


def phasors(angles: torch.Tensor) -> torch.Tensor:
    """Angles -> [cos | sin], the form in which positions travel and are averaged."""
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def unpatchify(patches: torch.Tensor, grid: tuple[int, int], patch_size: int) -> torch.Tensor:
    """(B, N, p * p * C), each patch as (p, p, C) -> (B, C, H, W)."""
    batch = patches.shape[0]
    pixels = patches.view(batch, grid[0], grid[1], patch_size, patch_size, -1)
    return pixels.permute(0, 5, 1, 3, 2, 4).reshape(batch, -1, grid[0] * patch_size, grid[1] * patch_size)


def patchify(images: torch.Tensor, patch_size: int) -> torch.Tensor:
    """(B, C, H, W) -> (B, N, p * p * C): the inverse of `unpatchify`."""
    batch, channels, height, width = images.shape
    pixels = images.reshape(batch, channels, height // patch_size, patch_size, width // patch_size, patch_size)
    return pixels.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, patch_size * patch_size * channels)


def position_table(grid: tuple[int, int], hidden_size: int, spacing: float = 1.0) -> torch.Tensor:
    """Fixed sin-cos position of each patch, (1, N, D): half of the channels for the column, half for the row."""
    quarter = hidden_size // 4
    rate = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64, device="cpu") / quarter)
    rows, columns = (coordinates(side, spacing)[:, None] * rate for side in grid)
    by_row = torch.cat([rows.sin(), rows.cos()], dim=-1)[:, None].expand(-1, grid[1], -1)
    by_column = torch.cat([columns.sin(), columns.cos()], dim=-1)[None].expand(grid[0], -1, -1)
    return torch.cat([by_column, by_row], dim=-1).reshape(1, grid[0] * grid[1], hidden_size)


def xavier(parameter: torch.Tensor, scale: float = 1.0) -> None:
    """Uniform with the variance that keeps activations and gradients at their scale. A patch projection is a matrix."""
    fan_in, fan_out = parameter[0].numel(), len(parameter)
    bound = scale * math.sqrt(6 / (fan_in + fan_out))
    parameter.uniform_(-bound, bound)
