"""Damaged and hostile files for every reader: python scripts/fuzz_files.py --cases 10000 --seed 0

Checkpoints, adapters, text encoders, pictures, shards, metadata, prompts, studies, results and figure data are cut
short, overwritten, or rewritten with values of other types, huge numbers and deep nesting.
"""

from __future__ import annotations

import copy
import io
import json
import random
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fuzzing
import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import rti
from rti.data import BrokenExample, open_data
from rti.images import open_image
from rti.lab.pictures.compare import compare_folders
from rti.lab.pictures.folder import Entry, PictureFolder, entries_text
from rti.lab.pictures.prompts import open_prompts
from rti.lab.study.plan import plan, read_study
from rti.text.encoder import load_text_encoder
from tiny import CORE, make_backbone, save_jit, save_minit2i, save_scenes_model

# In place of a value in JSON.
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**9, 10**30, 10**400, 0.0, 0.5, -1.5, 1e-300, 1e308),
    *(float("nan"), float("inf"), "", "x", "64", "nan", "region", "../../secret", "/dev/zero", "a" * 300, "a\0b"),
    *("\ud83d", "\n", [], [1], [[]], ["a"], {}, {"a": 1}, [0, 1], [5, 2], list(range(1000)), {"": None}),
]
TEXTS = ["", "{", "[]", "null", "3", '"x"', "[" * 50_000, '{"a": ' * 50_000, "9" * 5000, '{"a": ' + "9" * 5000 + "}"]


