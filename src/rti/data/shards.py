"""Webdataset shards with random access: tar files are indexed by their headers once, then read by seeking."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rti.data.braces import expand_braces
from rti.data.fetch import HUB, WEB, fetch
from rti.data.folder import CAPTION_NAMES, walk
from rti.data.source import MOST_BYTES, BrokenExample, PictureSource, Stored, check_caption, decode_text
from rti.data.tar_index import Columns, load_index, member_name
from rti.errors import InputError

_FORMS = "a .tar file, a folder of them, a pattern such as data/{000..009}.tar, or such an http(s):// or hf:// address"


class ShardSource(PictureSource):
    """Examples of tar shards: a picture, and a caption (txt, or json with caption, text or prompt) or a class (cls).

    Files are opened for each read and never extracted. Nothing but paths and numbers is kept, so the source can be
    pickled, and forked or spawned workers share no position in a file.
    """

    def __init__(
        self,
        shards: str | Path | Sequence[str | Path],
        size: int | tuple[int, int],
        flip: bool = False,
        kind: str | None = None,
    ) -> None:
        name = str(shards) if isinstance(shards, (str, Path)) else f"{len(shards)} shards"
        addresses = list_shards(shards) if isinstance(shards, (str, Path)) else [str(shard) for shard in shards]
        if not addresses:
            raise InputError(f"no shards were given; allowed are {_FORMS}")
        self.paths = [fetch(address) for address in addresses]
        indexed = [load_index(path) for path in self.paths]
        self.cut_short = sum(not complete for _, complete in indexed)
        counts = [len(columns.picture) for columns, _ in indexed]
        self.columns = Columns(*(np.concatenate(parts) for parts in zip(*(part for part, _ in indexed), strict=True)))
        self.first = np.cumsum([0, *counts])  # number of the first example of each shard
        super().__init__(name, _kind(self.columns, name, kind), sum(counts), size, flip)

    def read(self, number: int) -> Stored:
        places = self._places(number)
        with self._open(number) as (file, name):
            if self.kind == "labels":
                answer = {"label": _label(_member(file, places.label, name, "cls"), name)}
            else:
                answer = {"caption": _words(file, places, name)}
            return Stored(_member(file, places.picture, name, "picture"), name, **answer)

    def read_caption(self, number: int) -> str:
        with self._open(number) as (file, name):
            return _words(file, self._places(number), name)

    def _places(self, number: int) -> Columns:
        """Offset and size of each of an example's members."""
        return Columns(*(tuple(map(int, column[number])) for column in self.columns))

    @contextmanager
    def _open(self, number: int) -> Iterator[tuple[BinaryIO, str]]:
        """The shard an example is in, and the example's name for messages."""
        path = self.paths[int(np.searchsorted(self.first, number, side="right")) - 1]
        try:
            with open(path, "rb") as file:
                yield file, f"{path}: {member_name(file, int(self.columns.picture[number, 0]))}"
        except OSError as error:
            raise BrokenExample(f"cannot read {path} ({error.strerror or error})") from None

    def describe(self) -> str:
        torn = f", {self.cut_short} cut short" if self.cut_short else ""
        return f"{super().describe()} in {len(self.paths)} shards{torn}"


def list_shards(spec: str | Path) -> list[str]:
    """The shards that a path, a folder, a pattern or an address stands for, in order."""
    spec = str(spec)
    if spec.startswith((*WEB, HUB)):
        return expand_braces(spec)
    if os.path.isdir(spec):
        names = [os.path.join(spec, name) for name in walk(spec) if name.endswith(".tar")]
        if not names:
            raise InputError(f"folder {spec} holds no .tar shards; allowed are {_FORMS}")
        return names
    if os.path.exists(spec):
        return [spec]
    names = expand_braces(spec)
    missing = [name for name in names if not os.path.exists(name)]
    if missing:
        which = "" if names == [spec] else f" ({len(missing)} of {len(names)} shards of {spec})"
        raise InputError(f"{missing[0]} does not exist{which}; allowed are {_FORMS}")
    return names


def _kind(columns: Columns, name: str, wanted: str | None) -> str:
    """Captions or labels, as wanted or as more examples have. A json may hold anything: it decides only when alone."""
    words, records, labels = (int((column[:, 0] >= 0).sum()) for column in columns[1:])
    kind = wanted or ("labels" if labels > words else "text")
    if len(columns.picture) and not (labels if kind == "labels" else words + records):
        needed = {"text": "captions (txt or json)", "labels": "classes (cls)"}
        raise InputError(f"{name} holds pictures without {needed[wanted] if wanted else ' or '.join(needed.values())}")
    return kind


def _member(file, place: tuple[int, int], name: str, what: str) -> bytes:
    offset, size = place
    if offset < 0:
        raise BrokenExample(f"{name} has no {what}")
    # Checked first, since a damaged header may claim more bytes than there is memory.
    if offset + size > os.fstat(file.fileno()).st_size:
        raise BrokenExample(f"{name} lies past the end of its shard, which was cut short")
    if size > MOST_BYTES:
        raise BrokenExample(f"{name} has a {what} of {size:,} bytes, more than {MOST_BYTES:,}")
    file.seek(offset)
    return file.read(size)


def _words(file: BinaryIO, places: Columns, name: str) -> str:
    """The caption, from the txt; from the json only where there is no txt."""
    if places.words[0] >= 0 or places.record[0] < 0:
        return check_caption(decode_text(_member(file, places.words, name, "txt or json"), name), name)
    return _caption(_member(file, places.record, name, "json"), name)


def _caption(data: bytes, name: str) -> str:
    try:
        record = json.loads(decode_text(data, name))
    except (ValueError, RecursionError) as error:
        raise BrokenExample(f"{name} has a malformed json ({error})") from None
    if not isinstance(record, dict):
        raise BrokenExample(f"{name} has a json that is no object")
    return check_caption(next((record[key] for key in CAPTION_NAMES if record.get(key)), None), name)


def _label(data: bytes, name: str) -> int:
    text = data.strip()
    if not (text.isdigit() and len(text) < 10):
        raise BrokenExample(f"{name} has a class that is no number: {text[:20]!r}")
    return int(text)
