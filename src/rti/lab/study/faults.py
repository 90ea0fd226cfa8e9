"""What is wrong with the wrong pictures of a study, from the reasons that the judge of scenes gave."""

from __future__ import annotations

from collections import Counter
from typing import Any

KINDS = ("missing", "too many", "colour", "place")


def count_faults(pictures: list[dict[str, Any]], budget: int) -> dict[str, Any]:
    """The first fault of every wrong picture, by kind; and [right, all] of the pictures of one object, by its shape.

    The judge looks for shapes first, then at colours and places. So colours are also counted where shapes were found:
    of pairs in two colours, the hardest for a colour.
    """
    kinds, right, asked = Counter(), Counter(), Counter()
    coloured = swapped = 0  # pairs whose shapes were found, so that their colours were looked at
    for picture in pictures:
        correct, reason = picture["correct"][str(budget)], picture["reason"][str(budget)]
        if not correct:
            kinds[kind_of(reason)] += 1
        if picture["task"] == "color_attr" and (correct or kind_of(reason) != "missing"):
            coloured += 1
            swapped += not correct and kind_of(reason) == "colour"
        shape = picture["caption"].split()[-1]
        if picture["task"] in ("single_object", "colors"):
            asked[shape] += 1
            right[shape] += correct
    by_shape = {shape: [right[shape], asked[shape]] for shape in sorted(asked)}
    return {
        "pictures": len(pictures),
        "wrong": kinds.total(),
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "pairs_found": coloured,
        "pairs_miscoloured": swapped,
        "by_shape": by_shape,
    }


def kind_of(reason: str) -> str:
    """Which rule of `rti.lab.judge` the reason is of; an object whose shape is not made out counts as missing."""
    expected, _, found = reason.removeprefix("expected ").partition(", found ")
    if expected.startswith("at most"):
        return "too many"
    if found.isdecimal():
        return "missing"
    return "place" if found.startswith("it ") else "colour"
