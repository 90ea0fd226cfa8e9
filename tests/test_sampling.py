"""Solvers, guidance, and the loop that hands each step's estimate to the next."""

import math
from itertools import pairwise

import pytest
import torch

import rti
from close import assert_close
from rti.backbones.minit2i import PreambleBlock
from rti.flow import draw_noise, interpolate, time_grid, velocity
from rti.sampling import GuidedVelocity
from test_trainer import letters
from tiny import CORE, make_backbone, make_condition, make_inputs, randomise_trainable, refused

# Solvers, against closed forms.


def solve(solver, rate: float, steps: int, power: int = 0) -> float:
    """dx/dt = rate x t^power from x(0) = 1 to t = 1, in float64."""
    times = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    return solver(lambda x, t, step: rate * x * t**power, torch.ones((), dtype=torch.float64), times).item()


def test_euler_is_the_product_of_its_steps():
    """x (1 + h a) at each step."""
    assert math.isclose(solve(rti.euler, 0.7, 10), (1 + 0.07) ** 10, rel_tol=1e-12)


def test_heun_is_the_product_of_its_steps_and_the_last_one_is_eulers():
    """x (1 + h a + h^2 a^2 / 2) at each step but the last, x (1 + h a) there."""
    assert math.isclose(solve(rti.heun, 0.7, 10), (1 + 0.07 + 0.07**2 / 2) ** 9 * (1 + 0.07), rel_tol=1e-12)
    assert math.isclose(solve(rti.heun, 0.7, 1), 1.7, rel_tol=1e-12)


@pytest.mark.parametrize(("solver", "ratio"), [(rti.euler, 2), (rti.heun, 4)])
def test_the_error_falls_with_the_order_of_the_method(solver, ratio):
    """Twice the steps, half the error, or a quarter; Heun's last step, Euler's, costs h^2 once, which is its order."""
    for rate, power in ((1.0, 0), (-1.5, 0), (1.0, 2)):
        exact = math.exp(rate / (power + 1))
        errors = [abs(solve(solver, rate, steps, power) - exact) for steps in (64, 128, 256)]
        for coarse, fine in pairwise(errors):
            assert math.isclose(coarse / fine, ratio, rel_tol=0.05)


def test_multistep_is_of_second_order():
    """With clean = r x the state is (1 - t)^(1 - r); where clean is known ahead, x(1) is what it is at t = 1."""
    rate, errors, last = 0.3, [], []
    for steps in (128, 256, 512):
        half = torch.linspace(0, 0.5, steps + 1, dtype=torch.float64)
        x = rti.multistep(lambda x, t, step: rate * x, torch.ones((), dtype=torch.float64), half)
        errors.append(abs(x.item() - 0.5 ** (1 - rate)))
        whole = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
        start = torch.ones((), dtype=torch.float64)
        x = rti.multistep(lambda x, t, step: torch.full_like(x, math.sin(3 * t)), start, whole)
        last.append(abs(x.item() - math.sin(3)))
    for some in (errors, last):
        for coarse, fine in pairwise(some):
            assert math.isclose(coarse / fine, 4, rel_tol=0.15), some


def test_multistep_is_exact_where_the_clean_image_moves_evenly():
    """But for its first step, which knows no movement yet: from there on any steps are right."""
    a, b = 0.4, -1.3
    times = torch.tensor([0.0, 1e-6, 0.2, 0.25, 0.7, 0.9], dtype=torch.float64)
    x = rti.multistep(lambda x, t, step: torch.full_like(x, a + b * t), torch.full((), 2.0, dtype=torch.float64), times)
    left = 1 - 0.9
    assert math.isclose(x.item(), a + b * 0.9 + left * (2.0 - a + b * math.log(left)), rel_tol=1e-5)


@pytest.mark.parametrize("solver", [rti.euler, rti.heun])
def test_the_callback_follows_each_step(solver):
    seen = []
    result = solver(
        lambda x, t, step: x * 0 + 1,
        torch.zeros(2),
        torch.linspace(0, 1, 5),
        lambda *call: seen.append(call) or call[1],
    )
    assert [step for step, _ in seen] == [0, 1, 2, 3]
    assert [x[0].item() for _, x in seen] == [0.25, 0.5, 0.75, 1.0]
    assert torch.equal(seen[-1][1], result)


