"""The scenes world as webdataset shards: what the data source "scenes" gives, rounded to 8 bits.

Picture number i has the key 00000000i, with .png, .txt (caption) or .cls (label), and .json (task, objects, what the
judge asks for).
"""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm.auto import tqdm

from rti.errors import InputError
from rti.files import read_json, whole_file, write_whole
from rti.images import to_pil
from rti.lab.scenes.classes import class_of
from rti.lab.scenes.source import ScenesSource

SETTINGS = "scenes.json"  # what the shards of a folder were made with


def write_shards(folder: Path, source: ScenesSource, size: int = 5000) -> int:
    """Write 000000.tar, 000001.tar, ... of `size` pictures; how many were written, what is there is whole and stays.

    The folder must be new, empty, or of the same settings.
    """
    settings = {"count": len(source), "size": source.size, "seed": source.seed, "split": source.split}
    settings |= {"shard_size": size, "labels": source.kind == "labels"}
    # Hidden files are what a killed run or a file manager left.
    if not folder.is_dir() or all(path.name.startswith(".") for path in folder.iterdir()):
        write_whole(folder / SETTINGS, json.dumps(settings) + "\n")
    elif not (folder / SETTINGS).is_file():
        raise InputError(f"{folder} holds other files; give a new folder, or that of a run to resume")
    elif (found := read_json(folder / SETTINGS)) != settings:
        raise InputError(f"{folder} holds shards of {found}, not of {settings}; give the same, or a new folder")
    shards = {folder / f"{first // size:06d}.tar": first for first in range(0, len(source), size)}
    missing = {path: first for path, first in shards.items() if not path.exists()}
    for path, first in tqdm(missing.items(), unit="shard", delay=1):
        with whole_file(path, shared=True) as temporary, tarfile.open(temporary, "w") as tar:
            for index in range(first, min(first + size, len(source))):
                for ending, data in _members(source, index).items():
                    # Nothing but name and size is set: owner, time and mode are the same constants everywhere.
                    member = tarfile.TarInfo(f"{index:09d}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return len(missing)


def _members(source: ScenesSource, index: int) -> dict[str, bytes]:
    """The files of an example by their endings."""
    image, scene = source.draw(index)
    picture = io.BytesIO()
    to_pil(torch.from_numpy(image)[None])[0].save(picture, "PNG")
    record = {"task": scene.task, "objects": [asdict(thing) for thing in scene.objects], "relation": scene.relation}
    texts = {"txt": scene.caption} if source.kind == "text" else {"cls": str(class_of(scene))}
    texts["json"] = json.dumps(record | scene.metadata())
    return {"png": picture.getvalue()} | {ending: text.encode() for ending, text in texts.items()}
