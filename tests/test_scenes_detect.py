"""The detector: right on right pictures, wrong on pictures made wrong on purpose."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rti.lab.judge import problem
from rti.lab.scenes.detect import THRESHOLD, detect
from rti.lab.scenes.layout import CANVAS, place
from rti.lab.scenes.render import draw, render
from rti.lab.scenes.world import Scene, Thing, prompts
from rti.text.vocabulary import COLOURS, OPPOSITE, SHAPES

PICTURES = 1200


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return prompts(PICTURES, 21, "all")


@pytest.fixture(scope="module")
def images(scenes) -> np.ndarray:
    return render(scenes, np.random.default_rng(21))


def accuracy(scenes: Sequence[Scene], images: np.ndarray) -> float:
    return float(np.mean([problem(scene, found) == "" for scene, found in zip(scenes, detect(images), strict=True)]))


def blur(images: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian blur, border pixels repeated."""
    offsets = np.arange(-4, 5)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    kernel /= kernel.sum()
    size = images.shape[-1]
    padded = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)), mode="edge")
    rows = sum(weight * padded[:, :, start : start + size] for start, weight in enumerate(kernel))
    return sum(weight * rows[..., start : start + size] for start, weight in enumerate(kernel)).astype(np.float32)


def noisy(images: np.ndarray, sigma: float) -> np.ndarray:
    return images + np.random.default_rng(0).normal(0, sigma, images.shape).astype(np.float32)


def warp(images: np.ndarray, pixels: float) -> np.ndarray:
    """Bend outlines: every picture moved by a smooth random field, bumps about 7 pixels wide, `pixels` RMS per axis."""
    rng = np.random.default_rng(1)
    size = images.shape[-1]
    grid = np.arange(0, size + 14, 7)
    bumps = np.exp(-0.5 * ((np.arange(size)[:, None] - grid + 7) / 5) ** 2)
    fields = bumps @ rng.normal(size=(2, len(images), len(grid), len(grid))) @ bumps.T
    fields *= pixels / fields.std(axis=(2, 3), keepdims=True)
    row = np.clip(np.arange(size)[:, None] + fields[0], 0, size - 1.001)
    column = np.clip(np.arange(size) + fields[1], 0, size - 1.001)
    top, left = row.astype(int), column.astype(int)
    down, right = (row - top)[..., None], (column - left)[..., None]
    last, which = np.moveaxis(images, 1, -1), np.arange(len(images))[:, None, None]
    upper = last[which, top, left] * (1 - right) + last[which, top, left + 1] * right
    lower = last[which, top + 1, left] * (1 - right) + last[which, top + 1, left + 1] * right
    return np.moveaxis(upper * (1 - down) + lower * down, -1, 1).astype(np.float32)


def painted(mask: np.ndarray, colour: Sequence[float] = (0.9, 0.1, 0.1)) -> np.ndarray:
    """One picture of a mask in a colour on grey: (size, size) -> (1, 3, size, size)."""
    values = np.where(mask, np.reshape(colour, (3, 1, 1)), 0.6)
    return blur((values * 2 - 1)[None], 0.5)


@pytest.mark.parametrize("size", [32, 64, 128])
def test_rendered_scenes_are_right(scenes, size):
    part = scenes if size == CANVAS else scenes[:300]
    assert accuracy(part, render(part, np.random.default_rng(21), size)) >= 0.99


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda images: blur(images, 0.8), id="blur"),
        pytest.param(lambda images: noisy(images, 0.06), id="noise"),
        pytest.param(lambda images: noisy(blur(images, 0.8), 0.06), id="blur-and-noise"),
        pytest.param(lambda images: warp(images, 0.6), id="bent-outlines"),
        pytest.param(lambda images: 0.6 * images, id="faded"),
    ],
)
def test_scenes_are_right_under_small_errors(scenes, images, change):
    assert accuracy(scenes, change(images)) >= 0.95


