"""Fréchet distance and Inception Score: closed forms, scipy, few samples; and the files features come from."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from rti.lab.pictures.scorers.fid import (
    Statistics,
    extract,
    frechet_distance,
    inception_score,
    pictures_in,
    read_features,
    read_statistics,
)
from tiny import refused

scipy_linalg = pytest.importorskip("scipy.linalg")


def features(count, width, seed, scale=1.0, shift=0.0):
    """Correlated, with a spread of sizes."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(width, width)) * np.geomspace(1, 0.05, width)
    return scale * rng.normal(size=(count, width)) @ mixing + shift


def plain_distance(first, second):
    """FID as everyone writes it, with scipy's root of a product that is not symmetric."""
    difference = first.mean - second.mean
    root = scipy_linalg.sqrtm(first.covariance @ second.covariance)
    return difference @ difference + np.trace(first.covariance + second.covariance - 2 * root.real)


@pytest.mark.parametrize("seed", range(4))
def test_the_distance_is_scipys_where_there_are_samples_enough(seed):
    first, second = features(300, 24, seed), features(500, 24, seed + 50, scale=1.4, shift=0.3)
    one, two = Statistics.of(first), Statistics.of(second)
    assert frechet_distance(one, two) == pytest.approx(plain_distance(one, two), abs=1e-6)
    assert frechet_distance(one, two) == pytest.approx(frechet_distance(two, one), abs=1e-9)
    assert frechet_distance(one, two) > 1


@pytest.mark.parametrize(("count", "other"), [(20, 300), (20, 35), (2, 300), (60, 2)])
def test_the_distance_holds_with_fewer_samples_than_dimensions(count, other):
    """The trace of the root is the sum of scipy's singular values of the centred samples' product: no matrix root."""
    first, second = features(count, 64, 1), features(other, 64, 2, shift=0.2)
    one, two = Statistics.of(first), Statistics.of(second)
    centred = [(x - x.mean(axis=0)) / np.sqrt(len(x) - 1) for x in (first, second)]
    shared = scipy_linalg.svdvals(centred[0] @ centred[1].T).sum()
    difference = one.mean - two.mean
    expected = difference @ difference + sum((x**2).sum() for x in centred) - 2 * shared
    assert np.linalg.matrix_rank(one.covariance) < 64
    assert frechet_distance(one, two) == pytest.approx(expected, abs=1e-6)


def test_the_distance_with_few_samples_is_scipys_for_slightly_widened_covariances():
    """scipy's root of a singular product is not to be trusted; of one that is nearly so, it is."""
    one, two = Statistics.of(features(20, 32, 1)), Statistics.of(features(25, 32, 2))
    errors = []
    for width in (1e-4, 1e-6):
        wide = [Statistics(some.mean, some.covariance + width * np.eye(32)) for some in (one, two)]
        assert frechet_distance(*wide) == pytest.approx(plain_distance(*wide), abs=1e-6)
        errors.append(abs(frechet_distance(*wide) - frechet_distance(one, two)))
    assert errors[1] < errors[0] / 5 < 0.1


@pytest.mark.parametrize("width", [1, 3, 40])
def test_closed_forms(width):
    rng = np.random.default_rng(width)
    mean, other = rng.normal(size=(2, width))
    spread, wider = rng.uniform(0.1, 3, (2, width))
    turn = np.linalg.qr(rng.normal(size=(width, width)))[0]
    # Covariances that commute: sum of (m - m')^2 + (s - s')^2.
    one, two = (Statistics(m, turn @ np.diag(s**2) @ turn.T) for m, s in ((mean, spread), (other, wider)))
    expected = ((mean - other) ** 2).sum() + ((spread - wider) ** 2).sum()
    assert frechet_distance(one, two) == pytest.approx(expected, abs=1e-6)
    # The same distribution; a shift of it; a scaling by two: tr C.
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-6)
    moved = Statistics(mean + 2, one.covariance)
    assert frechet_distance(one, moved) == pytest.approx(4 * width, abs=1e-6)
    scaled = Statistics(mean, 4 * one.covariance)
    assert frechet_distance(one, scaled) == pytest.approx((spread**2).sum(), abs=1e-6)
    # Nothing but a point: the other's trace.
    point = Statistics(mean, np.zeros((width, width)))
    assert frechet_distance(point, one) == pytest.approx((spread**2).sum(), abs=1e-6)


