"""CLIPScore and PickScore: how well a picture and its prompt agree, by CLIP models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from PIL import Image
from torch.nn.functional import normalize

from rti.lab.pictures.folder import Entry
from rti.lab.pictures.scorers.loading import load_model, load_tokenizer
from rti.lab.pictures.scorers.pictures import clip_pixels
from rti.lab.pictures.scorers.results import Scorer, prompts_of

CLIP = "openai/clip-vit-large-patch14"
PICK, PICK_PROCESSOR = "yuvalkirstain/PickScore_v1", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
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
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=self.length, return_tensors="pt"
        ).to(self.model.device)
        features = self.model.get_text_features(tokens.input_ids, attention_mask=tokens.attention_mask)
        return normalize(_pooled(features).float(), dim=-1)

    @torch.no_grad()
    def pictures(self, pictures: Sequence[Image.Image]) -> torch.Tensor:
        """(n, D)"""
        pixels = clip_pixels(pictures, self.size).to(self.model.device)
        return normalize(_pooled(self.model.get_image_features(pixels)).float(), dim=-1)

    def cosines(self, pictures: Sequence[Image.Image], texts: Sequence[str]) -> torch.Tensor:
        """(n,) how each picture agrees with its text."""
        return (self.pictures(pictures) * self.texts(texts)).sum(dim=-1).cpu()


def clip_scorer(clip: Clip) -> Scorer:
    """CLIPScore: max(100 cos, 0)."""
    return _scorer(clip, lambda cosines: (100 * cosines).clamp(min=0))


def pick_scorer(clip: Clip) -> Scorer:
    """PickScore: exp(logit scale) cos."""
    scale = clip.model.logit_scale.detach().float().exp().cpu()
    return _scorer(clip, lambda cosines: scale * cosines)


def _scorer(clip: Clip, formula: Callable[[torch.Tensor], torch.Tensor]) -> Scorer:
    def score(pictures: Sequence[Image.Image], entries: Sequence[Entry]) -> list[dict[str, Any]]:
        return [{"score": value} for value in formula(clip.cosines(pictures, prompts_of(entries))).tolist()]

    return score


def _pooled(features: Any) -> torch.Tensor:
    """transformers 5 returns an object, 4 the tensor itself."""
    return getattr(features, "pooler_output", features)
