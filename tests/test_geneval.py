"""GenEval: its rule on hand-made detections, all its prompts, and the detector and colours behind it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rti.lab.judge import Wanted, problem, relative_positions
from rti.lab.pictures.folder import Entry
from rti.lab.pictures.prompts import open_prompts
from rti.lab.pictures.scorers.clip import Clip
from rti.lab.pictures.scorers.geneval import (
    CLASSES,
    COLOURS,
    Found,
    GenEvalDetector,
    GenEvalScorer,
    SceneDetector,
    cut_out,
    detections,
    select,
)
from rti.lab.pictures.scorers.results import summary
from scorer_models import LINES, save_clip, save_mask2former
from tiny import refused

METADATA = Path(__file__).parents[2] / "shared" / "data" / "geneval_metadata.jsonl"
needs_metadata = pytest.mark.skipif(not METADATA.is_file(), reason=f"{METADATA} is not here")


def found(name, x=50.0, y=50.0, side=10.0, score=0.95, colour=None):
    """An object of a class around a point."""
    half = side / 2
    look = None if colour is None else (lambda _: colour)
    return Found(name, score, (x - half, y - half, x + half, y + half), look=look)


def problem_of(wanted, objects):
    return problem(wanted, select(objects, wanted.tag))


def need(name, count=1, **more):
    return {"class": name, "count": count, **more}


ONE_DOG = ("single_object", [need("dog")], [])
DOG_AND_CAT = ("two_object", [need("dog"), need("cat")], [])
TWO_CUPS = ("counting", [need("cup", 2)], [need("cup", 3)])
RED_CAR = ("colors", [need("car", color="red")], [])
BUS_LEFT = ("position", [need("cat"), need("bus", position=["left of", 0])], [])
BUS_ABOVE = ("position", [need("cat"), need("bus", position=["above", 0])], [])
BUS_LEFT_OF_TWO = ("position", [need("cat", 2), need("bus", position=["left of", 0])], [])
TWO_COLOURS = ("color_attr", [need("bed", color="blue"), need("tie", color="pink")], [])
CAT = found("cat", 50, 50)


def bus(dx, dy=0.0, **more):
    return found("bus", 50 + dx, 50 + dy, **more)


# Task, what the detector found, and whether the picture is right. Two boxes of side 10 stand in a relation where
# |offset| - 2 is more than half of the distance: beyond 4 pixels on an axis.
TABLE = {
    "an object that is there": (ONE_DOG, [found("dog")], True),
    "nothing at all": (ONE_DOG, [], False),
    "another object": (ONE_DOG, [found("cat")], False),
    "an object among others": (ONE_DOG, [found("cat"), found("dog", score=0.31), found("dog")], True),
    "more objects than asked for": (ONE_DOG, [found("dog"), found("dog", 20)], True),
    "a score at the threshold": (ONE_DOG, [found("dog", score=0.3)], False),
    "a score just above the threshold": (ONE_DOG, [found("dog", score=np.nextafter(0.3, 1))], True),
    "both objects": (DOG_AND_CAT, [found("dog"), found("cat")], True),
    "the first object alone": (DOG_AND_CAT, [found("dog")], False),
    "the second object alone": (DOG_AND_CAT, [found("cat"), found("cat", 20)], False),
    "the right number": (TWO_CUPS, [found("cup"), found("cup", 20)], True),
    "too few": (TWO_CUPS, [found("cup")], False),
    "too many": (TWO_CUPS, [found("cup"), found("cup", 20), found("cup", 80)], False),
    "too many, but of another class": (TWO_CUPS, [found("cup"), found("cup", 20), found("dog")], True),
    "the third at the threshold of counting": (TWO_CUPS, [found("cup")] * 2 + [found("cup", score=0.9)], True),
    "the third just above it": (TWO_CUPS, [found("cup")] * 2 + [found("cup", score=np.nextafter(0.9, 1))], False),
    "the second at the threshold of counting": (TWO_CUPS, [found("cup"), found("cup", score=0.9)], False),
    "many overlapping": (TWO_CUPS, [found("cup")] * 9, False),
    "the right colour": (RED_CAR, [found("car", colour="red")], True),
    "the wrong colour": (RED_CAR, [found("car", colour="blue")], False),
    "the right colour on the less certain object": (
        RED_CAR,
        [found("car", score=0.8, colour="red"), found("car", score=0.9, colour="blue")],
        False,
    ),
    "the right colour on the most certain object": (
        RED_CAR,
        [found("car", score=0.8, colour="blue"), found("car", score=0.9, colour="red")],
        True,
    ),
    "clearly left": (BUS_LEFT, [CAT, bus(-30)], True),
    "clearly right": (BUS_LEFT, [CAT, bus(30)], False),
    "left by a third of a box": (BUS_LEFT, [CAT, bus(-4.0)], False),
    "left by a little more than that": (BUS_LEFT, [CAT, bus(-4.01)], True),
    "on the same spot": (BUS_LEFT, [CAT, bus(0)], False),
    "within the tolerance of the boxes": (BUS_LEFT, [CAT, bus(-2.0)], False),
    "beyond the tolerance by half a thousandth": (BUS_LEFT, [CAT, bus(-2.0005)], False),
    "left and above counts as left": (BUS_LEFT, [CAT, bus(-30, -30)], True),
    "left and above counts as above": (BUS_ABOVE, [CAT, bus(-30, -30)], True),
    "a little left and far above is not left": (BUS_LEFT, [CAT, bus(-12, -30)], False),
    "below instead of above": (BUS_ABOVE, [CAT, bus(0, 30)], False),
    "large boxes need more distance": (BUS_LEFT, [found("cat", side=60), bus(-20, side=60)], False),
    "no target to stand left of": (BUS_LEFT, [bus(-30)], False),
    "a target and nothing left of it": (BUS_LEFT, [CAT], False),
    "left of one target, not of the other": (BUS_LEFT_OF_TWO, [CAT, found("cat", 10), bus(-20)], False),
    "left of both targets": (BUS_LEFT_OF_TWO, [CAT, found("cat", 90), bus(-20)], True),
    "a third, less certain target does not count": (
        BUS_LEFT_OF_TWO,
        [CAT, found("cat", 90), found("cat", 5, score=0.4), bus(-20)],
        True,
    ),
    "a position by the most certain object": (BUS_LEFT, [CAT, bus(-30, score=0.5), bus(30, score=0.9)], False),
    "both colours": (TWO_COLOURS, [found("bed", colour="blue"), found("tie", colour="pink")], True),
    "colours exchanged": (TWO_COLOURS, [found("bed", colour="pink"), found("tie", colour="blue")], False),
    "one colour of two": (TWO_COLOURS, [found("bed", colour="blue"), found("tie", colour="red")], False),
    "one object of two": (TWO_COLOURS, [found("bed", colour="blue")], False),
}


@pytest.mark.parametrize(("wanted", "objects", "right"), TABLE.values(), ids=TABLE)
def test_the_rule_decides_the_table(wanted, objects, right):
    tag, include, exclude = wanted
    metadata = {"tag": tag, "include": include} | ({"exclude": exclude} if exclude else {})
    assert (problem_of(Wanted.from_metadata(metadata, "here"), objects) == "") == right


def test_the_table_has_right_and_wrong_pictures_of_all_six_tasks():
    cases = {(wanted[0], right) for wanted, _, right in TABLE.values()}
    assert cases == {(line["tag"], right) for line in LINES for right in (True, False)}


@pytest.mark.parametrize("seed", range(5))
def test_positions_are_those_of_a_plain_reference(seed):
    """The formula of GenEval, number by number, on random boxes."""
    rng = np.random.default_rng(seed)
    for _ in range(200):
        one, two = (found("cat", *rng.uniform(0, 30, 2), side=rng.uniform(1, 20)) for _ in range(2))
        expected, moved = set(), []
        offsets = [one.centre[axis] - two.centre[axis] for axis in (0, 1)]
        for axis in (0, 1):
            sizes = sum(some.box[axis + 2] - some.box[axis] for some in (one, two))
            rest = max(abs(offsets[axis]) - 0.1 * sizes, 0)
            moved.append(rest if offsets[axis] > 0 else -rest)
        distance = (offsets[0] ** 2 + offsets[1] ** 2) ** 0.5
        if any(abs(rest) >= 1e-3 for rest in moved):
            names = (("left of", "right of"), ("above", "below"))
            for rest, (negative, positive) in zip(moved, names, strict=True):
                expected |= ({negative} if rest / distance < -0.5 else set()) | (
                    {positive} if rest / distance > 0.5 else set()
                )
        assert relative_positions(one, two) == expected


def test_of_each_class_the_best_sixteen_count():
    cups = [found("cup", score=0.91 + index / 1000) for index in range(20)]
    kept = select([*cups, found("dog", score=0.5)], "single_object")
    assert [one.score for one in kept if one.shape == "cup"] == sorted((one.score for one in cups), reverse=True)[:16]
    assert [one.shape for one in kept].count("dog") == 1
    seventeen = Wanted.from_metadata({"tag": "counting", "include": [need("cup", 17)]}, "here")
    assert problem_of(seventeen, cups)
    sixteen = {"tag": "counting", "include": [need("cup", 16)], "exclude": [need("cup", 17)]}
    assert not problem_of(Wanted.from_metadata(sixteen, "here"), cups)


def test_colours_are_looked_at_only_where_they_are_asked_for():
    seen = []
    car = Found("car", 0.9, (0, 0, 4, 4), look=lambda one: seen.append(one) or "red")
    assert not problem_of(Wanted.from_metadata({"tag": "single_object", "include": [need("car")]}, "here"), [car])
    assert seen == []
    red = Wanted.from_metadata({"tag": "colors", "include": [need("car", color="red")]}, "here")
    assert not problem_of(red, [car]) and not problem_of(red, [car])
    assert seen == [car]  # once for each object


BAD_METADATA = {
    "no tag": {"include": [need("dog")]},
    "nothing to include": {"tag": "colors", "include": []},
    "no include": {"tag": "colors"},
    "a count of none": {"tag": "colors", "include": [need("dog", 0)]},
    "a count that is no number": {"tag": "colors", "include": [need("dog", "two")]},
    "no class": {"tag": "colors", "include": [{"count": 1}]},
    "a relation that is none": {"tag": "position", "include": [need("dog"), need("cat", position=["near", 0])]},
    "a position to itself": {"tag": "position", "include": [need("dog"), need("cat", position=["above", 1])]},
    "a position to a later group": {"tag": "position", "include": [need("dog", position=["above", 1]), need("cat")]},
}


@pytest.mark.parametrize("metadata", BAD_METADATA.values(), ids=BAD_METADATA)
def test_metadata_that_cannot_be_judged_is_refused(metadata):
    with refused("line 7"):
        Wanted.from_metadata(metadata, "line 7")


# All prompts of GenEval, with synthetic detectors.


def perfect(metadata):
    """Detections that satisfy a line: every group in a place of its own, in the relation that is asked for."""
    steps = {"left of": (-300, 0), "right of": (300, 0), "above": (0, -300), "below": (0, 300)}
    objects, centres = [], []
    for group, entry in enumerate(metadata["include"]):
        dx, dy = steps[entry["position"][0]] if "position" in entry else (0, 1000 * group)
        base = centres[entry["position"][1]] if "position" in entry else (500, 500)
        centres.append((base[0] + dx, base[1] + dy))
        for copy in range(entry["count"]):
            x, y = centres[-1]
            objects.append(found(entry["class"], x + 20 * copy, y, colour=entry.get("color")))
    return objects


def spoil(metadata, how):
    """A perfect picture with one thing made wrong; `how` chooses among what can go wrong with this task."""
    objects, entry = perfect(metadata), metadata["include"][-1]
    faults = ["missing", "faint"]
    faults += ["colour"] if "color" in entry else []
    faults += ["place"] if "position" in entry else []
    faults += ["too many"] if "exclude" in metadata else []
    fault, last = faults[how % len(faults)], objects.pop()
    if fault == "faint":
        objects.append(Found(last.shape, 0.9 if metadata["tag"] == "counting" else 0.3, last.box, look=last.look))
    elif fault == "colour":
        other = next(colour for colour in COLOURS if colour != entry["color"])
        objects.append(Found(last.shape, last.score, last.box, look=lambda _: other))
    elif fault == "place":
        target = objects[0].centre
        mirrored = [2 * target[axis] - last.centre[axis] for axis in (0, 1)]
        objects.append(found(last.shape, *mirrored))
    elif fault == "too many":
        objects += [last, found(last.shape, 900, 900)]
    return objects


def harmless(metadata):
    """What must not change a verdict: faint objects, other classes, more of a class that is not counted."""
    extra = [found("dog" if "dog" not in str(metadata["include"]) else "zebra"), found("cup", score=0.3)]
    if "exclude" not in metadata:
        extra.append(found(metadata["include"][0]["class"], 5, 5, score=0.5, colour="black"))
    return perfect(metadata) + extra


class Synthetic:
    """A detector that knows which picture it sees: the prompt and the number are in its only pixel."""

    classes, colours = CLASSES, COLOURS

    def __init__(self, detect):
        self.detect = detect

    def __call__(self, picture, tag):
        high, low, number = picture.getpixel((0, 0))
        return select(self.detect(256 * high + low, number), tag)


def geneval_entries():
    prompts = open_prompts(str(METADATA)).prompts
    files = ("0.png", "1.png", "2.png", "3.png")
    return [Entry(one.index, one.prompt, one.group, files, (0, 1, 2, 3), one.metadata) for one in prompts]


def score_all(detect):
    """GenEval's summary of 553 prompts with four pictures each."""
    entries = geneval_entries()
    shown = [(entry, number) for entry in entries for number in range(4)]
    pictures = [Image.new("RGB", (1, 1), (*divmod(entry.index, 256), number)) for entry, number in shown]
    scorer = GenEvalScorer(Synthetic(detect))
    rows = scorer(pictures, [entry for entry, _ in shown])
    rows = [{"prompt": entry.index} | row for (entry, _), row in zip(shown, rows, strict=True)]
    return entries, rows, summary(entries, rows, by_group=True)


