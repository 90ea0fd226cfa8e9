"""CLIPScore and PickScore: how well a picture and its prompt agree, by CLIP; and what all models of transformers need.

Pictures are prepared with Pillow alone: torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import normalize

from rti.errors import InputError
from rti.files import in_one_line
from rti.lab.pictures.folder import Entry
from rti.lab.pictures.scorers.results import prompts_of

TOKENS = 77
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's


def load(kind: str, source: str, **options: Any) -> Any:
    """What a class of transformers makes of a hub name or a folder."""
    with in_one_line(f"cannot load {source}"):
        import transformers

        return getattr(transformers, kind).from_pretrained(source, **options)


def load_model(kind: str, source: str, device: str) -> Any:
    """A model with all its weights: what a file lacks would else be left random. No pickle is executed."""
    model, report = load(kind, source, weights_only=True, output_loading_info=True)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("criterion."))  # that of training
    if missing:
        raise InputError(f"{source} is no {kind}: it lacks {len(missing)} weights, the first is {missing[0]}")
    return model.to(device).eval()


def clip_pixels(pictures: Sequence[Image.Image], size: int = 224) -> torch.Tensor:
    """Shortest edge to `size` (bicubic), centre crop, CLIP's mean and deviation: n pictures -> (n, 3, size, size)."""
    return torch.stack([normalise(_square(picture.convert("RGB"), size), MEAN, STD) for picture in pictures])


def normalise(picture: Image.Image, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """0..255 -> (3, H, W) float32, minus the mean and over the deviation of each channel."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
    return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


def _square(picture: Image.Image, size: int) -> Image.Image:
    short, scale = min(picture.size), size / min(picture.size)
    width, height = (size if side == short else int(side * scale) for side in picture.size)
    resized = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return resized.crop((left, top, left + size, top + size))


class Clip:
    """A CLIP model with its tokenizer: texts and pictures to vectors of length one."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer
        self.size = model.config.vision_config.image_size
        self.length = min(TOKENS, model.config.text_config.max_position_embeddings)

    @classmethod
    def load(cls, source: str, tokenizer: str | None = None, device: str = "cpu") -> Clip:
        """By name from the hub, or from a folder; the tokenizer may lie elsewhere."""
        return cls(load_model("CLIPModel", source, device), load("AutoTokenizer", tokenizer or source))

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
