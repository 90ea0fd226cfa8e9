"""`rti train`, from the command line to an adapter that samples."""

import json
import os
import signal
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import rti
from rti.cli.train import peak_memory
from rti.text.encoder import load_text_encoder
from rti.training.config import PretrainConfig, TrainConfig
from rti.training.trainer import Trainer
from test_cli import run, run_json
from tiny import refused, save_jit

RECIPE = ("--steps", 3, "--batch", 4, "--batch-per-device", 2, "--budgets", "4,8", "--core", "1,2", "--warmup", 1)
RECIPE += ("--sample-every", 0)


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Three classes of plain pictures, and a broken one."""
    generator = np.random.default_rng(0)
    for label, name in enumerate(("apple", "bread", "cheese")):
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True)
        for number in range(2):
            colour = generator.integers(0, 255, 3)
            pixels = np.broadcast_to(colour, (40 + 8 * label, 36, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    (tmp_path / "pictures" / "apple" / "2.png").write_bytes(b"not a picture")
    return tmp_path / "pictures"


def test_a_run_ends_in_an_adapter_that_samples_and_goes_on_when_asked_again(capsys, tmp_path, pictures):
    checkpoint = save_jit(tmp_path / "model")
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "run", "--data", pictures)
    values = run_json(capsys, *arguments, *RECIPE)
    assert values["step"] == 3
    assert values["peak_memory_gigabytes"] > 0.1
    assert run_json(capsys, *arguments, *RECIPE, "--steps", 5)["step"] == 5
    model = rti.load(tmp_path / "run" / "adapter")
    assert model.config.cuts_from == "estimate"
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert settings["budgets"] == [4, 8]
    output = tmp_path / "sample.png"
    run_json(capsys, "sample", "--model", values["adapter"], "--labels", 1, "--steps", 2, "--budget", 8, "-o", output)
    assert output.is_file()
    assert checkpoint.exists()


def test_the_broken_picture_is_skipped_and_counted(capsys, tmp_path, pictures):
    save_jit(tmp_path / "model")
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "run", "--data", pictures)
    assert run_json(capsys, *arguments, *RECIPE, "--steps", 4)["broken_examples"] >= 1  # 16 draws of 7 pictures


def test_the_same_seed_gives_the_same_adapter(capsys, tmp_path, pictures):
    save_jit(tmp_path / "model")
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        torch.manual_seed(len(name))  # whatever the state of torch's own generator
        run_json(
            capsys,
            *("train", tmp_path / "model", "--output", tmp_path / name, "--data", pictures),
            *(*RECIPE, "--seed", seed),
        )
    one, two, three = (
        (tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in ("one", "two", "three")
    )
    assert one == two
    assert one != three


def test_a_run_starts_from_the_adapter_of_another(capsys, tmp_path, pictures):
    """On other weights of the same shape too: what was learnt for one backbone is a start for the next."""
    save_jit(tmp_path / "model")
    save_jit(tmp_path / "better", seed=1)
    for model, output, more in (
        ("model", "one", ()),
        ("better", "two", ("--start-from", tmp_path / "one" / "adapter")),
    ):
        arguments = ("train", tmp_path / model, "--output", tmp_path / output, "--data", pictures, *RECIPE)
        run_json(capsys, *arguments, "--learning-rate", 0.1 if output == "one" else 1e-12, "--ema", 0, *more)
    for file in ("interface.safetensors", "adapter_model.safetensors"):
        one, two = (load_file(tmp_path / name / "adapter" / file) for name in ("one", "two"))
        assert one.keys() == two.keys()
        assert all(torch.allclose(two[name], value, atol=1e-6) for name, value in one.items())
    refusal = (*("--start-from", tmp_path / "one" / "adapter"), "--lora-rank", 5)
    code, _, err = run(
        capsys, "train", tmp_path / "model", "--output", tmp_path / "x", "--data", pictures, *RECIPE, *refusal
    )
    assert (code, err.count("\n"), "adapter_model.safetensors" in err) == (2, 1, True)


@pytest.mark.parametrize(
    ("preset", "paper"),
    [
        ("minit2i-b16", dict(steps=40_000, budgets=[64, 128, 256, 512], core=[3, 13], trainable=16_279_296)),
        ("minit2i-l16", dict(steps=40_000, budgets=[64, 128, 256, 512], core=[3, 19], trainable=36_004_704)),
        ("jit-b16", dict(steps=100_000, budgets=[32, 64, 128, 192], core=[4, 9], trainable=6_029_568)),
        ("jit-l16", dict(steps=100_000, budgets=[32, 64, 128, 192], core=[8, 19])),
    ],
)
def test_a_dry_run_shows_the_papers_settings_and_writes_nothing(capsys, tmp_path, preset, paper):
    values = run_json(capsys, "train", preset, "--output", tmp_path / "run", "--data", "nowhere", "--dry-run")
    shown = values | values["reduction"]
    assert {name: shown[name] for name in paper} == paper
    recipe = dict(learning_rate=1e-4, warmup=2000, batch=256, lora_rank=32, ema=0.9999, drop=0.1)
    recipe |= dict(time_mean=-0.8, time_deviation=0.8)
    assert {name: shown[name] for name in recipe} == recipe
    assert list(tmp_path.iterdir()) == []
    alone = run_json(capsys, "train", preset, "--dry-run")
    assert values | dict.fromkeys(("output", "data")) == alone | dict.fromkeys(("output", "data"))
    assert run_json(capsys, "info", preset)["reduction"] == alone["reduction"]


def test_a_model_that_is_none_is_answered_with_those_there_are(capsys):
    code, _, err = run(capsys, "train", "minit2i-b61", "--dry-run")
    assert (code, err.count("\n")) == (2, 1)
    assert "'minit2i-b61'" in err
    assert all(name in err for name in (*rti.PRESETS, "scenes"))
    code, _, err = run(capsys, "train", "minit2i-b16")
    assert (code, "no preset" in err, "--output, --data" in err) == (2, False, True)


def test_an_empty_folder_does_not_hide_a_model_that_ships(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes").mkdir()
    code, out, _ = run(capsys, "train", "scenes", "--dry-run")
    assert code == 0 and "0.995" in out  # the average's decay, in full


def test_a_dry_run_shows_no_python(capsys):
    code, out, _ = run(capsys, "train", "jit-b16", "--dry-run")
    assert (code, "{" in out) == (0, False)


@pytest.mark.parametrize(("command", "kind"), [("train", TrainConfig), ("pretrain", PretrainConfig)])
def test_help_explains_every_setting(capsys, monkeypatch, command, kind):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    settings = [field for field in fields(kind) if field.name not in ("model", "output", "data")]
    if command == "train":
        follow = ("text_regions", "one_pass")  # from --text-budgets, and from rti adapt --guidance
        settings += [field for field in fields(rti.RegionConfig) if field.name not in follow]
    for setting in settings:
        line = next(line for line in out.splitlines() if f" --{setting.name.replace('_', '-')} " in line)
        assert len(line.split()) > 2, line  # its name, its default and some words
    assert ("merge" in out, " 0.01 " in out) == (command == "train", command == "pretrain")


def test_a_text_encoder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "list.json").write_text("[1, 2]")
    with refused("list.json", "a folder"):
        load_text_encoder(tmp_path / "list.json")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU tells its own")
def test_no_peak_of_memory_is_told_where_there_is_no_resource_module(monkeypatch):
    """As on Windows."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() is None


