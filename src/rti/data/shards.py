"""Webdataset shards with random access: tar files are indexed by their headers once, then read by seeking."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rti.data.braces import expand_braces
from rti.data.fetch import fetch, is_remote
from rti.data.folder import CAPTION_NAMES, walk
from rti.data.shuffle import Order, scramble
from rti.data.source import (
    MOST_BYTES,
    BrokenExample,
    Example,
    PictureSource,
    Size,
    Source,
    Stored,
    check_caption,
    decode_text,
)
from rti.data.tar_index import LABEL, PICTURE, RECORD, WORDS, load_index, member_name
from rti.errors import InputError

WINDOW = 4  # remote shards that are there at once, and whose examples are shuffled together
_FORMS = "a .tar file, a folder of them, a pattern such as data/{000..009}.tar, or such an http(s):// or hf:// address"


class ShardSource(PictureSource):
    """Examples of tar shards: a picture, and a caption (txt, or json with caption, text or prompt) or a class (cls).

    Files are opened for each read and never extracted. Nothing but paths and numbers is kept, so the source can be
    pickled, and forked or spawned workers share no position in a file.
    """

    def __init__(
        self, shards: str | Path | Sequence[str | Path], size: Size, flip: bool = False, kind: str | None = None
    ) -> None:
        name = str(shards) if isinstance(shards, (str, Path)) else f"{len(shards)} shards"
        addresses = list_shards(shards) if isinstance(shards, (str, Path)) else [str(shard) for shard in shards]
        if not addresses:
            raise InputError(f"no shards were given; allowed are {_FORMS}")
        self.paths = [fetch(address) for address in addresses]
        indexed = [load_index(path) for path in self.paths]
        self.cut_short = sum(not complete for _, complete in indexed)
        self.members = np.concatenate([members for members, _ in indexed])  # (n, 4, 2), see index_tar
        self.first = np.cumsum([0, *(len(members) for members, _ in indexed)])  # first example of each shard
        super().__init__(name, _kind(self.members, name, kind), len(self.members), size, flip)

    def read(self, number: int) -> Stored:
        with self._open(number) as (file, name):
            if self.kind == "labels":
                answer = {"label": _label(self._member(file, number, LABEL, name, "cls"), name)}
            else:
                answer = {"caption": self._words(file, number, name)}
            return Stored(self._member(file, number, PICTURE, name, "picture"), name, **answer)

    def read_caption(self, number: int) -> str:
        with self._open(number) as (file, name):
            return self._words(file, number, name)

    @contextmanager
    def _open(self, number: int) -> Iterator[tuple[BinaryIO, str]]:
        """The shard an example is in, and the example's name for messages."""
        path = self.paths[int(np.searchsorted(self.first, number, side="right")) - 1]
        try:
            with open(path, "rb") as file:
                yield file, f"{path}: {member_name(file, int(self.members[number, PICTURE, 0]))}"
        except OSError as error:
            raise BrokenExample(f"cannot read {path} ({error.strerror or error})") from None

    def _member(self, file: BinaryIO, number: int, place: int, name: str, what: str) -> bytes:
        offset, size = self.members[number, place].tolist()
        if offset < 0:
            raise BrokenExample(f"{name} has no {what}")
        # Checked first, since a damaged header may claim more bytes than there is memory.
        if offset + size > os.fstat(file.fileno()).st_size:
            raise BrokenExample(f"{name} lies past the end of its shard, which was cut short")
        if size > MOST_BYTES:
            raise BrokenExample(f"{name} has a {what} of {size:,} bytes, more than {MOST_BYTES:,}")
        file.seek(offset)
        return file.read(size)

    def _words(self, file: BinaryIO, number: int, name: str) -> str:
        """The caption, from the txt; from the json only where there is no txt."""
        words, record = self.members[number, (WORDS, RECORD), 0] >= 0
        if words or not record:
            return check_caption(decode_text(self._member(file, number, WORDS, name, "txt or json"), name), name)
        return _caption(self._member(file, number, RECORD, name, "json"), name)

    def describe(self) -> str:
        torn = f", {self.cut_short} cut short" if self.cut_short else ""
        return f"{super().describe()} in {len(self.paths)} shards{torn}"


