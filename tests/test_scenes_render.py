"""Pictures of scenes and training batches."""

import numpy as np
import pytest

from rti.lab.judge import relative_positions
from rti.lab.scenes.detect import detect
from rti.lab.scenes.layout import CANVAS, GAP, MARGIN, RADII, place
from rti.lab.scenes.render import PALETTE, batch, palette_rgb, render
from rti.lab.scenes.shapes import signed_distance
from rti.lab.scenes.world import HELD_OUT_TRIPLES, Requirement, Scene, Thing, prompts, sample_scenes
from rti.text.vocabulary import COLOURS, OPPOSITE, RELATIONS, SHAPES, TEXTURES


def picture(thing: Thing, seed: int = 0, size: int = CANVAS) -> np.ndarray:
    """One object alone: (3, size, size)."""
    scene = Scene("single_object", (thing,), None, f"a {thing.shape}", (Requirement(thing.shape, 1),))
    return render([scene], np.random.default_rng(seed), size)[0]


@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_pictures_have_the_size_and_range(size):
    images = render(prompts(24, 0), np.random.default_rng(0), size)
    assert images.shape == (24, 3, size, size) and images.dtype == np.float32
    assert images.min() >= -1 and images.max() <= 1
    assert images.std(axis=(1, 2, 3)).min() > 0.05
    assert render([], np.random.default_rng(0), size).shape == (0, 3, size, size)


@pytest.mark.parametrize("size", [0, -64, 48, 100])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"must divide 64 or be a multiple of it, got {size}"):
        render(prompts(1, 0), np.random.default_rng(0), size)


def test_all_sizes_show_the_same_picture():
    scenes = prompts(24, 1)
    small, middle, large = (render(scenes, np.random.default_rng(5), size) for size in (32, 64, 128))

    def halved(images: np.ndarray) -> np.ndarray:
        return (images[..., ::2, ::2] + images[..., 1::2, ::2] + images[..., ::2, 1::2] + images[..., 1::2, 1::2]) / 4

    assert np.allclose(halved(middle), small, atol=1e-5)
    # Drawn finer, not enlarged: edges differ by the error of the anti-aliasing, nothing else does.
    assert np.abs(halved(large) - middle).mean() < 0.005
    assert np.abs(halved(large) - middle[::-1]).mean() > 0.1


