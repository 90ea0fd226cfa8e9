"""Kill a training again and again, and see whether it ends as one that was never killed: bit by bit.

    python scripts/kill_training.py --kills 200 --seed 0
    python scripts/kill_training.py --kills 200 --seed 0 --what generate

A tiny model trains (or draws) in a process that is forked from this one, so that nothing is imported again. It is
killed at a moment drawn at random: every other time by the clock, else before one of the operations on files that an
undisturbed run makes, so that no gap between two writes is too short to be hit. Then the same command runs again, until
it gets to its end; its files are compared, and a new folder begins. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
import tqdm.auto

from rti.cli import main
from rti.loading import build, randomise, save_backbone

SIZES = dict(input_size=32, patch_size=4, hidden_size=32, depth=4, num_heads=2, bottleneck_dim=8, num_classes=56)
SIZES |= dict(in_context_len=2, in_context_start=1, noise_scale=1.0)
COMMANDS = {
    "train": "train {model} --output {run} --data scenes --steps 5 --save-every 1 --batch 4 --batch-per-device 2 "
    "--budgets 4,8 --core 1,2 --warmup 2 --sample-every 0 --log-with none",
    "generate": "generate {model} --output {run} --prompts classes --count 16 --batch 2 --steps 2",
}
# Not compared: what tells how long it took, checkpoints before the last, and a lock that nobody holds.
APART = {"log.jsonl", "timing.jsonl", "run.lock", *(f"checkpoint-0000000{step}" for step in range(1, 5))}
LONGEST, HANGS = 300, 124  # seconds of a run that is left in peace, and the exit code of one that takes longer
CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


@dataclass
class Report:
    kills: int = 0
    at_files: int = 0  # of them, before an operation on files
    runs: int = 0  # that got to their end and were compared
    failures: list[str] = field(default_factory=list)


def survive(what: str, folder: Path, kills: int, seed: int, number: int = signal.SIGKILL) -> Report:
    """Kill so many times with a signal, and compare every run at its end with an undisturbed one."""
    make_model(folder)
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet), suppress(SystemExit):
        run(what, folder, "first")  # imports what a run imports, before the forks
    started = time.monotonic()
    if code := wait(fork(lambda: run(what, folder, "undisturbed"), folder)):
        raise SystemExit(f"the undisturbed run ended with {code}: {(folder / 'stderr').read_text()[-500:]}")
    longest, expected = time.monotonic() - started, contents(folder / "undisturbed")
    operations = int((folder / "operations").read_text())

    chance, report, begun = random.Random(seed), Report(), 0
    while True:
        name, at_file, moment = f"run-{begun}", None, None
        if report.kills >= kills:
            pass  # the last run is left in peace
        elif report.kills % 2:
            at_file = chance.randrange(1, operations + 1)
        else:
            moment = chance.uniform(0, longest)
        code = wait(fork(lambda name=name: run(what, folder, name), folder, at_file, number), moment, number)
        if code in (-number, 130):
            report.kills += 1
            report.at_files += at_file is not None
            continue
        begun += 1
        if code == 0:
            report.runs += 1
            found = contents(folder / name)
            wrong = [f"{file} differs" for file in {*found, *expected} if found.get(file) != expected.get(file)]
        else:
            wrong = [f"exit code {code}: {(folder / 'stderr').read_text()[-200:]}"]
        report.failures += [f"{name}, after {report.kills} kills in all: {one}" for one in sorted(wrong)]
        if report.kills >= kills or len(report.failures) > 20:
            return report


def make_model(folder: Path) -> None:
    """A tiny model, and a process that is ready to be forked."""
    torch.set_num_threads(1)
    backbone = build("jit", SIZES)
    randomise(backbone, seed=0, dtype=torch.float32)
    save_backbone(backbone, folder / "model")


def run(what: str, folder: Path, name: str, more: str = "") -> None:
    main(f"{COMMANDS[what]} {more}".format(model=folder / "model", run=folder / name).split())


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run, by its name."""
    files = (path for path in sorted(run.rglob("*")) if path.is_file() and not {*path.parts} & APART)
    # The folder's own name is a setting of the run.
    return {str(path.relative_to(run)): path.read_bytes().replace(run.name.encode(), b"RUN") for path in files}


def fork(work: Callable[[], None], folder: Path, at_file: int | None = None, number: int = signal.SIGKILL) -> int:
    """A command in a child process, killed before an operation on files if asked; gives back the process.

    It leaves behind how many such operations it made, and what it said.
    """
    process = os.fork()
    if process:
        return process
    code, operations = 1, 0

    def watch(event: str, arguments: tuple) -> None:
        nonlocal operations
        # Names in a folder that is being removed are relative to it.
        if event in CHANGES and (str(folder) in str(arguments[0]) or not os.path.isabs(str(arguments[0]))):
            operations += 1
            if operations == at_file:
                os.kill(os.getpid(), number)

    # Bars have a lock that forks share, each class its own: one killed while it draws would stop all that come after.
    for bars in (tqdm.std.tqdm, tqdm.auto.tqdm):
        bars.set_lock(threading.RLock())
    try:
        sys.stdout, sys.stderr = open(os.devnull, "w"), open(folder / "stderr", "w")  # noqa: SIM115
        sys.addaudithook(watch)
        work()
    except SystemExit as end:
        code = end.code or 0
        (folder / "operations").write_text(str(operations))
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(process: int, moment: float | None = None, number: int = signal.SIGKILL) -> int:
    """The exit code of a process, killed after so many seconds if asked; HANGS where it does not end by itself."""
    ends = time.monotonic() + (LONGEST if moment is None else moment)
    while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0):
        time.sleep(0.002)
        if time.monotonic() > ends:
            os.kill(process, signal.SIGKILL if moment is None else number)
            ended = os.waitpid(process, 0)
            return HANGS if moment is None else os.waitstatus_to_exitcode(ended[1])
    return os.waitstatus_to_exitcode(ended[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--what", choices=sorted(COMMANDS), default="train")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        result = survive(options.what, Path(place), options.kills, options.seed)
        seconds = time.monotonic() - began
    print(
        f"rti {options.what}, seed {options.seed}: {result.kills} kills, {result.at_files} of them before an operation "
        f"on files and the others by the clock; {result.runs} runs got to their end and were compared: "
        f"{len(result.failures)} failures, {seconds:.0f} s"
    )
    print(*result.failures, sep="\n", end="")
    sys.exit(bool(result.failures))
