"""Data sets of the Hugging Face hub, through the `datasets` library when it is installed."""

from __future__ import annotations

from pathlib import Path

from rti.data.folder import read_file
from rti.data.source import CAPTION_NAMES, BrokenExample, PictureSource, Size, check_caption
from rti.errors import InputError
from rti.files import in_one_line

# Common names of columns. One of pictures or classes may have any name if it is the only one of its type; captions may
# not: a lone column of texts is as likely a file name or a web address.
IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture")
TEXT_NAMES = (*CAPTION_NAMES, "txt", "description")
LABEL_NAMES = ("label", "labels", "cls", "class", "fine_label", "class_id")


class HubSource(PictureSource):
    """A `datasets.Dataset` with a column of pictures and one of captions or classes, found by type and name."""

    def __init__(self, dataset, name: str, size: Size, flip: bool = False, kind: str | None = None) -> None:
        import datasets

        types = {column: _type(feature) for column, feature in dataset.features.items()}
        self.image = _find(types, IMAGE_NAMES, "Image", alone=True)
        captions = _find(types, TEXT_NAMES, "string", "large_string")
        labels = _find(types, LABEL_NAMES, "ClassLabel", alone=True) or _find(types, LABEL_NAMES, "int", "uint")
        kind, wanted = kind or ("labels" if captions is None else "text"), kind
        self.column = labels if kind == "labels" else captions
        if self.image is None or self.column is None:
            wanted = {"text": "captions", "labels": "classes", None: "captions or classes"}[wanted]
            listed = ", ".join(f"{column} ({type})" for column, type in types.items())
            raise InputError(f"{name} needs a column of images and one of {wanted}; its columns are {listed}")
        self.classes = list(getattr(dataset.features[self.column], "names", None) or [])
        # Undecoded, so that one broken picture is one broken example, and all sources decode alike.
        self.pictures = dataset.select_columns([self.image]).cast_column(self.image, datasets.Image(decode=False))
        self.answers = dataset.select_columns([self.column])
        super().__init__(name, kind, len(dataset), size, flip)

    def picture(self, number: int) -> tuple[bytes, str]:
        stored, name = self.pictures[number][self.image] or {}, f"{self.name} row {number}"
        if stored.get("bytes") is None and not stored.get("path"):
            raise BrokenExample(f"{name} has no picture")
        return read_file(Path(stored["path"])) if stored.get("bytes") is None else stored["bytes"], name

    def answer(self, number: int) -> str | int:
        answer, name = self.answers[number][self.column], f"{self.name} row {number}"
        if self.kind == "text":
            return check_caption(answer, name)
        if answer is None or answer < 0:  # -1 marks a missing class
            raise BrokenExample(f"{name} has no class")
        return int(answer)


def open_hub(spec: str, size: Size, flip: bool = False, kind: str | None = None) -> HubSource:
    """hf:NAME[:split], split "train" unless given; NAME may also be a local folder that `datasets` can read."""
    name, _, split = spec.removeprefix("hf:").partition(":")
    if not name:
        raise InputError(f"{spec!r} names no data set; the form is hf:NAME or hf:NAME:SPLIT")
    try:
        import datasets
    except ImportError:
        raise InputError(f"{spec} needs the datasets library: pip install datasets") from None
    with in_one_line(f"cannot load {spec}"):
        dataset = datasets.load_dataset(name, split=split or "train")
    return HubSource(dataset, spec, size, flip, kind)


def _find(types: dict[str, str], names: tuple[str, ...], *wanted: str, alone: bool = False) -> str | None:
    """The column of a wanted type with the commonest name; one that is `alone` of that type may have any."""
    fitting = {column.lower(): column for column, type in types.items() if type.startswith(wanted)}
    found = [fitting[name] for name in names if name in fitting]
    found += fitting.values() if alone and len(fitting) == 1 else []
    return found[0] if found else None


def _type(feature) -> str:
    """The name of a column's type: int64, string, Image, ClassLabel, ..."""
    return feature.dtype if type(feature).__name__ == "Value" else type(feature).__name__
