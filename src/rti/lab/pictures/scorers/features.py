"""Features for FID and IS: from any file, or from clean-fid and torch-fidelity where they are installed."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rti.errors import InputError
from rti.lab.pictures.scorers.frechet import Statistics

EXTRACTORS = ("clean-fid", "torch-fidelity")
ENDINGS = (".npz", ".npy", ".safetensors", ".pt", ".pth")
PICTURES = (".png", ".jpg", ".jpeg", ".webp")
_NEEDED = "pip install 'region-tokens[fid]' beside a torchvision that fits your torch, or give --features FILE"


def pictures_in(folder: Path) -> list[Path]:
    """All pictures of a folder and its folders, in order; hidden ones are what a killed run left."""
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is no folder")
    files = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and not path.name.startswith("."))
    found = sorted(files)
    if not found:
        raise InputError(f"{folder} holds no pictures")
    return found


def read_features(path: Path) -> np.ndarray:
    """(n, D) of a file: the array "features", or the only one in it."""
    arrays = _arrays(path)
    chosen = arrays.get("features", next(iter(arrays.values())) if len(arrays) == 1 else None)
    if chosen is None or chosen.ndim != 2:
        shown = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InputError(f"{path} holds {shown}; expected features (n, D)")
    return chosen.astype(np.float64)


def read_statistics(path: Path) -> Statistics:
    """Of a file with `mu` and `sigma`, as the releases of FID statistics are, or of one with features."""
    arrays = _arrays(path)
    if not {"mu", "sigma"} <= arrays.keys():
        return Statistics.of(read_features(path))
    mean, covariance = arrays["mu"].astype(np.float64).squeeze(), arrays["sigma"].astype(np.float64)
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise InputError(f"{path} holds mu {mean.shape} and sigma {covariance.shape}, which do not fit each other")
    return Statistics(mean, covariance)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name. Nothing in it is executed."""
    if path.suffix not in ENDINGS:
        raise InputError(f"{path} is no file of features; allowed endings: {', '.join(ENDINGS)}")
    if not os.path.isfile(path):
        raise InputError(f"{path} does not exist")
    if path.suffix in (".npz", ".npy"):
        try:
            content = np.load(path, allow_pickle=False)
            return {"features": content} if isinstance(content, np.ndarray) else dict(content)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} is not readable ({str(error).splitlines()[0]})") from None

    import torch

    from rti.checkpoint import read_state

    if path.suffix != ".safetensors":
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a file of unknown origin may fail in any way
            raise InputError(f"{path} was refused: only tensors are read ({str(error).splitlines()[0]})") from None
        if isinstance(content, torch.Tensor):
            return {"features": content.float().numpy()}
    return {name: value.float().numpy() for name, value in read_state(path)[0].items()}


def extract(files: Sequence[Path], extractor: str, logits: bool, batch: int, device: str) -> np.ndarray:
    """Inception features (n, 2048) of pictures, or with `logits` its logits (n, 1008)."""
    if extractor not in EXTRACTORS:
        raise InputError(f"unknown extractor {extractor!r}; allowed: {', '.join(EXTRACTORS)}")
    if batch < 1:
        raise InputError(f"batch must be at least 1, got {batch!r}")
    if extractor == "clean-fid":
        if logits:
            raise InputError("clean-fid has no logits; the Inception Score needs torch-fidelity, or --features FILE")
        return _clean_fid(files, batch, device)
    return _torch_fidelity(files, logits, batch, device)


def _clean_fid(files: Sequence[Path], batch: int, device: str) -> np.ndarray:
    try:
        from cleanfid.features import build_feature_extractor
        from cleanfid.fid import get_files_features
    except ImportError as error:
        raise InputError(f"clean-fid is not usable here ({error}); {_NEEDED}") from None
    import torch

    where = torch.device(device)
    model = build_feature_extractor("clean", where, use_dataparallel=False)
    names = [str(file) for file in files]
    return get_files_features(names, model, num_workers=0, batch_size=batch, device=where, mode="clean")


def clean_fid_statistics(name: str) -> Statistics:
    """Statistics kept by clean-fid under a name, such as those of its make_custom_stats."""
    try:
        from cleanfid.features import get_reference_statistics
    except ImportError as error:
        raise InputError(f"reference {name!r} is no file or folder, and clean-fid is not here ({error})") from None
    try:
        return Statistics(*get_reference_statistics(name, "na", mode="clean", split="custom"))
    except Exception as error:  # it fails in as many ways as downloads do
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"reference {name!r} is no file or folder, nor known to clean-fid: {lines[0]}") from None


def _torch_fidelity(files: Sequence[Path], logits: bool, batch: int, device: str) -> np.ndarray:
    try:
        from torch_fidelity.utils import create_feature_extractor
    except ImportError as error:
        raise InputError(f"torch-fidelity is not usable here ({error}); {_NEEDED}") from None
    import torch
    from tqdm.auto import tqdm

    from rti.images import open_image

    layer = "logits_unbiased" if logits else "2048"
    model = create_feature_extractor("inception-v3-compat", [layer], cuda=False, verbose=False).to(device)
    parts = []
    for first in tqdm(range(0, len(files), batch), desc="features", unit="batch"):
        arrays = [np.array(open_image(file)) for file in files[first : first + batch]]
        alike = len({array.shape for array in arrays}) == 1  # real pictures may come in many sizes
        for some in [arrays] if alike else [[array] for array in arrays]:
            pixels = torch.from_numpy(np.stack(some)).permute(0, 3, 1, 2).contiguous()
            with torch.no_grad():
                parts.append(model(pixels.to(device))[0].float().cpu().numpy())
    return np.concatenate(parts)


def save(path: Path, features: np.ndarray) -> None:
    """As `read_features` reads them."""
    if path.suffix != ".npz":
        raise InputError(f"cannot write {path}: the ending must be .npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, features=features.astype(np.float32))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
