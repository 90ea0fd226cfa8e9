"""What to ask a model for where nobody says it: templates over ten domains, the scenes world's words, or labels.

Fewer are always the first of more.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np

from rti.errors import InputError
from rti.files import in_one_line, require_regular
from rti.text.vocabulary import COLOURS, NUMBERS, PLURALS, RELATIONS, SHAPES, TEXTURES, article

# As the paper's: synthetic templates over ten domains. (u): theirs are not published; these are ours.
DOMAINS = {
    "animal": ("a red fox", "a sleeping cat", "an old tortoise", "a white horse", "a barn owl", "two otters"),
    "person": ("a fisherman", "a ballet dancer", "a street musician", "a child with a kite", "a baker", "an astronaut"),
    "food": ("a bowl of ramen", "a sliced pomegranate", "a loaf of bread", "a stack of pancakes", "a cheese board"),
    "vehicle": ("a rusty tram", "a wooden sailing boat", "a racing bicycle", "a steam locomotive", "a hot air balloon"),
    "building": ("a lighthouse", "a glass greenhouse", "a stone bridge", "a desert temple", "a timber cabin"),
    "landscape": ("a salt flat", "a terraced rice field", "a birch forest", "a volcanic coast", "rolling dunes"),
    "object": ("a brass telescope", "a cracked teapot", "a stack of old books", "a pocket watch", "a paper lantern"),
    "plant": ("a bonsai tree", "a field of poppies", "a giant cactus", "a lotus flower", "a climbing rose"),
    "text": ("a shop sign that says OPEN", "a postcard with the word HELLO", "a chalkboard menu", "a neon arrow"),
    "texture": ("knitted wool", "peeling blue paint", "a mosaic floor", "rain on a window", "layered sandstone"),
}
MANNERS = (
    *("in soft morning light", "under a stormy sky", "as a watercolour painting", "photographed from above"),
    *("in heavy snow", "at night under street lamps", "as a charcoal drawing", "against a plain wall"),
)


def template_prompts(count: int | None = None, seed: int = 7) -> list[str]:
    """Prompts from the templates, no two alike, in an order that the seed decides; without a count all."""
    pairs = itertools.product((subject for some in DOMAINS.values() for subject in some), MANNERS)
    every = [f"{subject} {manner}" for subject, manner in pairs]
    if count is not None and count > len(every):
        raise InputError(f"{count} prompts asked for, the templates make {len(every)}; give a file of prompts")
    return [every[place] for place in np.random.default_rng(seed).permutation(len(every))[:count]]


def word_prompts(count: int, seed: int = 7) -> list[str]:
    """Prompts in the words of the scenes world: one thing, several of a kind, or two that stand to each other."""
    random = np.random.default_rng(seed)

    def thing() -> str:
        words = [str(random.choice(some)) for some in (TEXTURES, COLOURS) if random.random() < 0.5]
        words.append(str(random.choice(SHAPES)))
        return f"{article(words[0])} {' '.join(words)}"

    def prompt(kind: int) -> str:
        if kind == 0:
            return thing()
        if kind == 1:
            number, colour, shape = (str(random.choice(some)) for some in (list(NUMBERS.values()), COLOURS, SHAPES))
            return f"{number} {colour} {PLURALS[shape]}"
        return f"{thing()} {'and' if kind == 2 else random.choice(RELATIONS)} {thing()}"

    return [prompt(number % 4) for number in range(count)]


def spread_labels(count: int, classes: int) -> list[int]:
    """Labels spread over all classes: steps of the golden section, which meet every class before any one again."""
    stride = max(1, round(classes * (math.sqrt(5) - 1) / 2))
    while math.gcd(stride, classes) != 1:
        stride += 1
    return [index * stride % classes for index in range(count)]


def prompts_of_file(path: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    require_regular(path)
    with in_one_line(f"{path} is not readable"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").split("\n")]
    if not any(lines):
        raise InputError(f"{path} holds no prompt; give one a line")
    return [line for line in lines if line]