@needs_metadata
def test_a_perfect_detector_scores_100_on_all_553_prompts():
    lines = [json.loads(line) for line in METADATA.read_text().splitlines()]
    assert len(lines) == 553
    sizes = {"single_object": 80, "two_object": 99, "counting": 80, "colors": 94, "position": 100, "color_attr": 100}
    for detect in (lambda index, _: perfect(lines[index]), lambda index, _: harmless(lines[index])):
        entries, rows, result = score_all(detect)
        assert {tag: sum(entry.group == tag for entry in entries) for tag in sizes} == sizes
        assert len(rows) == 4 * 553
        assert result["score"] == 1.0
        assert result["groups"] == dict.fromkeys(sizes, 1.0)
        assert result["interval"] == pytest.approx([0.9931, 1.0], abs=1e-4)  # Wilson's, of 553 prompts


@needs_metadata
@pytest.mark.parametrize("seed", [0, 1])
def test_seeded_errors_give_the_exact_score_that_counting_them_gives(seed):
    """Each picture is spoiled with a probability of its task's own; the score is what is left, task by task."""
    lines = [json.loads(line) for line in METADATA.read_text().splitlines()]
    chance = dict(single_object=0.01, two_object=0.2, counting=0.4, colors=0.1, position=0.6, color_attr=0.8)
    rng = np.random.default_rng(seed)
    wrong = {
        (index, number): rng.random() < chance[line["tag"]] for index, line in enumerate(lines) for number in range(4)
    }
    how = {key: int(rng.integers(12)) for key in wrong}

    def detect(index, number):
        return spoil(lines[index], how[index, number]) if wrong[index, number] else perfect(lines[index])

    _, rows, result = score_all(detect)
    expected = {
        tag: sum(not wrong[index, number] for index, number in wrong if lines[index]["tag"] == tag)
        / (4 * sum(line["tag"] == tag for line in lines))
        for tag in chance
    }
    assert result["groups"] == pytest.approx(expected, abs=1e-12)
    assert result["score"] == pytest.approx(sum(expected.values()) / 6, abs=1e-12)
    assert sum(not row["score"] for row in rows) == sum(wrong.values())
    assert 0.4 < result["score"] < 0.8
    assert result["interval"][0] < result["score"] < result["interval"][1]


