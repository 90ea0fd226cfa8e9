"""The scenes world by class."""

from collections import Counter

import numpy as np
import pytest
import torch

from rti.data import open_data
from rti.errors import InputError
from rti.lab.judge import problem
from rti.lab.scenes.classes import CLASSES, class_example, class_of, class_prompts, class_scene
from rti.lab.scenes.detect import detect
from rti.lab.scenes.render import batch, render
from rti.lab.scenes.source import ScenesSource
from rti.lab.scenes.world import HELD_OUT_PAIRS, Thing, prompts
from rti.text.vocabulary import COLOURS, SHAPES, TEXTURES

NUMBER = len(SHAPES) * len(COLOURS)


def problems(scenes, images):
    return [problem(scene, found) for scene, found in zip(scenes, detect(images), strict=True)]


def test_labels_are_fixed_for_good():
    """Trained models depend on them."""
    assert len(CLASSES) == len(set(CLASSES)) == NUMBER == 56
    for label, name in {
        0: "red circle",
        1: "orange circle",
        8: "red square",
        26: "yellow star",
        55: "pink moon",
    }.items():
        assert CLASSES[label] == name
    assert class_scene(25).objects == (Thing("star", "orange"),) and class_scene(25).caption == "an orange star"


def test_scene_and_label_are_inverse():
    for label in range(NUMBER):
        scene = class_scene(label, "dotted")
        assert class_of(scene) == label and scene.objects[0].texture == "dotted"
        assert CLASSES[label] == f"{scene.objects[0].colour} {scene.objects[0].shape}"


def test_wrong_classes():
    for label in (-1, 56):
        with pytest.raises(InputError, match=f"class must be a whole number from 0 to 55, got {label}"):
            class_scene(label)
    with pytest.raises(InputError, match="a class is of one object, got 2"):
        class_of(next(scene for scene in prompts(6, 0) if len(scene.objects) == 2))


@pytest.mark.parametrize("size", [32, 64])
def test_every_picture_is_judged_right(size):
    scenes = class_prompts(8 * NUMBER, 1)
    assert set(problems(scenes, render(scenes, np.random.default_rng(1), size))) == {""}
    pictures, scenes = zip(*(class_example(2, index, size) for index in range(4 * NUMBER)), strict=True)
    assert set(problems(scenes, np.stack(pictures))) == {""}


def test_the_judge_asks_for_this_colour_and_shape_alone():
    scenes = class_prompts(NUMBER, 0)
    pictures = render(scenes, np.random.default_rng(0))
    labels = np.array([class_of(scene) for scene in scenes])
    for wrong in (labels // 8 * 8 + (labels + 1) % 8, (labels + 8) % NUMBER):  # other colour, other shape
        assert all(problems([class_scene(label) for label in wrong], pictures))
    counting = next(scene for scene in prompts(60, 0) if scene.task == "counting" and "star" in scene.caption)
    pair = next(scene for scene in prompts(600, 0) if scene.task == "color_attr" and scene.objects[0].shape == "star")
    for scene in (counting, pair):
        found = [f"{one.colour} {one.shape}" for one in detect(render([scene], np.random.default_rng(0)))[0]]
        asked = class_scene(CLASSES.index(f"{scene.objects[0].colour} star"))
        assert CLASSES[class_of(asked)] in found
        [reason] = problems([asked], render([scene], np.random.default_rng(0)))
        assert "expected at most" in reason


def test_prompts_are_balanced_and_fixed():
    assert sorted(class_of(scene) for scene in class_prompts(NUMBER, 3)) == list(range(NUMBER))
    assert class_prompts(100, 3) == class_prompts(200, 3)[:100] != class_prompts(100, 4)
    assert class_prompts(3, 0)[0].metadata()["prompt"] == class_prompts(3, 0)[0].caption


def test_the_source_shows_every_class_in_turn():
    source = open_data("scenes", 16, kind="labels", seed=7)
    assert (source.kind, source.endless) == ("labels", True)
    assert source.classes == list(CLASSES) and "56 classes" in source.describe()
    labels = [source[index].label for index in range(3 * NUMBER)]
    turns = [labels[start : start + NUMBER] for start in range(0, 3 * NUMBER, NUMBER)]
    assert all(sorted(turn) == list(range(NUMBER)) for turn in turns)
    assert turns[0] != turns[1] != turns[2] and turns[0] != list(range(NUMBER))
    assert turns[0] != [open_data("scenes", 16, kind="labels", seed=8)[index].label for index in range(NUMBER)]
    # What is asked for in evaluation does not come in the order of training.
    assert turns[0] != [class_of(scene) for scene in class_prompts(NUMBER, 7)]


def test_examples_depend_on_seed_and_index_alone():
    source = open_data("scenes", 64, kind="labels", seed=4)
    for index in (5, 0, 123_456_789_012):
        one, two = source[index], open_data("scenes", 64, kind="labels", seed=4)[index]
        assert torch.equal(one.image, two.image) and one[1:] == two[1:] and one.caption is None
        assert one.image.shape == (3, 64, 64) and one.image.dtype == torch.float32
        found = detect(one.image[None].numpy())[0]
        assert [f"{thing.colour} {thing.shape}" for thing in found] == [CLASSES[one.label]]
    assert not torch.equal(source[5].image, source[5 + NUMBER].image)
    assert not torch.equal(source[5].image, open_data("scenes", 64, kind="labels", seed=5)[5].image)
    with pytest.raises(IndexError):
        ScenesSource(16, kind="labels")[-1]


def test_pictures_are_those_of_the_captioned_world():
    """Same sizes, textures and backgrounds, and held-out pairs as well."""
    examples = [class_example(0, index) for index in range(600)]
    textures = Counter(scene.objects[0].texture for _, scene in examples)
    assert set(textures) == set(TEXTURES) and 250 < textures["plain"] < 350 and 100 < textures["dotted"] < 200
    assert {(scene.objects[0].shape, scene.objects[0].colour) for _, scene in examples} >= HELD_OUT_PAIRS
    ours = np.stack([image for image, _ in examples])
    theirs = batch(0, 0, 600, tasks=["single_object"])[0]
    areas = [[sum(one.area for one in found) for found in detect(images)] for images in (ours, theirs)]
    assert np.allclose(np.quantile(areas[0], [0.1, 0.5, 0.9]), np.quantile(areas[1], [0.1, 0.5, 0.9]), rtol=0.1)
    corners = ours[:, :, 0, 0], theirs[:, :, 0, 0]
    assert np.allclose(*(np.quantile(corner, [0.05, 0.5, 0.95]) for corner in corners), atol=0.06)


def test_wrong_class_scenes_are_refused():
    for kind in ("text", "labels"):
        with pytest.raises(InputError, match="scenes are square"):
            open_data("scenes", 48, kind=kind)
        with pytest.raises(InputError, match="scenes cannot be flipped"):
            open_data("scenes", 64, kind=kind, flip=True)
    assert open_data("scenes", 64).kind == open_data("scenes", 64, kind="text").kind == "text"