BAD = {
    "an unknown setting": (("--stepz", "3"), "--stepz"),
    "a setting of the wrong type": (("--steps", "few"), "few"),
    "an unknown reduction": (("--reduction", "nothing"), "nothing"),
    "a budget above N": (("--budgets", "65"), "65"),
    "an infinite learning rate": (("--learning-rate", "inf"), "learning_rate"),
    "a mean that is no number": (("--time-mean", "nan"), "time_mean"),
    "a core outside the trunk": (("--core", "1,99"), "99"),
    "no data there": (("--data", "nowhere"), "nowhere"),
    "a negative weight decay": (("--weight-decay", "-1"), "weight_decay"),
    "a seed beyond all numbers": (("--seed", 10**30), "seed"),
    "no sampling steps": (("--sample-steps", 0), "sample_steps"),
    "an estimate above N": (("--estimate-budget", 65), "65"),
    "a start that is not there": (("--start-from", "nowhere"), "nowhere holds no adapter"),
}


@pytest.mark.parametrize(("changes", "named"), BAD.values(), ids=BAD)
def test_bad_settings_are_refused_in_one_line(capsys, tmp_path, pictures, changes, named):
    save_jit(tmp_path / "model")
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "run", "--data", pictures, *RECIPE, *changes)
    code, _, err = run(capsys, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert named in err
    assert not (tmp_path / "run").exists()


def test_a_run_shows_what_it_does(capsys, tmp_path, pictures):
    """A log, tensorboard's events, and a sheet with a row for dense and each budget."""
    save_jit(tmp_path / "model")
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "run", "--data", pictures, *RECIPE)
    run_json(capsys, *arguments, "--sample-every", 2, "--sample-steps", 2, "--sample-count", 3, "--log-every", 1)
    entries = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [1, 2, 3]
    assert all(entry["loss"] == entry.get("loss/R=4", entry.get("loss/R=8")) for entry in entries)
    assert entries[0]["learning_rate"] == pytest.approx(1e-4)
    sheets = sorted((tmp_path / "run" / "samples").iterdir())
    assert [sheet.name for sheet in sheets] == ["step-00000002.png", "step-00000003.png"]
    width, height = Image.open(sheets[0]).size
    assert width > 3 * 128
    assert height > 3 * 128
    if find_spec("tensorboard"):
        assert list((tmp_path / "run" / "logs").rglob("events.out.tfevents*"))


