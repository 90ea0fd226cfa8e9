"""Pictures as CLIP and BLIP take them, with Pillow alone: torchvision is not needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP's


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