def test_every_object_is_found_where_it_is(scenes):
    layout = place(scenes, np.random.default_rng(5))
    images = draw(scenes, layout, np.random.default_rng(6))
    start = np.searchsorted(layout.scene, np.arange(len(scenes) + 1))
    for index, (scene, found) in enumerate(zip(scenes, detect(images), strict=True)):
        assert len(found) == len(scene.objects)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        centres = layout.centre[start[index] : start[index + 1]]
        for thing, centre in zip(scene.objects, centres, strict=True):
            nearest = min(found, key=lambda one: np.hypot(*(one.centre - centre)))
            assert (nearest.shape, nearest.colour) == (thing.shape, thing.colour)
            assert np.abs(nearest.centre - centre).max() < 1.5


def test_detections_are_in_pixels_of_the_picture():
    scene = [scene for scene in prompts(60, 2) if len(scene.objects) == 1][:5]
    reference = detect(render(scene, np.random.default_rng(0)))
    for size in (32, 128):
        for (one,), (other,) in zip(reference, detect(render(scene, np.random.default_rng(0), size)), strict=True):
            unit = size / CANVAS
            assert np.allclose(np.array(one.box) * unit, other.box, atol=1.5 * unit)
            assert np.allclose(np.array(one.centre) * unit, other.centre, atol=unit)
            assert other.area == pytest.approx(one.area * unit**2, rel=0.15)
    (found,) = reference[0]
    left, top, right, bottom = found.box
    assert found.centre == ((left + right) / 2, (top + bottom) / 2)
    assert 0.2 * (right - left) * (bottom - top) < found.area <= (right - left) * (bottom - top)


def recoloured(scene: Scene, rng: np.random.Generator) -> Scene | None:
    if scene.include[0].colour is None:
        return None
    index = rng.integers(len(scene.objects))
    thing = scene.objects[index]
    other = COLOURS[(COLOURS.index(thing.colour) + rng.integers(1, len(COLOURS))) % len(COLOURS)]
    return replace(scene, objects=_exchanged(scene, index, replace(thing, colour=other)))


def reshaped(scene: Scene, rng: np.random.Generator) -> Scene:
    index = rng.integers(len(scene.objects))
    shapes = [shape for shape in SHAPES if shape not in {thing.shape for thing in scene.objects}]
    return replace(scene, objects=_exchanged(scene, index, replace(scene.objects[index], shape=rng.choice(shapes))))


def swapped(scene: Scene, rng: np.random.Generator) -> Scene | None:
    if scene.relation is None:
        return None
    return replace(scene, relation=OPPOSITE[scene.relation])


def turned(scene: Scene, rng: np.random.Generator) -> Scene | None:
    """Left and right become above and below, and the other way round."""
    if scene.relation is None:
        return None
    others = ("above", "below") if scene.relation in ("left of", "right of") else ("left of", "right of")
    return replace(scene, relation=others[rng.integers(2)])


def missing(scene: Scene, rng: np.random.Generator) -> Scene | None:
    if len(scene.objects) == 1:
        return None
    return replace(scene, objects=scene.objects[1:], relation=None)


def one_more(scene: Scene, rng: np.random.Generator) -> Scene | None:
    if scene.task != "counting" or len(scene.objects) == 4:
        return None
    return replace(scene, objects=(*scene.objects, scene.objects[0]))


def exchanged_colours(scene: Scene, rng: np.random.Generator) -> Scene | None:
    """The right shapes and the right colours, bound the wrong way round."""
    if scene.task != "color_attr":
        return None
    first, second = scene.objects
    return replace(scene, objects=(replace(first, colour=second.colour), replace(second, colour=first.colour)))


def _exchanged(scene: Scene, index: int, thing: Thing) -> tuple[Thing, ...]:
    return (*scene.objects[:index], thing, *scene.objects[index + 1 :])


