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
from rti.lab.pictures.scorers.loading import clip_pixels, load_tokenizer
from rti.lab.pictures.scorers.results import prompts_of

WEIGHTS, CONFIG = "ImageReward.pt", "med_config.json"
MEAN, STD = 0.16717362830052426, 1.0333394966054072  # of the raw reward on the authors' data
TOKENS = 35
VISION = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
VISION |= dict(patch_size=16, image_size=224, hidden_act="gelu", layer_norm_eps=1e-6)  # BLIP's ViT-L/16
MLP = (1024, 128, 64, 16, 1)  # widths of the layers of the reward
_TEXT = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_TEXT += ("max_position_embeddings", "hidden_act", "layer_norm_eps")  # what is read of med_config.json

_NAMES = (  # published names -> ours; None: a buffer, and BLIP's own projections, which the reward does not use
    (r"blip\.(text_encoder\.embeddings\.position_ids|(vision|text)_proj\.(weight|bias))$", None),
    (r"blip\.text_encoder\.", "text."),
    (r"mlp\.layers\.", "head."),
    (r"blip\.visual_encoder\.patch_embed\.proj\.", "vision.embeddings.patch_embedding."),
    (r"blip\.visual_encoder\.cls_token$", "vision.embeddings.class_embedding"),
    (r"blip\.visual_encoder\.pos_embed$", "vision.embeddings.position_embedding"),
    (r"blip\.visual_encoder\.blocks\.(\d+)\.norm([12])\.", r"vision.encoder.layers.\1.layer_norm\2."),
    (r"blip\.visual_encoder\.blocks\.(\d+)\.attn\.qkv\.", r"vision.encoder.layers.\1.self_attn.qkv."),
    (r"blip\.visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision.encoder.layers.\1.self_attn.projection."),
    (r"blip\.visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision.encoder.layers.\1.mlp."),
    (r"blip\.visual_encoder\.norm\.", "vision.post_layernorm."),
)


def convert(state: State) -> State:
    """The published names -> those of `ImageReward`. Every key is used or known to be of no use; others are refused."""
    result: State = {}
    for key, value in state.items():
        rule = next(((pattern, new) for pattern, new in _NAMES if re.match(pattern, key)), None)
        if rule is None:
            raise InputError(f"{key} is no weight of ImageReward")
        if rule[1] is not None:
            result[re.sub(*rule, key)] = value
    return result


class ImageReward(nn.Module):
    """A picture's tokens, a prompt that attends to them, and a linear head on its first token: one number."""

    def __init__(self, text: dict[str, Any]):
        """`text` is BLIP's med_config.json."""
        from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

        super().__init__()
        self.vision = BlipVisionModel(BlipVisionConfig(**VISION))
        # The decoder's config brings the attention to the picture; the forward pass is an encoder's.
        known = {name: text[name] for name in _TEXT if name in text}
        config = BlipTextConfig(**known, encoder_hidden_size=VISION["hidden_size"], is_decoder=True)
        self.text = BlipTextModel(config, add_pooling_layer=False)
        # No activations between them; dropout holds the numbers of the layers as they were published.
        layers: list[nn.Module] = []
        for index, (wide, narrow) in enumerate(pairwise((config.hidden_size, *MLP))):
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
        """From published weights and med_config.json."""
        converted, model = convert(state), cls(text)
        require_match(model.state_dict(), converted, origin)
        model.load_state_dict(converted)
        return model.eval()


class ImageRewardScorer:
    """Rewards of pictures for their prompts."""

    def __init__(self, model: ImageReward, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def load(cls, source: str, tokenizer: str, device: str = "cpu") -> ImageRewardScorer:
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
        options = dict(padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt")
        tokens = self.tokenizer(prompts_of(entries), **options).to(device)
        pixels = clip_pixels(pictures, self.model.vision.config.image_size).to(device)
        rewards = self.model(pixels, tokens.input_ids, tokens.attention_mask)
        return [{"score": value} for value in rewards.float().cpu().tolist()]
