"""FID and Inception Score. Features are torch-fidelity's, or those of a file; distance and score are computed here.

float64 throughout, and no square root of a matrix that is not symmetric.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm.auto import tqdm

from rti.data.folder import is_picture, walk
from rti.errors import InputError
from rti.files import in_one_line, require_regular, whole_file
from rti.images import open_image
from rti.lab.pictures.folder import MANIFEST, PictureFolder
from rti.lab.pictures.scorers.results import Score

SPLITS, SEED = 10, 2020  # of the Inception Score, as torch-fidelity has them


class Statistics(NamedTuple):
    """Mean (D,) and covariance (D, D) of features."""

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> Statistics:
        """(n, D), n > 1, also with fewer samples than dimensions."""
        if len(features) < 2:
            raise InputError(f"a covariance needs at least 2 pictures, got {len(features)}")
        return cls(features.mean(axis=0), np.atleast_2d(np.cov(features, rowvar=False)))


def frechet_distance(first: Statistics, second: Statistics) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), squared as FID is.

    With C = F F^T the last trace is the sum of the singular values of F1^T F2. Directions a covariance does not have
    are left out of its F: their eigenvalues are rounding errors, whose roots would not be small.
    """
    if first.mean.shape != second.mean.shape:
        raise InputError(f"features of {first.mean.shape} and {second.mean.shape} dimensions have no distance")
    difference = first.mean - second.mean
    shared = np.linalg.svd(_factor(first.covariance).T @ _factor(second.covariance), compute_uv=False).sum()
    traces = np.trace(first.covariance) + np.trace(second.covariance)
    return max(float(difference @ difference + traces - 2 * shared), 0.0)


def _factor(covariance: np.ndarray) -> np.ndarray:
    """(D, D) of rank r -> F (D, r) with F F^T = C."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    largest = max(abs(values[0]), abs(values[-1]))
    if values[0] < -1e-6 * largest:
        raise InputError(f"this is no covariance: it has the eigenvalue {values[0]:.3g}")
    kept = values > len(values) * np.finfo(np.float64).eps * largest
    return vectors[:, kept] * np.sqrt(values[kept])


def inception_score(logits: np.ndarray, splits: int = SPLITS, seed: int = SEED) -> tuple[float, float]:
    """exp(mean KL(p(y|x) || p(y))) of each split of the shuffled pictures, mean and deviation: (n, classes)."""
    if not 1 <= splits <= len(logits):
        raise InputError(f"{splits} splits of {len(logits)} pictures; every split needs one at least")
    shuffled = logits[np.random.RandomState(seed).permutation(len(logits))]
    log_p = torch.from_numpy(shuffled).double().log_softmax(dim=1)
    scores = []
    for part in range(splits):
        some = log_p[part * len(log_p) // splits : (part + 1) * len(log_p) // splits]
        marginal = some.logsumexp(dim=0) - np.log(len(some))  # log p(y)
        scores.append(float((some.exp() * (some - marginal)).sum(dim=1).mean().exp()))
    return float(np.mean(scores)), float(np.std(scores))


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a folder in the order of their names: what it lists if rti generate made it, else all inside."""
    if os.path.isfile(folder / MANIFEST):
        listed = PictureFolder.open(folder)
        return sorted(listed.file(entry, number) for entry, number in listed.pictures)
    if not os.path.isdir(folder):
        raise InputError(f"{folder} is no folder")
    found = sorted(folder / name for name in walk(folder) if is_picture(name))
    if not found:
        raise InputError(f"{folder} holds no pictures")
    return found