def test_two_dimensions_have_a_root_by_hand():
    """tr (AB)^(1/2) = sqrt(tr AB + 2 sqrt(det AB)) for two dimensions."""
    a, b = np.array([[2.0, 0.7], [0.7, 1.0]]), np.array([[1.5, -0.4], [-0.4, 3.0]])
    root = np.sqrt(np.trace(a @ b) + 2 * np.sqrt(np.linalg.det(a @ b)))
    mean = np.zeros(2)
    expected = np.trace(a) + np.trace(b) - 2 * root
    assert frechet_distance(Statistics(mean, a), Statistics(mean, b)) == pytest.approx(expected, abs=1e-9)


def test_statistics_are_numpys_and_a_copy_of_the_features_has_no_distance():
    x = features(30, 50, 3)
    one = Statistics.of(x)
    assert np.allclose(one.covariance, np.cov(x.T))
    assert frechet_distance(one, Statistics.of(x[::-1])) == pytest.approx(0, abs=1e-6)


def test_what_is_no_distribution_is_refused():
    good = Statistics.of(features(10, 3, 0))
    with refused("(3,)", "(4,)"):
        frechet_distance(good, Statistics.of(features(10, 4, 0)))
    with refused("no covariance"):
        frechet_distance(good, Statistics(good.mean, -good.covariance))
    with refused("2 pictures", "1"):
        Statistics.of(np.ones((1, 4)))


# Inception Score.


