"""Models that ship inside the package: small, trained, with their adapters; they need no network.

models/NAME/transformer, models/NAME/text_encoder   the backbone, in the release's layout
models/NAME/adapter                                 its adapter
models/NAME/adapter-OTHER                           another adapter for it, called NAME/adapter-OTHER

No torch here: the command line reads the names to answer `--help`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from rti.files import local_path

MODELS = Path(__file__).parent / "models"
DEFAULT = "scenes"

# What makes a folder one of a checkpoint or of an adapter.
_MARKS = ("transformer/config.json", "transformer/checkpoint-last.pth", "config.json", "checkpoint-last.pth")
_MARKS += ("rti_config.json",)


def shipped_names() -> tuple[str, ...]:
    """The models that are really there."""
    return tuple(sorted(config.parent.parent.name for config in MODELS.glob("*/transformer/config.json")))


SHIPPED = shipped_names()


def find_shipped(name: str | Path) -> Path | None:
    """The folder of a shipped model, or of an adapter called NAME/adapter-OTHER, whatever the working folder holds."""
    found = [MODELS / name for name in shipped_names()]
    found += [config.parent for config in MODELS.glob("*/adapter*/rti_config.json")]
    return next((folder for folder in found if shipped_name(folder) == str(name)), None)


def shipped_name(folder: Path) -> str | None:
    """The name of a folder among the shipped models, the inverse of `find_shipped`; None for any other folder."""
    folder, root = folder.resolve(), MODELS.resolve()
    return folder.relative_to(root).as_posix() if root in folder.parents else None


def shipped(name: str | Path) -> Path | None:
    """What a user means by a name: the folder of the shipped model, or None where it is not one.

    As for presets, a folder of that name in the working folder comes first, if it holds a model; a warning says so.
    """
    own, folder = local_path(name), find_shipped(name)
    if folder is None or not own.exists() or own.samefile(folder):
        return folder
    if any((own / mark).is_file() for mark in _MARKS):
        warnings.warn(f"{name} is the folder {own.resolve()}, not the model that ships with rti", stacklevel=1)
        return None
    warnings.warn(f"{name} is the model that ships with rti: {own.resolve()} holds no model", stacklevel=1)
    return folder