def test_the_solver_tells_the_velocity_its_time_and_step():
    calls = {"euler": [], "heun": []}
    for name, solver in (("euler", rti.euler), ("heun", rti.heun)):
        solver(lambda x, t, step, name=name: calls[name].append((step, t)) or x, torch.ones(1), time_grid(2))
    assert calls == {"euler": [(0, 0.0), (1, 0.5)], "heun": [(0, 0.0), (0, 0.5), (1, 0.5)]}


# The flow.


def test_the_velocity_leads_from_the_noisy_image_to_the_clean_one():
    generator = torch.Generator().manual_seed(0)
    clean, noise = (torch.randn(3, 3, 4, 4, generator=generator) for _ in range(2))
    t = torch.tensor([0.0, 0.5, 0.9])
    remaining = (1 - t).view(-1, 1, 1, 1)  # dividing by it enlarges the rounding of x
    x = interpolate(clean, noise, t)
    assert_close(velocity(clean, x, t, 0.05) * remaining, (clean - noise) * remaining)
    assert torch.equal(interpolate(clean, noise, torch.zeros(3)), noise)
    assert torch.equal(interpolate(clean, noise, torch.ones(3)), clean)


@pytest.mark.parametrize("t", [0.97, 1.0])
def test_the_time_left_is_never_taken_below_its_floor(t):
    ones, zeros = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    assert math.isclose(velocity(ones, zeros, torch.tensor(t), 0.05).item(), 20.0, rel_tol=1e-6)
    assert math.isclose(velocity(ones, zeros, torch.tensor([t]), 0.05).item(), 20.0, rel_tol=1e-6)


def test_noise_belongs_to_the_generator_of_its_image():
    alone = [draw_noise((3, 8, 8), [torch.Generator().manual_seed(seed)], 2.0) for seed in (5, 6)]
    together = draw_noise((3, 8, 8), [torch.Generator().manual_seed(seed) for seed in (5, 6)], 2.0)
    assert torch.equal(torch.cat(alone), together)
    assert together.dtype == torch.float32
    many = draw_noise((3, 64, 64), [torch.Generator().manual_seed(0)], 2.0)
    assert math.isclose(many.std().item(), 2.0, rel_tol=0.05)


# The sampling loop, watched from outside.


class Spy(torch.nn.Module):
    """Stands for a model and writes down how it is called. Its clean image depends on time and condition."""

    def __init__(self, backbone, answer=None):
        super().__init__()
        self.backbone, self.answer = backbone, answer or (lambda x, t, condition: 0.5 * x + t)
        self.calls = []

    def prepare(self, condition):
        return self.backbone.prepare(condition)

    def unconditional(self, condition):
        return self.backbone.unconditional(condition)

    def forward(self, x, t, condition, budget=None, estimate=None):
        result = self.answer(x, t, condition)
        self.calls.append(dict(x=x, t=t, condition=condition, budget=budget, estimate=estimate, result=result))
        return result


def by_label(x, t, condition):
    """A clean image that says which label it was asked for."""
    return condition.labels.float().view(-1, 1, 1, 1).expand_as(x) + 0.1 * x


@pytest.fixture
def jit():
    return make_backbone("jit")


@pytest.mark.parametrize(
    ("interval", "guided_steps"),
    [
        ((0.1, 1.0), range(2, 10)),
        ((0.0, 1.0), range(10)),
        ((0.3, 0.7), range(4, 7)),
        ((0.0, 0.5), range(5)),
        ((0.9, 0.95), []),
    ],
)
def test_outside_the_guidance_interval_one_branch_is_evaluated(jit, interval, guided_steps):
    """The interval is open, as the release's; one that begins at 0 includes the first step."""
    spy = Spy(jit)
    x, _, condition = make_inputs(jit, batch=3)
    rti.sample(spy, x, condition, steps=10, guidance_scale=3.0, guidance_interval=interval, solver="euler")
    sizes = [len(call["x"]) for call in spy.calls]
    assert sizes == [6 if step in guided_steps else 3 for step in range(10)]
    for call in spy.calls:
        labels = call["condition"].labels.tolist()
        assert labels == ([0, 1, 2, 10, 10, 10] if len(labels) == 6 else [0, 1, 2])