def spoil_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut, flipped, overwritten, repeated or thrown away."""
    place = rng.randrange(len(content) + 1)
    length = rng.choice([1, 2, 4, 8, 64, 1024])
    some = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length), b"\xff\xff\xff\x7f"])
    kind = rng.randrange(8)
    if kind == 0:
        return content[:place]
    if kind <= 2:
        return content[:place] + some + content[place + len(some) :]
    if kind == 3:
        return content[:place] + some + content[place:]
    if kind == 4:
        return content[:place] + content[place + length :]
    if kind == 5 and content:
        spoilt = bytearray(content)
        for _ in range(rng.randint(1, 20)):
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        return bytes(spoilt)
    if kind == 6:
        return content + content[:place]
    return rng.choice([b"", b"\0" * 4096, b"not what it should be\n" * 99, rng.randbytes(512)])


def spoil_value(value: Any, rng: random.Random) -> Any:
    """JSON with one to three values changed, left out, or put elsewhere."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 3)):
        holders = [value] if isinstance(value, (dict, list)) and value else []
        for holder in holders:  # grows as it goes: every object and list within
            inner = holder.values() if isinstance(holder, dict) else holder
            holders += [one for one in inner if isinstance(one, (dict, list)) and one]
        if not holders or rng.random() < 0.03:
            return rng.choice(VALUES)
        holder = rng.choice(holders)
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        kind = rng.random()
        if kind < 0.15:
            del holder[key]
        elif kind < 0.25 and isinstance(holder, dict):
            holder[rng.choice(["more", "", key + "x", "0"])] = rng.choice(VALUES)
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def spoil_json(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.choice(TEXTS).encode()
    return json.dumps(spoil_value(json.loads(content), rng)).encode()


def spoil_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    number = rng.randrange(len(lines))
    try:
        lines[number] = spoil_json(lines[number], rng)
    except ValueError:  # an empty line, or not JSON
        lines[number] = rng.choice(TEXTS).encode()
    return b"\n".join(lines)


def spoil_table(content: bytes, rng: random.Random) -> bytes:
    """Text with columns: a cell is replaced."""
    cells = content.replace(b"\t", b"\t,").split(b",")
    value = rng.choice(["", '"', "\x00", "a" * 200_000, "\n\n", ",,,", "../x", "\ud83d"])
    cells[rng.randrange(len(cells))] = value.encode(errors="surrogatepass")
    return b",".join(cells)


def spoil_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Its header as JSON, the length told rightly or not."""
    length = int.from_bytes(content[:8], "little")
    header = spoil_json(content[8 : 8 + length], rng)
    told = len(header) if rng.random() < 0.9 else rng.choice([0, 1, 2**40, 2**64 - 1, len(header) + 1])
    return told.to_bytes(8, "little") + header + content[8 + length :]


def spoil_archive(content: bytes, rng: random.Random) -> bytes:
    """A PyTorch file: packed, with entries spoilt or left out, or with another content."""
    if rng.random() < 0.3:
        weights = {"net.a": rng.choice([torch.zeros(1), 3, None, torch.zeros(2).to_sparse(), "x", torch.zeros(())])}
        other = {
            rng.choice(["model", "model_ema1", "state_dict", "args", 3]): rng.choice([weights, [], 3, None, {3: 3}])
        }
        file = io.BytesIO()
        torch.save(other, file, _use_new_zipfile_serialization=rng.random() < 0.7)
        return file.getvalue()
    file = io.BytesIO()
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(file, "w", method) as after:
        names = before.namelist()
        victim = rng.choice(names)
        for name in names:
            data = before.read(name)
            after.writestr(name, spoil_bytes(data, rng) if name == victim else data)
    return file.getvalue()


def spoil_tar(content: bytes, rng: random.Random) -> bytes:
    """A member's content or name is another."""
    file = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as before, tarfile.open(fileobj=file, mode="w") as after:
        members = before.getmembers()
        victim = rng.choice(members).name
        for member in members:
            data = before.extractfile(member).read()
            if member.name == victim:
                kind = rng.randrange(4)
                if kind == 0:
                    member.name = rng.choice(["../x.png", "a" * 300 + ".png", "x", "", "0.json", "/etc/passwd"])
                elif kind == 1:
                    member.type = rng.choice([tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
                else:
                    data = spoil_json(data, rng) if member.name.endswith(".json") else spoil_bytes(data, rng)
            member.size = len(data) if member.isreg() else 0
            after.addfile(member, io.BytesIO(data))
    return file.getvalue()


SPOILERS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    **{".json": spoil_json, ".jsonl": spoil_lines, ".csv": spoil_table, ".tsv": spoil_table, ".tar": spoil_tar},
    **{".safetensors": spoil_safetensors, ".pth": spoil_archive},
}


class Folder:
    """A folder of which each case spoils one file, reads it, and puts it back."""

    def __init__(self, path: Path, read: Callable[[Path], object]):
        self.path, self.read = path, read
        self.files = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
        for file in self.files:  # whole, it is read
            self.look(file)

    def look(self, file: Path) -> None:
        self.read(file if self.read is read_figure else self.path)

    def __call__(self, rng: random.Random) -> None:
        file = rng.choice(list(self.files))
        spoil = SPOILERS.get(file.suffix, spoil_bytes)
        if spoil is not spoil_bytes and rng.random() < 0.4:
            spoil = spoil_bytes
        file.write_bytes(spoil(self.files[file], rng))
        try:
            self.look(file)
        finally:
            file.write_bytes(self.files[file])


def read_adapter(path: Path) -> None:
    rti.load(path, make_backbone("jit")).detach()


def read_pictures(path: Path) -> None:
    for file in sorted(path.iterdir()):
        open_image(file)


def read_examples(path: Path) -> None:
    source = open_data(str(path), 16)
    for index in range(len(source)):
        try:
            source[index]
        except BrokenExample:
            continue


def read_figure(file: Path) -> None:
    from matplotlib import pyplot

    from rti.lab.probes import figures
    from rti.lab.probes.records import read_data

    try:
        getattr(figures, f"{file.stem}_figure")(read_data(file, file.stem)).canvas.draw()
    finally:
        pyplot.close("all")


def noise(size: tuple[int, int] = (20, 14)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), dtype=np.uint8))


def picture_bytes(form: str = "png") -> bytes:
    file = io.BytesIO()
    noise().save(file, form)
    return file.getvalue()


