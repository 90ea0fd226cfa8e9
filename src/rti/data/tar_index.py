"""Where the examples of a tar shard lie, read from its headers alone."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rti.data.fetch import cache_folder
from rti.errors import InputError
from rti.files import whole_file

_ROLES = {"txt": "words", "json": "record", "cls": "label"}
_ROLES |= dict.fromkeys(("jpg", "jpeg", "png", "webp"), "picture")
_ABSENT = (-1, 0)
_WORTH_KEEPING = 1000  # examples, which take about a tenth of a second to index
_VERSION = 1  # of the kept index: count up when the grouping changes


class Columns(NamedTuple):
    """Offset and size in bytes of each example's members: (n, 2) int64 each, offset -1 where there is none."""

    picture: np.ndarray
    words: np.ndarray
    record: np.ndarray
    label: np.ndarray


def load_index(path: str | Path) -> tuple[Columns, bool]:
    """`index_tar`, kept in the cache folder for large shards as long as the file's size and time stay the same."""
    kept = _kept_index(path)
    try:
        with np.load(kept, allow_pickle=False) as arrays:
            return Columns(*(arrays[name] for name in Columns._fields)), bool(arrays["complete"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass  # not there, or damaged
    columns, complete = index_tar(path)
    if len(columns.picture) >= _WORTH_KEEPING:
        _keep(kept, columns, complete)
    return columns, complete


def index_tar(path: str | Path) -> tuple[Columns, bool]:
    """The examples of a shard, and whether the tar ends as a tar should.

    Members with the same path up to the first dot of the file name are one example (webdataset's rule), also when
    others lie between them. A name that comes again begins a new example. Groups without a picture are no examples;
    members other than pictures, txt, json and cls are never read, so nothing is ever unpickled.

    A shard that was cut short is used as far as it goes: what lies past the end of the file is found broken when read.
    """
    groups: list[dict[str, tuple[int, int]]] = []
    current: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        # The colon refuses compressed tars, in which one cannot seek.
        with tarfile.open(path, "r:") as tar:
            complete = True
            try:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # else every header would be kept
                    part = _part_of_example(member)
                    if part is None:
                        continue
                    key, role = part
                    if key not in current or role in current[key]:
                        current[key] = {}
                        groups.append(current[key])
                    current[key][role] = (member.offset_data, member.size)
            except (tarfile.TarError, OSError, ValueError):
                complete = False
            # tarfile stops at a damaged header as it does at the end; the end is a block of zeros.
            tar.fileobj.seek(tar.offset)
            complete = complete and tar.fileobj.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    except (tarfile.TarError, OSError, EOFError) as error:
        size = f"{os.path.getsize(path)} bytes" if os.path.isfile(path) else "no file"
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"shard {path} ({size}) is not an uncompressed tar file ({message})") from None
    groups = [group for group in groups if "picture" in group]
    columns = [
        np.array([group.get(role, _ABSENT) for group in groups], dtype=np.int64).reshape(-1, 2)
        for role in Columns._fields
    ]
    return Columns(*columns), complete


def member_name(file, offset: int) -> str:
    """The name in the header before a member's data, for messages (at most 100 characters of it)."""
    file.seek(offset - tarfile.BLOCKSIZE)
    return file.read(100).split(b"\0")[0].decode("utf-8", "replace")


def _part_of_example(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """(key of the example, role in it), or None for what is no part of one."""
    folder, _, file = member.name.rpartition("/")
    stem, dot, ending = file.partition(".")
    if not (stem and dot and member.isreg()) or member.issparse():
        return None
    role = _ROLES.get(ending.lower())
    return None if role is None else (f"{folder}/{stem}", role)


def _kept_index(path: str | Path) -> Path:
    try:
        status = os.stat(path)
    except OSError:
        raise InputError(f"shard {path} does not exist") from None
    if not stat.S_ISREG(status.st_mode):  # a pipe would block, and one cannot seek in it
        raise InputError(f"shard {path} is no regular file")
    identity = f"{_VERSION} {os.path.abspath(path)} {status.st_size} {status.st_mtime_ns}"
    return cache_folder() / "indexes" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.npz"


def _keep(kept: Path, columns: Columns, complete: bool) -> None:
    """Whole or not at all; where the cache cannot be written, shards are indexed anew each time."""
    with suppress(InputError), whole_file(kept, shared=True) as temporary, temporary.open("wb") as file:
        np.savez(file, **columns._asdict(), complete=np.array(complete))
