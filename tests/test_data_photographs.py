"""Crops of photographs: reproducible, balanced, and never across the border of what is held out."""

import numpy as np
import pytest
import torch
from PIL import Image

from rti.data import open_data
from rti.data.photographs import HELD_OUT, PhotographSource, crop_box
from rti.errors import InputError


@pytest.fixture
def folder(tmp_path):
    """Three pictures, wide, tall and square; the held-out end of the longer side is blue, the rest red."""
    for name, (width, height) in {"a": (160, 100), "b": (100, 150), "c": (120, 120)}.items():
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[..., 0] = 255
        border = max(width, height) - round(HELD_OUT * min(width, height))
        (pixels if height > width else pixels.transpose(1, 0, 2))[border:] = (0, 0, 255)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    return tmp_path


def test_training_crops_and_held_out_crops_never_overlap(folder):
    for split, colour in (("", [1.0, -1.0, -1.0]), (":held-out", [-1.0, -1.0, 1.0])):
        source = open_data(f"photographs:{folder}{split}", 8, kind="labels")
        for index in range(60):
            image = source[index].image
            assert image.shape == (3, 8, 8)
            torch.testing.assert_close(image, torch.tensor(colour)[:, None, None].expand(3, 8, 8))


def test_every_turn_shows_each_photograph_once_and_an_index_is_always_the_same(folder):
    source = PhotographSource(folder, 8, seed=3)
    assert source.classes == ["a", "b", "c"]
    for turn in range(5):
        assert sorted(source[3 * turn + place].label for place in range(3)) == [0, 1, 2]
    again = PhotographSource(folder, 8, seed=3)
    assert all(torch.equal(source[index].image, again[index].image) for index in (7, 0, 7))
    other = PhotographSource(folder, 8, seed=4)
    assert [source[index].label for index in range(30)] != [other[index].label for index in range(30)]


def test_the_order_is_fixed_for_good(folder):
    """Runs resumed with a later version must see the same crops; these numbers may never change."""
    orders = {"train": [1, 0, 2, 2, 1, 0, 2, 0, 1, 1, 2, 0], "held-out": [2, 1, 0, 2, 1, 0, 1, 2, 0, 1, 2, 0]}
    for split, labels in orders.items():
        source = PhotographSource(folder, 8, seed=3, split=split)
        assert [source[index].label for index in range(12)] == labels
    box = crop_box((200, 100), 50.0, 2.0, np.random.default_rng([7, 3, 0]))
    np.testing.assert_allclose(box, (146.2550330579252, 66.34254278390782, 196.2550330579252, 91.34254278390782))


@pytest.mark.parametrize("aspect", [1.0, 2.0, 0.5])
def test_crops_have_the_asked_shape_and_lie_within(aspect):
    rng = np.random.default_rng(0)
    boxes = np.array([crop_box((200, 100), 50.0, aspect, rng) for _ in range(500)])
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    np.testing.assert_allclose(width / height, aspect)
    np.testing.assert_allclose(np.maximum(width, height), 50)
    assert boxes.min() >= 0 and (boxes[:, 2] <= 200).all() and (boxes[:, 3] <= 100).all()
    assert boxes[:, 0].min() < 5 and boxes[:, 2].max() > 195 and boxes[:, 1].min() < 5 and boxes[:, 3].max() > 95


def test_half_of_the_crops_are_mirrored(tmp_path):
    """A picture that brightens to the right does so in about half of its crops."""
    ramp = np.broadcast_to(np.arange(100, dtype=np.uint8)[None, :, None], (100, 100, 3))
    Image.fromarray(np.ascontiguousarray(ramp)).save(tmp_path / "ramp.png")
    source = PhotographSource(tmp_path, 8)
    rising = sum(bool(source[index].image[0, 0, -1] > source[index].image[0, 0, 0]) for index in range(200))
    assert 70 <= rising <= 130


@pytest.mark.parametrize("rest", ["nowhere", "", "{empty}"])
def test_what_holds_no_photographs_is_refused(tmp_path, rest):
    with pytest.raises(InputError, match="is no folder of photographs"):
        open_data(f"photographs:{rest.format(empty=tmp_path)}", 8)


def test_a_model_of_captions_is_refused(folder):
    with pytest.raises(InputError, match="labels, but text"):
        open_data(f"photographs:{folder}", 8, kind="text")
