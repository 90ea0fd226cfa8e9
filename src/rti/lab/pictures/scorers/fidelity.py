"""How near pictures are to those of a reference, such as the dense ones of the same noise: PSNR, SSIM, LPIPS.

They still tell settings apart where every picture is right.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tqdm.auto import tqdm

from rti.errors import InputError, check_whole
from rti.images import open_image, to_tensor
from rti.lab.pictures.folder import PictureFolder, check_pair
from rti.lab.pictures.scorers.results import Score, summary

HIGHEST = 1e-10  # of the error that counts: pictures that are alike in every pixel are 100 dB apart
WINDOW, SIGMA = 11, 1.5  # of SSIM, as Wang et al. (2004) have it
STABLE = 0.01**2, 0.03**2


def score_fidelity(
    reference: str | Path, folder: str | Path, batch: int = 16, device: str = "cpu", progress: bool = True
) -> list[Score]:
    """Each picture against the reference's of the same prompt and number; a score for each measure there is."""
    check_whole("batch", batch)
    first, second = PictureFolder.open(reference), PictureFolder.open(folder)
    check_pair(first, second)
    measures = {"psnr": psnr, "ssim": ssim} | _lpips(device)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in measures}
    pairs = list(zip(first.pictures, second.pictures, strict=True))
    with tqdm(total=len(pairs), desc="fidelity", unit="picture", disable=not progress) as bar:
        for start in range(0, len(pairs), batch):
            some = pairs[start : start + batch]
            one, other = (
                _pictures(where, [pair[side] for pair in some], device) for side, where in enumerate((first, second))
            )
            if one.shape != other.shape:
                raise InputError(f"{first.path} and {second.path} cannot be compared: their pictures differ in size")
            found = {name: measure(one, other).tolist() for name, measure in measures.items()}
            for place, (_, (entry, number)) in enumerate(some):
                about = {"file": entry.files[number], "prompt": entry.index, "number": number}
                for name, values in found.items():
                    rows[name].append(about | {"score": values[place]})
            bar.update(len(some))
    by = {"reference": str(reference), "digest": first.digest}
    return [Score(name, by, summary(second.entries, some, False), some, second.digest) for name, some in rows.items()]


def _pictures(folder: PictureFolder, pictures: list[Any], device: str) -> torch.Tensor:
    """(B, 3, H, W) in [0, 1]"""
    tensors = [to_tensor(open_image(folder.file(*picture))) for picture in pictures]
    return (torch.cat(tensors).to(device) + 1) / 2


def psnr(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Decibels: (B, 3, H, W) in [0, 1] twice -> (B,)."""
    return -10 * (one - other).square().flatten(1).mean(dim=1).clamp_min(HIGHEST).log10()


def ssim(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Structural similarity by channel, where the whole window is inside the picture: (B, 3, H, W) twice -> (B,)."""
    size = min(WINDOW, *one.shape[-2:])
    offsets = torch.arange(size, dtype=one.dtype, device=one.device) - (size - 1) / 2
    weights = torch.softmax(-(offsets**2) / (2 * SIGMA**2), dim=0)
    window = (weights[:, None] * weights).expand(one.shape[1], 1, -1, -1)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return F.conv2d(values, window, groups=one.shape[1])

    a, b = mean(one), mean(other)
    variances = mean(one**2) - a**2 + mean(other**2) - b**2
    covariance = mean(one * other) - a * b
    likeness = (2 * a * b + STABLE[0]) * (2 * covariance + STABLE[1])
    return (likeness / ((a**2 + b**2 + STABLE[0]) * (variances + STABLE[1]))).flatten(1).mean(dim=1)


def _lpips(device: str) -> dict[str, Any]:
    """LPIPS with AlexNet, where its package is installed."""
    with suppress(ImportError):
        import lpips

        network = lpips.LPIPS(net="alex", verbose=False).to(device).eval()

        @torch.no_grad()
        def distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return network(one, other, normalize=True).flatten(1).mean(dim=1)

        return {"lpips": distance}
    return {}
