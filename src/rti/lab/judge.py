"""GenEval's metadata and its decision rule: does what was found in a picture satisfy what was asked for?

The scenes world and GenEval itself (rti.lab.pictures.scorers.geneval) are judged by the same lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rti.errors import InputError, check_choice, check_whole
from rti.text.vocabulary import PLURALS, RELATIONS

_NEAR = 0.1  # objects closer than this share of their sizes stand in no relation
_CLEAR = 0.5  # least share of the distance that must point in the direction


@dataclass(frozen=True)
class Requirement:
    """`count` objects of one shape, all of the colour if one is given, each in the position (relation, group)."""

    shape: str
    count: int
    colour: str | None = None
    position: tuple[str, int] | None = None

    def metadata(self) -> dict[str, Any]:
        """The requirement as an entry of GenEval's metadata."""
        position = None if self.position is None else list(self.position)
        entry = {"class": self.shape, "count": self.count, "color": self.colour, "position": position}
        return {name: value for name, value in entry.items() if value is not None}

    @classmethod
    def from_metadata(cls, entry: dict[str, Any], index: int) -> Requirement:
        """Of group number `index`; its position relates to a group before its own."""
        name, count, position = entry["class"], entry["count"], entry.get("position")
        check_whole(f"the count of {name!r}", count)
        if position is not None:
            relation, target = position
            check_choice("position", relation, RELATIONS)
            check_whole(f"the group {relation} which it is", target, most=index - 1, least=0)
            position = (relation, target)
        return cls(str(name), count, entry.get("color"), position)


class Wanted(NamedTuple):
    """A line of GenEval's metadata: its task, what must be there and what must not."""

    tag: str
    include: tuple[Requirement, ...]
    exclude: tuple[Requirement, ...] = ()

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any], where: str) -> Wanted:
        """Refuse a line that cannot be judged; `where` it stands goes into the message."""
        try:
            include = tuple(Requirement.from_metadata(one, index) for index, one in enumerate(metadata["include"]))
            exclude = tuple(Requirement.from_metadata(one, 0) for one in metadata.get("exclude", ()))
            if not include or not isinstance(metadata["tag"], str):
                raise ValueError("it needs a tag and something to include")
        except (KeyError, TypeError, ValueError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{where} is no line of GenEval's metadata: {reason}") from None
        return cls(metadata["tag"], include, exclude)


class Detection(Protocol):
    """An object that was found. Its colour is asked for only where the requirement names one."""

    shape: str  # its class
    colour: str
    box: tuple[float, float, float, float]  # left, top, right, bottom
    centre: tuple[float, float]  # x, y
    score: float


def relative_positions(first: Detection, second: Detection) -> frozenset[str]:
    """Relations in which the first object stands to the second (GenEval's position formula): none, one or two."""
    offset = np.subtract(first.centre, second.centre)
    sizes = np.array([box[2:] for box in (first.box, second.box)]) - [box[:2] for box in (first.box, second.box)]
    revised = np.maximum(np.abs(offset) - _NEAR * sizes.sum(axis=0), 0) * np.sign(offset)
    if np.all(np.abs(revised) < 1e-3):
        return frozenset()
    x, y = revised / np.linalg.norm(offset)
    directions = {"left of": x < -_CLEAR, "right of": x > _CLEAR, "above": y < -_CLEAR, "below": y > _CLEAR}
    return frozenset(name for name, holds in directions.items() if holds)


def problem(wanted: Wanted, detections: Sequence[Detection]) -> str:
    """Why a picture is wrong, by its detections: the first reason, or an empty string. What is wanted may be a scene.

    Every `include` must hold: of the best `count` objects of the shape all exist, have the colour, and stand in the
    position to every object of the target group; and no `exclude` shape is there `count` times or more.
    """
    ranked = sorted(detections, key=lambda detection: -detection.score)
    groups: list[list[Detection]] = []
    for requirement in wanted.include:
        group = [found for found in ranked if found.shape == requirement.shape][: requirement.count]
        if reason := _problem(requirement, group, groups):
            return reason
        groups.append(group)
    for requirement in wanted.exclude:
        number = sum(found.shape == requirement.shape for found in ranked)
        if number >= requirement.count:
            return f"expected at most {requirement.count - 1} {_plural(requirement)}, found {number}"
    return ""


def _problem(requirement: Requirement, group: list[Detection], groups: list[list[Detection]]) -> str:
    """Why the group does not satisfy the requirement, or an empty string."""
    name, count, colour = requirement.shape, requirement.count, requirement.colour
    if len(group) < count:
        return f"expected {count} {name if count == 1 else _plural(requirement)}, found {len(group)}"
    if colour is not None and (wrong := [found.colour for found in group if found.colour != colour]):
        return f"expected {colour} {name}, found {', '.join(wrong)}"
    relation, target = requirement.position or (None, 0)
    for found, other in itertools.product(group, groups[target] if relation else ()):
        positions = relative_positions(found, other)
        if relation not in positions:
            seen = " and ".join(sorted(positions)) or "in no clear relation to"
            return f"expected {name} {relation} {other.shape}, found it {seen} it"
    return ""


def _plural(requirement: Requirement) -> str:
    return PLURALS.get(requirement.shape, requirement.shape)  # of a class of COCO its name: "expected 2 wine glass"
