"""The words of the scenes world: what captions may say, and their ids."""

from __future__ import annotations

import numpy as np

from rti.errors import InputError

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "moon")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
TEXTURES = ("plain", "striped", "dotted")
RELATIONS = ("left of", "right of", "above", "below")
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
NUMBERS = {2: "two", 3: "three", 4: "four"}
PLURALS = {shape: shape + ("es" if shape.endswith("s") else "s") for shape in SHAPES}

PADDING = "<pad>"
WORD_GROUPS = {
    "articles": ("a", "an"),
    "numbers": tuple(NUMBERS.values()),
    "textures": TEXTURES,
    "colours": COLOURS,
    "shapes": SHAPES,
    "plurals": tuple(PLURALS.values()),
    "relations": ("left", "right", "of", "above", "below"),
    "joining": ("and",),
}
VOCABULARY = (PADDING, *(word for words in WORD_GROUPS.values() for word in words))
CAPTION_LENGTH = 64

_IDS = {word: index for index, word in enumerate(VOCABULARY)}


def article(word: str) -> str:
    """'an' before a vowel ('an orange ring'), else 'a'."""
    return "an" if word[0] in "aeiou" else "a"


def vocabulary_line() -> str:
    """Every word a caption may use, grouped, on one line (for error messages and help texts)."""
    return "; ".join(f"{group}: {' '.join(words)}" for group, words in WORD_GROUPS.items())


def words_of(caption: str) -> tuple[list[str], list[str]]:
    """The known words of a caption, and each unknown one once. Case and punctuation do not matter."""
    words = [word for word in (piece.strip(".,;:!?\"'()") for piece in caption.lower().split()) if word]
    # Padding is no word: a caption that spells it must not slip id 0 in between.
    known = [word for word in words if word in _IDS and word != PADDING]
    return known, list(dict.fromkeys(word for word in words if word not in known))


def encode(caption: str, length: int = CAPTION_LENGTH, lenient: bool = False) -> np.ndarray:
    """Word ids of a caption, padded with 0: str -> (length,) int64.

    Unknown words raise an error that lists the vocabulary. With `lenient` they are left out.
    """
    known, unknown = words_of(caption)
    if unknown and not lenient:
        raise InputError(f"unknown words in {caption!r}: {', '.join(unknown)}. Words to use: {vocabulary_line()}")
    if not known:
        raise InputError(f"no known word in {caption!r}. Words to use: {vocabulary_line()}")
    if len(known) > length:
        raise InputError(f"caption has {len(known)} words, at most {length} fit: {caption!r}")
    ids = np.zeros(length, dtype=np.int64)
    ids[: len(known)] = [_IDS[word] for word in known]
    return ids


def decode(ids: np.ndarray) -> str:
    """The caption of word ids, padding left out: (length,) -> str. Inverse of `encode` for captions of the world."""
    return " ".join(VOCABULARY[index] for index in ids if index != 0)
