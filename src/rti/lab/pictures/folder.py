"""A folder of pictures that `rti generate` made, and what the scorers read of it.

manifest.json   what was drawn with which model and settings; a folder is continued by the same settings only
prompts.jsonl   a line per prompt: index, prompt, group, its files and their seeds, GenEval's metadata where it has it
timing.jsonl    a line per batch: how many pictures took how many seconds
scores/         what `rti score` found, a file per metric
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import struct
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rti.errors import InputError
from rti.files import in_one_line, read_json, shown, whole_file

MANIFEST, PROMPTS, TIMING, SCORES = "manifest.json", "prompts.jsonl", "timing.jsonl", "scores"
_PNG, _END = b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00IEND\xaeB`\x82"


@dataclass(frozen=True)
class Entry:
    """One thing to draw, and in a folder the pictures of it.

    Its index in the whole benchmark names its files and is part of its seeds.
    """

    index: int
    prompt: str | int  # a caption, or a class label
    group: str | None = None  # what results are broken down by: GenEval's tag, a category
    files: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    metadata: dict[str, Any] | None = field(default=None, hash=False)  # GenEval's line
    name: str | None = None  # what its pictures are called, where that is not the index

    def as_dict(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name not in ("metadata", "name")}
        return values if self.metadata is None else values | {"metadata": self.metadata}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Entry:
        """Refuses, by a ValueError, what is no line of prompts.jsonl; files lie inside the folder."""
        entry = cls(**values | {"files": tuple(values["files"]), "seeds": tuple(values["seeds"])})
        kinds = {"index": (int,), "prompt": (str, int), "group": (str, type(None)), "metadata": (dict, type(None))}
        for name, kind in kinds.items():
            if type(getattr(entry, name)) not in kind:
                raise ValueError(f"{name} {getattr(entry, name)!r} is not usable")
        if not all(type(seed) is int for seed in entry.seeds):
            raise ValueError(f"seeds {entry.seeds!r} must be whole numbers")
        for file in map(Path, entry.files):
            if not file.name or file.is_absolute() or ".." in file.parts or "\0" in file.name:
                raise ValueError(f"file {str(file)!r} is no name inside the folder")
        return entry


@dataclass(frozen=True)
class PictureFolder:
    """What `rti generate` draws, and `rti score` scores."""

    path: Path
    manifest: dict[str, Any]
    entries: tuple[Entry, ...]

    @classmethod
    def open(cls, path: str | Path) -> PictureFolder:
        """A folder that is finished: all its pictures must be there."""
        path = Path(path)
        if not os.path.isdir(path):  # which a name too long for a path is not, either
            raise InputError(f"{path} is no folder")
        if not (path / MANIFEST).is_file():
            raise InputError(f"{path} holds no {MANIFEST}; rti generate makes folders to score")
        folder = cls(path, read_json(path / MANIFEST), _read_entries(path))
        files = [file for entry in folder.entries for file in entry.files]
        missing = [file for file in files if not os.path.isfile(path / file)]
        if missing:
            lost = f"{len(missing)} of {len(files)} pictures of {path} are missing, the first is {missing[0]}"
            raise InputError(f"{lost}; run the same rti generate again, it goes on where it stopped")
        return folder

    @property
    def pictures(self) -> list[tuple[Entry, int]]:
        """Every picture: its prompt, and its number among those of the prompt."""
        return [(entry, number) for entry in self.entries for number in range(len(entry.files))]

    def file(self, entry: Entry, number: int) -> Path:
        return self.path / entry.files[number]

    @property
    def digest(self) -> str:
        """Which pictures these are."""
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()


def begin(folder: PictureFolder) -> None:
    """The manifest, then the prompts. Every process writes the same, whoever is first."""
    if not check_manifest(folder.path, folder.manifest):  # another command may have begun there by now
        write_shared(folder.path / MANIFEST, json.dumps(folder.manifest, indent=1) + "\n")
    write_shared(folder.path / PROMPTS, entries_text(folder.entries))
    tidy(folder.path)


def write_shared(path: Path, text: str) -> None:
    """Write what several processes write alike. One that finds its part tidied away leaves the file to the first."""
    while not path.is_file():
        try:
            with whole_file(path, shared=True) as temporary:
                temporary.write_text(text, encoding="utf-8")
        except InputError as error:
            if not isinstance(error.__context__, FileNotFoundError) or not path.parent.is_dir():
                raise


def tidy(folder: Path) -> None:
    """Remove what killed processes left unfinished beside the manifest."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)


