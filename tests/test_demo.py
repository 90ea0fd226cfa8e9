"""`rti demo`: rows that take turns, regions drawn, accuracies as measured."""

import json

import pytest
import torch
from PIL import Image

import rti
from rti import shipped
from rti.images import contact_sheet
from rti.lab.demo import PROMPTS, demo_sheet, measured_accuracies, run_demo
from rti.lab.scenes import encode
from test_cli import run, run_json
from test_shipped import made as made
from test_shipped import models as models


def test_the_prompts_are_in_the_vocabulary():
    for prompt in PROMPTS:
        encode(prompt, 64)


def test_every_row_has_the_same_prompts_and_noise_and_its_own_regions(models, monkeypatch):
    pipe = rti.Pipeline.from_pretrained("scenes", fuse=False)
    rows = run_demo(pipe, (16, 4), PROMPTS[:2], steps=2, seed=3, passes=1)
    assert [row.budget for row in rows] == [None, 16, 4]
    assert rows[0].speedup == 1.0
    assert rows[1].speedup == pytest.approx(rows[0].seconds / rows[1].seconds)
    regions = [row.drawn.regions for row in rows]
    assert [None if ids is None else ids.unique().numel() for ids in regions] == [None, 16, 4]
    generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    settings = dict(num_inference_steps=2, generator=generators, progress=False)
    expected = pipe(list(PROMPTS[:2]), dense=True, **settings).images
    assert [list(one.getdata()) for one in rows[0].drawn.images] == [list(one.getdata()) for one in expected]
    sheets = []
    monkeypatch.setattr("rti.lab.demo.contact_sheet", lambda *given: sheets.append(given) or contact_sheet(*given))
    sheet = demo_sheet(rows, PROMPTS[:2], pipe.backbone.grid, {None: 0.5, 4: 0.25})
    assert sheet.size[1] > 4 * 160  # three rows, and one with regions
    lines = [label.split("\n") for label in sheets[0][1]]
    assert [one[0] for one in lines] == ["dense", "R = 16", "its 16", "R = 4"]
    assert [one[-1] for one in lines if "right" in one[-1]] == ["50 % right", "25 % right"]


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
