"""Pictures of an evaluation under way: interrupted, the same command goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rti.errors import InputError


class Unfinished:
    """A folder inside the output, with a file for each batch that was drawn; without an output nothing is kept."""

    def __init__(self, output: Path | None = None):
        self.folder = None if output is None else output / ".unfinished"
        self.used: list[Path] = []  # read or written by this evaluation

    def pictures(
        self, how: dict[str, Any], subjects: Sequence[Any], draw: Callable[[], torch.Tensor]
    ) -> tuple[torch.Tensor, float]:
        """The pictures of these subjects, drawn in just this way before, or drawn now and kept; and the seconds."""
        path = self._path(how, subjects)
        self.used += [] if path is None else [path]
        before = None if path is None else _read(path)
        if before is not None:
            return before
        started = time.perf_counter()
        drawn = draw()
        seconds = time.perf_counter() - started
        if path is not None:
            _write(path, drawn, seconds)
        return drawn, seconds

    def clear(self) -> None:
        """The results are written: what led to them is not needed any more. What another command keeps there stays."""
        with suppress(OSError):
            for path in self.used:
                path.unlink(missing_ok=True)
            if self.folder is not None:
                self.folder.rmdir()

    def _path(self, how: dict[str, Any], subjects: Sequence[Any]) -> Path | None:
        if self.folder is None:
            return None
        asked = json.dumps([how, list(subjects)], sort_keys=True)
        return self.folder / f"{hashlib.sha256(asked.encode()).hexdigest()}.npz"


def _read(path: Path) -> tuple[torch.Tensor, float] | None:
    try:
        with np.load(path, allow_pickle=False) as kept:
            return torch.from_numpy(kept["pictures"]), float(kept["seconds"])
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile):
        return None  # not there, or torn: it is drawn again


def _write(path: Path, pictures: torch.Tensor, seconds: float) -> None:
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            np.savez(file, pictures=pictures.numpy(), seconds=seconds)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