@pytest.mark.parametrize(
    "mistake",
    [recoloured, reshaped, swapped, turned, missing, one_more, exchanged_colours],
    ids=lambda one: one.__name__,
)
def test_scenes_made_wrong_are_rejected(mistake):
    rng = np.random.default_rng(4)
    pairs = [(scene, mistake(scene, rng)) for scene in prompts(1200, 22, "all")]
    right, wrong = zip(*[pair for pair in pairs if pair[1] is not None], strict=True)
    assert len(right) >= 120
    images = render(wrong, np.random.default_rng(4))
    assert accuracy(right, images) <= 0.01
    assert accuracy(right, blur(images, 0.8)) <= 0.01


def test_shuffled_pictures_score_at_chance(scenes, images):
    """Measured: 4 % of the pictures of other prompts pass, most of them single objects."""
    chance = accuracy(scenes, images[np.random.default_rng(0).permutation(len(scenes))])
    assert 0.01 < chance < 0.08


def test_empty_and_noise_pictures_show_nothing():
    rng = np.random.default_rng(0)
    assert detect(np.zeros((2, 3, 64, 64))) == [[], []]
    assert detect(np.zeros((0, 3, 64, 64))) == []
    grey = noisy(np.zeros((50, 3, 64, 64), dtype=np.float32), 0.06)
    assert not any(detect(grey)) and not any(detect(rng.normal(0, 0.6, (50, 3, 64, 64))))


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 4, 64, 64), (1, 3, 64, 32)])
def test_other_arrays_are_refused(shape):
    with pytest.raises(ValueError, match="pictures must be"):
        detect(np.zeros(shape))


def test_what_is_no_shape_gets_a_low_score():
    x, y = np.meshgrid(np.arange(64) - 31.5, np.arange(64) - 31.5)
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    blobs = {
        "bar": (np.abs(x) < 16) & (np.abs(y) < 7),
        "ellipse": (x / 18) ** 2 + (y / 9) ** 2 < 1,
        "half disc": (radius < 14) & (y > 0),
        "corner": (np.abs(x) < 13) & (np.abs(y) < 13) & ((x < -4) | (y > 4)),
        "x": (np.minimum(np.abs(x + y), np.abs(x - y)) < 6) & (radius < 15),
        "three lobes": radius < 10 + 5 * np.cos(3 * angle + 1),
        "moon the wrong way": (radius < 14) & (np.hypot(x + 7, y) > 11),
        "triangle on its tip": (y > -13) & (1.8 * np.abs(x) + y < 13),
        "two discs": np.minimum(np.hypot(x - 9, y), np.hypot(x + 9, y)) < 10,
        "speck": radius < 3,
        "outline": np.abs(radius - 14) < 1.5,
    }
    accepted = {name for name, mask in blobs.items() if detect(painted(mask))[0]}
    assert accepted == set()
    assert [(one.shape, one.colour) for one in detect(painted(radius < 14))[0]] == [("circle", "red")]
    assert detect(painted(blobs["bar"]), threshold=0)[0][0].score < THRESHOLD


def test_random_blobs_are_mostly_rejected():
    """Outlines with random lobes; the milder ones may pass as circles, which is what they look like."""
    rng = np.random.default_rng(3)
    x, y = np.meshgrid(np.arange(64) - 31.5, np.arange(64) - 31.5)
    angle = np.arctan2(y, x)
    found = []
    for _ in range(300):
        lobes = sum(
            rng.normal(0, 0.35) / np.sqrt(k) * np.cos(k * angle + rng.uniform(0, 2 * np.pi)) for k in range(2, 7)
        )
        found += detect(painted(np.hypot(x, y) < np.maximum(1 + lobes, 0.25) * 12))[0]
    assert len(found) < 0.2 * 300


def test_objects_of_two_colours_are_rejected():
    x, y = np.meshgrid(np.arange(64) - 31.5, np.arange(64) - 31.5)
    disc = np.hypot(x, y) < 14
    image = painted(disc)
    image[:, :, :, 32:] = painted(disc, (0.1, 0.8, 0.9))[:, :, :, 32:]
    assert detect(image) == [[]]
