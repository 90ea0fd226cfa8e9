"""Guidance in one pass: the scale is a token, a guided step asks once, and what it learns is the guided image."""

import pytest
import torch

import rti
from rti.adapter import load_weights
from rti.method.budgets import Budgets
from rti.sampling import guide
from rti.training.adapt import Adapting
from rti.training.distillation import Distillation
from rti.training.draws import Dial
from rti.training.trajectories import FIRST
from test_adapt import SUBJECTS, adapting, region, settings
from test_trainer import assert_equal
from tiny import make_backbone, make_condition, make_inputs, refused

SCALES = (1.5, 7.0)


def model_of(family: str, **changes) -> rti.ElasticModel:
    torch.manual_seed(0)
    return rti.attach(make_backbone(family), region(one_pass=SCALES, **changes))


class Counted:
    """The batch sizes that a model's blocks are run with."""

    def __init__(self, model: rti.ElasticModel):
        self.sizes = []
        model.register_forward_pre_hook(lambda module, inputs: self.sizes.append(len(inputs[0])))


def draw(model, steps: int = 4, **how) -> torch.Tensor:
    x, _, condition = make_inputs(model.backbone)
    return rti.sample(model, x, condition, steps=steps, solver="euler", budget=16, **how)


def test_a_guided_step_is_one_pass_of_the_pictures_alone(family):
    model = model_of(family)
    counted = Counted(model)
    draw(model, guidance_scale=3.0)
    assert counted.sizes == [2] * 4
    counted.sizes.clear()
    draw(model, guidance_scale=3.0, guidance_passes=2)
    plain = 1 if family == "jit" else 0  # its guidance begins after t = 0.1
    assert counted.sizes == [2] * plain + [4] * (4 - plain)
    counted.sizes.clear()
    draw(model, guidance_scale=9.0)  # a scale it has not learned
    assert max(counted.sizes) == 4


def test_without_a_scale_there_is_no_token(family):
    """As many fresh regions as patches are still the backbone, and unguided pictures those of a model without it."""
    model = model_of(family)
    x, t, condition = make_inputs(model.backbone)
    with model.dense() as frozen:
        expected = frozen(x, t, condition)
    torch.testing.assert_close(model(x, t, condition), expected, rtol=1e-5, atol=1e-5)
    unguided = draw(model, guidance_scale=1.0)
    assert torch.equal(unguided, draw(rti.attach(make_backbone(family), region()), guidance_scale=1.0))


def test_the_scale_matters_and_each_picture_has_its_own(family):
    """The token reaches the image; a picture's scale is its own, whatever the rest of its batch is given."""
    model = model_of(family)
    x, t, condition = make_inputs(model.backbone)

    def clean(*scales: float) -> torch.Tensor:
        return model(x, t, model.prepare(condition, guidance=torch.tensor(scales)), budget=16)

    with torch.no_grad():
        first, second, mixed = clean(2.0, 2.0), clean(6.0, 6.0), clean(2.0, 6.0)
    assert (first - second).abs().max() > 1e-5
    torch.testing.assert_close(mixed, torch.stack([first[0], second[1]]), rtol=1e-5, atol=1e-6)


def test_outside_of_the_interval_a_step_is_not_guided():
    """JiT's begins at 0.1: the first step is the conditional branch alone, without the token."""
    model = model_of("jit")
    x, _, condition = make_inputs(model.backbone)
    seen = []
    rti.sample(
        model, x, condition, steps=4, solver="euler", budget=16, guidance_scale=3.0,
        callback=lambda step, state, estimate: seen.append(estimate) or None,
    )  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(seen[0], model(x, 0.0, condition, budget=16), rtol=1e-5, atol=1e-5)


def test_it_goes_with_text_regions():
    model = model_of("minit2i", text_regions=True)
    condition = make_condition(model.backbone, 2)
    prepared = model.prepare(condition, 3, torch.tensor([3.0, 3.0]))
    assert prepared.stream.shape[1] == prepared.phasors.shape[1] == 4
    assert draw(model, guidance_scale=3.0, text_budget=3).isfinite().all()