@needs_metadata
def test_the_metadata_asks_for_all_classes_and_colours_by_the_detectors_names():
    entries = geneval_entries()
    asked = [one for entry in entries for one in entry.metadata["include"]]
    assert {one["class"] for one in asked} == set(CLASSES)
    assert {one["color"] for one in asked if "color" in one} == set(COLOURS)


def test_the_classes_are_cocos_in_order_with_three_renamed():
    assert len(CLASSES) == len(set(CLASSES)) == 80
    named = {0: "person", 9: "traffic light", 39: "bottle", 63: "laptop", 64: "computer mouse", 65: "tv remote"}
    named |= {66: "computer keyboard", 67: "cell phone", 79: "toothbrush"}
    assert {index: CLASSES[index] for index in named} == named


def test_a_detector_refuses_prompts_of_things_it_does_not_know():
    star = {"tag": "single_object", "include": [need("star")], "prompt": "a star"}
    entry = Entry(3, "a star", "single_object", ("0.png",), (0,), star)
    GenEvalScorer(SceneDetector()).wanted(entry)
    with refused("prompt 3", "star"):
        GenEvalScorer(Synthetic(None)).wanted(entry)
    cyan = {"tag": "colors", "include": [need("dog", color="cyan")], "prompt": "a cyan dog"}
    with refused("cyan", "red, orange"):
        GenEvalScorer(Synthetic(None)).wanted(Entry(3, "", "colors", ("0.png",), (0,), cyan))
    with refused("prompt 3", "metadata"):
        GenEvalScorer(Synthetic(None)).wanted(Entry(3, "a star", None, ("0.png",), (0,)))


