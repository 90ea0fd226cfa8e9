"""Data sets of the Hugging Face hub, through the `datasets` library when it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rti.data.folder import read_file
from rti.data.source import CAPTION_NAMES, BrokenExample, PictureSource, Size, check_caption
from rti.errors import InputError
from rti.files import in_one_line


class HubSource(PictureSource):
    """A `datasets.Dataset` with a column of pictures and one of captions or classes.

    Pictures and classes are found by their type (of several, image and label count), captions by their name: a lone
    column of texts is as likely a file name or a web address.
    """

    def __init__(self, dataset, name: str, size: Size, flip: bool = False, kind: str | None = None) -> None:
        import datasets

        self.image = _find(dataset.features, datasets.Image, "image")
        captions = next((column for column in (*CAPTION_NAMES, "txt") if column in dataset.features), None)
        numbers = next((column for column in ("label", "cls") if column in dataset.features), None)
        labels = _find(dataset.features, datasets.ClassLabel, "label") or numbers
        chosen = kind or ("labels" if captions is None else "text")
        self.column = labels if chosen == "labels" else captions
        if self.image is None or self.column is None:
            wanted = "captions or classes" if kind is None else {"text": "captions", "labels": "classes"}[kind]
            types = {column: getattr(of, "dtype", type(of).__name__) for column, of in dataset.features.items()}
            listed = ", ".join(f"{column} ({type})" for column, type in types.items())
            raise InputError(f"{name} needs a column of images and one of {wanted}; its columns are {listed}")
        self.classes = list(getattr(dataset.features[self.column], "names", None) or [])
        # Undecoded, so that one broken picture is one broken example, and all sources decode alike.
        self.pictures = dataset.select_columns([self.image]).cast_column(self.image, datasets.Image(decode=False))
        self.answers = dataset.select_columns([self.column])
        super().__init__(name, chosen, len(dataset), size, flip)

    def picture(self, number: int) -> tuple[bytes, str]:
        stored, name = self.pictures[number][self.image] or {}, f"{self.name} row {number}"
        if stored.get("bytes") is None and not stored.get("path"):
            raise BrokenExample(f"{name} has no picture")
        return read_file(Path(stored["path"])) if stored.get("bytes") is None else stored["bytes"], name

    def answer(self, number: int) -> str | int:
        answer, name = self.answers[number][self.column], f"{self.name} row {number}"
        if self.kind == "text":
            return check_caption(answer, name)
        if not isinstance(answer, int) or answer < 0:  # -1 marks a missing class
            raise BrokenExample(f"{name} has no class")
        return answer


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


def _find(features: Mapping[str, Any], kind: type, name: str) -> str | None:
    """The column of a type: the only one, or of several the one of that name."""
    fitting = [column for column, feature in features.items() if isinstance(feature, kind)]
    return name if name in fitting else fitting[0] if len(fitting) == 1 else None