def is_whole(path: Path, size: tuple[int, int]) -> bool:
    """Whether a PNG of this height and width is there with a beginning and an end, without decoding it."""
    try:
        with open(path, "rb") as file:
            head = file.read(24)
            file.seek(-len(_END), os.SEEK_END)
            tail = file.read()
    except OSError:  # not there, or shorter than that
        return False
    return head.startswith(_PNG) and tail == _END and head[16:] == struct.pack(">II", size[1], size[0])


def check_manifest(folder: Path, manifest: dict[str, Any]) -> bool:
    """Whether the folder was begun, by these very settings; refuse one of others, or one that holds other things."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise InputError(f"cannot write to {folder}: {nearest} is in the way or read-only")
    if not os.path.isdir(folder):
        return False
    if not (folder / MANIFEST).is_file():
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if others:
            raise InputError(f"{folder} holds {others[0]} but no {MANIFEST}; give a new folder, or one to continue")
        return False
    # Folders from before these were there go on; their pictures were the sampler's last state.
    found = {"config": manifest["config"], "finish": "state"} | read_json(folder / MANIFEST)
    if isinstance(found.get("reduction"), dict):  # nor do settings count that it did not have yet; the weights do
        found["reduction"] = (manifest["reduction"] or {}) | found["reduction"]
    differences = manifest_differences(found, manifest)
    told = {name: f"{name} {shown(old)} there, {shown(new)} now" for name, old, new in differences}
    others = [text for name, text in told.items() if not name.startswith("versions.")]
    if others:
        raise InputError(f"{folder} was drawn with other settings: {'; '.join(others)}; give the same, or a new folder")
    if told:  # the folder goes on with other versions of the packages, and its manifest says which it was begun with
        warnings.warn(f"{folder} goes on with other versions, which may show: {', '.join(told.values())}", stacklevel=3)
        manifest["versions"] = found["versions"]
    return True


def manifest_differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """What differs, by name, entries of entries as "versions.torch"."""
    found = []
    for name in dict.fromkeys([*first, *second]):
        one, other = first.get(name), second.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            found += [(f"{name}.{inner}", *values) for inner, *values in manifest_differences(one, other)]
        elif one != other:
            found.append((name, one, other))
    return found


def check_pair(first: PictureFolder, second: PictureFolder) -> None:
    """Refuse folders whose prompts or seeds differ, and say which."""
    both = f"{first.path} and {second.path} cannot be compared"
    if len(first.entries) != len(second.entries):
        raise InputError(f"{both}: they have {len(first.entries)} and {len(second.entries)} prompts")
    for one, other in zip(first.entries, second.entries, strict=True):
        for name in ("index", "prompt", "group", "seeds"):
            here, there = getattr(one, name), getattr(other, name)
            if here != there:
                raise InputError(f"{both}: they differ in the {name} of prompt {one.index}: {here!r} and {there!r}")


def entries_text(entries: tuple[Entry, ...]) -> str:
    return "".join(json.dumps(entry.as_dict(), ensure_ascii=False) + "\n" for entry in entries)


def images_per_second(folder: Path) -> float | None:
    """The median batch's pictures per second of one process; None where nothing was timed."""
    rates = [pictures / seconds for pictures, seconds in batches(folder)]
    return statistics.median(rates) if rates else None


def batches(folder: Path) -> list[tuple[float, float]]:
    """Pictures and seconds of each batch, of all sittings and processes."""
    found = []
    with suppress(OSError):
        for line in (folder / TIMING).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):  # a line that a killed run did not finish
                values = json.loads(line)
                found.append((float(values["pictures"]), float(values["seconds"])))
    return [batch for batch in found if min(batch) > 0]


def _read_entries(path: Path) -> tuple[Entry, ...]:
    file = path / PROMPTS
    if not file.exists():
        raise InputError(f"{file} does not exist; run the same rti generate again, it writes it")
    with in_one_line(f"{file} is not readable"):
        lines = file.read_text(encoding="utf-8").split("\n")
        return tuple(Entry.from_dict(json.loads(line)) for line in lines if line)