# The detector.


def logits(size, boxes, classes=80, shape=(25, 25)):
    """Logits of queries that see one object each: (class, its logit, rectangle in the small mask, inside logit)."""
    class_logits = torch.full((len(boxes), classes + 1), -20.0)
    masks = torch.full((len(boxes), *shape), -8.0)
    for query, (name, strength, (left, top, right, bottom), inside) in enumerate(boxes):
        class_logits[query, name] = strength
        class_logits[query, -1] = 0.0
        masks[query, top:bottom, left:right] = inside
    return detections(class_logits, masks, size)


def test_masks_become_boxes_at_the_size_of_the_picture():
    dog, cat = CLASSES.index("dog"), CLASSES.index("cat")
    one, two = logits((25, 25), [(dog, 4.0, (3, 5, 10, 9), 8.0), (cat, 8.0, (0, 0, 25, 25), 8.0)])
    assert [one.shape, two.shape] == ["cat", "dog"]  # best first
    assert one.box == (0, 0, 25, 25)
    assert two.box == (3, 5, 10, 9)
    assert two.mask.sum() == 28 and two.mask[5:9, 3:10].all()
    sigmoid = 1 / (1 + np.exp(-8.0))
    assert two.score == pytest.approx(np.exp(4) / (np.exp(4) + 1) * sigmoid, rel=1e-5)
    [large] = logits((100, 50), [(dog, 4.0, (0, 0, 25, 12), 8.0)])
    assert large.mask.shape == (100, 50)
    assert large.box == (0, 0, 50, 48)  # logits of 8 and -8 cross zero halfway between the pixels


