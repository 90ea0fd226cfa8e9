"""`rti demo`: rows that take turns, regions drawn, accuracies as measured."""

import json

import pytest
import torch
from PIL import Image

import rti
from rti import shipped
from rti.lab.demo import PROMPTS, demo_sheet, measured_accuracies, run_demo
from rti.lab.scenes import encode
from test_cli import run, run_json
from test_shipped import made as made
from test_shipped import models as models


def test_the_prompts_are_in_the_vocabulary():
    for prompt in PROMPTS:
        encode(prompt, 64)


def test_every_row_has_the_same_prompts_and_noise_and_its_own_regions(models):
    pipe = rti.Pipeline.from_pretrained("scenes", fuse=False)
    rows = run_demo(pipe, (16, 4), PROMPTS[:2], steps=2, seed=3, passes=1, accuracies={None: 0.5, 4: 0.25})
    assert [row.budget for row in rows] == [None, 16, 4]
    assert [row.title.split("\n")[0] for row in rows] == ["dense", "R = 16", "R = 4"]
    assert rows[0].speedup == 1.0
    assert rows[1].speedup == pytest.approx(rows[0].seconds / rows[1].seconds)
    assert ["right" in row.title for row in rows] == [True, False, True]
    assert [None if row.regions is None else row.regions.unique().numel() for row in rows] == [None, 16, 4]
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    settings = dict(num_inference_steps=2, generator=generators, progress=False)
    expected = pipe(list(PROMPTS[:2]), dense=True, **settings).images
    assert [list(one.getdata()) for one in rows[0].pictures] == [list(one.getdata()) for one in expected]
    sheet = demo_sheet(rows, PROMPTS[:2], pipe.backbone.grid)
    assert sheet.size[1] > 4 * 160  # three rows, and one with regions


def test_the_command_writes_the_picture_and_says_what_was_measured(capsys, models, tmp_path):
    results = {"rows": [{"budget": "dense", "overall": 0.9, "images": 12}, {"budget": 8, "overall": 0.5, "images": 12}]}
    (models / "scenes" / "results.json").write_text(json.dumps(results))
    assert measured_accuracies(models / "scenes") == ({None: 0.9, 8: 0.5}, 12)
    values = run_json(capsys, "demo", "--steps", 1, "--passes", 1, "--budget", "16,8", "-o", tmp_path / "demo.png")
    assert [row["budget"] for row in values["rows"]] == ["dense", 16, 8]
    assert [row["accuracy"] for row in values["rows"]] == [0.9, None, 0.5]
    assert Image.open(tmp_path / "demo.png").size[0] > 5 * 160


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--steps", 0), "steps"),
        (("--device", "quantum"), "quantum"),
        (("--budget", "many"), "many"),
        (("--budget", "65"), "65"),
    ],
)
def test_bad_input_is_refused(capsys, models, tmp_path, words, named):
    code, _, err = run(capsys, "demo", *words, "-o", tmp_path / "demo.png")
    assert (code, named in err) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_without_its_model_the_demo_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "MODELS", tmp_path)
    code, _, err = run(capsys, "demo", "-o", tmp_path / "demo.png")
    assert (code, "scenes" in err) == (2, True)