@torch.no_grad()
def test_the_target_is_what_guidance_makes_of_both_branches(tmp_path, family):
    """At each picture's own scale, where guidance applies."""
    run = adapting(tmp_path, family, guidance="2..4", time_mean=-2.0)
    task = Distillation(run.config, run.model, SUBJECTS[family], run.encoder)
    task.pictures.draw_until(24)
    lessons, dial = task.examples(0, range(64), Dial(16, blind=False, guided=True))
    with run.model.dense() as frozen:
        unconditional = frozen.unconditional(lessons.condition)
        branches = [frozen(lessons.x, lessons.t, one) for one in (lessons.condition, unconditional)]
    assert (lessons.t.min() > 0.1) == (family == "jit")  # before, a JiT is not guided
    assert lessons.scale.unique().numel() >= 12 and lessons.scale.min() >= 2
    target = guide(torch.cat(branches), lessons.scale.view(-1, 1, 1, 1))
    torch.testing.assert_close(lessons.clean, target, rtol=5e-3, atol=2e-2)
    prepared = run.model.prepare(lessons.condition, guidance=lessons.scale)
    clean = run.model(lessons.x, lessons.t, prepared, 16, lessons.estimate)
    run.model.requires_grad_(False)
    task.module.features, task.module.balanced = 0.0, False
    error = (clean - lessons.clean) / (1 - lessons.t).clamp_min(0.05).view(-1, 1, 1, 1)
    torch.testing.assert_close(task.module(lessons, dial), error.square().flatten(1).mean(dim=1), rtol=1e-3, atol=1e-6)


def test_a_student_learns_to_guide_itself(tmp_path, family):
    """One pass comes nearer to the teacher's two, on the pictures it is trained on."""
    run = adapting(tmp_path / "guided", family, guidance="2..4", steps=60, learning_rate=3e-3, reuse=1000)
    assert run.model.config.one_pass == (2.0, 4.0)
    other = Distillation(run.config, run.model, SUBJECTS[family], run.encoder)
    other.pictures.draw_until(FIRST)
    scales = other.pictures.kept["scales"]
    assert scales.min() >= 2 and scales.max() <= 4 and scales.unique().numel() > 2
    other.module.features, other.module.balanced = 0.0, False

    def loss() -> float:
        with torch.no_grad():
            return float(other.module(*other.examples(0, range(12), Dial(16, False, guided=True))).mean())

    fresh = loss()
    run.run()
    assert loss() < 0.7 * fresh


def test_an_adapter_keeps_what_it_has_learned_and_may_begin_from_one_without(tmp_path, family):
    model = model_of(family)
    model.save_pretrained(tmp_path / "one")
    again = rti.load(tmp_path / "one", make_backbone(family))
    assert again.config.one_pass == SCALES and again.guides_itself(3.0) and not again.guides_itself(8.0)
    assert_equal(dict(again.reduction.state_dict()), dict(model.reduction.state_dict()))
    rti.attach(make_backbone(family), region()).save_pretrained(tmp_path / "without")
    fresh = dict(model_of(family).reduction.guidance.state_dict())
    start = model_of(family)
    load_weights(start, tmp_path / "without")
    assert_equal(dict(start.reduction.guidance.state_dict()), fresh)


def test_what_a_model_cannot_is_refused():
    plain = rti.attach(make_backbone("jit"), region())
    with refused("guidance_passes 1", "learned none"):
        draw(plain, guidance_scale=3.0, guidance_passes=1)
    with refused("guidance_passes 1", "1.5 to 7"):
        draw(model_of("jit"), guidance_scale=8.0, guidance_passes=1)
    with refused("guidance_passes", "3"):
        Budgets(16, passes=3)
    with refused("rti adapt --guidance"):
        plain.prepare(make_condition(plain.backbone, 2), guidance=torch.tensor([3.0, 3.0]))
    with refused("takes no token"):
        model = rti.attach(make_backbone("jit", in_context_len=0), region(one_pass=SCALES))
        model.prepare(make_condition(model.backbone, 2), guidance=torch.tensor([3.0, 3.0]))


def test_a_model_that_cannot_is_refused_before_the_closed_form(tmp_path):
    backbone = make_backbone("jit", in_context_len=0)
    with refused("takes no token"):
        Adapting(settings(tmp_path, guidance="2..3"), region(one_pass=(2.0, 3.0)), backbone, None, [1, 2])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", ["7..1.5", "a..b", "0.5..2", "1..2..3", "inf", "1.5.."])
def test_scales_that_are_none_are_refused(tmp_path, given):
    with refused("guidance"):
        settings(tmp_path, guidance=given)


def test_a_range_asks_for_one_pass_and_a_number_does_not(tmp_path):
    assert settings(tmp_path, guidance="1.5..7").one_pass == (1.5, 7.0)
    assert settings(tmp_path, guidance="3").one_pass is None and settings(tmp_path, guidance="3").scales == (3.0, 3.0)
    assert settings(tmp_path).scales is None
