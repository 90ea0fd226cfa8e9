"""ImageReward: its published weights in transformers' BLIP. Its own package does not import with transformers 5."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from rti.checkpoint import State, fill, read_state
from rti.files import fetch_repository, read_json
from rti.lab.pictures.folder import Entry
from rti.lab.pictures.scorers.clip import clip_pixels, load
from rti.lab.pictures.scorers.results import prompts_of

WEIGHTS, CONFIG = "ImageReward.pt", "med_config.json"
MEAN, STD = 0.16717362830052426, 1.0333394966054072  # of the raw reward on the authors' data
TOKENS = 35
VISION = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
VISION |= dict(patch_size=16, image_size=224, hidden_act="gelu", layer_norm_eps=1e-6)  # BLIP's ViT-L/16
HEAD = {0: 1024, 2: 128, 4: 64, 6: 16, 7: 1}  # widths of the linear layers; dropout had the numbers between
_TEXT = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_TEXT += ("max_position_embeddings", "hidden_act", "layer_norm_eps")  # what is read of med_config.json

_UNUSED = r"blip\.(text_encoder\.embeddings\.position_ids|(vision|text)_proj\.(weight|bias))$"
_NAMES = {  # published -> ours
    r"^blip\.text_encoder\.": "text.",
    r"^mlp\.layers\.": "head.",
    r"^blip\.visual_encoder\.patch_embed\.proj\.": "vision.embeddings.patch_embedding.",
    r"^blip\.visual_encoder\.cls_token$": "vision.embeddings.class_embedding",
    r"^blip\.visual_encoder\.pos_embed$": "vision.embeddings.position_embedding",
    r"^blip\.visual_encoder\.blocks\.(\d+)\.norm([12])\.": r"vision.encoder.layers.\1.layer_norm\2.",
    r"^blip\.visual_encoder\.blocks\.(\d+)\.attn\.qkv\.": r"vision.encoder.layers.\1.self_attn.qkv.",
    r"^blip\.visual_encoder\.blocks\.(\d+)\.attn\.proj\.": r"vision.encoder.layers.\1.self_attn.projection.",
    r"^blip\.visual_encoder\.blocks\.(\d+)\.mlp\.": r"vision.encoder.layers.\1.mlp.",
    r"^blip\.visual_encoder\.norm\.": "vision.post_layernorm.",
}


def convert(state: State) -> State:
    """The published names -> those of `ImageReward`, without a buffer and projections that the reward does not use."""
    state = {key: value for key, value in state.items() if not re.match(_UNUSED, key)}
    for pattern, name in _NAMES.items():
        state = {re.sub(pattern, name, key): value for key, value in state.items()}
    return state


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
        layers = zip(HEAD, pairwise((config.hidden_size, *HEAD.values())), strict=True)  # no activations between them
        self.head = nn.Sequential(OrderedDict((str(number), nn.Linear(*widths)) for number, widths in layers))

    @classmethod
    def from_state(cls, state: State, text: dict[str, Any], origin: str) -> ImageReward:
        """From published weights and med_config.json."""
        model = cls(text)
        fill(model, convert(state), torch.float32, origin)
        return model.eval()

    @classmethod
    def load(cls, source: str, tokenizer: str, device: str = "cpu") -> ImageReward:
        """From the hub or a folder: ImageReward.pt and med_config.json; only tensors are read of the former."""
        words, folder = load("AutoTokenizer", tokenizer), Path(source).expanduser()
        if not folder.is_dir():
            folder = fetch_repository(source, [WEIGHTS, CONFIG])
        file = folder / WEIGHTS
        model = cls.from_state(read_state(file)[0], read_json(folder / CONFIG), str(file)).to(device)
        model.tokenizer = words
        return model

    @torch.no_grad()
    def forward(self, pictures: Sequence[Image.Image], entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Rewards of pictures for their prompts, of mean 0 and deviation 1 on the authors' data."""
        pixels = clip_pixels(pictures, self.vision.config.image_size).to(self.vision.device)
        picture = self.vision(pixel_values=pixels).last_hidden_state
        # Padded to the full length; the first token stays [CLS], not BLIP's [ENC].
        options = dict(padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt")
        tokens = self.tokenizer(prompts_of(entries), **options).to(picture.device)
        told = dict(attention_mask=tokens.attention_mask, encoder_hidden_states=picture, is_decoder=False)
        states = self.text(input_ids=tokens.input_ids, **told).last_hidden_state
        rewards = (self.head(states[:, 0]).squeeze(-1) - MEAN) / STD
        return [{"score": value} for value in rewards.float().cpu().tolist()]
