"""The scenes world as webdataset shards, the same bytes on every machine.

Picture number i is the one that the data source "scenes" gives at index i, rounded to 8 bits: key 00000000i, with .png,
.txt (caption) or .cls (label), and .json (task, objects, what the judge asks for).
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rti.errors import InputError
from rti.files import whole_file
from rti.lab.scenes.classes import class_example, class_of
from rti.lab.scenes.layout import CANVAS
from rti.lab.scenes.render import batch
from rti.lab.scenes.world import SPLITS, Scene

SETTINGS = "scenes.json"  # what the shards of a folder were made with
_LARGEST = 4096  # a typing error in the size must not fill the memory
_MOST = 10**9  # keys have nine digits, so that their order is that of the numbers
_STORED = 65535  # bytes, at most, of a stored block of deflate


@dataclass(frozen=True)
class ShardSettings:
    """What to write: `count` pictures, `shard_size` to a file; with captions of a split, or with labels."""

    count: int
    size: int = CANVAS
    seed: int = 0
    split: str = "train"
    shard_size: int = 5000
    labels: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.count <= _MOST:
            raise InputError(f"the number of pictures must be 1 to {_MOST:,}, got {self.count}")
        if not 1 <= self.size <= _LARGEST or (CANVAS % self.size and self.size % CANVAS):
            allowed = f"what divides {CANVAS}, and its multiples up to {_LARGEST}"
            raise InputError(f"size {self.size} is not usable; allowed: {allowed}")
        if self.seed < 0:
            raise InputError(f"the seed must be at least 0, got {self.seed}")
        if self.split not in SPLITS:
            raise InputError(f"unknown split {self.split!r}; allowed: {', '.join(SPLITS)}")
        if self.labels and self.split != "train":
            raise InputError(f"split {self.split!r} is of captions; with labels all classes are trained")
        if self.shard_size < 1:
            raise InputError(f"a shard holds at least one picture, got {self.shard_size}")

    @property
    def shards(self) -> int:
        return -(-self.count // self.shard_size)

    def numbers(self, shard: int) -> range:
        """The pictures of a shard."""
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.count))


class Written(NamedTuple):
    """How many shards were written, how many were there already, and the bytes of all."""

    written: int
    skipped: int
    bytes: int


def write_shards(
    folder: str | Path, settings: ShardSettings, progress: Callable[[int], object] = lambda pictures: None
) -> Written:
    """Write 000000.tar, 000001.tar, ... into a folder; shards that are there are whole, and skipped.

    `progress` is told of every so many pictures done. The folder must be new, empty, or of the same settings.
    """
    folder = Path(folder)
    try:
        _prepare(folder, settings)
        skipped = total = 0
        for shard in range(settings.shards):
            path = folder / f"{shard:06d}.tar"
            if path.exists():
                skipped += 1
                progress(len(settings.numbers(shard)))
            else:
                _write_whole(path, _tar(settings, settings.numbers(shard), progress))
            total += path.stat().st_size
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
    return Written(settings.shards - skipped, skipped, total)


def _prepare(folder: Path, settings: ShardSettings) -> None:
    """Make the folder, or make sure that it is the one of these settings."""
    wanted = asdict(settings)
    # Hidden files are what a killed run or a file manager left.
    if not folder.exists() or all(path.name.startswith(".") for path in folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        _write_whole(folder / SETTINGS, [json.dumps(wanted).encode() + b"\n"])
        return
    try:
        found = json.loads((folder / SETTINGS).read_bytes())
    except FileNotFoundError:
        raise InputError(f"{folder} holds other files; give a new folder, or that of a run to resume") from None
    except ValueError:
        found = None
    if found != wanted:
        found = found if isinstance(found, dict) else {}
        name = next((name for name in wanted if found.get(name) != wanted[name]), "shards")
        raise InputError(
            f"{folder} holds shards of {name} {found.get(name)}, not {wanted.get(name)}; give the same, or a new folder"
        )


def _write_whole(path: Path, pieces: Iterator[bytes] | list[bytes]) -> None:
    with whole_file(path, shared=True) as temporary, temporary.open("wb") as file:
        file.writelines(pieces)


def _tar(settings: ShardSettings, numbers: range, progress: Callable[[int], object]) -> Iterator[bytes]:
    """A shard, member by member."""
    for number in numbers:
        for ending, data in _example(settings, number).items():
            # Nothing but name and size is set: owner, time and mode are the same constants everywhere.
            member = tarfile.TarInfo(f"{number:09d}.{ending}")
            member.size = len(data)
            yield member.tobuf(tarfile.USTAR_FORMAT)
            yield data + bytes(-len(data) % tarfile.BLOCKSIZE)
        progress(1)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _example(settings: ShardSettings, number: int) -> dict[str, bytes]:
    """The members of an example by their endings."""
    if settings.labels:
        image, scene = class_example(settings.seed, number, settings.size)
        answer = {"cls": str(class_of(scene)).encode()}
    else:
        drawn = batch(settings.seed, number, 1, settings.split, settings.size)
        image, scene = drawn.images[0], drawn.scenes[0]
        answer = {"txt": scene.caption.encode()}
    return {"png": encode_png(to_bytes(image)), **answer, "json": json.dumps(_record(scene)).encode()}


def _record(scene: Scene) -> dict:
    """GenEval's metadata of a scene, and what it shows."""
    objects = [asdict(thing) for thing in scene.objects]
    return {"task": scene.task, "objects": objects, "relation": scene.relation} | scene.metadata()


def to_bytes(image: np.ndarray) -> np.ndarray:
    """[-1, 1] -> 0..255, rounded as everywhere in rti: (3, height, width) -> (height, width, 3) uint8."""
    return (image * 127.5 + 128).clip(0, 255).astype(np.uint8).transpose(1, 2, 0)


def encode_png(pixels: np.ndarray) -> bytes:
    """A PNG file of (height, width, 3) uint8, uncompressed: what zlib makes of a picture depends on its version."""
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each begins with the number of its filter: none
    lines[:, 1:] = pixels.reshape(height, 3 * width)
    raw, stream = lines.tobytes(), io.BytesIO()
    stream.write(b"\x78\x01")  # a zlib stream of blocks that are stored as they are
    for start in range(0, len(raw), _STORED):
        block = raw[start : start + _STORED]
        last = start + _STORED >= len(raw)
        stream.write(struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF) + block)
    stream.write(struct.pack(">I", zlib.adler32(raw)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, red green blue, not interlaced
    chunks = ((b"IHDR", header), (b"IDAT", stream.getvalue()), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
