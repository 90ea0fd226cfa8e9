"""Folders of pictures: with captions, or with one folder per class."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rti.data.source import ENDINGS, MOST_BYTES, BrokenExample, PictureSource, Stored, check_caption, decode_text
from rti.errors import InputError

METADATA = ("metadata.jsonl", "metadata.csv")
CAPTION_NAMES = ("caption", "text", "prompt")


class CaptionFolder(PictureSource):
    """Pictures with captions: `cat.jpg` beside `cat.txt`, in any depth of folders.

    If the folder holds metadata.jsonl or metadata.csv (columns file_name and text, caption or prompt; the Hugging Face
    convention, also in subfolders), the captions come from there and the .txt files are not looked at. A file_name that
    leads out of the folder is a broken example; links in the folder are followed wherever they lead, since whoever
    made the folder made them.
    """

    def __init__(self, folder: str | Path, size: int | tuple[int, int], flip: bool = False) -> None:
        self.folder = Path(folder)
        metadata = [path for path in walk(self.folder) if os.path.basename(path) in METADATA]
        if metadata:
            self.rows = [row for path in metadata for row in _rows(self.folder, path)]
        else:
            self.rows = [_Row(path, None) for path in walk(self.folder) if path.lower().endswith(ENDINGS)]
        self.has_metadata = bool(metadata)
        super().__init__(str(folder), "text", len(self.rows), size, flip)

    def read(self, number: int) -> Stored:
        picture = self.folder / self.rows[number].path
        caption = self.read_caption(number)
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

    def __init__(self, folder: str | Path, size: int | tuple[int, int], flip: bool = False) -> None:
        self.folder = Path(folder)
        self.classes = sorted(entry.name for entry in _entries(self.folder) if entry.is_dir())
        self.paths, self.labels = [], []
        for label, name in enumerate(self.classes):
            pictures = [path for path in walk(self.folder / name) if path.lower().endswith(ENDINGS)]
            if not pictures:  # leaving it out would silently shift every label after it
                raise InputError(f"class folder {self.folder / name} has no pictures ({', '.join(ENDINGS)})")
            self.paths += [os.path.join(name, path) for path in pictures]
            self.labels += [label] * len(pictures)
        super().__init__(str(folder), "labels", len(self.paths), size, flip)

    def read(self, number: int) -> Stored:
        picture = self.folder / self.paths[number]
        return Stored(read_file(picture), str(picture), label=self.labels[number])

    def describe(self) -> str:
        return f"{super().describe()} of {len(self.classes)} classes"


def folder_kind(folder: str | Path) -> str:
    """Captions or labels? Told by what is there; InputError if that is nothing, or some of both."""
    pictures = captions = loose = 0
    files = set(walk(folder))
    for path in files:
        if os.path.basename(path) in METADATA:
            return "text"
        if path.lower().endswith(ENDINGS):
            pictures += 1
            captions += os.path.splitext(path)[0] + ".txt" in files
            loose += os.path.dirname(path) == ""
    if not pictures:
        raise InputError(f"{folder} is empty: it holds no .tar shards and no pictures ({', '.join(ENDINGS)})")
    if 2 * captions >= pictures:
        return "text"
    if not captions and not loose:
        return "labels"
    raise InputError(
        f"cannot tell what {folder} is: {captions} of {pictures} pictures have a .txt caption and {loose} are in no "
        f"class folder; allowed are captions for all, metadata.jsonl or .csv, or one folder per class without captions"
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


class _Row(NamedTuple):
    path: str
    caption: str | None


def _rows(folder: Path, path: str) -> Iterator[_Row]:
    """Rows of a metadata file, paths relative to the folder. Malformed rows stay, to be counted when they are read."""
    place = os.path.dirname(path)
    text = decode_text(read_file(folder / path, limit=None), str(folder / path))
    records = _csv_records(text) if path.endswith(".csv") else _json_records(text)
    for line, record in records:
        caption = next((record[name] for name in CAPTION_NAMES if isinstance(record.get(name), str)), None)
        if isinstance(record.get("file_name"), str):
            yield _Row(os.path.normpath(os.path.join(place, record["file_name"])), caption)
        else:
            yield _Row(f"{path} line {line}", None)


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
        if not row.strip():
            continue
        try:
            record = json.loads(row)
        except (ValueError, RecursionError):
            record = None
        yield line, record if isinstance(record, dict) else {}


def _entries(folder: Path) -> list[os.DirEntry]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


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
