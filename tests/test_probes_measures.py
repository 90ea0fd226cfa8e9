"""What the probes measure: hand-computed values and closed forms."""

import math

import pytest
import torch

from rti.lab.probes import measures
from rti.method.order import order
from rti.method.partition import fixed_regions, partition
from tiny import refused


def groups_of(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


def even_cuts(side: int, budget: int) -> torch.Tensor:
    """The paper's fixed boundaries on the Hilbert order of a square grid."""
    walk, position = order("hilbert", side, side)
    return fixed_regions(1, len(walk), budget, walk.device)[:, position]


def random_groups(patches: int, budget: int, batch: int = 3, seed: int = 0) -> torch.Tensor:
    """Every group has a patch, the rest falls where it falls."""
    generator = torch.Generator().manual_seed(seed)
    free = torch.randint(budget, (batch, patches), generator=generator)
    free[:, :budget] = torch.arange(budget)
    return free


# EV.


def test_retained_variance_by_hand():
    """Tokens 0, 2, 4, 10: the mean is 4, the variance 16 + 4 + 0 + 36 = 56; pairs lose 1 + 1 + 9 + 9 = 20."""
    features = torch.tensor([[[0.0], [2.0], [4.0], [10.0]]])
    assert measures.explained_variance(features, groups_of([0, 0, 1, 1])).item() == pytest.approx(36 / 56)
    assert measures.explained_variance(features, groups_of([1, 0, 0, 1])).item() == pytest.approx(1 - 52 / 56)


def test_one_group_keeps_nothing_and_a_group_per_token_keeps_everything():
    features = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(0)) + 7
    nothing = measures.explained_variance(features, torch.zeros(3, 12, dtype=torch.int64))
    everything = measures.explained_variance(features, torch.arange(12).expand(3, -1))
    assert torch.allclose(nothing, torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert torch.equal(everything, torch.ones(3, dtype=torch.float64))


def test_features_that_do_not_vary_are_kept_by_any_grouping():
    constant = torch.full((2, 8, 3), 0.1)
    groups = random_groups(8, 3, batch=2)
    for value in (
        measures.explained_variance(constant, groups),
        measures.explained_variance(constant, measures.group_weights(groups)),
        measures.skip_variance(constant, 2),
    ):
        assert torch.equal(value, torch.ones(2, dtype=torch.float64))


def test_each_image_of_a_batch_is_measured_alone():
    features = torch.randn(3, 16, 4, generator=torch.Generator().manual_seed(1))
    groups = random_groups(16, 5)
    together = measures.explained_variance(features, groups)
    for index in range(3):
        alone = measures.explained_variance(features[index : index + 1], groups[index : index + 1])
        assert alone.item() == pytest.approx(together[index].item(), rel=1e-12)
        lost = sum(
            (features[index, groups[index] == group] - features[index, groups[index] == group].mean(dim=0))
            .square()
            .sum()
            for group in range(5)
        )
        total = (features[index] - features[index].mean(dim=0)).square().sum()
        assert alone.item() == pytest.approx(1 - (lost / total).item(), abs=1e-6)


def test_a_soft_group_pools_with_its_weights_and_scatters_with_the_column_normalised_transpose():
    """Two tokens 0 and 1, both read half and half: each token comes back as 1/2, which is the mean: EV 0."""
    features = torch.tensor([[[0.0], [1.0]]])
    assert measures.explained_variance(features, torch.full((1, 2, 2), 0.5)).item() == pytest.approx(0.0)
    # Weights (3/4, 1/4) and (1/4, 3/4) pool to 1/4 and 3/4; columns sum to one, so they come back as 3/8 and 5/8.
    weights = torch.tensor([[[0.75, 0.25], [0.25, 0.75]]])
    assert measures.explained_variance(features, weights).item() == pytest.approx(1 - 2 * (3 / 8) ** 2 / 0.5)


def test_a_soft_group_may_be_worse_than_the_mean():
    """One group reads token 1 alone, so token 0 is never read and the mean; token 1 is exact; and turned around."""
    features = torch.tensor([[[0.0], [1.0], [2.0]]])
    only_last = torch.tensor([[[0.0, 0.0, 1.0]]])
    assert measures.explained_variance(features, only_last).item() == pytest.approx(1 - 1 / 2)
    # A group of tokens 0 and 2 weighted 1 : 3 puts both at 1.5, token 1 unread stays the mean: loss 2.25 + 0.25 of 2.
    lopsided = torch.tensor([[[0.25, 0.0, 0.75]]])
    assert measures.explained_variance(features, lopsided).item() == pytest.approx(1 - 2.5 / 2)


def test_hard_groups_are_soft_groups_of_equal_weights():
    features = torch.randn(3, 16, 4, generator=torch.Generator().manual_seed(2))
    groups = random_groups(16, 5)
    weights = measures.group_weights(groups)
    detail = features[..., 0].abs()
    pairs = [
        (measures.explained_variance(features, groups), measures.explained_variance(features, weights)),
        (measures.spread(groups, (4, 4)), measures.spread(weights, (4, 4))),
        (measures.size_detail(groups, detail), measures.size_detail(3 * weights, detail)),
    ]
    for hard, soft in pairs:
        assert torch.allclose(hard, soft, atol=1e-12)


def test_negative_weights_are_refused():
    with refused("-0.5"):
        measures.spread(torch.tensor([[[1.0, -0.5]]]), (1, 2))


def test_skipping_keeps_what_is_farthest_from_the_mean():
    """Tokens 0, 2, 4, 10 have the distances 16, 4, 0, 36 of 56 in all."""
    features = torch.tensor([[[0.0], [2.0], [4.0], [10.0]]])
    assert [measures.skip_variance(features, keep).item() for keep in range(5)] == pytest.approx(
        [0, 36 / 56, 52 / 56, 1, 1]
    )
    assert measures.kept_by_skipping(features, 2).tolist() == [[True, False, False, True]]
    assert measures.kept_by_skipping(torch.tensor([[[1.0], [-1.0], [1.0], [-1.0]]]), 3).tolist() == [
        [True, True, True, False]
    ]


# Spread.


def test_spread_by_hand():
    """Two patches side by side are half a cell from their centre; one patch is at its own."""
    assert measures.spread(groups_of([0, 0, 1]), (1, 3)).item() == pytest.approx((0.5 + 0) / 2)
    assert measures.spread_per_patch(groups_of([0, 0, 1]), (1, 3)).item() == pytest.approx(1 / 3)
    # 0 and 2 of one row with 1 between them: both one cell away.
    assert measures.spread(groups_of([0, 1, 0]), (1, 3)).item() == pytest.approx(0.5)
    # Weights 3 : 1 over a distance of 4: the centre is at 1, and 3/4 * 1 + 1/4 * 3 = 3/2.
    assert measures.spread(torch.tensor([[[3.0, 0.0, 0.0, 0.0, 1.0]]]), (5, 1)).item() == pytest.approx(1.5)


def test_spread_of_the_whole_grid_and_of_even_cuts_are_the_papers():
    whole = torch.zeros(1, 1024, dtype=torch.int64)
    direct = sum(math.hypot(row - 15.5, column - 15.5) for row in range(32) for column in range(32)) / 1024
    assert measures.spread(whole, (32, 32)).item() == pytest.approx(direct)
    assert round(direct, 4) == 12.2386
    cells = even_cuts(32, 256)  # 2 x 2 cells: every corner is half a diagonal away
    assert measures.spread(cells, (32, 32)).item() == pytest.approx(math.sqrt(0.5))
    assert measures.spread_per_patch(cells, (32, 32)).item() == pytest.approx(0.7071, abs=5e-5)
    assert measures.spread(torch.arange(1024)[None], (32, 32)).item() == 0


def test_groups_that_hold_no_patch_count_for_nothing():
    """Numbers may have holes: groups 0 and 5 alone."""
    holes = groups_of([0, 0, 5, 5])
    assert measures.spread(holes, (1, 4)).item() == measures.spread(groups_of([0, 0, 1, 1]), (1, 4)).item() == 0.5
    detail = torch.tensor([[1.0, 3.0, 5.0, 7.0]])
    assert measures.size_detail(groups_of([0, 4, 4, 4]), detail).item() == pytest.approx(-1.0)


# Detail and size.


def test_detail_is_the_squared_step_to_the_right_and_below():
    """One bright pixel in a 4 x 4 image, at (1, 1): steps from its left, its top, to its right and below."""
    image = torch.zeros(1, 3, 4, 4)
    image[0, 0, 1, 1] = 2.0
    # (0, 1) steps down by 2, (1, 0) steps right by 2, (1, 1) steps right and down: 16 in the first 2 x 2 patch.
    assert measures.detail(image, 2).tolist() == [[16 / 4, 0, 0, 0]]
    image[0, 0] = 0
    image[0, 2, 3, 3] = 3.0  # in the corner: only what is left of it and above it steps
    assert measures.detail(image, 2).tolist() == [[0, 0, 0, 18 / 4]]
    assert measures.detail(torch.full((1, 3, 4, 4), 0.3), 2).tolist() == [[0, 0, 0, 0]]


def test_size_and_detail_correlate_by_hand():
    """Sizes 1, 1, 2 are the fineness 0, 0, -1; details 4, 2, (1 + 1) / 2 are 4, 2, 1."""
    detail = torch.tensor([[4.0, 2.0, 1.0, 1.0]])
    fineness, inside = [1 / 3, 1 / 3, -2 / 3], [4 - 7 / 3, 2 - 7 / 3, 1 - 7 / 3]
    top = sum(a * b for a, b in zip(fineness, inside, strict=True))
    expected = top / math.sqrt(sum(a * a for a in fineness) * sum(b * b for b in inside))
    assert measures.size_detail(groups_of([0, 1, 2, 2]), detail).item() == pytest.approx(expected)
    assert expected > 0.7


@pytest.mark.parametrize("budget", [1, 256, 1024])
def test_groups_of_one_size_follow_nothing(budget):
    detail = torch.rand(1, 1024, generator=torch.Generator().manual_seed(0))
    assert measures.size_detail(even_cuts(32, budget), detail).item() == 0


def test_the_size_of_a_soft_group_is_its_participation_ratio():
    weights = measures.group_weights(torch.tensor([[[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0], [3.0, 1.0, 0.0, 0.0]]]))
    assert measures.group_sizes(weights).tolist() == [[4.0, 1.0, pytest.approx(1 / (9 / 16 + 1 / 16))]]


def test_a_partition_that_cuts_where_detail_is_has_fine_regions_there():
    """A flat picture with one busy corner: the cuts of features gather in it, whatever the order."""
    pixels = torch.zeros(1, 3, 32, 32)
    pixels[:, :, :16, :16] = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    detail = measures.detail(pixels, 4)
    walk, position = order("hilbert", 8, 8)
    features = pixels.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(1, 64, -1)
    groups = partition(features[:, walk], 17, "gaps")[:, position]
    assert measures.size_detail(groups, detail).item() > 0.5
    sums = measures.fine_and_coarse(groups, detail)
    assert sums["fine_patches"].item() >= 15
    assert sums["coarse_patches"].item() >= 32


# The Lorenz curve.


def test_lorenz_by_hand():
    curve = measures.lorenz(torch.tensor([[1.0, 5.0, 0.0, 2.0]]))
    assert curve.tolist() == [[0, 5 / 8, 7 / 8, 1, 1]]
    assert measures.share_in_top(curve[0], 0.5) == 7 / 8
    assert measures.share_in_top(curve[0], 0.125) == 5 / 16
    assert measures.share_in_top(curve[0], 1.0) == 1
    assert measures.patches_for(curve[0], 5 / 16) == 0.125
    assert measures.patches_for(curve[0], 7 / 8) == 0.5
    assert (measures.patches_for(curve[0], 0.0), measures.patches_for(curve[0], 1.0)) == (0.0, 0.75)


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_detail_that_is_even_or_nowhere_is_the_diagonal(value):
    curve = measures.lorenz(torch.full((1, 8), value))
    assert curve[0].tolist() == pytest.approx([k / 8 for k in range(9)])


def test_detail_in_one_patch_is_all_in_the_first():
    assert measures.lorenz(torch.tensor([[0.0, 0.0, 9.0, 0.0]])).tolist() == [[0, 1, 1, 1, 1]]


# Fine and coarse, and the entropy of sizes.


def ratio_of(groups: torch.Tensor, detail: torch.Tensor) -> float | None:
    return measures.detail_ratio(measures.fine_and_coarse(groups, detail))


def test_detail_ratio_by_hand():
    """Two single patches of detail 6 and 2, sixteen patches of detail 0.5, and a pair that is neither."""
    groups = groups_of([0, 1] + [2] * 16 + [3, 3])
    detail = torch.tensor([[6.0, 2.0] + [0.5] * 16 + [100.0, 100.0]])
    assert ratio_of(groups, detail) == pytest.approx(4 / 0.5)
    assert ratio_of(groups_of([0] * 15 + [1]), torch.ones(1, 16)) is None  # 15 patches are not coarse
    assert ratio_of(groups_of([0] * 16), torch.ones(1, 16)) is None  # no region of one patch
    assert ratio_of(groups_of([0] * 16 + [1]), torch.tensor([[0.0] * 16 + [1.0]])) is None


def test_detail_ratio_of_several_images_is_that_of_all_their_patches():
    groups = torch.tensor([[0] * 16 + [1], [0] * 16 + [1]])
    detail = torch.tensor([[1.0] * 16 + [4.0], [3.0] * 16 + [8.0]])
    assert ratio_of(groups, detail) == pytest.approx(6 / 2)


def test_entropy_of_sizes_by_hand():
    """Half the patches in a region of four, a quarter in pairs of one size, a quarter alone: 1.5 bits."""
    assert measures.size_entropy(groups_of([0, 0, 0, 0, 1, 1, 2, 3])).item() == pytest.approx(1.5)
    # Three regions of two: one size, whatever their number.
    assert measures.size_entropy(groups_of([0, 0, 1, 1, 2, 2])).item() == 0
    uneven = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert measures.size_entropy(groups_of([0, 0, 0, 1])).item() == pytest.approx(uneven)


@pytest.mark.parametrize("budget", [1, 16, 256, 1024])
def test_regions_of_one_size_have_no_entropy(budget):
    assert measures.size_entropy(even_cuts(32, budget)).item() == 0
