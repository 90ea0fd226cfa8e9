"""Folders of pictures: with captions, or with one folder per class."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rti.data.source import MOST_BYTES, BrokenExample, PictureSource, Size, Stored, check_caption, decode_text
from rti.errors import InputError
from rti.images import ENDINGS

METADATA = ("metadata.jsonl", "metadata.csv")
CAPTION_NAMES = ("caption", "text", "prompt")


class CaptionFolder(PictureSource):
    """Pictures with captions: `cat.jpg` beside `cat.txt`, in any depth of folders.

    If the folder holds metadata.jsonl or metadata.csv (columns file_name and text, caption or prompt; the Hugging Face
    convention, also in subfolders), the captions come from there and the .txt files are not looked at. A file_name that
    leads out of the folder is a broken example; links in the folder are followed wherever they lead, since whoever
    made the folder made them.
    """

    def __init__(self, folder: str | Path, size: Size, flip: bool = False) -> None:
        self.folder = Path(folder)
        metadata = [path for path in walk(folder) if os.path.basename(path) in METADATA]
        self.has_metadata = bool(metadata)
        rows = [row for path in metadata for row in _rows(self.folder, path)]
        self.rows = rows if metadata else [(path, None) for path in pictures_in(folder)]
        super().__init__(str(folder), "text", len(self.rows), size, flip)

    def read(self, number: int) -> Stored:
        caption, picture = self.read_caption(number), self.folder / self.rows[number][0]
        return Stored(read_file(picture), str(picture), caption=caption)

    def read_caption(self, number: int) -> str:
        path, caption = self.rows[number]
        if Path(path).anchor or Path(path).parts[:1] == ("..",):  # the path is normal, so that .. can only come first
            raise BrokenExample(f"file_name {path!r} of the metadata is not in {self.folder}")
        picture = self.folder / path
        if not self.has_metadata:
            words = picture.with_suffix(".txt")
            caption = decode_text(read_file(words), str(words))
        return check_caption(caption, str(picture))


class ClassFolder(PictureSource):
    """One folder per class, as ImageNet is kept: the label is the rank of the folder's name in sorted order.

    Sorting is by character, as torchvision does it ("10" before "2"); `classes` holds the names.
    """

    def __init__(self, folder: str | Path, size: Size, flip: bool = False) -> None:
        self.folder = Path(folder)
        inside = [path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        self.classes = sorted(path.name for path in inside)
        self.pictures: list[tuple[str, int]] = []  # with their labels
        for label, name in enumerate(self.classes):
            pictures = pictures_in(self.folder / name)
            if not pictures:  # leaving it out would silently shift every label after it
                raise InputError(f"class folder {self.folder / name} has no pictures ({', '.join(ENDINGS)})")
            self.pictures += [(os.path.join(name, path), label) for path in pictures]
        super().__init__(str(folder), "labels", len(self.pictures), size, flip)

    def read(self, number: int) -> Stored:
        path, label = self.pictures[number]
        return Stored(read_file(self.folder / path), str(self.folder / path), label=label)

    def describe(self) -> str:
        return f"{super().describe()} of {len(self.classes)} classes"


def folder_kind(folder: str | Path) -> str:
    """Captions or labels? Told by what is there; InputError if that is nothing, or some of both."""
    files, pictures = set(walk(folder)), pictures_in(folder)
    if any(os.path.basename(path) in METADATA for path in files):
        return "text"
    captions = sum(os.path.splitext(path)[0] + ".txt" in files for path in pictures)
    loose = sum(os.path.dirname(path) == "" for path in pictures)
    if not pictures:
        raise InputError(f"{folder} is empty: it holds no .tar shards and no pictures ({', '.join(ENDINGS)})")
    if 2 * captions >= len(pictures):
        return "text"
    if not captions and not loose:
        return "labels"
    raise InputError(
        f"cannot tell what {folder} is: {captions} of {len(pictures)} pictures have a .txt caption and {loose} are in "
        "no class folder; allowed: captions for all, metadata.jsonl or .csv, or one folder per class without captions"
    )


def walk(folder: str | Path) -> Iterator[str]:
    """Every file below a folder, as relative paths: sorted, a folder's files before its subfolders.

    Hidden files are left out, links are followed.
    """
    seen = set()  # a link to a parent folder would otherwise never end
    for place, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        relative = os.path.relpath(place, folder)
        for name in sorted(files):
            if not name.startswith("."):
                yield os.path.normpath(os.path.join(relative, name))


def pictures_in(folder: str | Path) -> list[str]:
    return [path for path in walk(folder) if path.lower().endswith(ENDINGS)]


def _rows(folder: Path, path: str) -> Iterator[tuple[str, str | None]]:
    """(path, caption) of each row of a metadata file. Malformed rows stay, to be counted when they are read."""
    text = decode_text(read_file(folder / path, limit=None), str(folder / path))
    for line, record in _csv_records(text) if path.endswith(".csv") else _json_records(text):
        caption = next((record[name] for name in CAPTION_NAMES if isinstance(record.get(name), str)), None)
        if isinstance(record.get("file_name"), str):
            yield os.path.normpath(os.path.join(os.path.dirname(path), record["file_name"])), caption
        else:
            yield f"{path} line {line}", None


def _csv_records(text: str) -> Iterator[tuple[int, dict]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))  # captions may hold line ends in quotes
    try:
        for record in reader:
            yield reader.line_num, record
    except csv.Error as error:
        raise InputError(f"{METADATA[1]} is not readable at line {reader.line_num} ({error})") from None


def _json_records(text: str) -> Iterator[tuple[int, dict]]:
    # Not str.splitlines: it also splits at characters that JSON allows within a caption.
    for line, row in enumerate(text.split("\n"), 1):
        try:
            record = json.loads(row)
        except (ValueError, RecursionError):
            record = None
        if row.strip():
            yield line, record if isinstance(record, dict) else {}


def read_file(path: Path, limit: int | None = MOST_BYTES) -> bytes:
    """The bytes of a regular file: a pipe would block, and a device never end."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if limit is not None and status.st_size > limit:
            raise OSError(f"{status.st_size:,} bytes, more than {limit:,}")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in a name from a metadata file
        raise BrokenExample(f"cannot read {path} ({getattr(error, 'strerror', None) or error})") from None
