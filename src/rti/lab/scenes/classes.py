"""The scenes world by class: one object per picture, its class is its colour and shape.

For class-conditional models. All classes are trained, none is held out: a label says nothing of what it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rti.errors import InputError, check_whole
from rti.lab.scenes.layout import CANVAS
from rti.lab.scenes.render import render
from rti.lab.scenes.world import Requirement, Scene, Thing, draw_texture
from rti.text.vocabulary import COLOURS, SHAPES, TEXTURES, article

# Label = index of the shape * number of colours + index of the colour.
_PAIRS = tuple((shape, colour) for shape in SHAPES for colour in COLOURS)
CLASSES = tuple(f"{colour} {shape}" for shape, colour in _PAIRS)

# Each a random stream of scenes, and the next number one of orders; 1 and 2 are those of the captioned world.
_TRAINING, _EVALUATION = 3, 5


def class_of(scene: Scene) -> int:
    """The label of a scene of one object."""
    if len(scene.objects) != 1:
        raise InputError(f"a class is of one object, got {len(scene.objects)}: {scene.caption!r}")
    return _PAIRS.index((scene.objects[0].shape, scene.objects[0].colour))


def class_scene(label: int, texture: str = TEXTURES[0]) -> Scene:
    """The scene of a class. Right is a picture of one object of that colour and shape, and of no other."""
    check_whole("class", int(label), len(CLASSES) - 1, least=0)
    shape, colour = _PAIRS[label]
    # GenEval bears further objects beside the one asked for. Here every training picture shows one alone.
    others = tuple(Requirement(other, 2 if other == shape else 1) for other in SHAPES)
    caption = f"{article(colour)} {CLASSES[label]}"
    return Scene("colors", (Thing(shape, colour, texture),), None, caption, (Requirement(shape, 1, colour),), others)


def subject_names(backbone: Any, subjects: Sequence[str | int]) -> list[str]:
    """What to call what a model draws: prompts as they are, labels by name where its classes are those of this world.

    As SceneEval takes it: a class-conditional model with as many classes has these.
    """
    names = dict(enumerate(CLASSES)) if getattr(backbone.config, "num_classes", None) == len(CLASSES) else {}
    return [names.get(subject, str(subject)) for subject in subjects]


def class_prompts(count: int, seed: int) -> list[Scene]:
    """Scenes to evaluate on: every class once before any comes again; always the same for the same arguments."""
    return [_scene(index, seed, _EVALUATION)[0] for index in range(count)]


def class_example(seed: int, index: int, size: int = CANVAS) -> tuple[np.ndarray, Scene]:
    """Training picture number `index`, (3, size, size) float32 in [-1, 1], and its scene.

    Indices from a multiple of the number of classes on show each class once, in an order of their own.
    """
    scene, rng = _scene(index, seed, _TRAINING)
    return render([scene], rng, size)[0], scene


def _scene(index: int, seed: int, stream: int) -> tuple[Scene, np.random.Generator]:
    """Scene number `index` of a stream, and the random generator to draw it with."""
    rng = np.random.default_rng([stream, seed, index])
    texture = draw_texture(rng)
    turn, place = divmod(index, len(CLASSES))
    labels = np.random.default_rng([stream + 1, seed, turn]).permutation(len(CLASSES))  # all of them, in each turn
    return class_scene(labels[place], texture), rng
