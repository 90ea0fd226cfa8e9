"""Partition: exactly R runs by each of the three rules, whatever the features are."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from close import bound
from references import (
    PROPERTY,
    assert_refused,
    cuts_of,
    fixed_cuts,
    gap_cuts,
    merge_cuts,
    merge_heights,
    pieces,
    trained_like,
)
from rti.method.order import order
from rti.method.partition import RULES, fixed_regions, merge_ranked, partition

rules = st.sampled_from(list(RULES))
priors = st.sampled_from([0.0, 0.3, 0.5, 1.0])
FEW_VALUES = range(3)  # many ties
MANY_VALUES = range(-300, 301)  # few ties; squared distances are exact in float32, and so are which of two is larger
NOT_FINITE = [*range(10), 1e30, math.inf, -math.inf, math.nan]


@st.composite
def batches(draw, *pools, most=40):
    """(B, N, d) features with values from one of the pools, and a budget for them."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, most), st.integers(1, 3)))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    features = generator.choice(np.array(draw(st.sampled_from(pools)), dtype=np.float32), shape)
    return torch.from_numpy(features), draw(st.integers(1, shape[1]))


def assert_exact(regions: torch.Tensor, budget: int) -> None:
    """Each row counts from 0 to budget - 1 without a gap, so it has exactly `budget` runs."""
    assert regions.dtype == torch.int64
    assert (regions[:, 0] == 0).all()
    assert (regions[:, -1] == budget - 1).all()
    steps = regions.diff(dim=1)
    assert ((steps == 0) | (steps == 1)).all()


def one_by_one(features: torch.Tensor, *arguments) -> torch.Tensor:
    return torch.cat([partition(image[None], *arguments) for image in features])


@PROPERTY
@given(batches(FEW_VALUES, MANY_VALUES), rules, priors)
def test_every_rule_gives_exactly_the_budget(batch, rule, size_prior):
    features, budget = batch
    regions = partition(features, budget, rule, size_prior)
    assert regions.shape == features.shape[:2]
    assert_exact(regions, budget)


@PROPERTY
@given(batches(NOT_FINITE), rules, priors)
def test_features_that_are_not_finite_still_give_exactly_the_budget(batch, rule, size_prior):
    features, budget = batch
    assert_exact(partition(features, budget, rule, size_prior), budget)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("patches", [1, 2, 3, 7, 16, 31, 64])
@pytest.mark.parametrize("value", [0.0, 1.5, float("nan"), float("inf")])
def test_features_that_say_nothing_give_exactly_every_budget(rule, patches, value):
    features = torch.full((2, patches, 3), value)
    for budget in range(1, patches + 1):
        assert_exact(partition(features, budget, rule), budget)


