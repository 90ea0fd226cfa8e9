"""Text regions: the text stream as few tokens, and guidance at a budget of its own."""

from itertools import pairwise

import pytest
import torch

import rti
from close import assert_close
from rti.method.text_regions import TextRegions
from rti.training.config import TrainConfig
from rti.training.draws import Dial, DrawSettings, draw
from rti.training.objectives import ElasticObjective
from tiny import CORE, make_backbone, make_condition, make_inputs, randomise_trainable, refused

LENGTH = 6  # text tokens of the tiny model


def make_model(**changes) -> rti.ElasticModel:
    config = rti.RegionConfig(core=CORE, text_regions=True, **changes)
    return rti.attach(make_backbone("minit2i"), config).eval()


# What a region of text is.


@torch.no_grad()
def test_as_many_regions_as_tokens_with_fresh_parameters_leave_the_text_as_it_is():
    model = make_model()
    condition = model.prepare(make_condition(model.backbone, 3))
    same = model.prepare(condition, text_budget=LENGTH)
    assert_close(same.stream, condition.stream)
    assert_close(same.phasors, condition.phasors)
    x, t, condition = make_inputs(model.backbone)
    full, all_regions = model(x, t, condition), model(x, t, condition, text_budget=LENGTH)
    assert_close(all_regions, full)


@torch.no_grad()
@pytest.mark.parametrize("budget", range(1, LENGTH + 1))
def test_regions_are_runs_of_neighbours_cut_at_the_largest_gaps_and_read_to_their_mean(budget):
    """With fresh parameters Read is the mean; brute force over the gaps gives the runs."""
    model = make_model()
    condition = model.prepare(make_condition(model.backbone, 2))
    shorter = model.prepare(condition, text_budget=budget)
    assert shorter.stream.shape == (2, budget, 32)
    assert shorter.phasors.shape == (2, budget, 16)
    for image, stream in enumerate(condition.stream):
        gaps = [(stream[i + 1] - stream[i]).norm().item() for i in range(LENGTH - 1)]
        cuts = sorted(sorted(range(LENGTH - 1), key=lambda i: -gaps[i])[: budget - 1])
        edges = [0, *(cut + 1 for cut in cuts), LENGTH]
        for region, (first, last) in enumerate(pairwise(edges)):
            assert_close(shorter.stream[image, region], stream[first:last].mean(dim=0))
            phasor = condition.phasors[image, first:last].mean(dim=0)
            assert_close(shorter.phasors[image, region], phasor)


@torch.no_grad()
def test_the_text_budget_may_be_a_share():
    model = make_model()
    condition = make_condition(model.backbone, 2)
    half, three = (model.prepare(condition, text_budget=budget) for budget in (0.5, 3))
    assert torch.equal(half.stream, three.stream)


@torch.no_grad()
def test_a_prompt_does_not_depend_on_its_batch():
    model = randomise_trainable(make_model())
    condition = model.prepare(make_condition(model.backbone, 4))
    together = model.prepare(condition, text_budget=3)
    for row in range(4):
        alone = model.prepare(condition[row : row + 1], text_budget=3)
        assert_close(together.stream[row], alone.stream[0])


def test_text_regions_have_parameters_of_their_own_and_only_where_asked_for():
    plain = rti.attach(make_backbone("minit2i"), rti.RegionConfig(core=CORE))
    with_text = make_model()
    added = set(with_text.trainable_parameters()) - set(plain.trainable_parameters())
    assert added == {"reduction.text.read.score", "reduction.text.read.size_embedding"}
    assert with_text.trainable_parameters()["reduction.text.read.size_embedding"].shape == (3, 32)


def test_an_adapter_with_text_regions_comes_back_as_it_was_saved(tmp_path):
    model = randomise_trainable(make_model())
    x, t, condition = make_inputs(model.backbone)
    with torch.no_grad():
        before = model(x, t, condition, budget=20, text_budget=2)
    model.save_pretrained(tmp_path)
    loaded = rti.load(tmp_path, make_backbone("minit2i"))
    with torch.no_grad():
        assert torch.equal(loaded(x, t, condition, budget=20, text_budget=2), before)
    assert loaded.config.text_regions


