"""Data sets of the Hugging Face hub, through the `datasets` library when it is installed."""

from __future__ import annotations

from pathlib import Path

from rti.data.folder import CAPTION_NAMES, read_file
from rti.data.source import BrokenExample, PictureSource, Size, Stored, check_caption
from rti.errors import InputError
from rti.files import in_one_line

PREFIX = "hf:"
TEXT_NAMES = (*CAPTION_NAMES, "txt", "description")
LABEL_NAMES = ("label", "labels", "cls", "class", "fine_label", "class_id")
IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture")


class HubSource(PictureSource):
    """A `datasets.Dataset` with a column of pictures and one of captions or classes, found by type and name."""

    def __init__(self, dataset, name: str, size: Size, flip: bool = False, kind: str | None = None) -> None:
        import datasets

        self.image, captions, labels = _columns(dataset.features)
        self.answer = labels if kind == "labels" or captions is None else captions
        if self.image is None or self.answer is None or (kind == "text" and captions is None):
            listed = ", ".join(f"{column} ({_type(feature)})" for column, feature in dataset.features.items())
            wanted = {"text": "captions", "labels": "classes", None: "captions or classes"}[kind]
            raise InputError(f"{name} needs a column of images and one of {wanted}; its columns are {listed}")
        self.classes = list(getattr(dataset.features[self.answer], "names", None) or [])
        # Undecoded, so that one broken picture is one broken example, and all sources decode alike.
        self.answers = dataset.select_columns([self.answer])
        dataset = dataset.select_columns([self.image, self.answer])
        self.dataset = dataset.cast_column(self.image, datasets.Image(decode=False))
        super().__init__(name, "labels" if self.answer == labels else "text", len(dataset), size, flip)

    def read(self, number: int) -> Stored:
        row, name = self.dataset[number], f"{self.name} row {number}"
        stored, answer = row[self.image] or {}, row[self.answer]
        data = stored.get("bytes")
        if data is None:
            if not stored.get("path"):
                raise BrokenExample(f"{name} has no picture")
            data = read_file(Path(stored["path"]))
        if self.kind == "text":
            return Stored(data, name, caption=check_caption(answer, name))
        if answer is None or answer < 0:  # -1 marks a missing class
            raise BrokenExample(f"{name} has no class")
        return Stored(data, name, label=int(answer))

    def read_caption(self, number: int) -> str:
        return check_caption(self.answers[number][self.answer], f"{self.name} row {number}")


def open_hub(spec: str, size: Size, flip: bool = False, kind: str | None = None) -> HubSource:
    """hf:NAME[:split], split "train" unless given; NAME may also be a local folder that `datasets` can read."""
    name, _, split = spec[len(PREFIX) :].partition(":")
    if not name:
        raise InputError(f"{spec!r} names no data set; the form is hf:NAME or hf:NAME:SPLIT")
    try:
        import datasets
    except ImportError:
        raise InputError(f"{spec} needs the datasets library: pip install datasets") from None
    with in_one_line(f"cannot load {spec}"):
        dataset = datasets.load_dataset(name, split=split or "train")
    return HubSource(dataset, spec, size, flip, kind)


def _columns(features) -> tuple[str | None, str | None, str | None]:
    """Names of the columns with pictures, captions and classes; None where there is none.

    A common name wins; a column of pictures or classes may have any name if it is the only one of its type. Captions
    may not: a lone string column is as likely a file name or a web address.
    """

    def find(names: tuple[str, ...], *types: str, alone: bool = False) -> str | None:
        fitting = [column for column, feature in features.items() if _type(feature).startswith(types)]
        known = {column.lower(): column for column in fitting}
        found = next((known[name] for name in names if name in known), None)
        return fitting[0] if found is None and alone and len(fitting) == 1 else found

    label = find(LABEL_NAMES, "ClassLabel", alone=True) or find(LABEL_NAMES, "int", "uint")
    return find(IMAGE_NAMES, "Image", alone=True), find(TEXT_NAMES, "string", "large_string"), label


def _type(feature) -> str:
    """The name of a column's type: int64, string, Image, ClassLabel, ..."""
    return feature.dtype if type(feature).__name__ == "Value" else type(feature).__name__