def plain_inception_score(logits, splits=10, seed=2020):
    """With scipy's softmax and relative entropy, picture by picture."""
    from scipy.special import softmax
    from scipy.stats import entropy

    p = softmax(logits[np.random.RandomState(seed).permutation(len(logits))], axis=1)
    scores = []
    for part in range(splits):
        some = p[part * len(p) // splits : (part + 1) * len(p) // splits]
        scores.append(np.exp(np.mean([entropy(row, some.mean(axis=0)) for row in some])))
    return np.mean(scores), np.std(scores)


@pytest.mark.parametrize(("count", "classes", "splits"), [(200, 10, 10), (57, 300, 10), (20, 1008, 3), (10, 5, 10)])
def test_the_score_is_scipys_also_with_fewer_pictures_than_classes(count, classes, splits):
    logits = 3 * np.random.default_rng(count).normal(size=(count, classes))
    result = inception_score(logits, splits)
    assert result == pytest.approx(plain_inception_score(logits, splits), abs=1e-6)


def test_closed_forms_of_the_score():
    # All alike: 1. Sure and evenly spread over ten classes, in one split: 10.
    assert inception_score(np.tile(np.arange(7.0), (40, 1)))[0] == pytest.approx(1, abs=1e-9)
    sure = 1000 * np.eye(10)[np.arange(50) % 10]
    assert inception_score(sure, splits=1) == pytest.approx((10, 0), abs=1e-6)
    # Two classes, with probability q for the one that is right: exp(log 2 - H(q)).
    q = 0.8
    logits = np.log(np.where(np.eye(2)[np.arange(20) % 2] > 0, q, 1 - q))
    expected = np.exp(np.log(2) + q * np.log(q) + (1 - q) * np.log(1 - q))
    assert inception_score(logits, splits=1)[0] == pytest.approx(expected, abs=1e-9)
    # Logits are known up to a constant.
    assert inception_score(logits + 500, splits=1)[0] == pytest.approx(expected, abs=1e-9)
    with refused("11 splits", "10"):
        inception_score(np.ones((10, 3)), splits=11)


# Files.


def test_features_come_from_any_file(tmp_path):
    x = features(6, 4, 0).astype(np.float32)
    np.savez(tmp_path / "named.npz", features=x, other=x[:2])
    np.savez(tmp_path / "only.npz", x)
    np.save(tmp_path / "plain.npy", x)
    for name in ("named.npz", "only.npz", "plain.npy"):
        assert np.array_equal(read_features(tmp_path / name), x.astype(np.float64)), name


def test_statistics_come_from_mu_and_sigma_or_from_features(tmp_path):
    x = features(9, 4, 0)
    expected = Statistics.of(x)
    np.savez(tmp_path / "statistics.npz", mu=expected.mean, sigma=expected.covariance)
    np.save(tmp_path / "features.npy", x)
    for name in ("statistics.npz", "features.npy"):
        found = read_statistics(tmp_path / name)
        assert np.allclose(found.mean, expected.mean) and np.allclose(found.covariance, expected.covariance)
    np.savez(tmp_path / "odd.npz", mu=expected.mean, sigma=expected.covariance[:2])
    with refused("odd.npz", "(2, 4)"):
        read_statistics(tmp_path / "odd.npz")


def test_files_that_hold_no_features_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    np.save(tmp_path / "flat.npy", np.ones(3))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for name, value in (("nan", np.nan), ("infinite", np.inf)):
        np.save(tmp_path / f"{name}.npy", np.full((2, 2), value))
    (tmp_path / "broken.npz").write_text("no archive")
    torch.save(torch.ones(2, 2), tmp_path / "tensor.pt")  # numpy's files only
    for name in ("two.npz", "flat.npy", "objects.npy", "broken.npz", "tensor.pt", "nowhere.npy", "picture.png"):
        with refused(name):
            read_features(tmp_path / name)
    for name in ("nan.npy", "infinite.npy"):
        with refused(name, "not finite"):
            read_features(tmp_path / name)


def test_pictures_of_a_folder_are_found_in_order_without_hidden_ones(tmp_path):
    for name in ("b/2.png", "a/1.png", "a/.1.part.png", "c.jpg", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [path.relative_to(tmp_path).as_posix() for path in pictures_in(tmp_path)] == ["a/1.png", "b/2.png", "c.jpg"]
    with refused("no folder"):
        pictures_in(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with refused("no pictures"):
        pictures_in(tmp_path / "empty")


def test_without_the_package_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    Image.new("RGB", (4, 4)).save(tmp_path / "0.png")
    with refused("torch-fidelity", "region-tokens[fid]", "--features"):
        extract(pictures_in(tmp_path), True, 8, "cpu")


@pytest.fixture
def torch_fidelity(monkeypatch):
    """A stand-in for the package with a network of ours, the mean colours: what is asked of it, and in which order."""

    class Extractor(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.scale = {"2048": 1.0, "logits_unbiased": 2.0}[layer]

        def forward(self, pixels):
            assert pixels.dtype == torch.uint8 and pixels.shape[1] == 3
            return (self.scale * pixels.double().mean(dim=(2, 3)).float(),)

    def create_feature_extractor(name, list_features, cuda=True, **_):
        assert name == "inception-v3-compat" and not cuda
        return Extractor(*list_features)

    utils = ModuleType("torch_fidelity.utils")
    utils.create_feature_extractor = create_feature_extractor
    monkeypatch.setitem(sys.modules, "torch_fidelity", ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, "torch_fidelity.utils", utils)


@pytest.mark.parametrize("sizes", [[(4, 6)] * 5, [(4, 6), (5, 5), (4, 6), (8, 3), (2, 2)]])
def test_the_extractor_sees_every_picture_in_order_whatever_the_batch_and_the_sizes(torch_fidelity, tmp_path, sizes):
    rng = np.random.default_rng(0)
    expected = []
    for index, size in enumerate(sizes):
        pixels = rng.integers(0, 256, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
        expected.append(pixels.mean(axis=(0, 1)))
    files = pictures_in(tmp_path)
    for logits, scale in ((False, 1), (True, 2)):
        found = extract(files, logits, 2, "cpu")
        assert np.allclose(found, scale * np.array(expected), atol=1e-3)
