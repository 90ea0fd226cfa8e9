"""GenEval's decision rule."""

from dataclasses import replace

import numpy as np
import pytest

from rti.lab.judge import problem, relative_positions
from rti.lab.scenes.detect import Detection, detect
from rti.lab.scenes.render import render
from rti.lab.scenes.world import Requirement, Scene, Thing, sample_scenes
from rti.text.vocabulary import COLOURS


def seen(shape: str, colour: str, x: float, y: float, score: float = 0.95, side: float = 20) -> Detection:
    half = side / 2
    return Detection(shape, colour, (x - half, y - half, x + half, y + half), (x, y), side**2, score)


@pytest.mark.parametrize(
    ("x", "y", "relations"),
    [
        # Boxes of 20: 0.1 (20 + 20) = 4 is taken off each offset, then divided by the distance of the centres.
        (-10, 0, {"left of"}),  # (10 - 4) / 10 = 0.6
        (-7, 0, set()),  # 3 / 7 = 0.43
        (-4, 4, set()),  # nothing left
        (10, 0, {"right of"}),
        (0, -10, {"above"}),
        (0, 10, {"below"}),
        (-20, -20, {"left of", "above"}),  # 16 / 28.3 = 0.57 on both axes
        (20, 30, {"below"}),  # 16 / 36.1 = 0.44 and 26 / 36.1 = 0.72
        (-12, 12, set()),  # 8 / 17.0 = 0.47 on both axes
    ],
)
def test_position_formula(x, y, relations):
    assert relative_positions(seen("star", "red", 50 + x, 50 + y), seen("ring", "red", 50, 50)) == relations


def test_position_formula_counts_width_and_height_apart():
    wide = Detection("star", "red", (0, 45, 80, 55), (40.0, 50.0), 800, 0.9)
    tall = Detection("ring", "red", (45, 0, 55, 80), (50.0, 40.0), 800, 0.9)
    # 0.1 (80 + 10) = 9 on each axis leaves 1 of 10: 1 / 14.1 on each.
    assert relative_positions(wide, tall) == set()


def test_the_rule_on_colours_takes_the_best_objects():
    scene = Scene("colors", (Thing("star", "red"),), None, "a red star", (Requirement("star", 1, "red"),))
    red, blue = seen("star", "red", 10, 10, 0.95), seen("star", "blue", 40, 40, 0.9)
    assert not problem(scene, [red, blue]) and not problem(scene, [blue, red])
    worse = red._replace(score=0.88)
    assert problem(scene, [worse, blue]) == "expected red star, found blue"
    assert problem(scene, [seen("ring", "red", 10, 10)]) == "expected 1 star, found 0"


def test_the_rule_on_counting_is_exact():
    stars = [seen("star", colour, 10 + 20 * index, 10) for index, colour in enumerate(COLOURS[:4])]
    include, exclude = (Requirement("star", 3),), (Requirement("star", 4),)
    scene = Scene("counting", (Thing("star", "red"),) * 3, None, "three stars", include, exclude)
    assert problem(scene, stars[:3]) == ""
    assert problem(scene, stars[:2]) == "expected 3 stars, found 2"
    assert problem(scene, stars) == "expected at most 3 stars, found 4"
    assert not problem(scene, [*stars[:3], seen("ring", "red", 50, 50)])
    red = replace(scene, include=(Requirement("star", 3, "red"),))
    assert problem(red, stars[:3]) == "expected red star, found orange, yellow"
    assert not problem(red, [star._replace(colour="red") for star in stars[:3]])


def test_the_rule_on_positions_holds_for_every_object_of_the_target():
    include = (Requirement("ring", 2), Requirement("star", 1, position=("left of", 0)))
    scene = Scene("position", (Thing("star", "red"), Thing("ring", "red")), "left of", "a star left of a ring", include)
    star, right, left = seen("star", "red", 30, 30), seen("ring", "red", 60, 30), seen("ring", "blue", 5, 30)
    assert not problem(scene, [star, right, right])
    assert problem(scene, [star, right, left]) == "expected star left of ring, found it right of it"
    near = seen("ring", "red", 32, 30)
    assert problem(scene, [star, right, near]) == "expected star left of ring, found it in no clear relation to it"
    assert problem(scene, [star, right]) == "expected 2 rings, found 1"


def test_right_pictures_get_no_reason_and_wrong_ones_do():
    scenes = sample_scenes(60, np.random.default_rng(0))
    images = render(scenes, np.random.default_rng(0))
    for scene, found in zip(scenes, detect(images), strict=True):
        assert problem(scene, found) == ""
        assert problem(scene, []).startswith("expected ")
