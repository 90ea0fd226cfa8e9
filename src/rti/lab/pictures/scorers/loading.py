"""Models from transformers, by hub name or folder, and pictures as they take them. No pickle is executed.

Pictures are prepared with Pillow alone: torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from rti.errors import InputError
from rti.files import in_one_line

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's


def load_model(kind: str, source: str, device: str) -> Any:
    """A model of a class of transformers with all its weights: what a file lacks would else be left random."""
    with in_one_line(f"cannot load {source}"):
        import transformers

        options = {"weights_only": True, "output_loading_info": True}
        model, report = getattr(transformers, kind).from_pretrained(source, **options)
        model = model.to(device)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("criterion."))  # that of training
    if missing:
        raise InputError(f"{source} is no {kind}: it lacks {len(missing)} weights, the first is {missing[0]}")
    return model.eval()


def load_tokenizer(source: str) -> Any:
    with in_one_line(f"cannot load {source}"):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(source)


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
