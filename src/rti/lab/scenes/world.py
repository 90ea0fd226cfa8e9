"""The scenes world: seeded scenes with captions and requirements in GenEval's six tasks.

A scene says what a picture shows and what must be true of it; `render` draws it, `detect` reads it back and judges it.

Held out from training, so that composition can be measured (rules on the indices in SHAPES and COLOURS):
  - pairs: a shape is never seen in colour (3 * shape + 1) mod 8, which is one colour per shape;
  - triples: "A left of B" (axis 0) and "A above B" (axis 1) when A + 2 B + 3 axis = 0 mod 7, and with each its mirror
    image ("B right of A", "B below A"), which shows the same picture. That is one triple in seven.
No training picture shows them either, whether or not its caption mentions colour or position: see `layout`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rti.errors import InputError, check_choice
from rti.lab.judge import Requirement
from rti.text.vocabulary import COLOURS, NUMBERS, OPPOSITE, PLURALS, RELATIONS, SHAPES, TEXTURES, article

TASKS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
SPLITS = ("train", "held-out", "all")

HELD_OUT_PAIRS = frozenset((shape, COLOURS[(3 * index + 1) % len(COLOURS)]) for index, shape in enumerate(SHAPES))
_ONE_WAY = [
    (first, relation, second)
    for (a, first), (b, second) in itertools.permutations(enumerate(SHAPES), 2)
    for axis, relation in enumerate(("left of", "above"))
    if (a + 2 * b + 3 * axis) % len(SHAPES) == 0
]
HELD_OUT_TRIPLES = frozenset(_ONE_WAY) | {(second, OPPOSITE[relation], first) for first, relation, second in _ONE_WAY}

# How often a caption names what its task does not ask for (colour, texture).
_NAMED = {
    "single_object": (0.0, 0.4),
    "two_object": (0.0, 0.3),
    "counting": (0.4, 0.2),
    "colors": (1.0, 0.3),
    "position": (0.5, 0.15),
    "color_attr": (1.0, 0.15),
}
_PLAIN = 0.5  # share of plain objects; striped and dotted share the rest
_EVALUATION = 1  # separates the random streams of prompts from those of training batches


@dataclass(frozen=True)
class Thing:
    """One object of a scene."""

    shape: str
    colour: str
    texture: str = "plain"


@dataclass(frozen=True)
class Scene:
    """What a picture shows, its caption, and what a detector must find (`include`) or not find (`exclude`) in it.

    With a relation there are two objects, and the first stands in that relation to the second.
    """

    task: str
    objects: tuple[Thing, ...]
    relation: str | None
    caption: str
    include: tuple[Requirement, ...]
    exclude: tuple[Requirement, ...] = ()

    def metadata(self) -> dict:
        """The scene as a line of GenEval's metadata: tag, include, exclude (counting only), prompt."""
        line = {"tag": self.task, "include": [requirement.metadata() for requirement in self.include]}
        if self.exclude:
            line["exclude"] = [requirement.metadata() for requirement in self.exclude]
        return line | {"prompt": self.caption}


def check_kind(split: str, tasks: Sequence[str] = TASKS) -> None:
    """Refuse a split or tasks that the world does not have."""
    check_choice("split", split, SPLITS)
    if not tasks or not set(tasks) <= set(TASKS):
        raise InputError(f"scenes with the tasks {', '.join(tasks)!r}; allowed: {', '.join(TASKS)}")


def sample_scenes(
    count: int, rng: np.random.Generator, split: str = "train", tasks: Sequence[str] = TASKS
) -> list[Scene]:
    """Draw scenes, the task of each uniformly from `tasks`.

    Split "train" never contains a held-out combination; "held-out" contains one, named in the caption, in every scene
    of the tasks colors, position and color_attr (its other tasks are as in training); "all" draws from both alike.
    """
    check_kind(split, tasks)
    return [_sample(tasks[task], rng, split) for task in rng.integers(len(tasks), size=count)]


def prompts(count: int, seed: int, split: str = "train") -> list[Scene]:
    """Scenes to evaluate on: the tasks in turn, hence balanced, and always the same for the same arguments."""
    check_kind(split)
    rng = np.random.default_rng([_EVALUATION, seed])
    return [_sample(TASKS[index % len(TASKS)], rng, split) for index in range(count)]


