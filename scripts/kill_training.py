"""Kill a training again and again, and see whether it ends as one that was never killed: bit by bit.

    python scripts/kill_training.py --kills 200 --seed 0
    python scripts/kill_training.py --kills 200 --seed 0 --what generate

A tiny model trains (or draws) in a process that is forked from this one, so that nothing is imported again. It is
killed at a moment drawn at random: every other time by the clock, else before one of the operations on files that an
undisturbed run makes, so that no gap between two writes is too short to be hit. Then the same command runs again, until
one gets to its end; its files are compared, and a new folder begins. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rti.backbones import build
from rti.backbones.loading import randomise
from rti.backbones.saving import save_backbone
from rti.cli import main

SIZES = dict(input_size=32, patch_size=4, hidden_size=32, depth=4, num_heads=2, bottleneck_dim=8, num_classes=56)
SIZES |= dict(in_context_len=2, in_context_start=1, noise_scale=1.0)
COMMANDS = {
    "train": "train {model} --output {run} --data scenes --steps 8 --save-every 1 --batch 4 --batch-per-device 2 "
    "--budgets 4,8 --core 1,2 --warmup 2 --sample-every 0 --log-with none",
    "generate": "generate {model} --output {run} --prompts classes --count 24 --batch 2 --steps 2",
}
# Not compared: what tells how long it took, earlier checkpoints (of which it keeps one), and a lock that nobody holds.
APART = ("log.jsonl", "timing.jsonl", "run.lock", "checkpoint-00000007")
CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


@dataclass
class Report:
    kills: int = 0
    at_files: int = 0  # of them, before an operation on files
    runs: int = 0  # that got to their end and were compared
    failures: list[str] = field(default_factory=list)


def survive(what: str, folder: Path, kills: int, seed: int, number: int = signal.SIGKILL) -> Report:
    """Kill so many times with a signal, and compare every run that gets to its end with an undisturbed one."""
    torch.set_num_threads(1)
    backbone = build("jit", SIZES)
    randomise(backbone, seed=0, dtype=torch.float32)
    save_backbone(backbone, folder / "model")
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet), suppress(SystemExit):
        _run(what, folder, "first")  # imports what a run imports, before the forks
    started = time.monotonic()
    operations = _count_operations(lambda: _run(what, folder, "undisturbed"), folder)
    longest, expected = time.monotonic() - started, contents(folder / "undisturbed")

    chance, report, name = random.Random(seed), Report(), "run-0"
    while report.kills < kills:
        at_file = chance.randrange(1, operations + 1) if report.kills % 2 else None
        moment = None if at_file else chance.uniform(0, longest)
        code = _start_and_kill(lambda name=name: _run(what, folder, name), folder, at_file, moment, number)
        if code == 0:
            report.runs += 1
            found = contents(folder / name)
            different = sorted(key for key in {*found, *expected} if found.get(key) != expected.get(key))
            report.failures += [f"{name}, after {report.kills} kills: {file} differs" for file in different]
            name = f"run-{report.runs}"
        elif code in (-number, 130):
            report.kills += 1
            report.at_files += at_file is not None
        else:
            report.failures.append(f"{name}, after {report.kills} kills: exit code {code}")
            name = f"{name}-again"
        if len(report.failures) > 20:
            break
    return report


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run, by its name."""
    files = (path for path in sorted(run.rglob("*")) if path.is_file() and not {*path.parts} & {*APART})
    # The folder's own name is a setting of the run.
    return {str(path.relative_to(run)): path.read_bytes().replace(run.name.encode(), b"RUN") for path in files}


def _run(what: str, folder: Path, name: str) -> None:
    main(COMMANDS[what].format(model=folder / "model", run=folder / name).split())


def _count_operations(work: Callable[[], None], folder: Path) -> int:
    """How many operations on files an undisturbed run makes; it runs in a child as the others do."""
    counted = folder / "operations"
    process = _fork(work, folder, counted=counted)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        raise SystemExit(f"the undisturbed run ended with {code}: {(folder / 'stderr').read_text()[-500:]}")
    return int(counted.read_text())


def _start_and_kill(
    work: Callable[[], None], folder: Path, at_file: int | None, moment: float | None, number: int
) -> int:
    """Run in a child until it ends, or is killed before an operation on files or at a moment. Gives its exit code."""
    process = _fork(work, folder, at_file, number)
    ends = time.monotonic() + (600 if moment is None else moment)
    while (status := os.waitpid(process, os.WNOHANG)) == (0, 0):
        time.sleep(0.002)
        if time.monotonic() > ends:
            os.kill(process, number)
            status = os.waitpid(process, 0)
            break
    return os.waitstatus_to_exitcode(status[1])


def _fork(
    work: Callable[[], None],
    folder: Path,
    at_file: int | None = None,
    number: int = signal.SIGKILL,
    counted: Path | None = None,
) -> int:
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

    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        sys.addaudithook(watch)
        work()
    except SystemExit as end:
        code = end.code or 0
        if counted is not None:
            counted.write_text(str(operations))
    finally:
        os._exit(code)


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
