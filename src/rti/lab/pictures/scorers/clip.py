"""CLIPScore and PickScore: how well a picture and its prompt agree, by CLIP models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import normalize

from rti.lab.pictures.folder import Entry
from rti.lab.pictures.scorers.loading import clip_pixels, load_model, load_tokenizer
from rti.lab.pictures.scorers.results import prompts_of

TOKENS = 77


class Clip:
    """A CLIP model with its tokenizer: texts and pictures to vectors of length one."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model.eval(), tokenizer
        self.size = model.config.vision_config.image_size
        self.length = min(TOKENS, model.config.text_config.max_position_embeddings)

    @classmethod
    def load(cls, source: str, tokenizer: str | None = None, device: str = "cpu") -> Clip:
        """By name from the hub, or from a folder; the tokenizer may lie elsewhere."""
        return cls(load_model("CLIPModel", source, device), load_tokenizer(tokenizer or source))

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> torch.Tensor:
        """(n, D); longer texts are cut at 77 tokens."""
        options = dict(padding=True, truncation=True, max_length=self.length, return_tensors="pt")
        tokens = self.tokenizer(list(texts), **options).to(self.model.device)
        return _unit(self.model.get_text_features(tokens.input_ids, attention_mask=tokens.attention_mask))

    @torch.no_grad()
    def pictures(self, pictures: Sequence[Image.Image]) -> torch.Tensor:
        """(n, D)"""
        return _unit(self.model.get_image_features(clip_pixels(pictures, self.size).to(self.model.device)))

    def cosines(self, pictures: Sequence[Image.Image], entries: Sequence[Entry]) -> torch.Tensor:
        """(n,) how each picture agrees with its prompt."""
        return (self.pictures(pictures) * self.texts(prompts_of(entries))).sum(dim=-1).cpu()


class ClipScorer(Clip):
    """CLIPScore: max(100 cos, 0)."""

    def __call__(self, pictures: Sequence[Image.Image], entries: Sequence[Entry]) -> list[dict[str, Any]]:
        return [{"score": value} for value in (100 * self.cosines(pictures, entries)).clamp(min=0).tolist()]


class PickScorer(Clip):
    """PickScore: exp(logit scale) cos."""

    def __call__(self, pictures: Sequence[Image.Image], entries: Sequence[Entry]) -> list[dict[str, Any]]:
        scale = self.model.logit_scale.detach().float().exp().cpu()
        return [{"score": value} for value in (scale * self.cosines(pictures, entries)).tolist()]


def _unit(features: Any) -> torch.Tensor:
    """Vectors of length one; transformers 5 returns an object, 4 the tensor itself."""
    return normalize(getattr(features, "pooler_output", features).float(), dim=-1)
