"""Runs that are killed: whenever it happens, also while they save, the resumed run ends with the same weights."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rti.cli import main
from rti.training.state import checkpoints
from tiny import save_jit

STEPS = 40
SETTINGS = ["--save-every", "1", "--batch", "4", "--batch-per-device", "2", "--budgets", "4,8", "--core", "1,2"]
SETTINGS += ["--warmup", "2", "--sample-every", "0", "--log-with", "none", "--data", "scenes"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A small model. A first run imports what a run imports, once, before the forks."""
    folder = tmp_path_factory.mktemp("model")
    save_jit(folder, num_classes=56)
    with pytest.raises(SystemExit):
        main(["train", str(folder), "--output", str(folder / "first"), "--steps", "1", *SETTINGS])
    return folder


def start(model: Path, folder: Path) -> int:
    """`rti train` in a process of its own, forked so that nothing has to be imported again. Gives back the process."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            for stream in (1, 2):  # tables and progress bars
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            torch.set_num_threads(1)
            main(["train", str(model), "--output", str(folder), "--steps", str(STEPS), *SETTINGS])
        except SystemExit as end:
            code = end.code
        finally:
            os._exit(code)
    return process


def saving(folder: Path) -> bool:
    return any(folder.glob("checkpoint-*.part")) or any(folder.glob("adapter/.saving-*"))


def step_of(folder: Path) -> int:
    found = checkpoints(folder)
    return int(found[-1].name.removeprefix("checkpoint-")) if found else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, model) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    _, status = os.waitpid(start(model, folder), 0)
    assert status == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_run_killed_twenty_times_ends_with_the_weights_of_one_that_was_not(tmp_path, model, uninterrupted, number):
    chance = random.Random(number)
    folder = tmp_path / "run"
    kills = while_saving = 0
    while kills < 20:
        before = step_of(folder)
        process = start(model, folder)
        # Half of the time at any moment, half of the time as soon as it is seen to save; never so late that it is over.
        at_a_save, moment = kills % 2 == 0, time.monotonic() + chance.uniform(0.0, 0.8)
        while os.waitpid(process, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
            moved = step_of(folder) > before
            if (moved and saving(folder)) if at_a_save else time.monotonic() > moment:
                os.kill(process, number)
                while_saving += saving(folder)
                os.waitpid(process, 0)
                kills += 1
                break
        else:
            pytest.fail(f"the run ended after {kills} kills, at step {step_of(folder)}")
        if at_a_save and number == signal.SIGTERM:
            assert step_of(folder) > before  # it saved before it left
    assert while_saving >= 5
    assert step_of(folder) < STEPS
    _, status = os.waitpid(start(model, folder), 0)
    assert status == 0
    for name in (f"checkpoint-{STEPS:08d}/state.safetensors", "adapter/adapter_model.safetensors"):
        ours, theirs = load_file(folder / name), load_file(uninterrupted / name)
        assert ours.keys() == theirs.keys()
        assert [key for key, value in ours.items() if not torch.equal(value, theirs[key])] == []
    assert not saving(folder)