@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_without_guidance_no_second_branch_is_evaluated(jit, solver):
    spy = Spy(jit)
    x, _, condition = make_inputs(jit, batch=3)
    rti.sample(spy, x, condition, steps=4, guidance_scale=1.0, solver=solver)
    assert [len(call["x"]) for call in spy.calls] == [3] * {"euler": 4, "heun": 7}[solver]


def test_guidance_extrapolates_between_the_branches(jit):
    """v_u + s (v_c - v_u): with clean images of label c and null label 10 that is 10 + s (c - 10)."""
    x, _, condition = make_inputs(jit, batch=3)
    guided = GuidedVelocity(Spy(jit, by_label), condition, jit.flow, 3.0, (0.0, 1.0))
    result = guided(x, 0.25, 0)
    labels = torch.tensor([0.0, 1.0, 2.0]).view(-1, 1, 1, 1)
    clean = 10 + 3 * (labels - 10) + 0.1 * x
    assert_close(guided.estimate, clean)
    assert_close(result, (clean - x) / 0.75)


@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_the_estimate_is_the_guided_clean_image_of_the_evaluation_before(jit, solver):
    spy = Spy(jit, by_label)
    x, _, condition = make_inputs(jit, batch=2)
    seen = []
    options = dict(steps=5, guidance_scale=3.0, guidance_interval=(0.1, 1.0), solver=solver)
    rti.sample(spy, x, condition, callback=lambda step, state, estimate: seen.append(estimate), **options)
    assert spy.calls[0]["estimate"] is None
    for before, after in pairwise(spy.calls):
        clean = before["result"]
        if len(clean) == 4:
            conditional, unconditional = clean.chunk(2)
            clean = unconditional + 3 * (conditional - unconditional)
        assert_close(after["estimate"], clean)
        assert len(after["estimate"]) == 2
    assert len(seen) == 5
    last = spy.calls[-1]["result"].chunk(2)
    assert_close(seen[-1], last[1] + 3 * (last[0] - last[1]))


def test_one_run_leaves_no_estimate_to_the_next(jit):
    spy = Spy(jit)
    x, _, condition = make_inputs(jit)
    for _ in range(2):
        rti.sample(spy, x, condition, steps=2)
    assert [call["estimate"] is None for call in spy.calls].count(True) == 2


@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_the_budget_may_be_a_function_of_the_step(jit, solver):
    spy = Spy(jit)
    x, _, condition = make_inputs(jit)
    schedule = [64, 0.5, 16, None]
    rti.sample(spy, x, condition, steps=4, budget=lambda step: schedule[step], solver=solver)
    per_step = {"euler": [64, 32, 16, 64], "heun": [64, 64, 32, 32, 16, 16, 64]}[solver]  # Heun's last step is single
    assert [call["budget"] for call in spy.calls] == per_step


@pytest.mark.parametrize(("budget", "regions"), [(None, 64), (5, 5), (0.25, 16)])
def test_the_budget_is_the_same_at_every_step_unless_it_is_a_function(jit, budget, regions):
    spy = Spy(jit)
    x, _, condition = make_inputs(jit)
    rti.sample(spy, x, condition, steps=3, budget=budget, solver="euler")
    assert [call["budget"] for call in spy.calls] == [regions] * 3


def test_a_later_start_skips_steps_and_keeps_their_times_and_budgets(jit):
    spy, seen = Spy(jit), []
    x, _, condition = make_inputs(jit)
    options = dict(steps=4, solver="euler", start=2, budget=lambda step: 10 + step)
    rti.sample(spy, x, condition, callback=lambda step, *_: seen.append(step), **options)
    assert [call["t"].item() for call in spy.calls] == [0.5, 0.75]
    assert [call["budget"] for call in spy.calls] == [12, 13]
    assert seen == [2, 3]
    assert torch.equal(spy.calls[0]["x"][:2], x)


def test_what_is_not_given_is_as_the_authors_sample(family):
    backbone = make_backbone(family)
    spy = Spy(backbone, lambda x, t, condition: torch.zeros_like(x))
    x, _, condition = make_inputs(backbone, batch=1)
    rti.sample(spy, x, condition)
    evaluations, steps = (100, 100) if family == "minit2i" else (99, 50)
    assert len(spy.calls) == evaluations
    times = [call["t"].item() for call in spy.calls]
    grid = torch.linspace(0, 1, steps + 1).tolist()
    assert times == (grid[:-1] if family == "minit2i" else [0.0, *(t for t in grid[1:-1] for _ in range(2))])
    plain = [len(call["x"]) for call in spy.calls].count(1)
    assert plain == (0 if family == "minit2i" else sum(t <= torch.tensor(0.1).item() for t in times))