def test_a_run_that_is_asked_to_stop_says_how_to_go_on(capsys, tmp_path, pictures, monkeypatch):
    save_jit(tmp_path / "model")
    step = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", lambda self: (step(self), os.kill(os.getpid(), signal.SIGTERM))[0])
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "run", "--data", pictures, *RECIPE)
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, json.loads(out.splitlines()[-1])["step"]) == (130, 1)
    assert "stopped at step 1" in err
    assert "same command again" in err


def test_the_settings_of_a_run_are_those_of_another_if_asked(capsys, tmp_path, pictures):
    save_jit(tmp_path / "model")
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "one", "--data", pictures, *RECIPE)
    run_json(capsys, *arguments, "--cuts", "gaps", "--cuts-from", "features", "--seed", 4)
    config = tmp_path / "one" / "config.json"
    run_json(capsys, "train", config, "--output", tmp_path / "two")
    one, two = ((tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    assert rti.load(tmp_path / "two" / "adapter").config.cuts == "gaps"
    values = run_json(capsys, "train", config, "--learning-rate", "0.5", "--dry-run")
    assert (values["learning_rate"], values["seed"]) == (0.5, 4)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"stepz": 3}))
    code, _, err = run(capsys, "train", config, "--output", tmp_path / "three")
    assert (code, "stepz" in err) == (2, True)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps": "few"}, "few"),
        ({"steps": 1.5}, "1.5"),
        ({"budgets": ["a"]}, "a"),
        ({"reduction": "region"}, "region"),
    ],
)
def test_a_config_file_with_values_of_another_kind_is_refused(capsys, tmp_path, pictures, change, named):
    save_jit(tmp_path / "model")
    values = dict(model=str(tmp_path / "model"), data=str(pictures), steps=1, budgets=[4], reduction={"core": [1, 2]})
    (tmp_path / "config.json").write_text(json.dumps(values | change))
    code, _, err = run(capsys, "train", tmp_path / "config.json", "--output", tmp_path / "run")
    assert (code, err.count("\n"), named in err) == (2, 1, True)


def test_a_refused_run_does_not_stand_in_the_way_of_its_correction(capsys, tmp_path, pictures):
    save_jit(tmp_path / "model")
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "run", "--data", pictures, *RECIPE)
    code, _, err = run(capsys, *arguments, "--text-budgets", 1)
    assert (code, err.count("\n"), "has no text" in err) == (2, 1, True)
    assert run_json(capsys, *arguments, "--steps", 1)["step"] == 1
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, *arguments, "--output", tmp_path / "file")
    assert (code, err.count("\n"), "cannot write" in err) == (2, 1, True)


def test_more_classes_than_the_model_knows_are_refused(capsys, tmp_path, pictures):
    save_jit(tmp_path / "model", num_classes=2)
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "run", "--data", pictures, *RECIPE)
    code, _, err = run(capsys, *arguments)
    assert (code, "3 classes" in err, "2" in err) == (2, True, True)


def test_random_weights_train_without_a_text_encoder(capsys, tmp_path, monkeypatch):
    """The machinery at a preset's size, without a download; here the preset is made small."""
    from dataclasses import replace

    from rti.presets import PRESETS
    from tiny import SIZES

    sizes = SIZES["minit2i"] | {"prompt_length": 16}
    monkeypatch.setitem(PRESETS, "minit2i-b16", replace(PRESETS["minit2i-b16"], sizes=sizes))
    arguments = ("train", "minit2i-b16", "--init", "random", "--output", tmp_path / "run", "--data", "scenes", *RECIPE)
    assert run_json(capsys, *arguments, "--gradient-checkpointing", "--steps", 2)["step"] == 2


def test_a_run_is_not_gone_on_with_under_other_settings(capsys, tmp_path, pictures):
    save_jit(tmp_path / "model")
    arguments = ("train", tmp_path / "model", "--output", tmp_path / "run", "--data", pictures, *RECIPE)
    run_json(capsys, *arguments)
    code, _, err = run(capsys, *arguments, "--cuts", "gaps")
    assert (code, "reduction" in err) == (2, True)