class RemoteShards(Source):
    """Many shards from elsewhere, each loaded when its turn comes: a run begins when the first four are here.

    Every epoch goes through the shards in another order, WINDOW of them at a time, and shuffles the examples of such a
    window among themselves; meanwhile the next window is loaded. The order follows from the seed and the shards alone:
    where a position lies is counted from the lengths of the shards before it, which by then have been here.
    """

    endless = True  # it shuffles itself: nobody knows its length before the first epoch is over

    def __init__(self, name: str, addresses: list[str], size: Size, flip: bool, kind: str | None, seed: int) -> None:
        self.name, self.addresses, self.size, self.flip, self.kind = name, addresses, size, flip, kind
        self._key = scramble(seed)
        self._order = Order(len(addresses), self._key)  # of the shards
        self._lengths: dict[str, int] = {}  # of shards that have been here
        self._span = range(0)  # the indices of the window that is open
        self._enter(0)
        self.kind = self._window.kind

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> Example:
        window, inner = self.locate(index)
        return window[inner]

    def describe(self) -> str:
        return f"{self.name}: {len(self.addresses)} shards, loaded in turn"

    def captions(self) -> Iterator[str]:
        return ShardSource(self.addresses, self.size, kind=self.kind).captions()

    def locate(self, index: int) -> tuple[Source, int]:
        self.check_index(index)
        if index not in self._span:
            self._enter(index)
        return self._window, self._inner.index(index - self._span.start)

    def _enter(self, index: int) -> None:
        """Open the window that holds an index, and begin to load the one after it."""
        number, start = 0, 0
        while index >= start + (length := sum(map(self._length, self._shards(number)))):
            number, start = number + 1, start + length
            if number * WINDOW >= len(self.addresses) and not start:
                raise InputError(f"{self.name} is empty: none of its {len(self.addresses)} shards holds a picture")
        self._span = range(start, start + length)
        self._window = ShardSource(self._shards(number), self.size, self.flip, self.kind)
        self._inner = Order(length, scramble(self._key ^ number + 1))
        threading.Thread(target=_load_ahead, args=(self._shards(number + 1),), daemon=True).start()

    def _shards(self, number: int) -> list[str]:
        """Those of a window; the last one of an epoch may be smaller."""
        count = len(self.addresses)
        epoch, place = divmod(number, -(-count // WINDOW))
        ranks = range(count)[place * WINDOW : (place + 1) * WINDOW]
        return [self.addresses[self._order.index(epoch * count + rank)] for rank in ranks]

    def _length(self, address: str) -> int:
        if address not in self._lengths:
            self._lengths[address] = len(load_index(fetch(address))[0]) * (2 if self.flip else 1)
        return self._lengths[address]


def _load_ahead(addresses: list[str]) -> None:
    with suppress(InputError):  # told when their turn comes
        for address in addresses:
            fetch(address, quiet=True)


def open_shards(spec: str, size: Size, flip: bool = False, kind: str | None = None, seed: int = 0) -> Source:
    """Local shards, and few from elsewhere, with an index of all their examples; many from elsewhere in turn."""
    addresses = list_shards(spec)
    if is_remote(spec) and len(addresses) > WINDOW:
        return RemoteShards(spec, addresses, size, flip, kind, seed)
    return ShardSource(spec, size, flip, kind)


def list_shards(spec: str | Path) -> list[str]:
    """The shards that a path, a folder, a pattern or an address stands for, in order."""
    spec = str(spec)
    if is_remote(spec):
        return expand_braces(spec)
    if os.path.isdir(spec):
        names = [os.path.join(spec, name) for name in walk(spec) if name.endswith(".tar")]
        if not names:
            raise InputError(f"folder {spec} holds no .tar shards; allowed are {_FORMS}")
        return names
    names = [spec] if os.path.exists(spec) else expand_braces(spec)
    missing = [name for name in names if not os.path.exists(name)]
    if missing:
        which = "" if names == [spec] else f" ({len(missing)} of {len(names)} shards of {spec})"
        raise InputError(f"{missing[0]} does not exist{which}; allowed are {_FORMS}")
    return names


def _kind(members: np.ndarray, name: str, wanted: str | None) -> str:
    """Captions or labels, as wanted or as more examples have. A json may hold anything: it decides only when alone."""
    _, words, records, labels = (members[:, :, 0] >= 0).sum(axis=0).tolist()
    kind = wanted or ("labels" if labels > words else "text")
    if len(members) and not (labels if kind == "labels" else words + records):
        needed = {"text": "captions (txt or json)", "labels": "classes (cls)"}
        raise InputError(f"{name} holds pictures without {needed[wanted] if wanted else ' or '.join(needed.values())}")
    return kind


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
