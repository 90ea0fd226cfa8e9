"""Base training: Muon, checkpoints, and small backbones of both families from scratch."""

import json
import os

import pytest
import torch

import rti
from rti.loading import load_backbone
from rti.text.words import WordEncoder
from rti.training.assemble import make_trainer, new_backbone, open_text
from rti.training.config import PretrainConfig
from rti.training.pretraining import Muon, orthogonalise
from rti.training.state import CannotSave, checkpoints, load_checkpoint, save_checkpoint
from rti.training.tasks import velocity_losses
from test_cli import run, run_json
from test_trainer import assert_equal, trained_values
from tiny import refused

SIZES = {
    "scenes": (
        "image_size=32",
        "noise_scale=1.0",
        "patch_spacing=2",
        "prompt_length=12",
        "hidden_size=32",
        "txt_hidden_size=32",
    )
    + ("depth_double=3", "num_heads=2", "head_dim=16"),
    "scenes-jit": ("input_size=32", "noise_scale=1.0", "patch_spacing=2")
    + ("hidden_size=32", "depth=3", "num_heads=2", "in_context_start=1"),
}
SMALL = dict(batch=4, batch_per_device=4, save_every=2, warmup=2, sample_every=0, log_with="none", data="scenes")


def config_of(model: str, folder, **changes) -> PretrainConfig:
    return PretrainConfig(model=model, output=str(folder), **dict(sizes=SIZES[model], **SMALL) | changes)


@pytest.fixture(params=SIZES)
def model(request) -> str:
    return request.param


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


def test_muon_takes_the_matrices_of_blocks_and_adam_the_rest(tmp_path):
    trainer = make_trainer(config_of("scenes", tmp_path / "run", steps=1))
    muon, adam = ({id(one) for one in optimiser.param_groups[0]["params"]} for optimiser in trainer.optimisers)
    matrices = {id(p) for name, p in trainer.parameters.items() if "blocks." in name and p.ndim == 2}
    assert matrices
    assert muon == matrices
    assert adam == {id(parameter) for parameter in trainer.parameters.values()} - muon


def test_weight_decay_is_that_of_muon_too(tmp_path):
    def decays(**changes) -> list[float]:
        trainer = make_trainer(config_of("scenes-jit", tmp_path / str(len(changes)), steps=1, **changes))
        return [optimiser.param_groups[0]["weight_decay"] for optimiser in trainer.optimisers]

    assert decays(weight_decay=0.3) == [0.3, 0.3]
    assert decays() == [0.01, 0.0]


def test_a_fresh_model_wakes_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: pytest.fail("a GPU was asked for its state"))
    before = torch.get_rng_state()
    config = config_of("scenes", tmp_path / "run")
    backbone = new_backbone(config)
    first, again = (open_text(config, backbone).state_dict() for _ in range(2))
    assert_equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_checkpoint_is_written_where_folders_cannot_be_opened(tmp_path, monkeypatch):
    """As on Windows, which also forces no file to the disk that was opened for reading alone."""
    import fcntl

    opened, forced = os.open, os.fsync

    def open_no_folder(path, *options, **more) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied")
        return opened(path, *options, **more)

    def force_what_may_be_written(descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        forced(descriptor)

    monkeypatch.setattr(os, "open", open_no_folder)
    monkeypatch.setattr(os, "fsync", force_what_may_be_written)
    save_checkpoint(tmp_path / "run", 1, {"weight": torch.ones(2)}, {}, keep=1)
    assert load_checkpoint(tmp_path / "run")[1]["step"] == 1


def test_the_velocity_loss_divides_by_the_time_that_remains():
    clean, images = torch.zeros(3, 1, 2, 2), torch.ones(3, 1, 2, 2)
    losses = velocity_losses(clean, images, torch.tensor([0.0, 0.5, 0.99]), floor=0.05)
    torch.testing.assert_close(losses, torch.tensor([1.0, 4.0, 400.0]))


def test_a_broken_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"weight": torch.full((2,), float(step))}, {"bad_steps": 0}, keep=2)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["checkpoint-00000002", "checkpoint-00000003"]
    file = tmp_path / "checkpoint-00000003" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    tensors, values = load_checkpoint(tmp_path)
    assert (values["step"], tensors["weight"].tolist()) == (2, [2.0, 2.0])
    (tmp_path / "checkpoint-00000004.part").mkdir()
    assert load_checkpoint(tmp_path)[1]["step"] == 2