def extract(files: Sequence[Path], logits: bool, batch: int, device: str) -> np.ndarray:
    """Inception's features (n, 2048) of pictures by torch-fidelity, or with `logits` its logits (n, 1008)."""
    try:
        from torch_fidelity.utils import create_feature_extractor
    except ImportError as error:
        needed = "pip install 'region-tokens[fid]' beside a torchvision that fits your torch, or give --features FILE"
        raise InputError(f"torch-fidelity is not usable here ({error}); {needed}") from None
    layer = "logits_unbiased" if logits else "2048"
    model = create_feature_extractor("inception-v3-compat", [layer], cuda=False, verbose=False).to(device)
    parts = []
    for first in tqdm(range(0, len(files), batch), desc="features", unit="batch"):
        arrays = [np.array(open_image(file)) for file in files[first : first + batch]]
        alike = len({array.shape for array in arrays}) == 1  # real pictures may come in many sizes
        for some in [arrays] if alike else [[array] for array in arrays]:
            pixels = torch.from_numpy(np.stack(some)).permute(0, 3, 1, 2).contiguous()
            with torch.no_grad():
                parts.append(model(pixels.to(device))[0].double().cpu().numpy())
    return np.concatenate(parts)


def read_statistics(path: Path) -> Statistics:
    """Of a file with `mu` and `sigma`, as the releases of FID statistics are, or of one with features."""
    arrays = _arrays(path)
    if not {"mu", "sigma"} <= arrays.keys():
        return Statistics.of(read_features(path, arrays))
    mean, covariance = arrays["mu"].squeeze(), arrays["sigma"]
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise InputError(f"{path} holds mu {mean.shape} and sigma {covariance.shape}, which do not fit each other")
    return Statistics(mean, covariance)


def read_features(path: Path, arrays: dict[str, np.ndarray] | None = None) -> np.ndarray:
    """(n, D) of a file, which may have been read: the array "features", or the only one in it."""
    arrays = arrays or _arrays(path)
    chosen = arrays.get("features", next(iter(arrays.values())) if len(arrays) == 1 else None)
    if chosen is None or chosen.ndim != 2:
        shown = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InputError(f"{path} holds {shown}; expected features (n, D)")
    return chosen


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name, in float64; nothing in it is executed."""
    if path.suffix not in (".npz", ".npy"):
        raise InputError(f"{path} is no file of features; allowed endings: .npz, .npy; numpy.save writes one")
    require_regular(path)
    with in_one_line(f"{path} was refused, only arrays are read"):
        content = np.load(path, allow_pickle=False)
        named = {"features": content} if isinstance(content, np.ndarray) else dict(content)
        arrays = {name: value.astype(np.float64) for name, value in named.items()}
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise InputError(f"{path} holds values that are not finite")
    return arrays


def score_features(
    metric: str,
    folder: Path,
    batch: int,
    device: str,
    features: str | None = None,
    save_features: str | None = None,
    reference: str = "",
    splits: int = SPLITS,
) -> Score:
    """FID to the reference, or the Inception Score; the features are those of a file, or torch-fidelity's.

    The reference is a folder of real pictures, or a file with their statistics or features.
    """
    if save_features is not None and Path(save_features).suffix != ".npz":
        raise InputError(f"cannot write {save_features}: the ending must be .npz")
    real, fid = Path(reference).expanduser(), metric == "fid"
    if fid and real.suffix and not real.is_dir():
        wanted = read_statistics(real)
    elif fid:
        wanted = Statistics.of(extract(pictures_in(real), False, batch, device))
    files = pictures_in(folder)
    found = read_features(Path(features)) if features else extract(files, not fid, batch, device)
    if len(found) != len(files):
        raise InputError(f"{features} holds features of {len(found)} pictures, but {folder} has {len(files)}")
    if save_features is not None:
        with whole_file(Path(save_features)) as temporary, temporary.open("wb") as file:
            np.savez(file, features=found.astype(np.float32))
    score = (frechet_distance(Statistics.of(found), wanted),) if fid else inception_score(found, splits)
    values = dict(zip(("score", "deviation"), score, strict=False)) | {"pictures": len(found)}
    scorer = {"features": "file" if features else "torch-fidelity", "dimensions": found.shape[1]}
    scorer |= {"reference": reference} if fid else {"splits": splits}
    digest = PictureFolder.open(folder).digest if (folder / MANIFEST).is_file() else None
    return Score(metric, scorer, values, [], digest)