def test_what_cannot_be_shortened_is_refused():
    with refused("text_regions", "JiT"):
        rti.attach(make_backbone("jit"), rti.RegionConfig(core=CORE, text_regions=True))
    with refused("text_regions", "maybe"):
        rti.RegionConfig(core=CORE, text_regions="maybe")
    plain = rti.attach(make_backbone("minit2i"), rti.RegionConfig(core=CORE))
    condition = make_condition(plain.backbone, 1)
    with refused("text_budget 3", "text_regions=True"):
        plain.prepare(condition, text_budget=3)
    model = make_model()
    for budget in (0, LENGTH + 1, 1.5):
        with refused(f"text budget {budget}", f"1 to {LENGTH}"):
            model.prepare(condition, text_budget=budget)
    with refused("no budget"):
        rti.sample(make_backbone("minit2i"), torch.randn(1, 3, 32, 32), condition, steps=1, text_budget=3)


# In training.


def test_every_text_budget_is_drawn_and_the_full_text_as_often_as_told():
    generator = torch.Generator().manual_seed(0)
    texts = dict(text_budgets=(2, 3), full_text=0.25)
    config = TrainConfig(model="m", output="o", data="d", steps=1, budgets=(8, 16), **texts)
    drawn = [Dial.draw(config, generator).text_budget for _ in range(2000)]
    assert set(drawn) == {None, 2, 3}
    assert abs(drawn.count(None) / 2000 - 0.25) < 0.04
    assert abs(drawn.count(2) / 2000 - 0.375) < 0.04


def test_the_interface_of_the_text_learns():
    model = make_model(cuts="merge", cuts_from="estimate")
    images = torch.rand(2, 3, 32, 32) * 2 - 1
    draws = draw((3, 32, 32), 0, 0, range(2), DrawSettings(drop=0.0))
    condition = make_condition(model.backbone, 2)
    objective = ElasticObjective(model, 8)
    objective(images, condition, draws, Dial(16, False, 3)).mean().backward()
    text = model.reduction.text
    assert isinstance(text, TextRegions)
    assert text.read.size_embedding.grad.abs().sum() > 0
    assert text.read.score.grad.abs().sum() > 0


# In sampling.


def draw_pictures(model, **options) -> torch.Tensor:
    noise = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return rti.sample(model, noise, make_condition(model.backbone, 2), steps=4, guidance_scale=3.0, **options)


def test_a_sampler_shortens_the_text_of_both_branches_once():
    """The run is the same as one whose two conditions were shortened by hand."""
    model = randomise_trainable(make_model())
    calls = []
    model.reduction.text.register_forward_hook(lambda _, inputs, output: calls.append(output.stream.shape[1]))
    pictures = draw_pictures(model, budget=16, text_budget=3)
    assert calls == [3, 3]
    assert not torch.allclose(pictures, draw_pictures(model, budget=16), atol=1e-3)


@pytest.mark.parametrize("cuts_from", ["features", "estimate"])
def test_guidance_is_the_formula_on_two_passes(cuts_from):
    """One step by hand: clean = s c(R) - (s - 1) u(R)."""
    model = randomise_trainable(make_model(cuts="merge", cuts_from=cuts_from))
    noise = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    condition = make_condition(model.backbone, 2)
    with torch.no_grad():
        conditional = model(noise, 0.0, condition, budget=32)
        unconditional = model(noise, 0.0, model.unconditional(condition), budget=32)
    seen = []
    rti.sample(
        model,
        noise,
        condition,
        steps=4,
        guidance_scale=3.0,
        budget=32,
        callback=lambda step, state, estimate: seen.append(estimate),
    )
    assert_close(seen[0], 3.0 * conditional - 2.0 * unconditional, gain=5)


def test_a_budget_of_guidance_alone_is_gone():
    with pytest.raises(rti.InputError, match=r"guidance_budget is gone, .*both branches have the budget"):
        draw_pictures(make_model(), budget=16, guidance_budget=8)
    with pytest.raises(TypeError):
        rti.Budgets(16, 8)  # which was that of guidance, and is not to be taken for the text's
