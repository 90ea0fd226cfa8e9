"""Where the examples of a tar shard lie, read from its headers alone."""

from __future__ import annotations

import hashlib
import os
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from rti.data.fetch import cache_folder
from rti.errors import InputError
from rti.files import first_line, require_regular, whole_file

# The members of an example by their endings, and their places in an index.
PICTURE, WORDS, RECORD, LABEL = range(4)
_PLACES = {"jpg": PICTURE, "jpeg": PICTURE, "png": PICTURE, "webp": PICTURE, "txt": WORDS, "json": RECORD, "cls": LABEL}
_WORTH_KEEPING = 1000  # examples, which take about a tenth of a second to index
_VERSION = 2  # of the kept index: count up when the grouping changes


def load_index(path: str | Path) -> tuple[np.ndarray, bool]:
    """`index_tar`, kept in the cache folder for large shards as long as the file's size and time stay the same."""
    require_regular(Path(path))  # a pipe would block, and one cannot seek in it
    status = os.stat(path)
    identity = f"{_VERSION} {os.path.abspath(path)} {status.st_size} {status.st_mtime_ns}"
    kept = cache_folder() / "indexes" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.npz"
    try:
        with np.load(kept, allow_pickle=False) as arrays:
            return arrays["members"], bool(arrays["complete"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # not there, or damaged
    members, complete = index_tar(path)
    if len(members) >= _WORTH_KEEPING:
        # Where the cache cannot be written, shards are indexed anew each time.
        with suppress(InputError), whole_file(kept, shared=True) as temporary, temporary.open("wb") as file:
            np.savez(file, members=members, complete=complete)
    return members, complete


def index_tar(path: str | Path) -> tuple[np.ndarray, bool]:
    """The examples of a shard, and whether the tar ends as a tar should.

    Offset and size in bytes of each example's members: (n, 4, 2) int64, offset -1 where there is none. Members with the
    same path up to the first dot of the file name are one example (webdataset's rule), also when others lie between
    them. A name that comes again begins a new example. Groups without a picture are no examples; members other than
    pictures, txt, json and cls are never read, so nothing is ever unpickled.

    A shard that was cut short is used as far as it goes: what lies past the end of the file is found broken when read.
    """
    groups: list[list[tuple[int, int]]] = []
    current: dict[str, list[tuple[int, int]]] = {}
    try:
        # The colon refuses compressed tars, in which one cannot seek.
        with tarfile.open(path, "r:") as tar:
            complete = True
            try:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # else every header would be kept
                    folder, _, file = member.name.rpartition("/")
                    stem, _, ending = file.partition(".")
                    place = _PLACES.get(ending.lower())
                    if not stem or place is None or not member.isreg() or member.issparse():
                        continue
                    key = f"{folder}/{stem}"
                    if key not in current or current[key][place][0] >= 0:
                        current[key] = [(-1, 0)] * 4
                        groups.append(current[key])
                    current[key][place] = (member.offset_data, member.size)
            except (tarfile.TarError, OSError, ValueError):
                complete = False
            # tarfile stops at a damaged header as it does at the end; the end is a block of zeros.
            tar.fileobj.seek(tar.offset)
            complete = complete and tar.fileobj.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    except (tarfile.TarError, OSError, EOFError) as error:
        size = f"{os.path.getsize(path)} bytes"
        raise InputError(f"shard {path} ({size}) is not an uncompressed tar file ({first_line(error)})") from None
    whole = [group for group in groups if group[PICTURE][0] >= 0]
    return np.array(whole, dtype=np.int64).reshape(-1, 4, 2), complete


def member_name(file, offset: int) -> str:
    """The name in the header before a member's data, for messages (at most 100 characters of it)."""
    file.seek(offset - tarfile.BLOCKSIZE)
    return file.read(100).split(b"\0")[0].decode("utf-8", "replace")