def _sample(task: str, rng: np.random.Generator, split: str) -> Scene:
    named = tuple(rng.random(2) < _NAMED[task])  # colour, texture
    plain = "train" if split == "held-out" else split  # of what the prompt does not name: the colour, in most tasks
    relation = None
    if task in ("single_object", "colors"):
        things = (_thing(rng, _pair(rng, plain if task == "single_object" else split)),)
    elif task == "counting":
        things = _alike(rng, plain, named)
    elif task == "position":
        first, relation, second = _triple(rng, split)
        things = tuple(_thing(rng, _pair(rng, plain, shape)) for shape in (first, second))
    else:
        things = tuple(_thing(rng, pair) for pair in _two_pairs(rng, task, split))
    return _describe(task, things, relation, named)


def draw_texture(rng: np.random.Generator) -> str:
    return TEXTURES[0] if rng.random() < _PLAIN else TEXTURES[rng.integers(1, len(TEXTURES))]


def _thing(rng: np.random.Generator, pair: tuple[str, str]) -> Thing:
    return Thing(*pair, draw_texture(rng))


def _pair(rng: np.random.Generator, split: str, shape: str | None = None) -> tuple[str, str]:
    """A (shape, colour) pair of the split; the shape may be given."""
    while True:
        pair = (shape or SHAPES[rng.integers(len(SHAPES))], COLOURS[rng.integers(len(COLOURS))])
        if split == "all" or (pair in HELD_OUT_PAIRS) == (split == "held-out"):
            return pair


def _two_pairs(rng: np.random.Generator, task: str, split: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Two pairs of different shapes, and where the prompt names the colours, of different colours."""
    splits = ["train", "train"] if split == "held-out" else [split, split]
    if split == "held-out" and task == "color_attr":
        splits[rng.integers(2)] = "held-out"
    while True:
        first, second = _pair(rng, splits[0]), _pair(rng, splits[1])
        if first[0] != second[0] and (task != "color_attr" or first[1] != second[1]):
            return first, second


def _triple(rng: np.random.Generator, split: str) -> tuple[str, str, str]:
    """A (shape, relation, other shape) triple of the split."""
    while True:
        first, second = rng.integers(len(SHAPES), size=2)
        triple = (SHAPES[first], RELATIONS[rng.integers(len(RELATIONS))], SHAPES[second])
        if first != second and (split == "all" or (triple in HELD_OUT_TRIPLES) == (split == "held-out")):
            return triple


def _alike(rng: np.random.Generator, split: str, named: tuple[bool, bool]) -> tuple[Thing, ...]:
    """Two to four things of one shape. What the caption does not name differs between them half of the time."""
    number = tuple(NUMBERS)[rng.integers(len(NUMBERS))]
    model = _thing(rng, _pair(rng, split))
    same_colour, same_texture = np.logical_or(named, rng.random(2) < 0.5)
    others = [_thing(rng, _pair(rng, split, model.shape)) for _ in range(number)]
    shared = {"colour": model.colour} if same_colour else {}
    shared |= {"texture": model.texture} if same_texture else {}
    return tuple(replace(other, **shared) for other in others)


def _describe(task: str, things: tuple[Thing, ...], relation: str | None, named: tuple[bool, bool]) -> Scene:
    """The scene of these things, with its caption and requirements; `named` are colour and texture, or not."""
    count = len(things) if task == "counting" else 1  # one phrase and one requirement for all that are alike
    name_colour, name_texture = named
    phrases, include = [], []
    for thing in things[:1] if task == "counting" else things:
        words = [thing.texture] * bool(name_texture) + [thing.colour] * bool(name_colour)
        words.append(thing.shape if count == 1 else PLURALS[thing.shape])
        phrases.append(" ".join([article(words[0]) if count == 1 else NUMBERS[count], *words]))
        include.append(Requirement(thing.shape, count, thing.colour if name_colour else None))
    if relation is not None:  # as in GenEval the object that others relate to comes first, as group 0
        include = [include[1], replace(include[0], position=(relation, 0))]
    exclude = (Requirement(things[0].shape, count + 1),) if task == "counting" else ()
    return Scene(task, things, relation, f" {relation or 'and'} ".join(phrases), tuple(include), exclude)
