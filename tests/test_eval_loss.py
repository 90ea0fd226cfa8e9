"""The paired validation loss: what it is, and that budgets are compared on the same draws."""

import numpy as np
import pytest
import torch

import rti
from rti.data import Shuffle, open_data
from rti.lab.evaluation.loss import evaluate_loss
from rti.training.draws import DrawSettings, draw
from test_cli import run, run_json
from test_train_command import pictures as pictures
from test_trainer import FourPictures, letters
from tiny import CORE, make_backbone, randomise_trainable, refused, save_jit

CONFIG = rti.RegionConfig(core=CORE, cuts="merge", cuts_from="estimate", lora_rank=2, lora_alpha=2)


def make_pipeline(family: str, trained: bool = True) -> rti.Pipeline:
    model = rti.attach(make_backbone(family), CONFIG)
    if trained:
        randomise_trainable(model)
    return rti.Pipeline(model, letters if family == "minit2i" else None)


def test_dense_is_the_velocity_loss_of_the_frozen_backbone(family):
    pipe = make_pipeline(family)
    source = FourPictures(pipe.backbone.image_size)
    [result] = evaluate_loss(pipe, source, examples=4, seed=3, progress=False)
    order = Shuffle.of(source, 3)
    draws = draw((3, 32, 32), 3, 0, range(4), DrawSettings(drop=0.0))
    backbone = make_backbone(family)
    for position in range(4):
        image, caption, label = source[order.index(position)]
        if family == "jit":
            condition = backbone.condition(labels=torch.tensor([label]))
        else:
            states, mask = letters([caption], backbone.config.prompt_length)
            condition = backbone.condition(text=states, mask=mask)
        t = draws.t[position]
        x = t * image + (1 - t) * backbone.flow.noise_scale * draws.noise[position]
        with torch.no_grad():
            clean = backbone(x[None], t[None], condition)[0]
        expected = ((clean - image) / (1 - t).clamp_min(0.05)).square().mean().item()
        assert result.losses[position] == pytest.approx(expected, rel=1e-4)


def test_a_fresh_interface_at_all_patches_is_no_worse_than_dense_and_an_adapter_differs(family):
    fresh = make_pipeline(family, trained=False)
    source = FourPictures(fresh.backbone.image_size)
    dense, whole, few = evaluate_loss(fresh, source, [None, 64, 4], examples=6, batch=4, progress=False)
    dense, whole, few = dense.row, whole.row, few.row
    assert "difference_to_dense" not in dense
    assert whole["difference_to_dense"] == pytest.approx(0.0, abs=1e-4 * dense["loss"])
    low, high = few["difference_interval"]
    assert few["difference_to_dense"] == pytest.approx(few["loss"] - dense["loss"])
    assert low <= few["difference_to_dense"] <= high
    assert few["difference_to_dense"] != 0


def test_the_batch_does_not_change_the_losses(family):
    pipe = make_pipeline(family)
    source = FourPictures(pipe.backbone.image_size)
    one, all_at_once = (
        evaluate_loss(pipe, source, [8], examples=5, batch=batch, progress=False)[0].losses for batch in (1, 5)
    )
    np.testing.assert_allclose(one, all_at_once, rtol=1e-3)


def test_what_cannot_be_measured_is_refused():
    backbone = make_backbone("jit")
    source = FourPictures(backbone.image_size)
    with refused("adapter"):
        evaluate_loss(rti.Pipeline(backbone), source, [8], progress=False)
    with refused("examples", "0"):
        evaluate_loss(rti.Pipeline(backbone), source, examples=0, progress=False)


def test_the_command_prints_a_row_for_each_budget(capsys, tmp_path, pictures):
    save_jit(tmp_path / "model")
    rti.attach(rti.load_backbone(tmp_path / "model"), CONFIG).save_pretrained(tmp_path / "adapter")
    arguments = ("eval", "loss", tmp_path / "adapter", "--data", pictures, "--examples", 6)
    values = run_json(capsys, *arguments, "--budget", "dense,64,8")
    assert [row["budget"] for row in values["rows"]] == ["dense", 64, 8]
    assert values["loss"] == values["rows"][0]["loss"] > 0
    assert values["rows"][1]["difference_to_dense"] == pytest.approx(0.0, abs=1e-4 * values["loss"])
    code, _, err = run(capsys, "eval", "loss", tmp_path / "model", "--data", pictures, "--budget", 8)
    assert (code, err.count("\n"), "adapter" in err) == (2, 1, True)


def test_scenes_of_another_seed_are_other_pictures():
    one, two = (open_data("scenes", 32, seed=seed)[0].image for seed in (0, 7))
    assert not torch.equal(one, two)