# What depends on the prompt alone.


@pytest.fixture
def preamble_rows(monkeypatch):
    """How many prompts each call of a preamble block saw."""
    rows, original = [], PreambleBlock.forward

    def forward(self, text, phasors):
        rows.append(len(text))
        return original(self, text, phasors)

    monkeypatch.setattr(PreambleBlock, "forward", forward)
    return rows


@pytest.mark.parametrize("attached", [False, True])
def test_the_preamble_runs_once_per_prompt_and_once_on_a_single_row_without_one(preamble_rows, attached):
    backbone = make_backbone("minit2i", txt_preamble_depth=1)
    model = rti.attach(backbone, rti.RegionConfig(core=CORE)) if attached else backbone
    x, _, condition = make_inputs(backbone, batch=3)
    rti.sample(model, x, condition, steps=4, guidance_scale=5.0)
    assert preamble_rows == [3, 1]
    preamble_rows.clear()
    rti.sample(model, x, condition, steps=4, guidance_scale=1.0)
    assert preamble_rows == [3]
    preamble_rows.clear()
    rti.sample(model, x, model.prepare(condition), steps=4, guidance_scale=1.0)
    assert preamble_rows == [3]  # for prepare; sampling itself needs none


def test_a_condition_can_be_split_joined_and_moved(family):
    backbone = make_backbone(family)
    condition = backbone.prepare(make_condition(backbone, 4))
    parts = [condition[:1], condition[1:3], condition[torch.tensor([3])]]
    assert [len(part) for part in parts] == [1, 2, 1]
    whole = type(condition).cat(parts).to("cpu")
    x, t, _ = make_inputs(backbone, batch=4)
    with torch.no_grad():
        assert torch.equal(backbone(x, t, whole), backbone(x, t, condition))
    if family == "minit2i":
        assert condition.stream is not None
        assert len(whole.stream) == 4


# Numbers and independence.


@pytest.fixture
def model(backbone):
    config = rti.RegionConfig(core=CORE, cuts="merge", cuts_from="estimate", lora_rank=2, lora_alpha=2)
    return randomise_trainable(rti.attach(backbone, config)).eval()


@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_the_image_of_a_seed_does_not_depend_on_its_batch(model, solver):
    x, _, condition = make_inputs(model.backbone, batch=4)
    options = dict(steps=3, guidance_scale=2.0, budget=0.25, solver=solver)
    together = rti.sample(model, x, condition, **options)
    for i in range(4):
        alone = rti.sample(model, x[i : i + 1], condition[i : i + 1], **options)
        assert_close(alone, together[i : i + 1], gain=3)  # of guidance at scale 2
    assert torch.equal(rti.sample(model, x, condition, **options), together)


def test_with_bfloat16_weights_the_state_stays_float32(family):
    backbone = make_backbone(family)
    x, _, condition = make_inputs(backbone, batch=2)
    options = dict(steps=20, guidance_scale=2.0)
    expected = rti.sample(backbone, x, condition, **options)
    backbone.to(torch.bfloat16)
    states = []
    result = rti.sample(backbone, x, condition, callback=lambda step, *state: states.extend(state), **options)
    assert {state.dtype for state in states} == {torch.float32}
    assert result.dtype == torch.float32
    assert not torch.equal(result, result.bfloat16().float())  # it was not rounded on the way
    assert ((result - expected).square().mean() / expected.square().mean()).sqrt() < 0.05
    spy = Spy(backbone)
    rti.sample(spy, x, condition, steps=1, guidance_scale=1.0)
    assert torch.equal(spy.calls[0]["x"], x)  # nor on the way in


def test_sampling_leaves_no_graph_and_does_not_touch_its_noise(model):
    x, _, condition = make_inputs(model.backbone)
    before = x.clone()
    assert not rti.sample(model, x, condition, steps=1).requires_grad
    assert torch.equal(x, before)


