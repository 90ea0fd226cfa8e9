"""Commands that are killed: whenever it happens, also while they save, what they leave at the end is the same."""

import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import kill_training as killing


@pytest.mark.parametrize(
    ("what", "number"), [("train", signal.SIGKILL), ("train", signal.SIGTERM), ("generate", signal.SIGKILL)]
)
def test_what_was_killed_six_times_ends_as_if_it_had_not_been(tmp_path, what, number):
    """Three kills are by the clock, three before an operation on files."""
    report = killing.survive(what, tmp_path, kills=6, seed=number, number=number)
    assert (report.kills, report.at_files, report.failures) == (6, 3, [])
    assert report.runs > 0


def test_the_folder_of_a_killed_run_is_free_at_once(tmp_path):
    """Its workers live on for some seconds, and must not hold what it held."""
    killing.make_model(tmp_path)

    def train(steps: int) -> int:
        return killing.fork(lambda: killing.run("train", tmp_path, "run", f"--workers 1 --steps {steps}"), tmp_path)

    first = train(100_000)
    while not list(tmp_path.glob("run/checkpoint-*")):
        time.sleep(0.01)
    assert killing.wait(train(100_000)) == 2
    assert "another process is training" in (tmp_path / "stderr").read_text()
    assert killing.wait(first, moment=0) == -signal.SIGKILL
    assert killing.wait(train(1)) == 0, (tmp_path / "stderr").read_text()