def test_a_broken_checkpoint_is_not_kept_in_the_place_of_a_whole_one(tmp_path, capsys):
    save_checkpoint(tmp_path, 500, {"weight": torch.ones(2)}, {}, keep=1)
    (tmp_path / "checkpoint-00000500" / "state.safetensors").write_bytes(b"torn")
    assert load_checkpoint(tmp_path) is None
    assert "checkpoint-00000500 cannot be read" in capsys.readouterr().err
    save_checkpoint(tmp_path, 100, {"weight": torch.ones(2)}, {}, keep=1)
    assert [folder.name for folder in checkpoints(tmp_path)] == ["checkpoint-00000100"]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path):
    """The limit on the size of a file is the system's own way to say that there is no room."""
    import resource

    save_checkpoint(tmp_path, 1, {"weight": torch.ones(2)}, {}, keep=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(CannotSave):
            save_checkpoint(tmp_path, 2, {"weight": torch.ones(100_000)}, {}, keep=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [folder.name for folder in tmp_path.iterdir()] == ["checkpoint-00000001"]
    assert load_checkpoint(tmp_path)[1]["step"] == 1


@pytest.mark.parametrize("optimiser", ["muon", "adamw"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, model, optimiser):
    whole = make_trainer(config_of(model, tmp_path / "whole", steps=4, optimiser=optimiser))
    whole.run()
    make_trainer(config_of(model, tmp_path / "parts", steps=2, optimiser=optimiser)).run()
    parts = make_trainer(config_of(model, tmp_path / "parts", steps=4, optimiser=optimiser))
    assert parts.step == 2
    parts.run()
    assert_equal(trained_values(parts), trained_values(whole))


def test_a_fresh_model_learns(tmp_path, model):
    """At first it draws nothing; soon it draws the pictures' mean."""
    trainer = make_trainer(config_of(model, tmp_path / "run", steps=60, batch=8, batch_per_device=8, ema=0.9))
    losses = [trainer.train_step() for _ in range(60)]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


def test_a_run_writes_a_model_with_its_averages_that_loads(tmp_path, model):
    trainer = make_trainer(config_of(model, tmp_path / "run", steps=3))
    trainer.run()
    backbone = load_backbone(tmp_path / "run" / "model")
    state = backbone.state_dict()
    averaged = {name.removeprefix("backbone."): v for name, v in trainer.average.values.items() if "words" not in name}
    assert_equal({name: state[name] for name in averaged}, averaged)
    assert set(state) >= set(averaged)


def test_the_model_of_a_run_draws_from_words(tmp_path):
    make_trainer(config_of("scenes", tmp_path / "run", steps=1)).run()
    pipe = rti.Pipeline.from_pretrained(tmp_path / "run" / "model")
    assert isinstance(pipe.text_encoder, WordEncoder)
    picture = pipe("a red star left of a blue circle", num_inference_steps=2, progress=False).images[0]
    assert picture.size == (32, 32)
    with refused("dragon", "star"):
        pipe("a purple dragon", num_inference_steps=2, progress=False)


def test_a_run_at_the_full_size_starts_from_one_at_half_the_size(tmp_path, model):
    half = make_trainer(config_of(model, tmp_path / "half", steps=2))
    half.run()
    sizes = tuple(size for size in SIZES[model] if not size.startswith(("image_size", "input_size", "patch_spacing")))
    start = str(tmp_path / "half" / "model")
    full = make_trainer(config_of(model, tmp_path / "full", steps=2, sizes=sizes, start_from=start))
    assert full.task.backbone.image_size == (64, 64)
    assert_equal(
        {name: value.detach() for name, value in full.parameters.items()},
        {name: value.detach() for name, value in half.average.values.items()},
    )
    narrow = {"scenes": "pca_channels=8", "scenes-jit": "bottleneck_dim=8"}[model]
    with refused("does not fit"):
        make_trainer(config_of(model, tmp_path / "narrow", steps=2, sizes=(*sizes, narrow), start_from=start))


def test_positions_at_half_the_size_lie_between_those_of_the_full_size(tmp_path, model):
    half = make_trainer(config_of(model, tmp_path / "half", steps=2)).task.backbone
    sizes = tuple(size for size in SIZES[model] if not size.startswith(("image_size", "input_size", "patch_spacing")))
    full = make_trainer(config_of(model, tmp_path / "full", steps=2, sizes=sizes)).task.backbone
    count = full.patch_phasors().shape[-1] // 2
    angles = [
        torch.atan2(values[0, :, count:], values[0, :, :count])
        for values in (half.patch_phasors(), full.patch_phasors())
    ]
    coarse, fine = (angle.unflatten(0, grid) for angle, grid in zip(angles, (half.grid, full.grid), strict=True))
    slow = count // 2 - 1  # the slowest of a row's angles, which never turns round
    torch.testing.assert_close(coarse[:, 0, slow], (fine[0::2, 0, slow] + fine[1::2, 0, slow]) / 2, atol=1e-6, rtol=0)


def test_the_command_trains_and_goes_on(capsys, tmp_path):
    arguments = ("pretrain", "scenes-jit", "--output", tmp_path / "run", "--sizes", ",".join(SIZES["scenes-jit"]))
    arguments += ("--batch", 4, "--batch-per-device", 2, "--sample-every", 0, "--log-with", "none")
    assert run_json(capsys, *arguments, "--steps", 2)["step"] == 2
    values = run_json(capsys, *arguments, "--steps", 3)
    assert values["step"] == 3
    assert load_backbone(values["model"]).config.num_classes == 56
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert settings["batch"] == 4
    code, _, err = run(capsys, *arguments, "--steps", 3, "--seed", 3)
    assert (code, "another seed" in err) == (2, True)


BAD = {
    "an unknown model": (("nothing",), "nothing"),
    "an unknown size": (("scenes", "--sizes", "colour=3"), "colour"),
    "a size that is no number": (("scenes", "--sizes", "image_size=big"), "big"),
    "a size without a value": (("scenes", "--sizes", "image_size"), "name=value"),
    "a size that is not finite": (("scenes", "--sizes", "noise_scale=nan"), "noise_scale"),
    "sizes that make no model": (("scenes", "--sizes", "num_heads=-1"), "num_heads must be a whole number from 1"),
    "an unknown optimiser": (("scenes", "--optimiser", "sgd"), "sgd"),
    "a start that is not there": (("scenes", "--start-from", "nowhere"), "nowhere"),
}


@pytest.mark.parametrize(("words", "named"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused_in_one_line(capsys, tmp_path, words, named):
    code, _, err = run(capsys, "pretrain", *words, "--output", tmp_path / "run", "--steps", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert named in err
    assert not (tmp_path / "run").exists()
