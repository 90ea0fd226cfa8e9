"""Base training: Muon, the loss, checkpoints, and a run that was stopped."""

import json
import math

import pytest
import torch

import rti
from rti.scenes.encoder import WordEncoder
from rti.training.loss import draw_times, velocity_loss
from rti.training.muon import Muon, orthogonalise, split_parameters
from rti.training.pretrain import PretrainConfig, Run
from rti.training.state import checkpoints, load_checkpoint, save_checkpoint
from tiny import refused

SMALL = dict(batch=4, image_size=32, prompt_length=12, compile=False, save_every=2, warmup=2, evaluate_every=0)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 12), (2, 12, 5)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_loses_its_scales(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    result = orthogonalise(matrices)
    values = torch.diagonal(u.mT @ result @ vh.mT, dim1=1, dim2=2)
    assert values.min() > 0.3
    assert values.max() < 1.4
    torch.testing.assert_close(u @ torch.diag_embed(values) @ vh, result, atol=1e-4, rtol=0)


def test_muon_finds_a_linear_map():
    generator = torch.Generator().manual_seed(0)
    target, inputs = torch.randn(6, 9, generator=generator), torch.randn(64, 9, generator=generator)
    weight = torch.nn.Parameter(torch.zeros(6, 9))
    optimiser = Muon([weight], lr=0.05, weight_decay=0.0)
    losses = []
    for step in range(300):
        optimiser.param_groups[0]["lr"] = 0.05 * (1 - step / 300)
        loss = (inputs @ (weight - target).T).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 1e-3 * losses[0]


def test_muon_takes_the_matrices_of_blocks_and_adam_the_rest():
    run_parameters = torch.nn.ModuleDict(
        {"blocks": torch.nn.ModuleList([torch.nn.Linear(3, 4)]), "head": torch.nn.Linear(4, 2)}
    )
    matrices, others = split_parameters([run_parameters])
    assert [tuple(parameter.shape) for parameter in matrices] == [(4, 3)]
    assert len(others) == 3


def test_the_loss_is_that_of_the_velocity():
    images, clean = torch.zeros(2, 3, 4, 4), torch.ones(2, 3, 4, 4)
    t = torch.tensor([0.5, 0.99])
    assert velocity_loss(clean, images, t, floor=0.05).item() == pytest.approx((0.5**-2 + 0.05**-2) / 2)


def test_times_are_logit_normal():
    t = draw_times(20_000, -0.8, 0.8, torch.Generator().manual_seed(0))
    logits = torch.log(t / (1 - t))
    assert logits.mean().item() == pytest.approx(-0.8, abs=0.02)
    assert logits.std().item() == pytest.approx(0.8, abs=0.02)


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    whole = Run(PretrainConfig(output=str(tmp_path / "whole"), steps=4, **SMALL))
    whole.run()
    Run(PretrainConfig(output=str(tmp_path / "parts"), steps=2, **SMALL)).run()
    parts = Run(PretrainConfig(output=str(tmp_path / "parts"), steps=4, **SMALL))
    assert parts.step == 2
    parts.run()
    for name in ("learner", "average"):
        expected = getattr(whole, name).state_dict()
        for key, value in getattr(parts, name).state_dict().items():
            assert torch.equal(value, expected[key]), key


def test_a_broken_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"weight": torch.full((2,), float(step))}, {"bad_steps": 0}, keep=2)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["checkpoint-00000002", "checkpoint-00000003"]
    (tmp_path / "checkpoint-00000003" / "state.safetensors").write_bytes(b"torn")
    tensors, values = load_checkpoint(tmp_path)
    assert (values["step"], tensors["weight"].tolist()) == (2, [2.0, 2.0])
    (tmp_path / "checkpoint-00000004.part").mkdir()
    assert load_checkpoint(tmp_path)[1]["step"] == 2


def test_a_run_writes_a_model_that_draws_from_words(tmp_path):
    run = Run(PretrainConfig(output=str(tmp_path / "run"), steps=1, **SMALL))
    run.run()
    pipe = rti.Pipeline.from_pretrained(tmp_path / "run" / "model")
    assert isinstance(pipe.text_encoder, WordEncoder)
    picture = pipe("a red star left of a blue circle", num_inference_steps=2, progress=False).images[0]
    assert picture.size == (32, 32)
    with refused("dragon", "star"):
        pipe("a purple dragon", num_inference_steps=2, progress=False)


def test_a_loss_that_is_not_finite_is_skipped_and_five_in_a_row_stop_the_run(tmp_path, monkeypatch):
    run = Run(PretrainConfig(output=str(tmp_path / "run"), steps=20, **SMALL))
    before = {key: value.clone() for key, value in run.learner.state_dict().items()}
    nan = lambda *_: torch.tensor(math.nan, requires_grad=True)  # noqa: E731
    monkeypatch.setattr("rti.training.pretrain.velocity_loss", nan)
    with refused("five steps in a row"):
        run.run()
    assert all(torch.equal(value, before[key]) for key, value in run.learner.state_dict().items())


def test_a_run_is_not_gone_on_with_under_other_settings(tmp_path):
    Run(PretrainConfig(output=str(tmp_path), steps=1, **SMALL))
    assert json.loads((tmp_path / "config.json").read_text())["batch"] == 4
    with refused("another seed"):
        Run(PretrainConfig(output=str(tmp_path), steps=1, seed=3, **SMALL))
    Run(PretrainConfig(output=str(tmp_path), steps=9, **SMALL))
