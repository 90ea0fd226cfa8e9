"""The parts of elastic training: settings, draws, the moving average, the objective."""

from dataclasses import dataclass

import pytest
import torch

import rti
from rti.parsing import convert_stored, parse_pairs
from rti.training.config import TrainConfig
from rti.training.draws import Dial, DrawSettings, draw
from rti.training.objectives import ElasticObjective
from rti.training.settings import check_unchanged
from rti.training.state import save_checkpoint
from rti.training.trainer import MovingAverage
from tiny import make_backbone, make_condition, refused

SHAPE = (3, 32, 32)


@dataclass
class Settings:
    steps: int = 3
    rate: float = 0.1
    flip: bool = False
    budgets: tuple[int, ...] = (1, 2)
    core: tuple[int, int] | None = None
    name: str | None = None


def test_settings_are_converted_by_their_types():
    pairs = ["steps=5", "rate=2e-3", "flip=yes", "budgets=4,8,16", "core=3,13", "name=none"]
    expected = {"steps": 5, "rate": 2e-3, "flip": True, "budgets": (4, 8, 16), "core": (3, 13), "name": None}
    assert parse_pairs(pairs, Settings) == expected
    assert convert_stored({"budgets": [4, 8], "flip": False}, Settings) == {"budgets": (4, 8), "flip": False}


@pytest.mark.parametrize(
    ("pair", "fragments"),
    [
        ("stepz=5", ("stepz", "steps")),
        ("steps=five", ("steps", "'five'", "int")),
        ("steps", ("'steps'", "name=value")),
        ("budgets=4,x", ("budgets", "4,x")),
    ],
)
def test_settings_that_are_none_are_refused(pair, fragments):
    with refused(*fragments):
        parse_pairs([pair], Settings)


def test_a_run_keeps_its_settings_but_for_the_free_ones(tmp_path):
    (tmp_path / "config.json").write_text('{"seed": 1, "core": [3, 13], "steps": 4}')
    check_unchanged(tmp_path, {"seed": 2, "core": (3, 12), "steps": 4})  # without a checkpoint it is not begun
    save_checkpoint(tmp_path, 1, {"weight": torch.ones(1)}, {}, keep=1)
    check_unchanged(tmp_path, {"seed": 1, "core": (3, 13), "steps": 9})
    with refused("core", tmp_path):
        check_unchanged(tmp_path, {"seed": 1, "core": (3, 12), "steps": 9})
    (tmp_path / "config.json").write_text("{")
    with refused("config.json", "JSON"):
        check_unchanged(tmp_path, {"seed": 1})


def test_draws_belong_to_the_example_and_not_to_its_batch():
    settings = DrawSettings()
    together = draw(SHAPE, seed=3, step=7, examples=range(6), settings=settings)
    for example in range(6):
        alone = draw(SHAPE, seed=3, step=7, examples=[example], settings=settings)
        for value, of_all in zip(alone, together, strict=True):
            assert torch.equal(value[0], of_all[example])
    for other in (dict(seed=4, step=7), dict(seed=3, step=8)):
        assert not torch.equal(draw(SHAPE, examples=[0], settings=settings, **other).noise[0], together.noise[0])


def test_draws_have_the_distributions_they_should():
    draws = draw((1, 1, 1), seed=0, step=0, examples=range(4000), settings=DrawSettings())
    logits = torch.log(draws.t / (1 - draws.t))
    assert logits.mean().item() == pytest.approx(-0.8, abs=0.05)
    assert logits.std().item() == pytest.approx(0.8, abs=0.05)
    assert draws.dropped.float().mean().item() == pytest.approx(0.1, abs=0.02)
    assert sorted(set((draws.earlier * 50).round().tolist())) == [1.0, 2.0, 3.0, 4.0]
    assert abs(draws.noise.mean().item()) < 0.05


def test_every_budget_is_drawn_and_the_generator_decides():
    def dials(seed: int) -> list[Dial]:
        generator = torch.Generator().manual_seed(seed)
        config = TrainConfig(model="m", output="o", data="d", steps=1, budgets=(4, 8, 16), blind=0.25)
        return [Dial.draw(config, generator) for _ in range(400)]

    drawn = dials(0)
    assert drawn == dials(0)
    assert drawn != dials(1)
    for budget in (4, 8, 16):
        assert sum(dial.budget == budget for dial in drawn) > 90
    assert 60 < sum(dial.blind for dial in drawn) < 140


