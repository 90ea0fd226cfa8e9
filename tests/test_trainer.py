"""Elastic training: it lowers the loss at every budget, leaves the backbone alone, and survives being stopped."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rti
from rti.training.config import TrainConfig, preset_values
from rti.training.elastic import Dial, DrawSettings, ElasticObjective, draw
from rti.training.trainer import Trainer, frozen_parameters
from tiny import make_backbone, make_condition, refused


def make_trainer(folder, family="jit", backbone=None, cuts_from="estimate", **changes) -> Trainer:
    """A small model and four pictures that come round and round."""
    backbone = backbone or make_backbone(family)
    torch.manual_seed(0)  # LoRA's A starts at random
    model = rti.attach(backbone, rti.RegionConfig(core=(1, 2), cuts="merge", cuts_from=cuts_from, lora_rank=4))
    generator = torch.Generator().manual_seed(5)
    blocks = torch.rand(4, 3, 4, 4, generator=generator) * 2 - 1
    images = torch.nn.functional.interpolate(blocks, size=backbone.image_size, mode="nearest")
    conditions = make_condition(backbone, 4)

    def fetch(positions):
        index = torch.tensor([position % 4 for position in positions])
        return images[index], conditions[index]

    settings = dict(
        steps=6, budgets=(4, 8, 16), batch=8, batch_per_device=4, warmup=2, save_every=2, learning_rate=3e-3
    )
    config = TrainConfig(model="tiny", output=str(folder), data="made up", **settings | changes)
    return Trainer(config, model, fetch)


def trained_values(trainer: Trainer) -> dict[str, torch.Tensor]:
    values = {f"trained.{name}": parameter.detach().clone() for name, parameter in trainer.parameters.items()}
    return values | {f"average.{name}": value.clone() for name, value in trainer.average.values.items()}


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    different = [name for name, value in ours.items() if not torch.equal(value, theirs[name])]
    assert different == []


@pytest.mark.parametrize("cuts_from", ["features", "estimate"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, family, cuts_from):
    whole = make_trainer(tmp_path / "whole", family, cuts_from=cuts_from)
    whole.run()
    make_trainer(tmp_path / "parts", family, cuts_from=cuts_from, steps=3).run()
    parts = make_trainer(tmp_path / "parts", family, cuts_from=cuts_from)
    assert parts.step == 3
    parts.run()
    assert_equal(trained_values(parts), trained_values(whole))


def test_a_signal_saves_and_stops(tmp_path):
    trainer = make_trainer(tmp_path / "run", steps=1000, save_every=1000)
    before = signal.getsignal(signal.SIGTERM)
    trainer.run(on_step=lambda step, loss: os.kill(os.getpid(), signal.SIGTERM) if step == 3 else None)
    assert signal.getsignal(signal.SIGTERM) is before
    assert make_trainer(tmp_path / "run", steps=1000).step == 3


def test_micro_batches_do_not_change_a_step(tmp_path):
    one = make_trainer(tmp_path / "one", batch_per_device=8)
    four = make_trainer(tmp_path / "four", batch_per_device=2)
    for _ in range(3):
        assert one.train_step() == pytest.approx(four.train_step(), rel=1e-5)
        # Gradients, not weights: Adam divides by their size, and so enlarges the rounding of those near zero.
        for name, parameter in one.parameters.items():
            scale = parameter.grad.abs().max().item()
            torch.testing.assert_close(parameter.grad, four.parameters[name].grad, rtol=0, atol=1e-3 * scale + 1e-7)


def test_training_lowers_the_loss_at_every_budget_and_leaves_the_backbone_alone(tmp_path, family):
    trainer = make_trainer(tmp_path / "run", family, steps=60, save_every=60, ema=0.9, drop=0.0)
    frozen = {name: parameter.detach().clone() for name, parameter in frozen_parameters(trainer.model).items()}
    assert frozen

    @torch.no_grad()
    def losses() -> list[float]:
        images, condition = trainer.fetch(range(4))
        draws = draw(images.shape[1:], seed=9, step=0, examples=range(4), settings=DrawSettings(drop=0.0))
        objective = ElasticObjective(trainer.model)
        return [objective(images, condition, draws, Dial(budget, False), 4).mean().item() for budget in (4, 8, 16)]

    before = losses()
    trainer.run()
    assert all(after < 0.9 * start for after, start in zip(losses(), before, strict=True))
    assert_equal({name: parameter.detach() for name, parameter in frozen_parameters(trainer.model).items()}, frozen)

    model = rti.load(tmp_path / "run" / "adapter", backbone=make_backbone(family))
    with trainer.average.applied():
        expected = {
            name: parameter.detach().clone() for name, parameter in trainer.model.trainable_parameters().items()
        }
    assert_equal({name: parameter.detach() for name, parameter in model.trainable_parameters().items()}, expected)


def test_a_loss_that_is_not_finite_changes_nothing_and_five_in_a_row_stop_the_run(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run")
    trainer.train_step()
    before = trained_values(trainer)
    nan = lambda *_: (torch.full((4, 3, 32, 32), math.nan), make_condition(trainer.model.backbone, 4))  # noqa: E731
    monkeypatch.setattr(trainer, "fetch", nan)
    trainer.train_step()
    assert (trainer.skipped, trainer.step) == (1, 2)
    assert_equal(trained_values(trainer), before)
    with refused("5 steps in a row"):
        trainer.run()


def test_two_processes_give_the_losses_of_one(tmp_path, family):
    """Over gloo, with the same global batch; each process is started as `accelerate launch` would."""
    alone = make_trainer(tmp_path / "alone", family, batch_per_device=2)
    expected = [alone.train_step() for _ in range(20)]
    program = f"""
import json, sys
from pathlib import Path
from test_trainer import make_trainer
trainer = make_trainer(Path(sys.argv[1]) / "together", "{family}", batch_per_device=2)
losses = [trainer.train_step() for _ in range(20)]
if trainer.accelerator.is_main_process:
    print("losses", json.dumps([trainer.accelerator.num_processes, losses]))
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    finished = subprocess.run(
        [*command, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    line = next(line for line in finished.stdout.splitlines() if line.startswith("losses "))
    processes, losses = json.loads(line.removeprefix("losses "))
    assert processes == 2
    assert losses == pytest.approx(expected, rel=1e-5)


def test_the_global_batch_is_the_same_on_any_number_of_processes():
    config = TrainConfig(model="m", output="o", data="d", budgets=(4,), steps=1, batch=256, batch_per_device=8)
    assert [config.accumulation(processes) for processes in (1, 2, 8, 32)] == [32, 16, 4, 1]
    with refused("256", "5 processes"):
        config.accumulation(5)


def test_presets_hold_the_papers_rows():
    assert preset_values("minit2i-b16") == {"budgets": (64, 128, 256, 512), "steps": 40_000, "core": (3, 13)}
    assert preset_values("jit-b16") == {"budgets": (32, 64, 128, 192), "steps": 100_000, "core": (4, 9)}
    config = TrainConfig(model="m", output="o", data="d", budgets=(64,), steps=1)
    paper = (config.learning_rate, config.warmup, config.batch, config.ema, config.time_mean, config.drop)
    assert paper == (1e-4, 2000, 256, 0.9999, -0.8, 0.1)
