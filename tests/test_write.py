"""Write: every patch moves by a linear map of itself and its region's change."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from close import assert_close
from references import PROPERTY, Case, random_regions, write
from rti.method.write import Write


def random_inputs(case: Case, hidden_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, N, D) patches and (B, R, D) change of their regions."""
    sizes = (case.patches, case.budget)
    return tuple(torch.randn(len(case.regions), size, hidden_size, generator=case.generator) for size in sizes)


def random_write(hidden_size: int, generator: torch.Generator) -> Write:
    module = Write(hidden_size)
    with torch.no_grad():
        module.g.weight.normal_(generator=generator)
        module.g.bias.normal_(generator=generator)
    return module


@PROPERTY
@given(random_regions(), st.integers(1, 8))
def test_patches_are_those_of_plain_loops(case, hidden_size):
    module = random_write(hidden_size, case.generator)
    patches, change = random_inputs(case, hidden_size)
    written = module(patches, change, case.regions)
    expected = write(patches, change, case.regions, module.g.weight, module.g.bias)
    gain = 1 + module.g.weight.abs().sum(dim=1).max().item()
    assert_close(written, expected, patches, change, module.g.bias, gain=gain)


@PROPERTY
@given(random_regions(), st.integers(1, 8))
def test_with_fresh_parameters_each_patch_moves_exactly_as_its_region(case, hidden_size):
    patches, change = random_inputs(case, hidden_size)
    written = Write(hidden_size)(patches, change, case.regions)
    for image in range(len(patches)):
        assert torch.equal(written[image], patches[image] + change[image, case.regions[image]])


def test_without_a_change_fresh_parameters_leave_the_patches_alone():
    patches = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    regions = torch.tensor([[0, 1, 0, 1, 1, 0]]).repeat(2, 1)
    assert torch.equal(Write(5)(patches, torch.zeros(2, 2, 5), regions), patches)


def test_g_starts_as_zero_for_the_patch_and_identity_for_the_change():
    g = Write(3).g
    assert torch.equal(g.weight, torch.cat([torch.zeros(3, 3), torch.eye(3)], dim=1))
    assert torch.equal(g.bias, torch.zeros(3))
    assert [name for name, _ in Write(3).named_parameters()] == ["g.weight", "g.bias"]


def test_gradients_reach_g_the_patches_and_the_change():
    generator = torch.Generator().manual_seed(0)
    module = Write(4)
    patches = torch.randn(2, 6, 4, generator=generator, requires_grad=True)
    change = torch.randn(2, 3, 4, generator=generator, requires_grad=True)
    written = module(patches, change, torch.tensor([[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2]]))
    (written * torch.randn(4, generator=generator)).sum().backward()
    for gradient in (module.g.weight.grad, module.g.bias.grad, patches.grad, change.grad):
        assert gradient.isfinite().all()
        assert gradient.ne(0).all()


@pytest.mark.parametrize("fresh", [True, False])
def test_bfloat16_gives_bfloat16_near_the_float32_result(fresh):
    generator = torch.Generator().manual_seed(0)
    module = Write(8) if fresh else random_write(8, generator)
    patches = torch.randn(2, 64, 8, generator=generator).bfloat16()
    change = torch.randn(2, 13, 8, generator=generator).bfloat16()
    regions = torch.arange(64).repeat(2, 1) // 5
    written = module(patches, change, regions)
    expected = module(patches.float(), change.float(), regions)
    assert written.dtype == torch.bfloat16
    torch.testing.assert_close(written.float(), expected, rtol=0, atol=0.004 * expected.abs().max().item())


def test_a_map_by_size_adds_the_more_the_larger_the_region():
    """Region 0 has one patch of the four, so g alone; region 1 has three, so log_4(3) of h as well."""
    generator = torch.Generator().manual_seed(0)
    module = Write(3, patches=4)
    assert [name for name, _ in module.named_parameters()] == ["g.weight", "g.bias", "h.weight", "h.bias"]
    patches, change = torch.randn(1, 4, 3, generator=generator), torch.randn(1, 2, 3, generator=generator)
    regions = torch.tensor([[1, 0, 1, 1]])
    assert torch.equal(module(patches, change, regions), patches + change[:, regions[0]])  # fresh: as without h
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    written = module(patches, change, regions)
    by_g = write(patches, change, regions, module.g.weight, module.g.bias)
    by_h = write(patches, change, regions, module.h.weight, module.h.bias) - patches
    share = torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None] * math.log(3) / math.log(4)
    assert_close(written, by_g + share * by_h, patches, change, gain=20)


def test_correcting_adds_a_map_of_the_features():
    generator = torch.Generator().manual_seed(0)
    for module in (Write(3), Write(3, patches=4)):
        patches, change = torch.randn(1, 4, 3, generator=generator), torch.randn(1, 2, 3, generator=generator)
        regions = torch.tensor([[1, 0, 1, 1]])
        features, before = module.features(patches, change, regions), module(patches, change, regions)
        solution = torch.randn(features.shape[-1], 3, generator=generator)
        module.correct(solution)
        assert_close(module(patches, change, regions), before + features @ solution, patches, change, gain=40)