@pytest.mark.parametrize("rule", RULES)
def test_one_region_is_everything_and_as_many_regions_as_patches_are_the_patches(rule):
    features = trained_like(1, 5, 7)[None].repeat(2, 1, 1)
    assert torch.equal(partition(features, 1, rule), torch.zeros(2, 35, dtype=torch.int64))
    assert torch.equal(partition(features, 35, rule), torch.arange(35).expand(2, -1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size_prior", [0.0, 0.5])
def test_each_image_of_a_batch_has_cuts_of_its_own(rule, size_prior):
    features = torch.stack([trained_like(seed) for seed in range(5)])
    for budget in (2, 17, 64, 200):
        regions = partition(features, budget, rule, size_prior)
        assert torch.equal(regions, one_by_one(features, budget, rule, size_prior))
        distinct = len({tuple(row) for row in regions.tolist()})
        assert distinct == (1 if rule == "fixed" else 5)


@PROPERTY
@given(batches(FEW_VALUES), rules, priors)
def test_ties_are_decided_in_a_batch_as_alone(batch, rule, size_prior):
    features, budget = batch
    assert torch.equal(partition(features, budget, rule, size_prior), one_by_one(features, budget, rule, size_prior))


@PROPERTY
@given(batches(NOT_FINITE), rules)
def test_an_image_that_is_not_finite_is_cut_in_a_batch_as_alone(batch, rule):
    features, budget = batch
    assert torch.equal(partition(features, budget, rule), one_by_one(features, budget, rule))


@PROPERTY
@given(batches(FEW_VALUES, MANY_VALUES))
def test_gaps_cuts_at_the_largest_distances_and_prefers_the_earlier(batch):
    features, budget = batch
    for image, regions in zip(features, partition(features, budget, "gaps"), strict=True):
        assert cuts_of(regions) == gap_cuts(image, budget)


@PROPERTY
@given(st.integers(1, 3), st.integers(1, 3072), st.data())
def test_fixed_spaces_its_cuts_evenly_and_needs_no_features(images, patches, data):
    budget = data.draw(st.integers(1, patches))
    regions = partition(torch.zeros(images, patches, 1), budget, "fixed")
    assert torch.equal(regions, fixed_regions(images, patches, budget, torch.device("cpu")))
    for row in regions:
        assert cuts_of(row) == fixed_cuts(patches, budget)


@pytest.mark.parametrize("size_prior", [0.0, 0.5])
@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_merge_cuts_where_the_rounds_say_with_ties(repeats, size_prior):
    """Every image of four values among three, each repeated: all that is compared is exact in float32 as in float64."""
    features = torch.cartesian_prod(*[torch.arange(3.0)] * 4).repeat_interleave(repeats, dim=1)[..., None]
    heights = [merge_heights(image, size_prior)[0] for image in features]
    for budget in range(1, 4 * repeats + 1):
        regions = partition(features, budget, "merge", size_prior)
        assert [cuts_of(row) for row in regions] == [merge_cuts(image, budget) for image in heights]


@pytest.mark.parametrize("size_prior", [0.0, 0.3, 0.5])
def test_merge_cuts_where_the_rounds_say(size_prior):
    features = torch.stack([trained_like(seed, 7, 9) for seed in range(2, 10)])
    heights, closest = zip(*(merge_heights(image, size_prior) for image in features), strict=True)
    assert min(closest) > bound(features)
    for budget in range(1, 64):
        regions = partition(features, budget, "merge", size_prior)
        assert [cuts_of(row) for row in regions] == [merge_cuts(image, budget) for image in heights]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_cut_as_its_float32_copy(rule, dtype):
    """Distances in half precision would tie by the dozen."""
    features = torch.stack([trained_like(seed) for seed in range(3)]).to(dtype)
    for budget in (2, 64, 255):
        assert torch.equal(partition(features, budget, rule, 0.5), partition(features.float(), budget, rule, 0.5))


@PROPERTY
@given(st.integers(1, 48), st.integers(1, 64), rules, st.data())
def test_every_region_along_hilbert_is_connected_on_any_grid(height, width, rule, data):
    patches = height * width
    budget = data.draw(st.integers(1, patches))
    features = torch.randn(1, patches, 2, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 2**32))))
    walk, position = order("hilbert", height, width)
    regions = partition(features[:, walk], budget, rule)[0, position].tolist()
    members = [set() for _ in range(budget)]
    for patch, region in enumerate(regions):
        members[region].add(patch)
    assert all(pieces(member, width) == 1 for member in members)


def test_regions_along_raster_are_not_connected():
    """The check above can fail."""
    assert pieces({3, 4}, width=4) == 2


@pytest.mark.parametrize("rule", RULES)
def test_the_features_stay_as_they_are(rule):
    features = trained_like(1)[None]
    before = features.clone()
    partition(features, 64, rule, 0.5)
    assert torch.equal(features, before)


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_a_compiler_may_hold_the_merge_as_one_operation(budget):
    """The shape and type promised to torch.compile are the real ones."""
    torch.library.opcheck(merge_ranked, (torch.randn(2, 5, 3), budget, 0.5))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("budget", [0, -1, 6])
def test_a_budget_that_does_not_fit_is_refused(rule, budget):
    """Without a check there would silently be another number of regions than asked for."""
    assert_refused(lambda: partition(torch.zeros(1, 5, 2), budget, rule), str(budget), "5")


def test_an_unknown_rule_is_refused():
    assert_refused(lambda: partition(torch.zeros(1, 5, 2), 2, "gap"), "'gap'", "gaps, merge, fixed")