def test_same_random_state_same_pictures():
    scenes = prompts(12, 2)
    first, second, other = (render(scenes, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_batches_depend_on_seed_and_index_alone():
    expected, scenes = batch(3, 17, 8)
    for other in ((3, 16, 8), (3, 18, 8), (4, 17, 8), (17, 3, 8)):
        assert not np.array_equal(batch(*other)[0], expected)
    np.random.seed(0)
    again = batch(3, 17, 8)
    assert np.array_equal(again[0], expected) and again[1] == scenes
    assert batch(3, 17, 8, size=32)[1] == scenes


def test_batches_hold_pictures_and_scenes():
    images, scenes = batch(0, 0, 16, split="held-out", size=32, tasks=["position"])
    assert images.shape == (16, 3, 32, 32)
    assert {scene.task for scene in scenes} == {"position"}
    assert all((s.objects[0].shape, s.relation, s.objects[1].shape) in HELD_OUT_TRIPLES for s in scenes)


def test_empty_batches_are_refused():
    with pytest.raises(ValueError, match="number of pictures must be a whole number of at least 1, got 0"):
        batch(0, 0, 0)


def test_objects_stay_inside_and_apart():
    scenes = sample_scenes(3000, np.random.default_rng(4))
    layout = place(scenes, np.random.default_rng(4))
    assert (layout.centre - layout.radius[:, None] >= MARGIN - 1e-9).all()
    assert (layout.centre + layout.radius[:, None] <= CANVAS - MARGIN + 1e-9).all()
    start = np.searchsorted(layout.scene, np.arange(len(scenes) + 1))
    apart = []
    for index, scene in enumerate(scenes):
        rows = slice(start[index], start[index + 1])
        centre, radius = layout.centre[rows], layout.radius[rows]
        assert len(centre) == len(scene.objects)
        low, high = RADII[len(scene.objects)]
        assert (radius >= low).all() and (radius <= high).all()
        for one in range(len(centre)):
            for other in range(one):
                apart.append((np.abs(centre[one] - centre[other]) - radius[one] - radius[other]).max())
    assert len(apart) > 2000 and min(apart) >= GAP - 1e-9


def test_positions_use_the_whole_canvas():
    """A layout that always chose the same places would pass the test above."""
    scenes = sample_scenes(6000, np.random.default_rng(4))
    layout = place(scenes, np.random.default_rng(4))
    numbers = np.array([len(scene.objects) for scene in scenes])[layout.scene]
    for number in RADII:
        centres = layout.centre[numbers == number]
        cells = np.unique((centres // 8).astype(int), axis=0)
        assert len(cells) >= 30, number  # of the 6 x 6 inner cells
        assert np.allclose(centres.mean(axis=0), CANVAS / 2, atol=1), number


@pytest.mark.parametrize("relation", RELATIONS)
def test_relations_hold_in_the_picture(relation):
    scenes = [s for s in sample_scenes(1600, np.random.default_rng(6), "all", ["position"]) if s.relation == relation]
    wrong = 0
    for scene, found in zip(scenes, detect(render(scenes, np.random.default_rng(6))), strict=True):
        by_shape = {detection.shape: detection for detection in found}
        first, second = (by_shape[thing.shape] for thing in scene.objects)
        # Only this relation, by the formula; and clearly for the eye: along the axis the boxes are apart.
        wrong += relative_positions(first, second) != {relation}
        wrong += relative_positions(second, first) != {OPPOSITE[relation]}
        axis = 0 if relation in ("left of", "right of") else 1
        low, high = (first, second) if relation in ("left of", "above") else (second, first)
        wrong += not low.box[axis + 2] < high.box[axis]
    assert len(scenes) > 300 and wrong == 0


def test_pictures_show_held_out_relations_only_if_asked():
    scenes = sample_scenes(1500, np.random.default_rng(8), tasks=["two_object", "color_attr"])
    shown = set()
    for first, second in detect(render(scenes, np.random.default_rng(8))):
        shown |= {(first.shape, relation, second.shape) for relation in relative_positions(first, second)}
        shown |= {(second.shape, relation, first.shape) for relation in relative_positions(second, first)}
    assert len(shown) == 6 * len(HELD_OUT_TRIPLES)
    assert not shown & HELD_OUT_TRIPLES


def test_shapes_fill_their_box_and_are_centred():
    line = np.linspace(-1.2, 1.2, 481)
    x, y = np.meshgrid(line, line)
    for shape in SHAPES:
        rows, columns = np.nonzero(signed_distance(shape, x, y) < 0)
        left, right, top, bottom = line[columns.min()], line[columns.max()], line[rows.min()], line[rows.max()]
        assert max(-left, right, -top, bottom) <= 1.0 + 1e-9, shape
        assert min(right - left, bottom - top) >= 1.6, shape
        assert abs(left + right) < 0.03 and abs(top + bottom) < 0.03, shape


def test_edges_are_smooth():
    """Between background and object lies about one pixel of mixed colour."""
    image = picture(Thing("circle", "blue"), seed=1)
    redness = image[0]
    background, inside = np.median(redness[:2]), redness.min()
    mixed = (redness > inside + 0.1 * (background - inside)) & (redness < background - 0.1 * (background - inside))
    outline = 2 * np.pi * 12
    assert 0.5 * outline < mixed.sum() < 2 * outline


def test_textures_shade_the_object_and_keep_its_hue():
    pictures = {texture: picture(Thing("square", "green", texture), seed=3) for texture in TEXTURES}
    found = {texture: detect(image[None])[0] for texture, image in pictures.items()}
    assert all([(one.shape, one.colour) for one in objects] == [("square", "green")] for objects in found.values())
    # Same seed, same square: inside it the textures differ from plain by a factor of brightness.
    left, top, right, bottom = (int(side) for side in found["plain"][0].box)
    inside = {name: (image[1, top + 2 : bottom - 2, left + 2 : right - 2] + 1) / 2 for name, image in pictures.items()}
    striped, dotted = inside["striped"] / inside["plain"], inside["dotted"] / inside["plain"]
    for shade in (striped, dotted):
        assert shade.min() == pytest.approx(0.6, abs=0.01) and shade.max() == pytest.approx(1, abs=0.01)
    assert 0.35 < (striped < 0.8).mean() < 0.65
    assert 0.2 < (dotted < 0.8).mean() < 0.45
    # Stripes are constant along one axis, dots along none.
    assert min(striped.std(axis=0).max(), striped.std(axis=1).max()) < 0.01
    assert min(dotted.std(axis=0).max(), dotted.std(axis=1).max()) > 0.1


def test_colours_are_well_separated():
    hues = np.sort([hue for hue, _, _ in PALETTE.values()])
    assert set(PALETTE) == set(COLOURS)
    assert np.diff([*hues, hues[0] + 360]).min() >= 28
    plain = palette_rgb(COLOURS)
    varied = np.stack([palette_rgb(COLOURS, np.random.default_rng(seed)) for seed in range(200)])
    assert varied.min() >= 0 and varied.max() <= 1 and varied.std(axis=0).max() > 0.01
    nearest = np.abs(varied[:, :, None] - plain).sum(axis=-1).argmin(axis=-1)
    assert (nearest == np.arange(len(COLOURS))).all()
    # Known conversions from HSV to RGB.
    hue, saturation, value = PALETTE["red"]
    assert hue == 0 and np.allclose(plain[0], [value, value * (1 - saturation), value * (1 - saturation)])


def test_backgrounds_are_near_grey_and_detail_is_rare():
    images = render(prompts(300, 3), np.random.default_rng(3))
    frame = np.concatenate([images[:, :, 0], images[:, :, -1], images[:, :, :, 0], images[:, :, :, -1]], axis=-1)
    assert (frame.max(axis=1) - frame.min(axis=1)).max() < 0.1
    assert np.ptp(frame, axis=-1).max() < 0.5
    patches = images.reshape(300, 3, 16, 4, 16, 4)
    detailed = np.ptp(patches, axis=(3, 5)).max(axis=1) > 0.1
    assert 0.05 < detailed.mean() < 0.4
