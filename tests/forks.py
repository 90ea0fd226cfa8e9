"""Commands in processes of their own, forked from this one: a new process would import for seconds before it begins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import accelerate  # noqa: F401  both before the first fork, so that no fork has to import them
import peft  # noqa: F401
import torch
import tqdm.auto
import tqdm.std

from rti.cli import main

SIGNALS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}  # of a process that begins


class Forked:
    """A program that runs in a fork; to be asked like a `subprocess.Popen`. What it prints goes to a file."""

    def __init__(self, program: Callable[[], object], output: Path | int | None = None, **environment: str):
        self.returncode: int | None = None
        # Python swallows what a signal's handler raises during a fork, so the handlers wait until it is over.
        waiting: list[int] = []
        handlers = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in SIGNALS}
        self.pid = os.fork()
        if self.pid == 0:
            _run(program, output, environment)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in waiting:
            os.kill(os.getpid(), number)

    def poll(self) -> int | None:
        if self.returncode is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if process else None
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                os.kill(self.pid, 9)
                raise subprocess.TimeoutExpired("a forked program", timeout)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(program: Callable[[], object], output: Path | int | None, environment: dict[str, str]) -> None:
    """Does not come back: a fork must not go on with the tests."""
    code = 1
    try:
        for number, handler in SIGNALS.items():
            signal.signal(number, handler)
        if not isinstance(output, int):
            output = os.open(output or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(output, stream)
            setattr(sys, name, os.fdopen(stream, "w", 1, encoding="utf-8", closefd=False))  # pytest has its own
        torch.set_num_threads(1)
        for bar in (tqdm.std.tqdm, tqdm.auto.tqdm):
            bar.set_lock(threading.RLock())  # tqdm's own is shared by forks, and dies with one that holds it
        os.environ.update(environment)
        program()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def forked_command(command, stdout=subprocess.DEVNULL, stderr=None, env=None, start_new_session=False) -> Forked:
    """In the place of `subprocess.Popen`, for `python -m rti ...`."""
    assert command[:3] == [sys.executable, "-m", "rti"]
    output = None if stdout == subprocess.DEVNULL else stdout.fileno()
    return Forked(lambda: main([*command[3:]]), output, **(env or {}))
