"""Webdataset shards with random access: tar files are indexed by their headers once, then read by seeking."""

from __future__ import annotations

import hashlib
import os
import tarfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rti.data.fetch import cache_folder, fetch
from rti.data.shuffle import Shuffle
from rti.data.source import MOST_BYTES, BrokenExample, PictureSource, Size, Source, caption_of, check_caption, record_of
from rti.errors import InputError
from rti.files import first_line, require_regular, whole_file
from rti.images import ENDINGS
from rti.seeds import scramble

WINDOW = 4  # remote shards that are there at once, and whose examples are shuffled together
# The members of an example, their places in an index, and their endings.
PICTURE, WORDS, RECORD, LABEL = range(4)
_MEMBERS = ("picture", "txt or json", "json", "cls")
_ENDINGS = dict.fromkeys(ENDINGS, PICTURE) | {".txt": WORDS, ".json": RECORD, ".cls": LABEL}
_WORTH_KEEPING = 1000  # examples, which take about a tenth of a second to index
_VERSION = 3  # of the kept index: count up when the grouping changes
_NEEDED = {"text": "captions (txt or json)", "labels": "classes (cls)", None: "captions (txt or json) or classes (cls)"}


class ShardSource(PictureSource):
    """Examples of tar shards: a picture, and a caption (txt, or json with caption, text or prompt) or a class (cls).

    Files are opened for each read and never extracted. Nothing but paths and numbers is kept, so the source can be
    pickled, and forked or spawned workers share no position in a file.
    """

    def __init__(
        self, name: str, addresses: Sequence[str], size: Size, flip: bool = False, kind: str | None = None
    ) -> None:
        self.paths = [fetch(address) for address in addresses]
        indexed = [load_index(path) for path in self.paths]
        self.members = np.concatenate(indexed)  # (n, 4, 2), see index_tar
        self.first = np.cumsum([0, *map(len, indexed)])  # first example of each shard
        # As wanted, or as more examples have. A json may hold anything: it decides only when alone.
        pictures, words, records, labels = (self.members[:, :, 0] >= 0).sum(axis=0).tolist()
        chosen = kind or ("labels" if labels > words else "text")
        if pictures and not (labels if chosen == "labels" else words + records):
            raise InputError(f"{name} holds pictures without {_NEEDED[kind]}")
        super().__init__(name, chosen, pictures, size, flip)

    def picture(self, number: int) -> tuple[bytes, str]:
        return self._read(number, PICTURE)

    def answer(self, number: int) -> str | int:
        """A caption is from the json only where there is no txt."""
        _, words, record, _ = self.members[number, :, 0] >= 0
        place = LABEL if self.kind == "labels" else RECORD if record and not words else WORDS
        data, name = self._read(number, place)
        if place == LABEL:
            if not (data.strip().isdigit() and len(data.strip()) < 10):
                raise BrokenExample(f"{name} has a class that is no number: {data[:20]!r}")
            return int(data)
        return check_caption(caption_of(record_of(data)) if place == RECORD else data, name)

    def _read(self, number: int, place: int) -> tuple[bytes, str]:
        """A member of an example, and the example's name for messages."""
        path = self.paths[int(np.searchsorted(self.first, number, side="right")) - 1]
        offset, size = self.members[number, place].tolist()
        try:
            with open(path, "rb") as file:
                file.seek(int(self.members[number, PICTURE, 0]) - tarfile.BLOCKSIZE)  # the header begins with the name
                name = f"{path}: {file.read(100).split(bytes(1))[0].decode('utf-8', 'replace')}"
                if offset < 0:
                    raise BrokenExample(f"{name} has no {_MEMBERS[place]}")
                # Checked first, since a damaged header may claim more bytes than there is memory.
                if offset + size > os.fstat(file.fileno()).st_size:
                    raise BrokenExample(f"{name} lies past the end of its shard, which was cut short")
                if size > MOST_BYTES:
                    raise BrokenExample(f"{name} has a {_MEMBERS[place]} of {size:,} bytes, more than {MOST_BYTES:,}")
                file.seek(offset)
                return file.read(size), name
        except OSError as error:
            raise BrokenExample(f"cannot read {path} ({error.strerror or error})") from None


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
        self._shuffle = Shuffle(len(addresses), self._key)  # of the shards
        self._lengths: dict[str, int] = {}  # of shards that have been here
        self._span = range(0)  # the indices of the window that is open
        self._enter(0)
        self.kind = self._window.kind

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
        self._window = ShardSource(self.name, self._shards(number), self.size, self.flip, self.kind)
        self._inner = Shuffle(length, scramble(self._key ^ number + 1))
        threading.Thread(target=_load_ahead, args=(self._shards(number + 1),), daemon=True).start()

    def _shards(self, number: int) -> list[str]:
        """Those of a window; the last one of an epoch may be smaller."""
        count = len(self.addresses)
        epoch, place = divmod(number, -(-count // WINDOW))
        ranks = range(count)[place * WINDOW : (place + 1) * WINDOW]
        return [self.addresses[self._shuffle.index(epoch * count + rank)] for rank in ranks]

    def _length(self, address: str) -> int:
        if address not in self._lengths:
            self._lengths[address] = len(load_index(fetch(address))) * (2 if self.flip else 1)
        return self._lengths[address]


def _load_ahead(addresses: list[str]) -> None:
    with suppress(InputError):  # told when their turn comes
        for address in addresses:
            fetch(address, quiet=True)


def load_index(path: str | Path) -> np.ndarray:
    """`index_tar`, kept in the cache folder for large shards as long as the file's size and time stay the same."""
    require_regular(Path(path))  # a pipe would block, and one cannot seek in it
    status = os.stat(path)
    identity = f"{_VERSION} {os.path.abspath(path)} {status.st_size} {status.st_mtime_ns}"
    kept = cache_folder() / "indexes" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.npz"
    with suppress(Exception), np.load(kept, allow_pickle=False) as arrays:  # not there, or damaged in one of many ways
        return arrays["members"]
    members = index_tar(path)
    if len(members) >= _WORTH_KEEPING:
        # Where the cache cannot be written, shards are indexed anew each time.
        with suppress(InputError), whole_file(kept, shared=True) as temporary, temporary.open("wb") as file:
            np.savez(file, members=members)
    return members


def index_tar(path: str | Path) -> np.ndarray:
    """The examples of a shard: offset and size in bytes of each one's members, (n, 4, 2) int64, offset -1 for none.

    Members with the same path up to the first dot of the file name are one example (webdataset's rule), also when
    others lie between them. A name that comes again begins a new example. Groups without a picture are no examples;
    members other than pictures, txt, json and cls are never read, so nothing is ever unpickled.

    A shard that was cut short is used as far as it goes: what lies past the end of the file is found broken when read.
    """
    groups: list[list[tuple[int, int]]] = []
    current: dict[str, list[tuple[int, int]]] = {}
    try:
        # The colon refuses compressed tars, in which one cannot seek.
        with tarfile.open(path, "r:") as tar, suppress(tarfile.TarError, OSError, ValueError):
            while (member := tar.next()) is not None:
                tar.members.clear()  # else every header would be kept
                folder, _, file = member.name.rpartition("/")
                stem, _, ending = file.partition(".")
                place = _ENDINGS.get("." + ending.lower())
                if not stem or place is None or not member.isreg() or member.issparse():
                    continue
                key = f"{folder}/{stem}"
                if key not in current or current[key][place][0] >= 0:
                    current[key] = [(-1, 0)] * 4
                    groups.append(current[key])
                current[key][place] = (member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError) as error:
        size = f"{os.path.getsize(path)} bytes"
        raise InputError(f"shard {path} ({size}) is not an uncompressed tar file ({first_line(error)})") from None
    whole = [group for group in groups if group[PICTURE][0] >= 0]
    return np.array(whole, dtype=np.int64).reshape(-1, 4, 2)
