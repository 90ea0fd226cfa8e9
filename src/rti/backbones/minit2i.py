"""MiniT2I (MM-JiT): text to image in pixel space, a trunk of double-stream blocks over text and image tokens.

The network is not conditioned on the time: the checkpoint's time and pooled-text embedders reach no block. So the text
preamble depends on the prompt alone, and `prepare` computes it once per prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from rti.backbones import layers
from rti.backbones.base import MOST_BLOCKS, WIDEST, Backbone, Condition, FlowSettings, Tokens, check_table, grid_of
from rti.backbones.layers import FloatTable, PatchEmbed, RMSNorm, TimeEmbed, attention
from rti.errors import InputError, check_finite, check_whole


@dataclass(frozen=True)
class MiniT2IConfig:
    """Fields and names of the release's `config.json`; the last three are ours, for models trained otherwise."""

    image_size: int | tuple[int, int] = 512
    patch_size: int = 16
    in_channels: int = 3
    txt_input_size: int = 1024
    hidden_size: int = 768
    txt_hidden_size: int = 768
    cond_vec_size: int = 768
    depth_double: int = 17
    txt_preamble_depth: int = 2
    num_heads: int = 12
    head_dim: int = 64
    mlp_ratio: float = 2.6667
    pca_channels: int = 128
    prompt_length: int = 256
    n_T: int = 100
    prediction: str = "x"
    sampler: str = "euler"
    cfg_channels: int = 3
    cfg_interval: tuple[float, float] = (0.0, 1.0)
    llm: str = "google/flan-t5-large"
    noise_scale: float = 2.0
    guidance_scale: float = 5.0
    patch_spacing: float = 1.0  # distance of neighbouring patches in the position tables, for training at half size

    def __post_init__(self):
        widths = ("in_channels", "txt_input_size", "hidden_size", "cond_vec_size", "num_heads", "head_dim")
        for name in (*widths, "pca_channels", "prompt_length"):
            check_whole(name, getattr(self, name), WIDEST)
        check_whole("depth_double", self.depth_double, MOST_BLOCKS)
        check_whole("txt_preamble_depth", self.txt_preamble_depth, MOST_BLOCKS, least=0)
        check_finite("mlp_ratio", self.mlp_ratio)
        check_finite("patch_spacing", self.patch_spacing, above=0)
        if self.prediction != "x":
            raise InputError(f"prediction {self.prediction!r} is not supported; allowed: 'x', the clean image")
        if self.txt_hidden_size != self.hidden_size:
            raise InputError(f"txt_hidden_size {self.txt_hidden_size} must equal hidden_size {self.hidden_size}")
        if self.cfg_channels != self.in_channels:
            raise InputError(f"cfg_channels {self.cfg_channels} must equal in_channels {self.in_channels}")
        if self.head_dim % 4 or self.hidden_size % 4:
            raise InputError(f"head_dim {self.head_dim} and hidden_size {self.hidden_size} must be multiples of 4")
        rows, columns = grid_of(self.image_size, self.patch_size)
        check_table("patches", rows * columns, max(self.hidden_size, self.head_dim))
        check_table("prompt_length", self.prompt_length, self.head_dim)

    @property
    def mlp_width(self) -> int:
        return -(-int(self.hidden_size * self.mlp_ratio) // 8) * 8


@dataclass(frozen=True)
class TextCondition(Condition):
    """Prompts as the text encoder's states."""

    states: torch.Tensor  # (B, T, C)
    mask: torch.Tensor  # (B, T) bool, False where there is no word
    stream: torch.Tensor | None = None  # (B, T, D) the text after the preamble, once prepared
    phasors: torch.Tensor | None = None  # (B, T, P) rotary position of each token of the stream


class SwiGLU(nn.Module):
    def __init__(self, hidden_size: int, width: int):
        super().__init__()
        self.w1 = nn.Linear(hidden_size, width, bias=False)
        self.w2 = nn.Linear(width, hidden_size, bias=False)
        self.w3 = nn.Linear(hidden_size, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def rotate(x: torch.Tensor, phasors: torch.Tensor) -> torch.Tensor:
    """Rotary position, "half" convention: element i turns with element i + head_dim / 2.

    (B, L, heads, head_dim), (1 or B, L, head_dim) -> (B, L, heads, head_dim).
    """
    cos, sin = phasors[:, :, None].chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class PreambleBlock(nn.Module):
    """A transformer block on the text alone."""

    def __init__(self, config: MiniT2IConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.num_heads * config.head_dim
        self.heads = config.num_heads
        self.norm1, self.norm2 = RMSNorm(hidden), RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * inner)
        self.q_norm, self.k_norm = RMSNorm(config.head_dim), RMSNorm(config.head_dim)
        self.attn_proj = nn.Linear(inner, hidden)
        self.mlp = SwiGLU(hidden, config.mlp_width)

    def forward(self, text: torch.Tensor, phasors: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(text)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        mixed = attention(rotate(self.q_norm(q), phasors), rotate(self.k_norm(k), phasors), v)
        text = text + self.attn_proj(mixed)
        return text + self.mlp(self.norm2(text))


class DoubleBlock(nn.Module):
    """Text and image with weights of their own, and one attention over both."""

    def __init__(self, config: MiniT2IConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.num_heads * config.head_dim
        self.heads = config.num_heads
        self.img_norm1, self.img_norm2 = RMSNorm(hidden), RMSNorm(hidden)
        self.txt_norm1, self.txt_norm2 = RMSNorm(hidden), RMSNorm(hidden)
        self.img_qkv, self.txt_qkv = nn.Linear(hidden, 3 * inner), nn.Linear(hidden, 3 * inner)
        self.q_norm, self.k_norm = RMSNorm(config.head_dim), RMSNorm(config.head_dim)
        self.img_attn_proj, self.txt_attn_proj = nn.Linear(inner, hidden), nn.Linear(inner, hidden)
        self.img_mlp, self.txt_mlp = SwiGLU(hidden, config.mlp_width), SwiGLU(hidden, config.mlp_width)

    def forward(
        self, text: torch.Tensor, image: torch.Tensor, phasors: torch.Tensor, log_sizes: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, T, D), (B, N, D), (B, T + N, head_dim) -> the two streams after the block."""
        qkv = torch.cat([self.txt_qkv(self.txt_norm1(text)), self.img_qkv(self.img_norm1(image))], dim=1)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).unbind(2)
        mixed = attention(rotate(self.q_norm(q), phasors), rotate(self.k_norm(k), phasors), v, log_sizes)
        text_mixed, image_mixed = mixed.split([text.shape[1], image.shape[1]], dim=1)
        text = text + self.txt_attn_proj(text_mixed)
        image = image + self.img_attn_proj(image_mixed)
        return text + self.txt_mlp(self.txt_norm2(text)), image + self.img_mlp(self.img_norm2(image))


class Head(nn.Module):
    def __init__(self, config: MiniT2IConfig):
        super().__init__()
        self.norm_final = RMSNorm(config.hidden_size)
        self.linear = nn.Linear(config.hidden_size, config.patch_size**2 * config.in_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm_final(x))


class MiniT2I(Backbone):
    family = "minit2i"
    config_type = MiniT2IConfig
    config_marker = "depth_double"
    weight_marker = "double_blocks.0.img_qkv.weight"
    weight_prefix = "model.net."
    condition_type = TextCondition
    conditioned_on = "text"
    block_types = (DoubleBlock, PreambleBlock)
    lora_targets = ("img_qkv", "txt_qkv", "img_attn_proj", "txt_attn_proj")
    lora_targets += ("qkv", "attn_proj", "w1", "w2", "w3", "final_layer.linear")

    def __init__(self, config: MiniT2IConfig):
        super().__init__()
        self.config = config
        self.hidden_size, self.depth = config.hidden_size, config.depth_double
        self.patch_size, self.channels = config.patch_size, config.in_channels
        self.grid = grid_of(config.image_size, config.patch_size)
        guidance = config.guidance_scale, tuple(config.cfg_interval)
        self.flow = FlowSettings(config.noise_scale, config.sampler, config.n_T, *guidance)

        self.img_embedder = PatchEmbed(config.in_channels, config.patch_size, config.pca_channels, config.hidden_size)
        self.txt_embedder = nn.Linear(config.txt_input_size, config.hidden_size, bias=False)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.txt_input_size))
        self.t_embedder = TimeEmbed(config.cond_vec_size)  # these two are in the checkpoint, and reach no block
        self.pooled_embedder = nn.Linear(config.txt_input_size, config.cond_vec_size, bias=False)
        self.txt_preamble_blocks = nn.ModuleList(PreambleBlock(config) for _ in range(config.txt_preamble_depth))
        self.double_blocks = nn.ModuleList(DoubleBlock(config) for _ in range(config.depth_double))
        self.final_layer = Head(config)

        spacing = config.patch_spacing
        self.patch_table = FloatTable(layers.position_table(self.grid, config.hidden_size, spacing))
        self.patch_phasors = FloatTable(layers.phasors(layers.grid_angles(self.grid, config.head_dim, spacing)))
        positions = torch.arange(config.prompt_length, dtype=torch.float64, device="cpu")
        angles = positions[:, None] * layers.frequencies(config.head_dim // 2, config.head_dim)
        self.text_phasors = FloatTable(layers.phasors(angles)[None])

    def condition(self, text: torch.Tensor, mask: torch.Tensor | None = None) -> TextCondition:
        """Text states (B, T, C) and which of them are words (B, T); without a mask all are."""
        for name, value in (("text states", text), ("mask", mask)):
            if not isinstance(value, torch.Tensor) and not (value is None and name == "mask"):
                raise InputError(f"{name} of type {type(value).__name__}; allowed: a tensor")
        if text.ndim != 3 or text.shape[-1] != self.config.txt_input_size:
            allowed = f"(batch, tokens, {self.config.txt_input_size})"
            raise InputError(f"text states of shape {tuple(text.shape)}; allowed: {allowed}")
        if text.shape[1] > self.config.prompt_length:
            raise InputError(f"{text.shape[1]} text tokens; allowed: at most {self.config.prompt_length}")
        if mask is None:
            mask = torch.ones(text.shape[:2], dtype=torch.bool, device=text.device)
        if mask.shape != text.shape[:2]:
            raise InputError(f"mask of shape {tuple(mask.shape)} for text states of shape {tuple(text.shape)}")
        return TextCondition(text, mask.bool())

    def prepare(self, condition: TextCondition) -> TextCondition:
        """Run the text preamble. Padding is a learned token; nothing is masked out of attention."""
        if condition.stream is not None:
            return condition
        dtype = self.txt_embedder.weight.dtype
        words = torch.where(condition.mask[..., None], condition.states.to(dtype), self.mask_token.to(dtype))
        text = self.txt_embedder(words)
        phasors = self.text_phasors()[:, : text.shape[1]]
        for block in self.txt_preamble_blocks:
            text = self.call_block(block, text, phasors.to(text.dtype))
        return replace(condition, stream=text, phasors=phasors.expand(len(text), -1, -1))

    def unconditional(self, condition: TextCondition) -> TextCondition:
        """The same text with every word masked. All rows are alike, so the preamble runs on one of them."""
        one = replace(condition[:1], mask=torch.zeros_like(condition.mask[:1]), stream=None, phasors=None)
        if condition.stream is not None:
            one = self.prepare(one)
        return one._map(lambda value: value.expand(len(condition), *value.shape[1:]))

    def beside(self, condition: TextCondition, token: torch.Tensor) -> TextCondition:
        """One more token of the text, at the first word's place."""
        place = self.text_phasors()[:, :1].expand(len(token), -1, -1)
        stream = torch.cat([condition.stream, token.to(condition.stream.dtype)], dim=1)
        return replace(condition, stream=stream, phasors=torch.cat([condition.phasors, place], dim=1))

    def embed(self, x: torch.Tensor, t: torch.Tensor, condition: TextCondition) -> Tokens:
        image = self.img_embedder(x)
        image = image + self.patch_table().to(image.dtype)
        condition = self.prepare(condition)
        return Tokens(image, self.patch_phasors(), side=condition.stream, context=condition.phasors)

    def run(self, tokens: Tokens, start: int, stop: int) -> Tokens:
        image, text, text_phasors = tokens.image, tokens.side, tokens.context
        phasors = torch.cat([text_phasors, tokens.phasors.expand(len(image), -1, -1)], dim=1).to(image.dtype)
        for block in self.double_blocks[start:stop]:
            text, image = self.call_block(block, text, image, phasors, tokens.log_sizes)
        return tokens._replace(image=image, side=text)

    def head(self, tokens: Tokens) -> torch.Tensor:
        return layers.unpatchify(self.final_layer(tokens.image).float(), self.grid, self.patch_size)

    def reset_parameters(self) -> None:
        """Xavier for linear maps, residual branches scaled down by depth, and a head that starts at zero."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" in name:
                    parameter.fill_(1.0)
                elif parameter.ndim == 1 or name.startswith("final_layer"):
                    parameter.zero_()
                elif name == "mask_token":
                    parameter.normal_(std=0.5)
                else:
                    residual = name.endswith(("attn_proj.weight", "w2.weight"))
                    layers.xavier(parameter, (2 * self.depth) ** -0.5 if residual else 1.0)

    def block_flops(self, block: int, image_tokens: float, text_tokens: int | None = None) -> float:
        config = self.config
        inner = config.num_heads * config.head_dim
        tokens = image_tokens + (config.prompt_length if text_tokens is None else text_tokens)
        linear = 4 * config.hidden_size * inner + 3 * config.hidden_size * config.mlp_width
        return 2 * tokens * linear + 4 * tokens * tokens * inner