def test_regions_of_a_sampling_run_follow_the_estimate(model, monkeypatch):
    """At the first step the cuts are fixed; later they are those of the picture so far, for both branches alike."""
    used, original = [], type(model.reduction).regions
    monkeypatch.setattr(type(model.reduction), "regions", lambda *args: used.append(original(*args)) or used[-1])
    x, _, condition = make_inputs(model.backbone, batch=2)
    estimates = []
    options = dict(steps=3, guidance_scale=2.0, guidance_interval=(0.0, 1.0), solver="euler", budget=9)
    rti.sample(model, x, condition, callback=lambda step, state, estimate: estimates.append(estimate), **options)
    assert all(len(ids) == 4 and torch.equal(ids[:2], ids[2:]) for ids in used)
    assert torch.equal(used[0][0], used[0][1])
    monkeypatch.undo()
    t = torch.zeros(2)
    for ids, estimate in zip(used[1:], estimates, strict=False):
        assert torch.equal(ids[:2], model.regions(x, t, condition, budget=9, estimate=estimate))


# The rest.


def test_a_progress_bar_is_shown_only_when_asked(jit, capsys):
    x, _, condition = make_inputs(jit)
    rti.sample(jit, x, condition, steps=2)
    assert capsys.readouterr().err == ""
    rti.sample(jit, x, condition, steps=2, progress=True)
    assert "2/2" in capsys.readouterr().err


def test_a_callback_may_stop_the_run(jit):
    seen = []

    def stop(step, state, estimate):
        seen.append(step)
        if step == 1:
            raise KeyboardInterrupt

    x, _, condition = make_inputs(jit)
    with pytest.raises(KeyboardInterrupt):
        rti.sample(jit, x, condition, steps=5, callback=stop, progress=True)
    assert seen == [0, 1]


REFUSED = [
    (dict(steps=0), ("steps", "0")),
    (dict(steps=-3), ("-3",)),
    (dict(steps=2.5), ("2.5",)),
    (dict(steps=True), ("True",)),
    (dict(steps="4"), ("'4'",)),
    (dict(steps=4, solver="rk4"), ("'rk4'", "euler", "heun", "multistep")),
    (dict(steps=4, solver=3), ("solver 3", "a scheduler of diffusers")),
    (dict(steps=4, finish="last"), ("finish 'last'", "estimate, state")),
    (dict(steps=4, shift=0.0), ("shift", "above 0")),
    (dict(steps=4, times=[0, 0.5, 1]), ("times given, and 4 steps",)),
    (dict(times=[0, 0.5, 1], shift=2.0), ("times given, and a shift",)),
    (dict(times=[0, 0.5, 0.5, 1]), ("times", "rising numbers, from 0 to 1")),
    (dict(times=[0.1, 1]), ("times", "rising numbers, from 0 to 1")),
    (dict(steps=4, start=4), ("start", "from 0 to 3", "got 4")),
    (dict(steps=4, start=-1), ("start", "got -1")),
    (dict(steps=4, budget=0), ("budget 0", "1 to 64")),
    (dict(steps=4, budget=lambda step: 65 - step), ("budget 65",)),
    (dict(steps=4, guidance_scale=float("nan")), ("nan",)),
    (dict(steps=4, guidance_interval=(0.5,)), ("0.5",)),
    (dict(steps=4, guidance_interval=(0.9, 0.1)), ("0.9", "0.1")),
]


def test_settings_that_are_none_are_refused_before_the_first_step(model):
    x, _, condition = make_inputs(model.backbone)
    for options, fragments in REFUSED:
        with refused(*fragments):
            rti.sample(model, x, condition, callback=lambda *_: pytest.fail("a step was taken"), **options)


def test_a_backbone_alone_takes_no_budget(backbone):
    x, _, condition = make_inputs(backbone)
    for budget in (8, 1.0, lambda step: 8):
        with refused("budget", "rti.attach"):
            rti.sample(backbone, x, condition, steps=1, budget=budget)


def test_noise_of_another_shape_is_refused(backbone):
    x, _, condition = make_inputs(backbone)
    with refused("(2, 3, 32, 28)", "(batch, 3, 32, 32)"):
        rti.sample(backbone, x[..., :28], condition, steps=1, guidance_scale=1.0)
    with refused("1 images", "2 conditions"):
        rti.sample(backbone, x[:1], condition, steps=1, guidance_scale=1.0)