def test_a_score_is_lowered_by_an_unsure_mask_and_cut_at_the_threshold():
    dog = CLASSES.index("dog")
    sure, unsure = (logits((25, 25), [(dog, 5.0, (3, 5, 10, 9), inside)]) for inside in (9.0, 0.4))
    assert unsure[0].score == pytest.approx(sure[0].score * (1 / (1 + np.exp(-0.4))) / (1 / (1 + np.exp(-9))), rel=1e-4)
    assert logits((25, 25), [(dog, -1.0, (3, 5, 10, 9), 9.0)]) == []  # 0.27
    assert logits((25, 25), [(dog, 0.0, (3, 5, 10, 9), 0.2)]) == []  # 0.5 x 0.55
    assert logits((25, 25), [(dog, 5.0, (3, 5, 3, 9), 9.0)]) == []  # no mask at all


def test_one_query_may_be_two_classes_and_many_of_a_class_may_overlap():
    class_logits = torch.full((3, 81), -20.0)
    class_logits[0, 16] = class_logits[0, 17] = class_logits[1, 16] = class_logits[2, 16] = 5.0
    masks = torch.full((3, 8, 8), 6.0)
    names = [one.shape for one in detections(class_logits, masks, (8, 8))]
    assert sorted(names) == ["dog", "dog", "dog", "horse"]


