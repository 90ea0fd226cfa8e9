"""Elastic training: it lowers the loss at every budget, leaves the backbone alone, and survives being stopped."""

import json
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file

import rti
from forks import Forked
from rti.data import Example, Source
from rti.loading import build
from rti.method.reductions.skip import SkipConfig
from rti.presets import FROM_SCRATCH, PRESETS, SCENES_TRAINING
from rti.training.config import PretrainConfig, TrainConfig
from rti.training.draws import Dial, DrawSettings, draw
from rti.training.elastic import Adaptation
from rti.training.state import CannotSave, checkpoints
from rti.training.stream import Stream, collate
from rti.training.trainer import Trainer, frozen_parameters
from tiny import make_backbone, refused


class FourPictures(Source):
    """Plain blocks of colour, each with a label and a caption."""

    endless = False

    def __init__(self, size: tuple[int, int]):
        blocks = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(5)) * 2 - 1
        self.images = torch.nn.functional.interpolate(blocks, size=size, mode="nearest")

    kind = "text"

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Example:
        return Example(self.images[index], "abcd"[index], index)

    def describe(self) -> str:
        return "four pictures"


def letters(captions: list[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A text encoder for captions of one letter: (B, length, 12) states and their mask."""
    states = torch.zeros(len(captions), length, 12)
    for row, caption in enumerate(captions):
        states[row, 0] = torch.randn(12, generator=torch.Generator().manual_seed(ord(caption)))
    mask = torch.zeros(len(captions), length, dtype=torch.bool)
    mask[:, 0] = True
    return states, mask


def make_trainer(folder, family="jit", backbone=None, cuts_from="estimate", kind=Adaptation, **changes) -> Trainer:
    """A small model and four pictures that come round and round."""
    backbone = backbone or make_backbone(family)
    torch.manual_seed(0)  # LoRA's A starts at random
    model = rti.attach(backbone, rti.RegionConfig(core=(1, 2), cuts="merge", cuts_from=cuts_from, lora_rank=4))
    settings = dict(
        steps=6, budgets=(4, 8, 16), batch=8, batch_per_device=4, warmup=2, save_every=2, learning_rate=3e-3
    )
    settings |= dict(sample_every=0, log_with="none")
    config = TrainConfig(model="tiny", output=str(folder), data="made up", **settings | changes)
    stream = Stream(FourPictures(backbone.image_size), config.seed)
    return Trainer(config, kind(config, model, stream, letters if family == "minit2i" else None))


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


class FromItsOwnStates(Adaptation):
    """A task whose micro-batches are states of its own: what it was given last, a little changed."""

    memory = torch.zeros(8, 3, 32, 32)

    def batch(self, step: int, numbers: range, once: Dial) -> tuple:
        images, *others = super().batch(step, numbers, once)
        self.memory = self.memory.clone()
        self.memory[numbers] = 0.5 * self.memory[numbers] + 0.5 * images
        return self.memory[numbers].clone(), *others

    def state(self) -> dict[str, torch.Tensor]:
        return {"memory": self.memory}

    def load_state(self, tensors: dict[str, torch.Tensor]) -> None:
        self.memory = tensors["memory"]


def test_a_task_says_where_its_micro_batches_come_from_and_keeps_a_state_of_its_own(tmp_path):
    trainers = [make_trainer(tmp_path / "whole", kind=FromItsOwnStates)]
    trainers[0].run()
    for steps in (3, 6):
        trainers.append(make_trainer(tmp_path / "parts", kind=FromItsOwnStates, steps=steps))
        trainers[-1].run()
    assert_equal(trained_values(trainers[2]), trained_values(trainers[0]))
    assert torch.equal(trainers[2].task.memory, trainers[0].task.memory)


def adapter_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "adapter").iterdir()}


def test_the_same_command_again_brings_the_adapter_of_the_last_step(tmp_path, monkeypatch):
    make_trainer(tmp_path / "whole").run()
    killed = make_trainer(tmp_path / "run")
    save = killed.task.save

    def kill_at_the_end(*values) -> None:
        if killed.step == 6:  # the checkpoint is there, the adapter is that of the save before
            raise KeyboardInterrupt
        save(*values)

    monkeypatch.setattr(killed.task, "save", kill_at_the_end)
    with pytest.raises(KeyboardInterrupt):
        killed.run()
    assert adapter_of(tmp_path / "run") != adapter_of(tmp_path / "whole")
    make_trainer(tmp_path / "run").run()
    assert adapter_of(tmp_path / "run") == adapter_of(tmp_path / "whole")
    shutil.rmtree(tmp_path / "run" / "adapter")
    make_trainer(tmp_path / "run").run()
    assert adapter_of(tmp_path / "run") == adapter_of(tmp_path / "whole")
    config = json.loads(adapter_of(tmp_path / "run")["adapter_config.json"])
    assert config["target_modules"] == sorted(config["target_modules"])


def test_a_folder_is_for_one_run_at_a_time(tmp_path):
    first = make_trainer(tmp_path / "run")
    with refused("another process is training", tmp_path / "run"):
        make_trainer(tmp_path / "run")
    first.run()
    assert make_trainer(tmp_path / "run").step == 6


def _tensors_of(folder: Path, change) -> None:
    file = folder / "state.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def _flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / "state.safetensors").read_bytes())
    data[-100] ^= 4
    (folder / "state.safetensors").write_bytes(data)


def _without_digest(folder: Path, **changes) -> None:
    """As checkpoints were before they had a digest."""
    values = json.loads((folder / "state.json").read_text()) | changes
    values.pop("digest", None)
    (folder / "state.json").write_text(json.dumps(values))


DAMAGE = {
    "an empty object": lambda folder: (folder / "state.json").write_text("{}"),
    "a list": lambda folder: (folder / "state.json").write_text("[]"),
    "nested too deep": lambda folder: (folder / "state.json").write_text("[" * 100_000),
    "text for a number": lambda folder: _without_digest(folder, skipped="none"),
    "a number below zero": lambda folder: _without_digest(folder, step=-1),
    "another step": lambda folder: (folder / "state.json").write_text(
        (folder / "state.json").read_text().replace('"step": 4', '"step": 5')
    ),
    "a missing tensor": lambda folder: (_without_digest(folder), _tensors_of(folder, lambda all: all.popitem())),
    "no generator": lambda folder: (_without_digest(folder), _tensors_of(folder, lambda all: all.pop("generator"))),
    "a flipped bit": _flip_a_bit,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, capsys, damage):
    trainer = make_trainer(tmp_path / "run", steps=4)
    trainer.run()
    damage(tmp_path / "run" / "checkpoint-00000004")
    again = make_trainer(tmp_path / "run", steps=4)
    assert again.step == 2
    assert "checkpoint-00000004 cannot be read" in capsys.readouterr().err
    again.run()
    assert_equal(trained_values(again), trained_values(trainer))


def test_a_checkpoint_from_before_there_were_digests_is_gone_on_with(tmp_path):
    make_trainer(tmp_path / "run", steps=4).run()
    assert "digest" in json.loads((tmp_path / "run" / "checkpoint-00000004" / "state.json").read_text())
    _without_digest(tmp_path / "run" / "checkpoint-00000004")
    assert make_trainer(tmp_path / "run", steps=4).step == 4


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    trainer = make_trainer(tmp_path / "run")
    before = {}

    def break_it(step: int, loss: float) -> None:
        if step == 4:
            before.update(adapter_of(tmp_path / "run"))
            next(iter(trainer.parameters.values())).data[0] = math.inf

    with refused("step 4", "not finite"):
        trainer.run(on_step=break_it)
    assert [folder.name for folder in checkpoints(tmp_path / "run")] == ["checkpoint-00000002"]
    assert adapter_of(tmp_path / "run") == before


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("kind", [TrainConfig, PretrainConfig, rti.RegionConfig, SkipConfig])
def test_no_setting_may_be_other_than_finite(kind, wrong):
    given = dict(model="m", output="o", data="d", budgets=(4,), steps=1, core=(1, 2))
    given = {field.name: given[field.name] for field in fields(kind) if field.name in given}
    numbers = [name for name, hint in get_type_hints(kind).items() if "float" in str(hint)]
    assert numbers
    for name in numbers:
        with refused(name, wrong):
            kind(**given | {name: wrong})


def test_more_workers_than_a_machine_bears_are_refused():
    """Not by a run: were they allowed, it would start them."""
    with refused("workers", "257"):
        TrainConfig(model="m", output="o", data="d", budgets=(4,), steps=1, workers=257)


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
        assert one.train_step() == pytest.approx(four.train_step(), rel=1e-4)
        # Gradients, not weights: Adam divides by their size, and so enlarges the rounding of those near zero.
        for name, parameter in one.parameters.items():
            scale = parameter.grad.abs().max().item()
            torch.testing.assert_close(parameter.grad, four.parameters[name].grad, rtol=0, atol=1e-3 * scale + 1e-7)


def test_training_lowers_the_loss_at_every_budget_and_leaves_the_backbone_alone(tmp_path, family):
    settings = dict(steps=60, learning_rate=1e-2, batch_per_device=8, save_every=60)
    trainer = make_trainer(tmp_path / "run", family, **settings, ema=0.9, drop=0.0)
    frozen = {name: parameter.detach().clone() for name, parameter in frozen_parameters(trainer.task.module).items()}
    assert frozen

    @torch.no_grad()
    def losses() -> list[float]:
        batch = collate([trainer.task.stream.source[index] for index in range(4)])
        images, condition = batch.images, trainer.task.inputs(batch)
        draws = draw(images.shape[1:], seed=9, step=0, examples=range(4), settings=DrawSettings(drop=0.0))
        return [
            trainer.task.module(images, condition, draws, Dial(budget, False)).mean().item() for budget in (4, 8, 16)
        ]

    before = losses()
    trainer.run()
    assert all(after < 0.5 * start for after, start in zip(losses(), before, strict=True))
    assert_equal(
        {name: parameter.detach() for name, parameter in frozen_parameters(trainer.task.module).items()}, frozen
    )

    model = rti.load(tmp_path / "run" / "adapter", backbone=make_backbone(family))
    with trainer.average.applied():
        trained = trainer.task.model.trainable_parameters()
        expected = {name: parameter.detach().clone() for name, parameter in trained.items()}
    assert_equal({name: parameter.detach() for name, parameter in model.trainable_parameters().items()}, expected)
    pipe = rti.Pipeline(model, letters if family == "minit2i" else None)
    drawn = pipe("a" if family == "minit2i" else 0, budget=8, num_inference_steps=2, output_type="pt", progress=False)
    assert drawn.images.isfinite().all()


def test_a_loss_that_is_not_finite_changes_nothing_and_five_in_a_row_stop_the_run(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run")
    trainer.train_step()
    before = trained_values(trainer)
    monkeypatch.setattr(trainer.task.stream.source.source, "images", torch.full((4, 3, 32, 32), math.nan))
    trainer.train_step()
    assert (trainer.skipped, trainer.step) == (1, 2)
    assert_equal(trained_values(trainer), before)
    with refused("5 steps in a row"):
        trainer.run()


def test_workers_that_read_ahead_change_nothing(tmp_path):
    alone, helped = make_trainer(tmp_path / "alone"), make_trainer(tmp_path / "helped", workers=2)
    assert [alone.train_step() for _ in range(3)] == [helped.train_step() for _ in range(3)]


def test_a_mistake_that_a_worker_finds_is_one_line_and_ends_the_run(tmp_path):
    """In a process of its own: workers that do not end would keep it from ending."""
    program = """
import sys
from test_trainer import make_trainer
from rti.data import BrokenExample
from rti.errors import InputError
trainer = make_trainer("run", workers=2)
def broken(self, index):
    raise BrokenExample("torn")
type(trainer.task.stream.source.source).__getitem__ = broken
try:
    trainer.run()
except InputError as error:
    print("values", repr(str(error)))
"""
    (tmp_path / "program.py").write_text(program)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "program.py"]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert "values '4 broken examples in a row in four pictures; the last: torn'" in finished.stdout, finished.stderr


def test_gradient_checkpointing_changes_no_gradient(tmp_path, family):
    kept = make_trainer(tmp_path / "kept", family)
    computed_twice = make_trainer(tmp_path / "twice", family, gradient_checkpointing=True)
    calls = []
    for block in computed_twice.task.backbone.repeated_blocks():
        block.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    assert kept.train_step() == computed_twice.train_step()
    assert calls.count(True) > len(computed_twice.task.backbone.repeated_blocks())  # once more on the way back
    for name, parameter in kept.parameters.items():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, computed_twice.parameters[name].grad, rtol=0, atol=1e-6)


def test_frozen_weights_may_be_bfloat16_and_what_trains_is_float32(tmp_path, family):
    AcceleratorState._reset_state(True)  # accelerate keeps to the precision a process began with
    backbone = make_backbone(family).bfloat16()
    options = dict(mixed_precision="bf16", dtype="bfloat16")
    trainer = make_trainer(tmp_path / "run", family, backbone=backbone, **options)
    first = trainer.train_step()
    assert math.isfinite(first)
    assert {parameter.dtype for parameter in trainer.parameters.values()} == {torch.float32}
    assert {p.dtype for p in frozen_parameters(trainer.task.module).values()} == {torch.bfloat16}
    AcceleratorState._reset_state(True)
    with refused("bfloat16", "bf16"):
        TrainConfig(model="m", output="o", data="d", budgets=(4,), steps=1, dtype="bfloat16")


def test_a_gradient_that_is_not_finite_changes_nothing(tmp_path):
    trainer = make_trainer(tmp_path / "run")
    before = trained_values(trainer)
    parameter = next(value for name, value in trainer.parameters.items() if "lora_B" in name)
    parameter.register_hook(lambda gradient: gradient * math.inf)
    assert math.isfinite(trainer.train_step())
    assert trainer.skipped == 1
    assert_equal(trained_values(trainer), before)


def test_a_full_disk_in_the_middle_of_a_run_does_not_end_it(tmp_path, monkeypatch, capsys):
    trainer = make_trainer(tmp_path / "run", steps=6, save_every=2)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    def no_room(step: int, loss: float) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048 if step == 4 else limit[0], limit[1]))

    try:
        trainer.run(on_step=no_room)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "step 4 could not be saved" in capsys.readouterr().err
    assert [folder.name[-1] for folder in sorted((tmp_path / "run").glob("checkpoint-*"))] == ["2", "6"]
    monkeypatch.setattr("rti.training.trainer.save_checkpoint", _full)
    with refused("could not be saved", "No space left"):
        make_trainer(tmp_path / "run", steps=7).run()


def _no_space() -> None:
    raise OSError("No space left on device")


def test_an_adapter_or_a_sheet_that_cannot_be_written_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    trainer = make_trainer(tmp_path / "run", steps=5, save_every=2, sample_every=2, sample_steps=1)
    monkeypatch.setattr("rti.training.log.draw_sheet", lambda task: _no_space())
    save = trainer.task.save
    monkeypatch.setattr(trainer.task, "save", lambda *values: _no_space() if trainer.step == 4 else save(*values))
    trainer.run()
    err = capsys.readouterr().err
    assert "step 4 could not be saved: No space left" in err
    assert err.count("could not be shown: No space left") == 3
    assert trainer.step == 5
    assert rti.load(tmp_path / "run" / "adapter", backbone=make_backbone("jit")) is not None


def test_a_signal_in_the_middle_of_an_exchange_is_not_lost(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run", steps=50, save_every=50)
    reduce = trainer.accelerator.reduce

    def interrupted(*values, **options):
        result = reduce(*values, **options)
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    monkeypatch.setattr(trainer.accelerator, "reduce", interrupted)
    trainer.run()
    assert trainer.step == 4  # asked in the third step, agreed in the fourth


def test_a_signal_while_samples_are_drawn_still_saves_the_step(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path / "run", steps=50, save_every=50, sample_every=3)
    stop = lambda task: os.kill(os.getpid(), signal.SIGTERM) or _no_space()  # noqa: E731
    monkeypatch.setattr("rti.training.log.draw_sheet", stop)
    trainer.run()
    assert make_trainer(tmp_path / "run", steps=50).step == 3


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a GPU has it")
def test_a_precision_the_machine_does_not_have_is_refused(tmp_path):
    AcceleratorState._reset_state(True)
    with refused("fp16", "cpu"):
        make_trainer(tmp_path / "run", mixed_precision="fp16")
    AcceleratorState._reset_state(True)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="of a run on a CPU")
@pytest.mark.parametrize(("supported", "lines"), [(True, 0), (False, 1)])
def test_a_precision_that_the_cpu_only_emulates_is_warned_of(tmp_path, monkeypatch, capsys, supported, lines):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    AcceleratorState._reset_state(True)
    make_trainer(tmp_path / "run", mixed_precision="bf16")
    AcceleratorState._reset_state(True)
    assert capsys.readouterr().err.count("rti: warning: this CPU has no units for bfloat16") == lines


def _full(*_) -> None:
    raise CannotSave("No space left on device")


def launch(folder: Path, program: str) -> list:
    """Run a program in two processes over gloo, as `accelerate launch` would; gives back what it printed as JSON."""

    def run() -> None:
        os.chdir(folder)
        AcceleratorState._reset_state(True)  # that of one process
        exec(program, {})

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused.getsockname()[1])}
    counts = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    logs = [folder / f"{rank}.txt" for rank in ("0", "1")]
    both = [Forked(run, log, RANK=log.stem, LOCAL_RANK=log.stem, **where, **counts) for log in logs]
    codes = [process.wait(timeout=240) for process in both]
    printed = [log.read_text(errors="replace") for log in logs]
    assert codes == [0, 0], "".join(text[-2000:] for text in printed)
    line = next(line for line in printed[0].splitlines() if line.startswith("values "))
    return json.loads(line.removeprefix("values "))


def test_two_processes_give_the_losses_of_one(tmp_path, family):
    """Over gloo, with the same global batch; and a stop that one of them is asked for stops both."""
    alone = make_trainer(tmp_path / "alone", family, batch_per_device=2)
    expected = [alone.train_step() for _ in range(10)]
    program = f"""
import dataclasses, json, os, signal
from test_trainer import make_trainer
trainer = make_trainer("together", "{family}", batch_per_device=2)
losses = [trainer.train_step() for _ in range(10)]
def stop_one(step, loss):
    if step == 12 and trainer.accelerator.process_index == 1:
        os.kill(os.getpid(), signal.SIGTERM)
trainer.config = dataclasses.replace(trainer.config, steps=1000)
trainer.run(on_step=stop_one)
stopped = trainer.step
if trainer.accelerator.is_main_process:
    print("values", json.dumps([trainer.accelerator.num_processes, losses, stopped]))
"""
    processes, losses, stopped = launch(tmp_path, program)
    assert (processes, stopped) == (2, 13)  # asked after the 12th step, and both left after the next
    assert losses == pytest.approx(expected, rel=1e-4)


def test_shards_over_two_processes_train_save_and_go_on_as_one_process_does(tmp_path):
    """FSDP 2. accelerate turns it on for GPUs only, so its state is set here; the rest is its own path, over gloo."""
    alone = make_trainer(tmp_path / "alone", batch_per_device=2)
    expected = [alone.train_step() for _ in range(6)]
    alone.save()
    program = """
import json
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
Accelerator(cpu=True)
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, cpu_ram_efficient_loading=False, auto_wrap_policy="transformer_based_wrap"
)
AcceleratorState._shared_state["fsdp_plugin"] = plugin
for state in (AcceleratorState, PartialState):
    state._shared_state["distributed_type"] = DistributedType.FSDP
from test_trainer import make_trainer
trainer = make_trainer("together", batch_per_device=2)
sharded = all(type(parameter.data).__name__ == "DTensor" for parameter in trainer.parameters.values())
losses = [trainer.train_step() for _ in range(4)]
trainer.save()
trainer.accelerator.wait_for_everyone()
if trainer.lock:
    trainer.lock.release(force=True)
again = make_trainer("together", batch_per_device=2)
losses += [again.train_step() for _ in range(2)]
again.save()
if trainer.accelerator.is_main_process:
    print("values", json.dumps([sharded, losses]))
"""
    sharded, losses = launch(tmp_path, program)
    assert sharded
    assert losses == pytest.approx(expected, rel=1e-4)
    ours, theirs = tmp_path / "together", tmp_path / "alone"
    for name in ("adapter/adapter_model.safetensors", "adapter/interface.safetensors"):
        sharded, whole = load_file(ours / name), load_file(theirs / name)
        assert sharded.keys() == whole.keys()
        for key, value in whole.items():  # Adam enlarges the rounding of gradients near zero
            torch.testing.assert_close(sharded[key], value, rtol=0, atol=2e-3)
    assert {file.name for file in (ours / "adapter").iterdir()} == {
        file.name for file in (theirs / "adapter").iterdir()
    }
    goes_on = make_trainer(ours, batch_per_device=2)  # on one process
    assert goes_on.step == 6
    assert goes_on.train_step() == pytest.approx(alone.train_step(), rel=1e-4)


def test_the_global_batch_is_the_same_on_any_number_of_processes():
    config = TrainConfig(model="m", output="o", data="d", budgets=(4,), steps=1)
    assert [config.accumulation(processes) for processes in (1, 2, 8, 32)] == [32, 16, 4, 1]
    with refused("256", "5 processes"):
        config.accumulation(5)


@pytest.mark.parametrize(("batch", "most", "at_once"), [(4, 16, 4), (20, 16, 10), (7, 4, 1), (16, 16, 16)])
def test_a_micro_batch_fits_its_batch(batch, most, at_once):
    config = PretrainConfig(model="m", output="o", data="d", batch=batch, batch_per_device=most)
    assert config.batch_per_device == at_once


@pytest.mark.parametrize("name", [*PRESETS, *SCENES_TRAINING])
def test_what_a_preset_trains_with_fits_its_model(name):
    values = dict(TrainConfig.preset_values(name))
    core = values.pop("core")
    config = TrainConfig(model=name, output="o", data="d", **values)
    family, sizes = FROM_SCRATCH[name] if name in FROM_SCRATCH else (PRESETS[name].family, PRESETS[name].sizes)
    backbone = build(family, sizes)
    assert 0 < core[0] < core[1] < backbone.depth - 1  # a prelude and a coda
    assert max(config.budgets) < backbone.patches
    assert config.warmup + config.cooldown < config.steps
    assert config.accumulation(1) * config.batch_per_device == config.batch
