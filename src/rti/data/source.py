"""What a source of training examples is, and how a stored picture becomes a tensor."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import NamedTuple

import torch
from PIL import Image

from rti.errors import InputError
from rti.images import ENDINGS, check_pixels, fit, open_image, to_tensor

KINDS = {"text": "captions", "labels": "labels"}  # of sources, and what their examples have
CAPTION_NAMES = ("caption", "text", "prompt")  # of columns and keys
MOST_BYTES = 1 << 28  # of a stored picture or caption; a damaged or hostile one must not fill the memory
Size = int | tuple[int, int]  # a side, or (height, width)


class BrokenExample(InputError):
    """One example cannot be used: its picture cannot be read, or its caption or label is missing or malformed."""


class Example(NamedTuple):
    """A picture (3, H, W) float32 in [-1, 1] and what it shows: a caption or a class."""

    image: torch.Tensor
    caption: str | None
    label: int | None


class Source(ABC):
    """Examples by index. The same index gives the same example, in any order, in any process.

    An endless source has no epochs and is in random order already: it is read at index = training position.
    """

    name = "a source"
    kind: str
    endless = False

    def __len__(self) -> int:
        return 1 << 40  # if endless; others count

    def __getitem__(self, index: int) -> Example:
        """The example, or BrokenExample, or IndexError."""
        part, inner = self.locate(index)
        return part[inner]

    def describe(self) -> str:
        """One line for error messages."""
        return self.name

    def locate(self, index: int) -> tuple[Source, int]:
        """The source that holds the example, and its index there; a source made of others points into its parts."""
        return self, index

    def check_index(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is outside 0..{len(self) - 1} of {self.describe()}")


class PictureSource(Source):
    """Pictures stored somewhere, brought to one size.

    With `flip` the source is twice as long, the second half holding the mirrored pictures. So an example depends on
    its index alone, and over an epoch each picture is seen both ways.
    """

    def __init__(self, name: str, kind: str, count: int, size: Size, flip: bool = False) -> None:
        if count == 0:
            raise InputError(f"{name} is empty: no pictures ({', '.join(ENDINGS)}) were found")
        self.name, self.kind, self.count, self.flip, self.size = name, kind, count, flip, check_size(size)

    @abstractmethod
    def picture(self, number: int) -> tuple[bytes, str]:
        """The bytes of a stored picture, 0 <= number < count, and its name for messages; or BrokenExample."""

    @abstractmethod
    def answer(self, number: int) -> str | int:
        """What it shows, a caption or a label; or BrokenExample."""

    def __len__(self) -> int:
        return self.count * (2 if self.flip else 1)

    def __getitem__(self, index: int) -> Example:
        self.check_index(index)
        answer, picture = self.answer(index % self.count), decode_picture(*self.picture(index % self.count))
        image = prepare_image(picture, self.size, index >= self.count)
        return Example(image, answer, None) if self.kind == "text" else Example(image, None, answer)

    def describe(self) -> str:
        return f"{self.name}: {self.count} pictures with {KINDS[self.kind]}{', also mirrored' if self.flip else ''}"


class Drawn(NamedTuple):
    """The example used for an index, and how many broken ones were passed over to find it."""

    example: Example
    index: int
    skipped: int


class Tolerant:
    """A source whose broken examples are replaced by the next whole one of the same source.

    In a mixture the replacement comes from the same part, so that broken examples do not shift the weights and a part
    that is all broken is noticed: only that stops a run. The replacement is still drawn in its own turn as well.
    """

    def __init__(self, source: Source, limit: int = 100) -> None:
        self.source, self.limit = source, limit

    def __getitem__(self, index: int) -> Drawn:
        self.source.check_index(index)
        part, start = self.source.locate(index)
        tries, reason = min(self.limit + 1, len(part)), None
        for skipped in range(tries):
            try:
                return Drawn(part[(start + skipped) % len(part)], index, skipped)
            except BrokenExample as error:
                reason = error
        raise InputError(f"{tries} broken examples in a row in {part.describe()}; the last: {reason}")


def check_size(size: Size) -> tuple[int, int]:
    """One number means a square; returns (height, width)."""
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
        raise InputError(f"size must be a positive number or (height, width), got {size!r}")
    check_pixels(*pair)
    return pair


def decode_picture(data: bytes, name: str) -> Image.Image:
    """Bytes of a picture -> upright RGB."""
    try:
        return open_image(io.BytesIO(data), name)
    except InputError as error:
        raise BrokenExample(str(error)) from None


def prepare_image(picture: Image.Image, size: Size, flip: bool = False) -> torch.Tensor:
    """Scale the shorter side, crop the centre, mirror if asked: a picture -> (3, H, W) float32 in [-1, 1]."""
    if picture.mode != "RGB":  # before scaling: Pillow does not interpolate palettes
        picture = picture.convert("RGB")
    image = to_tensor(fit(picture, *check_size(size)))[0]
    return (image.flip(-1) if flip else image).contiguous()


def record_of(text: str | bytes) -> dict:
    """An object in JSON; empty if it is none."""
    with suppress(ValueError, RecursionError):
        if isinstance(record := json.loads(text), dict):
            return record
    return {}


def caption_of(record: dict) -> str:
    """What a record or a row of a table says; empty if nothing."""
    return next((record[key] for key in CAPTION_NAMES if record.get(key) and isinstance(record[key], str)), "")


def check_caption(caption: object, name: str) -> str:
    """A text, or the UTF-8 bytes of one, without surrounding blanks; BrokenExample if it is no caption."""
    try:
        if isinstance(caption, bytes):
            caption = caption.decode("utf-8-sig")  # with or without a byte order mark
        if isinstance(caption, str) and caption.strip():
            caption.encode()  # half of a surrogate pair, as JSON may hold, is taken by no tokenizer
            return caption.strip()
    except UnicodeError as error:
        raise BrokenExample(f"{name} has a caption that is not UTF-8 text ({error.reason})") from None
    raise BrokenExample(f"{name} has no caption")