def test_the_average_follows_and_gives_the_trained_values_back():
    weight = torch.nn.Parameter(torch.zeros(3))
    average = MovingAverage({"weight": weight}, decay=0.9)

    def follow(value: float, times: int = 1) -> float:
        for _ in range(times):
            weight.data.fill_(value)
            average.update()
        return average.values["weight"][0].item()

    assert follow(10.0) == pytest.approx(9.0)  # the start counts a tenth
    assert follow(20.0) == pytest.approx(18.0)  # 9 x 2/11 + 20 x 9/11
    assert follow(5.0, times=300) == pytest.approx(5.0)
    assert follow(15.0) == pytest.approx(6.0)  # from now on by the decay asked for
    with pytest.raises(KeyboardInterrupt), average.applied():
        torch.testing.assert_close(weight.detach(), torch.full((3,), 6.0))
        raise KeyboardInterrupt
    assert weight.tolist() == [15.0] * 3


@pytest.mark.parametrize("cuts_from", ["features", "estimate"])
def test_the_objective_is_the_velocity_loss_of_each_example(family, cuts_from):
    """At R = N with fresh parameters it is that of the frozen backbone; a dropped example has no condition."""
    backbone = make_backbone(family)
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1)) * 2 - 1
    condition = make_condition(backbone, 4)
    draws = draw(SHAPE, seed=0, step=0, examples=range(4), settings=DrawSettings(drop=0.5))
    assert 0 < draws.dropped.sum() < 4
    with torch.no_grad():
        t = draws.t.view(-1, 1, 1, 1)
        x = t * images + (1 - t) * backbone.flow.noise_scale * draws.noise
        both = [backbone(x, draws.t, some) for some in (condition, backbone.unconditional(condition))]
        clean = torch.where(draws.dropped.view(-1, 1, 1, 1), both[1], both[0])
        expected = ((clean - images) / (1 - t).clamp_min(0.05)).square().flatten(1).mean(dim=1)
    model = rti.attach(backbone, rti.RegionConfig(core=(1, 2), cuts="merge", cuts_from=cuts_from))
    patches = backbone.patches
    objective = ElasticObjective(model, estimate_budget=patches)
    torch.testing.assert_close(
        objective(images, condition, draws, Dial(patches, False)).detach(), expected, rtol=1e-4, atol=1e-5
    )
    loss = objective(images, condition, draws, Dial(8, False)).mean()
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    last_text = f"double_blocks.{backbone.depth - 1}.txt_"  # leads to no output
    learning = [name for name, p in model.named_parameters() if "lora_B" in name and last_text not in name]
    assert learning
    assert all(grads[name] is not None for name in learning)
    assert all(grads[name] is None for name, p in model.named_parameters() if not p.requires_grad)


def test_the_estimate_is_made_earlier_without_gradients_and_a_blind_step_makes_none(monkeypatch):
    backbone = make_backbone("jit")
    model = rti.attach(backbone, rti.RegionConfig(core=(1, 2), cuts="merge", cuts_from="estimate"))
    calls = []
    forward = rti.ElasticModel.forward

    def spy(self, x, t, condition, budget=None, estimate=None, text_budget=None):
        calls.append((t.clone(), budget, estimate, torch.is_grad_enabled()))
        return forward(self, x, t, condition, budget, estimate, text_budget)

    monkeypatch.setattr(rti.ElasticModel, "forward", spy)
    draws = draw(SHAPE, seed=0, step=0, examples=range(2), settings=DrawSettings())
    arguments = (torch.zeros(2, *SHAPE), make_condition(backbone, 2), draws)
    ElasticObjective(model, 4)(*arguments, Dial(8, False))
    (early, lean, none, graded), (late, budget, estimate, grading) = calls
    torch.testing.assert_close(early, (draws.t - draws.earlier).clamp_min(0))
    assert (lean, none, graded, budget, grading) == (4, None, False, 8, True)
    assert torch.equal(late, draws.t)
    assert estimate.shape == (2, *SHAPE)
    calls.clear()
    ElasticObjective(model, 4)(*arguments, Dial(8, True))
    assert [call[2] for call in calls] == [None]