def make_folders(root: Path) -> dict[str, Folder]:
    """Everything that is read, whole, and how it is read."""
    folders: dict[str, Callable[[Path], object]] = {}

    def place(name: str, read: Callable[[Path], object]) -> Path:
        folders[name] = read
        (root / name).mkdir(parents=True)
        return root / name

    save_minit2i(place("checkpoint", rti.load_backbone))
    save_minit2i(place("shards of a checkpoint", rti.load_backbone), shards=2)
    save_jit(place("pytorch file", rti.load_backbone))
    rti.attach(make_backbone("jit"), rti.RegionConfig(core=CORE, lora_rank=2)).save_pretrained(
        place("adapter", read_adapter)
    )
    save_scenes_model(root / "scenes")
    shutil.copytree(root / "scenes" / "text_encoder", place("text encoder", load_text_encoder) / "text_encoder")
    for form in ("png", "jpeg", "webp", "gif", "bmp", "tiff"):
        folder = place(f"picture {form}", read_pictures)
        (folder / f"a.{form}").write_bytes(picture_bytes(form))

    shard = place("shards of data", read_examples) / "0.tar"
    with tarfile.open(shard, "w") as tar:
        for number in range(3):
            for name, data in {"png": picture_bytes(), "json": b'{"caption": "a cube"}'}.items():
                member = tarfile.TarInfo(f"{number}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    for name, text in {
        "metadata.jsonl": "".join(json.dumps({"file_name": f"{one}.png", "text": "a cube"}) + "\n" for one in range(3)),
        "metadata.csv": "file_name,caption\n0.png,a cube\n1.png,two\n",
    }.items():
        folder = place(name, read_examples)
        (folder / name).write_text(text)
        for number in range(3):
            (folder / f"{number}.png").write_bytes(picture_bytes())

    geneval = {"tag": "counting", "include": [{"class": "cup", "count": 2}], "exclude": [], "prompt": "two cups"}
    for name, text in {
        "prompts.jsonl": (json.dumps(geneval) + "\n") * 3,
        "prompts.tsv": "Prompt\tCategory\tChallenge\tNote\na cube\tArts\tBasic\t\n",
        "prompts.json": json.dumps({"a1": {"category": "people", "prompt": "a man"}}),
    }.items():
        (place(name, lambda path: open_prompts(str(next(path.iterdir())))) / name).write_text(text)

    rows = [{"name": "ours", "title": "ours", "settings": {"cuts": "merge"}, "seeds": [0, 1], "images": {"8": 6}}]
    rows += [{"name": "skip", "title": "skip", "reduction": "token-skip", "steps_at": {"8": [2]}}]
    values = {"model": "scenes", "budgets": [8, 16], "unseen": [12], "dense_steps": [2], "train": {"steps": 2}}
    study = place("study", lambda path: plan(read_study(path / "study.json"))) / "study.json"
    study.write_text(json.dumps(values | {"rows": rows}))

    folder = place("results", lambda path: compare_folders([path / "dense", path / "ours"], resamples=10))
    for name in ("dense", "ours"):
        _save_results(folder / name)
    if _has_matplotlib():
        _save_figures(place("figures", read_figure))
    return {name: Folder(root / name, read) for name, read in folders.items()}


def _save_results(folder: Path) -> None:
    (folder / "scores").mkdir(parents=True)
    manifest = dict(model="m", adapter=None, budget=folder.name, reduction=None, patches=64, steps=2, seed=0)
    manifest |= dict(guidance=1.0, images_per_prompt=2, prompts=dict(source="p", count=4), weights="w")
    manifest |= dict(text_budget=None, versions=dict(torch="2"))
    entries = [Entry(one, f"prompt {one}", "counting", (f"{one}-0.png", f"{one}-1.png"), (one, 9)) for one in range(4)]
    for entry, number in ((entry, number) for entry in entries for number in (0, 1)):
        (folder / entry.files[number]).write_bytes(b"")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "prompts.jsonl").write_text(entries_text(tuple(entries)))
    (folder / "timing.jsonl").write_text('{"pictures": 2, "seconds": 1.5, "device": "cpu"}\n')
    pictures = [{"file": file, "prompt": entry.index, "score": 0.5} for entry in entries for file in entry.files]
    summary = {"score": 0.5, "interval": [0.4, 0.6], "pictures": len(pictures)}
    score = {"metric": "clip", "scorer": {"model": "m"}, "summary": summary, "pictures": pictures}
    score |= {"digest": PictureFolder.open(folder).digest}
    (folder / "scores" / "clip.json").write_text(json.dumps(score))


def _has_matplotlib() -> bool:
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg")
    return True


def _save_figures(folder: Path) -> None:
    from test_probes_figures import groupings, orders, redundancy, routing

    for make in (groupings, orders, redundancy, routing):
        (folder / f"{make.__name__}.json").write_text(json.dumps({"probe": make.__name__} | make()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        fuzzing.main({name: partial(folder) for name, folder in make_folders(Path(root)).items()}, __doc__)
