"""Read: pooled features, sizes and positions of any regions, against plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from close import assert_close, bound
from references import PROPERTY, mean_phasors, random_regions, read
from rti.backbones.layers import grid_angles
from rti.backbones.layers import phasors as as_phasors
from rti.method.read import Read, average_phasors, floor_log2, membership


def random_read(hidden_size: int, patches: int, generator: torch.Generator) -> Read:
    module = Read(hidden_size, patches)
    with torch.no_grad():
        module.score.normal_(generator=generator)
        module.size_embedding.normal_(generator=generator)
    return module


@PROPERTY
@given(random_regions())
def test_every_patch_is_a_member_of_its_region_alone(case):
    member = membership(case.regions, case.budget)
    assert member.dtype == torch.bool
    assert member.shape == (len(case.regions), case.budget, case.patches)
    for image, regions in zip(member.tolist(), case.regions.tolist(), strict=True):
        for region, row in enumerate(image):
            assert row == [own == region for own in regions]


@PROPERTY
@given(random_regions(), st.integers(1, 8))
def test_region_tokens_are_those_of_plain_loops(case, hidden_size):
    module = random_read(hidden_size, case.patches, case.generator)
    patches = torch.randn(len(case.regions), case.patches, hidden_size, generator=case.generator)
    tokens = module(patches, membership(case.regions, case.budget))
    expected = read(patches, case.regions, case.budget, module.score, module.size_embedding)
    assert_close(tokens, expected, patches, module.size_embedding)


@PROPERTY
@given(random_regions())
def test_large_scores_neither_overflow_nor_lose_precision(case):
    """Scores to about 200 in both directions, exact in float32, so that only the softmax is put to the test."""
    module = random_read(4, case.patches, case.generator)
    shape = (len(case.regions), case.patches, 4)
    patches = torch.randint(-8, 9, shape, generator=case.generator) / 8
    with torch.no_grad():
        module.score.copy_(torch.tensor([50.0, -50.0, 50.0, -50.0]))
    tokens = module(patches, membership(case.regions, case.budget))
    expected = read(patches, case.regions, case.budget, module.score, module.size_embedding)
    assert_close(tokens, expected, patches, module.size_embedding)
    tokens.sum().backward()
    assert module.score.grad.isfinite().all()


@PROPERTY
@given(random_regions(every_patch=True), st.integers(1, 8))
def test_with_fresh_parameters_a_region_of_one_patch_is_that_patch(case, hidden_size):
    patches = torch.randn(len(case.regions), case.patches, hidden_size, generator=case.generator)
    tokens = Read(hidden_size, case.patches)(patches, membership(case.regions, case.patches))
    back = tokens.gather(1, case.regions[:, :, None].expand(-1, -1, hidden_size))
    assert torch.equal(back, patches)


def test_with_fresh_parameters_a_region_is_the_mean_of_its_patches():
    patches = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(0))
    regions = torch.tensor([[0, 1, 0, 1, 1, 0]])
    tokens = Read(5, 6)(patches, membership(regions, 2))
    expected = torch.stack([patches[0, [0, 2, 5]].mean(dim=0), patches[0, [1, 3, 4]].mean(dim=0)])
    assert_close(tokens[0], expected)


def test_gradients_reach_the_score_the_sizes_that_occur_and_the_patches():
    generator = torch.Generator().manual_seed(0)
    module = random_read(5, 9, generator)
    patches = torch.randn(2, 9, 5, generator=generator, requires_grad=True)
    regions = torch.tensor([[0, 0, 0, 0, 0, 0, 0, 0, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1]])  # sizes 8 and 1
    (module(patches, membership(regions, 2)) * torch.randn(5, generator=generator)).sum().backward()
    for gradient in (module.score.grad, module.size_embedding.grad, patches.grad):
        assert gradient.isfinite().all()
    assert module.score.grad.ne(0).all()
    assert patches.grad.ne(0).all()
    assert module.size_embedding.grad.ne(0).all(dim=1).tolist() == [True, False, False, True]


def test_bfloat16_gives_bfloat16_near_the_float32_result():
    generator = torch.Generator().manual_seed(0)
    module = random_read(8, 64, generator)
    patches = torch.randn(2, 64, 8, generator=generator).bfloat16()
    member = membership(torch.arange(64).repeat(2, 1) // 5, 13)
    tokens = module(patches, member)
    assert tokens.dtype == torch.bfloat16
    torch.testing.assert_close(tokens.float(), module(patches.float(), member), rtol=0, atol=0.05)


@pytest.mark.parametrize("patches", [1, 2, 3, 4, 63, 64, 65, 256, 1024, 3072])
def test_there_is_a_size_embedding_for_every_size_that_can_occur_and_no_more(patches):
    assert len(Read(4, patches).size_embedding) == math.floor(math.log2(patches)) + 1


def test_the_logarithm_of_a_size_is_exact():
    sizes = torch.arange(1, 4097)
    expected = [size.bit_length() - 1 for size in range(1, 4097)]
    assert floor_log2(sizes, 13).tolist() == expected
    for largest in (1, 2, 3, 7, 8, 9, 1024, 3072):
        assert floor_log2(sizes[:largest], largest.bit_length()).tolist() == expected[:largest]


def grid_phasors(height: int, width: int) -> torch.Tensor:
    """(1, N, 16): four frequencies per axis, [cos | sin]."""
    return as_phasors(grid_angles((height, width), 16)).float()


@PROPERTY
@given(random_regions())
def test_a_regions_position_is_the_mean_phasor_of_its_patches(case):
    phasors = grid_phasors(case.height, case.width)
    positions = average_phasors(phasors, membership(case.regions, case.budget))
    assert positions.dtype == torch.float32
    expected = mean_phasors(phasors[0], case.regions, case.budget)
    assert_close(positions, expected)
    cosine, sine = positions.chunk(2, dim=-1)
    assert (cosine.square() + sine.square()).max() < 1 + bound(torch.ones(1))


@PROPERTY
@given(random_regions(every_patch=True))
def test_the_position_of_one_patch_is_its_phasor(case):
    phasors = grid_phasors(case.height, case.width)
    positions = average_phasors(phasors, membership(case.regions, case.patches))
    for regions, image in zip(case.regions, positions, strict=True):
        assert torch.equal(image[regions], phasors[0])


def test_each_image_may_bring_phasors_of_its_own():
    phasors = torch.cat([grid_phasors(2, 3), grid_phasors(3, 2)])
    member = membership(torch.tensor([[0, 0, 1, 1, 1, 0]]).repeat(2, 1), 2)
    positions = average_phasors(phasors, member)
    for image in range(2):
        assert torch.equal(positions[image], average_phasors(phasors[image : image + 1], member[:1])[0])
    assert not torch.equal(positions[0], positions[1])


def test_a_position_shrinks_at_wavelengths_below_the_region_and_stays_at_those_above():
    """A row of 64 patches as one region: the fastest phasor averages out, the slowest hardly changes."""
    angles = grid_angles((1, 64), 16)
    cosine, sine = average_phasors(grid_phasors(1, 64), torch.ones(1, 1, 64, dtype=torch.bool)).chunk(2, dim=-1)
    modulus = (cosine.square() + sine.square()).sqrt()[0, 0]
    along_columns = angles[0, 1, 4:]  # the angle from one column to the next
    assert along_columns[0] == 1.0
    assert modulus[4] < 0.05
    assert along_columns[-1] < 0.002
    assert modulus[-1] > 0.998
