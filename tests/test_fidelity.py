"""PSNR and SSIM to a reference's pictures, in `rti score`, `rti compare` and `rti eval scenes`."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from rti.cli import main
from rti.lab.pictures.compare import compare_folders
from rti.lab.pictures.scorers.fidelity import psnr, score_fidelity, ssim
from test_compare import make_run


def ssim_written_out(one: np.ndarray, other: np.ndarray) -> float:
    """A window at a time, in float64, as Wang et al. (2004) write it."""
    offsets = np.arange(11) - 5
    line = np.exp(-(offsets**2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    found = []
    for a, b in zip(one, other, strict=True):
        for row in range(a.shape[0] - 10):
            for column in range(a.shape[1] - 10):
                x, y = (some[row : row + 11, column : column + 11].astype(np.float64) for some in (a, b))
                mx, my = (window * x).sum(), (window * y).sum()
                vx, vy = (window * (x - mx) ** 2).sum(), (window * (y - my) ** 2).sum()
                both = (window * (x - mx) * (y - my)).sum()
                top = (2 * mx * my + 1e-4) * (2 * both + 9e-4)
                found.append(top / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    return float(np.mean(found))


def test_ssim_is_that_of_the_paper():
    random = torch.Generator().manual_seed(0)
    one = torch.rand(2, 3, 16, 14, generator=random)
    other = (one + 0.2 * torch.randn(one.shape, generator=random)).clamp(0, 1)
    expected = [ssim_written_out(a.numpy(), b.numpy()) for a, b in zip(one, other, strict=True)]
    assert ssim(one, other).tolist() == pytest.approx(expected, abs=1e-4)
    assert ssim(one, one).tolist() == pytest.approx([1, 1], abs=1e-5)


def test_psnr_is_of_the_mean_square_and_ends_at_a_hundred():
    one = torch.full((2, 3, 4, 4), 0.5)
    other = one.clone()
    other[0] += 0.1
    assert psnr(one, other).tolist() == pytest.approx([20, 100], abs=1e-3)


def run(*arguments) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    assert not ended.value.code


def paint(folder, seed: int) -> None:
    """Pictures of 16 x 16 in the place of the run's; some noise by the seed on the same ground."""
    for index, path in enumerate(sorted(folder.glob("*.png"))):
        ground = np.random.default_rng(index).integers(60, 190, (16, 16, 3))
        noise = np.random.default_rng([seed, index]).integers(-20, 21, ground.shape) if seed else 0
        Image.fromarray((ground + noise).astype(np.uint8)).save(path)


@pytest.fixture
def runs(tmp_path):
    folders = [
        make_run(tmp_path / name, np.ones((12, 4)), budget=budget) for name, budget in (("a", "dense"), ("b", 64))
    ]
    for seed, folder in enumerate(folders):
        paint(folder, seed)
    return folders


def test_each_picture_is_compared_with_its_own(runs, capsys):
    dense, other = runs
    scores = {score.metric: score for score in score_fidelity(dense, other, batch=5, progress=False)}
    assert {"psnr", "ssim"} <= set(scores)
    for row in (scores["psnr"].pictures[0], scores["psnr"].pictures[-1]):
        one, two = (np.asarray(Image.open(folder / row["file"])) / 255 for folder in runs)
        assert row["score"] == pytest.approx(-10 * math.log10(((one - two) ** 2).mean()), abs=1e-3)
    run("score", "fidelity", dense, other, "--json")
    values = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    low, high = values["psnr"]["interval"]
    assert low < values["psnr"]["score"] < high and values["psnr"]["pictures"] == 48
    rows = compare_folders(runs)
    assert rows[1]["scores"]["psnr"]["score"] == values["psnr"]["score"] and "psnr" not in rows[1]["differences"]
    run("compare", *runs)
    assert f"{values['psnr']['score']:.2f} ±" in capsys.readouterr().out


def test_what_was_compared_with_another_reference_does_not_count(runs, tmp_path):
    dense, other = runs
    third = make_run(tmp_path / "c", np.ones((12, 4)), budget=128)
    paint(third, 3)
    for score in score_fidelity(third, other, progress=False):
        score.write(other)
    found = compare_folders([dense, other])[1]
    assert "psnr" not in found["scores"]
    assert "geneval" in found["differences"]
    (third / "scores" / "geneval.json").unlink()  # what was compared with need not be scored itself
    assert "psnr" in compare_folders([third, other])[1]["scores"]
