"""JiT: class-conditional generation in pixel space, adaLN blocks, in-context class tokens from a middle block on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rti.backbones import layers
from rti.backbones.base import MOST_BLOCKS, WIDEST, Backbone, Condition, FlowSettings, Tokens, check_table, grid_of
from rti.backbones.layers import FloatTable, PatchEmbed, RMSNorm, TimeEmbed, attention
from rti.errors import InputError, check_finite, check_whole


@dataclass(frozen=True)
class JiTConfig:
    """Names of the release's constructor; then how it samples, and one of ours, for models trained otherwise."""

    input_size: int | tuple[int, int] = 256
    patch_size: int = 16
    in_channels: int = 3
    hidden_size: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_ratio: float = 4.0
    bottleneck_dim: int = 128
    in_context_len: int = 32
    in_context_start: int = 4
    num_classes: int = 1000
    noise_scale: float = 1.0
    t_eps: float = 0.05
    num_sampling_steps: int = 50
    cfg: float = 3.0
    cfg_interval: tuple[float, float] = (0.1, 1.0)
    patch_spacing: float = 1.0  # distance of neighbouring patches in the position tables, for training at half size

    def __post_init__(self):
        for name in ("in_channels", "hidden_size", "num_heads", "bottleneck_dim", "num_classes"):
            check_whole(name, getattr(self, name), WIDEST)
        check_whole("depth", self.depth, MOST_BLOCKS)
        check_finite("mlp_ratio", self.mlp_ratio)
        check_finite("patch_spacing", self.patch_spacing, above=0)
        if self.hidden_size % self.num_heads or (self.hidden_size // self.num_heads) % 4:
            raise InputError(
                f"hidden_size {self.hidden_size} must be {self.num_heads} heads of a multiple of 4 channels"
            )
        for name in ("in_context_len", "in_context_start"):
            check_whole(name, getattr(self, name), WIDEST, least=0)
        rows, columns = grid_of(self.input_size, self.patch_size)
        check_table("patches", rows * columns, self.hidden_size)
        check_table("in_context_len", self.in_context_len, self.hidden_size)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def mlp_width(self) -> int:
        return int(int(self.hidden_size * self.mlp_ratio) * 2 / 3)


@dataclass(frozen=True)
class LabelCondition(Condition):
    labels: torch.Tensor  # (B,) int64; num_classes is the null class
    more: torch.Tensor | None = None  # (B, 1, D) one more in-context token


def rotate(x: torch.Tensor, phasors: torch.Tensor) -> torch.Tensor:
    """Rotary position, interleaved convention: elements 2i and 2i + 1 turn together.

    (B, L, heads, head_dim), (1 or B, L, head_dim) -> (B, L, heads, head_dim).
    """
    cos, sin = phasors[:, :, None].chunk(2, dim=-1)
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * (1 + scale) + shift


class Attention(nn.Module):
    def __init__(self, config: JiTConfig):
        super().__init__()
        self.heads = config.num_heads
        self.q_norm, self.k_norm = RMSNorm(config.head_dim), RMSNorm(config.head_dim)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: torch.Tensor, phasors: torch.Tensor, log_sizes: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return self.proj(attention(rotate(self.q_norm(q), phasors), rotate(self.k_norm(k), phasors), v, log_sizes))


class SwiGLU(nn.Module):
    def __init__(self, hidden_size: int, width: int):
        super().__init__()
        self.w12 = nn.Linear(hidden_size, 2 * width)
        self.w3 = nn.Linear(width, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(gate) * value)


class Block(nn.Module):
    """Attention and MLP, each shifted, scaled and gated by the time and the class (adaLN)."""

    def __init__(self, config: JiTConfig):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(config.hidden_size), RMSNorm(config.hidden_size)
        self.attn = Attention(config)
        self.mlp = SwiGLU(config.hidden_size, config.mlp_width)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(config.hidden_size, 6 * config.hidden_size))

    def forward(
        self,
        x: torch.Tensor,
        time_and_class: torch.Tensor,
        phasors: torch.Tensor,
        log_sizes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(time_and_class)[:, None].chunk(6, dim=-1)
        x = x + gate1 * self.attn(modulate(self.norm1(x), shift1, scale1), phasors, log_sizes)
        return x + gate2 * self.mlp(modulate(self.norm2(x), shift2, scale2))


class Head(nn.Module):
    def __init__(self, config: JiTConfig):
        super().__init__()
        self.norm_final = RMSNorm(config.hidden_size)
        self.linear = nn.Linear(config.hidden_size, config.patch_size**2 * config.in_channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(config.hidden_size, 2 * config.hidden_size))

    def forward(self, x: torch.Tensor, time_and_class: torch.Tensor) -> torch.Tensor:
        shift, scale = self.adaLN_modulation(time_and_class)[:, None].chunk(2, dim=-1)
        return self.linear(modulate(self.norm_final(x), shift, scale))


class JiT(Backbone):
    family = "jit"
    config_type = JiTConfig
    config_marker = "bottleneck_dim"
    weight_marker = "y_embedder.embedding_table.weight"
    weight_prefix = "net."
    condition_type = LabelCondition
    conditioned_on = "labels"
    block_types = (Block,)
    lora_targets = ("attn.qkv", "attn.proj", "mlp.w12", "mlp.w3")
    lora_targets += ("final_layer.linear", "final_layer.adaLN_modulation.1")

    def __init__(self, config: JiTConfig):
        super().__init__()
        self.config = config
        self.hidden_size, self.depth = config.hidden_size, config.depth
        self.patch_size, self.channels = config.patch_size, config.in_channels
        self.grid = grid_of(config.input_size, config.patch_size)
        guidance = config.cfg, tuple(config.cfg_interval)
        self.flow = FlowSettings(config.noise_scale, "heun", config.num_sampling_steps, *guidance, config.t_eps)

        self.x_embedder = PatchEmbed(config.in_channels, config.patch_size, config.bottleneck_dim, config.hidden_size)
        self.t_embedder = TimeEmbed(config.hidden_size)
        # Not initialised: on the meta device that would import torch's compiler, a second or two for nothing.
        table = torch.empty(config.num_classes + 1, config.hidden_size)
        self.y_embedder = nn.ModuleDict({"embedding_table": nn.Embedding.from_pretrained(table, freeze=False)})
        self.pos_embed = nn.Parameter(torch.zeros(1, self.patches, config.hidden_size), requires_grad=False)
        if config.in_context_len:
            self.in_context_posemb = nn.Parameter(torch.zeros(1, config.in_context_len, config.hidden_size))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_layer = Head(config)

        angles = layers.grid_angles(self.grid, config.head_dim, config.patch_spacing)
        self.patch_phasors = FloatTable(layers.phasors(angles))
        origin = torch.zeros(1, 1, config.head_dim // 2, device="cpu")  # of every in-context token
        self.in_context_phasors = FloatTable(layers.phasors(origin))

    @classmethod
    def known_sizes(cls, state: dict[str, torch.Tensor], settings: dict[str, Any]) -> dict[str, Any]:
        """The number of classes, and what the release's `args` say."""
        names = {"img_size": "input_size", "noise_scale": "noise_scale", "t_eps": "t_eps"}
        known = {ours: settings[theirs] for theirs, ours in names.items() if theirs in settings}
        return known | {"num_classes": len(state[cls.weight_marker]) - 1}

    def condition(self, labels: torch.Tensor) -> LabelCondition:
        """Class labels (B,), from 0 to num_classes - 1, or num_classes for no class."""
        try:
            labels = torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise InputError(f"labels must be a list of whole numbers, got {labels!r}") from None
        classes = self.config.num_classes
        if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
            raise InputError(f"labels must be a list of whole numbers, got {labels.dtype}, {tuple(labels.shape)}")
        wrong = labels[(labels < 0) | (labels > classes)].tolist()
        if wrong:
            raise InputError(f"label {wrong[0]} is out of range; allowed: 0 to {classes - 1}, or {classes} for none")
        return LabelCondition(labels.to(self.device, torch.int64))

    def unconditional(self, condition: LabelCondition) -> LabelCondition:
        return LabelCondition(torch.full_like(condition.labels, self.config.num_classes))

    def beside(self, condition: LabelCondition, token: torch.Tensor) -> LabelCondition:
        if not self.config.in_context_len:
            return super().beside(condition, token)
        return replace(condition, more=token)

    def embed(self, x: torch.Tensor, t: torch.Tensor, condition: LabelCondition) -> Tokens:
        label = self.y_embedder["embedding_table"](condition.labels)
        image = self.x_embedder(x) + self.pos_embed
        return Tokens(image, self.patch_phasors(), context=(self.t_embedder(t) + label, label, condition.more))

    def run(self, tokens: Tokens, start: int, stop: int) -> Tokens:
        time_and_class, label, more = tokens.context
        image, side = tokens.image, tokens.side
        for first, last in self._spans(start, stop):
            if side is None and first == self.config.in_context_start and self.config.in_context_len:
                side = label[:, None] + self.in_context_posemb
                side = side if more is None else torch.cat([side, more.to(side.dtype)], dim=1)
            x, phasors = image, tokens.phasors
            if side is not None:
                x = torch.cat([side, image], dim=1)
                origin = self.in_context_phasors().expand(len(phasors), side.shape[1], -1)
                phasors = torch.cat([origin, phasors], dim=1)
            phasors = phasors.to(x.dtype)
            for block in self.blocks[first:last]:
                x = self.call_block(block, x, time_and_class, phasors, tokens.log_sizes)
            if side is not None:
                side, image = x.split([side.shape[1], image.shape[1]], dim=1)
            else:
                image = x
        return tokens._replace(image=image, side=side)

    def _spans(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The blocks before the in-context tokens join, and those after."""
        middle = min(max(self.config.in_context_start, start), stop)
        return [span for span in ((start, middle), (middle, stop)) if span[0] < span[1]]

    def head(self, tokens: Tokens) -> torch.Tensor:
        patches = self.final_layer(tokens.image, tokens.context[0])
        return layers.unpatchify(patches.float(), self.grid, self.patch_size)

    def reset_parameters(self) -> None:
        """As the authors: Xavier for linear maps, small embeddings, and gates and a head that start at zero."""
        with torch.no_grad():
            self.pos_embed.copy_(layers.position_table(self.grid, self.hidden_size, self.config.patch_spacing))
            for name, parameter in self.named_parameters():
                if "norm" in name:
                    parameter.fill_(1.0)
                elif name == "pos_embed":
                    continue
                elif "embedding_table" in name or "t_embedder" in name or name == "in_context_posemb":
                    parameter.normal_(std=0.02)
                elif parameter.ndim == 1 or "adaLN_modulation" in name or name.startswith("final_layer"):
                    parameter.zero_()
                else:
                    layers.xavier(parameter)

    def block_flops(self, block: int, image_tokens: float, text_tokens: int | None = None) -> float:
        config = self.config
        tokens = image_tokens + (config.in_context_len if block >= config.in_context_start else 0)
        linear = 4 * config.hidden_size**2 + 3 * config.hidden_size * config.mlp_width
        return 2 * tokens * linear + 4 * tokens * tokens * config.hidden_size
