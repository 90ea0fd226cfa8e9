"""ImageReward: its published weights in transformers' BLIP. Its own package does not import with transformers 5."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from rti.checkpoint import State, read_json, read_state, require_match
from rti.errors import InputError
from rti.hub import fetch, is_repository_name
from rti.lab.pictures.folder import Entry
from rti.lab.pictures.scorers.loading import load_tokenizer
from rti.lab.pictures.scorers.pictures import clip_pixels
from rti.lab.pictures.scorers.results import prompts_of

IMAGE_REWARD, TOKENIZER = "THUDM/ImageReward", "bert-base-uncased"
WEIGHTS, CONFIG = "ImageReward.pt", "med_config.json"
MEAN, STD = 0.16717362830052426, 1.0333394966054072  # of the raw reward on the authors' data
TOKENS = 35
_HEAD = 64  # width of an attention head of every ViT that BLIP uses: 16 heads of a width of 1024

_VISION = (
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^blocks\.(\d+)\.norm([12])\.", r"encoder.layers.\1.layer_norm\2."),
    (r"^blocks\.(\d+)\.attn\.qkv\.", r"encoder.layers.\1.self_attn.qkv."),
    (r"^blocks\.(\d+)\.attn\.proj\.", r"encoder.layers.\1.self_attn.projection."),
    (r"^blocks\.(\d+)\.mlp\.", r"encoder.layers.\1.mlp."),
    (r"^norm\.", "post_layernorm."),
)
# Beside the reward: a buffer of numbers, and the projections of BLIP's own training, which the reward does not use.
_UNUSED = re.compile(r"^blip\.(text_encoder\.embeddings\.position_ids|(vision|text)_proj\.(weight|bias))$")


def convert(state: State) -> State:
    """The published names -> those of `ImageReward`. Every key is used or known to be of no use; others are refused."""
    result: State = {}
    for key, value in state.items():
        if _UNUSED.match(key):
            continue
        result[_new_name(key)] = value
    return result


def _new_name(key: str) -> str:
    if key.startswith("blip.text_encoder."):
        return "text." + key.removeprefix("blip.text_encoder.")
    if key.startswith("mlp.layers."):
        return "head." + key.removeprefix("mlp.layers.")
    inner = key.removeprefix("blip.visual_encoder.")
    if inner != key:
        for pattern, replacement in _VISION:
            if re.match(pattern, inner):
                return "vision." + re.sub(pattern, replacement, inner)
    raise InputError(f"{key} is no weight of ImageReward")


class ImageReward(nn.Module):
    """A picture's tokens, a prompt that attends to them, and a linear head on its first token: one number."""

    def __init__(self, sizes: dict[str, Any], text: dict[str, Any], head: Sequence[int]):
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        super().__init__()
        self.vision = BlipVisionModel(BlipVisionConfig(**sizes, hidden_act="gelu", layer_norm_eps=1e-6))
        known = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        known += ("max_position_embeddings", "hidden_act", "layer_norm_eps")
        values = {name: text[name] for name in known if name in text}
        # The decoder's config brings the attention to the picture; the forward pass is an encoder's.
        config = BlipTextConfig(**values, encoder_hidden_size=sizes["hidden_size"], is_decoder=True)
        self.text = BlipTextModel(config, add_pooling_layer=False)
        # No activations between them; dropout holds the numbers of the layers as they were published.
        layers: list[nn.Module] = []
        for index, (wide, narrow) in enumerate(pairwise(head)):
            layers += [nn.Linear(wide, narrow)] + ([nn.Dropout(0.0)] if index < 3 else [])
        self.head = nn.Sequential(*layers)

    def forward(self, pixels: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W), (B, L), (B, L) -> (B,) rewards of mean 0 and deviation 1 on the authors' data."""
        picture = self.vision(pixel_values=pixels).last_hidden_state
        states = self.text(
            input_ids=tokens,
            attention_mask=mask,
            encoder_hidden_states=picture,
            encoder_attention_mask=torch.ones(picture.shape[:2], dtype=torch.long, device=picture.device),
            is_decoder=False,
        ).last_hidden_state
        return (self.head(states[:, 0]).squeeze(-1) - MEAN) / STD

    @classmethod
    def from_state(cls, state: State, text: dict[str, Any], origin: str) -> ImageReward:
        """From published weights, whose shapes tell all sizes but those of `text`, BLIP's med_config.json."""
        converted = convert(state)
        try:
            model = cls(_vision_sizes(converted), text, _head_widths(converted))
        except (KeyError, ValueError) as error:
            raise InputError(f"{origin} holds no weights of ImageReward (without {error})") from None
        require_match(model.state_dict(), converted, origin)
        model.load_state_dict(converted)
        return model.eval()


def _vision_sizes(state: State) -> dict[str, Any]:
    patch = state["vision.embeddings.patch_embedding.weight"]
    places = state["vision.embeddings.position_embedding"].shape[1] - 1
    layers = {key.split(".")[3] for key in state if key.startswith("vision.encoder.layers.")}
    return {
        "hidden_size": patch.shape[0],
        "intermediate_size": state["vision.encoder.layers.0.mlp.fc1.weight"].shape[0],
        "num_hidden_layers": len(layers),
        "num_attention_heads": max(patch.shape[0] // _HEAD, 1),
        "patch_size": patch.shape[-1],
        "image_size": round(places**0.5) * patch.shape[-1],
    }


def _head_widths(state: State) -> list[int]:
    weights = [state[key] for key in sorted(state) if key.startswith("head.") and key.endswith(".weight")]
    return [weights[0].shape[1], *(weight.shape[0] for weight in weights)] if weights else []


class ImageRewardScorer:
    """Rewards of pictures for their prompts."""

    def __init__(self, model: ImageReward, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def load(cls, source: str, tokenizer: str = TOKENIZER, device: str = "cpu") -> ImageRewardScorer:
        """From the hub or a folder: ImageReward.pt and med_config.json; only tensors are read of the former."""
        folder = Path(source).expanduser()
        if not folder.is_dir():
            if not is_repository_name(source):
                raise InputError(f"{source} is neither a folder nor a repository with {WEIGHTS} and {CONFIG}")
            folder = fetch(source, [WEIGHTS, CONFIG])
        words = load_tokenizer(tokenizer)
        state = read_state(folder / WEIGHTS)[0]
        model = ImageReward.from_state(state, read_json(folder / CONFIG), str(folder / WEIGHTS))
        return cls(model.to(device), words)

    @torch.no_grad()
    def __call__(self, pictures: Sequence[Image.Image], entries: Sequence[Entry]) -> list[dict[str, Any]]:
        device = next(self.model.parameters()).device
        # Padded to the full length; the first token stays [CLS], not BLIP's [ENC].
        tokens = self.tokenizer(
            prompts_of(entries), padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
        ).to(device)
        pixels = clip_pixels(pictures, self.model.vision.config.image_size).to(device)
        rewards = self.model(pixels, tokens.input_ids, tokens.attention_mask)
        return [{"score": value} for value in rewards.float().cpu().tolist()]
