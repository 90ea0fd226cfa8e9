"""Scenes, captions and the words they use."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

import rti.lab.scenes
from rti.errors import InputError
from rti.lab.scenes.world import (
    HELD_OUT_PAIRS,
    HELD_OUT_TRIPLES,
    SPLITS,
    TASKS,
    Requirement,
    Scene,
    Thing,
    prompts,
    sample_scenes,
)
from rti.text.vocabulary import (
    COLOURS,
    NUMBERS,
    OPPOSITE,
    PLURALS,
    RELATIONS,
    SHAPES,
    TEXTURES,
    VOCABULARY,
    decode,
    encode,
    words_of,
)

SINGULAR = {plural: shape for shape, plural in PLURALS.items()}


def held_out_combinations(scene: Scene) -> tuple[tuple[str, ...], ...]:
    """The held-out (shape, colour) pairs and (shape, relation, shape) triples of a scene; empty for training scenes."""
    found = [pair for pair in ((thing.shape, thing.colour) for thing in scene.objects) if pair in HELD_OUT_PAIRS]
    if scene.relation is not None:
        triple = (scene.objects[0].shape, scene.relation, scene.objects[1].shape)
        found += [triple] if triple in HELD_OUT_TRIPLES else []
    return tuple(found)


def draw(count: int, split: str = "train", seed: int = 0, **options) -> list[Scene]:
    return sample_scenes(count, np.random.default_rng(seed), split, **options)


def read(caption: str) -> tuple[list[dict], str | None]:
    """What a caption says, read word by word: its groups (number, shape, colour, texture) and the relation."""
    joint = re.search(" (left of|right of|above|below|and) ", caption)
    pieces = re.split(" (?:left of|right of|above|below|and) ", caption)
    groups = []
    for piece in pieces:
        first, *words = piece.split()
        noun = words.pop()
        number = 1 if first in ("a", "an") else {word: value for value, word in NUMBERS.items()}[first]
        colour = [word for word in words if word in COLOURS]
        texture = [word for word in words if word in TEXTURES]
        assert words == texture + colour and len(colour) < 2 and len(texture) < 2
        groups.append({"number": number, "shape": SINGULAR.get(noun, noun), "colour": colour, "texture": texture})
        assert (number > 1) == (noun in SINGULAR)
    relation = joint.group(1) if joint and joint.group(1) != "and" else None
    return groups, relation


@pytest.mark.parametrize("split", SPLITS)
def test_captions_say_what_the_scene_shows_and_requires(split):
    for scene in draw(3000, split):
        groups, relation = read(scene.caption)
        assert relation == scene.relation
        assert sum(group["number"] for group in groups) == len(scene.objects)
        shown = iter(scene.objects)
        for group in groups:
            for _ in range(group["number"]):
                thing = next(shown)
                assert thing.shape == group["shape"]
                assert group["colour"] in ([], [thing.colour])
                assert group["texture"] in ([], [thing.texture])
        required = [
            Requirement(group["shape"], group["number"], group["colour"][0] if group["colour"] else None)
            for group in groups
        ]
        if relation is not None:
            first, second = required
            required = [second, Requirement(first.shape, 1, first.colour, (relation, 0))]
        assert list(scene.include) == required
        excluded = [Requirement(groups[0]["shape"], groups[0]["number"] + 1)] if scene.task == "counting" else []
        assert list(scene.exclude) == excluded


def test_each_task_asks_for_its_own_skill():
    for scene in draw(3000):
        groups, relation = read(scene.caption)
        coloured = [bool(group["colour"]) for group in groups]
        shapes = [group["shape"] for group in groups]
        expected = {
            "single_object": len(groups) == 1 and coloured == [False] and groups[0]["number"] == 1,
            "two_object": len(set(shapes)) == 2 and coloured == [False, False] and relation is None,
            "counting": len(groups) == 1 and groups[0]["number"] in (2, 3, 4),
            "colors": len(groups) == 1 and coloured == [True] and groups[0]["number"] == 1,
            "position": len(set(shapes)) == 2 and relation in RELATIONS,
            "color_attr": len(set(shapes)) == 2 and all(coloured) and groups[0]["colour"] != groups[1]["colour"],
        }
        assert expected[scene.task], scene


def test_captions_vary():
    captions = {scene.caption for scene in draw(6000)}
    assert len(captions) > 2000
    used = {word for caption in captions for word in caption.split()}
    assert used == set(VOCABULARY[1:])


def test_metadata_has_the_form_of_geneval():
    """Two lines of the original metadata, with our words."""
    ring, star = Thing("ring", "green"), Thing("star", "red")
    include = (Requirement("ring", 1), Requirement("star", 1, "red", ("left of", 0)))
    scene = Scene("position", (star, ring), "left of", "a red star left of a ring", include)
    assert scene.metadata() == {
        "tag": "position",
        "include": [
            {"class": "ring", "count": 1},
            {"class": "star", "count": 1, "color": "red", "position": ["left of", 0]},
        ],
        "prompt": "a red star left of a ring",
    }
    scene = Scene("counting", (ring, ring), None, "two rings", (Requirement("ring", 2),), (Requirement("ring", 3),))
    assert scene.metadata()["exclude"] == [{"class": "ring", "count": 3}]


def test_same_seed_same_scenes():
    assert draw(200, seed=3) == draw(200, seed=3)
    assert draw(200, seed=3) != draw(200, seed=4)
    assert prompts(60, 7, "held-out") == prompts(60, 7, "held-out")
    assert prompts(60, 7) != prompts(60, 8)
    assert prompts(120, 7)[:60] == prompts(60, 7)


@pytest.mark.parametrize("count", [240, 245])
def test_prompts_are_balanced(count):
    numbers = Counter(scene.task for scene in prompts(count, 1))
    assert set(numbers) == set(TASKS)
    assert max(numbers.values()) - min(numbers.values()) <= 1
    assert (count % 6 == 0) == (len(set(numbers.values())) == 1)


def test_tasks_can_be_chosen():
    assert {scene.task for scene in draw(200, tasks=["position", "colors"])} == {"position", "colors"}
    with pytest.raises(ValueError, match="the tasks 'colours'; allowed: single_object"):
        draw(1, tasks=["colours"])
    with pytest.raises(ValueError, match="the tasks ''"):
        draw(1, tasks=[])
    for sample in (lambda: draw(1, "test"), lambda: prompts(1, 0, "test")):
        with pytest.raises(ValueError, match="split 'test' is unknown; allowed: train, held-out, all"):
            sample()


def test_ids_and_held_out_combinations_stay_as_published():
    """Trained weights depend on both: a change here makes shipped models and their figures wrong."""
    words = (
        "<pad> a an two three four plain striped dotted red orange yellow green cyan blue purple pink "
        "circle square triangle star cross ring moon circles squares triangles stars crosses rings moons "
        "left right of above below and"
    )
    assert tuple(words.split()) == VOCABULARY
    pairs = "circle orange, square cyan, triangle pink, star yellow, cross blue, ring red, moon green"
    assert {" ".join(pair) for pair in HELD_OUT_PAIRS} == set(pairs.split(", "))
    triples = (
        "ring left of square, star left of triangle, square left of star, moon left of cross, cross left of ring, "
        "triangle left of moon, cross above circle, triangle above square, circle above triangle, ring above star, "
        "star above cross, square above ring"
    )
    assert {" ".join(triple) for triple in HELD_OUT_TRIPLES if triple[1] in ("left of", "above")} == set(
        triples.split(", ")
    )


def test_held_out_rule():
    assert len(HELD_OUT_PAIRS) == len(SHAPES) == len({shape for shape, _ in HELD_OUT_PAIRS})
    assert len({colour for _, colour in HELD_OUT_PAIRS}) == len(SHAPES)
    assert len(HELD_OUT_TRIPLES) == 24 and len(SHAPES) * (len(SHAPES) - 1) * len(RELATIONS) == 7 * 24
    for first, relation, second in HELD_OUT_TRIPLES:
        assert (second, OPPOSITE[relation], first) in HELD_OUT_TRIPLES
        assert (first, OPPOSITE[relation], second) not in HELD_OUT_TRIPLES
    # Every word is still learnt: each shape and each relation occurs in training on either side.
    trained = [scene for scene in draw(3000, tasks=["position"])]
    assert {(scene.objects[0].shape, scene.relation) for scene in trained} == {
        (shape, relation) for shape in SHAPES for relation in RELATIONS
    }


def test_training_never_shows_held_out_combinations():
    scenes = draw(10_000)
    assert not any(held_out_combinations(scene) for scene in scenes)
    # All that is not held out does occur, so that the rule is the only reason.
    pairs = {(thing.shape, thing.colour) for scene in scenes for thing in scene.objects}
    assert len(pairs) == len(SHAPES) * len(COLOURS) - len(HELD_OUT_PAIRS)
    triples = {(s.objects[0].shape, s.relation, s.objects[1].shape) for s in scenes if s.relation is not None}
    assert len(triples) == 6 * len(HELD_OUT_TRIPLES)


def test_held_out_prompts_always_name_a_held_out_combination():
    scenes = draw(5000, "held-out")
    seen = set()
    for scene in scenes:
        found = held_out_combinations(scene)
        if scene.task not in ("colors", "position", "color_attr"):
            assert not found
            continue
        assert len(found) == 1
        seen |= set(found)
        named = [f"{colour} {shape}" for shape, colour in HELD_OUT_PAIRS]
        if scene.task == "position":
            groups, relation = read(scene.caption)
            assert (groups[0]["shape"], relation, groups[1]["shape"]) in HELD_OUT_TRIPLES
        else:
            assert sum(name in scene.caption for name in named) == 1
    assert seen == HELD_OUT_PAIRS | HELD_OUT_TRIPLES
    assert any(held_out_combinations(scene) for scene in draw(500, "all"))
    assert not all(held_out_combinations(scene) for scene in draw(500, "all", tasks=["colors"]))


def test_encode_and_decode_are_inverse():
    for scene in draw(1000, "all"):
        ids = encode(scene.caption)
        assert ids.shape == (64,) and ids.dtype == np.int64
        number = len(scene.caption.split())
        assert (ids[:number] > 0).all() and (ids[number:] == 0).all()
        assert decode(ids) == scene.caption
    assert len(set(VOCABULARY)) == len(VOCABULARY) and VOCABULARY[0] == "<pad>"


def test_encode_ignores_case_and_punctuation_and_takes_both_articles():
    assert (encode("A red star, left of a Blue circle.") == encode("a red star left of a blue circle")).all()
    assert decode(encode("an orange ring")) == "an orange ring"
    assert decode(encode("a orange ring", length=3)) == "a orange ring"


def test_unknown_words_are_named_with_the_vocabulary():
    with pytest.raises(ValueError) as error:
        encode("a shiny red dog and a dog")
    assert isinstance(error.value, InputError)
    message = str(error.value)
    assert "shiny, dog. " in message and "\n" not in message
    assert "colours: red orange yellow" in message and "shapes: circle square" in message
    assert all(word in message for word in VOCABULARY[1:])
    with pytest.raises(ValueError, match="<pad>"):
        encode("a <pad> star")


def test_lenient_encoding_drops_unknown_words():
    assert words_of("a shiny red dog, or a Dog star")[1] == ["shiny", "dog", "or"]
    assert decode(encode("a shiny red dog, or a star", lenient=True)) == "a red a star"
    assert words_of("a star")[1] == []
    assert words_of("a <pad> star")[1] == ["<pad>"]
    assert (encode("a <pad> star", lenient=True)[:2] > 0).all()


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("caption", ["", "  ", "..."])
def test_nothing_to_encode_is_an_error(caption, lenient):
    with pytest.raises(ValueError, match="no known word"):
        encode(caption, lenient=lenient)


def test_nothing_left_or_too_much_to_encode_is_an_error():
    with pytest.raises(ValueError, match=r"no known word in 'shiny dogs'.*colours: red"):
        encode("shiny dogs", lenient=True)
    with pytest.raises(ValueError, match="5 words, at most 4 fit"):
        encode("a star and a ring", length=4)


def test_things_of_a_scene_do_not_change():
    with pytest.raises(FrozenInstanceError):
        Thing("star", "red").colour = "blue"


def test_importing_the_world_needs_numpy_only():
    """`rti` itself is replaced by an empty package: what it imports is not this package's business."""
    folder = Path(rti.lab.scenes.__file__).parents[2]
    code = (
        "import sys, types; package = types.ModuleType('rti'); package.__path__ = [sys.argv[1]];"
        "sys.modules['rti'] = package; import rti.lab.scenes;"
        "print(sorted({'torch', 'scipy', 'skimage', 'PIL', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['numpy']"