# How it ends, and what users bring.


@pytest.mark.parametrize("solver", ["euler", "heun", "multistep"])
def test_the_picture_is_the_last_clean_estimate(jit, solver):
    """And the solver's state only where it is asked for: of short steps by velocity it keeps a part of the noise."""
    x, _, condition = make_inputs(jit, 2)
    seen = []
    options = dict(steps=40, solver=solver, callback=lambda step, state, estimate: seen.append((state, estimate)))
    picture = rti.sample(jit, x, condition, **options)
    assert torch.equal(picture, seen[-1][1]) and torch.equal(seen[-1][0], picture)
    state = rti.sample(jit, x, condition, **options | {"finish": "state"})
    assert torch.equal(state, seen[-1][0])
    assert (state - seen[-1][1]).abs().max() > 1e-3


def test_steps_as_long_as_the_floor_end_on_the_estimate_by_themselves(jit):
    x, _, condition = make_inputs(jit, 2)
    ends = [rti.sample(jit, x, condition, steps=20, solver="euler", finish=finish) for finish in ("estimate", "state")]
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


def test_a_shift_moves_the_steps_towards_the_noise_and_times_may_be_given(jit):
    """As SD3 shifts the noise level s = 1 - t: 3 s / (1 + 2 s)."""
    level = 1 - time_grid(8)
    torch.testing.assert_close(1 - time_grid(8, 3.0), 3 * level / (1 + 2 * level))
    x, _, condition = make_inputs(jit, 2)
    shifted = rti.sample(jit, x, condition, steps=8, shift=3.0)
    assert torch.equal(shifted, rti.sample(jit, x, condition, times=time_grid(8, 3.0).tolist()))
    assert not torch.equal(shifted, rti.sample(jit, x, condition, steps=8))


SCHEDULERS = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler", "UniPCMultistepScheduler")
SCHEDULERS += ("DPMSolverMultistepScheduler", "DEISMultistepScheduler")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_flow_schedulers_of_diffusers_take_the_place_of_our_solvers(family, name):
    """Made as users make them. That of Euler gives our Euler; the others come near where many steps lead."""
    diffusers = pytest.importorskip("diffusers")
    pipe = make_pipe(family)
    picture = draw_with(pipe, "euler", 30, finish="state")
    near = draw_with(pipe, "multistep", 60)
    scheduler = getattr(diffusers, name).from_config(pipe.scheduler.config)
    before = dict(vars(scheduler))
    pipe.scheduler = scheduler
    found = draw_with(pipe, None, 30)
    if name == "FlowMatchEulerDiscreteScheduler":
        torch.testing.assert_close(draw_with(pipe, None, 30, finish="state"), picture, rtol=0, atol=1e-5)
    assert (found - near).abs().mean() < 0.1
    assert torch.equal(found, draw_with(pipe, None, 30))
    assert {key: str(value) for key, value in vars(scheduler).items()} == {k: str(v) for k, v in before.items()}
    pipe.scheduler = None
    assert torch.equal(draw_with(pipe, "euler", 30, finish="state"), picture)


def test_a_scheduler_of_another_process_is_refused():
    diffusers = pytest.importorskip("diffusers")
    pipe = make_pipe("jit")
    for scheduler, said in (
        (diffusers.DDIMScheduler(), "use_flow_sigmas=True"),
        (diffusers.UniPCMultistepScheduler, "a scheduler of diffusers"),
        ("euler", "a scheduler of diffusers"),
    ):
        with refused(said):
            pipe.scheduler = scheduler


def make_pipe(family: str) -> rti.Pipeline:
    return rti.Pipeline(make_backbone(family), letters if family == "minit2i" else None)


def draw_with(pipe: rti.Pipeline, solver: str | None, steps: int, **options) -> torch.Tensor:
    what = {"prompt": "a"} if pipe.backbone.conditioned_on == "text" else {"label": 1}
    how = dict(generator=torch.Generator().manual_seed(0), output_type="pt", progress=False)
    how |= {"guidance_interval": (0.0, 1.0), "guidance_scale": 1.5}
    return pipe(**what, num_inference_steps=steps, solver=solver, **how, **options).images
