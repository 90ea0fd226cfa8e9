"""What is wrong with the wrong pictures of a study, from the reasons that the judge of scenes gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

KINDS = ("missing", "too many", "colour", "place")
RIGHT = "."


def letter_of(correct: bool, reason: str) -> str:
    """A verdict as a letter: the first of the rule of `rti.lab.judge` that the reason is of.

    An object whose shape is not made out counts as missing.
    """
    expected, _, found = reason.removeprefix("expected ").partition(", found ")
    if correct:
        return RIGHT
    if expected.startswith("at most"):
        return "t"
    if found.isdecimal():
        return "m"
    return "p" if found.startswith("it ") else "c"


def count_faults(pictures: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """The first fault of every wrong picture, by kind; and [right, all] of the pictures of one object, by its shape.

    Pictures are (task, caption, letter). The judge looks for shapes first, then at colours and places. So colours are
    also counted where shapes were found: of pairs in two colours, the hardest for a colour.
    """
    letters, pairs, shapes = Counter(), Counter(), {}
    for task, caption, letter in pictures:
        letters[letter] += 1
        pairs[letter] += task == "color_attr"
        if task in ("single_object", "colors"):
            right, asked = shapes.get(caption.split()[-1], (0, 0))
            shapes[caption.split()[-1]] = [right + (letter == RIGHT), asked + 1]
    return {
        "pictures": letters.total(),
        "wrong": letters.total() - letters[RIGHT],
        "kinds": {kind: letters[kind[0]] for kind in KINDS},
        "pairs_found": pairs.total() - pairs["m"],
        "pairs_miscoloured": pairs["c"],
        "by_shape": dict(sorted(shapes.items())),
    }
