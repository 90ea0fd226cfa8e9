"""Connected components of masks."""

import numpy as np
import pytest

from rti.lab.scenes.components import connected_components, largest


@pytest.mark.parametrize("seed", range(4))
def test_connected_components_equal_a_flood_fill(seed):
    rng = np.random.default_rng(seed)
    masks = rng.random((6, 20, 17)) < (0.1, 0.35, 0.5, 0.65)[seed]
    masks[0], masks[1] = False, True
    components = connected_components(masks)
    assert ((components.labels > 0) == masks).all()
    number = 0
    for picture, mask in enumerate(masks):
        left = {(int(row), int(column)) for row, column in zip(*np.nonzero(mask), strict=True)}
        while left:
            region, border = set(), [min(left)]
            while border:
                pixel = border.pop()
                if pixel in left:
                    left.remove(pixel)
                    region.add(pixel)
                    border += [(pixel[0] + down, pixel[1] + right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
            rows, columns = np.array(sorted(region)).T
            labels = np.unique(components.labels[picture, rows, columns])
            assert len(labels) == 1
            index = labels[0] - 1
            assert components.area[index] == len(region) and components.picture[index] == picture
            assert (components.labels == labels[0]).sum() == len(region)
            box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert tuple(components.box[index]) == box
            number += 1
    assert number == len(components.area)


def test_largest_components_are_kept_and_renumbered():
    mask = np.zeros((2, 10, 10), dtype=bool)
    mask[0, 0, 0:2] = mask[0, 2, 0:5] = mask[0, 4, 0:3] = mask[0, 6, 0:4] = True
    mask[1, 0, 0] = mask[1, 2, 0:6] = True
    kept = largest(connected_components(mask), least=2, most=2)
    assert kept.area.tolist() == [5, 4, 6] and kept.picture.tolist() == [0, 0, 1]
    assert [(kept.labels == label).sum() for label in (1, 2, 3)] == [5, 4, 6]
    assert kept.labels.max() == 3 and kept.box[2].tolist() == [0, 2, 6, 3]
