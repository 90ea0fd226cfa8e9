"""What to probe a model with: prompts of its own world, templates over ten domains, a file of prompts, or labels.

Fewer are always the first of more, so that a probe can be lengthened.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np

from rti.errors import InputError, check_whole
from rti.lab import scenes
from rti.lab.pictures.prompts import read_prompts
from rti.pipeline import Pipeline
from rti.text.words import WordEncoder

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


def template_prompts(count: int, seed: int = 7) -> list[str]:
    """Prompts from the templates, no two alike, in an order that the seed decides."""
    pairs = itertools.product((subject for some in DOMAINS.values() for subject in some), MANNERS)
    every = [f"{subject} {manner}" for subject, manner in pairs]
    if count > len(every):
        raise InputError(f"{count} prompts asked for, the templates make {len(every)}; give a file of prompts")
    return [every[place] for place in np.random.default_rng(seed).permutation(len(every))[:count]]


def spread_labels(count: int, classes: int) -> list[int]:
    """Labels spread over all classes: steps of the golden section, which meet every class before any one again."""
    stride = max(1, round(classes * (math.sqrt(5) - 1) / 2))
    while math.gcd(stride, classes) != 1:
        stride += 1
    return [index * stride % classes for index in range(count)]


def subjects_of(pipe: Pipeline, count: int, seed: int = 7, file: Path | None = None) -> list[str] | list[int]:
    """Prompts for a model that reads text, of a file, or labels for one that does not.

    The model that ships knows the words of the scenes world alone, so it is asked for scenes.
    """
    check_whole("prompts", count)
    backbone = pipe.backbone
    if backbone.conditioned_on != "text":
        if file is not None:
            raise InputError(f"{file} given, but {type(backbone).__name__} draws from labels, not from prompts")
        return spread_labels(count, backbone.config.num_classes)
    if file is not None:
        prompts = [prompt.prompt for prompt in read_prompts(Path(file), str(file), ".txt").prompts]
        if count > len(prompts):
            raise InputError(f"{count} prompts asked for, {file} holds {len(prompts)}; a prompt is a line of it")
        return prompts[:count]
    if isinstance(pipe.text_encoder, WordEncoder):
        return [scene.caption for scene in scenes.prompts(count, seed)]
    return template_prompts(count, seed)