@pytest.mark.parametrize("seed", range(3))
def test_detections_are_those_of_a_plain_reference(seed):
    generator = torch.Generator().manual_seed(seed)
    class_logits = 4 * torch.randn(12, 81, generator=generator)
    masks = 3 * torch.randn(12, 7, 9, generator=generator)
    result = detections(class_logits, masks, (14, 18), threshold=0.1)
    large = torch.nn.functional.interpolate(masks[None], size=(14, 18), mode="bilinear", align_corners=False)[0]
    pairs = []
    for query in range(12):
        weights = class_logits[query].exp()
        for name in range(80):
            pairs.append((float(weights[name] / weights.sum()), query, name))
    expected = []
    for probability, query, name in sorted(pairs, reverse=True)[:100]:
        inside = [(y, x) for y in range(14) for x in range(18) if large[query, y, x] > 0]
        mean = sum(1 / (1 + np.exp(-float(large[query, y, x]))) for y, x in inside) / len(inside)
        rows, columns = [y for y, _ in inside], [x for _, x in inside]
        box = (min(columns), min(rows), max(columns) + 1, max(rows) + 1)
        expected.append((probability * mean, CLASSES[name], box))
    expected = sorted((one for one in expected if one[0] > 0.1), reverse=True)
    assert len(expected) > 3
    assert [one.score for one in result] == pytest.approx([score for score, _, _ in expected], rel=1e-4)
    assert [(one.shape, one.box) for one in result] == [(name, box) for _, name, box in expected]


@pytest.mark.parametrize(
    ("size", "expected"),
    [((512, 512), (800, 800)), ((64, 64), (800, 800)), ((1000, 500), (1344, 672)), ((300, 400), (800, 1088))],
)
def test_pictures_are_brought_to_an_edge_of_800_and_at_most_1333(tmp_path, size, expected):
    """Rounded up to the next multiple of 32, as the network needs it."""
    model = torch.nn.Module()
    model.config = type("Config", (), {"num_labels": 80})
    assert GenEvalDetector(model, None).size(*size) == expected


