"""Fréchet distance and Inception Score of given features. float64, no square root of a matrix that is not symmetric."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rti.errors import InputError

SPLITS, SEED = 10, 2020  # of the Inception Score, as torch-fidelity has them


class Statistics(NamedTuple):
    """Mean (D,) and covariance (D, D) of features."""

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> Statistics:
        """(n, D), n > 1, also with fewer samples than dimensions."""
        features = _finite(features, 2, "features must be (n, D)")
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


class InceptionScore(NamedTuple):
    mean: float
    std: float


def inception_score(logits: np.ndarray, splits: int = SPLITS, seed: int = SEED) -> InceptionScore:
    """exp(mean KL(p(y|x) || p(y))) of each split of the shuffled pictures, mean and deviation: (n, classes)."""
    logits = _finite(logits, 2, "logits must be (n, classes)")
    if not 1 <= splits <= len(logits):
        raise InputError(f"{splits} splits of {len(logits)} pictures; every split needs one at least")
    logits = logits[np.random.RandomState(seed).permutation(len(logits))]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    scores = []
    for part in range(splits):
        some = log_p[part * len(log_p) // splits : (part + 1) * len(log_p) // splits]
        p = np.exp(some)
        with np.errstate(divide="ignore"):
            log_marginal = np.log(p.mean(axis=0))
        # A class no picture has at all adds 0 log 0 = 0.
        terms = np.where(p > 0, p * (some - np.where(np.isfinite(log_marginal), log_marginal, 0.0)), 0.0)
        scores.append(float(np.exp(terms.sum(axis=1).mean())))
    return InceptionScore(float(np.mean(scores)), float(np.std(scores)))


def _finite(values: np.ndarray, dimensions: int, message: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != dimensions:
        raise InputError(f"{message}, got {values.shape}")
    if not np.isfinite(values).all():
        raise InputError("features hold values that are not finite")
    return values
