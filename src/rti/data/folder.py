"""Folders of pictures: with captions, or with one folder per class."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from rti.data.source import MOST_BYTES, BrokenExample, PictureSource, Size, caption_of, check_caption, record_of
from rti.errors import InputError
from rti.files import first_line, in_one_line, require_regular
from rti.images import ENDINGS

METADATA = ("metadata.jsonl", "metadata.csv")


class FolderSource(PictureSource):
    """Pictures with captions, `cat.jpg` beside `cat.txt` in any depth of folders; or one folder per class.

    If the folder holds metadata.jsonl or metadata.csv (columns file_name and text, caption or prompt; the Hugging Face
    convention, also in subfolders), the captions come from there and the .txt files are not looked at. A file_name that
    leads out of the folder is a broken example; links in the folder are followed wherever they lead, since whoever
    made the folder made them.

    Of a folder per class, as ImageNet is kept, the label is the rank of the folder's name. Sorting is by character, as
    torchvision does it ("10" before "2"); `classes` holds the names.
    """

    def __init__(self, folder: str | Path, size: Size, flip: bool = False, kind: str | None = None) -> None:
        self.folder, files = Path(folder), list(walk(folder))
        metadata = [path for path in files if os.path.basename(path) in METADATA]
        kind = kind or ("text" if metadata else _kind(folder, files))
        self.rows: list[tuple[str, str | int | None]]  # path of a picture, and what it shows; None: in the .txt
        if kind == "labels":
            inside = [path for path in self.folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
            self.classes = sorted(path.name for path in inside)
            self.rows = []
            for label, name in enumerate(self.classes):
                pictures = [os.path.join(name, path) for path in walk(self.folder / name) if is_picture(path)]
                if not pictures:  # leaving it out would silently shift every label after it
                    raise InputError(f"class folder {self.folder / name} has no pictures ({', '.join(ENDINGS)})")
                self.rows += [(path, label) for path in pictures]
        elif metadata:
            self.rows = [row for path in metadata for row in _metadata(self.folder, path)]
        else:
            self.rows = [(path, None) for path in files if is_picture(path)]
        super().__init__(str(folder), kind, len(self.rows), size, flip)

    def picture(self, number: int) -> tuple[bytes, str]:
        path = self.folder / self.rows[number][0]
        return read_file(path), str(path)

    def answer(self, number: int) -> str | int:
        path, answer = self.rows[number]
        if Path(path).anchor or Path(path).parts[:1] == ("..",):  # the path is normal, so that .. can only come first
            raise BrokenExample(f"file_name {path!r} of the metadata is not in {self.folder}")
        path = self.folder / path
        if answer is None:
            path = path.with_suffix(".txt")
            answer = read_file(path)
        return answer if self.kind == "labels" else check_caption(answer, str(path))


def _kind(folder: str | Path, files: list[str]) -> str:
    """Captions or labels? Told by what is there; InputError if that is nothing, or some of both."""
    there, pictures = set(files), [path for path in files if is_picture(path)]
    if not pictures:
        raise InputError(f"{folder} is empty: it holds no .tar shards and no pictures ({', '.join(ENDINGS)})")
    captions = sum(os.path.splitext(path)[0] + ".txt" in there for path in pictures)
    loose = sum(os.path.dirname(path) == "" for path in pictures)
    if 2 * captions >= len(pictures):
        return "text"
    if not captions and not loose:
        return "labels"
    raise InputError(
        f"cannot tell what {folder} is: {captions} of {len(pictures)} pictures have a .txt caption and {loose} are in "
        "no class folder; allowed: captions for all, metadata.jsonl or .csv, or one folder per class without captions"
    )


def _metadata(folder: Path, path: str) -> Iterator[tuple[str, str]]:
    """(path, caption) of each row of a metadata file. Malformed rows stay, to be counted when they are read."""
    with in_one_line(f"{folder / path} is not readable"):
        text = read_file(folder / path, limit=None).decode("utf-8-sig")
        if path.endswith(".csv"):
            reader = csv.DictReader(io.StringIO(text, newline=""))  # captions may hold line ends in quotes
            records = ((reader.line_num, record) for record in reader)
        else:  # not str.splitlines: it also splits at characters that JSON allows within a caption
            records = ((line, record_of(row)) for line, row in enumerate(text.split("\n"), 1) if row.strip())
        for line, record in records:
            if isinstance(record.get("file_name"), str):
                yield os.path.normpath(os.path.join(os.path.dirname(path), record["file_name"])), caption_of(record)
            else:
                yield f"{path} line {line}", ""


def walk(folder: str | Path) -> Iterator[str]:
    """Every file below a folder, as relative paths: sorted, a folder's files before its subfolders.

    Hidden files are left out, links are followed.
    """
    seen = set()  # a link to a parent folder would otherwise never end
    for place, folders, files in os.walk(folder, followlinks=True):
        real, relative = os.path.realpath(place), os.path.relpath(place, folder)
        folders[:] = sorted(name for name in folders if name[0] != "." and real not in seen)
        for name in sorted(files):
            if name[0] != "." and real not in seen:
                yield os.path.normpath(os.path.join(relative, name))
        seen.add(real)


def is_picture(path: str) -> bool:
    return path.lower().endswith(ENDINGS)


def read_file(path: Path, limit: int | None = MOST_BYTES) -> bytes:
    """The bytes of a regular file: a pipe would block, and a device never end."""
    try:
        require_regular(path)
        if limit is not None and path.stat().st_size > limit:
            raise InputError(f"{path.stat().st_size:,} bytes, more than {limit:,}")
        return path.read_bytes()
    except (OSError, InputError) as error:
        raise BrokenExample(f"cannot read {path} ({first_line(error)})") from None