def test_the_real_architecture_loads_from_a_folder_and_finds_what_its_logits_say(tmp_path):
    detector = GenEvalDetector.load(str(save_mask2former(tmp_path / "detector")), str(save_clip(tmp_path / "clip")))
    detector.shortest = 96
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3)).astype(np.uint8))
    objects = detector.objects(picture, threshold=0.004)
    assert objects
    pixels = np.asarray(picture.resize((128, 96), Image.Resampling.BILINEAR)).astype(np.float32) / 255
    pixels = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    with torch.no_grad():
        result = detector.model(torch.from_numpy(pixels).permute(2, 0, 1)[None].float())
    expected = detections(result.class_queries_logits[0], result.masks_queries_logits[0], (48, 64), 0.004)
    assert [(one.shape, one.box) for one in objects] == [(one.shape, one.box) for one in expected]
    assert objects[0].mask.shape == (48, 64)
    with refused("a detector of 5 classes"):
        GenEvalDetector.load(str(save_mask2former(tmp_path / "other", labels=5)), str(tmp_path / "clip"))


def test_a_folder_without_weights_of_the_kind_is_refused_rather_than_left_random(tmp_path):
    with refused("cannot load", tmp_path / "nowhere"):
        GenEvalDetector.load(str(tmp_path / "nowhere"), "no/clip")
    with refused(tmp_path / "clip"):
        GenEvalDetector.load(str(save_clip(tmp_path / "clip")), "no/clip")


# Colours.


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return Clip.load(str(save_clip(tmp_path_factory.mktemp("clip"))))


def test_an_object_is_cut_out_on_grey_by_its_mask_and_cropped_to_its_box():
    pixels = np.full((10, 12, 3), 200, np.uint8)
    mask = np.zeros((10, 12), bool)
    mask[2:6, 3:5] = True
    mask[2, 3] = False
    cut = np.asarray(cut_out(Image.fromarray(pixels), Found("dog", 0.9, (3.0, 2.0, 5.0, 6.0), mask)))
    assert cut.shape == (4, 2, 3)
    assert cut[0, 0].tolist() == [0x99] * 3
    assert (cut[1:] == 200).all() and cut[0, 1].tolist() == [200] * 3


@pytest.fixture
def detector(clip):
    """With the objects it finds made up: two dogs, one of them unsure."""
    model = torch.nn.Module()
    model.config = type("Config", (), {"num_labels": 80})
    detector = GenEvalDetector(model, clip)
    detector.objects = lambda picture: [Found("dog", 0.95, (0, 0, 8, 8)), Found("dog", 0.2, (0, 0, 8, 8))]
    return detector


def test_colours_are_those_of_a_plain_zero_shot_classifier(clip, detector):
    rng, seen = np.random.default_rng(1), set()
    for _ in range(12):
        picture = Image.fromarray(rng.integers(0, 256, (20, 24, 3)).astype(np.uint8))
        mask = rng.random((20, 24)) < 0.7
        thing = Found("wine glass", 0.9, (2.0, 3.0, 22.0, 18.0), mask)
        scores = []
        pixels = np.where(mask[:, :, None], np.asarray(picture), 0x99).astype(np.uint8)[3:18, 2:22]
        image = clip.pictures([Image.fromarray(pixels)])[0]
        for colour in COLOURS:
            texts = [f"a photo of a {colour} wine glass", f"a photo of a {colour}-colored wine glass"]
            vectors = [clip.texts([text])[0] for text in (*texts, f"a photo of a {colour} object")]
            mean = sum(vectors) / 3
            scores.append(float(image @ mean / mean.norm()))
        expected = COLOURS[int(np.argmax(scores))]
        assert detector.colour(picture, thing) == expected
        seen.add(expected)
    assert len(seen) > 1


def test_the_detector_names_colours_of_the_picture_it_saw(detector):
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)) for _ in range(8)]
    results = [detector(picture, "colors") for picture in pictures]
    assert [len(result) for result in results] == [1] * 8
    expected = [detector.colour(picture, Found("dog", 0.95, (0, 0, 8, 8))) for picture in pictures]
    assert [result[0].colour for result in results] == expected
